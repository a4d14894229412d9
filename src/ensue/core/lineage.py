"""The lineage of a log: its identity, and where it continued from at each start of its server.

A log gets a random identity when it is created, and an incarnation at each start of its server:
numbered, with a random token, and with the number of events that the log had by then. A client
that remembers a server's lineage detects later that the server

- has another log (`replaced`): the identity differs;
- continued from an older copy (`rolled back`): the known incarnation is not among the earlier ones;
- continued from before a delivered event (`rolled back`): the next incarnation began with fewer.

Limits: a server reports its last `INCARNATIONS_MAX` incarnations. A client that remembers an older
one accepts the log unchecked.
"""

from typing import Annotated

import msgspec

from ensue.core.event import Count

__all__ = [
    "DAMAGED",
    "INCARNATIONS_MAX",
    "REPLACED",
    "ROLLED_BACK",
    "Incarnation",
    "Lineage",
    "contradiction",
    "lost_text",
]

INCARNATIONS_MAX = 32
REPLACED = "replaced"
ROLLED_BACK = "rolled back"
DAMAGED = "damaged"


class Incarnation(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One start of a server on its log."""

    number: Count
    """1, 2, 3, …"""
    token: Count
    """Random: two servers that continue from one copy have the same number, not the same token."""
    begun: Count
    """Number of events in the log at that start (`Event.place`)."""


class Lineage(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The identity of a log and its last incarnations, the current one last."""

    identity: Annotated[str, msgspec.Meta(max_length=64)]
    incarnations: Annotated[tuple[Incarnation, ...], msgspec.Meta(max_length=INCARNATIONS_MAX)]

    @property
    def last(self) -> "Lineage":
        """The lineage with its last incarnation only: all that a client has to remember."""
        return Lineage(self.identity, self.incarnations[-1:])

    def continues(self, known: "Lineage", *, place: int = 0) -> bool:
        """Return whether this log continues a known one, even under another identity."""
        last = known.incarnations[-1:]
        among = any(
            (each.number, each.token) == (one.number, one.token)
            for one in last
            for each in self.incarnations
        )
        renamed = Lineage(self.identity, known.incarnations)
        return among and not contradiction(renamed, self, place=place)

    def begin(self, *, token: int, begun: int) -> "Lineage":
        """Return the lineage with one more incarnation."""
        number = self.incarnations[-1].number + 1 if self.incarnations else 1
        current = Incarnation(number, token, begun)
        return Lineage(self.identity, (*self.incarnations, current)[-INCARNATIONS_MAX:])


def contradiction(known: Lineage, reported: Lineage, *, place: int = 0) -> str:
    """Return why a reported log can't be the known one; empty if it can.

    `place` is the highest place of an event delivered while `known` was the server's lineage.
    """
    if known.identity != reported.identity:
        return REPLACED
    if not known.incarnations or not reported.incarnations:
        return ""
    last = known.incarnations[-1]
    if last.number < reported.incarnations[0].number:
        return ""  # Too old to be in the report.
    for at, each in enumerate(reported.incarnations):
        if (each.number, each.token) == (last.number, last.token):
            following = reported.incarnations[at + 1 : at + 2]
            return ROLLED_BACK if following and following[0].begun < place else ""
    return ROLLED_BACK


def lost_text(server: str, reason: str) -> str:
    """Return the error text of a contradiction."""
    if reason == REPLACED:
        what = "has another log than before"
    else:
        what = "continued from an older state of its log"
    return f"server {server!r} {what}: events that had receipts may be gone"
