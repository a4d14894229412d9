"""Checks that positions count the deliveries of a subscriber without a gap.

Rule: in step order, the `position` of each delivery of a subscriber is that of the previous one
plus one. Tagged deliveries count. Exceptions:

* The node restarted, or the subscription opened again: any position may follow. Of a durable
  subscription, only one that was not acknowledged: see `redelivery`.
* The subscription left a topic: positions may jump forward, over events that it discarded unread.
* The application discarded events unread, and the trace says so: their positions are skipped.

The first delivery may have any position: a durable subscription resumes. Deliveries without a
position are skipped.
"""

from bisect import bisect_right
from functools import partial

from ensue.checkers.history import Delivery, History
from ensue.checkers.verdict import Collector, Subscriber

__all__ = ["RULE", "Excuses", "excuses", "explanation", "judge"]

RULE = "positions"


class Excuses:
    """Steps of one subscriber at which its positions may jump."""

    def __init__(self, fresh: list[int], left: list[int]) -> None:
        self._fresh = sorted(fresh)
        self._left = sorted(left)

    def allow(self, before: tuple[int, int], after: tuple[int, int]) -> bool:
        """Return whether one delivery may follow another; each is a step and a position."""
        (first_step, first), (second_step, second) = before, after
        if second == first + 1 or _between(self._fresh, first_step, second_step):
            return True
        return second > first and _between(self._left, first_step, second_step)


def _between(steps: list[int], low: int, high: int) -> bool:
    return bisect_right(steps, low) < bisect_right(steps, high)


def excuses(history: History, subscriber: Subscriber) -> Excuses:
    """Return the steps at which the positions of a subscriber may jump."""
    intervals = [
        interval
        for (owner, _), found in history.intervals.items()
        if owner == subscriber
        for interval in found
    ]
    fresh = list(history.restarts.get(subscriber.node, ()))
    for interval in intervals:
        opened = interval.opened_step
        already = any(
            other.opened_step < opened
            and (other.closed_step is None or other.closed_step >= opened)
            for other in intervals
        )
        if not already:
            fresh.append(opened)
    left = [one.closed_step for one in intervals if one.closed_step is not None]
    return Excuses(fresh, left)


def judge(history: History, collector: Collector) -> None:
    """Report every delivery whose position does not follow the previous one."""
    for subscriber, deliveries in history.delivered.items():
        allowed: Excuses | None = None
        before: Delivery | None = None
        for delivery in deliveries:
            if delivery.stated is None:
                continue
            if before is not None and delivery.stated != _next(before):
                allowed = allowed or excuses(history, subscriber)
                assert before.stated is not None
                if not _skipped(
                    history, subscriber, before.stated, delivery.stated
                ) and not allowed.allow(
                    (before.step, before.stated), (delivery.step, delivery.stated)
                ):
                    explain = partial(
                        explanation,
                        history.name(subscriber),
                        (before.event, before.stated),
                        (delivery.event, delivery.stated),
                    )
                    events = (before.event, delivery.event)
                    collector.violation("position", (subscriber,), events, explain)
            before = delivery


def _skipped(history: History, subscriber: Subscriber, before: int, after: int) -> bool:
    """Return whether the application discarded everything between two positions unread."""
    unread = history.unread.get(subscriber, set())
    return after > before and all(each in unread for each in range(before + 1, after))


def _next(delivery: Delivery) -> int:
    assert delivery.stated is not None
    return delivery.stated + 1


def explanation(name: str, before: tuple[str, int], after: tuple[str, int]) -> str:
    """Describe two successive deliveries; each is an event and its position."""
    return (
        f"{name} delivered {after[0]} at position {after[1]} right after {before[0]} at position "
        f"{before[1]}; expected position {before[1] + 1}"
    )
