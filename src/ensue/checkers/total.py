"""Checks that no two subscribers deliver two events in opposite orders.

Rule: for any two subscribers and any two events that both delivered, the orders are the same.
Only deliveries count, across topics and publishers; tagged ones are set aside, and of an event
delivered twice the first counts.

The rule is pairwise. Three subscribers may each see a different two of three events and so walk
in a circle without any two of them disagreeing. That breaks no promise of Ensue, so it is told
as a note. See `disagreement` for the method and its cost.
"""

from functools import partial

from ensue.checkers import cycles
from ensue.checkers.disagreement import Disagreement, Orders
from ensue.checkers.history import History
from ensue.checkers.verdict import Collector

__all__ = ["SEARCH_ENDED", "judge"]

SEARCH_ENDED = "the search ended after"
"""How the note begins that says that there may be more disagreements than were counted."""


def judge(history: History, collector: Collector, *, disagreements_max: int) -> None:
    """Report one disagreement, the smallest, for each two distinct orders in a component."""
    orders = Orders(history)
    found = orders.disagreements(limit=disagreements_max)
    for disagreement in found:
        _report(orders, disagreement, collector)
    if len(found) == disagreements_max:
        collector.note(f"{SEARCH_ENDED} {disagreements_max} disagreements; there may be more")
    if orders.parts and not found:
        collector.note(_circle(orders))


def _report(orders: Orders, found: Disagreement, collector: Collector) -> None:
    one, other = found.subscribers
    first, second = found.events
    collector.violation(
        "total",
        (orders.subscribers[one], orders.subscribers[other]),
        (orders.events[first], orders.events[second]),
        partial(orders.explain, found),
    )


def _circle(orders: Orders) -> str:
    steps = [
        f"{orders.history.name(orders.subscribers[subscriber])} delivered {orders.events[before]} "
        f"before {orders.events[after]}"
        for before, after, subscriber in cycles.cycle(orders.parts[0])
    ]
    return (
        "orders are pairwise consistent, yet no single order fits all: "
        f"{', '.join(steps[:-1])} and {steps[-1]}"
    )
