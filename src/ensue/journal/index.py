"""The index of events: the offset of each event in the log, eight bytes an event.

A topic's index is one array of offsets, by slot. `HOLE` marks a slot without an event. Ten million
events of one topic take 80 MB, and up to 6 % more for growth.

A sidecar holds the changes of one segment: for each topic, a range of slots and their offsets when
the segment was sealed. Applying all sidecars in order rebuilds the index. Dropping the first event
of a topic moves `first` and widens no range. So a log that drops one old event for each new one
does not write all events in between each time.

Limits: an event may be at most `HOLES_MAX` slots away from those of its topic (`LimitReached`). The
number of topics is not limited; each costs about 300 bytes, permanently.
"""

from array import array
from collections.abc import Mapping

import msgspec

from ensue.core.errors import LimitReached
from ensue.journal.format import EVENT, SLOT_MAX, Batch, Part, invalid_event_key, offsets_of

__all__ = ["HOLE", "HOLES_MAX", "EventIndex", "Plan", "Ranges", "TopicIndex"]

HOLE = -1
HOLES_MAX = 1 << 20
"""At 8 bytes each, one event allocates at most 8 MB."""
_COMPACT_MIN = 1024
"""Unused slots before the first event that trigger compaction."""
Ranges = dict[str, tuple[int, int]]
"""By topic: the first slot, and the slot after the last."""


def _holes(count: int) -> "array[int]":
    return array("q", (HOLE,)) * count


