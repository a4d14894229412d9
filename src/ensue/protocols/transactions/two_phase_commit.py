"""Two-phase commit of serializable and atomic transactions: participant and coordinator.

A transaction is opened at all brokers, its operations are steps, one after the other, and it ends
by two-phase commit. Messages about the transaction as a whole are flooded along the tree, and their
answers gathered on the way back.

*Serializable.* A broker votes twice. When the transaction is opened (D5), it refuses if its tables
are not of the version that the transaction begins with, or if it has voted for a transaction that
comes after it; transactions are ordered by version and name. So every broker that takes part knows
every transaction that comes before any that it votes for. When the transaction is prepared, the
broker waits until all earlier transactions have ended here (`parked`, D7), then replays the log
(`contexts`) and votes. Publications are held at the brokers of their recipients until the commit.

*Atomic.* Steps are made on the broker's own tables, visible to all at once. An abort is undone by
the homes of the clients that acted (`compensation`).

A decision is flooded ahead of the corrections that follow it (`contexts.fixes`), so that every
neighbor commits first. `Decided` returns along the tree after all publications that were routed
by older versions; then `Forget` drops the versions. Until then events may still come for a
subscription that the transaction withdrew, and must reach its client: the client keeps it until its
home sends `Withdrawn`, after the last such event.

*Coordinator.* The client's home coordinates. It persists the decision before it sends it, so no
broker waits for a client. Each transaction has a deadline on the home's clock: if it is not decided
by then, it is aborted. It is also aborted if the client leaves, lets its lease expire, or has no
connection for `grace_ns` before it requested the commit. A home that crashes recovers everything
and resumes; deadlines that have passed are handled at once.

A serializable transaction that a broker refused to open (D5) is opened again under a later name,
after a pause that doubles each time, until its deadline: nothing of it has happened yet, so its
client need not know.

HAZARD: a broker that has voted yes and is cut off from the coordinator's home can't decide. Regular
traffic does not notice; later serializable transactions wait, and time out, until the two are
connected again. HAZARD: a client that hangs delays serializable transactions that began after its
own until its deadline, because that is their order (D5); they may time out.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from ensue.protocols.content import frames as f
from ensue.protocols.content.frames import SUBSCRIBE, UNSUBSCRIBE
from ensue.protocols.content.refusals import too_long, too_many_transactions
from ensue.protocols.content.state import BrokerState
from ensue.protocols.content.steps import Pending, Steps
from ensue.protocols.content.versions import Undo
from ensue.protocols.transactions import frames as t
from ensue.protocols.transactions.compensation import Compensation
from ensue.protocols.transactions.contexts import (
    Context,
    ContextRecord,
    Delivery,
    fixes,
    replay,
)
from ensue.protocols.transactions.operations import ABORTED, OVER, UNDER_WAY
from ensue.protocols.transactions.records import (
    OPEN,
    OPENING,
    PAUSING,
    PREPARING,
    CommitRecord,
    Coordination,
    Gather,
)

__all__ = ["TwoPhaseCommit", "deliver"]


def deliver(state: BrokerState, name: str, deliveries: list[Delivery]) -> None:
    """Send clients the events of a transaction.

    Each event carries how many follow for its subscription: a reader takes all or none.
    """
    left = Counter(each for one in deliveries for each in one.subscriptions)
    for one in deliveries:
        left.subtract(one.subscriptions)
        if one.client in state.clients:
            notify = f.Notify(
                publication=one.publication,
                subscriptions=one.subscriptions,
                transaction=name,
                path=one.path,
                following=tuple(left[each] for each in one.subscriptions),
            )
            state.send(one.client, notify)


class TwoPhaseCommit:
    """Votes and decisions of one broker, as participant and as coordinator's home."""

    def __init__(
        self,
        state: BrokerState,
        steps: Steps,
        compensation: Compensation,
        contexts: dict[str, Context],
    ) -> None:
        self._state = state
        self._steps = steps
        self._compensation = compensation
        self.contexts = contexts
        """Transactions that are open here."""
        self.parked: dict[str, str] = {}
        """Transactions that wait for earlier ones before the vote, and the neighbor to answer."""
        self.gathers: dict[str, Gather] = {}
        """By kind and transaction: answers that this broker waits for."""
        self.last_number = 0
        """The largest number of a transaction seen: names of new ones come after it."""
        self.settling: dict[str, list[str]] = {}
        """By transaction committed here but not behind some neighbor: its subscriptions."""
        self.coordinations: dict[str, Coordination] = {}

    def restore(
        self,
        contexts: Mapping[str, ContextRecord],
        record: CommitRecord,
        coordinations: dict[str, Coordination],
    ) -> None:
        """Restore the persisted transactions."""
        for name, one in contexts.items():
            self.contexts[name] = Context.restored(one, self._state.tables)
        self.parked, self.gathers = record.parked, record.gathers
        self.last_number, self.settling = record.last_number, record.settling
        self.coordinations = coordinations
        self.update_settling()

    # -- Names ----------------------------------------------------------------------------------

    def new_name(self) -> str:
        """Return a name that comes after all names seen here."""
        self.last_number += 1
        return f"{self.last_number:010d}-{self._state.name}"

    def note_name(self, name: str) -> None:
        """Order new names after a name seen here."""
        self.last_number = max(self.last_number, int(name.partition("-")[0]))

    # -- Brokers that join ----------------------------------------------------------------------

    def add_neighbor(self, neighbor: str) -> None:
        """Add a neighbor that has joined to open transactions."""
        for context in self.contexts.values():
            if context.layer is not None:
                context.layer.add_neighbor(neighbor)

    def introduction(self) -> f.Adopted:
        """Return the state that a new broker begins with."""
        return f.Adopted(
            version=self._state.version,
            kept=tuple(undo.version for undo in self._state.undos),
            numbered=self.last_number,
            transactions=tuple(
                (name, context.base, context.isolated) for name, context in self.contexts.items()
            ),
        )

    def adopted(self, frame: f.Adopted) -> None:
        """Start with the open transactions of the other brokers."""
        self.last_number = max(self.last_number, frame.numbered)
        for name, base, isolated in frame.transactions:
            self.contexts[name] = Context(base, self._state.tables, isolated=isolated)

    # -- Gathering answers ----------------------------------------------------------------------

    def _ask_all(self, kind: str, frame: Any, parent: str, note: int = 0) -> bool:
        """Flood a frame away from its sender; return whether a neighbor has to answer."""
        waiting = [neighbor for neighbor in self._state.neighbors if neighbor != parent]
        self._state.flood(frame, but=parent)
        if waiting:
            self.gathers[f"{kind}/{frame.transaction}"] = Gather(parent, waiting, note)
        return bool(waiting)

    def _gathered(self, kind: str, name: str, source: str, refused: str = "") -> Gather | None:
        """Note an answer; return the gather if this completes it. One refusal is enough."""
        key = f"{kind}/{name}"
        if refused:
            return self.gathers.pop(key, None)
        gather = self.gathers.get(key)
        if gather is None or source not in gather.waiting:
            return None
        gather.waiting.remove(source)
        return None if gather.waiting else self.gathers.pop(key)

    # -- Participant: open ----------------------------------------------------------------------

    def open(self, frame: t.Open, source: str) -> None:
        """Open a transaction here and behind, or refuse it."""
        self.note_name(frame.transaction)
        refused = self.cannot_open(frame)
        if refused:
            self._state.send(source, t.Opened(transaction=frame.transaction, refused=refused))
            return
        self.contexts[frame.transaction] = Context(
            frame.base, self._state.tables, isolated=frame.isolated
        )
        if not frame.isolated:
            self._state.flood(frame, but=source)  # Not answered: it arrives before all operations.
        elif not self._ask_all("open", frame, source):
            self._state.send(source, t.Opened(transaction=frame.transaction))

    def cannot_open(self, frame: t.Open) -> str:
        """Return why a transaction can't begin here, or nothing (D5)."""
        if not frame.isolated:
            return ""
        if frame.base != self._state.version:
            return "the tables have changed since it began"
        order = (frame.base, frame.transaction)
        if any(
            context.voted and (context.base, name) > order
            for name, context in self.contexts.items()
        ):
            return "one that comes after it was voted for"
        return ""

    def opened(self, frame: t.Opened, source: str, now_ns: int) -> None:
        """Handle a neighbor's answer to `Open`."""
        gather = self._gathered("open", frame.transaction, source, frame.refused)
        if gather is None:
            return
        if gather.parent:
            self._state.send(gather.parent, frame)
        else:
            self._opened_everywhere(frame.transaction, frame.refused, now_ns)

    # -- Participant: prepare -------------------------------------------------------------------

    def prepare(self, name: str, source: str, now_ns: int) -> None:
        """Vote about a transaction, when all earlier ones have ended here."""
        context = self.contexts.get(name)
        if context is not None and self.is_behind_another(name, context):
            self.parked[name] = source
        else:
            self._vote(name, source, now_ns)

    def is_behind_another(self, name: str, context: Context) -> bool:
        """Return whether an earlier transaction is open here."""
        return context.isolated and any(
            other.isolated and (other.base, its) < (context.base, name)
            for its, other in self.contexts.items()
        )

    def _vote(self, name: str, source: str, now_ns: int) -> None:
        context = self.contexts.get(name)
        refused = OVER if context is None else self._objection(context)
        if context is not None and not refused:
            context.voted = True
            self.update_settling()
            if self._ask_all("prepare", t.Prepare(transaction=name), source):
                return
        self._voted(name, source, refused, now_ns)

    def _objection(self, context: Context) -> str:
        """Return why a transaction must not be committed, or nothing."""
        for one in context.issued:
            if one.client not in self._state.clients:
                return f"{one.client} is gone"
        return context.conflict(self._state.tables) if context.isolated else ""

    def prepared(self, frame: t.Prepared, source: str, now_ns: int) -> None:
        """Handle the votes of a neighbor and the brokers behind it."""
        gather = self._gathered("prepare", frame.transaction, source, frame.refused)
        if gather is not None:
            self._voted(frame.transaction, gather.parent, frame.refused, now_ns)

    def _voted(self, name: str, source: str, refused: str, now_ns: int) -> None:
        """Pass on the votes of this broker and all behind it, or decide."""
        if source:
            self._state.send(source, t.Prepared(transaction=name, refused=refused))
            return
        coordination = self.coordinations.get(name)
        if coordination is not None and coordination.phase == PREPARING:
            self._conclude(name, now_ns, commit=not refused, reason=refused)

    def prepare_parked(self, now_ns: int) -> None:
        """Vote about transactions that waited only for one that has ended (D7)."""
        for name, source in list(self.parked.items()):
            context = self.contexts.get(name)
            waits = context is not None and self.is_behind_another(name, context)
            if name in self.parked and not waits:  # A vote may decide, and so call this again.
                del self.parked[name]
                self._vote(name, source, now_ns)

    # -- Participant: decide --------------------------------------------------------------------

    def decide(self, frame: t.Decide, source: str, now_ns: int) -> None:
        """Carry a decision out, here and behind."""
        asked = self._ask_all("decide", frame, source)
        self.terminate(frame.transaction, commit=frame.commit, reason=frame.reason, now_ns=now_ns)
        if not asked:
            self._state.send(source, t.Decided(transaction=frame.transaction))

    def decided(self, frame: t.Decided, source: str) -> None:
        """Note that a neighbor and all behind it have carried a decision out."""
        gather = self._gathered("decide", frame.transaction, source)
        if gather is None:
            return
        self.settling.pop(frame.transaction, None)
        self.update_settling()
        if gather.parent:
            self._state.send(gather.parent, frame)
        elif gather.note:
            self.forget(t.Forget(version=gather.note), "")

    def forget(self, frame: t.Forget, source: str) -> None:
        """Drop old versions of the tables, here and behind."""
        state = self._state
        forgotten = [undo for undo in state.undos if undo.version <= frame.version]
        state.undos = [undo for undo in state.undos if undo.version > frame.version]
        state.flood(frame, but=source)
        for undo in forgotten:
            for client, names in undo.withdrawn.items():
                if client in state.clients:
                    withdrawn = t.Withdrawn(
                        transaction=undo.transaction, subscriptions=tuple(names)
                    )
                    state.send(client, withdrawn)

    def terminate(self, name: str, *, commit: bool, reason: str, now_ns: int) -> None:
        """End a transaction here."""
        self.parked.pop(name, None)
        for kind in ("open", "prepare"):
            self.gathers.pop(f"{kind}/{name}", None)
        context = self.contexts.pop(name, None)
        if context is None:
            return
        state = self._state
        self.update_settling()
        self._steps.give_up(name, reason or OVER)
        for _, number in context.invitations.values():
            self._steps.causes.pop(number, None)  # No step is left to answer.
        state.record(action="committed" if commit else "aborted", transaction=name)
        withdrawn: dict[str, list[str]] = {}
        if commit:
            if context.isolated:
                self.apply(context)
                self.let_settle(name, context)
            withdrawn = self._withdrawn_of(context)
            if context.isolated and state.neighbors:
                withdrawn = self._drain_first(name, withdrawn)
            deliver(state, name, context.deliveries)
            self._compensation.withdraw(context.issued)
            self._compensation.keep_withdrawn(context.issued)
        elif not context.isolated:
            self._compensation.undo(context.issued)
        for client in context.participants:
            if client in state.clients:
                ended = t.Ended(
                    transaction=name,
                    committed=commit,
                    reason=reason,
                    subscriptions=tuple((each, "") for each in withdrawn.get(client, ())),
                )
                state.send(client, ended)
        self.prepare_parked(now_ns)

    def apply(self, context: Context) -> None:
        """Replay the log on the tables; keep the previous version for routing."""
        state = self._state
        done, added, removed = replay(context.log, state.tables)
        state.version += 1
        state.undos.append(Undo(state.version, added, removed))
        self._steps.pass_on(fixes(context.log, done, state.tables), Pending())

    def _withdrawn_of(self, context: Context) -> dict[str, list[str]]:
        """Return, by client of this broker, the subscriptions that a commit withdrew."""
        found: dict[str, list[str]] = {}
        for one in context.issued:
            name = one.change.name
            if one.change.action == UNSUBSCRIBE and name not in self._state.tables.subscriptions:
                names = found.setdefault(one.client, [])
                if name not in names:
                    names.append(name)
        return found

    def _drain_first(self, name: str, withdrawn: dict[str, list[str]]) -> dict[str, list[str]]:
        """Keep subscriptions that older events may still match until `Forget`; return the rest."""
        rest = {client: list(names) for client, names in withdrawn.items()}
        for undo in self._state.undos[-1:]:
            undo.transaction = name
            for client, names in withdrawn.items():
                undo.withdrawn[client] = [each for each in names if each in undo.removed]
                rest[client] = [each for each in names if each not in undo.removed]
        return rest

    def let_settle(self, name: str, context: Context) -> None:
        """Mark new subscriptions: they cover nothing until all brokers behind commit them."""
        if f"decide/{name}" in self.gathers:
            self.settling[name] = [
                change.name
                for step in context.log
                for change in step.changes
                if change.action == SUBSCRIBE
            ]
            self.update_settling()

    def update_settling(self) -> None:
        """Mark subscriptions of unfinished commits: they cover nothing."""
        going = {
            change.name
            for context in self.contexts.values()
            if context.voted and context.isolated
            for step in context.log
            for change in step.changes
            if change.action == UNSUBSCRIBE
        }
        self._state.tables.settling = going.union(*self.settling.values())

    # -- Coordinator: begin ---------------------------------------------------------------------

    def coordinates(self, name: str, client: str) -> bool:
        """Return whether a client coordinates a transaction that is open to operations."""
        coordination = self.coordinations.get(name)
        return (
            coordination is not None
            and coordination.client == client
            and coordination.phase == OPEN
        )

    def count_of(self, client: str) -> int:
        """Return how many open transactions a client coordinates."""
        return sum(one.client == client for one in self.coordinations.values())

    def begin(self, frame: t.Begin, client: str, now_ns: int, *, coordinated: int) -> None:
        """Begin a transaction of a client that coordinates `coordinated` others."""
        config, refused = self._state.config, ""
        if frame.isolation not in (t.SERIALIZABLE, t.ATOMIC):
            refused = f"isolation must be {t.SERIALIZABLE} or {t.ATOMIC}, got {frame.isolation!r}"
        elif not 0 < frame.timeout_ns <= config.timeout_ns_max:
            refused = too_long(config)
        elif coordinated >= config.transactions_max:
            refused = too_many_transactions(client, config)
        if refused:
            self._state.send(client, f.Done(number=frame.number, refused=refused))
            return
        isolated = frame.isolation == t.SERIALIZABLE
        deadline_ns = now_ns + frame.timeout_ns
        self._start(Coordination(client, isolated, deadline_ns, frame.number), now_ns)

    def _start(self, coordination: Coordination, now_ns: int) -> None:
        """Open a transaction at all brokers, under a new name."""
        state, name = self._state, self.new_name()
        coordination.phase, coordination.attempts = OPENING, coordination.attempts + 1
        self.coordinations[name] = coordination
        frame = t.Open(transaction=name, base=state.version, isolated=coordination.isolated)
        refused = self.cannot_open(frame)
        if refused:
            self._opened_everywhere(name, refused, now_ns)
            return
        context = Context(state.version, state.tables, isolated=coordination.isolated)
        context.participants[coordination.client] = None
        self.contexts[name] = context
        if not coordination.isolated:
            state.flood(frame, but="")
            self._opened_everywhere(name, "", now_ns)
        elif not self._ask_all("open", frame, ""):
            self._opened_everywhere(name, "", now_ns)

    def _opened_everywhere(self, name: str, refused: str, now_ns: int) -> None:
        """Let the client act, or open the transaction again later if a broker refused it."""
        state, coordination = self._state, self.coordinations.get(name)
        if coordination is None or coordination.phase != OPENING:
            return
        if not refused:
            coordination.phase = OPEN
            kind = t.SERIALIZABLE if coordination.isolated else t.ATOMIC
            state.record(action="began", topic=kind, transaction=name)
            done = f.Done(number=coordination.number, transaction=name)
            coordination.number = 0
            state.send(coordination.client, done)
            return
        context = self.contexts.get(name)
        if context is not None:
            context.participants.clear()  # Nothing has happened: the client keeps waiting.
        self.spread(name, now_ns, commit=False, reason=refused)
        pause_ns = state.config.retry_ns << min(coordination.attempts - 1, 20)
        coordination.phase = PAUSING
        coordination.retry_at_ns = now_ns + min(pause_ns, state.config.retry_ns_max)
        self.coordinations[name] = coordination

    # -- Coordinator: end -----------------------------------------------------------------------

    def end(self, frame: t.End, client: str, now_ns: int) -> None:
        """Prepare a transaction, or abort it."""
        name = frame.transaction
        if not self.coordinates(name, client):
            self._state.send(client, f.Done(number=frame.number, refused=OVER))
            return
        coordination = self.coordinations[name]
        coordination.number = frame.number
        if not frame.commit or self._steps.acts_within(name, ""):
            reason = UNDER_WAY if frame.commit else ABORTED
            self._conclude(name, now_ns, commit=False, reason=reason)
            return
        coordination.phase = PREPARING
        self.prepare(name, "", now_ns)

    def _conclude(self, name: str, now_ns: int, *, commit: bool, reason: str) -> None:
        """Decide, and answer the client."""
        coordination = self.coordinations.pop(name)
        self.spread(name, now_ns, commit=commit, reason=reason)
        if coordination.number:
            done = f.Done(number=coordination.number, refused=reason, transaction=name)
            if coordination.client in self._state.clients:
                self._state.send(coordination.client, done)

    def spread(self, name: str, now_ns: int, *, commit: bool, reason: str) -> None:
        """Flood the decision, then carry it out here."""
        self.coordinations.pop(name, None)
        context = self.contexts.get(name)
        isolated = context is not None and context.isolated
        note = self._state.version + 1 if commit and isolated else 0
        asked = self._ask_all(
            "decide", t.Decide(transaction=name, commit=commit, reason=reason), "", note
        )
        self.terminate(name, commit=commit, reason=reason, now_ns=now_ns)
        if note and not asked:
            self.forget(t.Forget(version=note), "")

    def abort_all_of(self, client: str, now_ns: int, reason: str, *, but: str = "") -> None:
        """Abort what a client coordinates, except transactions in one phase."""
        for name, coordination in list(self.coordinations.items()):
            if (
                coordination.client == client
                and coordination.phase != but
                and name in self.coordinations
            ):
                self._conclude(name, now_ns, commit=False, reason=reason)

    # -- Deadlines ------------------------------------------------------------------------------

    def due_ns(self) -> int | None:
        """Return when the next deadline or the next attempt is due."""
        return min((_due_of(one) for one in self.coordinations.values()), default=None)

    def tick(self, now_ns: int) -> None:
        """Abort transactions at their deadlines; open refused ones again."""
        for name, coordination in list(self.coordinations.items()):
            if _due_of(coordination) > now_ns or name not in self.coordinations:
                continue
            if coordination.deadline_ns <= now_ns:
                self._conclude(name, now_ns, commit=False, reason="timeout")
            else:
                del self.coordinations[name]
                self._start(coordination, now_ns)


def _due_of(coordination: Coordination) -> int:
    if coordination.phase == PAUSING:
        return min(coordination.retry_at_ns, coordination.deadline_ns)
    return coordination.deadline_ns
