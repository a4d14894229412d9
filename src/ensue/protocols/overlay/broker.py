"""One broker of a tree: it keeps routing tables and passes operations and publications on.

Guarantees. A publication is delivered once to every client with a subscription that matches it and had reached, before the
publication did, the brokers between the two. When a subscription or an advertisement is answered (`Done`) it has reached every
broker that it concerns: whatever anybody publishes after that comes. A publisher's events come in the order it published them.
When nothing is under way the tables are those that a sequence of the same operations gives (`tables`).

Theory of operation. Brokers form a tree; frames between neighbours come once and in order (`link`). A client has one broker, its
home. An operation is a *step* at its home, which causes steps at neighbours as `tables` says, and so on; a step is answered when all
that it caused were answered. That is how a client learns that its operation is everywhere, how transactions keep the order
of theirs, and why no step can be answered twice. Publications outside of transactions are not answered: they are passed on and that is it.

The first broker stamps a publication with the version of its tables, and all others route it by that version (D8): a commit of a
serializable transaction makes a new version at one broker after the other, and a publication that met it on the way
would be routed half by the old tables and half by the new. Versions are undone, newest first, from what each commit added and removed.

A client that says goodbye, or is silent for `lease_ns`, is gone: what it advertised and subscribed is withdrawn as if it had done so.
A driver that sees connections says when a client has lost its own (`lose_connection`). After `grace_ns` the client counts as disconnected until it
is back: transactions do not wait for it.
A neighbour that has acknowledged nothing for `away_ns` is away (`nodes`), and clients do not wait for it: a regular step that waits for nothing else is answered
with who is missing, and once more when that broker has it. So a subscription that was answered meanwhile holds for what is published at brokers that can be reached. An
advertisement may attract subscriptions of a broker that is away: until it has answered, matching publications are passed on to it, and kept by its link.
A subscription that was answered so covers nothing, for whoever it covered would not learn when it is everywhere.

All broker state survives a crash (`journal`), so that a broker that comes back goes on where it was.

Assumptions. The neighbours form a tree; others come and go at its leaves (`joining`).

HAZARD: a cycle of neighbours passes advertisements round for ever; `check_tree` refuses one. HAZARD: a broker that lost its records
must not come back under its name: its links stay stuck, and its neighbours keep what it once asked for.

Departures from the paper: erratum D9; covering; answers to regular operations; clients that leave or die; brokers that restart.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ensue.protocols.core import Effect, Frame, Send, Told
from ensue.protocols.link import LinkData
from ensue.protocols.overlay import frames as f
from ensue.protocols.overlay.config import OverlayConfig
from ensue.protocols.overlay.frames import Change, Publication, Routed, Step, Stepped
from ensue.protocols.overlay.index import MatchIndex
from ensue.protocols.overlay.journal import Journaled
from ensue.protocols.overlay.parsing import parse
from ensue.protocols.overlay.refusing import refusal
from ensue.protocols.overlay.tables import Outputs, Tables, TablesRecord
from ensue.protocols.overlay.versions import Undo, route_back
from ensue.wire import Codec, Records

__all__ = ["Broker", "BrokerRecord", "Pending"]


class Pending(msgspec.Struct, array_like=True):
    """A step that waits for what it caused."""

    hop: str
    """From where it came; empty if from this broker itself."""
    number: int
    """What whoever sent it calls it."""
    transaction: str
    path: str
    waiting: list[int]
    """This broker's numbers of the steps it caused, and 0 for an invited client."""
    refused: str = ""
    advertised: list[str] = msgspec.field(default_factory=list)
    """What a client advertises with it, outside of transactions."""
    answered: bool = False
    """Whether it was answered ahead of brokers that are away."""


class BrokerRecord(msgspec.Struct, array_like=True):
    """The state of a broker as it is persisted."""

    tables: TablesRecord
    version: int
    undos: list[Undo]
    numbered: int
    steps: dict[int, Pending]
    causes: dict[int, list[int]]
    under_way: dict[int, tuple[str, list[str]]]
    clients: list[str]
    members: dict[str, tuple[str, str]]
    besides: bytes
    """What a subclass keeps."""
    neighbours: list[str]
    disconnected: list[str] = []
    away: list[str] = []
    partial: dict[int, tuple[str, ...]] = {}
    announced: dict[int, tuple[str, list[Change]]] = {}


