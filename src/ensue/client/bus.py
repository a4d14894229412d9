"""The bus: publish, and subscribe in the order you ask for.

Receipts. `await bus.publish(…)` returns when the event's place in the order is certain: every
subscriber of its topic gets it there. On `ensue://` it is also as durable as the server is
configured to be. Cancelling the call does not take the event back. `receipt=False` returns as soon
as the event is sent; `await bus.flush()` waits for all of those.

Leaving a bus waits for receipts, for `close_timeout` seconds at most. Events without one by then
are in doubt: `EventsInDoubt` names them, or the log if another exception is being raised.

Limits. At most `publications.UNSETTLED_MAX` events are without a receipt: publishing waits for
earlier ones. Back-pressure in memory: publishing waits while a subscription of the same hub to the
same topic has `pending_max` events unhandled, until half of them are handled. A long wait is
logged, with the name of the subscription.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, cast, overload

from ensue import orders
from ensue.client.content.attempts import Attempts
from ensue.client.content.cells import cell_event, cell_request
from ensue.client.content.client import ContentClient
from ensue.client.content.plan import PlannedTransaction
from ensue.client.content.reader import ReadOptions
from ensue.client.content.transaction import InvitationHandler, Transaction, share_of
from ensue.client.failures import client_failure, fail
from ensue.client.membership import settle_in
from ensue.client.publications import Pair, Publications
from ensue.client.receipts import (
    Receipts,
    events_in_doubt,
    log_in_doubt,
    log_wait,
    time_after,
)
from ensue.client.shared_node import SharedNode, publications_only
from ensue.client.subscription import Subscription
from ensue.client.validation import (
    PENDING_MAX,
    Acknowledge,
    Payload,
    Start,
    check_accept_loss,
    check_by_content,
    check_content_event,
    check_order,
    check_pair,
    check_record,
    check_seconds,
    check_token,
    check_topic_event,
)
from ensue.core.errors import (
    EnsueError,
    EventsInDoubt,
    LocalProtocolError,
)
from ensue.core.event import Event, event_id
from ensue.core.order import Order, Total, written
from ensue.orders import ObservingNode, PublisherNode
from ensue.protocols.interface import Outcome, Refuse, Resumed, Settle
from ensue.runtime.driver import Driver
from ensue.runtime.hub_memory import CLOSE_TIMEOUT_S, Hub, join_hub, leave_hub
from ensue.runtime.hub_remote import RemoteHub
from ensue.runtime.names import check_name
from ensue.transports import MemoryOptions
from ensue.transports.schemes import Options, parse_url

__all__ = ["Bus", "connect"]

R = TypeVar("R")

_log = logging.getLogger("ensue")


class _Default:
    """Stands for the bus's own order where None means no order."""


_DEFAULT = _Default()


def connect(
    url: str,
    *,
    order: Order | None = Total(),  # noqa: B008 - a frozen value
    name: str | None = None,
    trace: str | None = None,
    record: str | bool | None = None,
    close_timeout: float = CLOSE_TIMEOUT_S,
) -> "Bus":
    """Return a bus, to be entered with `async with`.

    `url` names a transport: `memory://`, or `memory://NAME` for a hub that several buses share;
    `ensue://HOST:PORT` for a server; `nats://`, `redis://`, `mqtt://` or `amqp://` for stations on
    a broker. `order` is the order that events are published with, and that subscriptions get unless
    they ask for another; None is no order. `name` names this client in traces.

    `trace` is a directory to write the trace to, with `pip install 'ensue[trace]'`. `record` is one
    to write the whole run to instead: the trace to `trace` in it, and every event to the event log
    `log`. `record=True` makes a new directory in `runs`, named by the time: see `bus.recording`.
    `record=False` records nothing.

    `close_timeout` is how many seconds leaving waits for receipts and acknowledgements.
    """
    options = parse_url(url)
    if name is not None:
        check_name(name)
    check_seconds(close_timeout, "close_timeout", zero=True)
    check_order(order, options.capabilities, f"{url.partition('://')[0]}://")
    record = check_record(record, trace, kept=not isinstance(options, MemoryOptions))
    return Bus(
        options,
        order=order,
        name=name,
        trace=trace,
        record=record,
        close_timeout_s=float(close_timeout),
    )


