"""An index that finds which of many filters match an event.

Theory of operation. Every box of every filter has a slot, a number. For each attribute that any box
names, the line of values is divided into at most `LEAVES` buckets, at places where boxes begin and
end, so that each bucket has about as many of them. A number with one bit a slot has, for a bucket,
the boxes that could hold a value that lies there; it is combined from a binary tree of such
numbers, in which a range of buckets is a few nodes, and cached until something changes. An event
selects a bucket for each of its attributes; one `and` of whole machine words for each attribute
leaves the slots that could match, and these few are tested exactly. Filters that overlap another
are found the same way, with all buckets that its own spaces touch. So an event costs a few
operations on numbers of n bits, and exact tests for little more than what matches; a loop costs n
exact tests.

Changes are batched: the newest `PENDING_MAX` boxes are tested one by one, then added to the trees
together. Of those that require a single value of an attribute, only the ones with the value at hand
are tested. Removed ones are masked out. When there are twice as many boxes as when the buckets were
chosen, or half of the slots are dead, everything is rebuilt; each change pays a constant share of
that. The next event builds the trees; dead slots are dropped even without events.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping

from ensue.protocols.content.filters.filter import Box, Filter, inside, touch
from ensue.protocols.content.filters.spaces import Cut, Space, Value, cut_before

__all__ = ["MatchIndex"]

LEAVES = 256
PENDING_MAX = 128
_OCCUPIED = re.compile(rb"[^\x00]", re.DOTALL)
_BITS = [tuple(bit for bit in range(8) if byte >> bit & 1) for byte in range(256)]


class MatchIndex:
    """Filters by key; `match` returns matching keys in the order they were added."""

    __slots__ = (
        "_boxes",
        "_built",
        "_columns",
        "_filters",
        "_in_use",
        "_indexed",
        "_live",
        "_new",
        "_single",
        "_slots",
    )

    def __init__(self) -> None:
        self._filters: dict[str, Filter] = {}
        self._slots: dict[str, range] = {}
        """The slots of a filter's boxes."""
        self._boxes: list[tuple[str, Box] | None] = []
        """The box of each slot; None if it was removed."""
        self._in_use = 0
        """How many slots have a box."""
        self._live = 0
        """One bit for each slot in the trees that is in use."""
        self._indexed = 0
        """How many slots are in the trees; the others are pending."""
        self._new: dict[int, None] = {}
        """The slots that are pending, in use, and require no single value."""
        self._single: dict[str, dict[Cut, dict[int, None]]] = {}
        """By attribute and single value that they require: the other slots that are pending."""
        self._built = 0
        """How many slots there were when the buckets were chosen."""
        self._columns: dict[str, _Column] = {}

    def __len__(self) -> int:
        return len(self._filters)

    def __contains__(self, key: str) -> bool:
        return key in self._filters

    def add(self, key: str, wanted: Filter) -> None:
        """Add a filter, or replace the one of the same key."""
        if key in self._filters:
            self.remove(key)
        first = len(self._boxes)
        self._filters[key] = wanted
        self._boxes.extend((key, box) for box in wanted.boxes)
        self._slots[key] = range(first, len(self._boxes))
        self._in_use += len(self._slots[key])
        self._add_new(self._slots[key])

    def remove(self, key: str) -> None:
        """Remove a filter, if it is there."""
        removed = self._filters.pop(key, None)
        if removed is None:
            return
        slots, boxes = self._slots.pop(key), removed.boxes
        self._in_use -= len(slots)
        if 2 * self._in_use + PENDING_MAX < len(self._boxes):
            self._compact()
            return
        for slot in slots:
            self._boxes[slot] = None
            if slot < self._indexed:
                self._live &= ~(1 << slot)
            else:
                self._remove_new(slot, boxes[slot - slots.start])

    def match(self, event: Mapping[str, Value]) -> list[str]:
        """Return the keys of the filters that an event matches."""
        if len(self._boxes) - self._indexed > PENDING_MAX:
            self._add_pending()
        found: dict[str, None] = {}
        for slot in self._candidates(event):
            held = self._boxes[slot]
            if held is not None and held[0] not in found and inside(held[1], event):
                found[held[0]] = None
        return list(found)

    def overlapping(self, wanted: Filter) -> list[str]:
        """Return the keys of the filters that could match an event which `wanted` matches."""
        if len(self._boxes) - self._indexed > PENDING_MAX:
            self._add_pending()
        found: dict[int, str] = {}
        for box in wanted.boxes:
            for slot in self._candidates_within(box):
                held = self._boxes[slot]
                if held is not None and slot not in found and touch(held[1], box):
                    found[slot] = held[0]
        return list(dict.fromkeys(found[slot] for slot in sorted(found)))

    def overlaps(self, wanted: Filter) -> bool:
        """Return whether there is a filter that could match an event which `wanted` matches."""
        if len(self._boxes) - self._indexed > PENDING_MAX:
            self._add_pending()
        return any(
            held is not None and touch(held[1], box)
            for box in wanted.boxes
            for held in map(self._boxes.__getitem__, self._candidates_within(box))
        )

    def _add_new(self, slots: Iterable[int]) -> None:
        """Add pending slots."""
        for slot in slots:
            held = self._boxes[slot]
            assert held is not None
            single = _single_of(held[1])
            if single is None:
                self._new[slot] = None
            else:
                name, value = single
                self._single.setdefault(name, {}).setdefault(value, {})[slot] = None

    def _remove_new(self, slot: int, box: Box) -> None:
        """Remove a pending slot."""
        single = _single_of(box)
        if single is None:
            del self._new[slot]
            return
        name, value = single
        by_value = self._single[name]
        del by_value[value][slot]
        if not by_value[value]:
            del by_value[value]
            if not by_value:
                del self._single[name]

    def _candidates_within(self, box: Box) -> Iterator[int]:
        possible = self._live
        for name, space in box:
            column = self._columns.get(name)
            if column is not None and possible:
                possible &= column.possible_within(space)
        yield from _slots_of(possible)
        yield from self._new
        for attribute, by_value in self._single.items():
            wanted = next((space for name, space in box if name == attribute), ())
            if _is_single(wanted):
                yield from by_value.get(wanted[0][0], ())
            else:
                for slots in by_value.values():
                    yield from slots

    def _candidates(self, event: Mapping[str, Value]) -> Iterator[int]:
        possible = self._live
        for name, column in self._columns.items():
            if not possible:
                break
            value = event.get(name)
            possible &= column.absent if value is None else column.possible(value)
        yield from _slots_of(possible)
        new: list[int] = []
        for name, by_value in self._single.items():
            value = event.get(name)
            if value is not None:
                new.extend(by_value.get(cut_before(value), ()))
        yield from sorted((*new, *self._new)) if new else self._new

    def _add_pending(self) -> None:
        if len(self._boxes) > 2 * self._built or 2 * self._in_use < len(self._boxes):
            self._rebuild()
            return
        self._index(range(self._indexed, len(self._boxes)))

    def _compact(self) -> None:
        """Drop dead slots; all slots in use become pending."""
        self._boxes = []
        for key, wanted in self._filters.items():
            first = len(self._boxes)
            self._boxes.extend((key, box) for box in wanted.boxes)
            self._slots[key] = range(first, len(self._boxes))
        self._built, self._indexed, self._live, self._columns = 0, 0, 0, {}
        self._new, self._single = {}, {}
        self._add_new(range(len(self._boxes)))

    def _rebuild(self) -> None:
        """Choose the buckets again, without dead slots."""
        self._compact()
        self._built = len(self._boxes)
        ends: dict[str, list[object]] = {}
        for held in self._boxes:
            assert held is not None
            for name, space in held[1]:
                ends.setdefault(name, []).extend(cut for span in space for cut in span)
        for name, cuts in ends.items():
            self._columns[name] = _Column(cuts)
        self._index(range(len(self._boxes)))

    def _index(self, slots: range) -> None:
        """Add slots to the trees."""
        constrained: dict[str, list[tuple[int, Space]]] = {name: [] for name in self._columns}
        live: list[int] = []
        for slot in slots:
            held = self._boxes[slot]
            if held is None:
                continue
            live.append(slot)
            for name, space in held[1]:
                constrained.setdefault(name, []).append((slot, space))
        added_slots = _bits(live)
        for name, entries in constrained.items():
            column = self._columns.get(name)
            if column is None:
                column = self._columns[name] = _Column(
                    [cut for _, space in entries for cut in _cuts(space)]
                )
                column.absent = self._live
            column.add(entries, added_slots)
        self._live |= added_slots
        self._indexed = slots.stop
        self._new, self._single = {}, {}


