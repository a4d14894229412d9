"""Find the slot of an event that was put out before a restart.

A node remembers the slots of recent events in memory. After a restart a publisher may ask again about an event that is out, and the log is the
only witness of its slot. The log is read backwards from where it ended, once: what was passed is remembered.

Limits: `SLOTS_MAX` slots of a topic are read, and `TOPICS_MAX` topics remembered, the last that were asked for. An event further back has no slot
here.
"""

from collections import OrderedDict
from collections.abc import Callable

from ensue.event import Event

__all__ = ["SlotSearch"]

SLOTS_MAX = 8_192
TOPICS_MAX = 8


class _Passed:
    """The slots of one topic that were read, from some slot on."""

    __slots__ = ("lowest", "slots", "stop")

    def __init__(self, end: int) -> None:
        self.lowest = end
        """The last slot that was read."""
        self.stop = end - SLOTS_MAX
        self.slots: dict[str, dict[int, int]] = {}
        """By publisher: the numbers of its events, falling, and their slots."""


class SlotSearch:
    """Remembers what was read of logs."""

    def __init__(self) -> None:
        self._topics: OrderedDict[str, _Passed] = OrderedDict()

    def find(
        self, event: Event, *, first: int, end: int, read: Callable[[int], Event | None]
    ) -> int:
        """Return the slot of an event among `first` to `end`, which `read` reads; 0: it is not known."""
        passed = self._topics.get(event.topic)
        if passed is None:
            passed = self._topics[event.topic] = _Passed(end)
            if len(self._topics) > TOPICS_MAX:
                self._topics.popitem(last=False)
        self._topics.move_to_end(event.topic)
        own = passed.slots.setdefault(event.publisher, {})
        lowest = next(reversed(own), None)
        # A publisher's events are numbered as they follow each other.
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
