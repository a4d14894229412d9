"""Transactions at one broker: their logs, and the check for conflicts.

A serializable transaction works on a layer over the broker's tables: it reads the committed state
and keeps its own changes to itself. Each step is logged with its results: changes for neighbors,
and where a publication went. Before a broker votes, it replays the log on a fresh layer over the
current tables and compares step by step (D3, D4). If anything that the transaction read has changed
so that it would have done something else, it can't be ordered after what was committed meanwhile,
and the vote is no. The commit replays the log on the tables themselves (D6).

A withdrawal that leads nowhere looks the same if its entry is gone: on one broker, or where another
subscription covers it. So a client's home also checks that what the client withdrew is still there.
Otherwise two transactions could move one subscription to two clients. From the vote to the decision
the home lets no other transaction withdraw it (`withdrawing`).

The paper compares the routing of publications under the transaction's tables and under the
committed ones. These always differ if the transaction subscribed before it published, so the
paper's own example would never commit (D3). The paper ignores subscriptions and advertisements,
and two concurrent transactions leave a hole in the tables (D4).
"""

from collections.abc import Container, Iterable

import msgspec

from ensue.core.errors import CONFLICT
from ensue.protocols.content.entries import Entry
from ensue.protocols.content.filters.filter import Box
from ensue.protocols.content.filters.parser import parse
from ensue.protocols.content.filters.spaces import Value
from ensue.protocols.content.frames import (
    ADVERTISE,
    INVITATION,
    SUBSCRIBE,
    UNADVERTISE,
    UNSUBSCRIBE,
    Change,
    Publication,
)
from ensue.protocols.content.refusals import INVERSE
from ensue.protocols.content.tables import Layer, LayerRecord, Outputs, Tables
from ensue.protocols.transactions.invitations import recipients

__all__ = [
    "Context",
    "ContextRecord",
    "Delivery",
    "Issued",
    "Lock",
    "Logged",
    "changed_filters",
    "fixes",
    "replay",
    "run",
    "withdrawing",
]


class Delivery(msgspec.Struct, frozen=True, array_like=True):
    """A publication that waits for the commit."""

    client: str
    path: str
    subscriptions: tuple[str, ...]
    publication: Publication


class Issued(msgspec.Struct, frozen=True, array_like=True):
    """A change that a client of this broker made within a transaction."""

    client: str
    change: Change
    before: Entry | None
    """The entry in the table before."""


class Logged(msgspec.Struct, frozen=True, array_like=True):
    """A step and its results at this broker."""

    hop: str
    changes: tuple[Change, ...]
    publication: Publication | None
    outputs: Outputs
    neighbors: list[str]
    """Where the publication went."""
    clients: dict[str, list[str]]


class Lock(msgspec.Struct, frozen=True, gc=False):
    """What a transaction changes or depends on at a broker, to compare it with others."""

    boxes: list[Box]
    """Of all filters."""
    events: list[dict[str, Value]]
    names: set[str]
    """Subscriptions and advertisements."""


class ContextRecord(msgspec.Struct, array_like=True):
    """A context as it is persisted."""

    attempt: int
    isolated: bool
    voted: bool
    log: list[Logged]
    deliveries: list[Delivery]
    issued: list[Issued]
    participants: list[str]
    invitations: dict[str, tuple[str, int]]
    layer: LayerRecord | None
    operations: int
    neighbors: list[str]
    changed: list[str]
    idle: list[str]
    reached: dict[int, list[str]]


