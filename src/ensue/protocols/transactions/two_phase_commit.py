"""Two-phase commit of serializable and atomic transactions: participant and coordinator.

A transaction is opened at each broker ahead of its first step there, its operations are steps, one
after the other, and it ends by two-phase commit. The votes of the brokers with steps are gathered
along the tree, and the decision is flooded to all brokers. A broker that has carried it out knows
no steps of it any more: those on their way to it are dropped. It is never opened there again: the
brokers with steps of it are one part of the tree, and `Open` only leads out of it.

*Serializable.* All brokers with steps of the transaction vote. A broker replays the log on its
tables (`contexts`) and refuses if a step would lead elsewhere. From its vote until it carries the
decision out it holds a lock (`locks`). A transaction that conflicts with one that holds a lock
waits for it (`parked`, D7) if it has the larger name. Otherwise it gives way: all its votes are
withdrawn (`Release`), and it is prepared again after a pause that doubles each time, until its
deadline. So waiting goes from larger to smaller names only, and never in a circle. A transaction
also waits for one of smaller name that waits here itself, so that it does not overtake it for ever.
Publications are held at the brokers of their recipients until the commit.

Why this is serializable. Decisions are made one after the other in time; that is the serial order.
Let T and U be committed and conflict at a broker that votes for T first. It votes for U only after
it has carried out the decision about T, and U is decided only after that vote: so T is decided
before U, whichever broker is asked, and the orders of all brokers agree. When U is decided, every
broker that voted for it still has in its tables all that U read there, with the changes of all
transactions that were decided before and conflict: the others would have held locks. Decisions are
flooded along a tree of FIFO links, which keeps causal order. The decision about U follows that
about T, so every broker carries them out in this order, also where they do not meet. Two
transactions that conflict nowhere may be carried out in different sequences at different brokers:
their steps commute (`locks`, `content.versions`).

*Atomic.* Steps are made on the broker's own tables, visible to all at once. An abort is undone by
the homes of the clients that acted (`compensation`). HAZARD: a subscription that matched an event
may end before the commit, and then does not get it (`still_owed`). If another transaction moves it
meanwhile, its successor does not get the event either. Serializable transactions would conflict.

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

The paper orders transactions by version and name, and a broker may have voted for one before it
hears of another that comes first (D5). Locks make the order irrelevant, and no transaction waits
for one that it does not conflict with, or whose client has not requested the commit.

HAZARD: a broker that has voted yes and is cut off from the coordinator's home can't decide. Regular
traffic does not notice; serializable transactions that conflict wait, and time out, until the two
are connected again. HAZARD: of transactions that conflict, the first to commit wins. A long one may
find again and again that what it read has changed.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
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
from ensue.protocols.transactions.locks import overlap
from ensue.protocols.transactions.operations import ABORTED, OVER, TIMEOUT, UNDER_WAY
from ensue.protocols.transactions.records import (
    OPEN,
    PAUSING,
    PREPARING,
    CommitRecord,
    Coordination,
    Gather,
)

__all__ = ["TwoPhaseCommit", "deliver", "home_of"]


def home_of(transaction: str) -> str:
    """Return the home of the client that coordinates a transaction."""
    return transaction.partition("-")[2]


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
            commits=self._state.commits,
            kept=tuple((undo.home, undo.number) for undo in self._state.undos),
            numbered=self.last_number,
        )

    def adopted(self, frame: f.Adopted) -> None:
        """Name transactions after those of the other brokers."""
        self.last_number = max(self.last_number, frame.numbered)

    # -- Gathering answers ----------------------------------------------------------------------

    def _ask(
        self, kind: str, frame: Any, parent: str, neighbors: Iterable[str], note: int = 0
    ) -> bool:
        """Send a frame on to neighbors but its sender; return whether one has to answer."""
        waiting = [neighbor for neighbor in neighbors if neighbor != parent]
        for neighbor in waiting:
            self._state.send(neighbor, frame)
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
        """Open a transaction here. This arrives before its first step."""
        self.note_name(frame.transaction)
        context = Context(self._state.tables, isolated=frame.isolated)
        context.neighbors[source] = None
        self.contexts[frame.transaction] = context

    # -- Participant: prepare -------------------------------------------------------------------

    def prepare(self, frame: t.Prepare, source: str, now_ns: int) -> None:
        """Vote about a transaction, here and behind."""
        context = self.contexts.get(frame.transaction)
        if context is None:
            self._state.send(
                source,
                t.Prepared(transaction=frame.transaction, refused=OVER, attempt=frame.attempt),
            )
            return
        context.attempt = frame.attempt
        self._vote(frame.transaction, context, source, now_ns)

    def _vote(self, name: str, context: Context, source: str, now_ns: int) -> None:
        """Vote, or wait for transactions that come first and conflict (`locks`)."""
        refused, again = self._objection(context), False
        if context.isolated and not refused:
            ahead = self.conflicting(name, context)
            if any(other > name for other in ahead):
                refused, again = f"conflict: {max(ahead)} was voted for", True
            elif ahead:
                self.parked[name] = source
                return
        if not refused:
            context.voted = True
            self.update_settling()
            ask = t.Prepare(transaction=name, attempt=context.attempt)
            if self._ask("prepare", ask, source, context.neighbors, context.attempt):
                return
        self._voted(name, source, refused, now_ns, again=again)

    def conflicting(self, name: str, context: Context) -> list[str]:
        """Return the transactions that this one conflicts with, and that may go first.

        That are those that were voted for, and earlier ones that wait for their vote.
        """
        return [
            its
            for its, other in self.contexts.items()
            if other.isolated
            and its != name
            and (other.voted or (its in self.parked and its < name))
            and overlap(context, other)
        ]

    def _objection(self, context: Context) -> str:
        """Return why a transaction must not be committed, or nothing."""
        for one in context.issued:
            if one.client not in self._state.clients:
                return f"{one.client} is gone"
        return context.conflict(self._state.tables) if context.isolated else ""

    def prepared(self, frame: t.Prepared, source: str, now_ns: int) -> None:
        """Handle the votes of a neighbor and the brokers behind it."""
        name = frame.transaction
        waiting = self.gathers.get(f"prepare/{name}")
        if waiting is None or waiting.note != frame.attempt:
            return  # It answers an attempt whose votes were withdrawn.
        gather = self._gathered("prepare", name, source, frame.refused)
        if gather is not None:
            self._voted(name, gather.parent, frame.refused, now_ns, again=frame.again)

    def _voted(
        self, name: str, source: str, refused: str, now_ns: int, *, again: bool = False
    ) -> None:
        """Pass on the votes of this broker and all behind it, or decide."""
        if source:
            answer = t.Prepared(
                transaction=name,
                refused=refused,
                attempt=self.contexts[name].attempt,
                again=again,
            )
            self._state.send(source, answer)
            return
        coordination = self.coordinations.get(name)
        if coordination is None or coordination.phase != PREPARING:
            return
        if again:
            self._pause(name, coordination, now_ns)
        else:
            self._conclude(name, now_ns, commit=not refused, reason=refused)

    def release(self, frame: t.Release, source: str, now_ns: int) -> None:
        """Withdraw the votes for a transaction, here and behind."""
        name = frame.transaction
        self.parked.pop(name, None)
        self.gathers.pop(f"prepare/{name}", None)
        context = self.contexts.get(name)
        if context is None:
            return
        for neighbor in context.neighbors:
            if neighbor != source:
                self._state.send(neighbor, frame)
        if context.voted:
            context.voted = False
            self.update_settling()
        self.prepare_parked(now_ns)

    def prepare_parked(self, now_ns: int) -> None:
        """Vote about transactions that waited only for one that has ended (D7)."""
        for name in sorted(self.parked):
            if name in self.parked:  # A vote may decide, and so call this again.
                self._vote(name, self.contexts[name], self.parked.pop(name), now_ns)

    # -- Participant: decide --------------------------------------------------------------------

    def decide(self, frame: t.Decide, source: str, now_ns: int) -> None:
        """Carry a decision out, here and behind."""
        self.note_name(frame.transaction)
        asked = self._ask("decide", frame, source, self._state.neighbors)
        self.terminate(frame, now_ns)
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
            self.forget(t.Forget(home=self._state.name, number=gather.note), "")

    def forget(self, frame: t.Forget, source: str) -> None:
        """Drop old versions of the tables, here and behind."""
        state = self._state
        forgotten = [
            undo for undo in state.undos if undo.home == frame.home and undo.number <= frame.number
        ]
        state.undos = [undo for undo in state.undos if undo not in forgotten]
        state.flood(frame, but=source)
        for undo in forgotten:
            for client, names in undo.withdrawn.items():
                if client in state.clients:
                    withdrawn = t.Withdrawn(
                        transaction=undo.transaction, subscriptions=tuple(names)
                    )
                    state.send(client, withdrawn)

    def terminate(self, frame: t.Decide, now_ns: int) -> None:
        """End a transaction here."""
        state = self._state
        name, commit, reason = frame.transaction, frame.commit, frame.reason
        self.parked.pop(name, None)
        self.gathers.pop(f"prepare/{name}", None)
        context = self.contexts.pop(name, None)
        if context is None:  # It had no steps here.
            context = Context(state.tables, isolated=frame.number > 0)
        self.update_settling()
        self._steps.give_up(name, reason or OVER)
        for _, number in context.invitations.values():
            self._steps.causes.pop(number, None)  # No step is left to answer.
        state.record(action="committed" if commit else "aborted", transaction=name)
        withdrawn: dict[str, list[str]] = {}
        if commit:
            # A layer's subscriptions begin with the commit; shared tables have lost withdrawn ones.
            its = SUBSCRIBE if context.isolated else UNSUBSCRIBE
            own = [one.change.name for one in context.issued if one.change.action == its]
            owed = self._compensation.still_owed(context.deliveries, own)
            if context.isolated:
                self.apply(context, home_of(name), frame.number)
                self.let_settle(name, context)
            withdrawn = self._withdrawn_of(context)
            if context.isolated and state.neighbors:
                withdrawn = self._drain_first(name, withdrawn)
            deliver(state, name, owed)
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

    def apply(self, context: Context, home: str, number: int) -> None:
        """Replay the log on the tables; keep the previous version for routing."""
        state = self._state
        done, added, removed = replay(context.log, state.tables)
        state.commits[home] = number
        state.undos.append(Undo(number, added, removed, home=home))
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

    def named(self, transaction: str, client: str) -> str:
        """Return the name of a transaction that a client may call by the request that began it."""
        if not transaction.startswith(t.BEGUN):
            return transaction
        return next(
            (
                name
                for name, one in self.coordinations.items()
                if one.client == client and t.begun_by(one.began) == transaction
            ),
            transaction,
        )

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
        state, name = self._state, self.new_name()
        context = Context(state.tables, isolated=isolated)
        context.participants[client] = None
        self.contexts[name] = context
        self.coordinations[name] = Coordination(
            client, isolated, now_ns + frame.timeout_ns, 0, began=frame.number
        )
        state.record(action="began", topic=frame.isolation, transaction=name)
        state.send(client, f.Done(number=frame.number, transaction=name))

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
        self._prepare(name, coordination, now_ns)

    def _prepare(self, name: str, coordination: Coordination, now_ns: int) -> None:
        """Collect the votes of all brokers that have steps of a transaction."""
        coordination.phase, coordination.attempts = PREPARING, coordination.attempts + 1
        prepare = t.Prepare(transaction=name, attempt=coordination.attempts)
        self.prepare(prepare, "", now_ns)

    def _pause(self, name: str, coordination: Coordination, now_ns: int) -> None:
        """Withdraw the votes for a while, to let another transaction go first."""
        config = self._state.config
        pause_ns = config.retry_ns << min(coordination.attempts - 1, 20)
        coordination.phase = PAUSING
        coordination.retry_at_ns = now_ns + min(pause_ns, config.retry_ns_max)
        self.release(t.Release(transaction=name), "", now_ns)

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
        state = self._state
        number = state.commits.get(state.name, 0) + 1 if commit and isolated else 0
        decide = t.Decide(transaction=name, commit=commit, reason=reason, number=number)
        asked = self._ask("decide", decide, "", state.neighbors, number)
        self.terminate(decide, now_ns)
        if number and not asked:
            self.forget(t.Forget(home=state.name, number=number), "")

    def abort_all_of(
        self, client: str, now_ns: int, reason: str, *, requested: bool = True
    ) -> None:
        """Abort what a client coordinates; also what it has requested to commit, if so."""
        for name, coordination in list(self.coordinations.items()):
            if (
                coordination.client == client
                and (requested or coordination.phase == OPEN)
                and name in self.coordinations
            ):
                self._conclude(name, now_ns, commit=False, reason=reason)

    # -- Deadlines ------------------------------------------------------------------------------

    def due_ns(self) -> int | None:
        """Return when the next deadline or the next attempt is due."""
        return min((_due_of(one) for one in self.coordinations.values()), default=None)

    def tick(self, now_ns: int) -> None:
        """Abort transactions at their deadlines; prepare those again that gave way."""
        for name, coordination in list(self.coordinations.items()):
            if _due_of(coordination) > now_ns or name not in self.coordinations:
                continue
            if coordination.deadline_ns <= now_ns:
                self._conclude(name, now_ns, commit=False, reason=TIMEOUT)
            else:
                self._prepare(name, coordination, now_ns)


def _due_of(coordination: Coordination) -> int:
    if coordination.phase == PAUSING:
        return min(coordination.retry_at_ns, coordination.deadline_ns)
    return coordination.deadline_ns
