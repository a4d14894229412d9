"""The bus: publish, and subscribe in the order you ask for.

`await bus.publish(…)` returns when the event has its place in the order for good: every subscriber of
its topic will get it there. On `ensue://` it is also as durable as the server was told to be.
Cancelling the call does not take the event back. `receipt=False` returns as soon as the event is on
its way; `await bus.flush()` waits for all of those.

Leaving a bus waits for receipts, for `close_timeout` at most. Events without one by then are in doubt: they are named in `EventsInDoubt`,
or in the log where another exception is under way.

At most `UNSETTLED_MAX` events are under way: publishing waits for earlier ones. Back-pressure in memory: publishing waits while a subscription of the same hub to the same topic has
`pending_max` events unhandled, until half of them are handled. A wait longer than `PATIENCE_S` is logged, naming the subscription.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from ensue.client.acknowledging import settle_all
from ensue.client.checks import (
    PENDING_MAX,
    Acknowledge,
    Payload,
    Start,
    check_headers,
    check_key,
    check_order,
    check_payload,
    check_seconds,
    check_size,
    check_token,
    check_topics,
)
from ensue.client.content_bus import ContentBus
from ensue.client.content_reader import ReadOptions
from ensue.client.futures import fail
from ensue.client.in_doubt import events_in_doubt, log_in_doubt, log_wait, receipt_by, room_by
from ensue.client.nodes import AnyPublisher, check_pair, make_publisher
from ensue.client.receipts import Receipts
from ensue.client.room import wait_for_room
from ensue.client.shares import Shares, publishing_alone
from ensue.client.subscription import Subscription
from ensue.errors import (
    ConfigurationError,
    EnsueError,
    EventsInDoubt,
    InternalError,
    LocalProtocolError,
    LogLost,
    TransportError,
    refused_client,
)
from ensue.event import Event, event_id
from ensue.order import Merged, Order, Total
from ensue.protocols.core import Outcome, Refuse, Resumed, Settle
from ensue.protocols.merge.publisher import MergePublisher
from ensue.runtime.driver import Driver, Failed
from ensue.runtime.hub import CLOSE_TIMEOUT_S, Hub, join_hub, leave_hub
from ensue.runtime.names import check_name
from ensue.runtime.remote import RemoteHub
from ensue.transports import MemoryOptions
from ensue.transports.schemes import Options, parse_url

__all__ = ["Bus", "connect"]

R = TypeVar("R")

_log = logging.getLogger("ensue")

BURST_MAX = 128
"""Events published in a row before other tasks get a turn."""
CHECKED_MAX = 10_000
"""Topics that are remembered as good ones."""
AGREE_S = 10.0
"""How long a server may take to say which terms merged order has there."""
UNSETTLED_MAX = 20_000
"""Events under way before publishing waits for some of them to be settled."""


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
    a broker.
    `order` is what events are published for, and what subscriptions get unless they say
    otherwise; None is no order at all. `name` names this client in traces. `trace` is a directory
    to write the trace to, with `pip install 'ensue[trace]'`; `record` is one to write the whole run
    to instead: the trace to `trace` in it, and every event to the event log `log`. `record=True` makes a
    new directory, named by the time, in `runs`: `bus.recording` says which. `record=False` records nothing.
    `close_timeout` is how many seconds leaving waits for receipts and acknowledgements that have not come.
    """
    options = parse_url(url)
    if name is not None:
        check_name(name)
    check_seconds(close_timeout, "close_timeout", zero=True)
    check_order(order, options.capabilities, f"{url.partition('://')[0]}://")
    if record is False:
        record = None
    if trace is not None and record is not None:
        raise ConfigurationError("a recorded run has its trace: give record or trace, not both")
    if record is not None and not isinstance(options, MemoryOptions):
        raise ConfigurationError(
            "a server keeps the events itself: give trace, and read its log with its URL"
        )
    return Bus(
        options,
        order=order,
        name=name,
        trace=trace,
        record=record,
        close_timeout_s=float(close_timeout),
    )


