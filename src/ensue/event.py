"""Events and the stamps that order them: frozen values."""

from collections.abc import Mapping

import msgspec

__all__ = ["Event", "Stamp", "event_id"]


def event_id(publisher: str, topic: str, publisher_seq: int) -> str:
    """Name an event uniquely: publishers number their events per topic from 1."""
    return f"{publisher}/{topic}/{publisher_seq}"


class Stamp:
    """The logical timestamp of an event: how many events of each topic come up to it.

    The entry of the event's own topic is its slot: 1, 2, 3, … in that topic. `entries` maps topics
    to counts and is never changed once the stamp is made. `whole` says what an absent entry means:
    True: it is zero, or of no concern to any subscriber of the event's topic. False: it has not
    changed since the previous event of that topic.
    """

    # A plain class, not a msgspec struct: the wire packs stamps in a form of their own.
    __slots__ = ("entries", "whole")

    def __init__(self, entries: dict[str, int], whole: bool = True) -> None:
        self.entries = entries
        self.whole = whole

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Stamp):
            return NotImplemented
        return self.entries == other.entries and self.whole == other.whole

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        inside = ", ".join(f"{topic}:{count}" for topic, count in self.entries.items())
        return f"Stamp({inside}{'' if self.whole else ', …'})"


class Event(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
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
