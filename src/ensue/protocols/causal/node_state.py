"""State that the parts of one causal node share."""

from ensue.core.event import Event
from ensue.protocols.causal.causality import IN, OUT, Causality
from ensue.protocols.causal.config import CausalConfig
from ensue.protocols.causal.dirty_records import DirtyRecords
from ensue.protocols.causal.failure_detector import FailureDetector
from ensue.protocols.causal.frames import Item
from ensue.protocols.causal.hypercube import Hypercube
from ensue.protocols.causal.membership import Membership
from ensue.protocols.interface import Deliver, Discard, Effect, Frame, Join, Send
from ensue.protocols.shared.round_trips import RoundTrips

__all__ = ["NodeState"]


class NodeState:
    """The identity of a node, its knowledge and its pending effects."""

    __slots__ = (
        "causality", "config", "cube", "detector", "dirty", "effects", "membership", "number",
        "position", "round_trips", "wanted",
    )  # fmt: skip

    def __init__(
        self, number: int, cube: Hypercube, config: CausalConfig, membership: Membership, run: int
    ) -> None:
        self.number = number
        self.cube = cube
        self.config = config
        self.membership = membership
        self.detector = FailureDetector(config.suspect_ns)
        self.causality = Causality(number, across=config.across_topics, held_max=config.held_max)
        self.dirty = DirtyRecords(durable=config.durable, run=run)
        self.wanted: dict[str, None] = {}
        """Topics that the application subscribed to."""
        self.position = 0
        """Number of events delivered to the application."""
        self.round_trips = RoundTrips(
            initial_ns=config.gap_ns, least_ns=config.retry_ns_min, most_ns=config.gap_ns
        )
        """Of frames that a single node answers: how long to wait for what others may send soon."""
        self.effects: list[Effect] = []

    def send(self, peer: int, frame: Frame) -> None:
        """Send a frame to another node."""
        self.effects.append(Send(self.cube.names[peer], frame))

    def topic_state(self, topic: str) -> str:
        """Return whether this node is out of a topic, joining it, or in it."""
        state = self.causality.topics.get(topic)
        return OUT if state is None else state.state

    def is_in(self, topic: str) -> bool:
        """Return whether this node is a member of a topic."""
        return self.topic_state(topic) == IN

    def own_topics(self) -> list[str]:
        """List the topics that this node is in or is joining."""
        return [name for name, state in self.causality.topics.items() if state.state != OUT]

    def deliver(self, event: Event, held_ns: int = 0) -> None:
        """Deliver an event, unless this node follows its topic only to publish there."""
        if event.topic in self.wanted:
            self.position += 1
            self.effects.append(Deliver(event, self.position, "", held_ns))

    def report_skipped(
        self, topic: str, items: list[tuple[int, Item]], missed: list[tuple[int, int]]
    ) -> None:
        """Report dropped events and missed numbers to the application."""
        if topic in self.wanted:
            self.effects += [Discard(item.event, "before_join") for _, item in items]
            self.effects += [Join(topic, each) for each in missed]
