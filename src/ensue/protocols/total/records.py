"""The records that nodes, publishers and subscribers persist.

Keys are plain text, `kind/…`. Where a key ends in a client's or a topic's name, the name comes
last, because it may contain a slash.
"""

from collections.abc import Iterator, Mapping

import msgspec

from ensue.core.event import Event
from ensue.core.lineage import Lineage
from ensue.core.wire import Records

__all__ = [
    "CHANGED",
    "CLOCK",
    "HISTORY",
    "INT",
    "LEASE",
    "LOG",
    "OUTGOING",
    "PARTS",
    "PLACEMENT",
    "PUBLISHER",
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
    "SlotRun",
    "SubscriptionRecord",
    "topics_of",
]


class PlacementRecord(msgspec.Struct, frozen=True, array_like=True):
    """At a server: the placement that its other records were made under."""

    nodes: tuple[str, ...]
    topics: dict[str, tuple[str, ...]]
    """Node to the topics listed there."""
    closed: bool
    groups: int = 1
    """How many subscriptions share topics that are ordered together: stamps depend on it."""


class RegistrationRecord(msgspec.Struct, frozen=True, array_like=True):
    """At a node: a subscriber's last change, and its topics if any is hosted there."""

    number: int
    topics: tuple[str, ...]
    left: tuple[str, ...] = ()
    """Topics that count for groups besides."""
    dropped: tuple[str, ...] = ()
    """Topics of this node that the last change has left."""


class ChangedRecord(msgspec.Struct, frozen=True, array_like=True):
    """At the last node of a change: the answer, in case the request is repeated."""

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
    """Whether a topic was ever joined: from then on topics begin with new events, whatever the
    start. None: an older record without it."""
    known: int = 0
    """The last change that was answered. 0: none, or an older record without it."""
    gaps: tuple[int, ...] = ()
    """Positions of unacknowledged events whose topics were left."""
    left: tuple[str, ...] = ()
    """Topics that were left and count for groups."""


class ClockRecord(msgspec.Struct, frozen=True, array_like=True):
    """At a subscriber: its progress with a topic."""

    slot: int
    base: int
    place: int = 0
    """Of the last delivered event, in the node's log; 0: an older record, or no places."""


class KnownLog(msgspec.Struct, frozen=True, array_like=True):
    """At a durable subscriber: the log that a node had at last."""

    log: Lineage
    """With its last incarnation alone."""
    place: int = 0
    """The highest place delivered for certain before a later incarnation; 0: not known."""


SlotRun = tuple[int, int, int]
"""A request number, the slot of its event, and the length of the run in both."""
PublisherRecord = int | tuple[int, tuple[SlotRun, ...]]

INT = Records[int](int)
PUBLISHER = Records[PublisherRecord](PublisherRecord)
"""At a node: a publisher's next request number, and the slots of unsettled requests."""
LOG = Records[KnownLog](KnownLog)
"""At a durable subscriber: the log of a node."""
PLACEMENT = Records[PlacementRecord](PlacementRecord)
REGISTRATION = Records[RegistrationRecord](RegistrationRecord)
CHANGED = Records[ChangedRecord](ChangedRecord)
LEASE = Records[LeaseRecord](LeaseRecord)
OUTGOING = Records[OutgoingRecord](OutgoingRecord)
SUBSCRIPTION = Records[SubscriptionRecord](SubscriptionRecord)
CLOCK = Records[ClockRecord](ClockRecord)
PARTS = Records[tuple[tuple[str, int], ...]](tuple[tuple[str, int], ...])
"""At a node: where the parts of a moved topic's log are (`placement.Parts`)."""
HISTORY = Records[tuple[int, int, int]](tuple[int, int, int])
"""The unread past of a topic: the next slot, the cut, and the place to start at."""


def topics_of(records: Mapping[str, bytes]) -> Iterator[str]:
    """List the topics in a node's records: counted ones, and subscribed ones."""
    for key, value in records.items():
        kind, _, rest = key.partition("/")
        if kind == "counter":
            yield rest
        elif kind == "subscription":
            registration = REGISTRATION.decode(value)
            yield from (*registration.topics, *registration.left)
