"""One client, with transactions; `nodes` adds its link.

It coordinates its transactions and takes part in those of others. See the packages `content` and
`transactions` for the guarantees.
"""

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

import msgspec

from ensue.core.errors import BadInput, LimitReached, LocalProtocolError, RemoteProtocolError
from ensue.core.wire import Codec
from ensue.protocols.content import frames as f
from ensue.protocols.content.client import ContentClient
from ensue.protocols.content.config import ContentConfig
from ensue.protocols.content.effects import Effects
from ensue.protocols.content.filters.parser import parse
from ensue.protocols.content.frames import Change, Publication
from ensue.protocols.content.input_log import InputLog
from ensue.protocols.interface import Effect, Frame, Notification
from ensue.protocols.transactions import frames as t
from ensue.protocols.transactions.invitations import invitation_filter
from ensue.protocols.transactions.plans import numbered
from ensue.protocols.transactions.threads import Threads

__all__ = ["Ceased", "Concluded", "Invitation", "TransactionClient"]


class Invitation(msgspec.Struct, frozen=True):
    """A request to act within a transaction, answered with `finish`."""

    transaction: str
    path: str
    publication: Publication
    subscriptions: tuple[str, ...] = ()
    """Subscriptions to invitations that match it; none: it names this client."""


class Concluded(msgspec.Struct, frozen=True):
    """The end of a transaction in which this client took part."""

    transaction: str
    committed: bool
    reason: str = ""
    subscriptions: tuple[tuple[str, str], ...] = ()
    """Subscriptions that a plan made for this client, with their filters."""


class Ceased(msgspec.Struct, frozen=True):
    """Subscriptions that a transaction has withdrawn, or made and not kept.

    No more events come for them.
    """

    subscriptions: tuple[str, ...]


