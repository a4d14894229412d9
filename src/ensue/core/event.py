"""Events and the stamps that order them: frozen values."""

from typing import Annotated

import msgspec

__all__ = [
    "CLOCK",
    "COUNT_MAX",
    "DEADLINE",
    "NAME_LENGTH_MAX",
    "Count",
    "Event",
    "Name",
    "Proof",
    "Stamp",
    "event_id",
    "shorten",
    "text_bytes",
    "wire_bytes",
]

COUNT_MAX = 2**62
"""Largest event count: the sum of two still fits into 64 bits."""
CLOCK = "@r"
"""Stamp entry of the publisher's clock, in orders by clocks."""
DEADLINE = "@d"
"""Stamp entry of the deadline, on the receiver's clock."""
NAME_LENGTH_MAX = 255
"""Maximum characters of a topic or client name."""
SECOND_NS = 1_000_000_000
SHOWN_MAX = 80
"""Maximum bytes of a payload, key or header that `repr` shows."""
_FIXED_BYTES = 64
"""Upper bound of an event's numbers, flags and lengths."""
_ENTRY_BYTES = 14
"""Upper bound of the lengths and the count beside a name."""


def event_id(publisher: str, topic: str, publisher_seq: int) -> str:
    """Name an event uniquely: publishers number their events per topic from 1."""
    return f"{publisher}/{topic}/{publisher_seq}"


def shorten(value: bytes | str) -> str:
    """Return the `repr` of a value, or of its beginning with its length."""
    if len(value) <= SHOWN_MAX:
        return repr(value)
    unit = "bytes" if isinstance(value, bytes) else "characters"
    return f"{value[:SHOWN_MAX]!r}… ({len(value):,} {unit})"


Count = Annotated[int, msgspec.Meta(ge=0, le=COUNT_MAX)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_LENGTH_MAX)]
Proof = Annotated[bytes, msgspec.Meta(max_length=16)]
"""A server's MAC on a claim it verified; empty: none. Clients pass it on and cannot forge it."""


class Stamp(msgspec.Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True):
    """The logical timestamp of an event: the number of events of each topic up to it.

    The entry of the event's own topic is its slot: 1, 2, 3, … in that topic. `entries` maps topics
    to counts and never changes. `whole` says what an absent entry means. True: it is zero, or no
    subscriber of the event's topic needs it. False: it has not changed since the previous event of
    that topic.

    A clock stamp has other entries, which all begin with `@`: see
    `ensue.protocols.merged.timestamps`.
    """

    entries: dict[Name, Count]
    whole: bool = True

    def __repr__(self) -> str:
        # Topics may hold control characters: keep them off terminals.
        inside = ", ".join(
            f"{topic if topic.isprintable() else ascii(topic)[1:-1]}:{count}"
            for topic, count in self.entries.items()
        )
        return f"Stamp({inside}{'' if self.whole else ', …'})"


class Event(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    array_like=True,
    gc=False,  # It holds only text, bytes and numbers, so it is never part of a cycle.
    forbid_unknown_fields=True,
):
    """Something published on a topic."""

    topic: Name
    payload: bytes
    publisher: Name
    publisher_seq: Count
    """1, 2, 3, … per publisher and topic."""
    key: bytes | None = None
    headers: dict[str, str] = {}
    published_at_ns: int = 0
    """The publisher's clock when the event was published."""
    stamp: Stamp | None = None
    """Present once ordered."""
    place: Count = 0
    """1, 2, 3, … over all topics of its server; 0 where no server counts."""
    void: bool = False
    """A placeholder for an event whose publisher did not confirm in time; never delivered."""

    def __repr__(self) -> str:
        parts = [
            f"id={self.id!r}",
            f"payload={shorten(self.payload)}",
        ]
        if self.key is not None:
            parts.append(f"key={shorten(self.key)}")
        if self.headers:
            inside = ", ".join(f"{shorten(k)}: {shorten(v)}" for k, v in self.headers.items())
            parts.append(f"headers={{{inside}}}")
        if self.stamp is not None:
            parts.append(f"stamp={self.stamp!r}")
        return f"Event({', '.join(parts)}{', void=True' if self.void else ''})"

    @property
    def id(self) -> str:
        """The unique id of the event."""
        return event_id(self.publisher, self.topic, self.publisher_seq)

    @property
    def counted(self) -> bool:
        """Whether the stamp counts events; a clock stamp does not."""
        return self.stamp is not None and CLOCK not in self.stamp.entries

    @property
    def slot(self) -> int | None:
        """The event's place in its own topic, if stamped."""
        return None if self.stamp is None else self.stamp.entries.get(self.topic)

    @property
    def deadline(self) -> float | None:
        """Deadline in seconds since the epoch; None without one, or before it is known.

        Each process judges it by its own clock, which follows the wall clock.
        """
        deadline_ns = None if self.stamp is None else self.stamp.entries.get(DEADLINE)
        return None if deadline_ns is None else deadline_ns / SECOND_NS


def text_bytes(text: str) -> int:
    """Return the length of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def wire_bytes(event: Event) -> int:
    """Return a tight upper bound of an event's bytes in a message."""
    topic, publisher = event.topic, event.publisher
    size = _FIXED_BYTES + len(event.payload)
    # `text_bytes`, inlined: this runs for every event.
    size += len(topic) if topic.isascii() else len(topic.encode())
    size += len(publisher) if publisher.isascii() else len(publisher.encode())
    if event.key is not None:
        size += len(event.key)
    if event.headers:
        for name, value in event.headers.items():
            size += text_bytes(name) + text_bytes(value) + _ENTRY_BYTES
    if event.stamp is not None:
        for topic in event.stamp.entries:
            size += text_bytes(topic) + _ENTRY_BYTES
    return size
