"""Operations of clients within transactions, and invitations.

Operations within a transaction are steps as regular ones are (`content.steps`). A serializable
transaction makes them on its own layer of the tables, an atomic one on the broker's tables
(`contexts`). A broker opens the transaction at a neighbor ahead of the first step that it sends
there. A client sends its next operation when the last one is answered, and every broker processes
them in sequential order (Definition 6).

In a serializable transaction only advertisements and invitations wait for other brokers: they are
answered when all steps that they caused have been answered (D1, D2: a step that causes nothing is
answered at once; a step that a broker triggers has no origin, its end only lets the step that
triggered it continue). An advertisement attracts subscriptions, which travel back to it: the answer
to it shows that they have arrived. Subscriptions, withdrawals of them and events are answered by
the client's home at once. They travel away from the client only, and a tree of FIFO links keeps
causal order. So each broker has them before every later operation, whichever client does that, and
before it is asked for its vote.

In a transaction without isolation all operations wait for all steps that they caused: it works on
the shared tables, where covered subscriptions wait for the answers to others (`content.steps`).

An invitation (`tcm`) goes to one client, by name, or to all that take it, by content
(`invitations`). It is answered when these clients have finished; their operations within the
transaction happen in between. The home answers for a client that has left
(a negative acknowledgement), and refuses operations of a transaction that has ended.
"""

import re
from collections.abc import Callable

from ensue.core.errors import BadInput, limit_reason
from ensue.protocols.content import frames as f
from ensue.protocols.content.broker import ContentBroker
from ensue.protocols.content.frames import Change, Publication, Step
from ensue.protocols.content.mailboxes import transactional_refusal
from ensue.protocols.content.refusals import SPLIT, refusal, uncovered
from ensue.protocols.content.state import BrokerState
from ensue.protocols.content.steps import Pending, Steps
from ensue.protocols.transactions import frames as t
from ensue.protocols.transactions.contexts import (
    Context,
    Delivery,
    Issued,
    Logged,
    run,
    withdrawing,
)
from ensue.protocols.transactions.invitations import marked, unmarked

__all__ = [
    "ABORTED",
    "OVER",
    "TIMEOUT",
    "UNDER_WAY",
    "Operations",
    "lost_connection",
    "record_operation",
    "shortened",
    "whole_name",
]

OVER = "the transaction is over"
ABORTED = "aborted"
"""The reason when its own client aborts a transaction."""
TIMEOUT = "timeout"
"""The reason when it was not ended in time."""
UNDER_WAY = "operations of it are still under way"
"""The reason when a client ends its part before its operations are answered."""
_FLOODED = (f.ADVERTISE, f.UNADVERTISE)
_RANDOM = re.compile(r"~[^.]*")


def shortened(name: str) -> str:
    """Return a client's name without the part that makes it unique among processes."""
    return _RANDOM.sub("", name)


def whole_name(state: BrokerState, name: str) -> str:
    """Return the client of that name, or the latest one with that shortened name."""
    if name in state.members:
        return name
    return next((each for each in reversed(state.members) if shortened(each) == name), name)


def lost_connection(client: str) -> str:
    """Return the reason why transactions do not wait for a client."""
    return f"{client} lost its connection"


def record_operation(
    state: BrokerState,
    name: str,
    path: str,
    change: Change | None,
    publication: Publication | None,
) -> None:
    """Write a client's operation within a transaction into the trace."""
    event = f"{name}#{path}"
    if publication is not None:
        state.record(
            action="published",
            event=event,
            topic=publication.text,
            publisher=publication.publisher,
            publisher_seq=publication.number,
            transaction=name,
        )
    elif change is not None and change.action in (f.SUBSCRIBE, f.UNSUBSCRIBE):
        state.record(
            action="subscribed" if change.action == f.SUBSCRIBE else "unsubscribed",
            event=event,
            topic=change.where or None,
            subscription=change.name,
            transaction=name,
        )


