"""How a client finds out who the stations of a chain are, where it knows nothing but a broker.

The first station of the chain answers under a name that everybody knows. Questions and answers may be
lost: whoever asks asks again.
"""

from collections.abc import Sequence

from ensue.event import Count, Name
from ensue.protocols.core import Effect, Frame, Send
from ensue.protocols.sequencer.config import SequencerConfig
from ensue.protocols.sequencer.placement import Placement

__all__ = ["FRAMES", "GUIDE", "Described", "Discover", "Guide"]

GUIDE = "chain"
"""The name that everybody knows. Clients' names hold a `~` or are those of durable subscriptions."""


class Discover(Frame, frozen=True, tag=50):
    """Ask who is in the chain."""

    number: Count


class Described(Frame, frozen=True, tag=51):
    """Who is in the chain, and what everybody in it goes by."""

    number: Count
    nodes: tuple[tuple[Name, tuple[Name, ...]], ...]
    """Stations in rank order, each with the topics that are placed there by name."""
    closed: bool
    config: SequencerConfig

    def placement(self) -> Placement:
        """Return which station hosts which topic."""
        return Placement(
            [name for name, _ in self.nodes], topics=dict(self.nodes), closed=self.closed
        )


FRAMES: tuple[type[Frame], ...] = (Discover, Described)


class Guide:
    """Answers whoever asks. `answer` is what it says, but for the number of the question."""

    def __init__(self, answer: Described) -> None:
        self.name = GUIDE
        self._answer = answer
        self._effects: list[Effect] = []

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Answer a question."""
        del now_ns
        if isinstance(frame, Discover):
            told = Described(
                number=frame.number,
                nodes=self._answer.nodes,
                closed=self._answer.closed,
                config=self._answer.config,
            )
            self._effects.append(Send(source, told))

    def handle_timer(self, *, now_ns: int) -> None:
        """Do nothing: a guide keeps no time."""

    def next_timer_ns(self) -> int | None:
        """Return None: a guide keeps no time."""
        return None

    def take_effects(self) -> Sequence[Effect]:
        """Drain the answers."""
        effects, self._effects = self._effects, []
        return effects
