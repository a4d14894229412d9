"""Measure what an order by clocks depends on: other clocks and delays, as far as messages show them.

A message that was made at tick r of its sender's clock and comes at tick t of this one shows t - r: its delay, and by how much
this clock is ahead of the sender's. The two parts can't be told apart by messages that go one way, so what is watched is

- `clock`: r - t, by how much the sender's clock is ahead of this one at least;
- `delay`: t - r, how long the message took at most, if this clock were not ahead of the sender's.

Each has a bound. An alert is given when a sender comes close to one (`warn_percent`), and again when it exceeds it. It is given
anew only after that sender has been well within its bounds for `calm_ticks`.

Nothing here has any part in the order: a wrong memory costs or gives an alert and nothing else.

Limit: `peers_max` senders are watched, the first that came; those beyond are only counted.
"""

from typing import Generic, TypeVar

import msgspec

from ensue.protocols.core import Alert

__all__ = ["Bounds", "Observed", "Watch", "Watched"]

CALM, NEAR, BROKEN = 0, 1, 2


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """What messages may show, in ticks of so many nanoseconds."""

    clock_ticks: int
    delay_ticks: int
    calm_ticks: int
    """So long after the last reason for an alert the next one is news."""
    tick_ns: int = 1
    warn_percent: int = 80
    peers_max: int = 10_000


class Watched(msgspec.Struct, kw_only=True):
    """How often something was to be told; a part of what a process counts."""

    warned: int = 0
    """Alerts before a bound was exceeded."""
    broken: int = 0
    """Alerts after."""
    unwatched: int = 0
    """From senders beyond `peers_max`."""


C = TypeVar("C", bound=Watched)


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
    """When its alerts are forgotten unless there is another reason for them."""


class Watch(Generic[C]):
    """Watches all senders of one process."""

    __slots__ = ("_bounds", "counts", "peers")

    def __init__(self, bounds: Bounds, counts: C) -> None:
        self._bounds = bounds
        self.counts = counts
        self.peers: dict[str, Observed] = {}

    def arrived(self, peer: str, r: int, tick: int) -> list[Alert]:
        """Take note of a message made at r that came at a tick; return what is to be told."""
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
