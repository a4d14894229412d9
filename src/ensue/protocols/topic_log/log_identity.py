"""The frames by which clients and servers compare logs (`ensue.core.lineage`)."""

from ensue.core.event import Count
from ensue.core.lineage import Lineage
from ensue.protocols.interface import Frame, Send

__all__ = ["FRAMES", "Identified", "Identify", "LogRefused", "answer"]


class Identify(Frame, frozen=True, tag=54):
    """Request the identity of a station's log."""

    number: Count


class Identified(Frame, frozen=True, tag=55):
    """The lineage of a station's log."""

    number: Count
    log: Lineage
    damage: str = ""
    """Why the log can't be read, from a station that is about to stop."""
    groups: Count = 1
    """How many subscriptions order topics together there (`SequencerConfig.groups`)."""


class LogRefused(Frame, frozen=True, tag=56):
    """Refuse another server of the chain: its log can't be the one it had."""

    known: Lineage
    """The one it had."""


FRAMES: tuple[type[Frame], ...] = (Identify, Identified, LogRefused)


def answer(frame: Identify, log: Lineage, source: str, *, groups: int = 1) -> Send:
    """Return the answer to an `Identify`."""
    return Send(source, Identified(number=frame.number, log=log, groups=groups))