class Bus:
    """A connection. Made by `connect`."""

    _content: ContentClient
    """Made on entering, as are the receipts and the publications."""
    _receipts: Receipts
    _publications: Publications

    def __init__(
        self,
        options: Options,
        *,
        order: Order | None,
        name: str | None,
        trace: str | None,
        record: str | bool | None,
        close_timeout_s: float = CLOSE_TIMEOUT_S,
    ) -> None:
        self.order = order
        self._close_timeout_s = close_timeout_s
        self._options = options
        self._wanted_name = name
        self._trace = trace
        self._record = record
        self._hub: Hub | None = None
        self._name = ""
        self._driver: Driver[PublisherNode] | None = None
        self._shared_node: SharedNode | None = None
        """The node that subscriptions share, in causal and deadline order."""
        self._subscriptions: list[Subscription] = []
        self._ended: asyncio.Future[None] | None = None
        """Made on entering; done when closing begins."""
        self._resumed: asyncio.Future[None]
        """Made on entering; done when the node takes commands."""
        self._failure: EnsueError | None = None
        """Why it can no longer be used."""

    def __repr__(self) -> str:
        state = "not entered" if self._ended is None else "open"
        if self._failure is not None:
            state = "failed"
        elif self._ended is not None and self._ended.done():
            state = "closed"
        name = self._name or self._wanted_name
        who = f" {name!r}" if name else ""
        return f"<ensue.Bus{who}, order={written(self.order)}, {state}>"

    @property
    def name(self) -> str:
        """The name of this client."""
        return self._name

    @property
    def recording(self) -> Path | None:
        """The directory that the run is recorded to, while the bus is open."""
        return None if self._hub is None else self._hub.recording

    @property
    def unsettled(self) -> int:
        """Number of published events without a receipt."""
        return len(self._receipts) + len(self._content.unsettled)

    async def __aenter__(self) -> Self:
        if self._hub is not None:
            raise LocalProtocolError("a bus is entered once: make another with ensue.connect(…)")
        hub = await self._join_hub()
        self._receipts = Receipts(None if hub.recorder is None else self._record_receipt)
        try:
            self._driver = await self._drive(hub)
        except BaseException:
            leave_hub(hub)
            await hub.finish(asyncio.get_running_loop().time() + self._close_timeout_s)
            raise
        self._hub = hub
        if isinstance(hub, RemoteHub):
            hub.close_timeout_s = self._close_timeout_s
        self._ended = asyncio.get_running_loop().create_future()
        self._publications = Publications(
            hub,
            self._driver,
            self._receipts,
            name=self._name,
            ended=self._ended,
            check_open=self._open,
            confirm=self._record_receipt,
        )
        self._content = ContentClient(
            hub, name=self._name, ended=self._ended, check_open=self._open, keep=self._keep
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        in_doubt = await self._leave()
        if in_doubt is None:
            return
        if kind is None:
            raise in_doubt
        log_in_doubt(in_doubt)

    async def publish(
        self,
        topic: str | Mapping[str, object],
        payload: Payload = b"",
        *,
        key: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        order: "Order | _Default | None" = _DEFAULT,
        receipt: bool = True,
        timeout: float | None = None,  # noqa: ASYNC109 - an event can't be taken back
    ) -> Event:
        """Publish an event; return it, stamped, once its place in the order is certain.

        With `receipt=False` return it as soon as it is sent, not stamped; `flush` waits for it.
        With `timeout`, wait no longer than so many seconds. Attributes instead of a topic publish
        by content: `{"symbol": "ACME", "price": 12}`. With `order=ensue.Total()` such an event has
        a place in that order, and reaches subscriptions `where=…` with the same `order`.

        Raises `EventVoided` if the event lost its place, which only a stall longer than the lease
        can cause: no subscriber got it, and it can be published again. Raises `EventsInDoubt` after
        the timeout if there is no receipt: subscribers may get the event or not; and
        `PublishTimeout` if there was no room, and nothing was published.
        """
        hub, _ = self._open()
        by_s = time_after(timeout)
        if isinstance(topic, Mapping):
            check_content_event(key, headers)
            if isinstance(order, _Default):
                return await self._content.publish(topic, payload, by_s=by_s)
            topic, headers = cell_event(hub, order, topic)
        else:
            check_topic_event(ordered=not isinstance(order, _Default))
            self._publications.check_topic(topic)
        return await self._publications.publish(
            topic, payload, key=key, headers=headers, wanted=receipt, by_s=by_s
        )

    async def publish_many(
        self,
        pairs: Iterable[Pair],
        *,
        order: "Order | _Default | None" = _DEFAULT,
        receipt: bool = True,
        timeout: float | None = None,  # noqa: ASYNC109 - as above
    ) -> list[Event]:
        """Publish events; return them, stamped, once the places of all are certain.

        This is the fast path for many events. Each is a tuple as `publish` takes it: topic and
        payload, and a key and headers if it has any. All are checked first: if one is wrong,
        nothing is published, and the error names its index. Then they are published in sequence, in
        parts of up to 128; between parts it waits for room, and other calls may publish. On
        `memory://` a subscription may get a part beyond its `pending_max`. `order`, `receipt` and
        `timeout` are those of `publish`, for all of them. Cancelling takes nothing back.

        Raises `EventsInDoubt` for events without a receipt after the timeout, or when the bus was
        closed. Raises `PublishedInPart` if events lost their place or were refused, and if there
        was no room for all in time: then it is the cause of `EventsInDoubt`, if there are both.
        """
        hub, _ = self._open()
        by_s = time_after(timeout)
        by_content = None if isinstance(order, _Default) else partial(cell_event, hub, order)
        events = self._publications.check_pairs(pairs, by_content)
        return await self._publications.publish_many(events, wanted=receipt, by_s=by_s)

    def _record_receipt(self, event: Event) -> None:
        """Record in the trace that a receipt came."""
        if self._hub is not None and self._hub.recorder is not None:
            self._hub.recorder.confirmed(self._name, event, self._hub.clock.now_ns())

    async def flush(self, *, timeout: float | None = None) -> None:  # noqa: ASYNC109 - as above
        """Wait for the receipts of everything published so far.

        Raises the first failure of what was published with `receipt=False` since the last flush,
        and `EventsInDoubt` if a receipt is missing after `timeout` seconds.
        """
        by_s = time_after(timeout)
        if self._failure is None:
            self._open()
        if not await self._settle_by(by_s):
            raise self._in_doubt(f"flush timed out after {timeout:g} s")
        failure = self._receipts.take_failure() or self._failure
        if failure is not None:
            raise failure

    def subscribe(
        self,
        *topics: str,
        where: str | None = None,
        order: "Order | _Default | None" = _DEFAULT,
        name: str | None = None,
        pending_max: int = PENDING_MAX,
        acknowledge: Acknowledge = "auto",
        durable: bool = False,
        start: Start = "latest",
        accept_loss: bool = False,
    ) -> Subscription:
        """Return a subscription, to be entered with `async with`.

        It takes effect on entering. `order` is the bus's own unless given; None asks for events as
        they arrive. `pending_max` events may be unhandled before publishers have to wait.
        `acknowledge="manual"` leaves it to you to call `ack` on each event.

        `durable` keeps its position at the server, under its `name`: entered again, by any process,
        it continues after the last acknowledged event. `start` is where a new subscription
        begins: with events published from now on (`latest`), with the first event of the server's
        log (`earliest`), or at a place in it (`event.place`); topics added later begin with
        `latest`. `accept_loss` lets a durable one continue if the server has lost events.

        `where` asks by content: a filter such as `symbol = 'ACME' and price > 10`. On `ensue://` it
        ends (`SubscriptionLost`) without room for the next event or transaction, unless it is
        durable: then events wait at a server. With `order=ensue.Total()` it gets events published
        with that order, in one order with all filters that overlap.
        """
        hub, _ = self._open()
        if where is not None and isinstance(order, _Default):
            check_by_content(topics, start=start != "latest")
            check_accept_loss(accept_loss, durable=durable)
            options = ReadOptions(name=name, pending_max=pending_max, acknowledge=acknowledge)
            if durable:
                return self._content.subscribe_durably(where, options, accept_loss=accept_loss)
            return self._content.subscribe(where, options)
        chosen = self.order if isinstance(order, _Default) else order
        transport = hub.transport
        cells = None if where is None else cell_request(hub, chosen, where, topics)
        check_order(chosen, transport.capabilities, transport.name)
        check_pair(self.order, chosen, transport.name)
        subscription = Subscription(
            hub,
            client=self._name,
            name=name,
            topics=topics if cells is None else cells.topics,
            order=chosen,
            pending_max=pending_max,
            acknowledge=acknowledge,
            durable=durable,
            start=start,
            accept_loss=accept_loss,
            cells=cells,
        )
        return self._keep(subscription)

    def _keep(self, subscription: Subscription) -> Subscription:
        self._subscriptions = [each for each in self._subscriptions if not each.closed]
        self._subscriptions.append(subscription)
        return subscription

    def token(self) -> dict[str, int]:
        """Return a token for messages outside of a merged bus.

        A bus that observes the token publishes after everything that this bus has published or
        observed so far. Raises `LocalProtocolError` while some of that has no stamp yet, as on a
        new bus: `await bus.flush()` first.
        """
        return self._call_observer(lambda node, now: node.token(now_ns=now))

    def observe(self, token: Mapping[str, int]) -> bool:
        """Publish after another bus's `token`; False: ignored, its clock is too far ahead."""
        check_token(token)
        return self._call_observer(lambda node, now: node.observe(token, now_ns=now))

    def _learn(self, entries: Mapping[str, int]) -> None:
        """Publish after an event that a subscription of this bus got before its turn."""
        closing = self._ended is None or self._ended.done() or self._failure is not None
        if not closing and self._driver is not None and self._driver.takes_commands:
            self.observe(entries)

    def _call_observer(self, call: Callable[[ObservingNode, int], R]) -> R:
        _, driver = self._open()
        if not orders.of(self.order).observes_stamps:
            raise LocalProtocolError("only a bus with merged order has tokens")
        node, now_ns = driver.begin()
        try:
            return call(cast("ObservingNode", node), now_ns)
        finally:
            driver.end()

    # -- Content -----------------------------------------------------------------------------------

    async def advertise(self, *, where: str) -> str:
        """Advertise what this bus will publish by content; return the advertisement's name.

        `where` is a filter such as `symbol = 'ACME'`. All brokers know it when this returns. Only
        events that an advertisement covers can be published by content.
        """
        return await self._open_content().advertise(where)

    async def unadvertise(self, name: str) -> None:
        """Withdraw an advertisement."""
        await self._open_content().unadvertise(name)

    @overload
    def transaction(  # type: ignore[overload-overlap]
        self, *, isolation: Literal["planned"], timeout: float = 5.0, retries: None = None
    ) -> PlannedTransaction: ...

    @overload
    def transaction(  # type: ignore[overload-overlap]
        self, *, isolation: Literal["planned"], timeout: float = 5.0, retries: int
    ) -> Attempts[PlannedTransaction]: ...

    @overload
    def transaction(
        self, *, isolation: str = "serializable", timeout: float = 5.0, retries: None = None
    ) -> Transaction: ...

    @overload
    def transaction(
        self, *, isolation: str = "serializable", timeout: float = 5.0, retries: int
    ) -> Attempts[Transaction]: ...

    def transaction(
        self, *, isolation: str = "serializable", timeout: float = 5.0, retries: int | None = None
    ) -> Transaction | PlannedTransaction | Attempts[Any]:
        """Return a transaction, to be entered with `async with`.

        `isolation` is `serializable`; or `atomic`: all or nothing, but other clients may see parts
        of it before it ends; or `planned`: the same, for operations that are all known
        beforehand, and the fastest. A transaction that has not ended after `timeout` seconds is
        aborted. Of serializable ones whose filters overlap, the first to commit wins: others are
        aborted if it changed what they read.

        With `retries` return attempts instead: `async for attempt in bus.transaction(retries=5):`,
        and in it `async with attempt as tx:`. An attempt that conflicts with another transaction
        is repeated so many times, after growing pauses; `timeout` is that of each.
        """
        return self._open_content().transaction(isolation, timeout, retries)

    def on_invitation(
        self, handler: InvitationHandler | None, *, where: str | None = None
    ) -> Awaitable[None]:
        """Call a handler when another bus invites this one into its transaction.

        The handler gets the transaction. It continues when the handler returns, and is aborted if
        the handler raises. With `where` it is for invitations by content whose attributes match
        that filter; without, for those that name this bus. None as handler takes no more of them.
        Await the result to know that other buses can invite this one.
        """
        return self._open_content().on_invitation(handler, where)

    def on_subscription(
        self,
        handler: Callable[[Subscription], Awaitable[None]],
        *,
        pending_max: int = PENDING_MAX,
        acknowledge: Acknowledge = "auto",
    ) -> Awaitable[None]:
        """Call a handler with each subscription, open, that another bus's plan makes for this bus.

        Without a handler such a subscription is withdrawn. Await the result to know that other
        buses can plan for this one. `pending_max` and `acknowledge` are those of `subscribe`.
        """
        options = ReadOptions(pending_max=pending_max, acknowledge=acknowledge)
        return self._open_content().on_subscription(handler, options)

    def content_name(self, subscription: Subscription) -> str:
        """Return an open subscription's name among brokers, for the plans of other buses."""
        return share_of(subscription).subscription

    def _open_content(self) -> ContentClient:
        self._open()
        return self._content

    # -- Closing -----------------------------------------------------------------------------------

    async def close(self, *, timeout: float | None = None) -> None:  # noqa: ASYNC109 - as above
        """Wait for receipts and acknowledgements, end all subscriptions, and disconnect.

        It waits for at most `timeout` seconds, or the `close_timeout` of the bus, then disconnects,
        and raises `EventsInDoubt` if events have no receipt. If cancelled, it disconnects at once
        and logs them.
        """
        if timeout is not None:
            check_seconds(timeout, "timeout", zero=True)
        in_doubt = await self._leave(timeout)
        if in_doubt is not None:
            raise in_doubt

    async def _leave(self, timeout_s: float | None = None) -> EventsInDoubt | None:
        """Close; return which events are in doubt."""
        hub, ended = self._hub, self._ended
        if hub is None or ended is None or self._driver is None:
            return None
        hub.check_loop("this bus")
        if not ended.done():
            ended.set_result(None)
        timeout_s = self._close_timeout_s if timeout_s is None else timeout_s
        by_s = hub.loop.time() + timeout_s
        in_doubt: EventsInDoubt | None = None
        finished = False
        try:
            waiting = log_wait(lambda: self.unsettled, timeout_s)
            try:
                await self._settle_by(by_s)
            finally:
                waiting.cancel()
            await self._settle_subscriptions(by_s)
            finished = True
        finally:
            if self._driver is not None:
                if self.unsettled:
                    in_doubt = self._in_doubt("the bus was closed")
                    if not finished:
                        log_in_doubt(in_doubt)
                try:
                    self._disconnect(hub, self._driver)
                finally:
                    await hub.finish(by_s)
        return in_doubt

    async def _settle_by(self, by_s: float | None) -> bool:
        """Wait for all receipts until a time of the event loop; return whether all arrived."""
        try:
            async with asyncio.timeout_at(by_s):
                await self._receipts.wait_for_all()
                await self._content.wait_for_all()
        except TimeoutError:
            return False
        return True

    async def _settle_subscriptions(self, by_s: float) -> None:
        """Close durable subscriptions, and wait until their acknowledgements are safe."""
        durable = [each for each in self._subscriptions if each.durable]
        for each in durable:
            each.close()
        for each in durable:
            await each.settle(by_s)

    def _in_doubt(self, what: str) -> EventsInDoubt:
        ids = self._receipts.ids(self._name, EventsInDoubt.IDS_MAX)
        ids += self._content.unsettled
        return events_in_doubt(what, ids, self.unsettled)

    def _disconnect(self, hub: Hub, driver: Driver[PublisherNode]) -> None:
        self._driver = None
        # From the last to the first, and each of them even if another fails.
        with ExitStack() as stack:
            stack.callback(self._receipts.fail_all, self._unsettled)
            stack.callback(self._log_failure)
            stack.callback(leave_hub, hub)
            stack.callback(hub.observers.pop, self._name, None)
            stack.callback(hub.depart, self._name)
            stack.callback(hub.close_client, driver)
            stack.callback(self._content.close)
            if not driver.closed:  # It is if the server has refused this client.
                stack.callback(driver.command, lambda node, _now: node.say_goodbye())
            for subscription in self._subscriptions:
                stack.callback(subscription.rest)

    def _unsettled(self, topic: str, number: int) -> EnsueError:
        event = event_id(self._name, topic, number)
        return events_in_doubt("the bus was closed before the receipt arrived", (event,), 1)

    def _log_failure(self) -> None:
        """Log the failure of an event that was published with `receipt=False`."""
        failure = self._receipts.take_failure()
        if failure is not None and self._failure is None:
            _log.error("publish failed receipt=False error=%r", str(failure))

    def _open(self) -> tuple[Hub, Driver[PublisherNode]]:
        hub, driver, ended = self._hub, self._driver, self._ended
        if hub is None or driver is None or ended is None or ended.done():
            raise LocalProtocolError(
                "the bus is not open: use it inside `async with ensue.connect(…) as bus`"
            )
        hub.check_loop("this bus")
        if self._failure is not None:
            raise self._failure
        return hub, driver

    async def _join_hub(self) -> Hub:
        options = self._options
        if not isinstance(options, MemoryOptions):
            return await RemoteHub.connect(
                options, order=self.order, name=self._wanted_name, trace=self._trace
            )
        run = self._wanted_name or "ensue"
        return join_hub(options, order=self.order, trace=self._trace, record=self._record, run=run)

    async def _drive(self, hub: Hub) -> Driver[PublisherNode]:
        self._name = hub.claim(self._wanted_name, "client")
        await hub.enter(self._name)
        self._resumed = asyncio.get_running_loop().create_future()
        driver = Driver(
            await orders.of(self.order).publisher(hub, self._name),
            transport=hub.transport,
            clock=hub.clock,
            on_outcomes=self._outcomes,
            recorder=publications_only(hub.recorder) if hub.shares_node else hub.recorder,
            size_of=hub.size_of,
        )
        hub.watch(driver, needs_log=not orders.of(self.order).uses_topics_alone)
        self._share(hub, driver)
        if orders.of(self.order).observes_stamps:
            hub.observers[self._name] = self._learn
        if hub.fanouts or (hub.shares_node and isinstance(hub, RemoteHub)):
            await settle_in(self._resumed, hub, driver)
        return driver

    def _share(self, hub: Hub, driver: Driver[Any]) -> None:
        """Let subscriptions share the node, in causal and deadline order."""
        if hub.shares_node:
            hub.admitted(driver)
            self._shared_node = SharedNode(
                driver,
                clock=hub.clock,
                recorder=hub.recorder,
                on_published=hub.keep,
                has_deadlines=orders.of(self.order).has_deadlines,
            )
            hub.shares[self._name] = self._shared_node

    def _outcomes(self, outcomes: Sequence[Outcome]) -> None:
        settle, shared = self._receipts.settle, self._shared_node
        for outcome in outcomes:
            if type(outcome) is Settle:
                settle(outcome)
            elif isinstance(outcome, Refuse) and not outcome.topics:
                self._end(outcome)
            elif type(outcome) is Resumed:
                if not self._resumed.done():
                    self._resumed.set_result(None)
            elif shared is not None:
                shared.outcome(outcome)

    def _end(self, outcome: Refuse) -> None:
        """Fail all events without a receipt: this bus can no longer be used."""
        if self._failure is not None:
            return
        self._failure = client_failure(outcome, self._name)
        fail(self._resumed, self._failure)
        self._receipts.fail_all(
            lambda topic, number: client_failure(
                outcome,
                self._name,
                f"{event_id(self._name, topic, number)} may be delivered or not: ",
            )
        )
        if self._shared_node is not None:
            self._shared_node.end(outcome)
            if self._hub is not None:
                # Not now: other nodes may be in the middle of a call.
                asyncio.get_running_loop().call_soon(self._hub.depart, self._name)
        elif self._hub is not None and self._hub.fanouts:
            # Its subscriptions can't continue either.
            asyncio.get_running_loop().call_soon(self._hub.expel, outcome.reason)
