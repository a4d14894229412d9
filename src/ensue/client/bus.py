"""The bus: publish, and subscribe in the order you ask for.

`await bus.publish(…)` returns when the event has its place in the order for good: every subscriber of
its topic will get it there. Cancelling the call does not take the event back.

Back-pressure: publishing waits while a subscription of the same hub to the same topic has
`pending_max` events unhandled. A wait longer than `PATIENCE_S` is logged, naming the subscription.
"""

import asyncio
import logging
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from ensue.client.subscription import Acknowledge, Subscription, check_topics
from ensue.errors import BadInput, EventRefused, EventVoided, LocalProtocolError, UnsupportedOrder
from ensue.event import Event
from ensue.order import Order, Total
from ensue.protocols.core import Outcome, Settle
from ensue.protocols.sequencer.publisher import Publisher
from ensue.protocols.unordered import UnorderedPublisher
from ensue.runtime.driver import Driver
from ensue.runtime.hub import Hub, join_hub, leave_hub
from ensue.runtime.names import check_name
from ensue.transports import Capabilities, MemoryOptions, refusal

__all__ = ["Bus", "connect"]

PAYLOAD_BYTES_MAX = 16 * 1024 * 1024
PENDING_MAX = 10_000
PATIENCE_S = 5.0
BURST_MAX = 64
"""Events published in a row before other tasks get a turn."""

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
) -> "Bus":
    """Return a bus, to be entered with `async with`.

    `url` names a transport: `memory://`, or `memory://NAME` for a hub that several buses share.
    `order` is what events are published for, and what subscriptions get unless they say
    otherwise; None is no order at all. `name` names this client in traces. `trace` is a directory
    to write the trace to, with `pip install 'ensue[trace]'`.
    """
    scheme, separator, _ = url.partition("://")
    if not separator or scheme != "memory":
        raise BadInput(f"no transport for {url!r}; expected memory:// or memory://NAME")
    options = MemoryOptions.parse(url)
    if name is not None:
        check_name(name)
    check_order(order, options.capabilities, "memory://")
    return Bus(options, order=order, name=name, trace=trace)


def check_order(order: Order | None, capabilities: Capabilities, transport: str) -> None:
    """Refuse by name an order that a transport can't carry."""
    why = refusal(order, capabilities, transport)
    if why is not None:
        name = "none" if order is None else order.name
        raise UnsupportedOrder(why, order=name, transport=transport)


