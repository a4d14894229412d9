"""The routing tables of a broker: who advertised what, who subscribed to what, and what was passed on.

Theory of operation. The *subscription routing table* (SRT, here `advertisements`) says for each advertisement from which
neighbour or client it came; the *publication routing table* (PRT, `subscriptions`) says the same of subscriptions. A
subscription is needed at a neighbour if an advertisement that overlaps it came from there. `passed` says for each neighbour which
subscriptions it was sent, and which it was not sent although it needs them, because one that it has covers them. `apply` makes one
change and returns what has to be passed on because of it:

* an advertisement goes to all other neighbours, and attracts to where it came from every stored subscription that is needed there
  now (D9: not only those that matched nothing before); an unadvertisement withdraws those that no longer are;
* a subscription goes to each neighbour that needs it, unless it is covered there; an unsubscription goes where the subscription went, behind
  the subscriptions that it had covered, so that no event is missed in between.

A change that finds what it wants already there changes nothing.

Whoever is covered is answered when what covers it is everywhere, which steps tell (`broker`). So subscriptions that do not come by steps can't cover: those of a
plan (`loose`), which is not answered, those that were answered ahead of brokers that are away (`partial`), and those of a serializable transaction until all brokers have committed it; nor can those that one withdraws which this broker has voted for (`settling`).

A *layer* is tables laid over others: it reads through to them and keeps its own changes to itself. A transaction works on one; so does
the check that it would do the same again.
"""

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Generic, TypeVar

import msgspec

from ensue.protocols.overlay.filters import Filter
from ensue.protocols.overlay.frames import (
    ADVERTISE,
    SUBSCRIBE,
    UNADVERTISE,
    UNSUBSCRIBE,
    Change,
)
from ensue.protocols.overlay.index import MatchIndex
from ensue.protocols.overlay.parsing import parse
from ensue.protocols.overlay.spaces import Value

__all__ = ["Entry", "Layer", "LayerRecord", "Outputs", "Tables", "TablesRecord"]

