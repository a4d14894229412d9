"""The hold-back queue of a subscriber: which events wait, and which one is next.

`PositionQueue`: groups by one common subscription. All topics of a subscription are ordered with
each other, so the entries of a stamp over the subscriber's topics add up to the event's position in
that subscriber's order. The queue is a table of integers: the event at `position + 1` is next, and
a missing integer is a gap.

- An entry left out stands for the value of the topic's previous event. Events of one topic are
  therefore read in slot order; each updates a running sum by the entries it names. Reading starts
  from the clocks: an undelivered event never has an entry below the clock, so one that was left
  out since the last delivered event of the topic equals it.
- While topics are joined and left the rule reads: the sum over the current topics of
  max(entry, cut) - clock is 1, where the cut is where the topic stood when it was joined. Joining
  or leaving reads the held events again.
- An event that names a topic which is being joined waits for the cut: whether something of that
  topic comes before it can't be known earlier.

`VectorQueue`: groups by two common subscriptions. A subscriber's topics need not all be ordered
with each other, so sums mean nothing: an event is next when it is the next of its topic and the
clocks have reached every entry it names.

Both work with reliable and with lossy topic logs. With lossy ones stamps are whole, `force`
releases the first held event although something before it is missing, and what arrives later than
that is `late`.

Limits: `held_max` events held; `missing_max` given-up slots remembered.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Literal

from ensue.core.event import Event

__all__ = ["Held", "HoldBack", "PositionQueue", "VectorQueue"]

Offer = Literal["next", "held", "duplicate", "late", "overflow", "not_subscribed", "before_join"]


class Held:
    """An event held back since `since_ns`."""

    __slots__ = ("event", "gone", "since_ns", "slot")

    def __init__(self, event: Event, slot: int, since_ns: int) -> None:
        self.event = event
        self.slot = slot
        self.since_ns = since_ns
        self.gone = False
        """Delivered or dropped, and still in the queue by age."""


class HoldBack(ABC):
    """The clocks of a subscriber and the events that wait for them."""

    def __init__(self, *, held_max: int, missing_max: int) -> None:
        self.clock: dict[str, int] = {}
        """Topic to the slot last delivered or skipped."""
        self.base: dict[str, int] = {}
        """Topic to the cut at which it was joined."""
        self.joining: dict[str, None] = {}
        """Topics whose cut is not known yet; their events are held."""
        self.held: dict[str, dict[int, Held]] = {}
        """Topic to slot to event."""
        self.held_count = 0
        self._held_max = held_max
        self._missing_max = missing_max
        self._by_age: deque[Held] = deque()
        self._missing: dict[tuple[str, int], None] = {}
        """Skipped slots; an event that arrives for one is late, not repeated."""

    def offer(self, event: Event, slot: int, now_ns: int) -> Offer:
        """Take in an event; return its outcome.

        `next` means that it is next, and that the queue has moved past it.
        """
        topic = event.topic
        waiting = self.held.get(topic)
        if waiting is None:
            return "not_subscribed"
        clock = self.clock.get(topic)
        if clock is not None and slot <= clock:
            return self._behind(topic, slot)
        if slot in waiting:
            return "duplicate"
        if clock is not None and slot == clock + 1 and self._pass(event, slot):
            return "next"
        if self.full and (clock is None or slot != clock + 1):
            # The next event of a topic is held all the same: all others may wait for it.
            return "overflow"
        held = Held(event, slot, now_ns)
        waiting[slot] = held
        self.held_count += 1
        self._by_age.append(held)
        if clock is not None:
            self._index(held)
        return "held"

    def _behind(self, topic: str, slot: int) -> Offer:
        """Return the outcome of an event whose slot the clock has passed."""
        if self._missing.pop((topic, slot), 0) is None:
            return "late"
        return "before_join" if slot <= self.base[topic] else "duplicate"

    @property
    def full(self) -> bool:
        """Whether `held_max` events are held."""
        return self.held_count >= self._held_max

    def await_cut(self, topic: str) -> None:
        """Hold the events of a topic until `join` or `leave`."""
        self.joining[topic] = None
        self.held.setdefault(topic, {})

    def join(self, topic: str, cut: int) -> Iterator[Event]:
        """Start a topic's clock at its cut; yield the held events that precede it."""
        self.joining.pop(topic, None)
        self.base[topic] = self.clock[topic] = cut
        waiting = self.held.setdefault(topic, {})
        for slot in sorted(slot for slot in waiting if slot <= cut):
            held = waiting.pop(slot)
            held.gone = True
            self.held_count -= 1
            yield held.event
        self._reindex()

    def resume(self, topic: str, clock: int, base: int) -> None:
        """Resume a topic where it was before a restart."""
        self.held.setdefault(topic, {})
        self.base[topic] = base
        self.clock[topic] = clock
        self._reindex()

    def leave(self, topic: str) -> None:
        """Forget a topic and its held events."""
        self.joining.pop(topic, None)
        self.clock.pop(topic, None)
        self.base.pop(topic, None)
        for held in self.held.pop(topic, {}).values():
            held.gone = True
            self.held_count -= 1
        for key in [key for key in self._missing if key[0] == topic]:
            del self._missing[key]
        self._reindex()

    @abstractmethod
    def _pass(self, event: Event, slot: int) -> bool:
        """Move on past the next event of a topic, just arrived, if it is next of all."""

    @abstractmethod
    def next(self) -> Held | None:
        """Return the event that is next, if it is here, and move on past it."""

    def force(self) -> Held | None:
        """Release the first held event although something before it is missing."""
        first = self._first()
        if first is None:
            return None
        stamp = first.event.stamp
        assert stamp is not None
        for topic, count in stamp.entries.items():
            clock = self.clock.get(topic)
            if clock is None or count <= clock:
                continue
            given_up = range(clock + 1, count + (topic != first.event.topic))
            self._give_up(topic, given_up)
            self.clock[topic] = count
        self._take(first)
        self._jumped(first)
        return first

    def oldest_ns(self) -> int | None:
        """Return since when the oldest held event of a joined topic has been held."""
        by_age = self._by_age
        while by_age and by_age[0].gone:
            by_age.popleft()
        for held in by_age:
            if not held.gone and held.event.topic in self.clock:
                return held.since_ns
        return None

    def first_missing(self, topic: str) -> int:
        """Return the first slot of a joined topic that is not here."""
        waiting = self.held[topic]
        slot = self.clock[topic] + 1
        while slot in waiting:
            slot += 1
        return slot

    def _give_up(self, topic: str, slots: Iterable[int]) -> None:
        waiting = self.held[topic]
        for slot in slots:
            if slot not in waiting:
                self._missing[topic, slot] = None
                if len(self._missing) > self._missing_max:
                    del self._missing[next(iter(self._missing))]

    def _take(self, held: Held) -> None:
        """Remove an event that is released."""
        del self.held[held.event.topic][held.slot]
        held.gone = True
        self.held_count -= 1
        while self._by_age and self._by_age[0].gone:
            self._by_age.popleft()

    @abstractmethod
    def _first(self) -> Held | None:
        """Return a held event that no other held one precedes."""

    @abstractmethod
    def _jumped(self, held: Held) -> None:
        """Note that clocks jumped because this event was released before its turn."""

    @abstractmethod
    def _index(self, held: Held) -> None:
        """Note that an event of a joined topic was added."""

    @abstractmethod
    def _reindex(self) -> None:
        """Index all held events again: clocks, topics or cuts have changed."""


