"""Injected clocks: the machine's, and one that tests move by hand.

`SystemClock` follows the wall clock and never goes back. It reads the wall clock and the monotonic
clock together; their difference changes only if the wall clock is stepped or the machine suspended.

- It follows a step forward, or the time of a suspension, at once.
- It slews a step back: the reading runs at half speed until the wall clock has caught up. After a
  step back by D it is right again within 2 D. It need not slew if it was not read for D.

It logs both as warnings. Slewing by the system itself moves both clocks alike.

HAZARD: clocks of two machines differ by their synchronization error. Times in traces of several
machines are only as accurate as that.

HAZARD: timers use the event loop's clock, which does not step. After a step forward, a lease or
timeout judged by this clock ends early; during a slew it takes up to twice as long.
"""

import logging
import time
from collections.abc import Callable
from threading import Lock
from typing import Protocol

from ensue.core.errors import BadInput

__all__ = ["SLEW_FACTOR", "Clock", "ManualClock", "SystemClock"]

SLEW_FACTOR = 2
"""A step back by D is corrected within this many times D."""
TOLERANCE_NS = 100_000
"""Ignore smaller differences between the two clocks: reading both takes time."""
STEP_NS = 10_000_000
"""Log no smaller corrections."""
SAMPLES_MAX = 8
MILLISECOND_NS = 1_000_000
SECOND_NS = 1_000_000_000

_log = logging.getLogger("ensue")


class Clock(Protocol):
    """A clock in nanoseconds."""

    def now_ns(self) -> int:
        """Return the time; never less than it returned before."""


class _Line:
    """Immutable mapping from the monotonic clock to the reading."""

    __slots__ = ("ahead_ns", "offset_ns", "since_ns")

    def __init__(self, offset_ns: int, ahead_ns: int = 0, since_ns: int = 0) -> None:
        self.offset_ns = offset_ns
        """Wall clock minus monotonic clock."""
        self.ahead_ns = ahead_ns
        """How far the reading was ahead of the wall clock at `since_ns`."""
        self.since_ns = since_ns
        """Monotonic time at which `ahead_ns` was measured."""

    def read(self, steady_ns: int) -> int:
        """Return the reading at a monotonic time."""
        ahead_ns = self.ahead_ns
        if ahead_ns:
            ahead_ns = max(0, ahead_ns - (steady_ns - self.since_ns) // SLEW_FACTOR)
        return self.offset_ns + steady_ns + ahead_ns


class SystemClock:
    """The machine's clock: wall time that never goes back.

    Tests inject the time sources, which return nanoseconds. `boot_ns` is a monotonic clock that
    also counts suspensions; without it a suspension looks like a step forward.
    """

    __slots__ = (
        "_boot_ns",
        "_last_ns",
        "_line",
        "_lock",
        "_steady_ns",
        "_suspended_ns",
        "_wall_ns",
    )

    def __init__(
        self,
        *,
        wall_ns: Callable[[], int] | None = None,
        steady_ns: Callable[[], int] | None = None,
        boot_ns: Callable[[], int] | None = None,
    ) -> None:
        machine = wall_ns is None and steady_ns is None
        self._wall_ns = wall_ns or time.time_ns
        self._steady_ns = steady_ns or time.monotonic_ns
        self._boot_ns = _machine_boot_ns() if machine and boot_ns is None else boot_ns
        self._lock = Lock()
        offset_ns, steady_now_ns = self._sample()
        self._line = _Line(offset_ns)
        self._last_ns = offset_ns + steady_now_ns
        """The last reading, or one of another thread that was read at about the same time."""
        self._suspended_ns = self._suspended()

    def now_ns(self) -> int:
        """Return the time since the epoch."""
        wall_ns = self._wall_ns()
        steady_ns = self._steady_ns()
        line = self._line
        if -TOLERANCE_NS <= wall_ns - line.offset_ns - steady_ns <= TOLERANCE_NS:
            now_ns = line.read(steady_ns) if line.ahead_ns else line.offset_ns + steady_ns
        else:
            now_ns = self._follow()
        self._last_ns = now_ns
        return now_ns

    def _follow(self) -> int:
        """Compare the clocks precisely, and follow the wall clock if it was stepped."""
        with self._lock:
            offset_ns, steady_ns = self._sample()
            line = self._line
            reading_ns = line.read(steady_ns)
            step_ns = offset_ns - line.offset_ns
            if abs(step_ns) > TOLERANCE_NS:
                # Only readings that were returned must not be undercut; threads may race by little.
                floor_ns = min(reading_ns, self._last_ns + STEP_NS)
                ahead_ns = max(0, floor_ns - offset_ns - steady_ns)
                self._line = line = _Line(offset_ns, ahead_ns, steady_ns)
                self._warn(step_ns, ahead_ns)
            return line.read(steady_ns)

    def _sample(self) -> tuple[int, int]:
        """Return wall minus monotonic time, and the monotonic time.

        Reads the wall clock between two readings of the monotonic one. If these are far apart, the
        process was preempted, and it reads again.
        """
        best_ns, found = None, (0, 0)
        for _ in range(SAMPLES_MAX):
            before_ns = self._steady_ns()
            wall_ns = self._wall_ns()
            after_ns = self._steady_ns()
            between_ns = after_ns - before_ns
            if best_ns is None or between_ns < best_ns:
                best_ns, found = between_ns, (wall_ns - before_ns - between_ns // 2, after_ns)
            if between_ns <= TOLERANCE_NS:
                break
        return found

    def _suspended(self) -> int:
        """Return how long the machine has been suspended since boot."""
        return 0 if self._boot_ns is None else self._boot_ns() - self._steady_ns()

    def _warn(self, step_ns: int, ahead_ns: int) -> None:
        suspended_ns = self._suspended()
        slept_ns = suspended_ns - self._suspended_ns
        if slept_ns >= STEP_NS:
            self._suspended_ns = suspended_ns
            _log.warning("machine suspended for_ms=%d", slept_ns // MILLISECOND_NS)
            step_ns -= slept_ns
        if step_ns >= STEP_NS:
            _log.warning("clock stepped forward by_ms=%d", step_ns // MILLISECOND_NS)
        elif step_ns <= -STEP_NS:
            _log.warning(
                "clock stepped back by_ms=%d slew_s=%.1f",
                -step_ns // MILLISECOND_NS,
                SLEW_FACTOR * ahead_ns / SECOND_NS,
            )


def _machine_boot_ns() -> Callable[[], int] | None:
    """Return a reader of the clock that counts suspensions, if there is one."""
    clock_id = getattr(time, "CLOCK_BOOTTIME", None)
    return None if clock_id is None else lambda: time.clock_gettime_ns(clock_id)


class ManualClock:
    """A clock for tests that only moves by hand."""

    __slots__ = ("_now_ns",)

    def __init__(self, now_ns: int = 0) -> None:
        self._now_ns = now_ns

    def now_ns(self) -> int:
        """Return the current reading."""
        return self._now_ns

    def advance(self, by_ns: int) -> int:
        """Move the clock forward and return the new time."""
        if by_ns < 0:
            raise BadInput(f"by_ns must not be negative, got {by_ns}")
        self._now_ns += by_ns
        return self._now_ns