class Bus(ContentBus):
    """A connection. Made by `connect`."""

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
        self._driver: Driver[AnyPublisher] | None = None
        self._shares: Shares | None = None
        self._subscriptions: list[Subscription] = []
        self._ended: asyncio.Future[None] | None = None
        """Made on entering; done once closing has begun."""
        self._resumed: asyncio.Future[None]
        """Made on entering; done once commands can be given, where that takes a while."""
        self._failure: EnsueError | None = None
        """Why nothing can be done with it any more."""
        self._checked: set[str] = set()
        """Topics that were looked at before."""
        self._burst = 0

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
        content = 0 if self._content is None else len(self._content.unsettled)
        return len(self._receipts) + content

    async def __aenter__(self) -> Self:
        if self._hub is not None:
            raise LocalProtocolError("a bus is entered once")
        hub = await self._join_hub()
        self._receipts = Receipts()
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
        receipt: bool = True,
        timeout: float | None = None,  # noqa: ASYNC109 - an event can't be taken back
    ) -> Event:
        """Publish an event; return it, stamped, once its place in the order is certain.

        With `receipt=False` return it as soon as it is on its way, not stamped; `flush` waits for it.
        Raises `EventVoided` if it lost its place, which only a stall longer than the lease can
        cause: nobody got it, and it can be published again.
        With `timeout` it waits no longer than so many seconds. Then it raises `EventsInDoubt`: the event may be out, or
        never be; or `PublishTimeout` if there was no room, and nothing was published.
        Attributes instead of a topic publish by content: `{"symbol": "ACME", "price": 12}`.
        """
        hub, driver = self._open()
        by_s = _time_after(timeout)
        if isinstance(topic, Mapping):
            return await self._publish_content(topic, payload, key, headers, by_s)
        if topic not in self._checked:
            check_topics((topic,))
            if len(self._checked) < CHECKED_MAX:
                self._checked.add(topic)
        if type(payload) is not bytes or len(payload) > hub.payload_bytes_max:
            payload = check_payload(payload, hub.payload_bytes_max)
        copied = None
        if key is not None or headers is not None:
            check_key(key)
            copied = check_headers(headers)
            check_size(payload, key, copied, hub.payload_bytes_max)
        receipts = self._receipts
        if hub.full or len(receipts.open) >= UNSETTLED_MAX:
            async with room_by(by_s):
                await self._wait_for_room(hub, topic)
        node, now_ns = driver.begin()
        try:
            event = node.publish(topic, payload, now_ns=now_ns, key=key, headers=copied)
            settled = receipts.expect(event, wanted=receipt)
        finally:
            driver.end()
        self._burst += 1
        if self._burst >= BURST_MAX:
            self._burst = 0
            await asyncio.sleep(0)
        if settled is None:
            return event
        # Shielded: cancelling the caller must not make a settled event look lost.
        if settled.done():
            return settled.result()
        return await receipt_by(by_s, event, asyncio.shield(settled))

    async def _wait_for_room(self, hub: Hub, topic: str) -> None:
        """Wait while subscriptions have no room, or too many events are under way."""
        assert self._ended is not None
        await wait_for_room(hub, topic, self._ended)
        while len(self._receipts.open) >= UNSETTLED_MAX:
            await self._receipts.wait_for_room(UNSETTLED_MAX)
            self._open()

    async def flush(self, *, timeout: float | None = None) -> None:  # noqa: ASYNC109 - as above
        """Wait until everything published so far is settled.

        Raises the first failure of what was published with `receipt=False` since the last flush, and `EventsInDoubt` if
        something is not settled after `timeout` seconds.
        """
        by_s = _time_after(timeout)
        if self._failure is None:
            self._open()
        if not await self._settle_by(by_s):
            raise self._in_doubt(f"no receipts came within the {timeout:g} s of flush")
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

        It takes effect on entering. `order` is the bus's own unless given; None asks for events
        as they arrive. `pending_max` events may be unhandled before publishers have to wait.
        `acknowledge="manual"` leaves it to you to call `ack` on each event. `durable` keeps how far it
        has come at the server, under its `name`: entered again, by whichever process, it goes on
        behind the last event that was acknowledged. `start` says where one that is new begins: with what is
        published from now on (`latest`), as topics that are added later do anyway, with all that the server's
        log still has (`earliest`), or with a place in it (`event.place`). `accept_loss` lets a durable one go on
        where a server's log is not the one that it has read. `where` asks by content
        instead of topics: a filter such as `symbol = 'ACME' and price > 10`; on `ensue://` such a subscription ends (`SubscriptionLost`) when
        it has no room for the next event, or for a transaction's events as a whole.
        """
        hub, _ = self._open()
        if where is not None:
            given = {
                "order": order is not _DEFAULT,
                "durable": durable,
                "start": start != "latest",
                "accept_loss": bool(accept_loss),
            }
            options = ReadOptions(name=name, pending_max=pending_max, acknowledge=acknowledge)
            return self._subscribe_content(where, topics, options, given)
        chosen = self.order if isinstance(order, _Default) else order
        transport = hub.transport
        check_order(chosen, transport.capabilities, transport.name)
        check_pair(self.order, chosen, transport.name)
        subscription = Subscription(
            hub,
            client=self._name,
            name=name,
            topics=topics,
            order=chosen,
            pending_max=pending_max,
            acknowledge=acknowledge,
            durable=durable,
            start=start,
            accept_loss=accept_loss,
        )
        return self._keep(subscription)

    def _keep(self, subscription: Subscription) -> Subscription:
        self._subscriptions = [each for each in self._subscriptions if not each.closed]
        self._subscriptions.append(subscription)
        return subscription

    def token(self) -> dict[str, int]:
        """Return what to send along where processes talk outside of a merged bus.

        Whoever gives it to `observe` publishes after everything that this bus has published or observed so far. Refused
        (`LocalProtocolError`) while some of that has no stamp yet, as in the first moments of a bus: `await bus.flush()` before.
        """
        return self._merging(lambda node, now: node.token(now_ns=now))

    def observe(self, token: Mapping[str, int]) -> bool:
        """Learn of another bus's `token`; False: its clock is too far ahead, and it was not believed."""
        check_token(token)
        return self._merging(lambda node, now: node.observe(token, now_ns=now))

    def _learn(self, entries: Mapping[str, int]) -> None:
        """Take note of what a subscription of this bus was handed before its turn, while the bus can publish."""
        closing = self._ended is None or self._ended.done() or self._failure is not None
        if not closing and self._driver is not None and self._driver.takes_commands:
            self.observe(entries)

    def _merging(self, call: Callable[[MergePublisher, int], R]) -> R:
        _, driver = self._open()
        node, now_ns = driver.begin()
        try:
            if not isinstance(node, MergePublisher):
                raise LocalProtocolError("only a bus with merged order has tokens")
            return call(node, now_ns)
        finally:
            driver.end()

    async def close(self, *, timeout: float | None = None) -> None:  # noqa: ASYNC109 - as above
        """Wait until everything published is settled and what was acknowledged is safe; end all subscriptions, and disconnect.

        It waits for `timeout` seconds at most, or the `close_timeout` of the bus. Then it disconnects all the same, and raises `EventsInDoubt` if published events have no receipt. Cancelled, it
        disconnects at once, and logs which those are.
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
            await settle_all(self._subscriptions, by_s)
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
        """Wait until everything published so far is settled, up to a time of the event loop; tell whether it is."""
        try:
            async with asyncio.timeout_at(by_s):
                await self._receipts.wait_for_all()
                if self._content is not None:
                    await self._content.wait_for_all()
        except TimeoutError:
            return False
        return True

    def _in_doubt(self, what: str) -> EventsInDoubt:
        ids = self._receipts.ids(self._name, EventsInDoubt.IDS_MAX)
        if self._content is not None:
            ids += tuple(self._content.unsettled.values())
        return events_in_doubt(what, ids, self.unsettled)

    def _disconnect(self, hub: Hub, driver: Driver[AnyPublisher]) -> None:
        self._driver = None
        # From the last to the first, and each of them even if another fails.
        with ExitStack() as stack:
            stack.callback(self._receipts.fail_all, self._unsettled)
            stack.callback(self._log_failure)
            stack.callback(leave_hub, hub)
            stack.callback(hub.observers.pop, self._name, None)
            stack.callback(hub.depart, self._name)
            stack.callback(hub.part, driver)
            stack.callback(self._leave_overlay)
            if not driver.closed:  # As it is once the server has refused it.
                stack.callback(driver.command, lambda node, _now: node.say_goodbye())
            for subscription in self._subscriptions:
                stack.callback(subscription.rest)

    def _unsettled(self, topic: str, number: int) -> EnsueError:
        event = event_id(self._name, topic, number)
        return events_in_doubt("the bus was closed before the receipt came", (event,), 1)

    def _log_failure(self) -> None:
        """Log why an event that nobody waited for is not out."""
        failure = self._receipts.take_failure()
        if failure is not None and self._failure is None:
            _log.error("an event published with receipt=False failed: %s", failure)

    def _open(self) -> tuple[Hub, Driver[AnyPublisher]]:
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

    async def _drive(self, hub: Hub) -> Driver[AnyPublisher]:
        self._name = hub.claim(self._wanted_name, "client")
        await hub.enter(self._name)
        self._resumed = asyncio.get_running_loop().create_future()
        driver = Driver(
            await make_publisher(hub, self._name, self.order),
            transport=hub.transport,
            clock=hub.clock,
            on_outcomes=self._outcomes,
            recorder=publishing_alone(hub.recorder) if hub.has_cube else hub.recorder,
            size_of=hub.size_of,
        )
        hub.watch(driver)
        self._share(hub, driver)
        if isinstance(self.order, Merged):
            hub.observers[self._name] = self._learn
        if hub.exchanges or (hub.has_cube and isinstance(hub, RemoteHub)):
            await self._settle_in(hub, driver)
        return driver

    async def _settle_in(self, hub: Hub, driver: Driver[AnyPublisher]) -> None:
        """Wait until the others know of this node, and it of them; or have agreed on the terms of their order."""
        try:
            async with asyncio.timeout(AGREE_S if hub.exchanges else None):
                await self._resumed
        except BaseException as error:
            if not driver.closed:
                # Or the others would wait for it until it expires.
                driver.command(lambda node, _now: node.say_goodbye())
                hub.part(driver)
            if isinstance(error, TimeoutError):
                raise TransportError(
                    f"{hub.server} does not say within {AGREE_S:g} s which merged order it carries: "
                    "is it of this version?"
                ) from None
            raise

    def _share(self, hub: Hub, driver: Driver[Any]) -> None:
        """Let subscriptions have their shares in this bus's node, where that is how order is kept."""
        if hub.has_cube:
            hub.admitted(driver)
            self._shares = Shares(
                driver, clock=hub.clock, recorder=hub.recorder, on_published=hub.keep
            )
            hub.shares[self._name] = self._shares

    def _outcomes(self, outcomes: Sequence[Outcome]) -> None:
        settle, shares = self._receipts.settle, self._shares
        for outcome in outcomes:
            if type(outcome) is Settle:
                settle(outcome)
            elif isinstance(outcome, Refuse) and not outcome.topics:
                self._over(outcome)
            elif type(outcome) is Resumed:
                if not self._resumed.done():
                    self._resumed.set_result(None)
            elif shares is not None:
                shares.outcome(outcome)

    def _over(self, outcome: Refuse) -> None:
        """Give everything up: nothing can be done with this bus any more."""

        def why(about: str) -> EnsueError:
            if isinstance(outcome, Failed) and isinstance(outcome.error, LogLost):
                lost = outcome.error
                return LogLost(f"{about}{lost}", server=lost.server, reason=lost.reason)
            if not isinstance(outcome, Failed):
                text = f"{about}the server refused this client: {outcome.reason}"
                return refused_client(text, reason=outcome.reason)
            failure = InternalError(f"{about}{self._name} can't go on: {outcome.reason}")
            failure.__cause__ = outcome.error
            return failure

        if self._failure is not None:
            return
        self._failure = why("")
        fail(self._resumed, self._failure)
        self._receipts.fail_all(
            lambda topic, number: why(
                f"{event_id(self._name, topic, number)} may be out, or never be: "
            )
        )
        if self._shares is not None:
            self._shares.end(outcome)
            if self._hub is not None:
                # Soon: the others may be about something.
                asyncio.get_running_loop().call_soon(self._hub.depart, self._name)
        elif self._hub is not None and self._hub.exchanges:
            # Its subscriptions can't go on either.
            asyncio.get_running_loop().call_soon(self._hub.expel, outcome.reason)


def _time_after(timeout_s: float | None) -> float | None:
    """Return the time of the event loop when a timeout is over; None: never."""
    if timeout_s is None:
        return None
    check_seconds(timeout_s, "timeout")
    return asyncio.get_running_loop().time() + timeout_s
