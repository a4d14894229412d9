"""The event cache: the latest events of a node, kept for peers that lack them.

Limit: `retained_max` events, oldest evicted first. Unsettled events of this node are kept besides.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from ensue.protocols.causal.frames import Item

__all__ = ["Cached", "EventCache", "Key"]

Key = tuple[str, int, int]
"""Topic, source and number."""


class Cached(NamedTuple):
    """A cached event."""

    item: Item
    since_ns: int
    """When it was added."""
    place: int
    """How many events were added before it: events come after their predecessors."""


class EventCache:
    """Cached events, oldest first."""

    __slots__ = ("_added", "_items", "_needed", "_retained_max", "_still_needed", "dropped")

    def __init__(self, retained_max: int, still_needed: Callable[[Key], bool]) -> None:
        self._added = 0
        self._items: OrderedDict[Key, Cached] = OrderedDict()
        self._needed: OrderedDict[Key, Cached] = OrderedDict()
        """Events over the limit that were still needed at the last check."""
        self._retained_max = retained_max
        self._still_needed = still_needed
        self.dropped: list[Key] = []
        """Keys of evicted events; the node drains this."""

    def add(self, key: Key, item: Item, *, now_ns: int) -> None:
        """Cache an event."""
        self._items[key] = Cached(item, now_ns, self._added)
        self._added += 1
        if len(self._items) > self._retained_max:
            self._retire(self._items)
        # Two checks per insertion, so the excess shrinks once events are no longer needed.
        for _ in range(min(2, len(self._needed))):
            self._retire(self._needed)

    def get(self, key: Key) -> Cached | None:
        """Return an event, if it is cached."""
        return self._items.get(key) or self._needed.get(key)

    def __len__(self) -> int:
        return len(self._items) + len(self._needed)

    def _retire(self, items: OrderedDict[Key, Cached]) -> None:
        """Evict the oldest event, unless it is still needed."""
        oldest, kept = items.popitem(last=False)
        if self._still_needed(oldest):
            self._needed[oldest] = kept
        else:
            self.dropped.append(oldest)
