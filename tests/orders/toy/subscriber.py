"""The node that puts events into batches. Pure, as every node."""

from collections.abc import Iterable, Sequence

from tests.orders.toy.frames import EndOfBatch

from ensue.core.event import Event
from ensue.protocols.interface import Attach, Deliver, Detach, Effect, Frame, Join, Leave
from ensue.protocols.topic_log.frames import Attached, Notify

__all__ = ["BatchSubscriber"]

RETRY_NS = 500_000_000


class BatchSubscriber:
    """One subscription, made before anything is published on its topics."""

    leave_confirmed = True
    """Leaving needs no answer."""

    def __init__(self, *, name: str, size: int) -> None:
        self.name = name
        self._size = size
        self._attaching: dict[str, int] = {}
        """Topics that are not attached yet, to when to ask again."""
        self._topics: dict[str, None] = {}
        self._held: dict[tuple[str, str], dict[int, Event]] = {}
        """By publisher and topic: events by number."""
        self._first: dict[tuple[str, str], int] = {}
        """By publisher and topic: the first number of the batch that is due."""
        self._ends: dict[tuple[str, str], int] = {}
        """By publisher and topic: the last number, once the publisher has left."""
        self._delivered = 0
        self._paused = False
        self._effects: list[Effect] = []

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(self._topics)

    @property
    def held_count(self) -> int:
        return sum(map(len, self._held.values()))

    def subscribe(self, topics: Iterable[str], *, now_ns: int) -> None:
        for topic in topics:
            self._attaching[topic] = now_ns + RETRY_NS
            self._effects.append(Attach(topic, 0))

    def unsubscribe(self, topics: Iterable[str], *, now_ns: int) -> None:
        del now_ns
        for topic in topics:
            self._attaching.pop(topic, None)
            self._effects.append(Detach(topic))
            if topic in self._topics:
                del self._topics[topic]
                self._effects.append(Leave(topic))

    def acknowledge(self, position: int) -> None:
        del position

    def pause(self) -> None:
        self._paused = True

    def resume(self, *, now_ns: int) -> None:
        del now_ns
        self._paused = False
        for key in self._held:
            self._release(key)

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        del source, now_ns
        if isinstance(frame, Attached) and self._attaching.pop(frame.topic, None) is not None:
            self._topics[frame.topic] = None
            self._effects.append(Join(frame.topic))
        elif isinstance(frame, Notify) and frame.event.topic in self._topics:
            event = frame.event
            key = event.publisher, event.topic
            if event.publisher_seq >= self._first.setdefault(key, 1):
                self._held.setdefault(key, {})[event.publisher_seq] = event
                self._release(key)
        elif isinstance(frame, EndOfBatch):
            # Events may still be on their way.
            key = frame.publisher, frame.topic
            self._ends[key] = frame.last
            if key in self._held:
                self._release(key)

    def _release(self, key: tuple[str, str]) -> None:
        held = self._held[key]
        while not self._paused:
            first = self._first[key]
            last = min(first + self._size - 1, self._ends.get(key, first + self._size - 1))
            batch = range(last, first - 1, -1)
            if not batch or not all(number in held for number in batch):
                return
            for number in batch:
                self._delivered += 1
                self._effects.append(Deliver(held.pop(number), self._delivered))
            self._first[key] = last + 1

    def repeat(self, *, now_ns: int) -> None:
        self.handle_timer(now_ns=now_ns + RETRY_NS)

    def handle_timer(self, *, now_ns: int) -> None:
        for topic, due_ns in self._attaching.items():
            if due_ns <= now_ns:
                self._attaching[topic] = now_ns + RETRY_NS
                self._effects.append(Attach(topic, 0))

    def next_timer_ns(self) -> int | None:
        return min(self._attaching.values(), default=None)

    def take_effects(self) -> Sequence[Effect]:
        effects, self._effects = self._effects, []
        return effects
