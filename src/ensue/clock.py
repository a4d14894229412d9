"""Clocks, injected wherever time is read: the machine's, and one that is moved by hand.

`SystemClock` reads like the wall clock but never goes back: it starts from the wall clock and goes on
with the monotonic one. When the wall clock is set while a program runs, the two part; `jump_ns`
says by how much.

HAZARD: two programs' clocks differ by whatever their machines differ. What is read from traces of
several machines is only as good as their synchronisation.
"""

import time
from typing import Protocol

from ensue.errors import BadInput

__all__ = ["Clock", "ManualClock", "SystemClock"]


class Clock(Protocol):
    """Something that tells the time in nanoseconds."""

    def now_ns(self) -> int:
        """Return the time; never less than it returned before."""


class SystemClock:
    """The machine's clock: wall time that never goes back."""

    __slots__ = ("_anchor_ns",)

    def __init__(self) -> None:
        self._anchor_ns = time.time_ns() - time.monotonic_ns()

    def now_ns(self) -> int:
        """Return the time since the epoch."""
        return self._anchor_ns + time.monotonic_ns()

    def jump_ns(self) -> int:
        """Return by how much the wall clock was set forward since this clock was made."""
        return time.time_ns() - self.now_ns()


class ManualClock:
    """A clock for tests: it stands still until it is moved."""

    __slots__ = ("_now_ns",)

    def __init__(self, now_ns: int = 0) -> None:
        self._now_ns = now_ns

    def now_ns(self) -> int:
        """Return the time it was moved to."""
        return self._now_ns

    def advance(self, by_ns: int) -> int:
        """Move the clock forward and return the new time."""
        if by_ns < 0:
            raise BadInput(f"a clock is only moved forward, not by {by_ns} ns")
        self._now_ns += by_ns
        return self._now_ns
