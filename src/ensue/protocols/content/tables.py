"""The routing tables of a broker: advertisements, subscriptions, and what was passed on.

Theory of operation. The *subscription routing table* (SRT, here `advertisements`) has for each
advertisement the neighbor or client that it came from; the *publication routing table* (PRT,
`subscriptions`) has the same for subscriptions. A subscription is needed at a neighbor if an
advertisement that overlaps it came from there. `passed` has for each neighbor the subscriptions
that it was sent, and those that it needs but was not sent, because one that it has covers them.
`apply` makes one change and returns what has to be passed on because of it:

* an advertisement goes to all other neighbors, and attracts to where it came from every stored
  subscription that is needed there now (D9: not only those that matched nothing before); an
  unadvertisement withdraws those that no longer are;
* a subscription goes to each neighbor that needs it, unless it is covered there; an unsubscription
  goes where the subscription went, behind the subscriptions that it had covered, so that no event
  is missed in between.

A change that is already in effect changes nothing.

A covered subscription is answered when its coverer has reached every broker (`steps`). So
subscriptions that do not travel by steps can't cover: those of a plan (`loose`), which is not
answered; those answered ahead of brokers that are away, and those of a transaction until all
brokers have answered: it may abort before (`partial`); those of a serializable transaction until
all brokers have committed it, and those that a transaction withdraws which this broker has voted
for (`settling`).

A *layer* is tables over others: it reads through to them and keeps its changes to itself.
Transactions work on one, and so does the check for conflicts.
"""

from collections.abc import Iterator, Mapping, MutableMapping, Sequence

import msgspec

from ensue.protocols.content.entries import (
    Entries,
    Entry,
    IndexedEntries,
    LayeredEntries,
    LayeredMap,
    LayeredRecord,
)
from ensue.protocols.content.filters.filter import Filter
from ensue.protocols.content.filters.parser import parse
from ensue.protocols.content.filters.spaces import Value
from ensue.protocols.content.frames import ADVERTISE, SUBSCRIBE, UNADVERTISE, UNSUBSCRIBE, Change

__all__ = ["Layer", "LayerRecord", "Outputs", "Tables", "TablesRecord"]

Outputs = dict[str, list[Change]]
"""Changes to pass on, by neighbor."""


class TablesRecord(msgspec.Struct, frozen=True, array_like=True):
    """Tables as they are persisted."""

    advertisements: dict[str, Entry]
    subscriptions: dict[str, Entry]
    passed: dict[str, dict[str, str]]
    loose: list[str] = []
    spreading: dict[str, int] = {}


class LayerRecord(msgspec.Struct, frozen=True, array_like=True):
    """A layer as it is persisted."""

    advertisements: LayeredRecord[Entry]
    subscriptions: LayeredRecord[Entry]
    passed: dict[str, LayeredRecord[str]]


