"""A broker where clients act within transactions: steps of operations, and invitations.

Theory of operation. Operations within a transaction are steps as regular ones are (`overlay.broker`), made on the transaction's own tables if it is
serializable, on the broker's if it is atomic (`contexts`). A client's operation is answered when all that it caused has been (D1, D2: a step that
causes nothing is answered at once; a step that a broker triggers has no origin, its end only lets the one that triggered it go on), and a client
sends the next one only then: so every broker processes them in sequential order (Definition 6). An invitation (`tcm`) goes to
one client, by its name, and is answered when that client says that it has finished; whatever it does within the transaction meanwhile comes in
between. A client that is gone is answered for (a negative acknowledgement), and so is anything about a transaction that is over.

Departures from the paper: `tcm` names a client instead of matching subscriptions; publications wait for the commit at the broker of their
recipient, which is there and durable, and not at the recipient.
"""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from ensue.errors import limit_reason
from ensue.protocols.core import Frame
from ensue.protocols.overlay import frames as f
from ensue.protocols.overlay.broker import Pending
from ensue.protocols.overlay.frames import Change, Publication, Step
from ensue.protocols.overlay.joining import Joining
from ensue.protocols.overlay.refusing import SPLIT, refusal
from ensue.protocols.transactions import frames as t
from ensue.protocols.transactions.contexts import (
    Context,
    ContextRecord,
    Delivery,
    Issued,
    Logged,
    run,
)
from ensue.wire import Codec, Records

__all__ = ["ABORTED", "OVER", "UNDER_WAY", "Acting", "lost_connection", "shortened"]

OVER = "the transaction is over"
ABORTED = "aborted"
"""The reason where its own client aborts a transaction."""
UNDER_WAY = "operations of it are still under way"
"""Whoever says that it is done while they are would have them happen, or not, by chance."""
_RANDOM = re.compile(r"~[^.]*")


def shortened(name: str) -> str:
    """Return a client's name as people gave it: without what makes it unique among processes."""
    return _RANDOM.sub("", name)


def lost_connection(client: str) -> str:
    """Say that transactions do not wait for a client without a connection."""
    return f"{client} lost its connection"


class ActingRecord(msgspec.Struct, array_like=True):
    """What is kept of transactions."""

    contexts: dict[str, ContextRecord]
    besides: bytes


_RECORD = Records[ActingRecord](ActingRecord)


