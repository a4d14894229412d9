"""Which log a server has, and from where it went on each time that it started.

A log has an identity, which is random and made with it, and incarnations: each start of its server adds one, numbered and with
a random token, that says how many events the log had by then. Whoever remembers what a server told can see later that the server

- has another log (`replaced`): the identity is another one;
- went on from an older copy (`rolled back`): an incarnation that was told is not among those before the present one;
- went on from before an event that was delivered (`rolled back`): the next incarnation began with fewer events.

Limits: the last `INCARNATIONS_MAX` incarnations are told. One that is older is believed.
"""

from typing import Annotated

import msgspec

from ensue.event import Count
from ensue.protocols.core import Frame, Send

__all__ = [
    "DAMAGED",
    "FRAMES",
    "INCARNATIONS_MAX",
    "REPLACED",
    "ROLLED_BACK",
    "Identified",
    "Identify",
    "Incarnation",
    "Lineage",
    "LogRefused",
    "answer",
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
    """Random: two servers that went on from the same copy have the same number, and not the same token."""
    begun: Count
    """How many events the log had put out by then (`Event.place`)."""


class Lineage(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The identity of a log and its last incarnations, the present one last."""

    identity: Annotated[str, msgspec.Meta(max_length=64)]
    incarnations: Annotated[tuple[Incarnation, ...], msgspec.Meta(max_length=INCARNATIONS_MAX)]

    @property
    def last(self) -> "Lineage":
        """The lineage with its last incarnation alone: all that has to be remembered."""
        return Lineage(self.identity, self.incarnations[-1:])

    def continues(self, known: "Lineage", *, place: int = 0) -> bool:
        """Tell whether this log goes on from one that is known, whatever its identity is now."""
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
        present = Incarnation(number, token, begun)
        return Lineage(self.identity, (*self.incarnations, present)[-INCARNATIONS_MAX:])


class Identify(Frame, frozen=True, tag=54):
    """Ask a station which log it has."""

    number: Count


class Identified(Frame, frozen=True, tag=55):
    """Say which log it is."""

    number: Count
    log: Lineage
    damage: str = ""
    """Why it can't be read, from a station that is about to stop."""


class LogRefused(Frame, frozen=True, tag=56):
    """Tell another server of the chain that the log it has can't be the one it had."""

    known: Lineage
    """The one it had."""


FRAMES: tuple[type[Frame], ...] = (Identify, Identified, LogRefused)


def contradiction(known: Lineage, told: Lineage, *, place: int = 0) -> str:
    """Return why what a server tells can't be the log that is known; empty: it can.

    `place` is the highest place of an event that was delivered while `known` was what the server told.
    """
    if known.identity != told.identity:
        return REPLACED
    if not known.incarnations or not told.incarnations:
        return ""
    last = known.incarnations[-1]
    if last.number < told.incarnations[0].number:
        return ""  # Too long ago to be told.
    for at, each in enumerate(told.incarnations):
        if (each.number, each.token) == (last.number, last.token):
            following = told.incarnations[at + 1 : at + 2]
            return ROLLED_BACK if following and following[0].begun < place else ""
    return ROLLED_BACK


def lost_text(server: str, reason: str) -> str:
    """Return what a person is told of a contradiction."""
    if reason == REPLACED:
        what = "has another log than before"
    else:
        what = "went on from an older state of its log"
    return f"server {server!r} {what}: events that had receipts may be gone"


def answer(frame: Identify, log: Lineage, source: str) -> Send:
    """Return the answer to whoever asks which log a station has."""
    return Send(source, Identified(number=frame.number, log=log))