class Tables:
    """SRT, PRT and what was passed on."""

    def __init__(self, neighbors: Sequence[str], record: TablesRecord | None = None) -> None:
        self.neighbors = tuple(neighbors)
        self.advertisements: Entries = IndexedEntries(by_hop=True)
        self.subscriptions: Entries = IndexedEntries()
        self.passed: dict[str, MutableMapping[str, str]] = {each: {} for each in neighbors}
        """By neighbor and subscription: empty if it was sent, else its coverer there."""
        self.loose: set[str] = set()
        """Subscriptions of plans: no answer reports that they have reached every broker."""
        self.owns_loose = True
        """Whether these tables maintain `loose`; a layer only reads that of its base."""
        self.spreading: dict[str, int] = {}
        """Advertisements of clients here that are under way to all brokers, each with its step.

        0: it is an operation of a plan. Until all brokers have it no transaction publishes under
        it. Events outside of transactions go to brokers without it, too (`steps`).
        """
        self.settling: set[str] = set()
        """Subscriptions that change with a transaction not committed at all brokers."""
        self.partial: set[str] = set()
        """Subscriptions that may not reach every broker: it is away, or they may be aborted."""
        if record is not None:
            for name, entry in record.advertisements.items():
                self.advertisements.put(name, entry)
            for name, entry in record.subscriptions.items():
                self.subscriptions.put(name, entry)
            for neighbor, passed in record.passed.items():
                self.passed[neighbor].update(passed)
            self.loose.update(record.loose)
            self.spreading.update(record.spreading)

    def record(self) -> TablesRecord:
        """Return the tables as they are persisted."""
        return TablesRecord(
            dict(self.advertisements),
            dict(self.subscriptions),
            {neighbor: dict(passed) for neighbor, passed in self.passed.items()},
            sorted(self.loose),
            dict(self.spreading),
        )

    # -- Questions ------------------------------------------------------------------------------

    def match(self, event: Mapping[str, Value]) -> list[str]:
        """Return the subscriptions that an event matches."""
        return self.subscriptions.match(event)

    def advertised(self, event: Mapping[str, Value], hop: str) -> list[str]:
        """Return the advertisements from `hop` that cover an event."""
        return self.advertisements.match(event, hop)

    def route(self, event: Mapping[str, Value], hop: str) -> tuple[list[str], dict[str, list[str]]]:
        """Return the neighbors, and clients with subscriptions, for an event from `hop`."""
        return self.destinations(
            ((name, self.subscriptions[name]) for name in self.match(event)), hop
        )

    def destinations(
        self, matched: Iterator[tuple[str, Entry]], hop: str
    ) -> tuple[list[str], dict[str, list[str]]]:
        """Return the neighbors, and clients with subscriptions, of matched subscriptions."""
        neighbors: dict[str, None] = {}
        clients: dict[str, list[str]] = {}
        for name, entry in matched:
            if entry.hop not in self.passed:
                clients.setdefault(entry.hop, []).append(name)
            elif entry.hop != hop:
                neighbors[entry.hop] = None
        return sorted(neighbors), {client: sorted(clients[client]) for client in sorted(clients)}

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
        for neighbor in self.neighbors:
            for name in self.sent(neighbor):
                yield {
                    "action": "held",
                    "subscription": name,
                    "publisher": neighbor,
                    "verdict": "sent",
                }

    def sent(self, neighbor: str) -> list[str]:
        """Return the subscriptions that a neighbor was sent."""
        return sorted(name for name, coverer in self.passed[neighbor].items() if not coverer)

    # -- Changes --------------------------------------------------------------------------------

    def add_neighbor(self, neighbor: str) -> None:
        """Add a neighbor that joins."""
        self.neighbors = tuple(sorted({*self.neighbors, neighbor}))
        self.passed[neighbor] = {}

    def remove_neighbor(self, neighbor: str) -> None:
        """Remove a neighbor without entries."""
        self.neighbors = tuple(each for each in self.neighbors if each != neighbor)
        del self.passed[neighbor]

    def apply(self, change: Change, hop: str) -> Outputs:
        """Make a change that came from `hop`; return the changes to pass on."""
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
        self.advertisements.put(change.name, Entry(change.where, hop))
        for neighbor in self.neighbors:
            if neighbor != hop:
                outputs.setdefault(neighbor, []).append(change)
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
        self.advertisements.remove(change.name)
        for neighbor in self.neighbors:
            if neighbor != entry.hop:
                outputs.setdefault(neighbor, []).append(Change(UNADVERTISE, change.name))
        if entry.hop in self.passed:
            promised, passed = parse(entry.where), self.passed[entry.hop]
            for name, coverer in list(passed.items()):
                held = self.subscriptions.get(name)
                if held is None:
                    continue  # The base of this layer has changed: the vote detects it.
                wanted = parse(held.where)
                if promised.overlaps(wanted) and not self._needed(wanted, entry.hop):
                    del passed[name]
                    if not coverer:
                        outputs.setdefault(entry.hop, []).append(Change(UNSUBSCRIBE, name))

    def _subscribe(self, change: Change, hop: str, outputs: Outputs) -> None:
        if change.name in self.subscriptions:
            return
        entry = Entry(change.where, hop)
        self.subscriptions.put(change.name, entry)
        wanted = parse(change.where)
        for neighbor in self.neighbors:
            if neighbor != hop and self._needed(wanted, neighbor):
                self._pass_on(change.name, entry, neighbor, outputs)

    def _unsubscribe(self, change: Change, outputs: Outputs) -> None:
        if change.name not in self.subscriptions:
            return
        self.subscriptions.remove(change.name)
        if self.owns_loose:
            self.loose.discard(change.name)
        for neighbor in self.neighbors:
            passed = self.passed[neighbor]
            coverer = passed.pop(change.name, None)
            if coverer != "":
                continue
            bare = [name for name, its in passed.items() if its == change.name]
            for name in bare:
                if name in self.subscriptions:
                    self._pass_on(name, self.subscriptions[name], neighbor, outputs)
            outputs.setdefault(neighbor, []).append(Change(UNSUBSCRIBE, change.name))

    def _pass_on(self, name: str, entry: Entry, neighbor: str, outputs: Outputs) -> None:
        """Send a subscription that is needed, unless it is covered by one that was sent."""
        coverer = self._coverer(name, parse(entry.where), neighbor)
        self.passed[neighbor][name] = coverer
        if not coverer:
            change = Change(SUBSCRIBE, name, entry.where)
            outputs.setdefault(neighbor, []).append(change)

    def _needed(self, wanted: Filter, neighbor: str) -> bool:
        return self.advertisements.overlaps(wanted, neighbor)

    def _wanting(self, promised: Filter) -> list[str]:
        """Return the subscriptions that an advertisement may concern."""
        return self.subscriptions.overlapping(promised)

    def _coverer(self, name: str, wanted: Filter, neighbor: str) -> str:
        """Return a subscription that a neighbor was sent and that covers another, or nothing.

        A filter that covers another matches each of its samples, so the index finds candidates.
        """
        passed = self.passed[neighbor]
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


class Layer:
    """Tables over others: they read through to those and keep their changes to themselves."""

    def __init__(self, base: Tables) -> None:
        self._base = base
        self._advertisements = LayeredEntries(base.advertisements)
        self._subscriptions = LayeredEntries(base.subscriptions)
        self._passed = {each: LayeredMap(passed) for each, passed in base.passed.items()}
        # Nothing is settling or partial here: a transaction is decided after those that it read
        # from, at every broker, and it waits for all brokers.
        self.tables = Tables(base.neighbors)
        self.tables.advertisements = self._advertisements
        self.tables.subscriptions = self._subscriptions
        self.tables.passed.update(self._passed)
        self.tables.loose, self.tables.owns_loose = base.loose, False
        self.tables.spreading = base.spreading

    def add_neighbor(self, neighbor: str) -> None:
        """Add a neighbor that joins; the base has it already."""
        self.tables.neighbors = self._base.neighbors
        passed = LayeredMap(self._base.passed[neighbor])
        self._passed[neighbor] = self.tables.passed[neighbor] = passed

    def record(self) -> LayerRecord:
        """Return the changes, as they are persisted."""
        return LayerRecord(
            self._advertisements.record(),
            self._subscriptions.record(),
            {neighbor: passed.record() for neighbor, passed in self._passed.items()},
        )

    def restore(self, record: LayerRecord) -> None:
        """Restore the changes that were persisted."""
        self._advertisements.restore(record.advertisements)
        self._subscriptions.restore(record.subscriptions)
        for neighbor, passed in record.passed.items():
            self._passed[neighbor].restore(passed)