class Acting(Joining):
    """A broker where clients act within transactions."""

    codec = Codec(t.FRAMES)

    def __init__(self, **options: Any) -> None:
        self._contexts: dict[str, Context] = {}
        super().__init__(**options)

    @property
    def open_transactions(self) -> tuple[str, ...]:
        """Transactions that are not over here."""
        return tuple(self._contexts)

    def _dump_besides(self) -> bytes:
        contexts = {name: context.record() for name, context in self._contexts.items()}
        return _RECORD.encode(ActingRecord(contexts, self._dump_transactions()))

    def _load_besides(self, state: bytes) -> None:
        record = _RECORD.decode(state)
        self._contexts = {
            name: Context.restored(one, self.tables) for name, one in record.contexts.items()
        }
        self._load_transactions(record.besides)

    def _dump_transactions(self) -> bytes:
        return b""

    def _load_transactions(self, state: bytes) -> None:
        del state

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Handle what somebody says. Who comes under the name of one who is gone waits, and asks again, until nothing of that one is open."""
        if isinstance(frame, f.Hello) and source not in self._clients and self._is_open_of(source):
            return
        super().receive(frame, source=source, now_ns=now_ns)

    def _is_open_of(self, client: str) -> bool:
        """Return whether something is open here in which a client of that name has a part."""
        return any(
            client in context.participants or any(one.client == client for one in context.issued)
            for context in self._contexts.values()
        )

    _HANDLERS: Mapping[type[Frame], str] = {
        **Joining._HANDLERS,  # noqa: SLF001 - the handlers of the base class
        t.Invite: "_invite",
        t.Finish: "_finish",
    }

    def _may_act(self, name: str, path: str, client: str) -> Context | None:
        """Return the context in which a client may do something now, if it may."""
        context = self._contexts.get(name)
        if context is None:
            return None
        inviting = path.rpartition(".")[0]
        if inviting:
            allowed = context.invitations.get(inviting, ("", 0))[0] == client
        else:
            allowed = self._coordinates(name, client)
        return context if allowed else None

    def _coordinates(self, name: str, client: str) -> bool:
        """Return whether a client coordinates a transaction that is open to operations."""
        del name, client
        return False

    def _operate_within(self, frame: f.Operate, client: str) -> None:
        context = self._may_act(frame.transaction, frame.path, client)
        if context is None:
            refused = OVER
        else:
            refused = self._overlong(context) or refusal(frame, client, context.tables, self.config)
        if context is None or refused:
            self._send(client, f.Done(number=frame.number, refused=refused))
            return
        context.participants[client] = None
        context.operations += 1
        self._record_operation(frame.transaction, frame.path, frame.change, frame.publication)
        changes: tuple[Change, ...] = ()
        if frame.change is not None:
            before = context.tables.table(frame.change).get(frame.change.name)
            context.issued.append(Issued(client, frame.change, before))
            changes = (frame.change,)
        pending = Pending(client, frame.number, frame.transaction, frame.path, [])
        self._within(context, pending, client, changes, frame.publication)

    def _overlong(self, context: Context) -> str:
        """Say so if clients of this broker have done as much in a transaction as they may."""
        limit = self.config.operations_max
        full = limit_reason("it has too many operations", "operations_max", limit, SPLIT)
        return full if context.operations >= limit else ""

    def _invite(self, frame: t.Invite, client: str, now_ns: int) -> None:
        del now_ns
        context = self._may_act(frame.transaction, frame.path, client)
        refused = OVER if context is None else self._overlong(context)
        if context is None or refused:
            self._send(client, f.Done(number=frame.number, refused=refused))
            return
        context.participants[client] = None
        context.operations += 1
        pending = Pending(client, frame.number, frame.transaction, frame.path, [])
        self._hand_on(context, pending, self._whole_name(frame.client), frame.publication)

    def _whole_name(self, name: str) -> str:
        """Return the client that is meant: of that name, or else the last to come whose name is that without its random part (`~…`)."""
        if name in self._members:
            return name
        return next((each for each in reversed(self._members) if shortened(each) == name), name)

    def _step_in(self, frame: Step, source: str, now_ns: int) -> None:
        if not frame.transaction:
            super()._step_in(frame, source, now_ns)
            return
        context = self._contexts.get(frame.transaction)
        pending = Pending(source, frame.number, frame.transaction, frame.path, [])
        if context is None and frame.shared and frame.changes:
            # Whoever made the change undoes it behind this: made nowhere, it could not be undone everywhere.
            self._change(frame.changes, source, frame.number)
        elif context is None:
            pending.refused = OVER
            self._answer(pending)
        elif frame.invited and frame.publication is not None:
            self._hand_on(context, pending, frame.invited, frame.publication)
        else:
            self._within(context, pending, source, frame.changes, frame.publication)

    def _within(
        self,
        context: Context,
        pending: Pending,
        hop: str,
        changes: tuple[Change, ...],
        publication: Publication | None,
    ) -> None:
        """Do one step of a transaction, and wait for what it causes."""
        name, path = pending.transaction, pending.path
        done = run(context.tables, Logged(hop, changes, publication, {}, [], {}))
        if context.isolated:
            context.log.append(done)
        self._record(action="received", event=f"{name}#{path}", transaction=name)
        for client, names in done.clients.items():
            assert publication is not None
            context.deliveries.append(Delivery(client, path, tuple(names), publication))
        self._wait_for_coverers(pending, changes, context.tables)
        for neighbour in sorted({*done.outputs, *done.neighbours}):
            passed_on = publication if neighbour in done.neighbours else None
            changes_there = tuple(done.outputs.get(neighbour, ()))
            shared = not context.isolated
            self._cause(pending, neighbour, changes_there, passed_on, shared=shared)
        self._settle(pending)

    def _hand_on(
        self, context: Context, pending: Pending, client: str, publication: Publication
    ) -> None:
        """Pass an invitation on towards a client, or hand it over."""
        name, path = pending.transaction, pending.path
        _, hop = self._members.get(client, ("", ""))
        if not hop:
            pending.refused = f"nobody here is called {client!r}"
        elif hop != client:
            self._cause(pending, hop, publication=publication, invited=client)
        elif client not in self.clients:
            pending.refused = f"{client} is gone"
        elif client in self._disconnected:
            pending.refused = lost_connection(client)
        else:
            context.participants[client] = None
            context.invitations[path] = (client, self._wait(pending))
            self._send(client, t.Invited(transaction=name, path=path, publication=publication))
        self._settle(pending)

    def _finish(self, frame: t.Finish, client: str, now_ns: int) -> None:
        del now_ns
        context = self._contexts.get(frame.transaction)
        invited = None if context is None else context.invitations.get(frame.path)
        if context is None or invited is None or invited[0] != client:
            self._send(client, f.Done(number=frame.number, refused=OVER))
            return
        del context.invitations[frame.path]
        self._send(client, f.Done(number=frame.number))
        under_way = UNDER_WAY if self._acts_within(frame.transaction, frame.path) else ""
        self._stepped_by(invited[1], frame.refused or under_way)

    def _acts_within(self, name: str, path: str) -> bool:
        """Return whether operations of a client of this broker are under way: its own, or those of an invitation."""
        return any(
            pending.transaction == name
            and pending.hop in self._clients
            and pending.path.rpartition(".")[0] == path
            for pending in self._steps.values()
        )

    def _depart(self, client: str, now_ns: int) -> None:
        self._answer_invitations(client, f"{client} is gone")
        super()._depart(client, now_ns)

    def _disconnect(self, frame: f.Disconnected, source: str, now_ns: int) -> None:
        super()._disconnect(frame, source, now_ns)
        self._answer_invitations(frame.client, lost_connection(frame.client))

    def _answer_invitations(self, client: str, refused: str) -> None:
        """Answer for a client that is gone or disconnected, so that no transaction waits for it."""
        for context in list(self._contexts.values()):
            for path, (invited, number) in list(context.invitations.items()):
                if invited == client:
                    del context.invitations[path]
                    self._stepped_by(number, refused)

    def _record_operation(
        self, name: str, path: str, change: Change | None, publication: Publication | None
    ) -> None:
        """Write what a client does within a transaction into the trace."""
        event = f"{name}#{path}"
        if publication is not None:
            self._record(
                action="published",
                event=event,
                topic=publication.text,
                publisher=publication.publisher,
                publisher_seq=publication.number,
                transaction=name,
            )
        elif change is not None and change.action in (f.SUBSCRIBE, f.UNSUBSCRIBE):
            self._record(
                action="subscribed" if change.action == f.SUBSCRIBE else "unsubscribed",
                event=event,
                topic=change.where or None,
                subscription=change.name,
                transaction=name,
            )
