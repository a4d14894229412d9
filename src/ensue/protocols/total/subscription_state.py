"""The state that the parts of one subscriber share: queue and effects."""

from collections.abc import Callable

from ensue.core.event import Event
from ensue.protocols.interface import Effect
from ensue.protocols.shared.round_trips import RoundTrips
from ensue.protocols.total.config import SequencerConfig
from ensue.protocols.total.hold_back import HoldBack, PositionQueue, VectorQueue
from ensue.protocols.total.placement import Placement

__all__ = ["SubscriptionState"]

BACKOFF_POLLS_MAX = 4
"""The longest wait for a log that does not answer, in times `poll_ns`."""


class SubscriptionState:
    """The state that the parts of one subscriber share, and their effects."""

    __slots__ = ("config", "effects", "matches", "name", "placement", "queue", "round_trips")

    def __init__(
        self,
        *,
        name: str,
        placement: Placement,
        config: SequencerConfig,
        matches: Callable[[Event], bool] | None = None,
    ) -> None:
        self.name = name
        self.matches = matches
        """Whether the application gets an event; None: it gets all."""
        self.placement = placement
        self.config = config
        self.queue: HoldBack
        limits = {"held_max": config.held_max, "missing_max": config.missing_max}
        if config.groups == 2:
            self.queue = VectorQueue(**limits)
        else:
            self.queue = PositionQueue(**limits, whole=not config.leave_out)
        self.round_trips = RoundTrips(
            initial_ns=config.gap_ns,
            least_ns=config.retry_ns_min,
            most_ns=BACKOFF_POLLS_MAX * config.poll_ns,
        )
        """Of requests to the logs of its topics."""
        self.effects: list[Effect] = []
        """One list for all parts: it is drained in place."""
