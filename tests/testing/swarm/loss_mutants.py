"""Planted bugs that lose events in merged order, for the swarm of the whole stack to find.

Events of this order may be missing for documented reasons. These have none.
`tests.testing.swarm.mutants` runs them with its own.
"""

from zlib import crc32

from ensue.core.event import Event
from ensue.protocols.interface import Frame
from ensue.protocols.merged.merger import LATE, Held, Merger
from ensue.protocols.merged.subscriber import MergedSubscriber
from ensue.protocols.topic_log.fanout import Fanout
from ensue.protocols.topic_log.frames import Notify

__all__ = ["LOSSES"]

EVERY = 20
"""One event of so many is lost."""

real_receive, real_repeat = MergedSubscriber.receive, MergedSubscriber.repeat
real_fan_out, real_offer = Fanout._fan_out, Merger.offer


def is_chosen(event: Event) -> bool:
    """Return whether an event is one of those that are lost."""
    return crc32(event.id.encode()) % EVERY == 0


def lose_some(self: MergedSubscriber, frame: Frame, *, source: str, now_ns: int) -> None:
    """A subscriber loses some events that reach it."""
    if not (isinstance(frame, Notify) and is_chosen(frame.event)):
        real_receive(self, frame, source=source, now_ns=now_ns)


def lose_when_back(self: MergedSubscriber, *, now_ns: int) -> None:
    """A subscriber loses some events since its connection was lost."""
    real_repeat(self, now_ns=now_ns)
    self.receive = lose_some.__get__(self)  # type: ignore[method-assign]


def relay_most(self: Fanout, topic: str, frame: Frame) -> None:
    """A server answers some events, and relays them to no client."""
    if not (isinstance(frame, Notify) and is_chosen(frame.event)):
        real_fan_out(self, topic, frame)


def call_some_late(self: Merger, held: Held, tick: int) -> str:
    """A subscriber takes some punctual events for late."""
    return LATE if is_chosen(held.event) else real_offer(self, held, tick)


LOSSES = (
    ("a subscriber loses events", "merged", ((MergedSubscriber, "receive", lose_some),), 2),
    (
        "a subscriber that was cut off loses events",
        "merged",
        ((MergedSubscriber, "repeat", lose_when_back),),
        10,
    ),
    ("servers relay most events", "merged", ((Fanout, "_fan_out", relay_most),), 2),
    ("punctual events count as late", "merged", ((Merger, "offer", call_some_late),), 2),
)
"""Name, order, what is replaced by what, and a seed that finds it and finds nothing without it."""
