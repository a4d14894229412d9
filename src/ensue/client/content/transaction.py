"""Transactions of a bus: `async with bus.transaction() as tx`, and invitations into them.

All operations of all clients that take part happen, or none does. `tx.invite` lets another client
act within the transaction, and returns when its handler has; the handler may invite others. Leaving
the block commits, an exception in it aborts. `TransactionAborted` means that nothing has happened,
and has the reason. With `isolation="serializable"` that may be a conflict with another transaction:
try again.

An operation begins when its method is called, not when it is awaited. So a forgotten `await` is
noticed, and no transaction commits without one of its operations.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from ensue.client.content.error_text import (
    RefusedRequest,
    explained,
    invitation_text,
    timed_out,
    too_few_reached,
)
from ensue.client.content.reader import ContentRequest, ContentShare, ReadOptions
from ensue.client.content.session import CONTENT, ContentSession
from ensue.client.subscription import Subscription
from ensue.client.validation import (
    PENDING_MAX,
    Acknowledge,
    Payload,
    check_broker_name,
    check_payload,
)
from ensue.core.errors import (
    BadInput,
    EnsueError,
    LocalProtocolError,
    SubscriptionRefused,
    TransactionAborted,
    TransactionPending,
    aborted_transaction,
)
from ensue.protocols.content.config import ContentConfig
from ensue.protocols.content.filters.filter import event_of
from ensue.protocols.content.filters.spaces import Value
from ensue.protocols.content.frames import Publication
from ensue.protocols.transactions.client import TransactionClient
from ensue.protocols.transactions.frames import ANYONE, ATOMIC, PLANNED, SERIALIZABLE
from ensue.protocols.transactions.invitations import parse_unreserved
from ensue.protocols.transactions.operations import ABORTED, OVER, TIMEOUT
from ensue.runtime.names import check_text

if TYPE_CHECKING:
    from ensue.protocols.content.client import Answered

__all__ = [
    "InvitationHandler",
    "InvitedTransaction",
    "Operations",
    "Subscribe",
    "Transaction",
    "check_transaction",
    "end_here",
    "share_of",
]

Subscribe = Callable[[ContentRequest], Subscription]

T = TypeVar("T")

TIMEOUT_S_MAX = ContentConfig().timeout_ns_max / 1_000_000_000
TIMEOUT_S_MIN = 1e-9
"""Times are whole nanoseconds."""


def check_transaction(isolation: str, timeout: float) -> None:
    """Refuse an unknown isolation, and an invalid timeout."""
    if isolation not in (SERIALIZABLE, ATOMIC, PLANNED):
        known = f"{SERIALIZABLE!r}, {ATOMIC!r} or {PLANNED!r}"
        raise BadInput(f"isolation must be {known}, got {isolation!r}")
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise BadInput(f"timeout must be a number of seconds, got {timeout!r}")
    if not TIMEOUT_S_MIN <= timeout <= TIMEOUT_S_MAX:  # Brokers refuse it, but later.
        raise BadInput(
            f"timeout must be a number of seconds above 0 and up to {TIMEOUT_S_MAX:g}, got "
            f"{timeout!r}"
        )


def share_of(subscription: Subscription) -> ContentShare:
    """Return the share of an open subscription by content that is not durable."""
    if subscription.durable:
        raise LocalProtocolError(
            f"{subscription.name!r} is durable, and transactions do not change it: end it with "
            "`await subscription.forget()`"
        )
    share = _share_of(subscription)
    if share is None or not share.subscription or share.draining:
        raise LocalProtocolError(
            "this is not an open subscription by content: open one with bus.subscribe(where=…)"
        )
    return share


def end_here(subscription: Subscription) -> None:
    """End a subscription that the brokers don't have, unless it has ended."""
    share = _share_of(subscription)
    if share is not None:
        share.withdrawn()
    subscription.close()


def _share_of(subscription: Subscription) -> ContentShare | None:
    reader = subscription._reader  # noqa: SLF001 - a part of the bus, as this is
    share = None if reader is None else reader.node
    return share if isinstance(share, ContentShare) else None


