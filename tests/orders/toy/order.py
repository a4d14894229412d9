"""The value that an application passes to `connect`, and the rule that traces are judged by."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from ensue.checkers.history import Delivery, History
from ensue.checkers.verdict import Collector
from ensue.core.errors import BadInput
from ensue.core.order import Order, Promise

__all__ = ["Batches"]

SIZE_MAX = 1_000


def judge_batches(history: History, collector: Collector) -> None:
    """Report each delivery that is not the next one of its publisher and topic.

    With batches of three these are 3, 2, 1, 6, 5, 4, … The last batch may be smaller. The size is
    the highest number that any subscriber got first.
    """
    published: dict[tuple[str, str], int] = {}
    for event in history.published.values():
        source = event.publisher, event.topic
        published[source] = max(event.publisher_seq, published.get(source, 0))
    firsts = [
        sequence[0].publisher_seq
        for deliveries in history.delivered.values()
        for sequence in _by_source(deliveries).values()
    ]
    size = max(firsts, default=1)
    for subscriber, deliveries in history.delivered.items():
        for source, sequence in _by_source(deliveries).items():
            for count, one in enumerate(sequence):
                batch, place = divmod(count, size)
                due = min((batch + 1) * size, published.get(source, 0)) - place
                if one.publisher_seq != due:
                    explain = partial(_explain, history.name(subscriber), one.event, due)
                    collector.violation("batches", (subscriber,), (one.event,), explain)


def _by_source(deliveries: Iterable[Delivery]) -> dict[tuple[str, str], list[Delivery]]:
    found: dict[tuple[str, str], list[Delivery]] = {}
    for one in deliveries:
        found.setdefault((one.publisher, one.topic), []).append(one)
    return found


def _explain(name: str, event: str, due: int) -> str:
    return f"{name} delivered {event} where number {due} was due"


@dataclass(frozen=True, kw_only=True)
class Batches(Order):
    """Each publisher's events in batches, the latest of a batch first."""

    name: ClassVar[str] = "batches"
    promises: ClassVar[Mapping[str, Promise]] = {
        "batches": Promise(
            rules=("batches", "positions", "complete"), judges={"batches": judge_batches}
        )
    }

    size: int = 2

    def __post_init__(self) -> None:
        if not 1 <= self.size <= SIZE_MAX:
            raise BadInput(f"size must be from 1 to {SIZE_MAX}, got {self.size}")