class Context:
    """One transaction at one broker."""

    def __init__(self, tables: Tables, *, isolated: bool) -> None:
        self.attempt = 0
        """How often this broker was asked to vote."""
        self.isolated = isolated
        self.voted = False
        """Whether this broker has voted yes."""
        self.log: list[Logged] = []
        self.deliveries: list[Delivery] = []
        self.issued: list[Issued] = []
        self.participants: dict[str, None] = {}
        """Clients of this broker that took part: they get the outcome."""
        self.invitations: dict[str, tuple[str, int]] = {}
        """By path: an invited client that has not finished, and the number of the waiting step."""
        self.idle: dict[str, None] = {}
        """Paths of invitations by content whose recipients have done nothing yet."""
        self.reached: dict[int, dict[str, None]] = {}
        """By place of an invitation by content in the log: the clients here that count, and the
        neighbors behind which some do."""
        self.operations = 0
        """Number of operations of clients of this broker, with invitations."""
        self.neighbors: dict[str, None] = {}
        """Neighbors that have sent or received steps of it: they vote too."""
        self.changed: list[str] = []
        """The filters that it changes or depends on here, as of the last attempt (`locks`)."""
        self.lock: Lock | None = None
        """The same in another form, once it was needed since that attempt."""
        self.layer = Layer(tables) if isolated else None
        self.tables = tables if self.layer is None else self.layer.tables
        """The tables that the transaction reads and changes."""

    def record(self) -> ContextRecord:
        """Return the context as it is persisted."""
        return ContextRecord(
            self.attempt,
            self.isolated,
            self.voted,
            self.log,
            self.deliveries,
            self.issued,
            list(self.participants),
            self.invitations,
            None if self.layer is None else self.layer.record(),
            self.operations,
            list(self.neighbors),
            self.changed,
            list(self.idle),
            {place: list(names) for place, names in self.reached.items()},
        )

    @staticmethod
    def restored(record: ContextRecord, tables: Tables) -> "Context":
        """Return the context that was persisted."""
        context = Context(tables, isolated=record.isolated)
        context.attempt = record.attempt
        context.neighbors = dict.fromkeys(record.neighbors)
        context.changed = record.changed
        context.voted, context.log, context.deliveries = record.voted, record.log, record.deliveries
        context.issued, context.invitations = record.issued, record.invitations
        context.participants = dict.fromkeys(record.participants)
        context.operations, context.idle = record.operations, dict.fromkeys(record.idle)
        context.reached = {place: dict.fromkeys(names) for place, names in record.reached.items()}
        if record.layer is not None:
            assert context.layer is not None
            context.layer.restore(record.layer)
        return context

    def conflict(self, tables: Tables) -> str:
        """Return why the transaction can't be ordered after all commits, or nothing.

        If it can, note the filters that it changes or depends on.
        """
        fresh = Layer(tables).tables
        changed: dict[str, None] = {}
        self.lock = None
        for place, logged in enumerate(self.log):
            changed.update(changed_filters(logged, fresh))
            gone = _is_withdrawn(logged, fresh)
            steps = (run(fresh, logged), logged)
            if place in self.reached:
                steps = _counted(*steps, self.reached[place])
            if gone or _comparable(steps[0]) != _comparable(steps[1]):
                return f"{CONFLICT}step {place + 1} of {len(self.log)} would have led elsewhere"
        self.changed = list(changed)
        return ""


def run(tables: Tables, step: Logged) -> Logged:
    """Run a step on tables; return it with its results."""
    outputs: Outputs = {}
    for change in step.changes:
        for neighbor, following in tables.apply(change, step.hop).items():
            outputs.setdefault(neighbor, []).extend(following)
    neighbors: list[str] = []
    clients: dict[str, list[str]] = {}
    if step.publication is not None:
        neighbors, clients = tables.route(step.publication.attributes, step.hop)
        if INVITATION in step.publication.attributes:
            clients = recipients(step.publication, clients, tables.subscriptions)
    return Logged(step.hop, step.changes, step.publication, outputs, neighbors, clients)


def changed_filters(step: Logged, tables: Tables) -> dict[str, None]:
    """Return the filters that a step changes or depends on, by the tables before it (`locks`)."""
    found: dict[str, None] = {}
    for change in step.changes:
        held = tables.table(change).get(change.name)
        where = held.where if held is not None else change.where
        if not where:
            continue  # It withdraws what is not here.
        found[where] = None
        if change.action in (ADVERTISE, UNADVERTISE):
            for name in tables.subscriptions.overlapping(parse(where)):
                found[tables.subscriptions[name].where] = None
    return found


def _is_withdrawn(step: Logged, tables: Tables) -> bool:
    """Return whether a client of this broker withdraws what it does not have any more."""
    if step.hop in tables.passed:
        return False
    withdrawn = (change for change in step.changes if change.action not in INVERSE)
    held = (tables.table(change).get(change.name) for change in withdrawn)
    return any(entry is None or entry.hop != step.hop for entry in held)


