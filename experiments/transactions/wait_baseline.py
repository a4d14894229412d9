"""The waiting baseline (BL-WAIT): the same operations without transactions, and a wait in the place of order.

E publishes that there is a new instance (operation 1) and, `wait` later, its update (operation 5). D, when it hears of the instance, assigns it to an agent by a publication
(operation 2) and unsubscribes (4); the agent, when it hears, subscribes (3). Nothing is answered for, nothing is ordered: the wait must be long enough for 2, 3 and 4 to
have reached all brokers. `shortest_wait` finds it as the paper does: to within 50 ms, from 2,000 ms on, so that all updates reach their agent alone while
with 50 ms less some do not. The paper goes up and down step by step; here the interval is halved, which ends at the same place if a longer wait never does harm.

This is no solution, only a measure of what order costs: the right wait depends on everything.
"""

from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["STEP_MS", "Waiting", "shortest_wait"]

STEP_MS = 50
MOST_MS = 2_000
LIMIT_MS = 64_000
Call = Callable[[str, Callable[[Any, int], None]], None]


class Waiting:
    """Plays all clients of the baseline. `call` gives a client a command, `later` does something after a while."""

    def __init__(
        self, call: Call, later: Callable[[int, Callable[[], None]], None], wait_ns: int
    ) -> None:
        self._call = call
        self._later = later
        self._wait_ns = wait_ns
        self._subscribed: dict[tuple[int, int], str] = {}
        """By instantiation and instance: the name of the dispatcher's subscription."""

    def start(self, number: int, at: int, agent: str, subscribed: str) -> None:
        """Dispatch an instance: operations 1 and, after the wait, 5."""
        self._subscribed[number, at] = subscribed
        self._publish(f"E{number}", {"workflow": number, "new": at, "agent": agent[0]})
        update = {"workflow": number, "instance": at}
        self._later(self._wait_ns, lambda: self._publish(f"E{number}", update))

    def notified(self, client: str, attributes: Mapping[str, Any]) -> None:
        """Hear of a new instance as the dispatcher, of an assigned one as an agent."""
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
    """Return the wait in ms with which all goes right, while it does not with 50 ms less."""
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