class _Column:
    """One attribute: its buckets, and the tree of slots that could match in each."""

    __slots__ = ("_ends", "_known", "_leaves", "_nodes", "absent")

    def __init__(self, cuts: Iterable[object]) -> None:
        distinct = sorted(set(cuts))  # type: ignore[type-var]
        step = max(1, len(distinct) / (LEAVES - 1))
        places = sorted({int(index * step) for index in range(min(LEAVES - 1, len(distinct)))})
        self._ends = [distinct[place] for place in places if place < len(distinct)]
        leaves = 1
        while leaves < len(self._ends) + 1:
            leaves *= 2
        self._leaves = leaves
        self._nodes = [0] * (2 * leaves)
        self._known: dict[int, int] = {}
        """By bucket used since the last change: the slots that could match there."""
        self.absent = 0
        """The slots that do not name this attribute."""

    def possible(self, value: Value) -> int:
        """Return the slots that could match an event with this value."""
        leaf = bisect_right(self._ends, cut_before(value))  # type: ignore[type-var]
        known = self._known.get(leaf)
        if known is None:
            known, node = self.absent, leaf + self._leaves
            while node:
                known |= self._nodes[node]
                node //= 2
            self._known[leaf] = known
        return known

    def possible_within(self, space: Space) -> int:
        """Return the slots that could match an event whose value lies in a space."""
        known = self.absent
        for low, high in space:
            first = bisect_right(self._ends, low)  # type: ignore[type-var]
            last = bisect_right(self._ends, high)  # type: ignore[type-var]
            for covering in self._between(first, last):
                node, above = covering, covering // 2
                while above:
                    known |= self._nodes[above]
                    above //= 2
                width = 1
                while node < 2 * self._leaves:
                    for below in self._nodes[node : node + width]:
                        known |= below
                    node, width = 2 * node, 2 * width
        return known

    def add(self, entries: list[tuple[int, Space]], added_slots: int) -> None:
        """Add slots with their spaces; `added_slots` are those of all columns."""
        self._known.clear()
        self.absent |= added_slots & ~_bits([slot for slot, _ in entries])
        added: dict[int, list[int]] = {}
        for slot, space in entries:
            for low, high in space:
                first = bisect_right(self._ends, low)  # type: ignore[type-var]
                last = bisect_right(self._ends, high)  # type: ignore[type-var]
                for node in self._between(first, last):
                    added.setdefault(node, []).append(slot)
        for node, slots in added.items():
            self._nodes[node] |= _bits(slots)

    def _between(self, first: int, last: int) -> Iterator[int]:
        """Yield the nodes that together are the buckets from the first to the last."""
        left, right = first + self._leaves, last + self._leaves + 1
        while left < right:
            if left & 1:
                yield left
                left += 1
            if right & 1:
                right -= 1
                yield right
            left //= 2
            right //= 2


def _is_single(space: Space) -> bool:
    """Return whether a space is one value."""
    return len(space) == 1 and space[0][0][:2] == space[0][1][:2]


def _single_of(box: Box) -> tuple[str, Cut] | None:
    """Return the first attribute of which a box requires a single value, and the value."""
    return next(((name, space[0][0]) for name, space in box if _is_single(space)), None)


def _slots_of(bits: int) -> Iterator[int]:
    """Yield the slots whose bits are set."""
    if bits:
        data = bits.to_bytes((bits.bit_length() + 7) // 8, "little")
        for place in _OCCUPIED.finditer(data):
            base = 8 * place.start()
            yield from (base + bit for bit in _BITS[data[place.start()]])


def _cuts(space: Space) -> Iterator[object]:
    for span in space:
        yield from span


def _bits(slots: list[int]) -> int:
    """Return the number with the bits of these slots."""
    if not slots:
        return 0
    data = bytearray(max(slots) // 8 + 1)
    for slot in slots:
        data[slot >> 3] |= 1 << (slot & 7)
    return int.from_bytes(data, "little")
