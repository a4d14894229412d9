"""The paper's timestamps without an array (its Figure 3), verbatim; not used in production."""

from collections.abc import Sequence

import msgspec

from ensue.protocols.merged.config import MergedConfig

__all__ = ["Figure3", "Figure3Line"]


class Figure3(msgspec.Struct, frozen=True):
    """A timestamp of Figure 3."""

    r: int
    c: int


class Figure3Line:
    """One process of Figure 3."""

    def __init__(self, config: MergedConfig) -> None:
        self.epsilon = config.epsilon_ticks
        self.last = Figure3(0, 0)

    def event(self, tick: int, heard: Sequence[Figure3] = ()) -> Figure3:
        """Make an event at a tick; a receive event has the timestamps that it received."""
        c = 0
        last, old = self.last, tick - 2 * self.epsilon
        if not (last.r < old and all(each.r < old for each in heard)):
            c = max(0, last.r + last.c - tick, *(each.r + each.c - tick + 1 for each in heard), 0)
        self.last = Figure3(tick, c)
        return self.last
