"""What a bus can do with content: advertise, and run transactions. Publishing and subscribing by content are in `bus`."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from inspect import isawaitable
from typing import Any, Literal, overload

from ensue.client.checks import (
    PENDING_MAX,
    Acknowledge,
    Payload,
    check_handler,
    check_payload,
)
from ensue.client.content import CONTENT, ContentClient
from ensue.client.content_reader import ReadOptions, Where
from ensue.client.content_subscription import ContentSubscription
from ensue.client.in_doubt import receipt_by, room_by
from ensue.client.planned import PlannedTransaction
from ensue.client.room import wait_for_room
from ensue.client.shown import shown_bus
from ensue.client.subscription import Subscription
from ensue.client.transaction import (
    InvitationHandler,
    InvitedTransaction,
    Transaction,
    check_transaction,
    share_of,
)
from ensue.errors import BadInput, EnsueError
from ensue.event import Event
from ensue.order import Order
from ensue.protocols.overlay.frames import Publication
from ensue.protocols.overlay.parsing import parse
from ensue.protocols.transactions.frames import PLANNED
from ensue.runtime.hub import Hub

__all__ = ["ContentBus"]


class ContentBus:
    """The part of a bus that deals in content."""

    _content: ContentClient | None = None

    order: Order | None
    _name: str
    _wanted_name: str | None
    _ended: asyncio.Future[None] | None
    _failure: EnsueError | None

    def __repr__(self) -> str:
        state = "not entered" if self._ended is None else "open"
        if self._failure is not None:
            state = "failed"
        elif self._ended is not None and self._ended.done():
            state = "closed"
        return shown_bus(self._name or self._wanted_name, self.order, state)

    def _open(self) -> tuple[Hub, Any]:
        """Return the hub of an open bus, and what drives it."""
        raise NotImplementedError

    def _keep(self, subscription: Subscription) -> Subscription:
        """Have a subscription closed with the bus."""
        raise NotImplementedError

    async def advertise(self, *, where: str) -> str:
        """Say what this bus will publish, as a filter: `symbol = 'ACME'`; return the advertisement's name.

        It has reached everybody when this returns. Nothing else can be published by content.
        """
        parse(where)
        return await self._overlay_client().advertise(where)

    async def _publish_content(
        self,
        attributes: Mapping[str, object],
        payload: Payload,
        key: bytes | None,
        headers: Mapping[str, str] | None,
        by_s: float | None,
    ) -> Event:
        hub, _ = self._open()
        if key is not None or headers is not None:
            raise BadInput("an event by content has no key and no headers: give it attributes")
        checked = check_payload(payload, hub.payload_bytes_max)
        client = self._overlay_client()
        async with room_by(by_s):
            if hub.full:
                assert self._ended is not None
                await wait_for_room(hub, CONTENT, self._ended)
            await client.open()
        begun, event = client.begin_publishing(attributes, checked)
        return await receipt_by(by_s, event, client.published(begun, event))

    def _subscribe_content(
        self,
        where: str,
        topics: tuple[str, ...],
        options: ReadOptions,
        given: Mapping[str, bool],
    ) -> Subscription:
        if topics:
            raise BadInput("subscribe to topics or by content (where=…), not both")
        wrong = ", ".join(option for option, is_given in given.items() if is_given)
        if wrong:
            raise BadInput(
                f"a subscription by content can't have {wrong}: events come as its broker has them, "
                "and nothing is kept for it"
            )
        parse(where)
        wanted = Where(where=where, client=self._overlay_client(), options=options)
        return self._subscribe_where(wanted)

    async def unadvertise(self, name: str) -> None:
        """Withdraw an advertisement."""
        await self._overlay_client().unadvertise(name)

    @overload
    def transaction(  # type: ignore[overload-overlap]
        self, *, isolation: Literal["planned"], timeout: float = 5.0
    ) -> PlannedTransaction: ...

    @overload
    def transaction(
        self, *, isolation: str = "serializable", timeout: float = 5.0
    ) -> Transaction: ...

    def transaction(
        self, *, isolation: str = "serializable", timeout: float = 5.0
    ) -> Transaction | PlannedTransaction:
        """Return a transaction, to be entered with `async with`.

        `isolation` is `serializable`; or `atomic`: all or nothing, but others may see parts of it before it is over; or `planned`: the same, for
        operations that are all known beforehand, and the fastest. One that is not over after `timeout` seconds is aborted. Serializable ones are committed in the order
        in which they began: one that is open for long holds up those behind it.
        """
        check_transaction(isolation, timeout)
        client = self._overlay_client()
        if isolation == PLANNED:
            return PlannedTransaction(client, self._subscribe_where, timeout)
        return Transaction(client, self._subscribe_where, isolation, timeout)

    def on_invitation(self, handler: InvitationHandler) -> Awaitable[None]:
        """Have a handler called when another bus invites this one into its transaction; await the result to know that others can.

        It acts by what it is given, and the transaction goes on when it returns; if it raises, the transaction is aborted.
        """
        check_handler(handler, "the handler given to on_invitation", "a transaction")

        async def act(name: str, path: str, publication: Publication) -> None:
            given = InvitedTransaction(
                self._overlay_client(), self._subscribe_where, name, path, publication
            )
            await _wait_for(handler(given), "on_invitation")
            given.check_awaited()
            given.end()
            if given.failure is not None:
                raise given.failure

        client = self._overlay_client()
        client.handler = act
        return client.opening()

    def on_subscription(
        self,
        handler: Callable[[Subscription], Awaitable[None]],
        *,
        pending_max: int = PENDING_MAX,
        acknowledge: Acknowledge = "auto",
    ) -> Awaitable[None]:
        """Have a handler called with each subscription, open, that another bus's plan has made for this one.

        Without one, such a subscription is withdrawn. Await the result to know that others can plan for this bus. `pending_max` and `acknowledge` are those
        of `subscribe`, for each of them.
        """
        check_handler(handler, "the handler given to on_subscription", "a subscription")
        options = ReadOptions(pending_max=pending_max, acknowledge=acknowledge)
        client = self._overlay_client()
        client.kept_max = pending_max

        async def take(name: str, where: str) -> None:
            wanted = Where(where=where, client=client, made=name, options=options)
            made = handler(await self._subscribe_where(wanted).__aenter__())
            await _wait_for(made, "on_subscription")

        client.on_made = take
        return client.opening()

    def content_name(self, subscription: Subscription) -> str:
        """Return what an open subscription by content is called among brokers, for the plans of other buses."""
        return share_of(subscription).subscription

    def _overlay_client(self) -> ContentClient:
        hub, _ = self._open()
        if self._content is None:
            self._content = ContentClient(hub, self._name)
        return self._content

    def _subscribe_where(self, wanted: Where) -> Subscription:
        hub, _ = self._open()
        return self._keep(ContentSubscription(hub, client=self._name, wanted=wanted))

    def _leave_overlay(self) -> None:
        if self._content is not None:
            self._content.close()
            self._content = None


async def _wait_for(made: object, handler: str) -> None:
    """Wait for what a handler has returned, or say that it is of the wrong kind."""
    if not isawaitable(made):
        raise BadInput(f"the handler given to {handler} must be made with `async def`")
    await made
