"""What a subscriber counts, and which bounds it watches.

While the bounds of the order hold, a message shows between -epsilon and delta + epsilon: by at most epsilon the sender's clock
is ahead of this one, and the message took at most delta while this clock was epsilon ahead.
"""

from ensue.protocols.merge.config import MergeConfig
from ensue.protocols.watching import Bounds, Watch, Watched

__all__ = ["MergeCounts", "watch_for"]

CALM_SPANS = 16
"""A sender has been calm after so many times the longest wait."""


class MergeCounts(Watched, kw_only=True):
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
    mismatched: int = 0
    """From publishers with another epsilon, delta or tick: dropped, unless delta alone differs."""
    duplicate: int = 0
    overflow: int = 0


def watch_for(config: MergeConfig) -> Watch[MergeCounts]:
    """Return what watches the senders of one subscriber."""
    bounds = Bounds(
        clock_ticks=config.epsilon_ticks,
        delay_ticks=config.wait_ticks,
        calm_ticks=CALM_SPANS * config.span_ticks,
        tick_ns=config.tick_ns,
        warn_percent=config.warn_percent,
        peers_max=config.peers_max,
    )
    return Watch(bounds, MergeCounts())
