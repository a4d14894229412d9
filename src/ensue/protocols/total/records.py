"""What nodes, publishers and subscribers persist, and how it is written.

Keys are plain text, `kind/…`. Where a key ends in a client's or a topic's name, the name comes last,
because it may contain a slash.
"""

from collections.abc import Iterator, Mapping

import msgspec

from ensue.event import Event
from ensue.protocols.lineage import Lineage
from ensue.wire import Records

__all__ = [
    "CHANGED",
    "CLOCK",
    "HISTORY",
    "INT",
    "LEASE",
    "LOG",
    "OUTGOING",
    "PLACEMENT",
    "REGISTRATION",
    "SUBSCRIPTION",
    "ChangeUnderWay",
    "ChangedRecord",
    "ClockRecord",
    "KnownLog",
    "LeaseRecord",
    "OutgoingRecord",
    "PlacementRecord",
    "RegistrationRecord",
    "SubscriptionRecord",
    "topics_of",
]


class PlacementRecord(msgspec.Struct, frozen=True, array_like=True):
    """At a server: which node hosts which topic, as long as its other records are of use."""

    nodes: tuple[str, ...]
    topics: dict[str, tuple[str, ...]]
    """Node to the topics that are listed there."""
    closed: bool


class RegistrationRecord(msgspec.Struct, frozen=True, array_like=True):
    """At a node: a subscriber's last change, and its topics if any of them is hosted there."""

    number: int
    topics: tuple[str, ...]


class ChangedRecord(msgspec.Struct, frozen=True, array_like=True):
    """At the last node of a change: the answer, in case it is asked for again."""

    number: int
    cut: dict[str, int]


class LeaseRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """At the last node of a request: a stamp that is not confirmed."""

    publisher: str
    origin: str
    number: int
    topic: str
    entries: dict[str, int]
    """The stamp, unpacked: records are written often and read rarely."""
    whole: bool
    state: str


class OutgoingRecord(msgspec.Struct, frozen=True, array_like=True):
    """At a publisher: an unsettled event and its request."""

    event: Event
    origin: str
    number: int


class ChangeUnderWay(msgspec.Struct, frozen=True, array_like=True):
    """At a subscriber: a change that the chain has not answered."""

    number: int
    old: tuple[str, ...]
    new: tuple[str, ...]
    joining: tuple[str, ...]


class SubscriptionRecord(msgspec.Struct, frozen=True, array_like=True):
    """At a subscriber: everything but its clocks."""

    wanted: tuple[str, ...]
    registered: tuple[str, ...]
    number: int
    change: ChangeUnderWay | None
    fallen: dict[str, int]
    visited: tuple[str, ...] = ()
    """Nodes that may know the subscriber."""
    begun: bool | None = None
    """Whether a topic was ever joined: from then on topics begin with what is new, whatever the start. None: an
    older record, which does not say."""


class ClockRecord(msgspec.Struct, frozen=True, array_like=True):
    """At a subscriber: how far it has come with a topic."""

    slot: int
    base: int
    place: int = 0
    """Of the last event that was delivered, in the log of the node; 0: an older record, or nodes that give no places."""


class KnownLog(msgspec.Struct, frozen=True, array_like=True):
    """At a durable subscriber: which log a node had when it was last heard of."""

    log: Lineage
    """With its last incarnation alone."""
    place: int = 0
    """The highest place that was delivered for certain before a later incarnation; 0: a connection tells, or none is known."""


INT = Records[int](int)
LOG = Records[KnownLog](KnownLog)
"""Which log a node has whose topics a subscription reads."""
PLACEMENT = Records[PlacementRecord](PlacementRecord)
REGISTRATION = Records[RegistrationRecord](RegistrationRecord)
CHANGED = Records[ChangedRecord](ChangedRecord)
LEASE = Records[LeaseRecord](LeaseRecord)
OUTGOING = Records[OutgoingRecord](OutgoingRecord)
SUBSCRIPTION = Records[SubscriptionRecord](SubscriptionRecord)
CLOCK = Records[ClockRecord](ClockRecord)
HISTORY = Records[tuple[int, int, int]](tuple[int, int, int])
"""What is still to come of a topic's past: the next slot, the cut, and the place to start at."""


def topics_of(records: Mapping[str, bytes]) -> Iterator[str]:
    """List the topics that a node's records are about: those it has counted, and those subscribed to."""
    for key, value in records.items():
        kind, _, rest = key.partition("/")
        if kind == "counter":
            yield rest
        elif kind == "subscription":
            yield from REGISTRATION.decode(value).topics
