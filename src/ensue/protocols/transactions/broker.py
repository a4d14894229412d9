"""One broker of a tree, with transactions; `nodes` adds its links.

See the packages `content` and `transactions` for its guarantees, assumptions and hazards.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from ensue.core.wire import Codec
from ensue.protocols.content import frames as f
from ensue.protocols.content.broker import ContentBroker
from ensue.protocols.content.config import ContentConfig
from ensue.protocols.content.effects import Effects
from ensue.protocols.content.input_log import InputLog
from ensue.protocols.content.leases import Leases
from ensue.protocols.content.state import BrokerState
from ensue.protocols.content.steps import Steps
from ensue.protocols.content.tables import Tables
from ensue.protocols.content.topology import Topology
from ensue.protocols.interface import Effect, Frame, Notification
from ensue.protocols.shared.link import LinkData
from ensue.protocols.transactions import frames as t
from ensue.protocols.transactions import records as r
from ensue.protocols.transactions.compensation import Compensation
from ensue.protocols.transactions.contexts import Context
from ensue.protocols.transactions.operations import Operations, lost_connection
from ensue.protocols.transactions.plans import Plans
from ensue.protocols.transactions.submissions import Submissions
from ensue.protocols.transactions.two_phase_commit import TwoPhaseCommit

__all__ = ["TransactionBroker"]

Handler = Callable[[Any, str, int], None]
"""Handles a frame, given its source and the time."""


class TransactionBroker:
    """One broker: a pure node behind numbered links (`nodes.BrokerNode`)."""

    codec = Codec(t.FRAMES)

    # The classes of the parts that a subclass may replace.
    state_type: type[BrokerState] = BrokerState
    steps_type: type[Steps] = Steps
    content_type: type[ContentBroker] = ContentBroker
    compensation_type: type[Compensation] = Compensation
    commit_type: type[TwoPhaseCommit] = TwoPhaseCommit
    operations_type: type[Operations] = Operations
    plans_type: type[Plans] = Plans

    def __init__(
        self,
        *,
        name: str,
        neighbors: Sequence[str],
        config: ContentConfig | None = None,
        records: Mapping[str, bytes] | None = None,
        now_ns: int = 0,
    ) -> None:
        self.name = name
        self.config = config or ContentConfig()
        self._effects = Effects()
        self.state = state = self.state_type(
            name=name, neighbors=neighbors, config=self.config, effects=self._effects
        )
        self.leases = Leases(self.config)
        self.steps = steps = self.steps_type(state)
        self.content = content = self.content_type(state, steps)
        self.topology = Topology(state, steps)
        contexts: dict[str, Context] = {}
        plans: dict[str, r.Plan] = {}
        compensation = self.compensation_type(state, content, contexts, plans)
        self.commit = self.commit_type(state, steps, compensation, contexts)
        self.operations = self.operations_type(
            state, steps, content, contexts, self.commit.coordinates
        )
        self.plans = self.plans_type(state, steps, compensation, contexts, plans, self._depart)
        self.submissions = Submissions(state, self.plans, self.commit.new_name)
        self._handlers = self._handler_table()
        self.log = InputLog(
            codec=self.codec,
            effects=self._effects,
            handle=self.handle,
            dump=self._dump,
            load=self._load,
            durable=self.config.durable,
            bytes_min=self.config.journal_bytes_min,
        )
        self.log.recover(records or {})
        self.leases.restart(self.sessions, now_ns)
        self._expire_from_ns = now_ns + self.config.lease_ns
        """When the first durable subscription may end: its reader may be about to return."""
        state.departed.clear()

    # -- Status ---------------------------------------------------------------------------------

    @property
    def neighbors(self) -> tuple[str, ...]:
        """The brokers next to this one."""
        return self.state.neighbors

    @property
    def tables(self) -> Tables:
        """The routing tables."""
        return self.state.tables

    @property
    def version(self) -> int:
        """The number of serializable transactions committed here."""
        return self.state.version

    @property
    def clients(self) -> tuple[str, ...]:
        """The clients whose home this is, without those that only plans still act for."""
        leaving = self.state.leaving
        return tuple(client for client in self.state.clients if client not in leaving)

    @property
    def sessions(self) -> tuple[str, ...]:
        """The clients that have a session, without durable subscriptions."""
        return tuple(client for client in self.clients if client not in self.state.mailboxes)

    @property
    def recovered(self) -> list[tuple[int, Notification]]:
        """Trace rows of recovered inputs, with their times."""
        return self.log.recovered

    @property
    def open_transactions(self) -> tuple[str, ...]:
        """Transactions and plans that are open here."""
        return (*self.commit.contexts, *self.plans.open)

    @property
    def waiting_count(self) -> int:
        """The number of steps that wait for steps they caused."""
        return len(self.steps.pending)

    @property
    def unanswered_count(self) -> int:
        """The number of answers about transactions that this broker waits for."""
        return len(self.commit.gathers) + len(self.commit.parked)

    @property
    def versions_kept(self) -> int:
        """The number of old versions of the tables that are kept."""
        return len(self.state.undos)

    def home_of(self, client: str) -> str | None:
        """Return the home of a client anywhere in the tree, if it is known."""
        member = self.state.members.get(client)
        return None if member is None else member[0]

    def hold_of(self, neighbor: str) -> str:
        """Return why a neighbor can't be abandoned; empty if it can."""
        found = self.topology.hold_of(neighbor)
        if found:
            return found
        for name in self.open_transactions:
            return f"transaction {name}, which is open"
        return "an answer about an ended transaction" if self.commit.gathers else ""

    # -- Inputs ---------------------------------------------------------------------------------

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Handle a frame of a neighbor or a client; ignore frames of others.

        A client whose name an open transaction still uses is not admitted until the transaction
        ends: it repeats its `Hello`.
        """
        known = source in self.state.clients
        if known:
            self.leases.renew(source, now_ns)
        if isinstance(frame, f.Beat | LinkData):
            if not known:  # Also a numbered frame of a client whose link has ended.
                self._effects.send(source, f.Expired())
        elif isinstance(frame, f.Hello):
            if not known and source not in self.neighbors and not self._involves(source):
                self.leases.renew(source, now_ns)
                self._take(frame, now_ns, source)
        elif known or source in self.neighbors:
            self._take(frame, now_ns, source)

    def _involves(self, client: str) -> bool:
        return self.operations.involves(client) or self.plans.involves(client)

    def handle_timer(self, *, now_ns: int) -> None:
        """Handle expired leases, grace periods and deadlines."""
        for client in self.leases.expired(now_ns):
            self.expire(client, now_ns=now_ns)
        for client in self.leases.out_of_grace(now_ns):
            self.leases.end_grace(client)
            self._take(f.Disconnected(client=client), now_ns)
        due_ns = self._mailbox_due_ns()
        for mailbox in self.state.mailboxes.idle(now_ns) if due_ns and due_ns <= now_ns else ():
            idle_ns = self.config.mailbox_expire_ns
            self._take(f.Expire(client=mailbox, idle_ns=idle_ns), now_ns)
        due_ns = self.deadline_ns()
        if due_ns is not None and due_ns <= now_ns:
            self._take(f.Tick(), now_ns)

    def next_timer_ns(self) -> int | None:
        """Return when the next timer is due."""
        dues = (self.deadline_ns(), self._mailbox_due_ns())
        known = [due_ns for due_ns in dues if due_ns is not None]
        return min([*self.leases.due_ns(), *known], default=None)

    def _mailbox_due_ns(self) -> int | None:
        """Return when the next durable subscription without a reader ends."""
        due_ns = self.state.mailboxes.due_ns()
        return None if due_ns is None else max(due_ns, self._expire_from_ns)

    def deadline_ns(self) -> int | None:
        """Return the next deadline of a transaction."""
        dues = (self.submissions.due_ns(), self.commit.due_ns())
        return min((due_ns for due_ns in dues if due_ns is not None), default=None)

    def take_effects(self) -> Sequence[Effect]:
        """Drain the effects."""
        return self._effects.drain()

    def take_departed(self) -> list[str]:
        """Drain the departed clients, whose links can close."""
        departed, self.state.departed = self.state.departed, []
        return departed

    def expire(self, client: str, *, now_ns: int) -> None:
        """End the session of a client."""
        self._take(f.Expire(client=client), now_ns)
        self._effects.send(client, f.Expired())  # Also to one that only plans still act for.

    def lose_connection(self, client: str, *, now_ns: int) -> None:
        """Start the grace period of a client that lost its connection."""
        if client in self.state.clients and client not in self.state.disconnected:
            self.leases.start_grace(client, now_ns)

    def regain_connection(self, client: str, *, now_ns: int) -> None:
        """End the grace period of a client that has a connection."""
        self.leases.end_grace(client)
        if client in self.state.disconnected:
            self._take(f.Reconnected(client=client), now_ns)

    def is_away(self, neighbor: str) -> bool:
        """Return whether a neighbor is away."""
        return neighbor in self.steps.away

    def note_away(self, neighbor: str, *, now_ns: int) -> None:
        """Note that a neighbor acknowledges nothing."""
        if not self.is_away(neighbor):
            self._take(f.Away(neighbor=neighbor), now_ns)

    def note_back(self, neighbor: str, *, now_ns: int) -> None:
        """Note that a neighbor has sent something."""
        if self.is_away(neighbor):
            self._take(f.Back(neighbor=neighbor), now_ns)

    def adopt(self, neighbor: str, *, now_ns: int) -> None:
        """Add a neighbor that joins the tree."""
        self._take(f.Adopt(neighbor=neighbor), now_ns)
        self._persist_neighbors()

    def abandon(self, neighbor: str, *, now_ns: int) -> None:
        """Remove a neighbor without clients, entries or transactions."""
        assert not self.hold_of(neighbor)
        self._take(f.Abandon(neighbor=neighbor), now_ns)
        self._persist_neighbors()

    def _take(self, frame: Frame, now_ns: int, source: str = "") -> None:
        self.log.take(frame, source=source, now_ns=now_ns)

    def _persist_neighbors(self) -> None:
        """Write a snapshot: it names the neighbors by which later inputs are recovered."""
        if self.log.durable:
            self.log.write_snapshot()

    # -- Frames ---------------------------------------------------------------------------------

    def handle(self, frame: Frame, source: str, now_ns: int) -> None:
        """Handle an input that was logged."""
        self.state.mailboxes.now_ns = now_ns
        handler = self._handlers.get(type(frame))
        if handler is not None:
            handler(frame, source, now_ns)

    def _handler_table(self) -> dict[type[Frame], Handler]:
        commit, operations, plans, steps = self.commit, self.operations, self.plans, self.steps
        return {
            f.Hello: lambda _frame, client, _now: self.content.welcome(client),
            f.Goodbye: self._goodbye,
            f.Expire: self._expire,
            f.Disconnected: self._disconnect,
            f.Reconnected: self._reconnect,
            f.Away: lambda frame, _source, _now: steps.note_away(frame.neighbor),
            f.Back: lambda frame, _source, _now: steps.note_back(frame.neighbor),
            f.Adopt: self._adopt,
            f.Adopted: self._adopted,
            f.Abandon: self._abandon,
            f.Operate: self._operate,
            f.Attach: lambda frame, client, _now: self.content.attach(frame, client),
            f.Acknowledge: lambda frame, client, _now: self.content.acknowledge(frame, client),
            f.Release: self._release,
            f.Dismiss: self._dismiss,
            f.Forbidden: self._forbid,
            f.Routed: self._route,
            f.Step: self._step,
            f.Stepped: lambda frame, _source, _now: steps.stepped(frame),
            f.Reached: lambda frame, source, _now: operations.reached(frame, source),
            f.Tick: self._tick,
            t.Invite: lambda frame, client, _now: operations.invite(
                self._with_name(frame, client), client
            ),
            t.Finish: lambda frame, client, _now: operations.finish(frame, client),
            t.Begin: self._begin,
            t.End: self._end,
            t.Open: lambda frame, source, _now: commit.open(frame, source),
            t.Prepare: commit.prepare,
            t.Prepared: commit.prepared,
            t.Release: commit.release,
            t.Decide: commit.decide,
            t.Decided: lambda frame, source, _now: commit.decided(frame, source),
            t.Forget: lambda frame, source, _now: commit.forget(frame, source),
            t.Submit: self._submit,
            t.Planned: self._plan,
            t.Ordered: plans.ordered,
            t.Echo: plans.echo,
            t.Close: lambda frame, source, _now: plans.close(frame, source),
            t.Closed: lambda frame, source, _now: plans.closed(frame, source),
            t.Compensate: lambda frame, source, _now: plans.compensate(frame, source),
        }

    def _operate(self, frame: f.Operate, client: str, now_ns: int) -> None:
        del now_ns
        if frame.transaction:
            self.operations.operate(self._with_name(frame, client), client)
        else:
            self.content.operate(frame, client)

    def _release(self, frame: f.Release, client: str, now_ns: int) -> None:
        if self.content.release(frame, client):
            self._depart(frame.mailbox, now_ns)

    def _dismiss(self, frame: f.Dismiss, client: str, now_ns: int) -> None:
        mailbox = self.content.dismiss(frame, client)
        if mailbox:
            self._depart(mailbox, now_ns)

    def _forbid(self, frame: f.Forbidden, client: str, now_ns: int) -> None:
        del now_ns
        self.state.send(client, f.Done(number=frame.number, refused=frame.reason))

    def _route(self, frame: f.Routed, source: str, now_ns: int) -> None:
        del now_ns
        self.content.publish(frame.publication, source, frame.seen)

    def _step(self, frame: f.Step, source: str, now_ns: int) -> None:
        del now_ns
        if frame.home:
            self.plans.note_home(frame.home, source)
        if frame.shared or not frame.transaction:
            self.plans.overtake(frame.changes, source)
        if frame.transaction:
            self.operations.step(frame, source)
        else:
            self.content.step(frame, source)

    def _begin(self, frame: t.Begin, client: str, now_ns: int) -> None:
        self.commit.begin(frame, client, now_ns, coordinated=self._coordinated(client))

    def _submit(self, frame: t.Submit, client: str, now_ns: int) -> None:
        self.submissions.submit(frame, client, now_ns, coordinated=self._coordinated(client))

    def _coordinated(self, client: str) -> int:
        """Return how many open transactions and plans a client coordinates."""
        return self.commit.count_of(client) + self.submissions.count_of(client)

    def _with_name(self, frame: Any, client: str) -> Any:
        """Return a client's frame with the name of its transaction."""
        name = self.commit.named(frame.transaction, client)
        if name == frame.transaction:
            return frame
        return msgspec.structs.replace(frame, transaction=name)

    def _end(self, frame: t.End, client: str, now_ns: int) -> None:
        frame = self._with_name(frame, client)
        if self.submissions.is_held_by(frame.transaction, client):
            self.submissions.end(frame)
        else:
            self.commit.end(frame, client, now_ns)

    def _plan(self, frame: t.Planned, source: str, now_ns: int) -> None:
        self.commit.note_name(frame.transaction)
        self.plans.start(frame, source, now_ns)

    def _tick(self, frame: f.Tick, source: str, now_ns: int) -> None:
        del frame, source
        self.submissions.tick(now_ns)
        self.commit.tick(now_ns)

    # -- Clients that leave ---------------------------------------------------------------------

    def _goodbye(self, frame: f.Goodbye, client: str, now_ns: int) -> None:
        del frame
        self._depart(client, now_ns)

    def _expire(self, frame: f.Expire, source: str, now_ns: int) -> None:
        del source
        if frame.client in self.state.mailboxes:
            self.state.mailboxes.note_expired(frame.client, frame.idle_ns)
        if frame.client in self.state.clients:
            self._depart(frame.client, now_ns)

    def _depart(self, client: str, now_ns: int) -> None:
        """Withdraw everything of a client, when no plan has operations left for it."""
        gone = f"{client} is gone"
        self.leases.remove(client)
        if self.plans.awaits(client):
            self.state.leaving[client] = None
            self.operations.answer_invitations(client, gone)
        else:
            self.plans.numbers.pop(client, None)
            self.operations.answer_invitations(client, gone)
            self.content.depart(client)
        self._abort_all_of(client, now_ns, gone)

    def _disconnect(self, frame: f.Disconnected, source: str, now_ns: int) -> None:
        """Stop transactions from waiting for a client; keep its subscriptions for its lease."""
        del source
        client = frame.client
        if client in self.state.clients:
            self.state.disconnected[client] = None
        lost = lost_connection(client)
        self.operations.answer_invitations(client, lost)
        # A requested commit needs nothing more from the client.
        self._abort_all_of(client, now_ns, lost, requested=False)

    def _reconnect(self, frame: f.Reconnected, source: str, now_ns: int) -> None:
        del source, now_ns
        self.state.disconnected.pop(frame.client, None)

    def _abort_all_of(
        self, client: str, now_ns: int, reason: str, *, requested: bool = True
    ) -> None:
        self.commit.abort_all_of(client, now_ns, reason, requested=requested)
        self.submissions.abort_all_of(client, reason)

    # -- Brokers that join and leave ------------------------------------------------------------

    def _adopt(self, frame: f.Adopt, source: str, now_ns: int) -> None:
        del source, now_ns
        self.plans.left_out.pop(frame.neighbor, None)
        self.topology.adopt(frame.neighbor, self.commit.introduction())
        self.commit.add_neighbor(frame.neighbor)

    def _adopted(self, frame: f.Adopted, source: str, now_ns: int) -> None:
        del now_ns
        self.topology.adopted(frame, source)
        self.commit.adopted(frame)

    def _abandon(self, frame: f.Abandon, source: str, now_ns: int) -> None:
        del source, now_ns
        self.plans.abandon(frame.neighbor)
        self.topology.abandon(frame.neighbor)

    # -- Snapshots ------------------------------------------------------------------------------

    def _dump(self) -> bytes:
        state, steps, commit = self.state, self.steps, self.commit
        contexts = {name: context.record() for name, context in commit.contexts.items()}
        rest = r.PLANS.encode(self.plans.record())
        rest = r.COORDINATOR.encode(r.CoordinatorRecord(commit.coordinations, rest))
        rest = r.COMMIT.encode(
            r.CommitRecord(commit.parked, commit.gathers, commit.last_number, rest, commit.settling)
        )
        rest = r.CONTEXTS.encode(r.ContextsRecord(contexts, rest))
        return r.BROKER.encode(
            r.BrokerRecord(
                tables=state.tables.record(),
                commits=state.commits,
                undos=state.undos,
                last_number=steps.last_number,
                pending=steps.pending,
                causes=steps.causes,
                under_way=steps.under_way,
                clients=list(state.clients),
                members=state.members,
                rest=rest,
                neighbors=list(state.neighbors),
                disconnected=list(state.disconnected),
                away=list(steps.away),
                partial=steps.partial,
                announced=steps.announced,
                mailboxes=state.mailboxes.open,
                mailboxes_made=state.mailboxes.made,
                mailboxes_expired=state.mailboxes.expired,
            )
        )

    def _load(self, snapshot: bytes) -> None:
        broker = r.BROKER.decode(snapshot)
        contexts = r.CONTEXTS.decode(broker.rest)
        commit = r.COMMIT.decode(contexts.rest)
        coordinator = r.COORDINATOR.decode(commit.rest)
        self.state.restore(
            neighbors=broker.neighbors,
            tables=broker.tables,
            commits=broker.commits,
            undos=broker.undos,
            clients=broker.clients,
            members=broker.members,
            disconnected=broker.disconnected,
        )
        self.state.mailboxes.restore(
            broker.mailboxes, broker.mailboxes_made, broker.mailboxes_expired
        )
        self.steps.restore(
            last_number=broker.last_number,
            pending=broker.pending,
            causes=broker.causes,
            under_way=broker.under_way,
            away=broker.away,
            partial=broker.partial,
            announced=broker.announced,
        )
        self.commit.restore(contexts.contexts, commit, coordinator.coordinations)
        self.plans.restore(r.PLANS.decode(coordinator.rest))