class Bus:
    """A connection. Made by `connect`."""

    def __init__(
        self, options: MemoryOptions, *, order: Order | None, name: str | None, trace: str | None
    ) -> None:
        self.order = order
        self._options = options
        self._wanted_name = name
        self._trace = trace
        self._hub: Hub | None = None
        self._name = ""
        self._driver: Driver[Publisher | UnorderedPublisher] | None = None
        self._unsettled: dict[str, asyncio.Future[Event]] = {}
        self._subscriptions: list[Subscription] = []
        self._burst = 0

    @property
    def name(self) -> str:
        """The name of this client."""
        return self._name

    async def __aenter__(self) -> Self:
        if self._hub is not None:
            raise LocalProtocolError("a bus is entered once")
        run = self._wanted_name or "ensue"
        hub = join_hub(self._options, order=self.order, trace=self._trace, run=run)
        try:
            self._driver = self._drive(hub)
        except BaseException:
            leave_hub(hub)
            raise
        self._hub = hub
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        key: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Event:
        """Publish an event; return it, stamped, once its place in the order is certain.

        Raises `EventVoided` if it lost its place, which only a stall longer than the lease can
        cause: nobody got it, and it can be published again.
        """
        hub, driver = self._open()
        check_topics((topic,))
        if not isinstance(payload, bytes):
            raise BadInput(
                f"a payload is bytes, not {type(payload).__name__}: encode it first, "
                "for instance with text.encode()"
            )
        if len(payload) > PAYLOAD_BYTES_MAX:
            raise BadInput(
                f"a payload has at most {PAYLOAD_BYTES_MAX} bytes, this one {len(payload)}"
            )
        if hub.full:
            await self._wait_for_room(hub, topic)
            hub, driver = self._open()
        settled: asyncio.Future[Event] = asyncio.get_running_loop().create_future()

        def publish(node: Publisher | UnorderedPublisher, now_ns: int) -> None:
            event = node.publish(topic, payload, now_ns=now_ns, key=key, headers=headers)
            self._unsettled[event.id] = settled

        driver.command(publish)
        self._burst += 1
        if self._burst >= BURST_MAX:
            self._burst = 0
            await asyncio.sleep(0)
        # Shielded: cancelling the caller must not make a settled event look lost.
        return settled.result() if settled.done() else await asyncio.shield(settled)

    def subscribe(
        self,
        *topics: str,
        order: "Order | _Default | None" = _DEFAULT,
        name: str | None = None,
        pending_max: int = PENDING_MAX,
        acknowledge: Acknowledge = "auto",
    ) -> Subscription:
        """Return a subscription, to be entered with `async with`.

        It takes effect on entering. `order` is the bus's own unless given; None asks for events
        as they arrive. `pending_max` events may be unhandled before publishers have to wait.
        `acknowledge="manual"` leaves it to you to call `ack` on each event.
        """
        hub, _ = self._open()
        check_topics(topics)
        chosen = self.order if isinstance(order, _Default) else order
        transport = hub.transport
        check_order(chosen, transport.capabilities, transport.name)
        if chosen is not None and self.order is None:
            raise UnsupportedOrder(
                f"this bus publishes with no order, so nothing on it has {chosen.name} order",
                order=chosen.name,
                transport=transport.name,
            )
        subscription = Subscription(
            hub,
            client=self._name,
            name=name,
            topics=topics,
            order=chosen,
            pending_max=pending_max,
            acknowledge=acknowledge,
        )
        self._subscriptions = [each for each in self._subscriptions if not each.closed]
        self._subscriptions.append(subscription)
        return subscription

    async def close(self) -> None:
        """Wait until everything published is settled, end all subscriptions, and disconnect."""
        hub, driver = self._hub, self._driver
        if hub is None or driver is None:
            return
        try:
            if self._unsettled:
                await asyncio.wait(list(self._unsettled.values()))
        finally:
            self._driver = None
            for subscription in self._subscriptions:
                subscription.close()
            driver.command(lambda node, _now: node.say_goodbye())
            driver.close()
            leave_hub(hub)

    def _open(self) -> tuple[Hub, Driver[Publisher | UnorderedPublisher]]:
        if self._hub is None or self._driver is None:
            raise LocalProtocolError(
                "the bus is not open: use it inside `async with ensue.connect(…) as bus`"
            )
        return self._hub, self._driver

    def _drive(self, hub: Hub) -> Driver[Publisher | UnorderedPublisher]:
        self._name = hub.claim(self._wanted_name, "client")
        node: Publisher | UnorderedPublisher
        if self.order is None:
            node = UnorderedPublisher(name=self._name)
        else:
            node = Publisher(
                name=self._name,
                placement=hub.placement,
                config=hub.config,
                now_ns=hub.clock.now_ns(),
            )
        return Driver(
            node,
            transport=hub.transport,
            clock=hub.clock,
            on_outcome=self._outcome,
            recorder=hub.recorder,
            size_of=hub.size_of,
        )

    async def _wait_for_room(self, hub: Hub, topic: str) -> None:
        while (slow := hub.blocker(topic)) is not None:
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await slow.room.wait()
            except TimeoutError:
                _log.warning(
                    "publishing on %r has waited %g s: subscription %r has no room "
                    "(pending_max); read it faster, or give it more",
                    topic,
                    PATIENCE_S,
                    slow.name,
                )

    def _outcome(self, outcome: Outcome) -> None:
        if not isinstance(outcome, Settle):
            return
        event = outcome.event
        future = self._unsettled.pop(event.id, None)
        if future is None or future.done():
            return
        if outcome.reason:
            future.set_exception(
                EventRefused(
                    f"{event.id} was refused: {outcome.reason}",
                    event=event.id,
                    reason=outcome.reason,
                )
            )
        elif outcome.verdict:
            future.set_exception(
                EventVoided(
                    f"{event.id} lost its place in the order and reached nobody; publish it again",
                    event=event.id,
                )
            )
        else:
            future.set_result(event)
