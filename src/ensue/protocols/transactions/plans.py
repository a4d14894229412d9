"""Planned transactions (S-TX): operations known beforehand, ordered by the brokers.

Theory of operation. The coordinator submits the whole plan to its home in one message
(`submissions`). The plan is flooded; then the home of each client issues that client's operations,
also if the client leaves meanwhile. A home can't issue an operation if the client had left before,
has withdrawn the advertisement it publishes under, would exceed a limit, or if what it withdraws is
gone or about to be (`contexts.withdrawing`); it sends a marker with the reason instead. Every
broker sees all operations before it carries the decision out, so all of them abort.

A broker processes an operation when it has processed all that come before it (Algorithm 4). Where
an operation is not passed on, a *marker* is sent in its place (S4). So every broker sees every
operation or its marker, can wait for every dependency, and need not guess from its tables which
operations it will never see, as the paper's brokers do. An advertisement counts as processed when
all brokers behind have echoed it (S5): the subscriptions it attracts run ahead of the echo.

A plan works on the brokers' own tables: others may see parts of it (weak isolation), and tables
converge. Publications are held at the homes of their recipients until the plan is closed. Closing
floods the decision; each broker carries it out when it has processed the plan. After an abort, when
all have (`Closed`), the homes undo what they issued (S6, `compensation`). An unsubscription waits
behind a subscription of the same name that waits here (S7).

HAZARD: a client that subscribes by itself while a plan is under way may get some of the plan's
publications and not others: use a serializable transaction where that matters. The same holds for
all subscribers if a plan withdraws an advertisement that another open transaction made and uses.
What a client publishes by itself under an advertisement of an open plan may reach some only. A
subscription that ends or moves before the plan is closed gets none of them (`still_owed`).
"""

from collections.abc import Callable, Iterable, Mapping

import msgspec

from ensue.protocols.content import frames as f
from ensue.protocols.content.frames import Change
from ensue.protocols.content.refusals import INVERSE, overfull, uncovered
from ensue.protocols.content.state import BrokerState
from ensue.protocols.content.steps import Pending, Steps
from ensue.protocols.content.tables import Outputs
from ensue.protocols.interface import Frame
from ensue.protocols.transactions import frames as t
from ensue.protocols.transactions.compensation import Compensation
from ensue.protocols.transactions.contexts import Context, Delivery, Issued, withdrawing
from ensue.protocols.transactions.operations import record_operation
from ensue.protocols.transactions.records import Plan, PlansRecord, Submission
from ensue.protocols.transactions.two_phase_commit import deliver

__all__ = ["Plans", "numbered"]

_FLOODED = (f.ADVERTISE, f.UNADVERTISE)


def numbered(operation: t.Operation, number: int) -> t.Operation:
    """Return an operation whose publication, if it has one, has a number."""
    publication = operation.publication
    if publication is None or publication.number == number:
        return operation
    made = msgspec.structs.replace(publication, number=number)
    return msgspec.structs.replace(operation, publication=made)


