"""Node clocks: true time plus skew, drift and jumps, in whole nanoseconds.

A clock is a straight line through (true, node) time: `node = base + elapsed + elapsed * drift`. A
jump moves the line. Timers are set in node time, so a clock also converts node time to true time;
both directions use whole numbers and agree to the nanosecond.

A reading never goes backwards by default: after a jump back it stands still until the line has
caught up, as for a process that keeps the highest time it read. After a jump with `monotone=False`
the reading goes back, as for a process that trusts the wall clock. A clock belongs to the machine:
it runs on while its node is paused or down.

HAZARD: a lease or timeout judged by a clock that jumped ahead ends early for that node alone.
"""

import msgspec

from ensue.core.errors import ConfigurationError
from ensue.simulation.world.delays import DELAY_NS_MAX, require_between

__all__ = ["DRIFT_PPM_MAX", "Clock", "ClockConfig"]

DRIFT_PPM_MAX = 500_000
"""A clock runs at between half and one and a half times the true speed."""

_BILLION = 1_000_000_000


class ClockConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How a node's clock differs from true time from the start."""

    skew_ns: int = 0
    """Its reading at true time 0."""
    drift_ppm: float = 0
    """Microseconds gained per true second; negative for a slow clock."""

    def __post_init__(self) -> None:
        require_between("ClockConfig.skew_ns", self.skew_ns, -DELAY_NS_MAX, DELAY_NS_MAX)
        require_between("ClockConfig.drift_ppm", self.drift_ppm, -DRIFT_PPM_MAX, DRIFT_PPM_MAX)


class Clock:
    """The clock of one node."""

    __slots__ = ("_base_node_ns", "_base_true_ns", "_drift_ppb", "_floor_ns")

    def __init__(self, config: ClockConfig | None = None) -> None:
        config = config or ClockConfig()
        self._base_true_ns = 0
        self._base_node_ns = config.skew_ns
        self._drift_ppb = round(config.drift_ppm * 1_000)
        self._floor_ns: int | None = None

    def read(self, true_ns: int) -> int:
        """Return the reading at a true time."""
        elapsed_ns = true_ns - self._base_true_ns
        node_ns = self._base_node_ns + elapsed_ns
        if self._drift_ppb:
            node_ns += elapsed_ns * self._drift_ppb // _BILLION
        if self._floor_ns is not None and node_ns < self._floor_ns:
            return self._floor_ns
        return node_ns

    def true_at(self, node_ns: int, now_true_ns: int) -> int:
        """Return the first true time, from now on, when the clock shows `node_ns` or more."""
        if self.read(now_true_ns) >= node_ns:
            return now_true_ns
        wanted_ns = node_ns - self._base_node_ns
        if not self._drift_ppb:
            return self._base_true_ns + wanted_ns
        # The unrounded line gives a time that is never late and hardly early; walk the rest.
        true_ns = self._base_true_ns + wanted_ns * _BILLION // (_BILLION + self._drift_ppb)
        while self.read(true_ns) < node_ns:
            true_ns += 1
        assert true_ns > now_true_ns
        return true_ns

    def jump(self, true_ns: int, by_ns: int, *, monotone: bool = True) -> None:
        """Move the clock at a true time, forward or back."""
        if by_ns == 0:
            raise ConfigurationError("Clock.jump by_ns must not be 0")
        reading_ns = self.read(true_ns)
        line_ns = self._line(true_ns)
        self._base_true_ns = true_ns
        self._base_node_ns = line_ns + by_ns
        self._floor_ns = reading_ns if monotone else None

    def _line(self, true_ns: int) -> int:
        elapsed_ns = true_ns - self._base_true_ns
        return self._base_node_ns + elapsed_ns + elapsed_ns * self._drift_ppb // _BILLION
