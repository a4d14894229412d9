"""The configuration that the nodes of one cube share."""

from collections.abc import Sequence

import msgspec

from ensue.errors import ConfigurationError, limit_reason
from ensue.protocols.hypercube.frames import topic_bytes

__all__ = ["HypercubeConfig", "no_room", "no_room_before"]

MILLISECOND_NS = 1_000_000
SECOND_NS = 1_000_000_000


class HypercubeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Named limits, waits and choices. `across_topics` must be the same everywhere."""

    across_topics: bool = True
    """Whether causes come before effects across all topics of a node. False: within each topic, as
    in the paper; then events name predecessors in their own topic alone."""
    durable: bool = True
    """False: nothing is persisted, for a cube that lives and dies with one process."""
    retry_ns: int = 200 * MILLISECOND_NS
    """A copy that was not acknowledged is sent again after so long, then after twice as long, …"""
    retry_ns_max: int = 2 * SECOND_NS
    """… but never waits longer than this."""
    suspect_ns: int = SECOND_NS
    """A node that has left something unanswered for so long is suspected until it is heard again."""
    answer_ns: int = 10 * SECOND_NS
    """A node that is heard, and has not finished what it was asked for so long, is passed over as if it were away. A message that
    it has to pass on may take it so long for each of the clusters below it."""
    beat_ns: int = SECOND_NS
    """How often neighbours compare who is subscribed to what, and so notice who is away."""
    digest_ns: int = 500 * MILLISECOND_NS
    """How long after something happened in a topic its members compare what they have, …"""
    digest_ns_max: int = 4 * SECOND_NS
    """… then after twice as long, and so on, but never less often than this."""
    gap_ns: int = 100 * MILLISECOND_NS
    """A node that holds something back asks for what is missing after so long."""
    patience_ns: int = 30 * SECOND_NS
    """An event that others depend on, whose source is away, and that nobody who can be reached has, is waited for
    so long; then, if need be, as long again for what may come before it."""
    window: int = 8
    """Messages of one node and topic that may be under way, not yet acknowledged by everybody."""
    batch_max: int = 64
    """Events in one message, at the most, …"""
    batch_bytes_max: int = 1024 * 1024
    """… but no more once they come to this, unless one alone is more."""
    outgoing_max: int = 65_536
    """Events of one node that are not yet out."""
    topics_max: int = 16_384
    """Topics that one node is in, those included that it follows to publish there; more are refused, …"""
    row_bytes_max: int = 512 * 1024
    """… and so are more whose names come to this: whoever is told of one is told of all."""
    held_max: int = 65_536
    """Events of one topic that wait for others; more are dropped, and asked for again."""
    retained_max: int = 65_536
    """Events kept for whoever lacks them. One that nobody has kept is given up by who lacks it."""

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
                    f"HypercubeConfig.{field} must be at least 1, not {getattr(self, field)}"
                )

    def topics_that_fit(self, topics: Sequence[str]) -> int:
        """Return how many of these topics, from the first on, one row has room for."""
        size = 0
        for count, topic in enumerate(topics):
            size += topic_bytes(topic)
            if count >= self.topics_max or size > self.row_bytes_max:
                return count
        return len(topics)


def no_room(config: HypercubeConfig) -> str:
    """Say that a client is in as many topics as its row has room for."""
    what = f"this client is in too many topics, or their names have more than {config.row_bytes_max} bytes"
    return limit_reason(what, "topics_max", config.topics_max, "use fewer topics, or another bus")


def no_room_before(config: HypercubeConfig) -> str:
    """Say that an event of the topic had no room, so that no subscriber can get what is numbered behind it."""
    what = "there was no room for an earlier event of this topic"
    return limit_reason(
        what, "topics_max", config.topics_max, "connect again to publish there, with fewer topics"
    )