class Plans:
    """Plans at one broker."""

    def __init__(
        self,
        state: BrokerState,
        steps: Steps,
        compensation: Compensation,
        contexts: Mapping[str, Context],
        plans: dict[str, Plan],
        depart: Callable[[str, int], None],
    ) -> None:
        self._state = state
        self._steps = steps
        self._compensation = compensation
        self._contexts = contexts
        self._depart = depart
        """Withdraws everything of a client that has left."""
        self.open = plans
        """Plans that are open here."""
        self.submissions: dict[str, Submission] = {}
        """Plans that clients of this broker have submitted."""
        self.blocked: dict[str, None] = {}
        """Plans with an operation that has arrived and waits, for another one or a plan (S7)."""
        self.homes: dict[str, str] = {}
        """Brokers that have or had clients, and the next hop to each."""
        self.left_out: dict[str, None] = {}
        """Abandoned brokers: this one answers for operations planned for their clients."""
        self.numbers: dict[str, int] = {}
        """By client of this broker: the last number of a publication that others planned for it."""

    def record(self) -> PlansRecord:
        """Return the plans as they are persisted."""
        return PlansRecord(
            self.open,
            self.submissions,
            list(self._state.leaving),
            self.homes,
            list(self.left_out),
            self.numbers,
        )

    def restore(self, record: PlansRecord) -> None:
        """Restore the persisted plans."""
        self.open.update(record.plans)
        self.submissions = record.submissions
        self._state.leaving = dict.fromkeys(record.leaving)
        self.homes, self.left_out = record.homes, dict.fromkeys(record.left_out)
        self.numbers = record.numbers
        self.blocked = {name: None for name, plan in self.open.items() if plan.waits}

    # -- Clients and brokers that come and leave ------------------------------------------------

    def involves(self, client: str) -> bool:
        """Return whether an open plan has operations for a client of that name."""
        return any(
            one.client == client for plan in self.open.values() for one in plan.operations.values()
        )

    def awaits(self, client: str) -> bool:
        """Return whether a plan has operations left for a client of this broker."""
        return any(
            one.client == client and one.home == self._state.name and path not in plan.started
            for plan in self.open.values()
            for path, one in plan.operations.items()
        )

    def note_home(self, home: str, hop: str) -> None:
        """Note the next hop to a broker that has clients."""
        self.homes[home] = hop
        self.left_out.pop(home, None)

    def abandon(self, neighbor: str) -> None:
        """Answer for a neighbor, and the brokers behind it, that left permanently."""
        behind = [home for home, hop in self.homes.items() if hop == neighbor]
        for home in behind:
            del self.homes[home]
        self.left_out.update(dict.fromkeys((neighbor, *behind)))

    def overtake(self, changes: tuple[Change, ...], source: str) -> None:
        """Cancel waiting operations that their sender withdraws outside of plans (S7)."""
        gone = [(change.action, change.name) for change in changes if change.action not in INVERSE]
        for plan in [self.open[name] for name in self.blocked] if gone else ():
            for path, (hop, whole) in list(plan.arrived.items()):
                change = plan.operations[path].change
                if whole and hop == source and path not in plan.started and change is not None:
                    withdrawn = (INVERSE.get(change.action), change.name) in gone
                    plan.arrived[path] = (hop, not withdrawn)

    # -- Ordering operations --------------------------------------------------------------------

    def start(self, frame: t.Planned, source: str, now_ns: int) -> None:
        """Begin a plan: flood it, and issue the operations of clients of this broker."""
        operations = {one.path: one for one in frame.operations}
        plan = Plan(operations, source, neighbors=list(self._state.neighbors))
        self.open[frame.transaction] = plan
        self._state.flood(frame, but=source)
        for one in frame.operations:
            if one.home == self._state.name or one.home in self.left_out:
                plan.arrived[one.path] = ("", True)
        self.advance(frame.transaction, now_ns)

    def ordered(self, frame: t.Ordered, source: str, now_ns: int) -> None:
        """Handle an operation, or its marker, from a neighbor."""
        plan = self.open.get(frame.transaction)
        if plan is not None:
            plan.arrived[frame.path] = (source, frame.whole)
            plan.operations[frame.path] = numbered(plan.operations[frame.path], frame.number)
            plan.refused = plan.refused or frame.refused
            self.advance(frame.transaction, now_ns)

    def advance(self, name: str, now_ns: int) -> None:
        """Process the operations of a plan that are ready, and those that waited for them."""
        names = {name: None}
        waiting = [name]
        while waiting:
            for each in self._process_ready(waiting.pop()):
                names[each] = None
                waiting.append(each)
        for client in list(self._state.leaving):
            if not self.awaits(client):
                del self._state.leaving[client]
                self._depart(client, now_ns)
        for each in names:
            if each in self.open:
                self.try_close(each)

    def _process_ready(self, name: str) -> list[str]:
        """Process ready operations; return plans whose unsubscriptions may have waited (S7)."""
        plan = self.open[name]
        freed: dict[str, None] = {}
        progress = True
        while progress and plan.waits:
            progress = False
            for path, operation in plan.operations.items():
                if (
                    path in plan.arrived
                    and path not in plan.started
                    and all(each in plan.processed for each in operation.after)
                    and not self.waits_for_another(name, operation)
                ):
                    self.process(name, plan, operation)
                    progress = True
                    change = operation.change
                    if change is not None and change.action == f.SUBSCRIBE:
                        freed.update(self.blocked)
        freed.pop(name, None)
        if plan.waits:
            self.blocked[name] = None
        else:
            self.blocked.pop(name, None)
        return sorted(freed, reverse=True)

    def waits_for_another(self, name: str, operation: t.Operation) -> bool:
        """Return whether an unsubscription has to wait for another plan's subscription (S7).

        At its home it does not wait for a subscription that waits for it in turn: it is refused
        there. So at other brokers plans wait only for plans that were ahead of them somewhere, and
        never in a cycle.
        """
        hop, whole = self.open[name].arrived[operation.path]
        return whole and any(
            hop or not self._waits_for(one, (name, operation.path))
            for one in self._awaited(name, operation)
        )

    def _awaited(self, name: str, operation: t.Operation) -> list[tuple[str, str]]:
        """Return waiting subscriptions of other plans that an operation withdraws."""
        change = operation.change
        if change is None or change.action != f.UNSUBSCRIBE:
            return []
        return [
            (each, path)
            for each in self.blocked
            if each != name
            for path, its in self.open[each].operations.items()
            if path in self.open[each].arrived
            and path not in self.open[each].started
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
            plan = self.open[name]
            operation = plan.operations[path]
            before = [(name, each) for each in operation.after if each not in plan.processed]
            left += (
                each for each in (*before, *self._awaited(name, operation)) if each not in seen
            )
            seen.update(dict.fromkeys(left))
        return other in seen

    # -- Processing operations ------------------------------------------------------------------

    def process(self, name: str, plan: Plan, operation: t.Operation) -> None:
        """Process an operation or its marker, and pass it on."""
        state, path = self._state, operation.path
        hop, whole = plan.arrived[path]
        plan.started[path] = None
        if not hop:
            operation = plan.operations[path] = self._numbered_here(operation)
            refused = self.refusal(operation)
            plan.refused = plan.refused or refused
            whole = not refused
            if whole:
                record_operation(state, name, path, operation.change, operation.publication)
        change, publication = operation.change, operation.publication
        origin, number = hop or operation.client, 0 if publication is None else publication.number
        wholes: list[str] = []
        if whole and change is not None:
            if not hop:
                self._issue(plan, operation.client, change)
            wholes = self.change(plan, change, origin)
            if wholes and change.action == f.SUBSCRIBE:
                state.tables.loose.add(change.name)
        elif whole and publication is not None:
            wholes, clients = state.tables.route(publication.attributes, origin)
            for client, names in clients.items():
                plan.deliveries.append(Delivery(client, path, tuple(names), publication))
        behind = [neighbor for neighbor in plan.neighbors if neighbor != hop]
        for neighbor in behind:
            ordered = t.Ordered(
                transaction=name,
                path=path,
                whole=neighbor in wholes,
                refused=plan.refused,
                number=number,
            )
            state.send(neighbor, ordered)
        if change is not None and change.action in _FLOODED and behind:
            plan.echoes[path] = behind
        else:
            self.processed(name, plan, path)

    def _issue(self, plan: Plan, client: str, change: Change) -> None:
        """Note a change of a client here; an advertisement is on its way until it is processed."""
        tables = self._state.tables
        plan.issued.append(Issued(client, change, tables.table(change).get(change.name)))
        if change.action == f.ADVERTISE:
            tables.spreading[change.name] = 0

    def change(self, plan: Plan, change: Change, hop: str) -> list[str]:
        """Change the tables; return the neighbors that need the change as an operation.

        Other changes that follow from it are sent ahead, as regular steps.
        """
        outputs: Outputs = self._state.tables.apply(change, hop)
        wholes: list[str] = []
        for neighbor in sorted(outputs):
            others = []
            for following in outputs[neighbor]:
                is_it = (following.action, following.name) == (change.action, change.name)
                if is_it and neighbor in plan.neighbors:
                    wholes.append(neighbor)
                else:
                    others.append(following)
            if others:
                self._steps.pass_on({neighbor: others}, Pending())
        return wholes

    def processed(self, name: str, plan: Plan, path: str) -> None:
        """Note that an operation is processed here and, if it is flooded, behind."""
        plan.processed[path] = None
        self._state.record(action="received", event=f"{name}#{path}", transaction=name)
        change, hop = plan.operations[path].change, plan.arrived[path][0]
        spreading = self._state.tables.spreading
        if change is not None and not hop and spreading.get(change.name) == 0:
            del spreading[change.name]
        if change is not None and change.action in _FLOODED and hop:
            self._state.send(hop, t.Echo(transaction=name, path=path))

    def echo(self, frame: t.Echo, source: str, now_ns: int) -> None:
        """Note that a neighbor and all behind it have processed an advertisement."""
        plan = self.open.get(frame.transaction)
        if plan is None or source not in plan.echoes.get(frame.path, ()):
            return
        plan.echoes[frame.path].remove(source)
        if not plan.echoes[frame.path]:
            del plan.echoes[frame.path]
            self.processed(frame.transaction, plan, frame.path)
            self.advance(frame.transaction, now_ns)

    def _numbered_here(self, operation: t.Operation) -> t.Operation:
        """Assign a number to a publication that another client planned."""
        if operation.publication is None or operation.publication.number:
            return operation
        number = self.numbers.get(operation.client, f.PLANNED_FROM) + 1
        self.numbers[operation.client] = number
        return numbered(operation, number)

    def refusal(self, operation: t.Operation) -> str:
        """Return why a client of this broker can't do a planned operation, or nothing."""
        client, change, publication = operation.client, operation.change, operation.publication
        state = self._state
        if client not in state.clients:
            return f"{client} is gone"
        if publication is not None:
            return uncovered(publication, client, state.tables, within=True)
        assert change is not None
        held = state.tables.table(change).get(change.name)
        if change.action in INVERSE:
            already = f"there is a {change.name!r} already" if held is not None else ""
            return already or overfull(change, client, state.tables, state.config)
        if held is None:
            return f"there is no {change.name!r}"
        if held.hop != client:
            return f"{change.name!r} belongs to another client"
        return withdrawing(self._contexts.values(), change)

    # -- Closing plans --------------------------------------------------------------------------

    def close(self, frame: t.Close, source: str) -> None:
        """Note the decision about a plan."""
        plan = self.open[frame.transaction]
        plan.closing = (frame.commit, frame.reason)
        plan.waiting = self._flood(plan, frame, but=source)
        self.try_close(frame.transaction)

    def _flood(self, plan: Plan, frame: Frame, *, but: str) -> list[str]:
        """Send a frame to the neighbors with a part in a plan; return them."""
        others = [neighbor for neighbor in plan.neighbors if neighbor != but]
        for neighbor in others:
            self._state.send(neighbor, frame)
        return others

    def try_close(self, name: str) -> None:
        """Carry the decision out if the plan is processed here; report it if it is behind too."""
        plan = self.open[name]
        if plan.closing is None or len(plan.processed) < len(plan.operations):
            return
        commit, reason = plan.closing
        if plan.refused:
            commit, reason = False, reason or plan.refused
        if not plan.over:
            self._carry_out(name, plan, commit=commit, reason=reason)
        if plan.waiting:
            return
        if plan.parent:
            self._state.send(plan.parent, t.Closed(transaction=name))
        elif not commit:
            self.compensate(t.Compensate(transaction=name), "")
            return
        if commit:
            self._forget(name)

    def _carry_out(self, name: str, plan: Plan, *, commit: bool, reason: str) -> None:
        plan.over = True
        self._state.record(action="committed" if commit else "aborted", transaction=name)
        # Before events: a client learns of its subscriptions first.
        self._end_for_participants(name, plan, commit=commit, reason=reason)
        if commit:
            deliver(self._state, name, self._compensation.still_owed(plan.deliveries))
            self._send_withdrawn(name, self._ended_with(plan))
            done, plan.issued = plan.issued, []
            self._compensation.keep_withdrawn(done)
        if name in self.submissions:
            self.answer_submission(name, reason)

    def _end_for_participants(self, name: str, plan: Plan, *, commit: bool, reason: str) -> None:
        made: dict[str, list[tuple[str, str]]] = {}
        for one in plan.operations.values():
            if one.home == self._state.name and one.client in self._state.clients:
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
            self._state.send(client, ended)

    def _ended_with(self, plan: Plan) -> list[Issued]:
        """Return the changes after which subscriptions have ended with a committed plan.

        Its withdrawals, and subscriptions that it made and another transaction has withdrawn: their
        clients learn only now that they had them.
        """
        made = (one.change.name for one in plan.issued if one.change.action == f.SUBSCRIBE)
        gone = self._compensation.ended(made)
        return [
            one
            for one in plan.issued
            if one.change.action == f.UNSUBSCRIBE or one.change.name in gone
        ]

    def _send_withdrawn(self, name: str, issued: Iterable[Issued]) -> None:
        """Notify clients of subscriptions that ended with a plan, after their last event."""
        withdrawn: dict[str, list[str]] = {}
        for one in issued:
            if one.client in self._state.clients:
                withdrawn.setdefault(one.client, []).append(one.change.name)
        for client, names in withdrawn.items():
            self._state.send(client, t.Withdrawn(transaction=name, subscriptions=tuple(names)))

    def answer_submission(self, name: str, refused: str) -> None:
        """Answer the request of the client that submitted a plan, if it waits for an answer."""
        submission = self.submissions[name]
        if submission.number and submission.client in self._state.clients:
            done = f.Done(number=submission.number, refused=refused, transaction=name)
            self._state.send(submission.client, done)
        submission.number = 0

    def closed(self, frame: t.Closed, source: str) -> None:
        """Note that a neighbor and all behind it have closed a plan."""
        plan = self.open.get(frame.transaction)
        if plan is not None and source in plan.waiting:
            plan.waiting.remove(source)
            self.try_close(frame.transaction)

    def compensate(self, frame: t.Compensate, source: str) -> None:
        """Undo what clients of this broker issued in an aborted plan."""
        plan = self.open[frame.transaction]
        self._flood(plan, frame, but=source)
        issued = plan.issued
        self._forget(frame.transaction)
        self._compensation.undo(issued)
        # Events may have come for its subscriptions while it was under way.
        made = (one for one in issued if one.change.action == f.SUBSCRIBE)
        self._send_withdrawn(frame.transaction, made)

    def _forget(self, name: str) -> None:
        del self.open[name]
        self.blocked.pop(name, None)
        self.submissions.pop(name, None)
