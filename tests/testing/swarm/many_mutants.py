"""Planted bugs of calls for many events at once, for the swarm of the whole stack to find.

`mutants` merges them with all others, and runs them.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from ensue.client import publications
from ensue.client.acknowledgements import Acknowledgements
from ensue.client.handover import Handover
from ensue.client.publications import Publications
from ensue.client.receipts import ManyReceipts
from ensue.core.event import Event
from ensue.transports.tcp.carrier import TcpCarrier

__all__ = ["MANY"]


async def acknowledge_at_handover(self: Handover, size_max: int) -> Any:
    """A batch is acknowledged when it is handed over."""
    batch = await real_next_batch(self, size_max)
    if self.automatic:
        self.acknowledge_last()
    return batch


async def lose_if_cancelled(self: Handover, size_max: int) -> Any:
    """A reader may be cancelled between taking a batch and returning it."""
    batch = await real_next_batch(self, size_max)
    await asyncio.sleep(0)
    return batch


async def batch_late_events(self: Handover, size_max: int) -> Any:
    """Deadlines are not checked when a batch is handed over."""
    watches, self._watches = self._watches, False
    try:
        return await real_next_batch(self, size_max)
    finally:
        self._watches = watches


def acknowledge_the_first(self: Acknowledgements) -> int:
    """Asking for more acknowledges the first event of a batch, and not the others."""
    return self.acknowledge(next(iter(self.open))) or self.acknowledged


async def skip_after_waiting(
    self: Publications, events: Sequence[Any], many: ManyReceipts, *, wanted: bool
) -> None:
    """A part that had to wait for room is lost."""
    first = 0
    while first < len(events):
        last = self._end_of_part(events, first)
        if last == first:
            await self._wait_for_room(events[first][0])
            last = min(first + publications.BURST_MAX, len(events))
        else:
            self._publish_part(events[first:last], many, wanted=wanted)
            await asyncio.sleep(0)
        first = last


def lose_while_away(
    self: Publications, events: Sequence[Any], many: ManyReceipts, *, wanted: bool
) -> None:
    """A part that is published while a server is away is not sent at the reconnect."""
    carrier: Any = getattr(self._hub.transport, "carrier", None)
    links = carrier._links if isinstance(carrier, TcpCarrier) else {}
    if not any(link._away for link in links.values()):
        real_publish_part(self, events, many, wanted=wanted)


def publish_backwards(
    self: Publications, events: Sequence[Any], many: ManyReceipts, *, wanted: bool
) -> None:
    """The events of a part are published from the last to the first."""
    first = len(many.events)
    real_publish_part(self, events[::-1], many, wanted=wanted)
    many.events[first:] = many.events[first:][::-1]


async def wait_for_no_receipt(self: ManyReceipts, by_s: float | None) -> None:
    """Many events count as published when they are sent."""
    del by_s
    for event in self.events:
        self._results.setdefault((event.topic, event.publisher_seq), event)


def return_by_receipt(self: ManyReceipts, *arguments: Any, **options: Any) -> list[Event]:
    """Events are returned in the sequence of their receipts."""
    events = real_outcome(self, *arguments, **options)
    return self.stamped if options["wanted"] else events


real_next_batch, real_publish_part = Handover.next_batch, Publications._publish_part
real_outcome = ManyReceipts.outcome

MANY = (
    (
        "batches are acknowledged at hand-over",
        "total",
        ((Handover, "next_batch", acknowledge_at_handover),),
        74,
    ),
    ("a cancelled wait loses a batch", "total", ((Handover, "next_batch", lose_if_cancelled),), 74),
    ("batches have late events", "deadline", ((Handover, "next_batch", batch_late_events),), 8),
    (
        "one event of a batch is acknowledged",
        "total",
        ((Acknowledgements, "acknowledge_all", acknowledge_the_first),),
        74,
    ),
    (
        "parts without room are skipped",
        "operations",
        ((Publications, "_publish_parts", skip_after_waiting),),
        21,
    ),
    (
        "parts are published backwards",
        "total",
        ((Publications, "_publish_part", publish_backwards),),
        74,
    ),
    ("many are settled when sent", "total", ((ManyReceipts, "wait", wait_for_no_receipt),), 74),
    (
        "parts are lost while a server is away",
        "total",
        ((Publications, "_publish_part", lose_while_away),),
        226,
    ),
    ("many come back by receipt", "total", ((ManyReceipts, "outcome", return_by_receipt),), 217),
)
"""Name, order, what is replaced by what, and a seed that finds it and finds nothing without it."""
