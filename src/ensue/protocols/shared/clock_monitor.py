"""The clock monitor: measures the clocks and delays that merged orders depend on.

A message that was sent at tick r of its sender's clock and arrives at tick t of this one shows
t - r: its delay, plus how far this clock is ahead of the sender's. One-way messages can't separate
the two, so the monitor watches

- `clock`: r - t, how far the sender's clock is ahead of this one at least;
- `delay`: t - r, how long the message took at most, if this clock is not ahead of the sender's.

Each has a bound. The monitor gives an alert when a sender comes close to one (`warn_percent`), and
again when it exceeds it. It repeats the alert only after that sender has been well within its
bounds for `calm_ticks`.

The order does not depend on the monitor: wrong state costs or gives an alert and nothing else.

Limit: the first `peers_max` senders are watched; those beyond are only counted.
"""

from typing import Generic, TypeVar

import msgspec

from ensue.protocols.interface import Alert

__all__ = ["AlertCounts", "Bounds", "ClockMonitor", "Observed"]

CALM, NEAR, BROKEN = 0, 1, 2


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of a clock monitor, in ticks."""

    clock_ticks: int
    delay_ticks: int
    calm_ticks: int
    """How long after the last reason for an alert the next one is reported."""
    tick_ns: int = 1
    warn_percent: int = 80
    peers_max: int = 10_000


class AlertCounts(msgspec.Struct, kw_only=True):
    """Counts of alerts, as a part of a process's counts."""

    warned: int = 0
    """Alerts before a bound was exceeded."""
    broken: int = 0
    """Alerts after."""
    unwatched: int = 0
    """Messages from senders beyond `peers_max`."""


C = TypeVar("C", bound=AlertCounts)


class Observed(msgspec.Struct):
    """What one sender's messages have shown, in ticks."""

    lowest_ticks: int
    """The least of t - r: the sender's clock is ahead by at least its negative."""
    highest_ticks: int
    """The most of t - r."""
    count: int = 0
    clock_level: int = CALM
    delay_level: int = CALM
    calm_tick: int = 0
    """When its alerts are forgotten, unless there is another reason for them."""


class ClockMonitor(Generic[C]):
    """The monitor of all senders to one process."""

    __slots__ = ("_bounds", "counts", "peers")

    def __init__(self, bounds: Bounds, counts: C) -> None:
        self._bounds = bounds
        self.counts = counts
        self.peers: dict[str, Observed] = {}

    def arrived(self, peer: str, r: int, tick: int) -> list[Alert]:
        """Note a message sent at r that arrived at a tick; return the alerts."""
        shown, bounds = tick - r, self._bounds
        observed = self.peers.get(peer)
        if observed is None:
            if len(self.peers) >= bounds.peers_max:
                self.counts.unwatched += 1
                return []
            observed = self.peers[peer] = Observed(shown, shown)
        observed.count += 1
        observed.lowest_ticks = min(observed.lowest_ticks, shown)
        observed.highest_ticks = max(observed.highest_ticks, shown)
        clock = self._level(-shown, bounds.clock_ticks)
        delay = self._level(shown, bounds.delay_ticks)
        if not clock and not delay and not (observed.clock_level or observed.delay_level):
            return []
        if tick >= observed.calm_tick:
            observed.clock_level = observed.delay_level = CALM
        if clock or delay:
            observed.calm_tick = tick + bounds.calm_ticks
        alerts: list[Alert] = []
        if clock > observed.clock_level:
            observed.clock_level = clock
            alerts.append(self._alert("clock", peer, -shown, bounds.clock_ticks))
        if delay > observed.delay_level:
            observed.delay_level = delay
            alerts.append(self._alert("delay", peer, shown, bounds.delay_ticks))
        return alerts

    def _level(self, ticks: int, bound: int) -> int:
        if ticks > bound:
            return BROKEN
        return NEAR if ticks > 0 and ticks * 100 >= bound * self._bounds.warn_percent else CALM

    def _alert(self, assumption: str, peer: str, ticks: int, bound: int) -> Alert:
        broken = ticks > bound
        if broken:
            self.counts.broken += 1
        else:
            self.counts.warned += 1
        tick_ns = self._bounds.tick_ns
        return Alert(assumption, peer, ticks * tick_ns, bound * tick_ns, broken)
