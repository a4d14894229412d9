"""Records of a broker's transactions and plans, as they are persisted.

The state of a broker is one nested record: each part holds the encoded next one in `rest`.
"""

import msgspec

from ensue.core.wire import Records
from ensue.protocols.content.frames import Change
from ensue.protocols.content.mailboxes import Expired, Mailbox
from ensue.protocols.content.steps import Pending
from ensue.protocols.content.tables import TablesRecord
from ensue.protocols.content.versions import Undo
from ensue.protocols.transactions import frames as t
from ensue.protocols.transactions.contexts import ContextRecord, Delivery, Issued

__all__ = [
    "BROKER",
    "COMMIT",
    "CONTEXTS",
    "COORDINATOR",
    "OPEN",
    "PAUSING",
    "PLANS",
    "PREPARING",
    "BrokerRecord",
    "CommitRecord",
    "ContextsRecord",
    "Coordination",
    "CoordinatorRecord",
    "Gather",
    "Plan",
    "PlansRecord",
    "Submission",
]

OPEN, PREPARING, PAUSING = "open", "preparing", "pausing"
"""Phases of a coordination; from the second on, its client has requested the commit."""


class BrokerRecord(msgspec.Struct, array_like=True):
    """The state of a broker: its content half, then its transactions."""

    tables: TablesRecord
    commits: dict[str, int]
    undos: list[Undo]
    last_number: int
    pending: dict[int, Pending]
    causes: dict[int, list[int]]
    under_way: dict[int, tuple[str, list[str]]]
    clients: list[str]
    members: dict[str, tuple[str, str]]
    rest: bytes
    neighbors: list[str]
    disconnected: list[str]
    away: list[str]
    partial: dict[int, tuple[str, ...]]
    announced: dict[int, tuple[str, list[Change]]]
    mailboxes: dict[str, Mailbox]
    mailboxes_made: int
    mailboxes_expired: dict[str, Expired]


class ContextsRecord(msgspec.Struct, array_like=True):
    """Open transactions."""

    contexts: dict[str, ContextRecord]
    rest: bytes


class Gather(msgspec.Struct, array_like=True):
    """Answers of neighbors that a broker waits for."""

    parent: str
    """The neighbor to answer; empty: this broker asked."""
    waiting: list[str]
    note: int = 0
    """With a decision, the number of the commit, to forget when all brokers have carried it out;
    with votes, the attempt."""


class CommitRecord(msgspec.Struct, array_like=True):
    """Votes and decisions under way."""

    parked: dict[str, str]
    gathers: dict[str, Gather]
    last_number: int
    rest: bytes
    settling: dict[str, list[str]]


class Coordination(msgspec.Struct, array_like=True):
    """A transaction that a client of this broker coordinates."""

    client: str
    isolated: bool
    deadline_ns: int
    number: int
    """The request to be answered next; 0 if none."""
    phase: str = OPEN
    attempts: int = 0
    retry_at_ns: int = 0
    began: int = 0
    """The request that began it."""


class CoordinatorRecord(msgspec.Struct, array_like=True):
    """Transactions that clients of this broker coordinate."""

    coordinations: dict[str, Coordination]
    rest: bytes


class Plan(msgspec.Struct, array_like=True):
    """A plan at one broker."""

    operations: dict[str, t.Operation]
    parent: str
    """Where it came from; empty if it was submitted here."""
    arrived: dict[str, tuple[str, bool]] = msgspec.field(default_factory=dict)
    """By path: where it came from, and whether whole or as a marker."""
    started: dict[str, None] = msgspec.field(default_factory=dict)
    processed: dict[str, None] = msgspec.field(default_factory=dict)
    echoes: dict[str, list[str]] = msgspec.field(default_factory=dict)
    """By path of an advertisement: neighbors that have not echoed it."""
    issued: list[Issued] = msgspec.field(default_factory=list)
    deliveries: list[Delivery] = msgspec.field(default_factory=list)
    closing: tuple[bool, str] | None = None
    """The decision, once it is known here: whether to commit, and why not."""
    waiting: list[str] = msgspec.field(default_factory=list)
    """Neighbors that have not closed it."""
    over: bool = False
    """Whether the decision was carried out here."""
    neighbors: list[str] = msgspec.field(default_factory=list)
    """Neighbors when the plan came: brokers that join later have no part in it."""
    refused: str = ""
    """Why an operation could not be done: then the plan is aborted, whatever was decided."""

    @property
    def waits(self) -> bool:
        """Whether an operation has arrived and is not started."""
        return len(self.started) < len(self.arrived)


class Submission(msgspec.Struct, array_like=True):
    """A plan that a client of this broker submitted."""

    client: str
    number: int
    """The request to be answered next; 0 if none."""
    deadline_ns: int
    decided: bool


class PlansRecord(msgspec.Struct, array_like=True):
    """Open plans."""

    plans: dict[str, Plan]
    submissions: dict[str, Submission]
    leaving: list[str]
    homes: dict[str, str]
    left_out: list[str]
    numbers: dict[str, int]


BROKER = Records[BrokerRecord](BrokerRecord)
CONTEXTS = Records[ContextsRecord](ContextsRecord)
COMMIT = Records[CommitRecord](CommitRecord)
COORDINATOR = Records[CoordinatorRecord](CoordinatorRecord)
PLANS = Records[PlansRecord](PlansRecord)
