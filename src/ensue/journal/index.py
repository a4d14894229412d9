"""Where each event is in the log: eight bytes an event.

A topic's index is one array of offsets into the whole log, by slot. `HOLE` stands for a slot that
has no event, or none any more. Ten million events of one topic take 80 MB, and up to 6 % more for
room to grow.

What a segment changed is a range of slots for each topic, and the array over that range as it was
when the segment was sealed: this is what a sidecar holds. Putting the sidecars of all segments over
each other in their order gives the index again. An event that is dropped from the front moves
`first` and widens no range, so that a log which drops one old event for each new one does not write
everything in between, again and again.

Limits: `HOLES_MAX` slots between an event and those that the topic has, beyond which it is refused
(`LimitReached`). Topics have no limit of their own: each costs about 300 bytes, for ever.
"""

from array import array
from collections.abc import Mapping

import msgspec

from ensue.core.errors import LimitReached
from ensue.journal.format import EVENT, SLOT_MAX, Batch, Part, no_event_key, offsets_of

__all__ = ["HOLE", "HOLES_MAX", "EventIndex", "Plan", "Ranges", "TopicIndex"]

HOLE = -1
HOLES_MAX = 1 << 20
"""Of 8 bytes each, so that no single event can ask for more than 8 MB."""
_COMPACT_MIN = 1024
"""Slots in front of the first event that are not worth moving the rest for."""
Ranges = dict[str, tuple[int, int]]
"""By topic: from this slot up to, not including, that one."""


def _holes(count: int) -> "array[int]":
    return array("q", (HOLE,)) * count