class TopicIndex:
    """The index of one topic.

    `first` is the lowest slot with an event, or `next` if there is none; `next` is the slot after
    the highest that ever had one. The array covers the slots from `start` up to `next`. `reported`
    is the value of `next` at the last `take_change`.
    """

    __slots__ = (
        "changed_from",
        "changed_to",
        "first",
        "moved",
        "next",
        "offsets",
        "reported",
        "start",
    )

    def __init__(self, slot: int) -> None:
        self.start = self.first = self.next = self.reported = slot
        self.offsets = array("q")
        self.moved = False
        self.changed_from = SLOT_MAX
        self.changed_to = 0

    def get(self, slot: int) -> int:
        """Return the offset of a slot's event, or `HOLE`."""
        return self.offsets[slot - self.start] if self.first <= slot < self.next else HOLE

    def put(self, slot: int, offset: int) -> None:
        """Set the offset of a slot's event."""
        if slot == self.next:
            # No `_change`: `take_change` includes everything from `reported` on.
            self.offsets.append(offset)
            self.next = slot + 1
        else:
            self._put_out_of_order(slot, offset)

    def drop(self, slot: int) -> bool:
        """Remove the event of a slot; return whether there was one."""
        if self.get(slot) == HOLE:
            return False
        self.offsets[slot - self.start] = HOLE
        if slot == self.first:
            self.moved = True
            self._skip_holes()
        else:
            self._change(slot, slot + 1)
        return True

    def highest(self, start: int, stop: int, before: int) -> int:
        """Return the highest slot of a range with an event before an offset, or `HOLE`."""
        for slot in range(min(stop, self.next) - 1, max(start, self.first) - 1, -1):
            if HOLE < self.offsets[slot - self.start] < before:
                return slot
        return HOLE

    def remove_before(self, start: int, stop: int, before: int) -> None:
        """Remove the events of a range of slots that are before an offset of the log."""
        start, stop = max(start, self.first), min(stop, self.next)
        if start >= stop:
            return
        place = slice(start - self.start, stop - self.start)
        offsets = self.offsets[place]
        if max(offsets) < before:  # All of them, as in a topic written in slot order.
            self.offsets[place] = _holes(stop - start)
        else:
            self.offsets[place] = array("q", [each if each >= before else HOLE for each in offsets])
        self._skip_holes()

    def take_change(self) -> Part | None:
        """Return the changes since the last call; None if there are none."""
        if self.next > self.reported:
            self._change(self.reported, self.next)
        elif not self.moved and self.changed_from >= self.changed_to:
            return None
        start = stop = self.first
        if self.changed_from < self.changed_to:
            start = max(self.changed_from, self.first)
            stop = max(self.changed_to, start)
        offsets = self.offsets[start - self.start : stop - self.start]
        self.changed_from, self.changed_to, self.moved = SLOT_MAX, 0, False
        self.reported = self.next
        return Part(self.first, self.next, start, offsets.tobytes())

    def restore(self, part: Part, *, floor: int) -> None:
        """Apply the changes of a segment; events before offset `floor` were dropped."""
        offsets = offsets_of(part)
        if offsets:
            if min(offsets) < floor:
                offsets = array("q", [each if each >= floor else HOLE for each in offsets])
            self._cover(part.start, part.start + len(offsets))
            at = part.start - self.start
            self.offsets[at : at + len(offsets)] = offsets
            self.first = min(self.first, part.start)
        self.reserve(part.next)
        if part.first > self.first:
            # Events dropped from the front are in no range.
            self.offsets[self.first - self.start : part.first - self.start] = _holes(
                part.first - self.first
            )
        self._skip_holes()
        self.reported = self.next

    def reserve(self, following: int) -> None:
        """Mark the slots before this one as used."""
        if following <= self.next:
            return
        if self.first == self.next:
            self.start = self.first = self.next = following
            self.offsets = array("q")
        else:
            self._cover(self.start, following)
        self.reported = self.next

    def _put_out_of_order(self, slot: int, offset: int) -> None:
        """Set the offset of a slot that is not the next one."""
        empty = self.first == self.next
        front = self.first
        self._cover(slot, slot + 1)
        self.offsets[slot - self.start] = offset
        self._change(slot, slot + 1)
        if slot < front:
            # The slots dropped in between become holes of the range.
            self._change(slot, front)
            self.first = slot
        elif empty:
            self.first = slot

    def _cover(self, start: int, stop: int) -> None:
        """Extend the array to cover a range of slots."""
        if start < self.start:
            self.offsets = _holes(self.start - start) + self.offsets
            self.start = start
        if stop > self.next:
            self.offsets.extend(_holes(stop - self.next))
            self.next = stop

    def _change(self, start: int, stop: int) -> None:
        self.changed_from = min(self.changed_from, start)
        self.changed_to = max(self.changed_to, stop)

    def _skip_holes(self) -> None:
        offsets, at = self.offsets, self.first - self.start
        size = len(offsets)
        while at < size and offsets[at] == HOLE:
            at += 1
        self.first = self.start + at
        # Compact only when that halves the array: the cost per event stays constant.
        if at >= _COMPACT_MIN and at * 2 >= size:
            del offsets[:at]
            self.start = self.first


class Plan(msgspec.Struct, frozen=True, gc=False):
    """The changes of one batch."""

    puts: list[tuple[TopicIndex, int]]
    drops: list[tuple[TopicIndex, int]]
    """Never slots of `puts`: a batch has each key once."""
    new_topics: dict[str, TopicIndex]
    records: Batch
    """The writes that are not events."""


def _new_topic(key: str, slot: int) -> TopicIndex:
    """Return the index of a topic whose first event has this slot."""
    if not 0 <= slot <= SLOT_MAX:
        raise invalid_event_key(key)
    return TopicIndex(slot)


def _check_distance(key: str, slot: int, index: TopicIndex) -> None:
    """Raise if a slot is so far away that the array would grow too much."""
    if slot < 0:
        raise invalid_event_key(key)
    if not index.first - HOLES_MAX <= slot <= index.next + HOLES_MAX:
        raise LimitReached(
            f"{key!r} is more than {HOLES_MAX} slots away from the topic's slots, {index.first} "
            f"to {index.next}",
            limit="HOLES_MAX",
            value=HOLES_MAX,
        )


