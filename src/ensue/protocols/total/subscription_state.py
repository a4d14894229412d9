"""The state that the parts of one subscriber share: queue and effects."""

from ensue.protocols.interface import Effect
from ensue.protocols.total.config import SequencerConfig
from ensue.protocols.total.hold_back import HoldBack, PositionQueue, VectorQueue
from ensue.protocols.total.placement import Placement

__all__ = ["SubscriptionState"]


class SubscriptionState:
    """The state that the parts of one subscriber share, and their effects."""

    __slots__ = ("config", "effects", "name", "placement", "queue")

    def __init__(self, *, name: str, placement: Placement, config: SequencerConfig) -> None:
        self.name = name
        self.placement = placement
        self.config = config
        self.queue: HoldBack
        limits = {"held_max": config.held_max, "missing_max": config.missing_max}
        if config.groups == 2:
            self.queue = VectorQueue(**limits)
        else:
            self.queue = PositionQueue(**limits, whole=not config.leave_out)
        self.effects: list[Effect] = []
        """One list for all parts: it is drained in place."""