def withdrawing(contexts: Iterable[Context], change: Change) -> str:
    """Return the refusal of a withdrawal that another transaction may commit, or nothing.

    This broker has voted for that transaction, so it can't object any more.
    """
    if change.action not in INVERSE and any(
        (one.change.action, one.change.name) == (change.action, change.name)
        for context in contexts
        if context.isolated and context.voted
        for one in context.issued
    ):
        return f"{CONFLICT}another transaction withdraws {change.name!r}"
    return ""


def _counted(done: Logged, logged: Logged, reached: Container[str]) -> tuple[Logged, Logged]:
    """Return results of an invitation without clients that it found and that do not count.

    They had left or lost their connections before they acted: whether they are still there makes no
    difference.
    """
    uncounted = {name for name in (*logged.neighbors, *logged.clients) if name not in reached}
    found = [
        msgspec.structs.replace(
            step,
            neighbors=[name for name in step.neighbors if name not in uncounted],
            clients={name: held for name, held in step.clients.items() if name not in uncounted},
        )
        for step in (done, logged)
    ]
    return found[0], found[1]


def _comparable(step: Logged) -> object:
    outputs = {
        neighbor: sorted((change.action, change.name) for change in changes)
        for neighbor, changes in step.outputs.items()
        if changes
    }
    return outputs, step.neighbors, step.clients


def replay(log: list[Logged], tables: Tables) -> tuple[list[Logged], list[str], dict[str, Entry]]:
    """Run a log on the tables; return results, and subscriptions added and removed."""
    before: dict[str, Entry | None] = {}
    done: list[Logged] = []
    for step in log:
        for change in step.changes:
            if change.action in (SUBSCRIBE, UNSUBSCRIBE):
                before.setdefault(change.name, tables.subscriptions.get(change.name))
        done.append(run(tables, step))
    added, removed = [], {}
    for name, entry in before.items():
        now = tables.subscriptions.get(name)
        if now != entry:
            if entry is not None:
                removed[name] = entry
            if now is not None:
                added.append(name)
    return done, added, removed


def fixes(log: list[Logged], done: list[Logged], tables: Tables) -> Outputs:
    """Return the corrections to send to neighbors after the commit (D11).

    Regular operations between the vote and the commit are not checked, so the log may have other
    results now. Each neighbor commits what it was sent within the transaction; the difference to
    what it should have been sent is passed on as regular changes.
    """
    sent: dict[str, dict[tuple[bool, str], bool]] = {each: {} for each in tables.neighbors}
    for step in log:
        for neighbor, changes in step.outputs.items():
            for change in changes:
                subscription = change.action in (SUBSCRIBE, UNSUBSCRIBE)
                present = change.action in (SUBSCRIBE, ADVERTISE)
                sent[neighbor][subscription, change.name] = present
    found: Outputs = {}
    for neighbor, last in sent.items():
        for (subscription, name), present in last.items():
            wanted = _wanted(tables, neighbor, name, subscription=subscription)
            if (wanted is not None) != present:
                change = _correction(name, wanted, subscription=subscription)
                found.setdefault(neighbor, []).append(change)
        for step in done:
            for change in step.outputs.get(neighbor, ()):
                if (change.action in (SUBSCRIBE, UNSUBSCRIBE), change.name) not in last:
                    found.setdefault(neighbor, []).append(change)
    return found


def _wanted(tables: Tables, neighbor: str, name: str, *, subscription: bool) -> Entry | None:
    """Return the entry that a neighbor should have from this broker, or None."""
    if subscription:
        return tables.subscriptions[name] if tables.passed[neighbor].get(name) == "" else None
    entry = tables.advertisements.get(name)
    return None if entry is None or entry.hop == neighbor else entry


def _correction(name: str, wanted: Entry | None, *, subscription: bool) -> Change:
    if wanted is None:
        return Change(UNSUBSCRIBE if subscription else "uadv", name)
    return Change(SUBSCRIBE if subscription else ADVERTISE, name, wanted.where)
