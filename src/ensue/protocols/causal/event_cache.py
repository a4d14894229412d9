"""Events that a node keeps for whoever lacks them: the latest it delivered or published.

Limit: `retained_max` events; the oldest go first, but never one of this node's own that is not out yet: those are kept besides.
"""

from collections import OrderedDict
from collections.abc import Callable

from ensue.protocols.hypercube.frames import Item

__all__ = ["Store"]

Key = tuple[str, int, int]
"""Topic, source and number."""


class Store:
    """Kept events."""

    __slots__ = ("_items", "_needed", "_retained_max", "_still_needed", "dropped")

    def __init__(self, retained_max: int, still_needed: Callable[[Key], bool]) -> None:
        self._items: OrderedDict[Key, tuple[Item, int]] = OrderedDict()
        self._needed: OrderedDict[Key, tuple[Item, int]] = OrderedDict()
        """What would have had to go and was needed when last looked at."""
        self._retained_max = retained_max
        self._still_needed = still_needed
        self.dropped: list[Key] = []
        """What had to go, to be taken by whoever keeps the records."""

    def add(self, key: Key, item: Item, *, now_ns: int) -> None:
        """Keep an event."""
        self._items[key] = (item, now_ns)
        if len(self._items) > self._retained_max:
            self._retire(self._items)
        # Two for each that may have come: they get fewer as soon as they are needed no more.
        for _ in range(min(2, len(self._needed))):
            self._retire(self._needed)

    def get(self, key: Key) -> tuple[Item, int] | None:
        """Return an event and since when it is here, if it is kept."""
        return self._items.get(key) or self._needed.get(key)

    def __len__(self) -> int:
        return len(self._items) + len(self._needed)

    def _retire(self, items: OrderedDict[Key, tuple[Item, int]]) -> None:
        """Let the oldest of some go, unless it is needed."""
        oldest, kept = items.popitem(last=False)
        if self._still_needed(oldest):
            self._needed[oldest] = kept
        else:
            self.dropped.append(oldest)
