"""The frames by which clients and servers compare logs (`ensue.core.lineage`) and settings."""

import msgspec

from ensue.core.event import Count
from ensue.core.lineage import Lineage
from ensue.protocols.interface import Frame, Send

__all__ = ["FRAMES", "ChainSettings", "Identified", "Identify", "LogRefused", "answer"]


class ChainSettings(msgspec.Struct, frozen=True, array_like=True):
    """What the servers of a chain have to have in common, besides their list and their topics."""

    groups: Count = 1
    """How many subscriptions order topics together (`SequencerConfig.groups`)."""
    publisher_order: bool = True
    cells: str = ""
    """How events by content are divided among topics; empty: there are none."""
    closed: bool = False
    """Whether only the listed topics have a place."""


class Identify(Frame, frozen=True, tag=54):
    """Request the identity of a station's log."""

    number: Count


class Identified(Frame, frozen=True, tag=55):
    """The lineage of a station's log."""

    number: Count
    log: Lineage
    damage: str = ""
    """Why the log can't be read, from a station that is about to stop."""
    settings: ChainSettings = ChainSettings()


class LogRefused(Frame, frozen=True, tag=56):
    """Refuse another server of the chain: its log can't be the one it had."""

    known: Lineage
    """The one it had."""


FRAMES: tuple[type[Frame], ...] = (Identify, Identified, LogRefused)


def answer(
    frame: Identify, log: Lineage, source: str, settings: ChainSettings | None = None
) -> Send:
    """Return the answer to an `Identify`."""
    identified = Identified(number=frame.number, log=log, settings=settings or ChainSettings())
    return Send(source, identified)
