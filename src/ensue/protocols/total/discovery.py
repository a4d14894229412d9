"""Discovery: how a client that knows only a broker finds the stations of a chain.

The first station of the chain answers under a well-known name. Requests and answers may be lost:
clients repeat their requests.
"""

from collections.abc import Sequence

import msgspec

from ensue.core.event import Count, Name
from ensue.protocols.interface import Effect, Frame, Send
from ensue.protocols.topic_log.log_identity import ChainSettings
from ensue.protocols.total.config import SequencerConfig
from ensue.protocols.total.placement import Placement

__all__ = ["DISCOVERY_NAME", "FRAMES", "Described", "Discover", "DiscoveryNode"]

DISCOVERY_NAME = "chain"
"""The well-known name. Client names hold a `~` or are those of durable subscriptions."""


class Discover(Frame, frozen=True, tag=50):
    """Ask for the stations of the chain."""

    number: Count


class Described(Frame, frozen=True, tag=51):
    """The stations of the chain, and its configuration."""

    number: Count
    nodes: tuple[tuple[Name, tuple[Name, ...]], ...]
    """Stations in rank order, each with the topics that are placed there by name."""
    closed: bool
    config: SequencerConfig
    moves: dict[Name, tuple[tuple[Name, Count], ...]] = msgspec.field(default_factory=dict)
    """Topics that were moved, to the stations of their parts (`placement.Parts`)."""

    def placement(self) -> Placement:
        """Return which station hosts which topic."""
        placement = Placement(
            [name for name, _ in self.nodes], topics=dict(self.nodes), closed=self.closed
        )
        for topic, parts in self.moves.items():
            placement.learn(topic, parts)
        return placement


FRAMES: tuple[type[Frame], ...] = (Discover, Described)


def settings_of(config: SequencerConfig, *, closed: bool) -> ChainSettings:
    """Return what a server has to have in common with the others of its chain."""
    return ChainSettings(
        groups=config.groups,
        publisher_order=config.publisher_order,
        cells=config.cells if isinstance(config.cells, str) else "",
        closed=closed,
    )


class DiscoveryNode:
    """The discovery node. `answer` is its answer, but for the number and the moved topics."""

    def __init__(self, answer: Described, placement: Placement | None = None) -> None:
        self.name = DISCOVERY_NAME
        self._answer = answer
        self._placement = placement
        self._effects: list[Effect] = []

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Answer a request."""
        del now_ns
        if isinstance(frame, Discover):
            answer = Described(
                number=frame.number,
                nodes=self._answer.nodes,
                closed=self._answer.closed,
                config=self._answer.config,
                moves={} if self._placement is None else self._placement.parts,
            )
            self._effects.append(Send(source, answer))

    def handle_timer(self, *, now_ns: int) -> None:
        """Do nothing: there are no timers."""

    def next_timer_ns(self) -> int | None:
        """Return None: there are no timers."""
        return None

    def take_effects(self) -> Sequence[Effect]:
        """Drain the answers."""
        effects, self._effects = self._effects, []
        return effects
