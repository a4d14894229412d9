"""What brokers and subscribers send each other, and what is in it.

| frame | from | to | why |
|---|---|---|---|
| `Message` | broker | broker | an event with its deadline, and what its sender knew was sent before it |
| `Summary` | broker | broker | messages to you that I have, in case you lack one |
| `Request` | broker | broker | send me these |
| `Groups`, `Noted` | broker | broker | which groups I am in; I took note, and here is mine |
| `Rumours` | broker, subscriber | subscriber | messages of rounds, or what is wanted of them, names of others that I have, and peers |
| `Wanted` | subscriber | whoever named them | send me these |
| `Enter`, `Welcome` | subscriber, broker | broker, subscriber | I want these topics; noted, and here are peers, and all brokers if your list is old |

Brokers are named by their numbers, which are theirs for ever. Topics are the groups. No set of numbers is larger than `SET_BYTES_MAX`.
"""

from typing import Annotated

import msgspec

from ensue.event import Count, Event, Name, Proof
from ensue.protocols.core import Frame

__all__ = [
    "BETWEEN_BROKERS",
    "FRAMES",
    "Enter",
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
    "Rumour",
    "RumourId",
    "Rumours",
    "Summary",
    "Wanted",
    "Welcome",
    "Wishes",
]

NUMBERS_MAX = 1 << 16
SET_BYTES_MAX = NUMBERS_MAX // 8

Number = Annotated[int, msgspec.Meta(ge=0, lt=NUMBERS_MAX)]
"""A broker."""
Numbers = Annotated[bytes, msgspec.Meta(max_length=SET_BYTES_MAX)]
"""A set of brokers: a bit for each."""
Matrix = dict[Number, dict[Number, Count]]
"""By sender and destination: the stamp of the last message from the one to the other."""
Rows = dict[Number, dict[Count, Numbers]]
"""A matrix as it travels. By sender: to whom its messages were the last ones, as sets of numbers, by how much older they are."""
Live = dict[Name, dict[Number, Count]]
"""By topic and broker: the round of the last message of the one to the other."""
Wishes = dict[Name, str]
"""By topic: a filter of events by their headers."""
RumourId = tuple[Name, Number, Count]
"""Topic, broker and round, as that is sent."""


class Row(msgspec.Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True):
    """Which groups one broker is in. The greater version is the truth."""

    node: Number
    version: Count
    topics: tuple[Name, ...]


class Peer(msgspec.Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True):
    """A subscriber, as others know it."""

    name: Name
    site: str
    topics: tuple[Name, ...]
    round: Count
    """On its own clock, when it said so: the later one is the truth."""
    wants: Wishes = msgspec.field(default_factory=dict)
    """What of them, where it is not everything."""


class Rumour(msgspec.Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True):
    """Events of one broker and topic, for the round they are sent in."""

    topic: Name
    source: Number
    round: Count
    """Its number, or its colour."""
    live: Live
    """What its broker knew of that may still be alive, by rounds, as they are sent."""
    events: tuple[Event, ...]

    @property
    def id(self) -> RumourId:
        """Its name: a broker has one message in a round."""
        return (self.topic, self.source, self.round)


class Message(Frame, frozen=True, tag=90):
    """An event from one broker to others. Its stamp says when it was sent and when it is due."""

    event: Event
    source: Number
    dest: Numbers
    """To whom."""
    base: Count
    """0: `after` is whole. Else: what differs from the message of this stamp and source, which the receiver has."""
    after: Rows
    """What its sender knew was sent before it. Messages go to groups, so a row has few different stamps."""
    round: Count
    """The round in which its sender tells it to subscribers; 0: it does not."""
    live: Live
    """What it knew of those rounds: by how much each is smaller than its own."""
    heard: Count
    """The stamp of a message of yours from which differences can be read here; 0: none."""
    digest: Annotated[bytes, msgspec.Meta(max_length=16)] = b""
    """Of the whole matrix, made by its source: what a seal can vouch for where only differences travel."""
    proof: Proof = b""


class Summary(Frame, frozen=True, tag=91):
    """Messages to the receiver that can be had here: by source, their stamps."""

    have: dict[Number, tuple[Count, ...]]
    heard: Count


class Request(Frame, frozen=True, tag=92):
    """Messages that the sender lacks."""

    wanted: dict[Number, tuple[Count, ...]]
    baseless: bool = False
    """Whether they came as differences from what is not there: it has nothing that the receiver counts on."""


class Groups(Frame, frozen=True, tag=93):
    """The groups of the sender, to be taken note of."""

    row: Row


class Noted(Frame, frozen=True, tag=94):
    """A version was taken note of."""

    version: Count
    row: Row
    """The groups of whoever says so."""


class Rumours(Frame, frozen=True, tag=95):
    """What is going round."""

    rumours: tuple[Rumour, ...]
    have: tuple[RumourId, ...]
    """Others that can be had here."""
    peers: tuple[Peer, ...]
    cuts: Wishes = msgspec.field(default_factory=dict)
    """Of which topics the rumours are told in part: the events that match."""


class Wanted(Frame, frozen=True, tag=96):
    """Rumours that the sender lacks."""

    ids: tuple[RumourId, ...]
    wants: Wishes = msgspec.field(default_factory=dict)
    """What of them, where it is not everything."""


class Enter(Frame, frozen=True, tag=97):
    """A subscriber is there, and wants topics."""

    peer: Peer
    asks: bool
    """Whether it wants to be welcomed."""
    edition: Count = 0
    """Of the list of brokers that it has; 0: no broker has told it."""


class Welcome(Frame, frozen=True, tag=98):
    """A subscriber was taken note of."""

    topics: tuple[Name, ...]
    """What it wanted."""
    peers: tuple[Peer, ...]
    edition: Count = 0
    """Of the list of brokers, where the subscriber has an older one; else 0."""
    brokers: tuple[Name, ...] = ()
    """All that are not gone."""


BETWEEN_BROKERS: tuple[type[Frame], ...] = (Message, Summary, Request, Groups, Noted)
FRAMES: tuple[type[Frame], ...] = (*BETWEEN_BROKERS, Rumours, Wanted, Enter, Welcome)
