"""What a subscriber holds back where sums mean nothing: groups by two common subscriptions.

A subscriber's topics need not all be ordered with each other, so an event is next when it is the next
of its topic and the clocks have reached every entry it names.
"""

from collections import deque

from ensue.event import Event
from ensue.protocols.sequencer.holdback import Held, HoldBack

__all__ = ["VectorQueue"]


class VectorQueue(HoldBack):
    """Delivery by clocks: for topics that need not all be ordered with each other."""

    def __init__(self, *, held_max: int, missing_max: int) -> None:
        super().__init__(held_max=held_max, missing_max=missing_max)
        self._to_check: deque[str] = deque()
        """Topics whose first event may have become next."""
        self._waiters: dict[str, dict[str, None]] = {}
        """Topic to the topics whose first event waits for it."""

    def next(self) -> Held | None:
        """Return an event whose turn it is, and move on past it."""
        while self._to_check:
            topic = self._to_check.popleft()
            clock = self.clock.get(topic)
            held = None if clock is None else self.held[topic].get(clock + 1)
            if held is None:
                continue
            unmet = self._unmet(held.event)
            if unmet is not None:
                self._waiters.setdefault(unmet, {})[topic] = None
                continue
            self.clock[topic] = held.slot
            self._take(held)
            self._to_check.append(topic)
            self._to_check.extend(self._waiters.pop(topic, ()))
            return held
        return None

    def _pass(self, event: Event, slot: int) -> bool:
        if self._unmet(event) is not None:
            return False
        topic = event.topic
        self.clock[topic] = slot
        if self.held_count:
            self._to_check.append(topic)
            self._to_check.extend(self._waiters.pop(topic, ()))
        return True

    def _unmet(self, event: Event) -> str | None:
        """Return a topic that has not come as far as the event asks for."""
        stamp = event.stamp
        assert stamp is not None
        for topic, count in stamp.entries.items():
            clock = self.clock.get(topic)
            if clock is not None and clock < count and topic != event.topic:
                return topic
        return None

    def _first(self) -> Held | None:
        heads = [waiting[min(waiting)] for waiting in self.held.values() if waiting]
        for head in heads:
            stamp = head.event.stamp
            assert stamp is not None
            if not any(
                other.slot <= stamp.entries.get(other.event.topic, 0)
                for other in heads
                if other is not head
            ):
                return head
        return heads[0] if heads else None

    def _jumped(self, held: Held) -> None:
        del held  # All clocks may have moved, not only its own.
        self._reindex()

    def _index(self, held: Held) -> None:
        self._to_check.append(held.event.topic)

    def _reindex(self) -> None:
        self._waiters = {}
        self._to_check = deque(self.clock)
