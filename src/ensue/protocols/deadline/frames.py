"""Frames between brokers and subscribers.

| frame | from | to | purpose |
|---|---|---|---|
| `Message` | broker | broker | an event with its deadline, and what its sender knew before it |
| `Summary` | broker | broker | ids of messages to the receiver, in case it lacks one |
| `Request` | broker | broker | messages that the sender lacks |
| `Groups`, `Noted` | broker | broker | groups of the sender; acknowledgement |
| `Rumors` | broker, subscriber | subscriber | messages of rounds, ids of others, and peers |
| `Wanted` | subscriber | sender of ids | messages that the sender lacks |
| `Enter` | subscriber | broker | topics wanted |
| `Welcome` | broker | subscriber | acknowledgement, peers, and a newer broker list |

Frames name brokers by number, which is never reused. Topics are the groups. No set of numbers is
larger than `SET_BYTES_MAX`.
"""

from typing import Annotated

import msgspec

from ensue.core.event import Count, Event, Name, Proof
from ensue.protocols.interface import Frame

__all__ = [
    "BETWEEN_BROKERS",
    "FRAMES",
    "Enter",
    "Filters",
    "Groups",
    "Live",
    "Matrix",
    "Message",
    "Noted",
    "Number",
    "Peer",
    "Request",
    "Row",
    "Rows",
    "Rumor",
    "RumorId",
    "Rumors",
    "Summary",
    "Wanted",
    "Welcome",
]

NUMBERS_MAX = 1 << 16
SET_BYTES_MAX = NUMBERS_MAX // 8

Number = Annotated[int, msgspec.Meta(ge=0, lt=NUMBERS_MAX)]
"""The number of a broker."""
Numbers = Annotated[bytes, msgspec.Meta(max_length=SET_BYTES_MAX)]
"""A set of brokers, one bit each."""
Matrix = dict[Number, dict[Number, Count]]
"""By sender and destination: the stamp of the last message."""
Rows = dict[Number, dict[Count, Numbers]]
"""A matrix on the wire. By sender and age of its last message: the set of destinations."""
Live = dict[Name, dict[Number, Count]]
"""By topic and broker: the round of its last message."""
Filters = dict[Name, str]
"""By topic: a filter of events by their headers."""
RumorId = tuple[Name, Number, Count]
"""Topic, broker and round as sent."""


class Row(msgspec.Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True):
    """The groups of one broker. The row with the greater version is valid."""

    node: Number
    version: Count
    topics: tuple[Name, ...]


class Peer(msgspec.Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True):
    """A subscriber as known to others."""

    name: Name
    site: str
    topics: tuple[Name, ...]
    round: Count
    """Round of its own clock when it sent this: the later entry is valid."""
    wants: Filters = msgspec.field(default_factory=dict)
    """Filters by topic, where it does not want all events."""


class Rumor(msgspec.Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True):
    """Events of one broker, topic and round."""

    topic: Name
    source: Number
    round: Count
    """Its number, or its color."""
    live: Live
    """Rounds, as sent, that its broker knew of and that may still be alive."""
    events: tuple[Event, ...]

    @property
    def id(self) -> RumorId:
        """Its id: a broker has one message per round."""
        return (self.topic, self.source, self.round)


class Message(Frame, frozen=True, tag=90):
    """An event from one broker to others. Its stamp holds send time and deadline."""

    event: Event
    source: Number
    dest: Numbers
    """The destinations."""
    base: Count
    """0: `after` is complete. Else: the difference from the message of this stamp and source."""
    after: Rows
    """What its sender knew was sent before. A row has few stamps: messages go to groups."""
    round: Count
    """The round in which its sender pushes it to subscribers; 0: none."""
    live: Live
    """Rounds it knew of, as differences from its own."""
    heard: Count
    """Stamp of a message of the receiver that can serve as base here; 0: none."""
    digest: Annotated[bytes, msgspec.Meta(max_length=16)] = b""
    """Digest of the complete matrix by its source, so that a seal covers differences too."""
    proof: Proof = b""


class Summary(Frame, frozen=True, tag=91):
    """Messages to the receiver that the sender has: stamps by source."""

    have: dict[Number, tuple[Count, ...]]
    heard: Count


class Request(Frame, frozen=True, tag=92):
    """Messages that the sender lacks."""

    wanted: dict[Number, tuple[Count, ...]]
    baseless: bool = False
    """Whether their base was missing: the receiver must send complete matrices again."""


class Groups(Frame, frozen=True, tag=93):
    """The groups of the sender, to be acknowledged."""

    row: Row


class Noted(Frame, frozen=True, tag=94):
    """Acknowledgement of a version of `Groups`."""

    version: Count
    row: Row
    """The groups of the sender."""


class Rumors(Frame, frozen=True, tag=95):
    """Gossip: messages, ids and peers."""

    rumors: tuple[Rumor, ...]
    have: tuple[RumorId, ...]
    """Ids of other messages that the sender has."""
    peers: tuple[Peer, ...]
    cuts: Filters = msgspec.field(default_factory=dict)
    """Filters by topic that were applied to the messages."""


class Wanted(Frame, frozen=True, tag=96):
    """Ids of messages that the sender lacks."""

    ids: tuple[RumorId, ...]
    wants: Filters = msgspec.field(default_factory=dict)
    """Filters by topic, where it does not want all events."""


class Enter(Frame, frozen=True, tag=97):
    """A subscriber announces itself and its topics."""

    peer: Peer
    asks: bool
    """Whether it expects a `Welcome`."""
    edition: Count = 0
    """Edition of its broker list; 0: not from a broker."""


class Welcome(Frame, frozen=True, tag=98):
    """Acknowledgement of an `Enter`."""

    topics: tuple[Name, ...]
    """The topics it wanted."""
    peers: tuple[Peer, ...]
    edition: Count = 0
    """Edition of the broker list, if the subscriber has an older one; else 0."""
    brokers: tuple[Name, ...] = ()
    """All present brokers."""


BETWEEN_BROKERS: tuple[type[Frame], ...] = (Message, Summary, Request, Groups, Noted)
FRAMES: tuple[type[Frame], ...] = (*BETWEEN_BROKERS, Rumors, Wanted, Enter, Welcome)
