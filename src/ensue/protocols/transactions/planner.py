"""Planned transactions (S-TX): operations known beforehand, ordered by the brokers, with no answers in between.

Theory of operation. The coordinator hands the whole plan to its home in one message, so that nothing is lost with it. The plan is flooded; then the
home of each client issues that client's operations, also if the client leaves meanwhile. What it can't issue, as the client was gone before or has
withdrawn what it publishes under, goes round as a marker that says so: as every broker sees all operations before it carries the decision out, all of them abort. A broker processes an
operation when it has processed all that come before it (Algorithm 4). Where an operation is not passed on, a *marker* is sent
in its place (S4): every broker sees every operation or its marker, so that every dependency can be waited for, and no broker has to guess from its tables
which it will never see, as the paper's do. An advertisement counts as processed when all brokers behind it have echoed it (S5):
the subscriptions it attracts run ahead of the echo.

A plan works on the brokers' own tables: others may see parts of it (weak isolation), and tables converge. Publications are held at the homes of their
recipients until the plan is closed. To close it is to flood the decision; each broker carries it out when it has processed the plan. After an abort,
when all have (`Closed`), the homes undo what they issued, last one first (S6), as regular operations. An unsubscription waits behind
a subscription of the same name that waits here (S7).

HAZARD: a client that subscribes by itself while a plan is under way may be given some of the plan's publications and not others: use a
serializable transaction where that matters. So may everybody if a plan withdraws what another transaction, still under way, has advertised and publishes.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from ensue.protocols.core import Frame
from ensue.protocols.overlay import frames as f
from ensue.protocols.overlay.broker import Pending
from ensue.protocols.overlay.frames import Change
from ensue.protocols.overlay.refusing import uncovered
from ensue.protocols.overlay.tables import Outputs
from ensue.protocols.transactions import frames as t
from ensue.protocols.transactions.contexts import Delivery, Issued
from ensue.protocols.transactions.coordinator import Coordinator
from ensue.protocols.transactions.planning import flaw
from ensue.protocols.transactions.plans import Handed, Plan, PlannerRecord, waits
from ensue.wire import Records

__all__ = ["TransactionBroker"]


_RECORD = Records[PlannerRecord](PlannerRecord)
_FLOODED = (f.ADVERTISE, f.UNADVERTISE)


class TransactionBroker(Coordinator):
    """A broker with all kinds of transactions."""

    def __init__(self, **options: Any) -> None:
        self._plans: dict[str, Plan] = {}
        self._handed: dict[str, Handed] = {}
        self._leaving: dict[str, None] = {}
        """Clients that are gone, and for which a plan has yet to do something."""
        self._blocked: dict[str, None] = {}
        """Plans of which something has come here and waits, for another operation or for another plan (S7)."""
        super().__init__(**options)

    @property
    def clients(self) -> tuple[str, ...]:
        """The clients whose home this is, without those for which only a plan goes on."""
        return tuple(client for client in super().clients if client not in self._leaving)

    @property
    def open_transactions(self) -> tuple[str, ...]:
        """Transactions that are not over here."""
        return (*super().open_transactions, *self._plans)

    def _dump_plans(self) -> bytes:
        return _RECORD.encode(PlannerRecord(self._plans, self._handed, list(self._leaving)))

    def _load_plans(self, state: bytes) -> None:
        record = _RECORD.decode(state)
        self._plans, self._handed = record.plans, record.handed
        self._leaving = dict.fromkeys(record.leaving)
        self._blocked = {name: None for name, plan in self._plans.items() if waits(plan)}

    _HANDLERS: Mapping[type[Frame], str] = {
        **Coordinator._HANDLERS,  # noqa: SLF001 - the handlers of the base class
        t.Submit: "_submit",
        t.Planned: "_planned",
        t.Ordered: "_ordered",
        t.Echo: "_echo",
        t.Close: "_close",
        t.Closed: "_closed",
        t.Compensate: "_compensate",
    }

    # -- The coordinator's home -----------------------------------------------------------------

    def _submit(self, frame: t.Submit, client: str, now_ns: int) -> None:
        frame = msgspec.structs.replace(
            frame, operations=tuple(self._by_whole_name(one) for one in frame.operations)
        )
        refused = flaw(frame, self.tables, self._members, self.config)
        if not refused and self._coordinated(client) >= self.config.transactions_max:
            refused = f"{client} coordinates {self.config.transactions_max} (transactions_max)"
        if refused:
            self._send(client, f.Done(number=frame.number, refused=refused))
            return
        name = self._new_name()
        operations = tuple(
            msgspec.structs.replace(one, home=self._members[one.client][0])
            for one in frame.operations
        )
        deadline_ns = now_ns + frame.timeout_ns
        self._handed[name] = Handed(client, frame.number, deadline_ns, decided=not frame.hold)
        self._record(action="began", topic=t.PLANNED, transaction=name)
        self._planned(t.Planned(transaction=name, operations=operations), "", now_ns)
        if frame.hold:
            self._handed[name].number = 0
            self._send(client, f.Done(number=frame.number, transaction=name))
        else:
            self._close(t.Close(transaction=name, commit=True), "", now_ns)

    def _by_whole_name(self, one: t.Operation) -> t.Operation:
        """Return an operation as one of the client that is meant (`acting`)."""
        whole = self._whole_name(one.client)
        if whole == one.client:
            return one
        change, publication = one.change, one.publication
        if change is not None and change.name.startswith(f"{one.client}."):
            own = change.name.removeprefix(one.client)
            change = Change(change.action, f"{whole}{own}", change.where)
        if publication is not None and publication.publisher == one.client:
            publication = msgspec.structs.replace(publication, publisher=whole)
        return msgspec.structs.replace(one, client=whole, change=change, publication=publication)

    def _end(self, frame: t.End, client: str, now_ns: int) -> None:
        handed = self._handed.get(frame.transaction)
        if handed is None or handed.client != client or handed.decided:
            super()._end(frame, client, now_ns)
            return
        handed.number = frame.number
        self._settle_plan(
            frame.transaction, now_ns, commit=frame.commit, reason="" if frame.commit else "aborted"
        )

    def _settle_plan(self, name: str, now_ns: int, *, commit: bool, reason: str) -> None:
        """Decide about a plan that was held."""
        handed = self._handed[name]
        handed.decided = True
        if not commit and handed.number:
            self._answer_handed(name, reason)  # It may take long to undo: nobody has to wait.
        self._close(t.Close(transaction=name, commit=commit, reason=reason), "", now_ns)

    def _coordinated(self, client: str) -> int:
        handed = sum(one.client == client for one in self._handed.values())
        return super()._coordinated(client) + handed

    def _answer_handed(self, name: str, refused: str) -> None:
        handed = self._handed[name]
        if handed.number and handed.client in self._clients:
            done = f.Done(number=handed.number, refused=refused, transaction=name)
            self._send(handed.client, done)
        handed.number = 0

    def _due_ns(self) -> int | None:
        dues = [one.deadline_ns for one in self._handed.values() if not one.decided]
        due_ns = super()._due_ns()
        return min(dues if due_ns is None else [*dues, due_ns], default=None)

    def _tick(self, frame: f.Tick, source: str, now_ns: int) -> None:
        for name, handed in list(self._handed.items()):
            if not handed.decided and handed.deadline_ns <= now_ns:
                self._settle_plan(name, now_ns, commit=False, reason="timeout")
        super()._tick(frame, source, now_ns)

    def _depart(self, client: str, now_ns: int) -> None:
        if self._is_planned(client):
            # As if it had gone after that: what it advertised and subscribed stays until then.
            self._leaving[client] = None
            self._heard_ns.pop(client, None)
            return
        super()._depart(client, now_ns)
        for name, handed in list(self._handed.items()):
            if not handed.decided and handed.client == client:
                self._settle_plan(name, now_ns, commit=False, reason=f"{client} is gone")

    def _is_planned(self, client: str) -> bool:
        """Return whether a plan has yet to do something for a client of this broker."""
        return any(
            one.client == client and one.home == self.name and path not in plan.started
            for plan in self._plans.values()
            for path, one in plan.operations.items()
        )

    # -- Operations -----------------------------------------------------------------------------

    def _planned(self, frame: t.Planned, source: str, now_ns: int) -> None:
        number = int(frame.transaction.partition("-")[0])
        self._transactions_numbered = max(self._transactions_numbered, number)
        operations = {one.path: one for one in frame.operations}
        plan = Plan(operations, source, neighbours=list(self.neighbours))
        self._plans[frame.transaction] = plan
        self._flood(frame, but=source)
        for one in frame.operations:
            if one.home == self.name:
                plan.arrived[one.path] = ("", True)
        self._advance(frame.transaction, now_ns)

    def _ordered(self, frame: t.Ordered, source: str, now_ns: int) -> None:
        plan = self._plans.get(frame.transaction)
        if plan is not None:
            plan.arrived[frame.path] = (source, frame.whole)
            plan.refused = plan.refused or frame.refused
            self._advance(frame.transaction, now_ns)

    def _advance(self, name: str, now_ns: int) -> None:
        """Process whatever of a plan waits for nothing any more, and what that lets go on."""
        names = {name: None}
        waiting = [name]
        while waiting:
            for each in self._process_ready(waiting.pop()):
                names[each] = None
                waiting.append(each)
        for client in list(self._leaving):
            if not self._is_planned(client):
                del self._leaving[client]
                self._depart(client, now_ns)
        for each in names:
            if each in self._plans:
                self._try_close(each)

    def _process_ready(self, name: str) -> list[str]:
        """Process what is ready of a plan; return other plans in which an unsubscription may have waited for that (S7)."""
        plan = self._plans[name]
        freed: dict[str, None] = {}
        progress = True
        while progress and waits(plan):
            progress = False
            for path, operation in plan.operations.items():
                if (
                    path in plan.arrived
                    and path not in plan.started
                    and all(each in plan.processed for each in operation.after)
                    and not self._waits_for_another(name, operation)
                ):
                    self._process(name, plan, operation)
                    progress = True
                    change = operation.change
                    if change is not None and change.action == f.SUBSCRIBE:
                        freed.update(self._blocked)
        freed.pop(name, None)
        if waits(plan):
            self._blocked[name] = None
        else:
            self._blocked.pop(name, None)
        return sorted(freed, reverse=True)

    def _waits_for_another(self, name: str, operation: t.Operation) -> bool:
        """Return whether an unsubscription has to wait for another plan's subscription (S7)."""
        change = operation.change
        if change is None or change.action != f.UNSUBSCRIBE:
            return False
        return any(
            path in other.arrived
            and path not in other.started
            and its.change is not None
            and its.change.action == f.SUBSCRIBE
            and its.change.name == change.name
            for other in (self._plans[each] for each in self._blocked if each != name)
            for path, its in other.operations.items()
        )

    def _process(self, name: str, plan: Plan, operation: t.Operation) -> None:
        path, change, publication = operation.path, operation.change, operation.publication
        hop, whole = plan.arrived[path]
        plan.started[path] = None
        origin = hop or operation.client
        if not hop:
            refused = self._refusal(operation)
            plan.refused = plan.refused or refused
            whole = not refused
            if whole:
                self._record_operation(name, path, change, publication)
        wholes: list[str] = []
        if whole and change is not None:
            if not hop:
                before = self.tables.table(change).get(change.name)
                plan.issued.append(Issued(operation.client, change, before))
            wholes = self._change_planned(plan, change, origin)
            if wholes and change.action == f.SUBSCRIBE:
                self.tables.loose.add(change.name)
        elif whole and publication is not None:
            wholes, clients = self.tables.route(publication.attributes, origin)
            for client, names in clients.items():
                plan.deliveries.append(Delivery(client, path, tuple(names), publication))
        behind = [neighbour for neighbour in plan.neighbours if neighbour != hop]
        for neighbour in behind:
            self._send(
                neighbour,
                t.Ordered(
                    transaction=name, path=path, whole=neighbour in wholes, refused=plan.refused
                ),
            )
        if change is not None and change.action in _FLOODED and behind:
            plan.echoes[path] = behind
        else:
            self._processed(name, plan, path)

    def _refusal(self, operation: t.Operation) -> str:
        """Say why a client of this broker can't do what is planned, if so: its state is not what the plan was made for."""
        client = operation.client
        if client not in self._clients:
            return f"{client} is gone"
        if operation.publication is None:
            return ""
        return uncovered(operation.publication, client, self.tables)

    def _change_planned(self, plan: Plan, change: Change, hop: str) -> list[str]:
        """Change the tables; return who has to be sent the change, and send what follows besides ahead of it."""
        outputs: Outputs = self.tables.apply(change, hop)
        wholes: list[str] = []
        for neighbour in sorted(outputs):
            besides = []
            for following in outputs[neighbour]:
                is_it = (following.action, following.name) == (change.action, change.name)
                if is_it and neighbour in plan.neighbours:
                    wholes.append(neighbour)
                else:
                    besides.append(following)
            if besides:
                self._pass_on({neighbour: besides}, Pending("", 0, "", "", []))
        return wholes

    def _processed(self, name: str, plan: Plan, path: str) -> None:
        plan.processed[path] = None
        self._record(action="received", event=f"{name}#{path}", transaction=name)
        change, hop = plan.operations[path].change, plan.arrived[path][0]
        if change is not None and change.action in _FLOODED and hop:
            self._send(hop, t.Echo(transaction=name, path=path))

    def _echo(self, frame: t.Echo, source: str, now_ns: int) -> None:
        plan = self._plans.get(frame.transaction)
        if plan is None or source not in plan.echoes.get(frame.path, ()):
            return
        plan.echoes[frame.path].remove(source)
        if not plan.echoes[frame.path]:
            del plan.echoes[frame.path]
            self._processed(frame.transaction, plan, frame.path)
            self._advance(frame.transaction, now_ns)

    # -- The end --------------------------------------------------------------------------------

    def _close(self, frame: t.Close, source: str, now_ns: int) -> None:
        del now_ns
        plan = self._plans[frame.transaction]
        plan.closing = (frame.commit, frame.reason)
        plan.waiting = self._tell_planned(plan, frame, but=source)
        self._try_close(frame.transaction)

    def _tell_planned(self, plan: Plan, frame: Frame, *, but: str) -> list[str]:
        """Send those who have a part in a plan something about it; return who they are."""
        others = [neighbour for neighbour in plan.neighbours if neighbour != but]
        for neighbour in others:
            self._send(neighbour, frame)
        return others

    def _try_close(self, name: str) -> None:
        """Carry the decision out if the plan is processed here; pass that on if it is behind this broker too."""
        plan = self._plans[name]
        if plan.closing is None or len(plan.processed) < len(plan.operations):
            return
        commit, reason = plan.closing
        if plan.refused:
            commit, reason = False, reason or plan.refused
        if not plan.over:
            plan.over = True
            self._record(action="committed" if commit else "aborted", transaction=name)
            # Ahead of events: whoever was subscribed hears of that first.
            self._tell_participants(name, plan, commit=commit, reason=reason)
            if commit:
                self._deliver(name, plan.deliveries)
                done, plan.issued = plan.issued, []
                self._withdrawn_for_good(done)
        if plan.waiting:
            return
        if plan.parent:
            self._send(plan.parent, t.Closed(transaction=name))
        elif not commit:
            self._compensate(t.Compensate(transaction=name), "", 0)
            return
        if commit:
            self._forget_plan(name)

    def _tell_participants(self, name: str, plan: Plan, *, commit: bool, reason: str) -> None:
        made: dict[str, list[tuple[str, str]]] = {}
        for one in plan.operations.values():
            if one.home == self.name and one.client in self._clients:
                mine = made.setdefault(one.client, [])
                if one.change is not None and one.change.action == f.SUBSCRIBE:
                    mine.append((one.change.name, one.change.where))
        for client, subscriptions in made.items():
            ended = t.Ended(
                transaction=name,
                committed=commit,
                reason=reason,
                subscriptions=tuple(subscriptions) if commit else (),
            )
            self._send(client, ended)
        if name in self._handed:
            self._answer_handed(name, reason)

    def _closed(self, frame: t.Closed, source: str, now_ns: int) -> None:
        del now_ns
        plan = self._plans.get(frame.transaction)
        if plan is not None and source in plan.waiting:
            plan.waiting.remove(source)
            self._try_close(frame.transaction)

    def _compensate(self, frame: t.Compensate, source: str, now_ns: int) -> None:
        del now_ns
        plan = self._plans[frame.transaction]
        self._tell_planned(plan, frame, but=source)
        issued = plan.issued
        self._forget_plan(frame.transaction)
        self._undo(issued)

    def _issued_in_the_open(self) -> Iterator[list[Issued]]:
        yield from super()._issued_in_the_open()
        yield from (plan.issued for plan in self._plans.values() if plan.issued)

    def _forget_plan(self, name: str) -> None:
        del self._plans[name]
        self._blocked.pop(name, None)
        self._handed.pop(name, None)
