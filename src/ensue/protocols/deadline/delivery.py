"""Delivery: hand events to the application, or drop them with a verdict, and count both.

An event that is late or would break the order is dropped with its verdict, which the application
can see; with `deliver_late` it is delivered at once with that verdict instead, once. Duplicates are
normal where messages are gossiped: they are only counted.
"""

from collections import OrderedDict

from ensue.core.event import Event
from ensue.protocols.deadline.causality import LATE, OVERFLOW, OVERTAKEN
from ensue.protocols.deadline.config import DeadlineConfig
from ensue.protocols.interface import Arrive, Deliver, Discard, Effect
from ensue.protocols.shared.clock_monitor import AlertCounts

__all__ = ["DeadlineCounts", "Delivery"]


class DeadlineCounts(AlertCounts, kw_only=True):
    """Outcomes of the events received by one process."""

    received: int = 0
    """First copies of events of subscribed topics."""
    delivered: int = 0
    """In order and on time."""
    late: int = 0
    """Arrived or became readable too late, or the process was stopped: dropped, or delivered with
    this verdict. Of a broker's own events: not pushed to subscribers in time."""
    overtaken: int = 0
    """A follower was delivered before: dropped, or delivered with this verdict."""
    duplicate: int = 0
    overflow: int = 0
    unreadable: int = 0
    """Invalid messages, and messages whose base matrix is not here."""

    def on_time_share(self) -> float:
        """Return the share of received events that were delivered in order and on time."""
        return self.delivered / self.received if self.received else 1.0


class Delivery:
    """Deliveries and drops of one process."""

    def __init__(self, config: DeadlineConfig) -> None:
        self._config = config
        self.counts = DeadlineCounts()
        self.effects: list[Effect] = []
        self._position = 0
        self._handed: OrderedDict[str, None] = OrderedDict()
        """Events that were delivered or dropped: later copies are duplicates."""

    def is_copy(self, event: Event) -> bool:
        """Return whether an event is a duplicate, and count it if so."""
        if event.id not in self._handed:
            return False
        self.counts.duplicate += 1
        return True

    def arrived(self, event: Event) -> None:
        """Report the first copy of an event."""
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
        """Drop an event; after `overflow` another copy may still be delivered."""
        if verdict != OVERFLOW:
            self.remember(event)
        self.effects.append(Discard(event, verdict))

    def refuse(self, event: Event, verdict: str, *, room: bool = True) -> bool:
        """Drop an event, or deliver it with its verdict; return whether delivered."""
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
        """Drop an event that was not readable, or not pushed, in time."""
        self.counts.late += 1
        self.discard(event, LATE)

    def remember(self, event: Event) -> None:
        """Treat later copies of an event as duplicates."""
        self._handed[event.id] = None
        if len(self._handed) > self._config.remembered_max:
            self._handed.popitem(last=False)
