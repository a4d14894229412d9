"""The content client of a bus: publish and subscribe by attributes, advertise, run transactions."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from inspect import isawaitable
from typing import Any

from ensue.client.backpressure import wait_for_room
from ensue.client.content.attempts import Attempts
from ensue.client.content.durable import DurableRequest
from ensue.client.content.plan import PlannedTransaction
from ensue.client.content.reader import ContentRequest, ReadOptions
from ensue.client.content.session import CONTENT, ContentSession
from ensue.client.content.transaction import (
    InvitationHandler,
    InvitedTransaction,
    Transaction,
    check_transaction,
)
from ensue.client.receipts import receipt_by, room_by
from ensue.client.subscription import Subscription
from ensue.client.validation import (
    Payload,
    check_durable_name,
    check_handler,
    check_payload,
)
from ensue.core.errors import BadInput, FilterError
from ensue.core.event import Event
from ensue.protocols.content.frames import Publication
from ensue.protocols.transactions.frames import PLANNED
from ensue.protocols.transactions.invitations import parse_unreserved
from ensue.runtime.hub_memory import Hub

__all__ = ["ContentClient"]


class ContentClient:
    """Content operations of an open bus; the session begins with the first use."""

    def __init__(
        self,
        hub: Hub,
        *,
        name: str,
        ended: "asyncio.Future[None]",
        check_open: Callable[[], object],
        keep: Callable[[Subscription], Subscription],
    ) -> None:
        self._hub = hub
        self._name = name
        self._ended = ended
        """Done once the bus is being closed."""
        self._check_open = check_open
        """Raises unless the bus is open."""
        self._keep = keep
        """Registers a subscription to close with the bus."""
        self._session: ContentSession | None = None

    @property
    def session(self) -> ContentSession:
        """The session with the brokers, created on first use."""
        self._check_open()
        if self._session is None:
            self._session = ContentSession(self._hub, self._name)
        return self._session

    @property
    def unsettled(self) -> tuple[str, ...]:
        """The ids of published events that no broker has confirmed."""
        return () if self._session is None else tuple(self._session.unsettled.values())

    async def wait_for_all(self) -> None:
        """Wait until brokers have confirmed all published events."""
        if self._session is not None:
            await self._session.wait_for_all()

    def close(self) -> None:
        """Close the session, if there is one."""
        if self._session is not None:
            self._session.close()
            self._session = None

    async def advertise(self, where: str) -> str:
        """Advertise what will be published; return the advertisement's name."""
        parse_unreserved(where)
        return await self.session.advertise(where)

    async def unadvertise(self, name: str) -> None:
        """Withdraw an advertisement."""
        await self.session.unadvertise(name)

    async def publish(
        self, attributes: Mapping[str, object], payload: Payload, *, by_s: float | None
    ) -> Event:
        """Publish an event by its attributes; return it when its broker has it."""
        checked = check_payload(payload, self._hub.payload_bytes_max)
        session = self.session
        async with room_by(by_s):
            if self._hub.full:
                await wait_for_room(self._hub, CONTENT, self._ended)
            await session.open()
        begun, event = session.begin_publishing(attributes, checked)
        return await receipt_by(by_s, event, session.published(begun, event))

    def subscribe(self, where: str, options: ReadOptions) -> Subscription:
        """Return a subscription by content."""
        parse_unreserved(where)
        return self._open(ContentRequest(where=where, session=self.session, options=options))

    def subscribe_durably(
        self, where: str, options: ReadOptions, *, accept_loss: bool
    ) -> Subscription:
        """Return a durable subscription by content."""
        check_durable_name(options.name)
        try:
            parse_unreserved(where)
        except FilterError as error:
            why = f"the filter of the durable subscription {options.name!r} can't be read: {error}"
            raise FilterError(why, text=error.text, position=error.position) from None
        assert options.name is not None
        request = DurableRequest(
            where=where,
            name=options.name,
            window=options.pending_max,
            accept_loss=accept_loss,
            brokers=self.session.brokers,
        )
        return self._make(request, options, durable=True, accept_loss=accept_loss)

    def transaction(
        self, isolation: str, timeout_s: float, retries: int | None
    ) -> Transaction | PlannedTransaction | Attempts[Any]:
        """Return a transaction, or attempts at one if it may be retried."""
        check_transaction(isolation, timeout_s)
        if retries is not None:
            return Attempts(lambda: self._transaction(isolation, timeout_s), retries)
        return self._transaction(isolation, timeout_s)

    def _transaction(self, isolation: str, timeout_s: float) -> Transaction | PlannedTransaction:
        if isolation == PLANNED:
            return PlannedTransaction(self.session, self._open, timeout_s)
        return Transaction(self.session, self._open, isolation, timeout_s)

    def on_invitation(
        self, handler: InvitationHandler | None, where: str | None
    ) -> Awaitable[None]:
        """Call a handler with each transaction that this bus is invited into."""
        session = self.session
        if where is not None:
            where = parse_unreserved(where).to_text()  # Spelled otherwise, it is the same filter.
        if handler is None:
            if where is None:
                session.on_invited = None
                return session.opened()
            return session.begin_work(session.take_invitations(where, None))
        check_handler(handler, "the handler given to on_invitation", "a transaction")

        async def act(name: str, path: str, publication: Publication) -> None:
            invited = InvitedTransaction(self.session, self._open, name, path, publication)
            await _wait_for(handler(invited), "on_invitation")
            invited.check_awaited()
            invited.end()
            if invited.failure is not None:
                raise invited.failure

        if where is not None:
            return session.begin_work(session.take_invitations(where, act))
        session.on_invited = act
        return session.opened()

    def on_subscription(
        self, handler: Callable[[Subscription], Awaitable[None]], options: ReadOptions
    ) -> Awaitable[None]:
        """Call a handler with each subscription that another bus's plan makes for this bus."""
        check_handler(handler, "the handler given to on_subscription", "a subscription")
        session = self.session
        session.kept_max = options.pending_max

        async def take(name: str, where: str) -> None:
            request = ContentRequest(where=where, session=session, made=name, options=options)
            made = handler(await self._open(request).__aenter__())
            await _wait_for(made, "on_subscription")

        session.on_made = take
        return session.opened()

    def _open(self, request: ContentRequest) -> Subscription:
        self._check_open()
        return self._make(request, request.options)

    def _make(
        self,
        request: ContentRequest | DurableRequest,
        options: ReadOptions,
        *,
        durable: bool = False,
        accept_loss: bool = False,
    ) -> Subscription:
        return self._keep(
            Subscription(
                self._hub,
                client=self._name,
                name=options.name,
                topics=(CONTENT,),
                order=None,
                pending_max=options.pending_max,
                acknowledge=options.acknowledge,
                durable=durable,
                accept_loss=accept_loss,
                content=request,
            )
        )


async def _wait_for(made: object, handler: str) -> None:
    """Await the result of a handler; raise if it is not awaitable."""
    if not isawaitable(made):
        raise BadInput(f"the handler given to {handler} must be an `async def` function")
    await made