class EventIndex:
    """The index of all topics."""

    __slots__ = ("topics",)

    def __init__(self) -> None:
        self.topics: dict[str, TopicIndex] = {}

    def plan(self, batch: Batch, *, limited: bool = True) -> Plan:
        """Return the changes of a batch, without applying them.

        Raises `BadInput` for a malformed event key, `TypeError` for a value that is not bytes and,
        if `limited`, `LimitReached` for a slot that is too far away.
        """
        puts: list[tuple[TopicIndex, int]] = []
        drops: list[tuple[TopicIndex, int]] = []
        new_topics: dict[str, TopicIndex] = {}
        records: Batch = {}
        topics = self.topics
        # A hot loop: every write passes here, so small helpers are inlined.
        for key, value in batch.items():
            if value.__class__ is not bytes and value is not None:
                raise TypeError(f"the value of {key!r} must be bytes, got {type(value).__name__}")
            if key[:6] != EVENT:
                records[key] = value
                continue
            try:
                _, text, topic = key.split("/", 2)
                slot = int(text)
            except ValueError:
                raise invalid_event_key(key) from None
            if str(slot) != text:
                raise invalid_event_key(key)
            index = topics.get(topic) or new_topics.get(topic)
            if value is None:
                if index is not None:
                    drops.append((index, slot))
                continue
            if index is None:
                index = new_topics[topic] = _new_topic(key, slot)
            elif limited and not index.first <= slot <= index.next + HOLES_MAX:
                _check_distance(key, slot, index)
            puts.append((index, slot))
        return Plan(puts, drops, new_topics, records)

    def apply(self, plan: Plan, offset: int) -> None:
        """Apply the changes of a batch at an offset."""
        if plan.new_topics:
            self.topics.update(plan.new_topics)
        for index, slot in plan.puts:
            if slot == index.next:  # `TopicIndex.put`, inlined.
                index.offsets.append(offset)
                index.next = slot + 1
            else:
                index.put(slot, offset)
        for index, slot in plan.drops:
            index.drop(slot)

    def get(self, topic: str, slot: int) -> int:
        """Return the offset of an event, or `HOLE`."""
        index = self.topics.get(topic)
        return HOLE if index is None else index.get(slot)

    def next_slots(self) -> dict[str, int]:
        """Return the slot after the last one, by topic."""
        return {topic: index.next for topic, index in self.topics.items()}

    def take_changes(self) -> dict[str, Part]:
        """Return the changes since the last call, by topic."""
        return {
            topic: part
            for topic, index in self.topics.items()
            if (part := index.take_change()) is not None
        }

    def restore(self, parts: Mapping[str, Part], *, floor: int) -> None:
        """Apply the changes of a segment; events before offset `floor` were dropped."""
        for topic, part in parts.items():
            index = self.topics.get(topic)
            if index is None:
                index = self.topics[topic] = TopicIndex(part.start if part.offsets else part.next)
            index.restore(part, floor=floor)

    def reserve(self, next_slots: Mapping[str, int]) -> None:
        """Mark slots as used, also of topics without events."""
        for topic, following in next_slots.items():
            index = self.topics.get(topic)
            if index is None:
                self.topics[topic] = TopicIndex(following)
            else:
                index.reserve(following)

    def firsts_after(self, ranges: Ranges, before: int) -> dict[str, int]:
        """Return where each topic begins if events before an offset are removed.

        That is the slot after the highest removed one, of topics that lose events. A slot that was
        filled late may be later in the log than the slots after it. It is below that slot and
        stays, but from there on the topic has no gap.
        """
        return {
            topic: highest + 1
            for topic, (start, stop) in ranges.items()
            if (highest := self.topics[topic].highest(start, stop, before)) != HOLE
        }

    def remove_before(self, ranges: Ranges, before: int) -> None:
        """Remove events before an offset of the log, in these ranges of slots."""
        for topic, (start, stop) in ranges.items():
            self.topics[topic].remove_before(start, stop, before)
