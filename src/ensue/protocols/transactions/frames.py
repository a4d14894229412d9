"""Frames of transactions, with the messages' names in the paper.

The *path* of an operation is its place in its transaction: the coordinator's operations are 1, 2,
3, …; a client that operation 2 invited acts as 2.1, 2.2, …, and a client that it invites with 2.1
as 2.1.1. Read as numbers, paths are in the sequential order of Definition 6: *thread* (2 before 3),
*trigger* (2 before 2.1) and *trigger star* (2.1 before 3). Operations that brokers trigger, such as
subscriptions that an advertisement attracts, have the path of the operation that triggered them.
Paths below a zero are not ordered: clients invited by content act at once (`invitations`).
"""

import msgspec

from ensue.core.event import Count, Name
from ensue.protocols.content.frames import FRAMES as CONTENT_FRAMES
from ensue.protocols.content.frames import Change, Identifier, Publication
from ensue.protocols.interface import Frame

__all__ = [
    "ANYONE",
    "ATOMIC",
    "BEGUN",
    "FRAMES",
    "PLANNED",
    "SERIALIZABLE",
    "Begin",
    "Close",
    "Closed",
    "Compensate",
    "Decide",
    "Decided",
    "Echo",
    "End",
    "Ended",
    "Finish",
    "Forget",
    "Invite",
    "Invited",
    "Open",
    "Operation",
    "Ordered",
    "Planned",
    "Prepare",
    "Prepared",
    "Release",
    "Submit",
    "Withdrawn",
    "begun_by",
    "sequence_of",
]

ANYONE = "*"
"""Stands for a client's name in an invitation by content; no client has this name."""
BEGUN = "@"
"""What `begun_by` starts with, and no name of a transaction."""
SERIALIZABLE, ATOMIC, PLANNED = "serializable", "atomic", "planned"


def begun_by(number: int) -> str:
    """Return what a client calls the transaction that its request begins, until it has its name.

    So its first operations need not wait for the answer.
    """
    return f"{BEGUN}{number}"


def sequence_of(path: str) -> tuple[int, ...]:
    """Return a path as numbers, which compare as Definition 6 orders operations."""
    return tuple(int(part) for part in path.split("."))


class Operation(
    msgspec.Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True
):
    """One operation of a plan."""

    path: Identifier
    client: Name
    """The client that does it."""
    after: tuple[Identifier, ...] = ()
    """Operations that every broker processes before this one."""
    change: Change | None = None
    publication: Publication | None = None
    home: str = ""
    """The client's broker, filled in by the coordinator's."""


# -- A client and its broker --------------------------------------------------------------------


class Begin(Frame, frozen=True, tag=130):
    """Begin a transaction (`beginTX`); answered with its name."""

    number: Count
    isolation: str
    timeout_ns: Count


class Invite(Frame, frozen=True, tag=131):
    """Invite clients into the transaction (`txTCM`); answered when all have finished."""

    number: Count
    transaction: Identifier
    path: Identifier
    client: Name
    publication: Publication


class Invited(Frame, frozen=True, tag=132):
    """Act within a transaction (`tcm`)."""

    transaction: Identifier
    path: Identifier
    publication: Publication
    subscriptions: tuple[Identifier, ...] = ()
    """Subscriptions to invitations that match it; none: it names the client."""


class Finish(Frame, frozen=True, tag=133):
    """An invited client has done its part, or refuses to."""

    number: Count
    transaction: Identifier
    path: Identifier
    """Of the invitation."""
    refused: str = ""


class End(Frame, frozen=True, tag=134):
    """Commit or abort (`commitTX`); answered with the outcome."""

    number: Count
    transaction: Identifier
    commit: bool


class Ended(Frame, frozen=True, tag=135):
    """A transaction in which a client took part has ended."""

    transaction: Identifier
    committed: bool
    reason: str = ""
    subscriptions: tuple[tuple[Identifier, str], ...] = ()
    """Subscriptions that a plan made for this client, with their filters.

    An empty filter: the subscription was withdrawn, and no event for it follows.
    """


class Withdrawn(Frame, frozen=True, tag=137):
    """Subscriptions that a transaction has withdrawn, or made and not kept.

    No event for them follows.
    """

    transaction: Identifier
    subscriptions: tuple[Identifier, ...]


class Submit(Frame, frozen=True, tag=136):
    """Submit a plan; answered when it is committed or aborted.

    With `hold` the operations are done, and `End` is the decision.
    """

    number: Count
    operations: tuple[Operation, ...]
    timeout_ns: Count
    hold: bool = False


# -- Brokers: serializable and atomic --------------------------------------------------------------


class Open(Frame, frozen=True, tag=140):
    """A transaction begins (`initMsg`): sent ahead of the first step that a neighbor gets."""

    transaction: Identifier
    isolated: bool


class Prepare(Frame, frozen=True, tag=142):
    """Vote (`prepMsg`): sent to all brokers that have steps of the transaction."""

    transaction: Identifier
    attempt: Count = 1


class Prepared(Frame, frozen=True, tag=143):
    """The votes of this broker and all behind it (`prepAckMsg`)."""

    transaction: Identifier
    refused: str = ""
    attempt: Count = 1
    again: bool = False
    """Whether it was refused only because of another that is not decided yet."""


class Release(Frame, frozen=True, tag=147):
    """Withdraw the votes: the transaction will be prepared again. Sent where `Prepare` was."""

    transaction: Identifier


class Decide(Frame, frozen=True, tag=144):
    """The decision (`cmtMsg`, `abtMsg`): flooded."""

    transaction: Identifier
    commit: bool
    reason: str = ""
    number: Count = 0
    """The number of the commit among those of the coordinator's home, if it is serializable."""


class Decided(Frame, frozen=True, tag=145):
    """This broker and all behind it have carried the decision out (`cmtAckMsg`)."""

    transaction: Identifier


class Forget(Frame, frozen=True, tag=146):
    """No publication that has not seen this commit is under way: flooded."""

    home: Name
    number: Count
    """The number of the commit among those of its coordinator's home."""


# -- Brokers: planned ------------------------------------------------------------------------------


class Planned(Frame, frozen=True, tag=150):
    """A plan: flooded ahead of its operations."""

    transaction: Identifier
    operations: tuple[Operation, ...]


class Ordered(Frame, frozen=True, tag=151):
    """An operation of a plan (`opMsg`), or a marker that it does not concern the receiver."""

    transaction: Identifier
    path: Identifier
    whole: bool
    refused: str = ""
    """Why an operation of the plan could not be done, if so."""
    number: Count = 0
    """The number of a publication, given by its publisher's home."""


class Echo(Frame, frozen=True, tag=152):
    """An advertisement was processed here and behind, and what it attracts was sent."""

    transaction: Identifier
    path: Identifier


class Close(Frame, frozen=True, tag=153):
    """The decision about a plan: flooded."""

    transaction: Identifier
    commit: bool
    reason: str = ""


class Closed(Frame, frozen=True, tag=154):
    """This broker and all behind it have processed the plan and closed it."""

    transaction: Identifier


class Compensate(Frame, frozen=True, tag=155):
    """Undo an aborted plan, now that all brokers have processed it: flooded."""

    transaction: Identifier


FRAMES: tuple[type[Frame], ...] = (
    *CONTENT_FRAMES,
    Begin,
    Invite,
    Invited,
    Finish,
    End,
    Ended,
    Withdrawn,
    Submit,
    Open,
    Prepare,
    Prepared,
    Release,
    Decide,
    Decided,
    Forget,
    Planned,
    Ordered,
    Echo,
    Close,
    Closed,
    Compensate,
)