class _Tip:
    """How far the stamps of one topic have been read, and their sum up to there."""

    __slots__ = ("entries", "slot", "total")

    def __init__(self, slot: int, entries: dict[str, int]) -> None:
        self.slot = slot
        self.entries = entries
        """The subscriber's topics, as in the stamp of the event at `slot`."""
        self.total = sum(entries.values())

    def read(self, slot: int, stamp: dict[str, int]) -> int:
        """Read the stamp of the event at the next slot; return the event's position."""
        entries = self.entries
        for topic, count in stamp.items():
            before = entries.get(topic)
            if before is not None and count > before:
                entries[topic] = count
                self.total += count - before
        self.slot = slot
        return self.total


class PositionQueue(HoldBack):
    """A hold-back queue by position; `whole` if stamps leave nothing out."""

    def __init__(self, *, held_max: int, missing_max: int, whole: bool) -> None:
        super().__init__(held_max=held_max, missing_max=missing_max)
        self._whole = whole
        self._position = 0
        """The sum of all clocks."""
        self._by_position: dict[int, Held] = {}
        self._tips: dict[str, _Tip] = {}
        """Topic to how far its held events have been read."""

    def next(self) -> Held | None:
        """Return the event at the next position, if it is here, and move on past it."""
        held = self._by_position.pop(self._position + 1, None)
        if held is None:
            return None
        topic = held.event.topic
        self._position += 1
        self.clock[topic] = held.slot
        self._take(held)
        tip = self._tips.get(topic)
        if tip is not None and tip.slot == held.slot:
            del self._tips[topic]
        return held

    def _pass(self, event: Event, slot: int) -> bool:
        topic, stamp, clock = event.topic, event.stamp, self.clock
        assert stamp is not None
        entries = stamp.entries
        if self.joining and not self.joining.keys().isdisjoint(entries):
            return False
        # How far the stamp's sum is ahead of the clocks' sum is 1 exactly if the event's own
        # entry is all that is ahead. Mostly every other entry equals its clock, which one
        # comparison of the two tables shows; otherwise they are compared one by one.
        clock[topic] = slot
        if not entries.items() <= clock.items():
            for name, count in entries.items():
                if count > clock.get(name, count):
                    clock[topic] = slot - 1
                    return False
        self._position += 1
        if self.held[topic]:
            self._read_on(topic)
        return True

    def _read(self, event: Event, slot: int) -> int | None:
        """Compute an event's position; None if it waits for a cut or for its predecessor."""
        topic, stamp = event.topic, event.stamp
        assert stamp is not None
        if self.joining and not self.joining.keys().isdisjoint(stamp.entries):
            return None
        if self._whole:
            return _Tip(slot - 1, dict(self.base)).read(slot, stamp.entries)
        tip = self._tips.get(topic)
        if tip is None and slot == self.clock[topic] + 1:
            tip = self._tips[topic] = _Tip(slot - 1, dict(self.clock))
        if tip is None or tip.slot != slot - 1:
            return None
        return tip.read(slot, stamp.entries)

    def _index(self, held: Held) -> None:
        if self._whole:
            position = self._read(held.event, held.slot)
            if position is not None:
                self._by_position[position] = held
        else:
            self._read_on(held.event.topic)

    def _read_on(self, topic: str) -> None:
        """Compute the positions of held events whose predecessors have been read."""
        if self._whole:
            return
        waiting = self.held[topic]
        tip = self._tips.get(topic)
        slot = self.clock[topic] if tip is None else tip.slot
        while (following := waiting.get(slot + 1)) is not None:
            position = self._read(following.event, following.slot)
            if position is None:
                break
            self._by_position[position] = following
            slot += 1

    def _first(self) -> Held | None:
        if not self._by_position:
            return None
        if self.joining:
            # Events that wait for a cut have no position yet: any of them may come first.
            known = sum(len(self.held[topic]) for topic in self.clock)
            if len(self._by_position) < known:
                return None
        return self._by_position[min(self._by_position)]

    def _jumped(self, held: Held) -> None:
        first = min(self._by_position)
        assert self._by_position[first] is held
        del self._by_position[first]
        self._position = sum(self.clock.values())

    def _reindex(self) -> None:
        self._position = sum(self.clock.values())
        self._by_position = {}
        self._tips = {}
        for topic in self.clock:
            for held in self.held[topic].values():
                self._index(held)


class VectorQueue(HoldBack):
    """A hold-back queue by clocks, for topics that are not all ordered together."""

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
        """Return a topic whose clock has not reached the event's entry, or is not known yet."""
        stamp = event.stamp
        assert stamp is not None
        for topic, count in stamp.entries.items():
            clock = self.clock.get(topic)
            if clock is None:
                if topic in self.joining:
                    return topic
            elif clock < count and topic != event.topic:
                return topic
        return None

    def _first(self) -> Held | None:
        joined = ((topic, self.held[topic]) for topic in self.clock)
        heads = [waiting[min(waiting)] for _, waiting in joined if waiting]
        if self.joining and any(self._waits_for_cut(head.event) for head in heads):
            return None  # Something of the topic that is being joined may come first.
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

    def _waits_for_cut(self, event: Event) -> bool:
        return event.stamp is not None and not self.joining.keys().isdisjoint(event.stamp.entries)

    def _jumped(self, held: Held) -> None:
        del held  # All clocks may have moved, not only its own.
        self._reindex()

    def _index(self, held: Held) -> None:
        self._to_check.append(held.event.topic)

    def _reindex(self) -> None:
        self._waiters = {}
        self._to_check = deque(self.clock)
