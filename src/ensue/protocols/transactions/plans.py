"""What a broker keeps of plans."""

import msgspec

from ensue.protocols.transactions import frames as t
from ensue.protocols.transactions.contexts import Delivery, Issued

__all__ = ["Handed", "Plan", "PlannerRecord", "numbered", "waits"]


class Plan(msgspec.Struct, array_like=True):
    """A plan at one broker."""

    operations: dict[str, t.Operation]
    parent: str
    """From where it came; empty if it was handed in here."""
    arrived: dict[str, tuple[str, bool]] = msgspec.field(default_factory=dict)
    """By path: from where, and whether as a whole or as a marker."""
    started: dict[str, None] = msgspec.field(default_factory=dict)
    processed: dict[str, None] = msgspec.field(default_factory=dict)
    echoes: dict[str, list[str]] = msgspec.field(default_factory=dict)
    """By path of an advertisement: who has yet to echo it."""
    issued: list[Issued] = msgspec.field(default_factory=list)
    deliveries: list[Delivery] = msgspec.field(default_factory=list)
    closing: tuple[bool, str] | None = None
    """The decision, once it is known here: whether to commit, else why not."""
    waiting: list[str] = msgspec.field(default_factory=list)
    """Who has yet to close it."""
    over: bool = False
    """Whether the decision was carried out here."""
    neighbours: list[str] = msgspec.field(default_factory=list)
    """Who stood beside this broker when it came: brokers that come later have no part in it."""
    refused: str = ""
    """Why something of it could not be done: then it is aborted, whatever was decided."""


class Handed(msgspec.Struct, array_like=True):
    """A plan that a client of this broker handed in."""

    client: str
    number: int
    deadline_ns: int
    decided: bool


class PlannerRecord(msgspec.Struct, array_like=True):
    """What is kept of plans."""

    plans: dict[str, Plan]
    handed: dict[str, Handed]
    leaving: list[str]
    homes: dict[str, str] = {}
    left_out: list[str] = []
    numbers: dict[str, int] = {}


def numbered(operation: t.Operation, number: int) -> t.Operation:
    """Return an operation whose publication, if it has one, bears a number."""
    publication = operation.publication
    if publication is None or publication.number == number:
        return operation
    made = msgspec.structs.replace(publication, number=number)
    return msgspec.structs.replace(operation, publication=made)


def waits(plan: Plan) -> bool:
    """Return whether something of a plan has come and is not begun."""
    return len(plan.started) < len(plan.arrived)
