"""Events and the stamps that order them: frozen values."""

from collections.abc import Mapping

import msgspec

__all__ = ["Event", "Stamp", "event_id"]


def event_id(publisher: str, topic: str, publisher_seq: int) -> str:
    """Name an event uniquely: publishers number their events per topic from 1."""
    return f"{publisher}/{topic}/{publisher_seq}"


class Stamp(msgspec.Struct, frozen=True, gc=False):
    """The logical timestamp of an event: how many events of each topic come up to it.

    The entry of the event's own topic is its slot: 1, 2, 3, … in that topic.
    """

    entries: dict[str, int]
    """Topic to count. Never changed after the stamp is made."""
    whole: bool = True
    """False: an absent entry has not changed since the previous event of the same topic.
    True: an absent entry is zero or of no concern to any subscriber of the event's topic."""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something published on a topic."""

    topic: str
    payload: bytes
    publisher: str
    publisher_seq: int
    """1, 2, 3, … per publisher and topic."""
    key: bytes | None = None
    headers: Mapping[str, str] = {}
    published_at_ns: int = 0
    """The publisher's clock when the event was published."""
    stamp: Stamp | None = None
    """Present once ordered."""
    void: bool = False
    """True: a placeholder for an event whose publisher vanished; stepped over, never shown."""

    @property
    def id(self) -> str:
        """The unique id of the event."""
        return event_id(self.publisher, self.topic, self.publisher_seq)

    @property
    def slot(self) -> int | None:
        """The event's place in its own topic, if stamped."""
        return None if self.stamp is None else self.stamp.entries.get(self.topic)
