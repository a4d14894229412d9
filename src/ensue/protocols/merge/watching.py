"""Measure what the order depends on: other clocks and delays, as far as messages show them.

A message that was made at tick r of its sender's clock and comes at tick t of this one shows t - r: its delay, and by how much
this clock is ahead of the sender's. While the bounds hold that is between -epsilon and delta + epsilon. The two
parts can't be told apart by messages that go one way, so what is watched is

- `clock`: r - t, by how much the sender's clock is ahead of this one at least. Its bound is epsilon;
- `delay`: t - r, how long the message took at most, if this clock were epsilon behind. Its bound is delta + epsilon.

An alert is given when a sender comes close to a bound (`warn_percent`), and again when it exceeds it. It is given
anew only after that sender has been well within its bounds for `CALM_SPANS` times the longest wait.

Nothing here has any part in the order: a wrong memory costs or gives an alert and nothing else.

Limit: `peers_max` senders are watched, the first that came; those beyond are only counted.
"""

import msgspec

from ensue.protocols.core import Alert
from ensue.protocols.merge.config import MergeConfig

__all__ = ["MergeCounts", "Observed", "Watch"]

CALM_SPANS = 16
CALM, NEAR, BROKEN = 0, 1, 2


class MergeCounts(msgspec.Struct):
    """What became of the events that came to one subscriber."""

    received: int = 0
    delivered: int = 0
    """In their turn."""
    late: int = 0
    """Came too late, or behind one that had left: dropped, or delivered out of turn."""
    skewed: int = 0
    """From a clock further ahead than any can be: dropped, or delivered out of turn."""
    corrupt: int = 0
    """With a stamp that nobody can have made."""
    duplicate: int = 0
    overflow: int = 0
    warned: int = 0
    """Alerts before a bound was exceeded."""
    broken: int = 0
    """Alerts after."""
    unwatched: int = 0
    """From senders beyond `peers_max`."""


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


class Watch:
    """Watches all senders of one subscriber."""

    __slots__ = ("_config", "counts", "peers")

    def __init__(self, config: MergeConfig) -> None:
        self._config = config
        self.counts = MergeCounts()
        self.peers: dict[str, Observed] = {}

    def arrived(self, peer: str, r: int, tick: int) -> list[Alert]:
        """Take note of a message made at r that came at a tick; return what is to be told."""
        shown = tick - r
        observed = self.peers.get(peer)
        if observed is None:
            if len(self.peers) >= self._config.peers_max:
                self.counts.unwatched += 1
                return []
            observed = self.peers[peer] = Observed(shown, shown)
        observed.count += 1
        observed.lowest_ticks = min(observed.lowest_ticks, shown)
        observed.highest_ticks = max(observed.highest_ticks, shown)
        clock = self._level(-shown, self._config.epsilon_ticks)
        delay = self._level(shown, self._config.wait_ticks)
        if not clock and not delay and not (observed.clock_level or observed.delay_level):
            return []
        if tick >= observed.calm_tick:
            observed.clock_level = observed.delay_level = CALM
        if clock or delay:
            observed.calm_tick = tick + CALM_SPANS * self._config.span_ticks
        alerts: list[Alert] = []
        if clock > observed.clock_level:
            observed.clock_level = clock
            alerts.append(self._alert("clock", peer, -shown, self._config.epsilon_ticks))
        if delay > observed.delay_level:
            observed.delay_level = delay
            alerts.append(self._alert("delay", peer, shown, self._config.wait_ticks))
        return alerts

    def _level(self, ticks: int, bound: int) -> int:
        if ticks > bound:
            return BROKEN
        return NEAR if ticks > 0 and ticks * 100 >= bound * self._config.warn_percent else CALM

    def _alert(self, assumption: str, peer: str, ticks: int, bound: int) -> Alert:
        broken = ticks > bound
        if broken:
            self.counts.broken += 1
        else:
            self.counts.warned += 1
        tick_ns = self._config.tick_ns
        return Alert(assumption, peer, ticks * tick_ns, bound * tick_ns, broken)