_RECORD = Records[BrokerRecord](BrokerRecord)


class Broker(Journaled):
    """One broker: a pure node behind numbered links (`nodes.BrokerNode`)."""

    codec = Codec(f.FRAMES)

    def __init__(
        self,
        *,
        name: str,
        neighbours: Sequence[str],
        config: OverlayConfig | None = None,
        records: Mapping[str, bytes] | None = None,
        now_ns: int = 0,
    ) -> None:
        self.name = name
        self.neighbours = tuple(sorted(neighbours))
        self.config = config or OverlayConfig()
        self.tables = Tables(self.neighbours)
        self.version = 0
        """How many serializable transactions have been committed here."""
        self._undos: list[Undo] = []
        self._numbered = 0
        self._steps: dict[int, Pending] = {}
        self._causes: dict[int, list[int]] = {}
        """By the number of a step that was caused: the numbers of those that wait for it."""
        self._under_way: dict[int, tuple[str, list[str]]] = {}
        """By the number of a step that was caused and not answered: to whom, and subscriptions in it."""
        self._away: dict[str, None] = {}
        """Neighbours that acknowledge nothing."""
        self._partial: dict[int, tuple[str, ...]] = {}
        """By the number of a step that a neighbour has answered ahead of brokers that are away: those."""
        self._announced: dict[int, tuple[str, list[Change]]] = {}
        """By the number of a step that was caused and not answered: to whom, and advertisements in it."""
        self._unanswered: dict[str, MatchIndex] = {}
        """By neighbour: those advertisements. It may have subscriptions that they have yet to attract."""
        self._clients: dict[str, None] = {}
        self._members: dict[str, tuple[str, str]] = {}
        """By client: its home, and the neighbour on the way there, or the client itself."""
        self._heard_ns: dict[str, int] = {}
        self._lost_ns: dict[str, int] = {}
        """By client without a connection: when its grace began."""
        self._disconnected: dict[str, None] = {}
        """Clients whose grace is over: nothing waits for them."""
        self.departed: list[str] = []
        """Clients that are gone, to be taken by whoever keeps the links."""
        super().__init__(
            records or {},
            durable=self.config.durable,
            journal_bytes_min=self.config.journal_bytes_min,
        )
        self._heard_ns = dict.fromkeys(self._clients, now_ns)
        self.departed.clear()

    # -- What others may look at ----------------------------------------------------------------

    @property
    def clients(self) -> tuple[str, ...]:
        """The clients whose home this is."""
        return tuple(self._clients)

    @property
    def waiting_count(self) -> int:
        """How many steps wait for what they caused."""
        return len(self._steps)

    @property
    def versions_kept(self) -> int:
        """How many old versions of the tables are kept."""
        return len(self._undos)

    def home_of(self, client: str) -> str | None:
        """Return the home of a client anywhere in the tree, if it is known."""
        member = self._members.get(client)
        return None if member is None else member[0]

    # -- Driven from outside --------------------------------------------------------------------

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Handle a frame of a neighbour or a client; one of anybody else changes nothing."""
        known = source in self._clients
        if known:
            self._heard_ns[source] = now_ns
        if isinstance(frame, f.Beat | LinkData):
            if not known:  # A stranger's numbered frame comes here too: its link is no more.
                self._effects.append(Send(source, f.Expired()))
        elif isinstance(frame, f.Hello):
            if not known and source not in self.neighbours:
                self._heard_ns[source] = now_ns
                self.take(frame, source=source, now_ns=now_ns)
        elif known or source in self.neighbours:
            self.take(frame, source=source, now_ns=now_ns)

    def handle_timer(self, *, now_ns: int) -> None:
        """Do what is due."""
        for client, heard_ns in list(self._heard_ns.items()):
            if heard_ns + self.config.lease_ns <= now_ns:
                self.expire(client, now_ns=now_ns)
        for client, lost_ns in list(self._lost_ns.items()):
            if lost_ns + self.config.grace_ns <= now_ns:
                del self._lost_ns[client]
                self.take(f.Disconnected(client=client), source="", now_ns=now_ns)
        due_ns = self._due_ns()
        if due_ns is not None and due_ns <= now_ns:
            self.take(f.Tick(), source="", now_ns=now_ns)

    def next_timer_ns(self) -> int | None:
        """Return when something is due."""
        dues = [heard_ns + self.config.lease_ns for heard_ns in self._heard_ns.values()]
        dues += [lost_ns + self.config.grace_ns for lost_ns in self._lost_ns.values()]
        due_ns = self._due_ns()
        return min(dues if due_ns is None else [*dues, due_ns], default=None)

    def take_effects(self) -> Sequence[Effect]:
        """Drain what is to be done."""
        effects, self._effects = self._effects, []
        return effects

    def expire(self, client: str, *, now_ns: int) -> None:
        """Take a client for gone."""
        self.take(f.Expire(client=client), source="", now_ns=now_ns)
        self._effects.append(Send(client, f.Expired()))

    def lose_connection(self, client: str, *, now_ns: int) -> None:
        """Note that a client has no connection; from `now_ns` on it has `grace_ns` to come back."""
        if client in self._clients and client not in self._disconnected:
            self._lost_ns.setdefault(client, now_ns)

    def regain_connection(self, client: str, *, now_ns: int) -> None:
        """Note that a client has a connection."""
        self._lost_ns.pop(client, None)
        if client in self._disconnected:
            self.take(f.Reconnected(client=client), source="", now_ns=now_ns)

    def is_away(self, neighbour: str) -> bool:
        """Return whether a neighbour is taken for away."""
        return neighbour in self._away

    def note_away(self, neighbour: str, *, now_ns: int) -> None:
        """Take a neighbour for away."""
        if neighbour not in self._away:
            self.take(f.Away(neighbour=neighbour), source="", now_ns=now_ns)

    def note_back(self, neighbour: str, *, now_ns: int) -> None:
        """Take a neighbour for present."""
        if neighbour in self._away:
            self.take(f.Back(neighbour=neighbour), source="", now_ns=now_ns)

    def _due_ns(self) -> int | None:
        """Return when a subclass has something due."""
        return None

    # -- State ----------------------------------------------------------------------------------

    def _dump(self) -> bytes:
        return _RECORD.encode(
            BrokerRecord(
                self.tables.record(),
                self.version,
                self._undos,
                self._numbered,
                self._steps,
                self._causes,
                self._under_way,
                list(self._clients),
                self._members,
                self._dump_besides(),
                list(self.neighbours),
                list(self._disconnected),
                list(self._away),
                self._partial,
                self._announced,
            )
        )

    def _load(self, state: bytes) -> None:
        record = _RECORD.decode(state)
        self.neighbours = tuple(record.neighbours)
        self.tables = Tables(self.neighbours, record.tables)
        self.version, self._undos = record.version, record.undos
        self._numbered, self._steps, self._causes = record.numbered, record.steps, record.causes
        self._under_way = record.under_way
        self._clients, self._members = dict.fromkeys(record.clients), record.members
        self._disconnected = dict.fromkeys(record.disconnected)
        self._away, self._partial = dict.fromkeys(record.away), record.partial
        for number, (neighbour, changes) in record.announced.items():
            self._announce(number, neighbour, changes)
        self._note_partial()
        self._load_besides(record.besides)

    def _dump_besides(self) -> bytes:
        return b""

    def _load_besides(self, state: bytes) -> None:
        del state

    # -- Inputs ---------------------------------------------------------------------------------

    _HANDLERS: Mapping[type[Frame], str] = {
        f.Hello: "_hello",
        f.Goodbye: "_goodbye",
        f.Expire: "_expire",
        f.Disconnected: "_disconnect",
        f.Reconnected: "_reconnect",
        f.Away: "_note_away",
        f.Back: "_note_back",
        f.Operate: "_operate",
        f.Forbidden: "_forbidden",
        f.Routed: "_routed",
        f.Step: "_step_in",
        f.Stepped: "_stepped",
    }

    def _handle(self, frame: Frame, source: str, now_ns: int) -> None:
        handler = self._HANDLERS.get(type(frame))
        if handler is not None:
            getattr(self, handler)(frame, source, now_ns)

    def _send(self, peer: str, frame: Frame) -> None:
        self._effects.append(Send(peer, frame))

    def _flood(self, frame: Frame, but: str) -> None:
        for neighbour in self.neighbours:
            if neighbour != but:
                self._send(neighbour, frame)

    def _record(self, **columns: Any) -> None:
        self._effects.append(Told(None, columns))

    # -- Clients --------------------------------------------------------------------------------

    def _hello(self, frame: f.Hello, client: str, now_ns: int) -> None:
        del frame, now_ns
        self._clients[client] = None
        self._members[client] = (self.name, client)
        # Welcomed when everybody knows of it: whoever is told its name can invite it from then on.
        self._introduce(Pending(client, 0, "", "", []), client, self.name, but="")

    def _goodbye(self, frame: f.Goodbye, client: str, now_ns: int) -> None:
        del frame
        self._depart(client, now_ns)

    def _expire(self, frame: f.Expire, source: str, now_ns: int) -> None:
        del source
        if frame.client in self._clients:
            self._depart(frame.client, now_ns)

    def _disconnect(self, frame: f.Disconnected, source: str, now_ns: int) -> None:
        """Wait no longer for a client; what it advertised and subscribed stays for its lease."""
        del source, now_ns
        if frame.client in self._clients:
            self._disconnected[frame.client] = None

    def _reconnect(self, frame: f.Reconnected, source: str, now_ns: int) -> None:
        del source, now_ns
        self._disconnected.pop(frame.client, None)

    def _depart(self, client: str, now_ns: int) -> None:
        """Withdraw everything of a client that is gone."""
        del now_ns
        del self._clients[client]
        self._heard_ns.pop(client, None)
        self._lost_ns.pop(client, None)
        self._disconnected.pop(client, None)
        self._members.pop(client, None)
        self._record(action="unsubscribed", publisher=client, verdict="gone")
        for pending in self._steps.values():
            if pending.hop == client:
                pending.hop = ""  # Nobody waits for its answer.
        for action, table in (
            (f.UNSUBSCRIBE, self.tables.subscriptions),
            (f.UNADVERTISE, self.tables.advertisements),
        ):
            for name in [name for name, entry in table.items() if entry.hop == client]:
                self._change((Change(action, name),), client)
        self._introduce(Pending("", 0, "", "", []), client, "", but="")
        self.departed.append(client)

    def _introduce(self, pending: Pending, client: str, home: str, *, but: str) -> None:
        """Pass on that a client has come, or gone."""
        for neighbour in self.neighbours:
            if neighbour != but:
                self._cause(pending, neighbour, member=client, home=home)
        self._settle(pending)

    # -- Regular operations ---------------------------------------------------------------------

    def _operate(self, frame: f.Operate, client: str, now_ns: int) -> None:
        del now_ns
        if frame.transaction:
            self._operate_within(frame, client)
            return
        refused = refusal(frame, client, self.tables, self.config)
        if refused:
            self._send(client, f.Done(number=frame.number, refused=refused))
        elif frame.publication is not None:
            self._publish(frame.publication, client, self.version)
            self._send(client, f.Done(number=frame.number))
        elif frame.change is not None:
            self._change((frame.change,), client, frame.number)

    def _forbidden(self, frame: f.Forbidden, client: str, now_ns: int) -> None:
        del now_ns
        self._send(client, f.Done(number=frame.number, refused=frame.reason))

    def _operate_within(self, frame: f.Operate, client: str) -> None:
        """Handle an operation of a transaction."""
        self._send(client, f.Done(number=frame.number, refused="there are no transactions here"))

    def _change(self, changes: Sequence[Change], hop: str, number: int | None = None) -> None:
        """Make regular changes, and answer when they are everywhere, if somebody asked."""
        outputs: Outputs = {}
        for change in changes:
            for neighbour, following in self.tables.apply(change, hop).items():
                outputs.setdefault(neighbour, []).extend(following)
        pending = Pending("" if number is None else hop, number or 0, "", "", [])
        if pending.hop in self._clients:
            pending.advertised = [each.name for each in changes if each.action == f.ADVERTISE]
        self._wait_for_coverers(pending, changes, self.tables)
        self._pass_on(outputs, pending)

    def _pass_on(self, outputs: Outputs, pending: Pending) -> None:
        """Cause steps at neighbours, and wait for them."""
        for neighbour in sorted(outputs):
            self._cause(pending, neighbour, tuple(outputs[neighbour]))
        self._settle(pending)

    def _cause(
        self,
        pending: Pending,
        neighbour: str,
        changes: tuple[Change, ...] = (),
        publication: Publication | None = None,
        invited: str = "",
        *,
        member: str = "",
        home: str = "",
        shared: bool = False,
    ) -> None:
        """Send a neighbour a step that another one causes."""
        number = self._wait(pending)
        self._under_way[number] = (
            neighbour,
            [change.name for change in changes if change.action == f.SUBSCRIBE],
        )
        advertised = [change for change in changes if change.action == f.ADVERTISE]
        if advertised and pending.hop and not pending.transaction:
            self._announce(number, neighbour, advertised)
        step = Step(
            number=number,
            transaction=pending.transaction,
            path=pending.path,
            changes=changes,
            publication=publication,
            invited=invited,
            member=member,
            home=home,
            shared=shared,
        )
        self._send(neighbour, step)

    def _wait(self, pending: Pending) -> int:
        """Return a number that a step waits for."""
        self._numbered += 1
        pending.waiting.append(self._numbered)
        return self._numbered

    def _wait_for_coverers(
        self, pending: Pending, changes: Sequence[Change], tables: Tables
    ) -> None:
        """Have a subscription that is covered wait until what covers it is everywhere.

        It is not passed on, so nothing that it causes would tell.
        """
        for change in changes:
            if change.action != f.SUBSCRIBE:
                continue
            for number, (neighbour, names) in self._under_way.items():
                coverer = tables.passed[neighbour].get(change.name)
                if coverer and coverer in names:
                    pending.waiting.append(number)

    def _settle(self, pending: Pending) -> None:
        """Answer a step if it waits for nothing, or remember it."""
        if not pending.waiting:
            self._answer(pending)
            return
        self._numbered += 1
        self._steps[self._numbered] = pending
        for number in pending.waiting:
            self._causes.setdefault(number, []).append(self._numbered)
        self._answer_ahead(self._numbered)

    def _answer(self, pending: Pending, away: tuple[str, ...] = ()) -> None:
        number, refused = pending.number, pending.refused
        if pending.hop in self._clients:
            if number or not pending.answered:  # A client is welcomed once.
                self._send(pending.hop, f.Done(number=number, refused=refused, away=away))
        elif pending.hop and number:
            self._send(pending.hop, Stepped(number=number, refused=refused, away=away))

    # -- Brokers that are away ------------------------------------------------------------------

    def _note_away(self, frame: f.Away, source: str, now_ns: int) -> None:
        """Answer what waits for a neighbour that acknowledges nothing."""
        del source, now_ns
        if frame.neighbour in self.neighbours:
            self._away[frame.neighbour] = None
            for key in list(self._steps):
                self._answer_ahead(key)

    def _note_back(self, frame: f.Back, source: str, now_ns: int) -> None:
        del source, now_ns
        self._away.pop(frame.neighbour, None)

    def _answer_ahead(self, key: int) -> None:
        """Answer a regular step that waits for nothing but brokers that are away.

        It stays, and is answered once more when they have it. Steps of transactions wait: these need all brokers.
        """
        pending = self._steps[key]
        if pending.answered or pending.transaction or not pending.hop:
            return
        away: dict[str, None] = {}
        for number in pending.waiting:
            neighbour, _ = self._under_way.get(number, ("", []))
            missing = (neighbour,) if neighbour in self._away else self._partial.get(number)
            if missing is None:
                return
            away.update(dict.fromkeys(missing))
        self._answer(pending, tuple(sorted(away)))
        pending.answered = True
        self.tables.returning.update(dict.fromkeys(pending.advertised, key))

    def _note_partial(self) -> None:
        """Have nothing covered by what was answered ahead of brokers that are away."""
        self.tables.partial = {
            name for number in self._partial for name in self._under_way[number][1]
        }

    def _announce(self, number: int, neighbour: str, changes: list[Change]) -> None:
        self._announced[number] = (neighbour, changes)
        index = self._unanswered.setdefault(neighbour, MatchIndex())
        for change in changes:
            index.add(f"{number}/{change.name}", parse(change.where))

    def _forget_announced(self, number: int) -> None:
        neighbour, changes = self._announced.pop(number, ("", []))
        for change in changes:
            self._unanswered[neighbour].remove(f"{number}/{change.name}")
        if neighbour and not len(self._unanswered[neighbour]):
            del self._unanswered[neighbour]

    # -- Steps of neighbours --------------------------------------------------------------------

    def _step_in(self, frame: Step, source: str, now_ns: int) -> None:
        del now_ns
        if not frame.member:
            self._change(frame.changes, source, frame.number)
            return
        if frame.home:
            self._members[frame.member] = (frame.home, source)
        elif self._members.get(frame.member, ("", ""))[1] == source:
            del self._members[frame.member]  # Else it has come back elsewhere.
        pending = Pending(source, frame.number, "", "", [])
        self._introduce(pending, frame.member, frame.home, but=source)

    def _stepped(self, frame: Stepped, source: str, now_ns: int) -> None:
        del source, now_ns
        if not frame.away:
            self._stepped_by(frame.number, frame.refused)
        elif frame.number in self._under_way:
            self._partial[frame.number] = frame.away
            self._note_partial()
            for key in self._causes.get(frame.number, ()):
                if key in self._steps:
                    self._answer_ahead(key)

    def _stepped_by(self, number: int, refused: str) -> None:
        self._under_way.pop(number, None)
        self._forget_announced(number)
        if self._partial.pop(number, None) is not None:
            self._note_partial()
        for key in self._causes.pop(number, ()):
            pending = self._steps.get(key)
            if pending is None:
                continue  # It was given up.
            pending.waiting.remove(number)
            pending.refused = pending.refused or refused
            if not pending.waiting:
                del self._steps[key]
                self._answer(pending)
            else:
                self._answer_ahead(key)
        returning = self.tables.returning
        for name in [each for each, step in returning.items() if step not in self._steps]:
            del returning[name]

    # -- Publications ---------------------------------------------------------------------------

    def _unknowing(self, publication: Publication, hop: str) -> list[str]:
        """Return neighbours that have yet to say who wants what a publication was advertised as."""
        return [
            neighbour
            for neighbour, index in self._unanswered.items()
            if neighbour != hop and index.match(publication.attributes)
        ]

    def _routed(self, frame: Routed, source: str, now_ns: int) -> None:
        del now_ns
        self._publish(frame.publication, source, frame.version)

    def _publish(self, publication: Publication, hop: str, version: int) -> None:
        """Route a regular publication by a version of the tables."""
        if version >= self.version:
            neighbours, clients = self.tables.route(publication.attributes, hop)
        else:
            event = publication.attributes
            neighbours, clients = route_back(self.tables, self._undos, event, hop, version)
        for neighbour in sorted({*neighbours, *self._unknowing(publication, hop)}):
            self._send(neighbour, Routed(publication=publication, version=version))
        for client, names in clients.items():
            self._send(client, f.Notify(publication=publication, subscriptions=tuple(names)))
