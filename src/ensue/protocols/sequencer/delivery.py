"""Delivery, as a subscriber does it: hold back, let go in order, and remember what was handled.

What comes out is in positions 1, 2, 3, …. On a reliable ENS an event waits for as long as it takes,
and after `gap_ns` without progress the subscriber asks for what is missing. On one that loses, an
event is let go when its time to live is over or the buffer is full; what turns up later is delivered
at once, tagged `out_of_order`.

How far each topic has come is persisted when an event is delivered, or, if the application
acknowledges, when it says so: a restart goes on behind the last event that was handled.
"""

from collections import deque

from ensue.event import Event
from ensue.protocols.core import Acknowledged, Deliver, Discard, Effect, Persist
from ensue.protocols.sequencer.config import SequencerConfig
from ensue.protocols.sequencer.holdback import HoldBack, PositionQueue
from ensue.protocols.sequencer.records import CLOCK, INT, ClockRecord
from ensue.protocols.sequencer.vectors import VectorQueue

__all__ = ["Delivery"]


class Delivery:
    """The half of a subscriber that delivers; `Subscriber` adds changes of subscription."""

    def __init__(self, *, config: SequencerConfig, acknowledge_each: bool, now_ns: int) -> None:
        self.config = config
        self._acknowledge_each = acknowledge_each
        self._notes_nothing = not acknowledge_each and not config.durable
        """Whether nothing has to be remembered of what was delivered."""
        limits = {"held_max": config.held_max, "missing_max": config.missing_max}
        self._queue: HoldBack = (
            VectorQueue(**limits)
            if config.groups == 2
            else PositionQueue(**limits, whole=not config.leave_out)
        )
        self._delivered = 0
        self._places: dict[str, int] = {}
        """Topic to the place of the event that came last."""
        self._unacknowledged: deque[tuple[int, str, int]] = deque()
        """Position, topic and slot of what was delivered or stepped over; no topic once that is left."""
        self._gap_due_ns: int | None = None
        """When to ask for what held events wait for; None while nothing is held."""
        self._expire_from_ns = now_ns
        self._effects: list[Effect] = []

    @property
    def held_count(self) -> int:
        """How many events are held back."""
        return self._queue.held_count

    def acknowledge(self, position: int) -> None:
        """Say that every event up to a position has been handled."""
        position = min(position, self._delivered)
        handled: dict[str, int] = {}
        while self._unacknowledged and self._unacknowledged[0][0] <= position:
            _, topic, slot = self._unacknowledged.popleft()
            handled[topic] = slot
        for topic, slot in handled.items():
            if topic:
                self._persist_progress(topic, slot)
        if handled and self.config.durable:
            self._effects.append(Persist("delivered", INT.encode(position)))
            self._effects.append(Acknowledged(position))

    def _disown(self, topic: str) -> None:
        """Let unacknowledged events of a topic count for their positions alone: it is left.

        Joined again, the topic starts at a new cut. How far it had come before must not count then.
        """
        self._unacknowledged = deque(
            (position, "" if each == topic else each, slot)
            for position, each, slot in self._unacknowledged
        )

    def _notify(self, event: Event, now_ns: int) -> None:
        stamp = event.stamp
        slot = None if stamp is None else stamp.entries.get(event.topic)
        if slot is None:
            return  # Not stamped: nothing that a sequencer ordered.
        queue = self._queue
        outcome = queue.offer(event, slot, now_ns)
        if outcome == "next" and not event.void and self._notes_nothing:
            # What almost every event of a subscription that keeps no records comes to.
            self._delivered += 1
            self._places[event.topic] = event.place
            self._effects.append(Deliver(event, self._delivered))
            if queue.held_count:
                self._deliver_ready(now_ns, progress=True)
            return
        if outcome == "overflow" and not self.config.reliable:
            self._force(now_ns)
            outcome = queue.offer(event, slot, now_ns)
        if outcome == "next":
            self._let_go(event, slot, now_ns, now_ns)
            if queue.held_count:
                self._deliver_ready(now_ns, progress=True)
        elif outcome == "held":
            self._deliver_ready(now_ns)
        elif outcome == "late" and not event.void:
            self._deliver_late(event)
        else:
            self._effects.append(Discard(event, outcome))

    def _deliver_ready(self, now_ns: int, *, progress: bool = False) -> None:
        while (held := self._queue.next()) is not None:
            self._let_go(held.event, held.slot, held.since_ns, now_ns)
            progress = True
        if progress or self._gap_due_ns is None:
            self._expect_progress(now_ns)

    def _expect_progress(self, now_ns: int) -> None:
        """Be patient for a while with whatever the held events wait for."""
        waiting = self._queue.held_count > 0
        self._gap_due_ns = now_ns + self.config.gap_ns if waiting else None

    def _let_go(self, event: Event, slot: int, since_ns: int, now_ns: int) -> None:
        self._places[event.topic] = event.place
        self._handled(event.topic, slot, count=not event.void)
        if event.void:
            self._effects.append(Discard(event, "void"))
        else:
            self._effects.append(Deliver(event, self._delivered, "", now_ns - since_ns))

    def _deliver_late(self, event: Event) -> None:
        self._handled(event.topic, self._queue.clock[event.topic], count=True)
        self._effects.append(Deliver(event, self._delivered, "out_of_order"))

    def _handled(self, topic: str, slot: int, *, count: bool) -> None:
        """Note how far a topic has come; `count` if the application gets an event for it."""
        if count:
            self._delivered += 1
        if self._acknowledge_each:
            self._unacknowledged.append((self._delivered, topic, slot))
        elif self.config.durable:
            self._persist_progress(topic, slot)
            self._effects.append(Persist("delivered", INT.encode(self._delivered)))

    def _expire(self, now_ns: int) -> None:
        """Let go what has been held for its time to live, and what comes before it."""
        while (oldest := self._queue.oldest_ns()) is not None:
            if oldest + self.config.time_to_live_ns > now_ns:
                break
            if not self._force(now_ns):
                # All that is held waits for a cut, which will come.
                self._expire_from_ns = now_ns + self.config.time_to_live_ns
                break

    def _force(self, now_ns: int) -> bool:
        """Let the first held event go before its turn; False if there is none."""
        forced = self._queue.force()
        if forced is None:
            return False
        assert forced.event.stamp is not None
        for topic in forced.event.stamp.entries:
            # Clocks that jumped over something must not fall back after a restart.
            if topic != forced.event.topic and topic in self._queue.clock:
                self._handled(topic, self._queue.clock[topic], count=False)
        self._let_go(forced.event, forced.slot, forced.since_ns, now_ns)
        self._deliver_ready(now_ns)
        return True

    def _persist_progress(self, topic: str, slot: int) -> None:
        """Note how far a topic has come, if it is still joined."""
        if slot > self._queue.base.get(topic, slot):
            self._persist_clock(topic, slot)

    def _persist_clock(self, topic: str, slot: int) -> None:
        if self.config.durable:
            record = ClockRecord(slot, self._queue.base[topic], self._places.get(topic, 0))
            self._effects.append(Persist(f"clock/{topic}", CLOCK.encode(record)))
