"""The state that the parts of one subscriber share: queue and effects."""

from collections.abc import Callable, Iterator

from ensue.core.event import Event
from ensue.protocols.interface import Attach, Detach, Effect
from ensue.protocols.shared.round_trips import RoundTrips
from ensue.protocols.total.config import SequencerConfig
from ensue.protocols.total.hold_back import HoldBack, PositionQueue, VectorQueue
from ensue.protocols.total.placement import Placement

__all__ = ["SubscriptionState"]

BACKOFF_POLLS_MAX = 4
"""The longest wait for a log that does not answer, in times `poll_ns`."""


class SubscriptionState:
    """The state that the parts of one subscriber share, and their effects."""

    __slots__ = (
        "config",
        "effects",
        "matches",
        "name",
        "placement",
        "queue",
        "request_max",
        "round_trips",
    )

    def __init__(
        self,
        *,
        name: str,
        placement: Placement,
        config: SequencerConfig,
        matches: Callable[[Event], bool] | None = None,
        room: int = 0,
    ) -> None:
        self.name = name
        self.request_max = room if config.reliable and matches is None else 0
        """How many events of a topic are requested at once; 0: as many as its log sends, as a
        filter may let few of them through."""
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

    def attach(self, topic: str, slot: int) -> None:
        """Request the events of a topic from a slot on."""
        keeper = self.placement.keeper(topic, slot)
        self.effects.append(Attach(topic, slot, keeper, self.request_max if slot else 0))

    def detach(self, topic: str) -> None:
        """Stop the events of a topic."""
        self.effects.extend(self._detaches(topic))

    def _detaches(self, topic: str) -> Iterator[Detach]:
        if topic not in self.placement.parts:
            yield Detach(topic)
            return
        for node in self.placement.keepers(topic):
            yield Detach(topic, node)