T = TypeVar("T")
Outputs = dict[str, list[Change]]
"""What is to be passed on, by neighbour."""


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An advertisement or a subscription, and from where it came."""

    where: str
    hop: str


class TablesRecord(msgspec.Struct, frozen=True, array_like=True):
    """Tables as they are persisted."""

    advertisements: dict[str, Entry]
    subscriptions: dict[str, Entry]
    passed: dict[str, dict[str, str]]
    loose: list[str] = []
    returning: dict[str, int] = {}


class OverlaidRecord(msgspec.Struct, Generic[T], frozen=True, array_like=True):
    """What a layer changed in one mapping."""

    added: dict[str, T]
    removed: list[str]


class LayerRecord(msgspec.Struct, frozen=True, array_like=True):
    """A layer as it is persisted."""

    advertisements: OverlaidRecord[Entry]
    subscriptions: OverlaidRecord[Entry]
    passed: dict[str, OverlaidRecord[str]]


class Tables:
    """SRT, PRT and what was passed on."""

    def __init__(self, neighbours: Sequence[str], record: TablesRecord | None = None) -> None:
        self.neighbours = tuple(neighbours)
        self.advertisements: MutableMapping[str, Entry] = {}
        self.subscriptions: MutableMapping[str, Entry] = {}
        self.passed: dict[str, MutableMapping[str, str]] = {each: {} for each in neighbours}
        """By neighbour and subscription: empty if it was sent, else what covers it there."""
        self.loose: set[str] = set()
        """Subscriptions of which nobody tells when they are everywhere."""
        self.returning: dict[str, int] = {}
        """Advertisements that are put back after an abort, or were answered ahead of brokers that are away, each with the step that tells when it is everywhere: until then no transaction publishes under it."""
        self.settling: set[str] = set()
        """Subscriptions that come or go with a transaction which not all brokers have committed."""
        self.partial: set[str] = set()
        """Subscriptions that a neighbour has passed on to all brokers but some that are away."""
        self._index = MatchIndex()
        self._promised: dict[str, MatchIndex] = {}
        """By neighbour or client: what was advertised from there."""
        if record is not None:
            for name, entry in record.advertisements.items():
                self._put_advertisement(name, entry)
            for name, entry in record.subscriptions.items():
                self._put(name, entry)
            for neighbour, passed in record.passed.items():
                self.passed[neighbour].update(passed)
            self.loose.update(record.loose)
            self.returning.update(record.returning)

    def record(self) -> TablesRecord:
        """Return the tables as they are persisted."""
        return TablesRecord(
            dict(self.advertisements),
            dict(self.subscriptions),
            {neighbour: dict(passed) for neighbour, passed in self.passed.items()},
            sorted(self.loose),
            dict(self.returning),
        )

    # -- Questions ------------------------------------------------------------------------------

    def match(self, event: Mapping[str, Value]) -> list[str]:
        """Return the subscriptions that an event matches."""
        return self._index.match(event)

    def advertised(self, event: Mapping[str, Value], hop: str) -> list[str]:
        """Return the advertisements from `hop` that cover an event."""
        promised = self._promised.get(hop)
        return [] if promised is None else promised.match(event)

    def route(self, event: Mapping[str, Value], hop: str) -> tuple[list[str], dict[str, list[str]]]:
        """Return where an event that came from `hop` goes: neighbours, and clients with their subscriptions."""
        return self.destinations(
            ((name, self.subscriptions[name]) for name in self.match(event)), hop
        )

    def destinations(
        self, matched: Iterator[tuple[str, Entry]], hop: str
    ) -> tuple[list[str], dict[str, list[str]]]:
        """Return neighbours, and clients with their subscriptions, for the subscriptions that matched."""
        neighbours: dict[str, None] = {}
        clients: dict[str, list[str]] = {}
        for name, entry in matched:
            if entry.hop not in self.passed:
                clients.setdefault(entry.hop, []).append(name)
            elif entry.hop != hop:
                neighbours[entry.hop] = None
        return sorted(neighbours), {client: sorted(clients[client]) for client in sorted(clients)}

    def table(self, change: Change) -> Mapping[str, Entry]:
        """Return the table that a change is about."""
        about = change.action in (ADVERTISE, UNADVERTISE)
        return self.advertisements if about else self.subscriptions

    def rows(self) -> Iterator[dict[str, str]]:
        """Yield the tables as rows of a trace: see `checkers.converged`."""
        for verdict, table in (
            ("advertisement", self.advertisements),
            ("subscription", self.subscriptions),
        ):
            for name, entry in table.items():
                yield {
                    "action": "held",
                    "subscription": name,
                    "topic": entry.where,
                    "publisher": entry.hop,
                    "verdict": verdict,
                }
        for neighbour in self.neighbours:
            for name in self.sent(neighbour):
                yield {
                    "action": "held",
                    "subscription": name,
                    "publisher": neighbour,
                    "verdict": "sent",
                }

    def sent(self, neighbour: str) -> list[str]:
        """Return the subscriptions that a neighbour was sent."""
        return sorted(name for name, coverer in self.passed[neighbour].items() if not coverer)

    # -- Changes --------------------------------------------------------------------------------

    def add_neighbour(self, neighbour: str) -> None:
        """Have a newcomer beside this broker."""
        self.neighbours = tuple(sorted({*self.neighbours, neighbour}))
        self.passed[neighbour] = {}

    def remove_neighbour(self, neighbour: str) -> None:
        """Be without a neighbour from which nothing came."""
        self.neighbours = tuple(each for each in self.neighbours if each != neighbour)
        del self.passed[neighbour]

    def apply(self, change: Change, hop: str) -> Outputs:
        """Make a change that came from a neighbour or client; return what follows for neighbours."""
        outputs: Outputs = {}
        if change.action == ADVERTISE:
            self._advertise(change, hop, outputs)
        elif change.action == UNADVERTISE:
            self._unadvertise(change, outputs)
        elif change.action == SUBSCRIBE:
            self._subscribe(change, hop, outputs)
        elif change.action == UNSUBSCRIBE:
            self._unsubscribe(change, outputs)
        return outputs

    def _advertise(self, change: Change, hop: str, outputs: Outputs) -> None:
        if change.name in self.advertisements:
            return
        self._put_advertisement(change.name, Entry(change.where, hop))
        for neighbour in self.neighbours:
            if neighbour != hop:
                outputs.setdefault(neighbour, []).append(change)
        if hop in self.passed:
            promised = parse(change.where)
            passed = self.passed[hop]
            for name in self._wanting(promised):
                entry = self.subscriptions[name]
                if entry.hop != hop and name not in passed:
                    self._pass_on(name, entry, hop, outputs)

    def _unadvertise(self, change: Change, outputs: Outputs) -> None:
        entry = self.advertisements.get(change.name)
        if entry is None:
            return
        self._remove_advertisement(change.name)
        for neighbour in self.neighbours:
            if neighbour != entry.hop:
                outputs.setdefault(neighbour, []).append(Change(UNADVERTISE, change.name))
        if entry.hop in self.passed:
            promised, passed = parse(entry.where), self.passed[entry.hop]
            for name, coverer in list(passed.items()):
                held = self.subscriptions.get(name)
                if held is None:
                    continue  # In a layer, whose base has changed: the check before a commit sees it.
                wanted = parse(held.where)
                if promised.overlaps(wanted) and not self._needed(wanted, entry.hop):
                    del passed[name]
                    if not coverer:
                        outputs.setdefault(entry.hop, []).append(Change(UNSUBSCRIBE, name))

    def _subscribe(self, change: Change, hop: str, outputs: Outputs) -> None:
        if change.name in self.subscriptions:
            return
        entry = Entry(change.where, hop)
        self._put(change.name, entry)
        wanted = parse(change.where)
        for neighbour in self.neighbours:
            if neighbour != hop and self._needed(wanted, neighbour):
                self._pass_on(change.name, entry, neighbour, outputs)

    def _unsubscribe(self, change: Change, outputs: Outputs) -> None:
        if change.name not in self.subscriptions:
            return
        self._remove(change.name)
        for neighbour in self.neighbours:
            passed = self.passed[neighbour]
            coverer = passed.pop(change.name, None)
            if coverer != "":
                continue
            bare = [name for name, its in passed.items() if its == change.name]
            for name in bare:
                if name in self.subscriptions:
                    self._pass_on(name, self.subscriptions[name], neighbour, outputs)
            outputs.setdefault(neighbour, []).append(Change(UNSUBSCRIBE, change.name))

    def _pass_on(self, name: str, entry: Entry, neighbour: str, outputs: Outputs) -> None:
        """Send a subscription that is needed, unless it is covered by one that was sent."""
        coverer = self._coverer(name, parse(entry.where), neighbour)
        self.passed[neighbour][name] = coverer
        if not coverer:
            change = Change(SUBSCRIBE, name, entry.where)
            outputs.setdefault(neighbour, []).append(change)

    def _needed(self, wanted: Filter, neighbour: str) -> bool:
        promised = self._promised.get(neighbour)
        return promised is not None and bool(promised.overlapping(wanted))

    def _wanting(self, promised: Filter) -> list[str]:
        """Return the subscriptions that an advertisement may concern."""
        return self._index.overlapping(promised)

    def _coverer(self, name: str, wanted: Filter, neighbour: str) -> str:
        """Return a subscription that a neighbour was sent and that covers another, or nothing.

        Whatever covers a filter matches each of its samples, so the index finds who might.
        """
        passed = self.passed[neighbour]
        for sample in wanted.samples():
            for other in self.match(sample):
                if (
                    other != name
                    and passed.get(other) == ""
                    and other not in self.loose
                    and other not in self.settling
                    and other not in self.partial
                    and parse(self.subscriptions[other].where).covers(wanted)
                ):
                    return other
            break
        return ""

    def _put(self, name: str, entry: Entry) -> None:
        self.subscriptions[name] = entry
        self._index.add(name, parse(entry.where))

    def _remove(self, name: str) -> None:
        del self.subscriptions[name]
        self._index.remove(name)
        self.loose.discard(name)

    def _put_advertisement(self, name: str, entry: Entry) -> None:
        self.advertisements[name] = entry
        self._promised.setdefault(entry.hop, MatchIndex()).add(name, parse(entry.where))

    def _remove_advertisement(self, name: str) -> None:
        entry = self.advertisements.pop(name)
        promised = self._promised[entry.hop]
        promised.remove(name)
        if not len(promised):
            del self._promised[entry.hop]

    def layer(self) -> "Layer":
        """Return tables laid over these."""
        return Layer(self)


class Layer(Tables):
    """Tables laid over others, which stay as they are."""

    def __init__(self, base: Tables) -> None:
        self._base = base
        self.neighbours = base.neighbours
        self._advertisements = self.advertisements = _Entries(base.advertisements)
        self._subscriptions = self.subscriptions = _Entries(base.subscriptions)
        self._passed = {each: _Overlaid(passed) for each, passed in base.passed.items()}
        self.passed = dict(self._passed)
        self.loose = base.loose
        self.returning = base.returning
        # Whoever works on a layer began when all brokers had committed what came before, and waits for all of them.
        self.settling = set()
        self.partial = set()

    def add_neighbour(self, neighbour: str) -> None:
        """Have a newcomer beside this broker, whose own tables have it already."""
        self.neighbours = self._base.neighbours
        passed = _Overlaid(self._base.passed[neighbour])
        self._passed[neighbour] = self.passed[neighbour] = passed

    def layer_record(self) -> LayerRecord:
        """Return what this layer changed, as it is persisted."""
        return LayerRecord(
            self._advertisements.record(),
            self._subscriptions.record(),
            {neighbour: passed.record() for neighbour, passed in self._passed.items()},
        )

    def restore(self, record: LayerRecord) -> None:
        """Take on what was persisted."""
        self._advertisements.restore(record.advertisements)
        self._subscriptions.restore(record.subscriptions)
        for neighbour, passed in record.passed.items():
            self._passed[neighbour].restore(passed)

    def match(self, event: Mapping[str, Value]) -> list[str]:
        """Return the subscriptions that an event matches."""
        mine = self._subscriptions
        found = mine.unchanged(self._base.match(event))
        found += [name for name, entry in mine.added.items() if parse(entry.where).matches(event)]
        return found

    def advertised(self, event: Mapping[str, Value], hop: str) -> list[str]:
        """Return the advertisements from `hop` that cover an event."""
        mine = self._advertisements
        found = mine.unchanged(self._base.advertised(event, hop))
        return found + [name for name, it in mine.added_from(hop) if it.matches(event)]

    def _needed(self, wanted: Filter, neighbour: str) -> bool:
        mine = self._advertisements
        if any(it.overlaps(wanted) for _, it in mine.added_from(neighbour)):
            return True
        promised = self._base._promised.get(neighbour)  # noqa: SLF001 - tables of the same kind
        return promised is not None and bool(mine.unchanged(promised.overlapping(wanted)))

    def _wanting(self, promised: Filter) -> list[str]:
        mine = self._subscriptions
        found = mine.unchanged(self._base._wanting(promised))  # noqa: SLF001 - see above
        return found + [
            name for name, entry in mine.added.items() if promised.overlaps(parse(entry.where))
        ]

    def _put_advertisement(self, name: str, entry: Entry) -> None:
        self.advertisements[name] = entry

    def _remove_advertisement(self, name: str) -> None:
        del self.advertisements[name]

    def _put(self, name: str, entry: Entry) -> None:
        self.subscriptions[name] = entry

    def _remove(self, name: str) -> None:
        del self.subscriptions[name]


class _Overlaid(MutableMapping[str, T], Generic[T]):
    """A mapping laid over another."""

    __slots__ = ("_base", "added", "removed")

    def __init__(self, base: MutableMapping[str, T]) -> None:
        self._base = base
        self.added: dict[str, T] = {}
        self.removed: set[str] = set()

    def record(self) -> OverlaidRecord[T]:
        """Return what is different from the base."""
        return OverlaidRecord(dict(self.added), sorted(self.removed))

    def restore(self, record: OverlaidRecord[T]) -> None:
        """Take on what was different."""
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
        """Return those keys of the base that are neither removed nor replaced."""
        return [key for key in keys if key not in self.removed and key not in self.added]


class _Entries(_Overlaid[Entry]):
    """Advertisements or subscriptions laid over others."""

    __slots__ = ()

    def added_from(self, hop: str) -> Iterator[tuple[str, Filter]]:
        """Yield what was added from a neighbour or client, with its filter."""
        for name, entry in self.added.items():
            if entry.hop == hop:
                yield name, parse(entry.where)