class TopicIndex:
    """The index of one topic.

    `first` is its lowest slot with an event, or `next` if there is none; `next` is the slot after
    the highest that ever had one. The array holds the slots from `start` up to `next`. `reported`
    is what `next` was when changes were taken last.
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
        """Return where the event of a slot is, or `HOLE`."""
        return self.offsets[slot - self.start] if self.first <= slot < self.next else HOLE

    def put(self, slot: int, offset: int) -> None:
        """Say where the event of a slot is."""
        if slot == self.next:
            # Not noted as changed: everything from `reported` on is new anyway.
            self.offsets.append(offset)
            self.next = slot + 1
        else:
            self._put_elsewhere(slot, offset)

    def drop(self, slot: int) -> bool:
        """Forget the event of a slot; tell whether there was one."""
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

    def forget(self, start: int, stop: int, before: int) -> None:
        """Forget the events of a range of slots that are before a place of the log."""
        start, stop = max(start, self.first), min(stop, self.next)
        if start >= stop:
            return
        place = slice(start - self.start, stop - self.start)
        offsets = self.offsets[place]
        if max(offsets) < before:  # All of them, as when a topic is written in order.
            self.offsets[place] = _holes(stop - start)
        else:
            self.offsets[place] = array("q", [each if each >= before else HOLE for each in offsets])
        self._skip_holes()

    def take_change(self) -> Part | None:
        """Return what changed since this was asked last."""
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
        """Put what a segment changed over what is here; what is before `floor` is there no more."""
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
            # The front was dropped, which no range tells of.
            self.offsets[self.first - self.start : part.first - self.start] = _holes(
                part.first - self.first
            )
        self._skip_holes()
        self.reported = self.next

    def reserve(self, following: int) -> None:
        """Know that slots up to this one, not including it, have been in use."""
        if following <= self.next:
            return
        if self.first == self.next:
            self.start = self.first = self.next = following
            self.offsets = array("q")
        else:
            self._cover(self.start, following)
        self.reported = self.next

    def _put_elsewhere(self, slot: int, offset: int) -> None:
        """Put an event before the last one, or leave a gap behind it."""
        empty = self.first == self.next
        front = self.first
        self._cover(slot, slot + 1)
        self.offsets[slot - self.start] = offset
        self._change(slot, slot + 1)
        if slot < front:
            # From now on, what was dropped in between is reported as holes.
            self._change(slot, front)
            self.first = slot
        elif empty:
            self.first = slot

    def _cover(self, start: int, stop: int) -> None:
        """Make the array reach over a range of slots."""
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
        # Moving the rest to the front is put off until it halves the array, so that it costs
        # each event a constant.
        if at >= _COMPACT_MIN and at * 2 >= size:
            del offsets[:at]
            self.start = self.first


class Plan(msgspec.Struct, frozen=True, gc=False):
    """What one batch changes."""

    puts: list[tuple[TopicIndex, int]]
    drops: list[tuple[TopicIndex, int]]
    """Of other slots than `puts`: a batch has each key once."""
    fresh: dict[str, TopicIndex]
    """Topics that were not known before."""
    others: Batch
    """What is no event."""


def _fresh(key: str, slot: int) -> TopicIndex:
    """Return the index of a topic that gets its first event, anywhere."""
    if not 0 <= slot <= SLOT_MAX:
        raise no_event_key(key)
    return TopicIndex(slot)


def _check_near(key: str, slot: int, index: TopicIndex) -> None:
    """Refuse a slot for which the array would grow too much."""
    if slot < 0:
        raise no_event_key(key)
    if not index.first - HOLES_MAX <= slot <= index.next + HOLES_MAX:
        raise LimitReached(
            f"{key!r} is more than {HOLES_MAX} slots away from those in use, {index.first} to "
            f"{index.next}",
            limit="HOLES_MAX",
            value=HOLES_MAX,
        )


class EventIndex:
    """The index of all topics."""

    __slots__ = ("topics",)

    def __init__(self) -> None:
        self.topics: dict[str, TopicIndex] = {}

    def plan(self, batch: Batch, *, limited: bool = True) -> Plan:
        """Return what a batch changes, having changed nothing.

        Refuses what is no key of an event (`BadInput`) or, if it is `limited`, too far away
        (`LimitReached`), and values that could not be read again (`TypeError`).
        """
        puts: list[tuple[TopicIndex, int]] = []
        drops: list[tuple[TopicIndex, int]] = []
        fresh: dict[str, TopicIndex] = {}
        others: Batch = {}
        topics = self.topics
        # Every record comes through here, so what calls would only name is spelled out.
        for key, value in batch.items():
            if value.__class__ is not bytes and value is not None:
                raise TypeError(f"the value of {key!r} is {type(value).__name__} and not bytes")
            if key[:6] != EVENT:
                others[key] = value
                continue
            try:
                _, text, topic = key.split("/", 2)
                slot = int(text)
            except ValueError:
                raise no_event_key(key) from None
            if str(slot) != text:
                raise no_event_key(key)
            index = topics.get(topic) or fresh.get(topic)
            if value is None:
                if index is not None:
                    drops.append((index, slot))
                continue
            if index is None:
                index = fresh[topic] = _fresh(key, slot)
            elif limited and not index.first <= slot <= index.next + HOLES_MAX:
                _check_near(key, slot, index)
            puts.append((index, slot))
        return Plan(puts, drops, fresh, others)

    def apply(self, plan: Plan, offset: int) -> None:
        """Change what was planned; the batch is at this offset."""
        if plan.fresh:
            self.topics.update(plan.fresh)
        for index, slot in plan.puts:
            if slot == index.next:  # As `TopicIndex.put` does: spelled out for the same reason.
                index.offsets.append(offset)
                index.next = slot + 1
            else:
                index.put(slot, offset)
        for index, slot in plan.drops:
            index.drop(slot)

    def get(self, topic: str, slot: int) -> int:
        """Return where an event is, or `HOLE`."""
        index = self.topics.get(topic)
        return HOLE if index is None else index.get(slot)

    def next_slots(self) -> dict[str, int]:
        """Return the slot after the last of each topic."""
        return {topic: index.next for topic, index in self.topics.items()}

    def take_changes(self) -> dict[str, Part]:
        """Return what changed since this was asked last, by topic."""
        return {
            topic: part
            for topic, index in self.topics.items()
            if (part := index.take_change()) is not None
        }

    def restore(self, parts: Mapping[str, Part], *, floor: int) -> None:
        """Put what a segment changed over what is here; what is before `floor` is there no more."""
        for topic, part in parts.items():
            index = self.topics.get(topic)
            if index is None:
                index = self.topics[topic] = TopicIndex(part.start if part.offsets else part.next)
            index.restore(part, floor=floor)

    def reserve(self, next_slots: Mapping[str, int]) -> None:
        """Know of topics whose events may be gone."""
        for topic, following in next_slots.items():
            index = self.topics.get(topic)
            if index is None:
                self.topics[topic] = TopicIndex(following)
            else:
                index.reserve(following)

    def firsts_without(self, ranges: Ranges, before: int) -> dict[str, int]:
        """Return the slot behind the highest that would be forgotten, of each topic that has one.

        A slot that was filled late may lie further on in the log than those behind it. It is below
        that slot and stays, but what begins there has no gap.
        """
        return {
            topic: highest + 1
            for topic, (start, stop) in ranges.items()
            if (highest := self.topics[topic].highest(start, stop, before)) != HOLE
        }

    def forget(self, ranges: Ranges, before: int) -> None:
        """Forget what is before a place of the log, in these ranges of slots."""
        for topic, (start, stop) in ranges.items():
            self.topics[topic].forget(start, stop, before)
