"""No order at all: events are delivered as they arrive, once each.

This is what a plain broker gives, and what the other protocols are measured against. A publisher
repeats an event until the ENS has it; a subscriber drops what it has seen, told apart by the
publisher's numbers. Nothing is persisted: it lives and dies with its process.

Limit: `SEEN_MAX` numbers a publisher and topic beyond the first one missing. An event that comes later
than that is taken for a repetition and dropped.

HAZARD: while its application has no room, a subscriber drops what comes, and counts it (`overflow`): nobody sends it
again.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from ensue.event import Event
from ensue.protocols.core import (
    Attach,
    Broadcast,
    Deliver,
    Detach,
    Discard,
    Effect,
    Frame,
    Join,
    Leave,
    Publish,
    Refuse,
    Settle,
)
from ensue.protocols.ens import Accepted, Attached, Notify
from ensue.protocols.exchange import Declined
from ensue.protocols.numbering import EventNumbers

__all__ = ["SEEN_MAX", "UnorderedCounts", "UnorderedPublisher", "UnorderedSubscriber"]

SEEN_MAX = 4096
RETRY_NS = 500_000_000


class UnorderedPublisher:
    """One publisher. Command: `publish`."""

    def __init__(self, *, name: str) -> None:
        self.name = name
        self._numbers = EventNumbers(name)
        self._unanswered: dict[str, tuple[int, Event]] = {}
        """By id: when to repeat it, and the event, in the order they are due."""
        self._effects: list[Effect] = []

    @property
    def unsettled_count(self) -> int:
        """How many events are under way."""
        return len(self._unanswered)

    def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        now_ns: int,
        key: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Event:
        """Take charge of an event; its fate comes as `Settle`."""
        event = self._numbers.make(topic, payload, now_ns, key, headers)
        self._unanswered[event.id] = (now_ns + RETRY_NS, event)
        self._effects += (Publish(event), Broadcast(event))
        return event

    def say_goodbye(self) -> None:
        """Do nothing: nobody remembers this publisher."""

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Handle the ENS's answer."""
        del source, now_ns
        if isinstance(frame, Accepted | Declined):
            answered = self._unanswered.pop(frame.event, None)
            if answered is not None:
                settled = Settle(answered[1], "")
                if isinstance(frame, Declined):
                    settled = Settle(answered[1], "void", frame.reason)
                self._effects.append(settled)

    def repeat(self, *, now_ns: int) -> None:
        """Send again what got no answer: the connection is new."""
        for event_id, (_, event) in list(self._unanswered.items()):
            self._unanswered[event_id] = (now_ns + RETRY_NS, event)
            self._effects.append(Broadcast(event))

    def handle_timer(self, *, now_ns: int) -> None:
        """Repeat what got no answer in time."""
        for event_id, (due_ns, event) in list(self._unanswered.items()):
            if due_ns > now_ns:
                break
            del self._unanswered[event_id]
            self._unanswered[event_id] = (now_ns + RETRY_NS, event)
            self._effects.append(Broadcast(event))

    def next_timer_ns(self) -> int | None:
        """Return when the first unanswered event is to be repeated."""
        return next((due_ns for due_ns, _ in self._unanswered.values()), None)

    def take_effects(self) -> Sequence[Effect]:
        """Drain what is to be done."""
        effects, self._effects = self._effects, []
        return effects


class _Seen:
    """Which numbers of one publisher and topic have come."""

    __slots__ = ("beyond", "up_to")

    def __init__(self, number: int) -> None:
        self.up_to = number
        self.beyond: set[int] = set()

    def add(self, number: int) -> bool:
        """Take note of a number; False if it came before."""
        if number <= self.up_to or number in self.beyond:
            return False
        self.beyond.add(number)
        while self.up_to + 1 in self.beyond or len(self.beyond) > SEEN_MAX:
            self.up_to += 1
            self.beyond.discard(self.up_to)
        return True


class UnorderedCounts(msgspec.Struct, kw_only=True):
    """What became of the events that came to one subscriber."""

    received: int = 0
    delivered: int = 0
    duplicate: int = 0
    late: int = 0
    """None ever is: there is no turn to be late for. As in the counts of the other orders."""
    overflow: int = 0
    """There was no room for them: dropped."""


class UnorderedSubscriber:
    """One subscription. Commands: `subscribe`, `unsubscribe`, `acknowledge`."""

    held_count = 0

    def __init__(self, *, name: str) -> None:
        self.name = name
        self.counts = UnorderedCounts()
        self._attaching: dict[str, int] = {}
        """Topics that the ENS has not attached yet, and when to ask again."""
        self._seen: dict[str, dict[str, _Seen]] = {}
        """Joined topics, and what has come from each publisher."""
        self._delivered = 0
        self._paused = False
        self._effects: list[Effect] = []

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics in effect."""
        return tuple(self._seen)

    def subscribe(self, topics: Iterable[str], *, now_ns: int) -> None:
        """Ask for topics; each takes effect with its `Join`."""
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
        """Deliver nothing until `resume`, and drop what comes: there is no room."""
        self._paused = True

    def resume(self, *, now_ns: int) -> None:
        """Deliver again what comes from now on."""
        del now_ns
        self._paused = False

    def repeat(self, *, now_ns: int) -> None:
        """Ask for all topics again: the connection is new."""
        for topic in self._attaching:
            self._attaching[topic] = now_ns + RETRY_NS
        self._effects += [Attach(topic, 0) for topic in (*self._attaching, *self._seen)]

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Handle a notification or an answer of the ENS."""
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
        """Ask again for topics that were not attached in time."""
        for topic, due_ns in self._attaching.items():
            if due_ns <= now_ns:
                self._attaching[topic] = now_ns + RETRY_NS
                self._effects.append(Attach(topic, 0))

    def next_timer_ns(self) -> int | None:
        """Return when to ask again for a topic."""
        return min(self._attaching.values(), default=None)

    def take_effects(self) -> Sequence[Effect]:
        """Drain what is to be done."""
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
