"""What a broker persists of what it delivered and sent."""

import msgspec

from ensue.wire import Records

__all__ = ["STATES", "State"]


class State(msgspec.Struct, array_like=True):
    """What must not be forgotten over a crash."""

    settled: dict[int, int]
    """By source: the last message that it is done with."""
    highest: int
    """The largest stamp that it knows of."""
    deadline_ns: int
    """The latest."""
    rounds: tuple[int, int]
    """The largest of its own, and of others."""


STATES = Records[State](State)
