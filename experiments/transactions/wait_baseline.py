"""The waiting baseline (BL-WAIT): the operations without transactions, and a wait instead of order.

E publishes that there is a new instance (operation 1) and, `wait` later, its update (operation 5).
When D receives the instance, it publishes its assignment to an agent (2) and unsubscribes (4); when
the agent receives the assignment, it subscribes (3). There are no answers and there is no order:
the wait must be long enough for 2, 3 and 4 to reach all brokers.

`shortest_wait` finds it as the paper does: to within 50 ms, starting at 2,000 ms, so that every
update reaches its agent alone, and with 50 ms less some do not. The paper goes up and down step by
step; here bisection finds the same wait, if a longer wait never does harm.

The baseline is not a solution, because the right wait depends on load and topology. It measures the
cost of order.
"""

from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["STEP_MS", "Waiting", "shortest_wait"]

STEP_MS = 50
MOST_MS = 2_000
LIMIT_MS = 64_000
Call = Callable[[str, Callable[[Any, int], None]], None]


class Waiting:
    """All clients of the baseline; `call` runs a client's command, `later` a delayed function."""

    def __init__(
        self, call: Call, later: Callable[[int, Callable[[], None]], None], wait_ns: int
    ) -> None:
        self._call = call
        self._later = later
        self._wait_ns = wait_ns
        self._subscribed: dict[tuple[int, int], str] = {}
        """By instantiation and instance: the dispatcher's subscription."""

    def start(self, number: int, at: int, agent: str, subscribed: str) -> None:
        """Dispatch an instance: operations 1 and, after the wait, 5."""
        self._subscribed[number, at] = subscribed
        self._publish(f"E{number}", {"workflow": number, "new": at, "agent": agent[0]})
        update = {"workflow": number, "instance": at}
        self._later(self._wait_ns, lambda: self._publish(f"E{number}", update))

    def notified(self, client: str, attributes: Mapping[str, Any]) -> None:
        """Handle a new instance as its dispatcher, or an assignment as its agent."""
        if "new" in attributes:
            number, at = int(attributes["workflow"]), int(attributes["new"])
            assigned = {"assign": number, "agent": attributes["agent"], "of": at}
            self._publish(client, assigned)
            name = self._subscribed[number, at]
            self._call(client, lambda node, now: node.unsubscribe(name, now_ns=now))
        else:
            where = f"workflow = {attributes['assign']} and instance = {attributes['of']}"
            self._call(client, lambda node, now: node.subscribe(where, now_ns=now))

    def _publish(self, client: str, attributes: Mapping[str, Any]) -> None:
        self._call(client, lambda node, now: node.publish(attributes, now_ns=now))


def shortest_wait(right: Callable[[int], bool]) -> int:
    """Return the shortest sufficient wait in ms, to within 50 ms."""
    high = MOST_MS
    while not right(high):
        high *= 2
        if high > LIMIT_MS:
            raise ValueError(f"a wait of {high // 2} ms is not enough")
    low = 0 if high == MOST_MS else high // 2
    if low == 0 and right(0):
        return 0
    while high - low > STEP_MS:
        middle = (low + high) // 2 // STEP_MS * STEP_MS
        if right(middle):
            high = middle
        else:
            low = middle
    return high
