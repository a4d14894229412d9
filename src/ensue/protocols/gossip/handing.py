"""What becomes of the events that come to a process: handed over, dropped, or handed over with a verdict; and counted.

An event that comes too late, or that would break the order, is dropped with its verdict, which the application can see; with
`deliver_late` it is delivered at once with that verdict instead, once. Copies are the rule where messages are gossiped: they are only counted.
"""

from collections import OrderedDict

from ensue.event import Event
from ensue.protocols.core import Arrive, Deliver, Discard, Effect
from ensue.protocols.gossip.causality import LATE, OVERFLOW, OVERTAKEN
from ensue.protocols.gossip.config import GossipConfig
from ensue.protocols.watching import Watched

__all__ = ["GossipCounts", "Handing"]


class GossipCounts(Watched, kw_only=True):
    """What became of the events that came to one process."""

    received: int = 0
    """First copies, of topics subscribed to."""
    delivered: int = 0
    """In order and on time."""
    late: int = 0
    """Came too late, or whole too late, or the process stood still: dropped, or delivered with this verdict. Of a broker's own: not told
    to subscribers in time."""
    overtaken: int = 0
    """Would have been delivered after one that comes after them: the same."""
    duplicate: int = 0
    overflow: int = 0
    unreadable: int = 0
    """Messages that nobody can have sent, or whose base is not here."""

    def on_time_share(self) -> float:
        """Return how many of those that came were delivered in order and on time."""
        return self.delivered / self.received if self.received else 1.0


class Handing:
    """Hands over what one process is to be told."""

    def __init__(self, config: GossipConfig) -> None:
        self._config = config
        self.counts = GossipCounts()
        self.effects: list[Effect] = []
        self._position = 0
        self._handed: OrderedDict[str, None] = OrderedDict()
        """Events that were delivered or dropped: what comes of them later is a copy."""

    def is_copy(self, event: Event) -> bool:
        """Tell whether an event was delivered or dropped before, as far as that is remembered; if so, count it."""
        if event.id not in self._handed:
            return False
        self.counts.duplicate += 1
        return True

    def arrived(self, event: Event) -> None:
        """Say that a first copy of an event came."""
        self.counts.received += 1
        self.effects.append(Arrive(event))

    def deliver(self, event: Event, held_ns: int = 0, verdict: str = "") -> None:
        """Deliver an event."""
        self._position += 1
        self.remember(event)
        if not verdict:
            self.counts.delivered += 1
        self.effects.append(Deliver(event, self._position, verdict, max(0, held_ns)))

    def discard(self, event: Event, verdict: str) -> None:
        """Drop an event, whatever the configuration says. One for which there was no room may come again."""
        if verdict != OVERFLOW:
            self.remember(event)
        self.effects.append(Discard(event, verdict))

    def refuse(self, event: Event, verdict: str, *, room: bool = True) -> bool:
        """Deal with an event that can't be delivered in order and on time; return whether it was handed over."""
        counts = self.counts
        counts.late += verdict == LATE
        counts.overtaken += verdict == OVERTAKEN
        counts.overflow += verdict == OVERFLOW
        if room and self._config.deliver_late and verdict in (LATE, OVERTAKEN):
            self.deliver(event, verdict=verdict)
            return True
        self.discard(event, verdict)
        return False

    def give_up(self, event: Event) -> None:
        """Drop an event that could not be read in time, or was not told to subscribers in time."""
        self.counts.late += 1
        self.discard(event, LATE)

    def remember(self, event: Event) -> None:
        """Take what comes of an event from now on for copies."""
        self._handed[event.id] = None
        if len(self._handed) > self._config.remembered_max:
            self._handed.popitem(last=False)