class _Begun(Coroutine[Any, Any, T]):
    """An awaitable operation. It never warns if not awaited: its transaction raises."""

    def __init__(self, what: str, work: Coroutine[Any, Any, T]) -> None:
        self.__name__ = self.__qualname__ = what
        self._work = work

    def __await__(self) -> Generator[Any, Any, T]:
        # Not the other's own iterator, which would not keep this object alive.
        return (yield from self._work.__await__())

    def send(self, value: Any) -> Any:
        return self._work.send(value)

    def throw(self, *error: Any) -> Any:
        return self._work.throw(*error)

    def close(self) -> None:
        self._work.close()

    def __del__(self) -> None:
        if inspect.getcoroutinestate(self._work) == inspect.CORO_CREATED:
            self._work.close()


class Operations:
    """Operations of one transaction that are under way."""

    def __init__(self) -> None:
        self._open: dict[object, str] = {}
        """Operations that have not ended, including cancelled ones."""

    def begin(
        self, what: str, work: Callable[[], Coroutine[Any, Any, T]]
    ) -> Coroutine[Any, Any, T]:
        """Begin an operation; return the awaitable."""
        key = object()
        self._open[key] = what
        return _Begun(what, self._until_over(key, work))

    async def _until_over(self, key: object, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        try:
            done = await work()
        except (asyncio.CancelledError, GeneratorExit):
            raise  # It can't be undone, and may happen or not.
        except BaseException:
            del self._open[key]
            raise
        del self._open[key]
        return done

    @property
    def unawaited(self) -> str:
        """The error if operations were not awaited to the end; empty if all were."""
        if not self._open:
            return ""
        names = ", ".join(f"{what}(…)" for what in dict.fromkeys(self._open.values()))
        was = "was" if len(self._open) == 1 else "were"
        return f"{names} {was} not awaited to the end: await all operations in it"


class _Participant:
    """Operations within a transaction, of the client that coordinates it or of an invited one."""

    _timeout_s: float = 0.0
    """Its timeout; 0: an invited client does not know it."""

    def __init__(self, session: ContentSession, subscribe: Subscribe) -> None:
        self._session = session
        self._subscribe = subscribe
        self._within = self._own = ""
        self.name = ""
        """The transaction's name, once it has begun: when its first operation has returned."""
        self._called = ""
        """What to call it: a placeholder until it has a name."""
        self.failure: TransactionAborted | None = None
        """Why it can't be committed, once an operation was refused, even if that was caught."""
        self._operations = Operations()
        self._over = False
        self._aborted = ""
        """Why brokers have aborted it, once they have."""

    def publish(
        self, attributes: Mapping[str, object], payload: Payload = b""
    ) -> Coroutine[Any, Any, None]:
        """Publish an event: delivered when the transaction is committed."""
        event = event_of(attributes)
        checked = check_payload(payload, self._session.payload_bytes_max)
        return self._begin("publish", lambda: self._publish(event, checked))

    def advertise(self, where: str) -> Coroutine[Any, Any, str]:
        """Advertise what will be published; return the advertisement's name."""
        parse_unreserved(where)
        return self._begin("advertise", lambda: self._advertise(where))

    def unadvertise(self, name: str) -> Coroutine[Any, Any, None]:
        """Withdraw an advertisement."""
        check_broker_name(name, "advertise()")
        return self._begin("unadvertise", lambda: self._unadvertise(name))

    def subscribe(
        self,
        where: str,
        *,
        name: str | None = None,
        pending_max: int = PENDING_MAX,
        acknowledge: Acknowledge = "auto",
    ) -> Coroutine[Any, Any, Subscription]:
        """Subscribe; return the subscription, open.

        Events arrive when the transaction commits; an abort ends the subscription. The options
        are those of `bus.subscribe`.
        """
        parse_unreserved(where)
        options = ReadOptions(name=name, pending_max=pending_max, acknowledge=acknowledge)
        return self._begin("subscribe", lambda: self._subscribe_to(where, options))

    def unsubscribe(self, subscription: Subscription) -> Coroutine[Any, Any, None]:
        """Withdraw a subscription of this bus: it continues if the transaction is aborted.

        Reading ends after the last event published before: with several servers, some time after
        the commit.
        """
        share_of(subscription)
        return self._begin("unsubscribe", lambda: self._withdraw(subscription))

    def invite(
        self,
        client: str | Mapping[str, object],
        attributes: Mapping[str, object] | None = None,
        payload: Payload = b"",
        *,
        at_least: int = 1,
    ) -> Coroutine[Any, Any, int]:
        """Let other buses act within the transaction; return when their handlers have.

        `client` is the name of a bus, whose handler gets `attributes` and `payload`. Attributes
        instead of a name invite by content: all other buses that take such invitations with
        `bus.on_invitation(…, where=…)`. This bus must have advertised them. Returns the number of
        invited buses, without those that left or lost their connections before they acted. If
        there are fewer than `at_least`, the transaction is aborted.
        """
        checked = check_payload(payload, self._session.payload_bytes_max)
        if isinstance(client, Mapping):
            if attributes is not None:
                raise BadInput("give a client's name or attributes alone: invite({…}, payload=…)")
            if isinstance(at_least, bool) or not isinstance(at_least, int) or at_least < 0:
                raise BadInput(f"at_least must be a whole number from 0 on, got {at_least!r}")
            event = event_of(client)
            return self._begin("invite", lambda: self._invite_matching(event, checked, at_least))
        check_text(client, "a client's name")
        return self._begin("invite", lambda: self._invite(client, attributes, checked))

    def _begin(
        self, what: str, work: Callable[[], Coroutine[Any, Any, T]]
    ) -> Coroutine[Any, Any, T]:
        """Begin an operation: it must be awaited to the end, or nothing is committed."""
        self._check_open()
        return self._operations.begin(what, work)

    async def _publish(self, event: Mapping[str, Value], payload: bytes) -> None:
        known = tuple(self._session.advertised.values())
        asked = RefusedRequest(
            own=self._own, event=event, advertised=known, advertise="await tx.advertise(where=…)"
        )
        await self._act("pub", asked, attributes=event, payload=payload)

    async def _advertise(self, where: str) -> str:
        name = await self._act("adv", where=where)
        known = self._session.advertised
        known[name] = where
        self._session.when_over(self._called, lambda done: None if done else known.pop(name, None))
        return name

    async def _unadvertise(self, name: str) -> None:
        await self._act("uadv", name=name)
        known = self._session.advertised
        self._session.when_over(self._called, lambda done: known.pop(name, None) if done else None)

    async def _act(self, action: str, asked: RefusedRequest | None = None, **options: Any) -> str:
        self._check_open()
        transaction, within = self._called, self._within
        names: list[str] = []

        def act(node: TransactionClient, now: int) -> int:
            number, name = node.act(transaction, action, within=within, now_ns=now, **options)
            names.append(name)
            return number

        self._check(await self._session.request(act), asked)
        return names[0]

    async def _subscribe_to(self, where: str, options: ReadOptions) -> Subscription:
        self._check_open()
        wanted = ContentRequest(
            where=where,
            session=self._session,
            transaction=self._called,
            within=self._within,
            options=options,
        )
        try:
            made = await self._subscribe(wanted).__aenter__()
        except SubscriptionRefused as error:
            raise self._refusal(error.reason) from None
        self._session.when_over(self._called, lambda done: None if done else made.close())
        return made

    async def _withdraw(self, subscription: Subscription) -> None:
        share = share_of(subscription)
        await self._act("usub", name=share.subscription)

        def over(committed: bool) -> None:
            share.draining = committed  # It ends after the last event routed to it.

        self._session.when_over(self._called, over)

    async def _invite(
        self, client: str, attributes: Mapping[str, object] | None, payload: bytes
    ) -> int:
        answer = await self._send_invitation(f"{client}.{CONTENT}", attributes, payload)
        self._check(answer, waiting=f"the handler of {client!r}, which it invited")
        return 1

    async def _invite_matching(
        self, event: Mapping[str, Value], payload: bytes, at_least: int
    ) -> int:
        answer = await self._send_invitation(ANYONE, event, payload)
        known = tuple(self._session.advertised.values())
        asked = RefusedRequest(
            own=self._own, event=event, advertised=known, advertise="await tx.advertise(where=…)"
        )
        self._check(answer, asked, f"a handler that takes {invitation_text(event)}")
        if answer.reached < at_least:
            raise self._refused(too_few_reached(event, answer.reached, at_least))
        return answer.reached

    async def _send_invitation(
        self, client: str, attributes: Mapping[str, object] | None, payload: bytes
    ) -> "Answered":
        self._check_open()
        name, within = self._called, self._within

        def invite(node: TransactionClient, now: int) -> int:
            return node.invite(name, client, attributes, payload, now_ns=now, within=within)

        return await self._session.request(invite)

    def end(self) -> None:
        """Allow no more operations."""
        self._over = True

    def check_awaited(self) -> None:
        """Fail the transaction if operations were not awaited to the end."""
        unawaited = self._operations.unawaited
        if unawaited and self.failure is None:
            self._refused(unawaited)

    def _check_open(self) -> None:
        if self._over:
            raise LocalProtocolError(
                "the transaction has ended: await all operations inside its block"
            )
        if not self._called:
            raise LocalProtocolError("use it inside `async with bus.transaction(…) as tx`")

    def _note_end(self, committed: bool) -> None:
        self._aborted = "" if committed else self._session.reason

    def _check(
        self, answer: "Answered", asked: RefusedRequest | None = None, waiting: str = ""
    ) -> None:
        """Raise if an operation was refused; `waiting` is what it waited for."""
        if answer.refused:
            raise self._refusal(answer.refused, asked, waiting)

    def _refusal(
        self, refused: str, asked: RefusedRequest | None = None, waiting: str = ""
    ) -> TransactionAborted:
        why = self._why(refused)
        if why != TIMEOUT:
            return self._refused(explained(why, asked or RefusedRequest()))
        was_waiting = waiting if refused == TIMEOUT else ""
        return self._refused(why, timed_out(self._timeout_s, was_waiting))

    def _why(self, refused: str) -> str:
        """Return why the transaction was aborted, if known, or that it has ended."""
        is_known = refused == OVER and self._aborted not in ("", ABORTED)
        return self._aborted if is_known else refused

    def _refused(self, reason: str, text: str = "") -> TransactionAborted:
        self.failure = aborted_transaction(
            f"the transaction can't be committed: {text or reason}",
            reason=reason,
            transaction=self.name,
        )
        return self.failure


class Transaction(_Participant):
    """A transaction. Made by `Bus.transaction`; enter it with `async with`."""

    def __init__(
        self, session: ContentSession, subscribe: Subscribe, isolation: str, timeout: float
    ) -> None:
        super().__init__(session, subscribe)
        self._own = session.bus
        self.isolation = isolation
        self._timeout_s = timeout
        self._entered = False

    async def __aenter__(self) -> Self:
        if self._entered:
            raise LocalProtocolError(
                "a transaction is entered once: make another with bus.transaction(…)"
            )
        self._entered = True
        await self._session.open()
        timeout_ns = int(self._timeout_s * 1_000_000_000)
        # Its first operation does not wait for its name.
        called = self._session.begin(self.isolation, timeout_ns, self._note_begin)
        self._called = self._called or called  # In memory it has a name already.
        self._session.when_over(self._called, self._note_end)
        return self

    def _note_begin(self, answer: "Answered") -> None:
        if answer.refused:
            self._aborted = answer.refused
        elif not self._over:
            self.name = self._called = answer.transaction

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.check_awaited()
        name, commit = self._called, kind is None and self.failure is None
        try:
            ending = self._session.ask(lambda node, now: node.end(name, commit=commit, now_ns=now))
            if commit:
                self._check(await self._end_by(ending, self._timeout_s))
            elif kind is None or issubclass(kind, Exception):
                with suppress(TransactionPending):
                    await self._end_by(ending, 0)
        except EnsueError:
            if kind is None:
                raise
            # The broker aborts for a client that is gone; the exception of the block matters more.
        finally:
            self.end()
        if kind is None and self.failure is not None:
            raise self.failure

    async def _end_by(self, ending: "asyncio.Future[Answered]", timeout_s: float) -> "Answered":
        """Wait until the transaction ends, for a limited time: its server may be down."""
        limit_s = timeout_s + self._session.close_timeout_s
        try:
            async with asyncio.timeout(limit_s) as limit:
                return await self._session.answer(ending)
        except TimeoutError:
            if not limit.expired():
                raise
        raise TransactionPending(
            f"no answer within {limit_s:g} s to the end of the transaction: it may be committed "
            "or not"
        )


class InvitedTransaction(_Participant):
    """Another bus's transaction, as the handler of an invitation sees it.

    It must not be used after the handler has returned.
    """

    def __init__(
        self,
        session: ContentSession,
        subscribe: Subscribe,
        name: str,
        path: str,
        publication: Publication,
    ) -> None:
        super().__init__(session, subscribe)
        self.name = self._called = name
        session.when_over(name, self._note_end)
        self._within = path
        self.attributes: Mapping[str, object] = dict(publication.attributes)
        """The attributes of the invitation."""
        self.payload = publication.payload
        self.inviter = publication.publisher.removesuffix(f".{CONTENT}")


InvitationHandler = Callable[[InvitedTransaction], Awaitable[None]]
