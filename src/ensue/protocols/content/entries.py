"""Advertisements and subscriptions by name, indexed or layered over others.

`IndexedEntries` finds the entries that match an event by an index. `LayeredEntries` reads through
to entries below it and keeps its own changes to itself; it tests those one by one.

With a *hop*, a neighbor or a client, `match` and `overlapping` return only the entries that came
from there; entries indexed by hop need one.
"""

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Generic, TypeVar

import msgspec

from ensue.protocols.content.filters.filter import Filter
from ensue.protocols.content.filters.index import MatchIndex
from ensue.protocols.content.filters.parser import parse
from ensue.protocols.content.filters.spaces import Value

__all__ = ["Entries", "Entry", "IndexedEntries", "LayeredEntries", "LayeredMap", "LayeredRecord"]

T = TypeVar("T")


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An advertisement or a subscription, and where it came from."""

    where: str
    hop: str


class LayeredRecord(msgspec.Struct, Generic[T], frozen=True, array_like=True):
    """The changes of a layer in one map, as they are persisted."""

    added: dict[str, T]
    removed: list[str]


class IndexedEntries(dict[str, Entry]):
    """Entries with one index, or with one for each hop. Change them by `put` and `remove`."""

    __slots__ = ("_by_hop", "_indexes")

    def __init__(self, *, by_hop: bool = False) -> None:
        super().__init__()
        self._by_hop = by_hop
        self._indexes: dict[str, MatchIndex] = {}
        """By hop, or under an empty string for all."""

    def put(self, name: str, entry: Entry) -> None:
        """Add an entry."""
        self[name] = entry
        hop = entry.hop if self._by_hop else ""
        self._indexes.setdefault(hop, MatchIndex()).add(name, parse(entry.where))

    def remove(self, name: str) -> None:
        """Remove an entry."""
        entry = self.pop(name)
        hop = entry.hop if self._by_hop else ""
        index = self._indexes[hop]
        index.remove(name)
        if not len(index):
            del self._indexes[hop]

    def match(self, event: Mapping[str, Value], hop: str = "") -> list[str]:
        """Return the entries that an event matches."""
        index = self._indexes.get(hop)
        return [] if index is None else index.match(event)

    def overlapping(self, wanted: Filter, hop: str = "") -> list[str]:
        """Return the entries whose filters overlap another."""
        index = self._indexes.get(hop)
        return [] if index is None else index.overlapping(wanted)

    def overlaps(self, wanted: Filter, hop: str = "") -> bool:
        """Return whether there is an entry whose filter overlaps another."""
        index = self._indexes.get(hop)
        return index is not None and index.overlaps(wanted)


class LayeredMap(MutableMapping[str, T], Generic[T]):
    """A map over another, which it does not change."""

    __slots__ = ("_base", "added", "removed")

    def __init__(self, base: MutableMapping[str, T]) -> None:
        self._base = base
        self.added: dict[str, T] = {}
        self.removed: set[str] = set()

    def record(self) -> LayeredRecord[T]:
        """Return the changes, as they are persisted."""
        return LayeredRecord(dict(self.added), sorted(self.removed))

    def restore(self, record: LayeredRecord[T]) -> None:
        """Restore the changes that were persisted."""
        self.added, self.removed = dict(record.added), set(record.removed)

    def __getitem__(self, key: str) -> T:
        if key in self.added:
            return self.added[key]
        if key in self.removed:
            raise KeyError(key)
        return self._base[key]

    def __setitem__(self, key: str, value: T) -> None:
        self.added[key] = value

    def __delitem__(self, key: str) -> None:
        if key not in self:
            raise KeyError(key)
        self.added.pop(key, None)
        self.removed.add(key)

    def __contains__(self, key: object) -> bool:
        return key in self.added or (key not in self.removed and key in self._base)

    def __iter__(self) -> Iterator[str]:
        for key in self._base:
            if key not in self.removed and key not in self.added:
                yield key
        yield from self.added

    def __len__(self) -> int:
        hidden = sum(key in self._base for key in self.removed | self.added.keys())
        return len(self._base) - hidden + len(self.added)

    def unchanged(self, keys: list[str]) -> list[str]:
        """Return the keys of the base that are neither removed nor replaced."""
        return [key for key in keys if key not in self.removed and key not in self.added]


class LayeredEntries(LayeredMap[Entry]):
    """Entries over others, which they do not change."""

    __slots__ = ("_below",)

    def __init__(self, base: "Entries") -> None:
        super().__init__(base)
        self._below = base

    def put(self, name: str, entry: Entry) -> None:
        """Add an entry."""
        self[name] = entry

    def remove(self, name: str) -> None:
        """Remove an entry."""
        del self[name]

    def match(self, event: Mapping[str, Value], hop: str = "") -> list[str]:
        """Return the entries that an event matches."""
        found = self.unchanged(self._below.match(event, hop))
        return found + [name for name, where in self._added(hop) if where.matches(event)]

    def overlapping(self, wanted: Filter, hop: str = "") -> list[str]:
        """Return the entries whose filters overlap another."""
        found = self.unchanged(self._below.overlapping(wanted, hop))
        return found + [name for name, where in self._added(hop) if where.overlaps(wanted)]

    def overlaps(self, wanted: Filter, hop: str = "") -> bool:
        """Return whether there is an entry whose filter overlaps another."""
        if any(where.overlaps(wanted) for _, where in self._added(hop)):
            return True
        if not self.added and not self.removed:
            return self._below.overlaps(wanted, hop)
        return bool(self.unchanged(self._below.overlapping(wanted, hop)))

    def _added(self, hop: str) -> Iterator[tuple[str, Filter]]:
        for name, entry in self.added.items():
            if hop in ("", entry.hop):
                yield name, parse(entry.where)


Entries = IndexedEntries | LayeredEntries
"""Entries of one kind."""
