"""A subscriber without order: delivers each event as it arrives, once."""

from collections.abc import Iterable, Sequence

import msgspec

from ensue.core.event import Event
from ensue.protocols.interface import (
    Attach,
    Deliver,
    Detach,
    Discard,
    Effect,
    Frame,
    Join,
    Leave,
    Refuse,
)
from ensue.protocols.topic_log.fanout import Declined
from ensue.protocols.topic_log.frames import Attached, Notify

__all__ = ["SEEN_MAX", "UnorderedCounts", "UnorderedSubscriber"]

SEEN_MAX = 4096
RETRY_NS = 500_000_000


class _Seen:
    """The event numbers of one publisher and topic that have arrived."""

    __slots__ = ("beyond", "up_to")

    def __init__(self, number: int) -> None:
        self.up_to = number
        self.beyond: set[int] = set()

    def add(self, number: int) -> bool:
        """Note a number; False if it arrived before."""
        if number <= self.up_to or number in self.beyond:
            return False
        self.beyond.add(number)
        while self.up_to + 1 in self.beyond or len(self.beyond) > SEEN_MAX:
            self.up_to += 1
            self.beyond.discard(self.up_to)
        return True


class UnorderedCounts(msgspec.Struct, kw_only=True):
    """Counts of the events of one subscriber, by what became of them."""

    received: int = 0
    delivered: int = 0
    duplicate: int = 0
    late: int = 0
    """Always 0: without order no event is late. The counts of the other orders have it."""
    overflow: int = 0
    """Dropped for want of room."""


class UnorderedSubscriber:
    """One subscription. Commands: `subscribe`, `unsubscribe`, `acknowledge`."""

    held_count = 0
    leave_confirmed = True
    """Leaving needs no answer."""

    def __init__(self, *, name: str) -> None:
        self.name = name
        self.counts = UnorderedCounts()
        self._attaching: dict[str, int] = {}
        """Topics that their log has not attached yet, to when to repeat the request."""
        self._seen: dict[str, dict[str, _Seen]] = {}
        """Joined topics to publishers to their numbers."""
        self._delivered = 0
        self._paused = False
        self._effects: list[Effect] = []

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics in effect."""
        return tuple(self._seen)

    def subscribe(self, topics: Iterable[str], *, now_ns: int) -> None:
        """Request topics; each takes effect with its `Join`."""
        for topic in topics:
            if topic not in self._attaching and topic not in self._seen:
                self._attaching[topic] = now_ns + RETRY_NS
                self._effects.append(Attach(topic, 0))

    def unsubscribe(self, topics: Iterable[str], *, now_ns: int) -> None:
        """Leave topics, at once."""
        del now_ns
        for topic in topics:
            if self._attaching.pop(topic, None) is not None:
                self._effects.append(Detach(topic))
            if self._seen.pop(topic, None) is not None:
                self._effects += (Detach(topic), Leave(topic))

    def acknowledge(self, position: int) -> None:
        """Do nothing: nothing is delivered again."""

    def pause(self) -> None:
        """Deliver nothing until `resume`, and drop events: there is no room."""
        self._paused = True

    def resume(self, *, now_ns: int) -> None:
        """Deliver new events again."""
        del now_ns
        self._paused = False

    def repeat(self, *, now_ns: int) -> None:
        """Request all topics again: the connection is new."""
        for topic in self._attaching:
            self._attaching[topic] = now_ns + RETRY_NS
        self._effects += [Attach(topic, 0) for topic in (*self._attaching, *self._seen)]

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Handle a notification or an answer of a topic log."""
        del source, now_ns
        match frame:
            case Notify(event=event):
                self._notify(event)
            case Attached(topic=topic) if topic in self._attaching:
                del self._attaching[topic]
                self._seen[topic] = {}
                self._effects.append(Join(topic))
            case Declined(topic=topic, event="", reason=reason):
                if self._seen.pop(topic, None) is not None:
                    self._effects.append(Leave(topic))
                elif self._attaching.pop(topic, None) is None:
                    return
                self._effects.append(Refuse((topic,), reason))
            case _:
                pass  # Not for a subscriber: a stray frame changes nothing.

    def handle_timer(self, *, now_ns: int) -> None:
        """Repeat requests for topics that were not attached in time."""
        for topic, due_ns in self._attaching.items():
            if due_ns <= now_ns:
                self._attaching[topic] = now_ns + RETRY_NS
                self._effects.append(Attach(topic, 0))

    def next_timer_ns(self) -> int | None:
        """Return when to repeat the first request."""
        return min(self._attaching.values(), default=None)

    def take_effects(self) -> Sequence[Effect]:
        """Drain the effects."""
        effects, self._effects = self._effects, []
        return effects

    def _notify(self, event: Event) -> None:
        publishers = self._seen.get(event.topic)
        if publishers is None or event.void:
            self._effects.append(Discard(event, "void" if event.void else "not_subscribed"))
            return
        counts = self.counts
        counts.received += 1
        seen = publishers.get(event.publisher)
        if seen is None:
            # Earlier events of this publisher may still be on their way, but not many.
            seen = publishers[event.publisher] = _Seen(max(0, event.publisher_seq - SEEN_MAX // 2))
        if not seen.add(event.publisher_seq):
            counts.duplicate += 1
            self._effects.append(Discard(event, "duplicate"))
            return
        if self._paused:
            counts.overflow += 1
            self._effects.append(Discard(event, "overflow"))
            return
        counts.delivered += 1
        self._delivered += 1
        self._effects.append(Deliver(event, self._delivered))
