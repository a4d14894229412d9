"""What nodes, publishers and subscribers persist, and how it is written.

Keys are plain text, `kind/…`. Where a key ends in a client's or a topic's name, the name comes last,
because it may contain a slash.
"""

import msgspec

from ensue.event import Event
from ensue.wire import Records

__all__ = [
    "CHANGED",
    "CLOCK",
    "HISTORY",
    "INT",
    "LEASE",
    "OUTGOING",
    "REGISTRATION",
    "SUBSCRIPTION",
    "ChangeUnderWay",
    "ChangedRecord",
    "LeaseRecord",
    "OutgoingRecord",
    "RegistrationRecord",
    "SubscriptionRecord",
]


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


INT = Records[int](int)
REGISTRATION = Records[RegistrationRecord](RegistrationRecord)
CHANGED = Records[ChangedRecord](ChangedRecord)
LEASE = Records[LeaseRecord](LeaseRecord)
OUTGOING = Records[OutgoingRecord](OutgoingRecord)
SUBSCRIPTION = Records[SubscriptionRecord](SubscriptionRecord)
CLOCK = Records[tuple[int, int]](tuple[int, int])
"""A topic's clock and base."""
HISTORY = Records[tuple[int, int, int]](tuple[int, int, int])
"""What is still to come of a topic's past: the next slot, the cut, and the place to start at."""
