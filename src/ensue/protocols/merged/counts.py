"""Counts of a subscriber, and the bounds that it monitors.

While the bounds of the order hold, a message shows a difference between -epsilon and
delta + epsilon: the sender's clock is at most epsilon ahead of this one, and the message took at
most delta while this clock was epsilon ahead.
"""

from ensue.protocols.merged.config import MergedConfig
from ensue.protocols.shared.clock_monitor import AlertCounts, Bounds, ClockMonitor

__all__ = ["MergedCounts", "watch_for"]

CALM_SPANS = 16
"""Spans without a violation after which a sender counts as calm."""


class MergedCounts(AlertCounts, kw_only=True):
    """Outcomes of the events received by one subscriber."""

    received: int = 0
    delivered: int = 0
    """Delivered in order."""
    late: int = 0
    """Too late, or before an event already delivered: dropped, or delivered out of order."""
    skewed: int = 0
    """From a clock ahead by more than epsilon: dropped, or delivered out of order."""
    corrupt: int = 0
    """With an invalid stamp."""
    mismatched: int = 0
    """From publishers with another epsilon, delta or tick: dropped, unless delta alone differs."""
    duplicate: int = 0
    overflow: int = 0


def watch_for(config: MergedConfig) -> ClockMonitor[MergedCounts]:
    """Return the clock monitor of one subscriber."""
    bounds = Bounds(
        clock_ticks=config.epsilon_ticks,
        delay_ticks=config.wait_ticks,
        calm_ticks=CALM_SPANS * config.span_ticks,
        tick_ns=config.tick_ns,
        warn_percent=config.warn_percent,
        peers_max=config.peers_max,
    )
    return ClockMonitor(bounds, MergedCounts())
