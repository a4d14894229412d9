"""The configuration that the nodes of one hypercube share."""

from collections.abc import Sequence

import msgspec

from ensue.core.errors import ConfigurationError, limit_reason
from ensue.protocols.causal.frames import topic_bytes

__all__ = ["CausalConfig", "no_room", "no_room_before"]

MILLISECOND_NS = 1_000_000
SECOND_NS = 1_000_000_000


class CausalConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Limits, timeouts and options. `across_topics` must be the same at all nodes."""

    across_topics: bool = True
    """Causal order across all topics of a node. False: within each topic, as in the paper; then
    events name predecessors in their own topic alone."""
    durable: bool = True
    """False: persist nothing, for nodes whose names die with their process."""
    retry_ns: int = 200 * MILLISECOND_NS
    """First retransmission timeout of an unacknowledged copy; it doubles with each retry, …"""
    retry_ns_max: int = 2 * SECOND_NS
    """… up to this."""
    retry_ns_min: int = 0
    """Where messages get lost: the shortest such timeout, which then follows the measured round
    trips (`ensue.protocols.shared.round_trips`); `retry_ns` is only the first one. 0: fixed."""
    suspect_ns: int = SECOND_NS
    """A node that leaves a request unanswered this long is suspected until it sends a frame."""
    answer_ns: int = 10 * SECOND_NS
    """A node that is alive but does not finish a request within this is routed around. A relayed
    message may take this long for each cluster level below the node."""
    beat_ns: int = SECOND_NS
    """Interval of heartbeats, by which neighbors compare rows and notice absent nodes."""
    digest_ns: int = 500 * MILLISECOND_NS
    """Delay after a change in a topic until its members compare progress; it doubles, …"""
    digest_ns_max: int = 4 * SECOND_NS
    """… up to this interval."""
    gap_ns: int = 100 * MILLISECOND_NS
    """Delay until a node that holds events back requests what is missing; with `retry_ns_min` the
    longest: a round trip is enough."""
    patience_ns: int = 30 * SECOND_NS
    """How long to wait for a needed event whose source is away and that no reachable node has;
    then, if necessary, as long again for what may precede it, or twice as long if that waits for
    other topics."""
    window: int = 8
    """Messages of one node and topic that may be unacknowledged at a time."""
    batch_max: int = 64
    """Maximum number of events in one message."""
    batch_bytes_max: int = 1024 * 1024
    """Maximum size of one message, unless a single event is larger."""
    outgoing_max: int = 65_536
    """Maximum number of unsettled events of one node."""
    topics_max: int = 16_384
    """Maximum number of topics of one node, including those it joined only to publish."""
    row_bytes_max: int = 512 * 1024
    """Maximum size of the topic names of one node: a row always carries all of them."""
    held_max: int = 65_536
    """Events of one topic held back; more are dropped and requested again."""
    retained_max: int = 65_536
    """Events cached for peers. A peer skips an event that no node has cached."""

    def __post_init__(self) -> None:
        for field in (
            "retry_ns",
            "retry_ns_max",
            "suspect_ns",
            "answer_ns",
            "beat_ns",
            "digest_ns",
            "digest_ns_max",
            "gap_ns",
            "patience_ns",
            "window",
            "batch_max",
            "batch_bytes_max",
            "topics_max",
            "row_bytes_max",
            "outgoing_max",
            "held_max",
            "retained_max",
        ):
            if getattr(self, field) < 1:
                raise ConfigurationError(
                    f"CausalConfig.{field} must be at least 1, got {getattr(self, field)}"
                )
        if not 0 <= self.retry_ns_min <= self.retry_ns:
            raise ConfigurationError(
                f"CausalConfig.retry_ns_min must be between 0 and retry_ns, got {self.retry_ns_min}"
            )

    def topics_that_fit(self, topics: Sequence[str]) -> int:
        """Return how many of these topics, from the first on, fit into one row."""
        size = 0
        for count, topic in enumerate(topics):
            size += topic_bytes(topic)
            if count >= self.topics_max or size > self.row_bytes_max:
                return count
        return len(topics)


def no_room(config: CausalConfig) -> str:
    """Return the error text for a client whose row is full."""
    what = f"this client is in too many topics, or their names exceed {config.row_bytes_max} bytes"
    return limit_reason(what, "topics_max", config.topics_max, "use fewer topics, or another bus")


def no_room_before(config: CausalConfig) -> str:
    """Return the error text for events after one that was refused for want of room.

    Their numbers follow a gap that no subscriber can pass.
    """
    what = "there was no room for an earlier event of this topic"
    return limit_reason(
        what, "topics_max", config.topics_max, "connect again to publish there, with fewer topics"
    )
