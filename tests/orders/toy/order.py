"""The value that an application passes to `connect`, and what its traces are checked for."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from ensue.checkers.history import History
from ensue.checkers.verdict import Collector
from ensue.core.order import Order, Promise

__all__ = ["Pairs"]


def judge_pairs(history: History, collector: Collector) -> None:
    """Report each delivery that is not the next one of its publisher and topic: 2, 1, 4, 3, …"""
    for subscriber, deliveries in history.delivered.items():
        counts: dict[tuple[str, str], int] = {}
        for one in deliveries:
            source = one.publisher, one.topic
            count = counts[source] = counts.get(source, 0) + 1
            due = count + 1 if count % 2 else count - 1
            if one.publisher_seq != due:
                explain = partial(_explain, history.name(subscriber), one.event, due)
                collector.violation("pairs", (subscriber,), (one.event,), explain)


def _explain(name: str, event: str, due: int) -> str:
    return f"{name} delivered {event} where number {due} was due"


@dataclass(frozen=True, kw_only=True)
class Pairs(Order):
    """Each publisher's events in pairs, the later one first."""

    name: ClassVar[str] = "pairs"
    promises: ClassVar[Mapping[str, Promise]] = {
        "pairs": Promise(rules=("pairs", "positions", "complete"), judges={"pairs": judge_pairs})
    }
