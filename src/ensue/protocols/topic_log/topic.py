"""The log of one topic: taken slots, events in memory, and listeners.

`TopicLog` has one of these for each topic, and all the rules.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Protocol

import msgspec

from ensue.core.event import Event, Stamp

__all__ = ["RECENT", "KeptEvents", "Topic", "made_whole"]

WHOLE_PLACES = 16_384
"""Events of all topics after which a topic's next stamp is whole: logs drop large pieces."""


RECENT = 1024
"""The last slots of a topic that are searched for the last place."""


def made_whole(event: Event, earlier: Iterable[Event | None]) -> Event:
    """Return an event with a whole stamp, if `earlier` ones, latest first, allow it."""
    stamp = event.stamp
    if stamp is None or stamp.whole:
        return event
    entries = dict(stamp.entries)
    for each in earlier:
        if each is None or each.stamp is None:
            break
        for topic, count in each.stamp.entries.items():
            entries.setdefault(topic, count)
        if each.stamp.whole:
            return msgspec.structs.replace(event, stamp=Stamp(entries))
    return event


class KeptEvents(Protocol):
    """The store of persisted events, which are under `event/SLOT/TOPIC`."""

    def event(self, topic: str, slot: int) -> bytes | None:
        """Return the event in a slot as it was persisted."""

    def bounds(self) -> Mapping[str, tuple[int, int]]:
        """Return each topic's first slot that is kept and its next free one."""


class Topic:
    """One topic."""

    __slots__ = (
        "attached",
        "events",
        "filled",
        "first",
        "hole",
        "next",
        "peers",
        "stamp",
        "whole_place",
        "whole_slot",
    )

    def __init__(self) -> None:
        self.events: OrderedDict[int, Event | bytes] = OrderedDict()
        """All that are kept; or, as they were persisted, the latest of those in the store."""
        self.first = 1
        self.next = 1
        self.filled = 1
        """The first slot that is not filled yet."""
        self.hole = 0
        """`filled` as it was persisted; 0: it is not, as no slot before `next` is empty."""
        self.stamp: dict[str, int] | None = None
        """The whole entries of the event before `filled`; None: not known."""
        self.whole_slot = 0
        """From this slot on the next stamp is made whole."""
        self.whole_place = 0
        """From this place on the next stamp is made whole."""
        self.attached: dict[str, None] = {}
        self.peers: tuple[str, ...] | None = ()  # The same as a tuple; None: to be made.

    def step_over(self, event: Event, whole_every: int) -> None:
        """Fill the first slot that was not filled with its event, and read its stamp."""
        stamp = event.stamp
        if stamp is not None:
            if stamp.whole:
                self.stamp = dict(stamp.entries)
                self.whole_slot = self.filled + whole_every
                self.whole_place = event.place + WHOLE_PLACES
            elif self.stamp is not None:
                self.stamp.update(stamp.entries)
        self.filled += 1

    def made_whole(self, event: Event) -> Event:
        """Return the event of slot `filled`, with a whole stamp if that is known."""
        stamp = event.stamp
        if stamp is None or stamp.whole or self.stamp is None:
            return event
        return msgspec.structs.replace(event, stamp=Stamp({**self.stamp, **stamp.entries}))