class TransactionClient:
    """One client: a pure node behind a numbered link (`nodes.ClientNode`)."""

    codec = Codec(t.FRAMES)

    def __init__(
        self,
        *,
        name: str,
        home: str,
        config: ContentConfig | None = None,
        records: Mapping[str, bytes] | None = None,
        now_ns: int = 0,
    ) -> None:
        self.name = name
        self.home = home
        self.config = config or ContentConfig()
        self._effects = Effects()
        self.content = ContentClient(
            name=name, home=home, config=self.config, effects=self._effects
        )
        self.threads = Threads(self.content)
        content, threads = self.content, self.threads
        self._handlers = {
            t.Begin: content.send_request,
            t.Finish: content.send_request,
            t.End: content.send_request,
            t.Submit: self._submit,
            t.Invite: threads.send_request,
            f.Operate: threads.send_request,
            f.Goodbye: content.leave,
            f.Done: self._done,
            f.Reached: self._done,
            f.Notify: content.notify,
            f.Attach: content.send_request,
            f.Acknowledge: content.send_request,
            f.Release: content.release,
            f.Dismiss: content.send_request,
            f.Mailed: content.mailed,
            f.Attached: content.attached,
            f.Detached: content.detached,
            f.Expired: self._expired,
            t.Invited: self._invited,
            t.Ended: self._ended,
            t.Withdrawn: self._withdrawn,
        }
        self.log = InputLog(
            codec=self.codec,
            effects=self._effects,
            handle=self._handle,
            dump=self._dump,
            load=self._load,
            durable=self.config.durable,
            bytes_min=self.config.journal_bytes_min,
        )
        self.log.recover(records or {})
        content.start(now_ns)
        content.beat(now_ns)  # Before everything else.

    # -- Status ---------------------------------------------------------------------------------

    @property
    def unanswered_count(self) -> int:
        """The number of requests without an answer."""
        return len(self.content.asked)

    @property
    def subscriptions(self) -> tuple[str, ...]:
        """The names of this client's subscriptions."""
        return tuple(self.content.positions)

    @property
    def ended(self) -> bool:
        """Whether this client has left, or its session has ended."""
        return self.content.ended

    @property
    def gone(self) -> bool:
        """Whether the home knows that this client has left."""
        return self.content.gone

    @property
    def latest(self) -> Publication | None:
        """The last publication of this client."""
        return self.content.latest

    @property
    def recovered(self) -> list[tuple[int, Notification]]:
        """Trace rows of recovered inputs, with their times."""
        return self.log.recovered

    # -- Regular commands -----------------------------------------------------------------------

    def advertise(self, where: str, *, now_ns: int) -> tuple[int, str]:
        """Advertise publications; return the request's number and the advertisement's name."""
        return self._add(f.ADVERTISE, where, now_ns)

    def subscribe(self, where: str, *, now_ns: int) -> tuple[int, str]:
        """Subscribe to events; return the request's number and the subscription's name."""
        return self._add(f.SUBSCRIBE, where, now_ns)

    def take_invitations(self, where: str, *, now_ns: int) -> tuple[int, str]:
        """Subscribe to invitations by content; return the request's number and the name."""
        return self._add(f.SUBSCRIBE, invitation_filter(where), now_ns)

    def unadvertise(self, name: str, *, now_ns: int) -> int:
        """Withdraw an advertisement."""
        return self.request(f.Operate(number=0, change=Change(f.UNADVERTISE, name)), now_ns)

    def unsubscribe(self, name: str, *, now_ns: int) -> int:
        """Withdraw a subscription."""
        return self.request(f.Operate(number=0, change=Change(f.UNSUBSCRIBE, name)), now_ns)

    def publish(
        self, attributes: Mapping[str, object], payload: bytes = b"", *, now_ns: int
    ) -> int:
        """Publish an event."""
        publication = self.content.publication(attributes, payload, now_ns)
        return self.request(f.Operate(number=0, publication=publication), now_ns)

    def attach(
        self, name: str, where: str, *, window: int, accept_loss: bool = False, now_ns: int
    ) -> int:
        """Read a durable subscription, with at most `window` unacknowledged events."""
        frame = f.Attach(
            number=0,
            name=name,
            where=parse(where).to_text(),
            window=window,
            accept_loss=accept_loss,
        )
        return self.request(frame, now_ns)

    def acknowledge(self, mailbox: str, epoch: int, position: int, *, now_ns: int) -> int:
        """Acknowledge the events of a durable subscription up to a position."""
        frame = f.Acknowledge(number=0, mailbox=mailbox, epoch=epoch, position=position)
        return self.request(frame, now_ns)

    def release(self, mailbox: str, epoch: int, *, forget: bool = False, now_ns: int) -> int:
        """Stop reading a durable subscription; with `forget`, end it."""
        frame = f.Release(number=0, mailbox=mailbox, epoch=epoch, forget=forget)
        return self.request(frame, now_ns)

    def dismiss(self, name: str, *, now_ns: int) -> int:
        """End a durable subscription that this client need not read."""
        return self.request(f.Dismiss(number=0, name=name), now_ns)

    def leave(self, *, now_ns: int) -> None:
        """Withdraw everything and end the session."""
        self.log.take(f.Goodbye(), source="", now_ns=now_ns)

    def _add(self, action: str, where: str, now_ns: int) -> tuple[int, str]:
        change = Change(action, self.content.new_name(action), parse(where).to_text())
        return self.request(f.Operate(number=0, change=change), now_ns), change.name

    # -- Commands of transactions ---------------------------------------------------------------

    def begin(self, isolation: str, timeout_ns: int, *, now_ns: int) -> int:
        """Begin a serializable or atomic transaction; its name comes with the answer.

        Until then it is called `begun_by` the number that this returns.
        """
        return self.request(t.Begin(number=0, isolation=isolation, timeout_ns=timeout_ns), now_ns)

    def act(
        self,
        transaction: str,
        action: str,
        *,
        now_ns: int,
        within: str = "",
        where: str = "",
        name: str = "",
        attributes: Mapping[str, object] | None = None,
        payload: bytes = b"",
    ) -> tuple[int, str]:
        """Do one operation within a transaction: `adv`, `uadv`, `sub`, `usub` or `pub`.

        `within` is the path of the invitation, for a client that does not coordinate. Return the
        number of the request, and the name of the advertisement or subscription.
        """
        transaction = self.threads.named(transaction)
        change: Change | None = None
        publication: Publication | None = None
        if action == "pub":
            publication = self.content.publication(attributes or {}, payload, now_ns)
        else:
            where = parse(where).to_text() if where else ""
            name = name or self.content.new_name(action)
            change = Change(action, name, where)
        operate = f.Operate(
            number=0,
            transaction=transaction,
            path=self.threads.next_path(transaction, within),
            change=change,
            publication=publication,
        )
        return self.request(operate, now_ns), name

    def invite(
        self,
        transaction: str,
        client: str,
        attributes: Mapping[str, object] | None = None,
        payload: bytes = b"",
        *,
        now_ns: int,
        within: str = "",
    ) -> int:
        """Let others act within a transaction; answered when they have finished.

        `client` is a name, or `ANYONE`: all clients that take invitations with the attributes.
        """
        transaction = self.threads.named(transaction)
        frame = t.Invite(
            number=0,
            transaction=transaction,
            path=self.threads.next_path(transaction, within),
            client=client,
            publication=self.content.publication(attributes or {}, payload, now_ns),
        )
        return self.request(frame, now_ns)

    def finish(self, transaction: str, path: str, refused: str = "", *, now_ns: int) -> int:
        """End this client's part in a transaction it was invited to, or refuse it."""
        if self.threads.is_busy(transaction, path) and not refused:
            raise LocalProtocolError("operations of this invitation are still under way")
        frame = t.Finish(number=0, transaction=transaction, path=path, refused=refused)
        return self.request(frame, now_ns)

    def end(self, transaction: str, *, commit: bool, now_ns: int) -> int:
        """Commit or abort; the answer is the outcome."""
        transaction = self.threads.named(transaction)
        if commit and self.threads.is_busy(transaction, ""):
            raise LocalProtocolError("operations of this transaction are still under way")
        return self.request(t.End(number=0, transaction=transaction, commit=commit), now_ns)

    def submit(
        self,
        operations: Sequence[t.Operation],
        timeout_ns: int,
        *,
        now_ns: int,
        hold: bool = False,
    ) -> int:
        """Submit a plan: a whole transaction. With `hold`, `end` decides about it."""
        own = count(self.content.published + 1)
        planned = tuple(
            numbered(one, next(own)) if one.publication and one.client == self.name else one
            for one in operations
        )
        frame = t.Submit(number=0, operations=planned, timeout_ns=timeout_ns, hold=hold)
        return self.request(frame, now_ns)

    def planned_publication(
        self, client: str, attributes: Mapping[str, object], payload: bytes, *, now_ns: int
    ) -> Publication:
        """Return a publication for a plan.

        It is numbered when the plan is submitted, or by the other client's home.
        """
        made = self.content.publication(attributes, payload, now_ns)
        return msgspec.structs.replace(made, publisher=client, number=0)

    def planned_name(self, client: str, number: int) -> str:
        """Return a unique name for an entry that the next plan makes for a client."""
        return (
            f"{client}.plan-{self.name.replace('.', '/')}-{self.content.last_number + 1}-{number}"
        )

    def request(self, frame: Any, now_ns: int) -> int:
        """Send a request under a new number; return the number."""
        if self.ended:
            raise LocalProtocolError(f"the session of {self.name} has ended: connect again")
        if self.unanswered_count >= self.config.requests_max:
            raise LimitReached(
                f"{self.name} has {self.config.requests_max} requests under way (requests_max)",
                limit="requests_max",
                value=self.config.requests_max,
            )
        request = msgspec.structs.replace(frame, number=self.content.last_number + 1)
        if not isinstance(frame, f.Operate) or frame.publication is None:
            self._check_readable(request)  # A publication was made here, of checked attributes.
        self.log.take(request, source="", now_ns=now_ns)
        return int(request.number)

    def _check_readable(self, frame: Any) -> None:
        """Refuse a request that the home could not decode: it would block the link."""
        try:
            self.codec.decode(self.codec.encode(frame))
        except (RemoteProtocolError, UnicodeEncodeError, TypeError, OverflowError) as error:
            raise BadInput(f"brokers could not decode it: {error}") from error

    # -- Inputs ---------------------------------------------------------------------------------

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Handle a frame of the home."""
        if source == self.home:
            self.log.take(frame, source=source, now_ns=now_ns)

    def handle_timer(self, *, now_ns: int) -> None:
        """Send a beat if one is due."""
        self.content.beat(now_ns)

    def next_timer_ns(self) -> int | None:
        """Return when the next beat is due."""
        return self.content.next_beat_ns()

    def take_effects(self) -> Sequence[Effect]:
        """Drain the effects."""
        return self._effects.drain()

    def _dump(self) -> bytes:
        return self.content.record(self.codec, self.threads.record())

    def _load(self, state: bytes) -> None:
        self.threads.restore(self.content.restore(self.codec, state))

    def _handle(self, frame: Frame, source: str, now_ns: int) -> None:
        del source, now_ns  # The home, or this client itself.
        handler = self._handlers.get(type(frame))
        if handler is not None and (not self.ended or isinstance(frame, f.Expired)):
            handler(frame)

    def _submit(self, frame: t.Submit) -> None:
        for one in frame.operations:
            if one.publication is not None and one.client == self.name:
                self.content.published = one.publication.number
        self.content.send_request(frame)

    def _done(self, frame: f.Done | f.Reached) -> None:
        asked = self.content.done(frame)
        if isinstance(asked, t.Begin) and isinstance(frame, f.Done) and frame.transaction:
            self.threads.begun(t.begun_by(asked.number), frame.transaction)
        if isinstance(asked, f.Operate | t.Invite) and asked.transaction:
            self.threads.answered(asked, frame.refused)

    def _expired(self, frame: f.Expired) -> None:
        del frame
        self.content.expire()

    def _invited(self, frame: t.Invited) -> None:
        self._effects.notify(
            Invitation(frame.transaction, frame.path, frame.publication, frame.subscriptions)
        )

    def _ended(self, frame: t.Ended) -> None:
        self.threads.end(frame)
        for name, where in frame.subscriptions:
            if where:
                self.content.positions.setdefault(name, 0)
        made = tuple(one for one in frame.subscriptions if one[1])
        self._effects.notify(
            Concluded(frame.transaction, frame.committed, frame.reason, made),
            action="committed" if frame.committed else "aborted",
            transaction=frame.transaction,
        )
        withdrawn = tuple(name for name, where in frame.subscriptions if not where)
        if withdrawn:
            self._end_withdrawn(withdrawn)

    def _withdrawn(self, frame: t.Withdrawn) -> None:
        self._end_withdrawn(frame.subscriptions)

    def _end_withdrawn(self, names: tuple[str, ...]) -> None:
        for name in names:
            self.content.positions.pop(name, None)
        self._effects.notify(Ceased(names))
