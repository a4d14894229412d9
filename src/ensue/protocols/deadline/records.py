"""Records that a deadline broker persists."""

import msgspec

from ensue.core.wire import Records

__all__ = ["STATES", "State"]


class State(msgspec.Struct, array_like=True):
    """State that must survive a crash."""

    settled: dict[int, int]
    """By source: the last message that was delivered or given up."""
    highest: int
    """The largest known stamp."""
    deadline_ns: int
    """The latest known deadline."""
    rounds: tuple[int, int]
    """The largest round of this broker, and of others."""


STATES = Records[State](State)
