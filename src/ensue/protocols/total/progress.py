"""The progress of a subscription in each topic, and its records.

Progress is persisted when an event is delivered, or, if the application acknowledges, when it does
so: a restart resumes after the last event that was handled. There are three kinds of progress:

- `clock/TOPIC`: a joined topic, behind its cut;
- `history/TOPIC`: a topic that is being backfilled: the next slot, the cut, and the place to start
  at (0 once the first slot is known);
- `fallen` in the subscription's own record: a topic that fell behind what the log keeps, until it
  is joined again.

What waits for an acknowledgement is bounded. Delivered events: an application with `pending_max` of
them gets no more (`Delivery.paused`). Events that were stepped over, void or without a match, have
no position and no acknowledgement, and there may be any number behind an unacknowledged one: at
most two slots of each topic are kept, the next one to persist and the last one.
"""

from collections import deque
from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush

from ensue.protocols.interface import Acknowledged, Persist
from ensue.protocols.total.records import CLOCK, HISTORY, INT, ClockRecord
from ensue.protocols.total.subscription_state import SubscriptionState

__all__ = ["Progress"]


class Progress:
    """The progress of one subscription; `persist_state` writes its own record."""

    def __init__(
        self,
        state: SubscriptionState,
        *,
        acknowledge_each: bool,
        persist_state: Callable[[], None],
    ) -> None:
        self._durable = state.config.durable
        self._queue = state.queue
        self._effects = state.effects
        self._acknowledge_each = acknowledge_each
        self._persist_state = persist_state
        self.volatile = not acknowledge_each and not self._durable
        """Whether nothing has to be kept of what was delivered."""
        self.delivered = 0
        """The position of the last delivered event."""
        self.gaps: set[int] = set()
        """Positions of unacknowledged events whose topics were left: no other event gets them."""
        self.places: dict[str, int] = {}
        """Topic to the place of its last event."""
        self.unacknowledged: deque[tuple[int, str, int]] = deque()
        """Position, topic and slot of each delivered event; no topic once it is left."""
        self.skipped: dict[str, list[tuple[int, int]]] = {}
        """By topic: slots up to which events were skipped, and the position each waits for.

        The next one, and the last one: those between tell no more.
        """
        self._due: list[tuple[int, str]] = []
        """A heap of these topics, by the position that the next one waits for."""
        self.histories: dict[str, tuple[int, int]] = {}
        """Topics with a `history` record to their cuts and the places they start at."""
        self.fallen: dict[str, int] = {}
        """Topics to join again, to the first slot that is not known to be handled."""
        self.reached: dict[str, int] = {}
        """Of these the first slot that was not delivered, within this incarnation."""

    # -- Events -----------------------------------------------------------------------------------

    def handled(self, topic: str, slot: int, *, count: bool) -> None:
        """Note the progress of a topic; `count` if the application gets an event for it."""
        if count:
            self.delivered += 1
            while self.delivered in self.gaps:
                self.delivered += 1
        if self._acknowledge_each and count:
            self.unacknowledged.append((self.delivered, topic, slot))
        elif self._acknowledge_each and self.unacknowledged:
            self._skip(topic, slot)
        elif self._durable:
            self._advance(topic, slot)
            if count:
                self._effects.append(Persist("delivered", INT.encode(self.delivered)))

    def acknowledge(self, position: int) -> None:
        """Note that the application has handled every event up to a position."""
        position = min(position, self.delivered)
        if self.gaps:
            self.gaps = {each for each in self.gaps if each > position}
        handled: dict[str, int] = {}
        while self.unacknowledged and self.unacknowledged[0][0] <= position:
            _, topic, slot = self.unacknowledged.popleft()
            handled[topic] = slot
        while self._due and self._due[0][0] <= position:
            _, topic = heappop(self._due)
            handled[topic] = max(self._next_skipped(topic), handled.get(topic, 0))
        for topic, slot in handled.items():
            if topic:
                self._advance(topic, slot)
        if handled and self._durable:
            self._effects.append(Persist("delivered", INT.encode(position)))
            self._effects.append(Acknowledged(position))

    def _skip(self, topic: str, slot: int) -> None:
        """Note that a topic was skipped up to a slot, behind an unacknowledged event."""
        slots = self.skipped.setdefault(topic, [])
        if not slots:
            heappush(self._due, (self.delivered, topic))
        elif len(slots) > 1 or slots[0][0] == self.delivered:
            slots.pop()
        slots.append((self.delivered, slot))

    def _next_skipped(self, topic: str) -> int:
        """Take the slot that is persisted next, and wait for the last one, if there is one."""
        slots = self.skipped[topic]
        _, slot = slots.pop(0)
        if slots:
            heappush(self._due, (slots[0][0], topic))
        else:
            del self.skipped[topic]
        return slot

    def resume(self, delivered: int, gaps: Iterable[int]) -> None:
        """Continue behind the last acknowledged position of an earlier incarnation."""
        self.delivered = delivered
        self.gaps = {position for position in gaps if position > delivered}

    # -- Topics -----------------------------------------------------------------------------------

    def leave(self, topic: str) -> None:
        """Forget the progress of a topic: the application leaves it.

        Joined again, it starts at a new cut. Its unacknowledged events count for their positions
        alone from now on: events that are delivered again after a restart get the same ones.
        """
        self.forget_fallen(topic)
        self.gaps.update(position for position, each, _ in self.unacknowledged if each == topic)
        if self.skipped.pop(topic, None) is not None:
            self._due = [due for due in self._due if due[1] != topic]
            heapify(self._due)
        self.unacknowledged = deque(
            (position, "" if each == topic else each, slot)
            for position, each, slot in self.unacknowledged
        )

    def fall(self, topic: str) -> None:
        """Note the progress of a topic that will be joined again."""
        reached = self._queue.clock[topic] + 1
        open_slots = [slot for _, each, slot in self.unacknowledged if each == topic]
        open_slots += [slot for _, slot in self.skipped.get(topic, ())]
        self.fallen[topic] = min(open_slots, default=reached)
        self.reached[topic] = reached

    def forget_fallen(self, topic: str) -> None:
        """Do not join a topic again."""
        self.fallen.pop(topic, None)
        self.reached.pop(topic, None)

    def begin_history(self, topic: str, slot: int, cut: int, place: int) -> None:
        """Note that a topic is read from a slot and a place up to its cut."""
        self.histories[topic] = (cut, place)
        self.persist_history(topic, slot)

    def end_history(self, topic: str) -> None:
        """Note that the backfill of a topic ended."""
        if self.histories.pop(topic, None) is not None and self._durable:
            self._effects.append(Persist(f"history/{topic}", None))

    # -- Records ----------------------------------------------------------------------------------

    def persist_clock(self, topic: str, slot: int) -> None:
        """Persist the progress of a joined topic."""
        if self._durable:
            record = ClockRecord(slot, self._queue.base[topic], self.places.get(topic, 0))
            self._effects.append(Persist(f"clock/{topic}", CLOCK.encode(record)))

    def persist_history(self, topic: str, slot: int) -> None:
        """Write how far a topic's history has been read."""
        if self._durable:
            record = (slot, *self.histories[topic])
            self._effects.append(Persist(f"history/{topic}", HISTORY.encode(record)))

    def _advance(self, topic: str, slot: int) -> None:
        """Write that a topic was handled up to a slot, in its history or beyond."""
        if topic in self.fallen:
            # The topic has no clock until its cut comes; what is handled meanwhile still counts.
            self.fallen[topic] = slot + 1
            self._persist_state()
            return
        base = self._queue.base.get(topic)
        history = self.histories.get(topic)
        if history is not None:
            if slot < history[0] or base is None:
                # A topic whose history is read, and that waits for others, has no clock yet.
                self.persist_history(topic, slot + 1)
                return
            self.end_history(topic)
        if base is not None and (history is not None or slot > base):
            self.persist_clock(topic, max(slot, base))
