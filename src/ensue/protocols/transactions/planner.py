"""Planned transactions (S-TX): operations known beforehand, ordered by the brokers, with no answers in between.

Theory of operation. The coordinator hands the whole plan to its home in one message, so that nothing is lost with it. The plan is flooded; then the
home of each client issues that client's operations, also if the client leaves meanwhile. What it can't issue, as the client was gone before, has
withdrawn what it publishes under or would have more subscriptions than the home keeps, goes round as a marker that says so: as every broker sees all operations before it carries the decision out, all of them abort. A broker processes an
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

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ensue.protocols.core import Frame
from ensue.protocols.overlay import frames as f
from ensue.protocols.overlay.broker import Pending
from ensue.protocols.overlay.frames import Change
from ensue.protocols.overlay.refusing import INVERSE
from ensue.protocols.overlay.tables import Outputs
from ensue.protocols.transactions import frames as t
from ensue.protocols.transactions.contexts import Delivery, Issued
from ensue.protocols.transactions.plans import Plan, PlannerRecord, numbered, waits
from ensue.protocols.transactions.submitting import Submitting
from ensue.wire import Records

__all__ = ["TransactionBroker"]


_RECORD = Records[PlannerRecord](PlannerRecord)
_FLOODED = (f.ADVERTISE, f.UNADVERTISE)


class TransactionBroker(Submitting):
    """A broker with all kinds of transactions."""

    def __init__(self, **options: Any) -> None:
        self._plans: dict[str, Plan] = {}
        self._leaving: dict[str, None] = {}
        """Clients that are gone, and for which a plan has yet to do something."""
        self._blocked: dict[str, None] = {}
        """Plans of which something has come here and waits, for another operation or for another plan (S7)."""
        self._homes: dict[str, str] = {}
        """Brokers that have or had clients, and behind which neighbour each is."""
        self._left_out: dict[str, None] = {}
        """Brokers that were there, and of which this one answers for what plans still want of them."""
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
        return _RECORD.encode(
            PlannerRecord(
                self._plans,
                self._handed,
                list(self._leaving),
                self._homes,
                list(self._left_out),
                self._numbers,
            )
        )

    def _load_plans(self, state: bytes) -> None:
        record = _RECORD.decode(state)
        self._plans, self._handed = record.plans, record.handed
        self._leaving = dict.fromkeys(record.leaving)
        self._homes, self._left_out = record.homes, dict.fromkeys(record.left_out)
        self._numbers = record.numbers
        self._blocked = {name: None for name, plan in self._plans.items() if waits(plan)}

    _HANDLERS: Mapping[type[Frame], str] = {
        **Submitting._HANDLERS,  # noqa: SLF001 - the handlers of the base class
        t.Planned: "_planned",
        t.Ordered: "_ordered",
        t.Echo: "_echo",
        t.Close: "_close",
        t.Closed: "_closed",
        t.Compensate: "_compensate",
    }

    # -- Clients and brokers that are gone -------------------------------------------------------

    def _depart(self, client: str, now_ns: int) -> None:
        if not self._is_planned(client):
            self._numbers.pop(client, None)
            super()._depart(client, now_ns)
            return
        # As if it had gone after that: what it advertised and subscribed stays until then.
        self._leaving[client] = None
        self._heard_ns.pop(client, None)
        self._lost_ns.pop(client, None)
        self._answer_invitations(client, f"{client} is gone")
        self._conclude_of(client, now_ns, f"{client} is gone")

    def _is_open_of(self, client: str) -> bool:
        return super()._is_open_of(client) or any(
            one.client == client
            for plan in self._plans.values()
            for one in plan.operations.values()
        )

    def _send(self, peer: str, frame: Frame) -> None:
        if peer not in self._leaving:
            super()._send(peer, frame)

    def _adopt(self, frame: f.Adopt, source: str, now_ns: int) -> None:
        self._left_out.pop(frame.neighbour, None)
        super()._adopt(frame, source, now_ns)

    def _abandon(self, frame: f.Abandon, source: str, now_ns: int) -> None:
        gone = frame.neighbour
        behind = [home for home, hop in self._homes.items() if hop == gone]
        for home in behind:
            del self._homes[home]
        self._left_out.update(dict.fromkeys((gone, *behind)))
        super()._abandon(frame, source, now_ns)

    def _step_in(self, frame: f.Step, source: str, now_ns: int) -> None:
        if frame.home:
            self._homes[frame.home] = source
            self._left_out.pop(frame.home, None)
        if frame.shared or not frame.transaction:
            self._overtake(frame.changes, source)
        super()._step_in(frame, source, now_ns)

    def _overtake(self, changes: tuple[Change, ...], source: str) -> None:
        """Have nothing come into effect that waits here and is withdrawn, outside of plans, by whoever sent it (S7)."""
        gone = [(change.action, change.name) for change in changes if change.action not in INVERSE]
        for plan in [self._plans[name] for name in self._blocked] if gone else ():
            for path, (hop, whole) in list(plan.arrived.items()):
                change = plan.operations[path].change
                if whole and hop == source and path not in plan.started and change is not None:
                    withdrawn = (INVERSE.get(change.action), change.name) in gone
                    plan.arrived[path] = (hop, not withdrawn)

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
            if one.home == self.name or one.home in self._left_out:
                plan.arrived[one.path] = ("", True)
        self._advance(frame.transaction, now_ns)

    def _ordered(self, frame: t.Ordered, source: str, now_ns: int) -> None:
        plan = self._plans.get(frame.transaction)
        if plan is not None:
            plan.arrived[frame.path] = (source, frame.whole)
            plan.operations[frame.path] = numbered(plan.operations[frame.path], frame.number)
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
        """Return whether an unsubscription has to wait for another plan's subscription (S7).

        Not where it is issued if that waits for it in turn: it is refused there. So elsewhere plans wait for those alone that were ahead of them somewhere, and never in a circle.
        """
        hop, whole = self._plans[name].arrived[operation.path]
        return whole and any(
            hop or not self._waits_for(one, (name, operation.path))
            for one in self._awaited(name, operation)
        )

    def _awaited(self, name: str, operation: t.Operation) -> list[tuple[str, str]]:
        """Return the subscriptions that wait here in other plans and that an operation withdraws, by plan and path."""
        change = operation.change
        if change is None or change.action != f.UNSUBSCRIBE:
            return []
        return [
            (each, path)
            for each in self._blocked
            if each != name
            for path, its in self._plans[each].operations.items()
            if path in self._plans[each].arrived
            and path not in self._plans[each].started
            and its.change is not None
            and its.change.action == f.SUBSCRIBE
            and its.change.name == change.name
        ]

    def _waits_for(self, one: tuple[str, str], other: tuple[str, str]) -> bool:
        """Return whether an operation, by plan and path, waits for another here."""
        seen = {one: None}
        left = [one]
        while left and other not in seen:
            name, path = left.pop()
            plan = self._plans[name]
            operation = plan.operations[path]
            before = [(name, each) for each in operation.after if each not in plan.processed]
            left += (
                each for each in (*before, *self._awaited(name, operation)) if each not in seen
            )
            seen.update(dict.fromkeys(left))
        return other in seen

    def _process(self, name: str, plan: Plan, operation: t.Operation) -> None:
        path = operation.path
        hop, whole = plan.arrived[path]
        plan.started[path] = None
        if not hop:
            operation = plan.operations[path] = self._numbered_here(operation)
            refused = self._refusal(operation)
            plan.refused = plan.refused or refused
            whole = not refused
            if whole:
                self._record_operation(name, path, operation.change, operation.publication)
        change, publication = operation.change, operation.publication
        origin, number = hop or operation.client, 0 if publication is None else publication.number
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
                    transaction=name,
                    path=path,
                    whole=neighbour in wholes,
                    refused=plan.refused,
                    number=number,
                ),
            )
        if change is not None and change.action in _FLOODED and behind:
            plan.echoes[path] = behind
        else:
            self._processed(name, plan, path)

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
                ended = (one for one in plan.issued if one.change.action == f.UNSUBSCRIBE)
                self._tell_withdrawn(name, ended)
                done, plan.issued = plan.issued, []
                self._withdrawn_for_good(done)
            if name in self._handed:
                self._answer_handed(name, reason)
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

    def _tell_withdrawn(self, name: str, issued: Iterable[Issued]) -> None:
        """Tell clients which of their subscriptions are over with a plan, behind the last event for them."""
        withdrawn: dict[str, list[str]] = {}
        for one in issued:
            if one.client in self._clients:
                withdrawn.setdefault(one.client, []).append(one.change.name)
        for client, names in withdrawn.items():
            self._send(client, t.Withdrawn(transaction=name, subscriptions=tuple(names)))

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
        # Events came for what it made while it was under way.
        made = (one for one in issued if one.change.action == f.SUBSCRIBE)
        self._tell_withdrawn(frame.transaction, made)

    def _issued_in_the_open(self) -> Iterator[list[Issued]]:
        yield from super()._issued_in_the_open()
        yield from (plan.issued for plan in self._plans.values() if plan.issued)

    def _forget_plan(self, name: str) -> None:
        del self._plans[name]
        self._blocked.pop(name, None)
        self._handed.pop(name, None)
