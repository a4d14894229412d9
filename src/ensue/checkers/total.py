"""Checks that no two subscribers deliver two events in opposite orders.

Rule: for any two subscribers and any two events that both delivered, the orders are the same.
Only deliveries count, across topics and publishers; tagged ones are set aside, and of an event
delivered twice the first counts.

The rule `total` is pairwise. Three subscribers may each deliver a different two of three events and
so form a cycle, although no two of them disagree. Total order does not rule this out, so the rule
`total` only adds a note. Merged order does: all subscribers merge the streams into parts of one
sequence. Its rule `global` includes `total` and reports such a cycle as a violation. See
`disagreement` for the method and its cost.
"""

from functools import partial

from ensue.checkers import cycles
from ensue.checkers.disagreement import Disagreement, Orders
from ensue.checkers.history import History
from ensue.checkers.verdict import Collector

__all__ = ["SEARCH_ENDED", "judge", "judge_global"]

SEARCH_ENDED = "the search ended after"
"""Start of the note that there may be more disagreements than were counted."""


def judge(history: History, collector: Collector, *, disagreements_max: int) -> None:
    """Report one disagreement, the smallest, for each two distinct orders in a component."""
    orders = Orders(history)
    if not _judge_pairs(orders, collector, disagreements_max) and orders.parts:
        steps = _words(orders, _steps(orders, 0))
        collector.note(f"orders are pairwise consistent, yet no single order fits all: {steps}")


def judge_global(history: History, collector: Collector, *, disagreements_max: int) -> None:
    """Report disagreements as `judge` does, and a cycle for each component without one."""
    orders = Orders(history)
    disagreeing = _judge_pairs(orders, collector, disagreements_max)
    if len(disagreeing) == disagreements_max:
        return
    part_of = {event: number for number, part in enumerate(orders.parts) for event in _events(part)}
    explained = {part_of[found.events[0]] for found in disagreeing}
    for number in range(len(orders.parts)):
        if number not in explained:
            _report_cycle(orders, number, collector)


def _events(part: dict[int, list[int]]) -> set[int]:
    return {event for events in part.values() for event in events}


def _judge_pairs(
    orders: Orders, collector: Collector, disagreements_max: int
) -> list[Disagreement]:
    found = orders.disagreements(limit=disagreements_max)
    for disagreement in found:
        _report(orders, disagreement, collector)
    if len(found) == disagreements_max:
        collector.note(f"{SEARCH_ENDED} {disagreements_max} disagreements; there may be more")
    return found


def _report(orders: Orders, found: Disagreement, collector: Collector) -> None:
    one, other = found.subscribers
    first, second = found.events
    collector.violation(
        "total",
        (orders.subscribers[one], orders.subscribers[other]),
        (orders.events[first], orders.events[second]),
        partial(orders.explain, found),
    )


def _report_cycle(orders: Orders, number: int, collector: Collector) -> None:
    steps = _steps(orders, number)
    before, after, one = steps[0]
    other = steps[1][2]
    collector.violation(
        "global",
        (orders.subscribers[one], orders.subscribers[other]),
        (orders.events[before], orders.events[after]),
        lambda: f"no single order fits all: {_words(orders, steps)}",
    )


def _steps(orders: Orders, number: int) -> list[tuple[int, int, int]]:
    return cycles.cycle(orders.parts[number])


def _words(orders: Orders, steps: list[tuple[int, int, int]]) -> str:
    parts = [
        f"{orders.history.name(orders.subscribers[subscriber])} delivered {orders.events[before]} "
        f"before {orders.events[after]}"
        for before, after, subscriber in steps
    ]
    return f"{', '.join(parts[:-1])} and {parts[-1]}"
