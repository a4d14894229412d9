"""A search for the slot of an event that was published before a restart.

A node persists the slots of events that their publishers have not settled
(`ensue.protocols.total.slots`). This search is for the rest: records that an earlier version wrote
without slots, and late copies of settled requests, whose answers change nothing. The log is read
backwards from its end, once: what was read is remembered.

Limits: `SLOTS_MAX` slots of a topic are read, and the last `TOPICS_MAX` topics remembered. The slot
of an event further back is not found.
"""

from collections import OrderedDict
from collections.abc import Callable

from ensue.core.event import Event

__all__ = ["SlotSearch"]

SLOTS_MAX = 8_192
TOPICS_MAX = 8


class _Passed:
    """The slots of one topic that were read."""

    __slots__ = ("lowest", "slots", "stop")

    def __init__(self, end: int) -> None:
        self.lowest = end
        """The lowest slot that was read."""
        self.stop = end - SLOTS_MAX
        self.slots: dict[str, dict[int, int]] = {}
        """Publisher to the numbers of its events, falling, to their slots."""


class SlotSearch:
    """The search, and what it has read of each log."""

    def __init__(self) -> None:
        self._topics: OrderedDict[str, _Passed] = OrderedDict()

    def find(
        self, event: Event, *, first: int, end: int, read: Callable[[int], Event | None]
    ) -> int:
        """Return the slot of an event among `first` to `end`, which `read` reads, or 0."""
        passed = self._topics.get(event.topic)
        if passed is None:
            passed = self._topics[event.topic] = _Passed(end)
            if len(self._topics) > TOPICS_MAX:
                self._topics.popitem(last=False)
        self._topics.move_to_end(event.topic)
        own = passed.slots.setdefault(event.publisher, {})
        lowest = next(reversed(own), None)
        # A publisher's event numbers rise with their slots.
        while lowest is None or lowest > event.publisher_seq:
            slot = passed.lowest - 1
            if slot < max(first, passed.stop):
                break
            passed.lowest = slot
            found = read(slot)
            if found is None or found.void:
                continue
            passed.slots.setdefault(found.publisher, {})[found.publisher_seq] = slot
            if found.publisher == event.publisher:
                lowest = found.publisher_seq
        return own.get(event.publisher_seq, 0)