class Operations:
    """Operations within serializable and atomic transactions at one broker."""

    def __init__(
        self,
        state: BrokerState,
        steps: Steps,
        content: ContentBroker,
        contexts: dict[str, Context],
        coordinates: Callable[[str, str], bool],
    ) -> None:
        self._state = state
        self._steps = steps
        self._content = content
        self._contexts = contexts
        self._coordinates = coordinates
        """Whether a client coordinates a transaction that is open to operations."""

    def involves(self, client: str) -> bool:
        """Return whether a client of that name takes part in an open transaction."""
        return any(
            client in context.participants or any(one.client == client for one in context.issued)
            for context in self._contexts.values()
        )

    # -- Requests of clients --------------------------------------------------------------------

    def operate(self, frame: f.Operate, client: str) -> None:
        """Carry out a client's operation within a transaction."""
        state, context = self._state, self._context_for(frame.transaction, frame.path, client)
        refused = OVER
        if context is not None:
            refused = self._too_many(context)
            refused = refused or refusal(frame, client, context.tables, state.config)
            if frame.change is not None and not context.isolated:
                refused = refused or withdrawing(self._contexts.values(), frame.change)
        if context is None or refused:
            state.send(client, f.Done(number=frame.number, refused=refused))
            return
        self._note_operation(context, client, frame.path)
        record_operation(state, frame.transaction, frame.path, frame.change, frame.publication)
        changes: tuple[Change, ...] = ()
        if frame.change is not None:
            before = context.tables.table(frame.change).get(frame.change.name)
            context.issued.append(Issued(client, frame.change, before))
            changes = (frame.change,)
        pending = Pending(client, frame.number, frame.transaction, frame.path)
        pending.advertised = [each.name for each in changes if each.action == f.ADVERTISE]
        awaited = not context.isolated or any(each.action in _FLOODED for each in changes)
        self.perform(context, pending, client, changes, frame.publication, awaited=awaited)

    def invite(self, frame: t.Invite, client: str) -> None:
        """Pass a client's invitation on to the client that it names."""
        state, context = self._state, self._context_for(frame.transaction, frame.path, client)
        refused = OVER if context is None else self._too_many(context)
        by_content = frame.client == t.ANYONE
        if context is not None and by_content and not refused:
            try:
                refused = uncovered(frame.publication, client, context.tables, within=True)
            except BadInput as error:
                refused = str(error)
        if context is None or refused:
            state.send(client, f.Done(number=frame.number, refused=refused))
            return
        self._note_operation(context, client, frame.path)
        pending = Pending(client, frame.number, frame.transaction, frame.path)
        if by_content:
            publication = marked(frame.publication)
            self.spread_invitation(context, pending, client, publication, f"{frame.path}.0")
            return
        self.pass_invitation(context, pending, whole_name(state, frame.client), frame.publication)

    def finish(self, frame: t.Finish, client: str) -> None:
        """End the part of an invited client, and answer the invitation."""
        context = self._contexts.get(frame.transaction)
        invited = None if context is None else context.invitations.get(frame.path)
        if context is None or invited is None or invited[0] != client:
            self._state.send(client, f.Done(number=frame.number, refused=OVER))
            return
        del context.invitations[frame.path]
        context.idle.pop(frame.path, None)
        self._state.send(client, f.Done(number=frame.number))
        acts = self._steps.acts_within(frame.transaction, frame.path)
        self._steps.finish(invited[1], frame.refused or (UNDER_WAY if acts else ""))

    def answer_invitations(self, client: str, refused: str) -> None:
        """Answer the invitations of a client that has left or is disconnected.

        One by content that it has done nothing for does not count it. All others are refused.
        """
        for context in list(self._contexts.values()):
            for path, (invited, number) in list(context.invitations.items()):
                if invited == client:
                    del context.invitations[path]
                    if context.idle.pop(path, "") is None:
                        for pending in self._steps.waiting_for(number):
                            context.reached.get(pending.logged, {}).pop(client, None)
                        self._steps.finish(number, "", reached=-1)
                    else:
                        self._steps.finish(number, refused)

    def reached(self, frame: f.Reached, source: str) -> None:
        """Note that clients behind a neighbor count for an invitation by content."""
        for pending in self._steps.waiting_for(frame.number):
            context = self._contexts.get(pending.transaction)
            if context is not None and pending.logged in context.reached:
                context.reached[pending.logged][source] = None
        self._steps.finish(frame.number, frame.refused, frame.clients)

    def _context_for(self, name: str, path: str, client: str) -> Context | None:
        """Return the context of a transaction in which a client may act now, or None."""
        context = self._contexts.get(name)
        if context is None:
            return None
        inviting = path.rpartition(".")[0]
        if inviting:
            allowed = context.invitations.get(inviting, ("", 0))[0] == client
        else:
            allowed = self._coordinates(name, client)
        return context if allowed else None

    def _note_operation(self, context: Context, client: str, path: str) -> None:
        """Note that a client has done an operation of its thread."""
        context.participants[client] = None
        context.operations += 1
        context.idle.pop(path.rpartition(".")[0], None)

    def _too_many(self, context: Context) -> str:
        """Return the refusal if clients here have reached the operation limit, or nothing."""
        limit = self._state.config.operations_max
        if context.operations < limit:
            return ""
        return limit_reason("it has too many operations", "operations_max", limit, SPLIT)

    # -- Steps ----------------------------------------------------------------------------------

    def step(self, frame: Step, source: str) -> None:
        """Carry out a neighbor's step within a transaction."""
        context = self._contexts.get(frame.transaction)
        pending = Pending(source, frame.number, frame.transaction, frame.path)
        if context is None and frame.shared and frame.changes:
            # Its origin undoes the change later: every broker must have it by then.
            self._content.change(frame.changes, source, frame.number)
        elif context is None:
            pending.refused = OVER
            self._steps.answer(pending)
        elif frame.invited == t.ANYONE and frame.publication is not None:
            context.neighbors[source] = None
            self.spread_invitation(context, pending, source, frame.publication, frame.path)
        elif frame.invited and frame.publication is not None:
            context.neighbors[source] = None
            self.pass_invitation(context, pending, frame.invited, frame.publication)
        else:
            context.neighbors[source] = None
            awaited = frame.number > 0
            self.perform(
                context, pending, source, frame.changes, frame.publication, awaited=awaited
            )

    def perform(
        self,
        context: Context,
        pending: Pending,
        hop: str,
        changes: tuple[Change, ...],
        publication: Publication | None,
        *,
        awaited: bool,
    ) -> None:
        """Do one step of a transaction, and wait for the steps it causes if they are awaited."""
        name, path = pending.transaction, pending.path
        done = run(context.tables, Logged(hop, changes, publication, {}, [], {}))
        if context.isolated:
            context.log.append(done)
        self._state.record(action="received", event=f"{name}#{path}", transaction=name)
        for client, names in done.clients.items():
            assert publication is not None
            context.deliveries.append(Delivery(client, path, tuple(names), publication))
        self._steps.wait_for_coverers(pending, changes, context.tables)
        for neighbor in sorted({*done.outputs, *done.neighbors}):
            passed_on = publication if neighbor in done.neighbors else None
            changes_there = tuple(done.outputs.get(neighbor, ()))
            self._open_at(neighbor, context, name)
            if awaited:
                shared = not context.isolated
                self._steps.cause(pending, neighbor, changes_there, passed_on, shared=shared)
            else:
                self._steps.send_unanswered(pending, neighbor, changes_there, passed_on)
        self._steps.settle(pending)

    def _open_at(self, neighbor: str, context: Context, name: str) -> None:
        """Open a transaction at a neighbor, ahead of the first step that it gets."""
        if neighbor not in context.neighbors:
            context.neighbors[neighbor] = None
            self._state.send(neighbor, t.Open(transaction=name, isolated=context.isolated))

    def spread_invitation(
        self, context: Context, pending: Pending, hop: str, publication: Publication, base: str
    ) -> None:
        """Invite clients of this broker whose filters match, and pass the invitation on.

        Clients that have left or lost their connections are not invited, and do not count.
        """
        done = run(context.tables, Logged(hop, (), publication, {}, [], {}))
        counted: dict[str, None] = {}
        if context.isolated:
            pending.logged = len(context.log)
            context.log.append(done)
            context.reached[pending.logged] = counted
        for number, (client, names) in enumerate(done.clients.items(), 1):
            if not self._absence(client):
                pending.reached += 1
                counted[client] = None
                path = f"{base}.{number}"
                context.idle[path] = None
                self._invite_here(context, pending, client, publication, path, tuple(names))
        for number, neighbor in enumerate(done.neighbors, 1 + len(done.clients)):
            self._open_at(neighbor, context, pending.transaction)
            self._steps.cause(
                pending,
                neighbor,
                publication=publication,
                invited=t.ANYONE,
                path=f"{base}.{number}",
            )
        self._steps.settle(pending)

    def _invite_here(
        self,
        context: Context,
        pending: Pending,
        client: str,
        publication: Publication,
        path: str,
        subscriptions: tuple[str, ...] = (),
    ) -> None:
        """Deliver an invitation to a client of this broker."""
        context.participants[client] = None
        context.invitations[path] = (client, self._steps.wait(pending))
        invited = t.Invited(
            transaction=pending.transaction,
            path=path,
            publication=unmarked(publication) if subscriptions else publication,
            subscriptions=subscriptions,
        )
        self._state.send(client, invited)

    def _absence(self, client: str) -> str:
        """Return why a client of this broker can't take part in transactions now, or nothing."""
        state = self._state
        if client not in state.clients or client in state.leaving:
            return f"{client} is gone"
        return lost_connection(client) if client in state.disconnected else ""

    def pass_invitation(
        self, context: Context, pending: Pending, client: str, publication: Publication
    ) -> None:
        """Forward an invitation towards a client, or deliver it."""
        _, hop = self._state.members.get(client, ("", ""))
        if not hop:
            pending.refused = f"no client is called {client!r}"
        elif refused := transactional_refusal(client):
            pending.refused = refused
        elif hop != client:
            self._open_at(hop, context, pending.transaction)
            self._steps.cause(pending, hop, publication=publication, invited=client)
        elif absence := self._absence(client):
            pending.refused = absence
        else:
            self._invite_here(context, pending, client, publication, pending.path)
        self._steps.settle(pending)
