"""A subscription: events one at a time, in order, with room for a stated number.

An event is handed out when it is asked for, and never lost by cancelling: a task cancelled while it
waits has taken nothing. Acknowledging is automatic by default: asking for the next event says that
the last one was handled. With `acknowledge="manual"` each event is acknowledged by `ack`, in any
order; what counts is the unbroken run from the start.

Back-pressure: events handed out and not acknowledged, and events not yet handed out, count as
pending. At `pending_max` publishers to these topics have to wait, and they go on when half of that is
left: with one mark for both, publishers and reader would wake each other for every single event.

A durable subscription (`ensue://`) keeps how far it has come at the server, under its name. Entered again it
goes on behind the last event that was acknowledged. `await event.ack()` returns when that is safe;
with automatic acknowledgement it becomes so in the background, and closing waits for it. Of two
processes that use one name the later wins, and the earlier one's reading ends with
`SubscriptionLost`. Closing a durable subscription does not end it: `forget` does.

Where publishers don't wait (`ensue://`), a subscription with no room pauses instead, and catches up from
the server's log.

Closing ends reading and back-pressure at once. The chain hears of it in its own time: the driver of a
closed subscription lives on until the leave has come through, or the hub is gone.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Mapping
from secrets import randbits
from types import TracebackType
from typing import Any, Self

from ensue.client.checks import (
    Acknowledge,
    check_acknowledge,
    check_durable,
    check_pending_max,
    check_topics,
)
from ensue.client.futures import fail
from ensue.client.policies import Concurrency, FailurePolicy, Handler, Progress, Sequential, Stop
from ensue.client.received import ReceivedEvent
from ensue.client.running import READ_AHEAD_MAX, ReadAhead, Runner
from ensue.errors import LocalProtocolError, SubscriptionLost, SubscriptionRefused
from ensue.order import Order, Total
from ensue.protocols.core import (
    Acknowledged,
    Deliver,
    Join,
    Leave,
    Outcome,
    Refuse,
    Resumed,
)
from ensue.protocols.keeping import Kept
from ensue.protocols.sequencer.subscriber import Subscriber
from ensue.protocols.unordered import UnorderedSubscriber
from ensue.runtime.driver import Driver
from ensue.runtime.hub import Hub, Slow
from ensue.runtime.names import check_text

__all__ = ["Subscription"]

SETTLE_S = 5.0
"""How long closing waits for acknowledgements to be safe."""

_log = logging.getLogger("ensue")

Reader = Subscriber | UnorderedSubscriber | Kept[Subscriber]
"""A node that delivers; a durable one is wrapped, because its records are kept elsewhere."""

_WHY_LOST = {
    "superseded": "another process has taken its name up",
    "expired": "nothing was heard of it for too long; subscribe again",
}


class Subscription:
    """Made by `Bus.subscribe`; entered with `async with`, read with `async for`."""

    def __init__(
        self,
        hub: Hub,
        *,
        client: str,
        name: str | None,
        topics: tuple[str, ...],
        order: Order | None,
        pending_max: int,
        acknowledge: Acknowledge,
        durable: bool = False,
    ) -> None:
        check_topics(topics)
        check_pending_max(pending_max)
        check_acknowledge(acknowledge)
        if name is not None:
            check_text(name, "a subscription's name")
        if durable:
            check_durable(name, order, hub.transport.capabilities, hub.transport.name)
        self.durable = durable
        self.order = order
        self.pending_max = pending_max
        self._hub = hub
        self._client = client
        self._wanted_name = name
        self._topics = topics
        self._automatic = acknowledge == "auto"
        self._driver: Driver[Reader] | None = None
        self._resumed: asyncio.Future[None] | None = None
        """Of a durable subscription: done once its records are here."""
        self._safe = 0
        """The position up to which acknowledgements are safe."""
        self._waiting_safe: dict[asyncio.Future[None], int] = {}
        self._lost: SubscriptionLost | None = None
        """Why reading has ended for good."""
        self._slow = Slow(name or "")
        self._queue: deque[Deliver] = deque()
        self._unacknowledged: dict[int, None] = {}
        """Positions of what was handed out and not acknowledged, rising."""
        self._handed_out = 0
        """The highest position handed out."""
        self._asked: dict[str, None] = {}
        """Topics asked for and not left: in effect, joining, or joining anew."""
        self._joining: dict[str, asyncio.Future[None]] = {}
        self._waiter: asyncio.Future[None] | None = None
        self._ahead = ReadAhead()
        self._paused = False
        """Whether nothing more is sent here until there is room again."""
        self._acknowledged = 0
        """The position up to which everything was acknowledged."""
        self._closed = False

    @property
    def name(self) -> str:
        """The name of this subscription, in traces and warnings."""
        return self._slow.name

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics in effect."""
        node = self._node
        return () if node is None else node.topics

    @property
    def closed(self) -> bool:
        """Whether it has ended."""
        return self._closed

    @property
    def pending(self) -> int:
        """How many events are not handled yet."""
        return len(self._queue) + len(self._unacknowledged)

    @property
    def held_back(self) -> int:
        """How many events wait for others that come before them."""
        node = self._node
        return 0 if node is None else node.held_count

    async def __aenter__(self) -> Self:
        if self._driver is not None:
            raise LocalProtocolError("a subscription is entered once")
        if self._closed:
            raise LocalProtocolError("the subscription was closed before it was entered")
        hub = self._hub
        hub.check_loop("this subscription")
        # On the chain a subscription is new each time, whatever people call it, unless it is durable.
        own_name = hub.unique(f"{self._client}.subscription")
        if self.durable:
            assert self._wanted_name is not None
            own_name = self._wanted_name
        self._slow.name = self._wanted_name or own_name
        await hub.enter(own_name)
        self._driver = Driver(
            self._make(own_name),
            transport=hub.transport,
            clock=hub.clock,
            on_outcome=self._outcome,
            recorder=hub.recorder,
            seen_as=self._client,
            subscription=self.name,
            size_of=hub.size_of,
        )
        hub.watch(self._driver)
        try:
            if self._resumed is not None:
                await self._resumed
                left = [topic for topic in self.topics if topic not in self._topics]
                if left:
                    await self.unsubscribe(*left)
            await self.subscribe(*self._topics)
        except BaseException:
            self.close()
            raise
        return self

    def _make(self, name: str) -> "Reader":
        """Build the node that does the work."""
        hub, order = self._hub, self.order
        if not isinstance(order, Total):
            return UnorderedSubscriber(name=name)
        config = hub.subscriber_config(order, durable=self.durable)

        def build(records: Mapping[str, bytes], now_ns: int) -> Subscriber:
            return Subscriber(
                name=name,
                placement=hub.placement,
                config=config,
                acknowledge_each=self.durable or not self._automatic,
                records=records,
                now_ns=now_ns,
            )

        if not self.durable:
            return build({}, hub.clock.now_ns())
        self._resumed = asyncio.get_running_loop().create_future()
        return Kept(
            build,
            name=name,
            keeper=hub.placement.keeper(name),
            number=randbits(53),
            now_ns=hub.clock.now_ns(),
        )

    @property
    def _node(self) -> Subscriber | UnorderedSubscriber | None:
        if self._driver is None:
            return None
        node = self._driver.node
        return node.inner if isinstance(node, Kept) else node

    def _command(self, call: Callable[[Any, int], object]) -> None:
        """Give the node that does the work a command."""
        driver = self._open_driver()
        driver.command(lambda node, now: call(node.inner if isinstance(node, Kept) else node, now))

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.settle()
        self.close()

    async def settle(self) -> None:
        """Wait until what was acknowledged is safe, for a durable subscription; not for ever."""
        driver = self._driver
        if driver is None or self._closed or not isinstance(driver.node, Kept):
            return
        if self._automatic and self._unacknowledged:
            # Whoever leaves has handled what it was handed: only asking for the next one is missing.
            self._handled(next(iter(self._unacknowledged)))
        if driver.node.unremembered and self._lost is None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._until_safe(self._acknowledged), SETTLE_S)

    async def until_safe(self, position: int) -> None:
        """Wait until the acknowledgement of a position is safe; at once if nothing is kept."""
        if self.durable and not self._closed:
            await self._until_safe(min(position, self._acknowledged))

    async def _until_safe(self, position: int) -> None:
        if self._lost is not None:
            raise self._lost
        if self._safe >= position:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting_safe[future] = position
        try:
            await future
        finally:
            self._waiting_safe.pop(future, None)

    async def forget(self) -> None:
        """End a durable subscription for good: the server forgets it."""
        driver = self._open_driver()
        if not isinstance(driver.node, Kept):
            raise LocalProtocolError(
                "only a durable subscription is remembered, and can be forgotten"
            )
        await self.unsubscribe(*self._asked)
        node = driver.node
        while node.inner is not None and any(node.inner.waits({})):
            await asyncio.sleep(0.01)
        driver.command(lambda kept, _now: kept.dismiss() if isinstance(kept, Kept) else None)
        self.close()

    async def subscribe(self, *topics: str) -> None:
        """Add topics; returns when events published from now on will be delivered."""
        check_topics(topics)
        self._open_driver()
        loop = asyncio.get_running_loop()
        joined = self.topics
        waiting: dict[str, asyncio.Future[None]] = {}
        for topic in topics:
            self._asked[topic] = None
            if topic in joined:
                continue
            if topic not in self._joining:
                self._joining[topic] = loop.create_future()
            waiting[topic] = self._joining[topic]
        self._command(lambda node, now: node.subscribe(topics, now_ns=now))
        unsettled = [future for future in waiting.values() if not future.done()]
        if unsettled:
            await asyncio.wait(unsettled)
        for future in waiting.values():
            future.result()

    async def unsubscribe(self, *topics: str) -> None:
        """Leave topics: nothing of them is handed out any more."""
        check_topics(topics)
        self._command(lambda node, now: node.unsubscribe(topics, now_ns=now))
        for topic in topics:
            self._asked.pop(topic, None)
            self._fail_joining(
                topic, LocalProtocolError(f"{topic!r} was left before it was joined")
            )
        left = frozenset(topics)
        self._queue = deque(each for each in self._queue if each.event.topic not in left)
        self._relieve()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedEvent:
        if self._driver is None:
            raise self._not_open()
        self._hub.check_loop("this subscription")
        if self._waiter is not None and not self._waiter.cancelled():
            raise LocalProtocolError(
                "somebody is already reading this subscription: read it in one task, "
                "or make a subscription for each"
            )
        if self._automatic and self._unacknowledged:
            self._handled(next(iter(self._unacknowledged)))
        while not self._queue:
            if self._lost is not None:
                raise self._lost
            if self._closed:
                raise StopAsyncIteration
            waiter = self._waiter = asyncio.get_running_loop().create_future()
            try:
                await waiter
            finally:
                # After a cancelled reader another one may wait already.
                if self._waiter is waiter:
                    self._waiter = None
        # Nothing is awaited from here on, so a cancelled task has not taken the event.
        delivery = self._queue.popleft()
        self._handed_out = delivery.position
        self._unacknowledged[delivery.position] = None
        return ReceivedEvent(delivery, self)

    async def run(
        self,
        handler: Handler,
        *,
        concurrency: Concurrency = Sequential(),  # noqa: B008 - a frozen value
        on_failure: FailurePolicy = Stop(),  # noqa: B008 - a frozen value
        pending_max: int = READ_AHEAD_MAX,
        progress: Progress | None = None,
    ) -> Progress:
        """Call `handler` with every event until the subscription is closed; return what was done.

        An event is acknowledged when its handler has returned, whatever `acknowledge` says, and for
        good: reading on later is left to `ack`, too. `concurrency` says what may run at once,
        `on_failure` what becomes of an event whose handler raises. At most `pending_max` events are
        read from the first unfinished one on. Cancelled, it cancels the handlers and waits for them.
        What a run leaves unfinished, the next one begins with, unless it was acknowledged meanwhile.
        """
        runner = Runner(
            self,
            handler,
            concurrency=concurrency,
            on_failure=on_failure,
            pending_max=pending_max,
            progress=progress,
        )
        if self._driver is None:
            raise self._not_open()
        self._hub.check_loop("this subscription")
        ahead = self._ahead
        if self._automatic:
            for position in tuple(self._unacknowledged):
                self._handled(position)
            self._automatic = False
        ahead.left = [event for event in ahead.left if event.position in self._unacknowledged]
        return await runner.run(ahead)

    def acknowledge(self, position: int) -> None:
        """Say that the event at a position has been handled."""
        self._hub.check_loop("this subscription")
        self._handled(position)

    def close(self) -> None:
        """Leave all topics. What was received can still be read; then iteration ends."""
        if self._closed:
            return
        self._hub.check_loop("this subscription")
        self._closed = True
        self._hub.full.pop(self._slow, None)
        self._slow.room.set()
        try:
            if self._driver is not None:
                self._retire(self._driver)
        finally:
            for topic in list(self._joining):
                self._fail_joining(
                    topic,
                    LocalProtocolError(f"the subscription was closed before it joined {topic!r}"),
                )
            self._wake()

    def _retire(self, driver: Driver["Reader"]) -> None:
        name = driver.node.name
        if self.durable or self._lost is not None:
            # Its place in the chain stays; only nothing is to be sent here any more.
            node = self._node
            if isinstance(node, Subscriber) and self._lost is None:
                driver.command(lambda _kept, _now: node.pause())
            driver.close()
            self._hub.leave(name)
            return
        asked = tuple(self._asked)
        try:
            driver.command(lambda node, now: node.unsubscribe(asked, now_ns=now))  # type: ignore[union-attr]
        finally:
            self._hub.retire(driver, _has_left)

    def _open_driver(self) -> Driver["Reader"]:
        if self._lost is not None:
            raise self._lost
        if self._driver is None or self._closed:
            raise self._not_open()
        self._hub.check_loop("this subscription")
        return self._driver

    def _not_open(self) -> LocalProtocolError:
        return LocalProtocolError(
            "the subscription is not open: use it inside `async with bus.subscribe(…)`"
        )

    def _outcome(self, outcome: Outcome) -> None:
        if self._closed:
            return  # The driver sees the leave through; nobody is interested in how.
        match outcome:
            case Deliver():
                self._queue.append(outcome)
                if self.pending >= self.pending_max:
                    self._no_room()
                self._wake()
            case Join(topic=topic, missed=missed):
                if missed is not None:
                    _log.warning(
                        "subscription %r fell behind what is kept of %r and missed its events "
                        "%d to %d",
                        self.name,
                        topic,
                        *missed,
                    )
                self._slow.topics[topic] = None
                future = self._joining.pop(topic, None)
                if future is not None and not future.done():
                    future.set_result(None)
            case Leave(topic=topic):
                self._slow.topics.pop(topic, None)
            case Refuse(topics=(), reason=reason):
                self._end(reason)
            case Refuse(topics=topics, reason=reason):
                self._refused(topics, reason)
            case Acknowledged(position=position):
                self._safe = max(self._safe, position)
                for future, needed in list(self._waiting_safe.items()):
                    if needed <= position and not future.done():
                        future.set_result(None)
            case Resumed():
                if self._resumed is not None and not self._resumed.done():
                    self._resumed.set_result(None)
            case _:
                pass  # What was discarded is of interest to the trace alone.

    def _no_room(self) -> None:
        hub = self._hub
        if hub.holds_publishers:
            hub.full[self._slow] = None
            self._slow.room.clear()
        elif not self._paused:
            self._paused = True
            asyncio.get_running_loop().call_soon(self._pause)

    def _pause(self) -> None:
        if self._paused and not self._closed and self._lost is None:
            self._command(lambda node, _now: node.pause())

    def _end(self, reason: str) -> None:
        """End reading for good: the chain or the keeper does not know this subscription any more."""
        self._lost = SubscriptionLost(
            f"subscription {self.name!r} is over: {_WHY_LOST.get(reason, reason)}", reason=reason
        )
        for future in (*self._joining.values(), *self._waiting_safe, self._resumed):
            if future is not None:
                fail(future, self._lost)
        self._wake()

    def _refused(self, topics: tuple[str, ...], reason: str) -> None:
        for topic in topics:
            self._asked.pop(topic, None)
            self._fail_joining(
                topic, SubscriptionRefused(f"{topic!r} was refused: {reason}", reason=reason)
            )

    def _fail_joining(self, topic: str, error: Exception) -> None:
        future = self._joining.pop(topic, None)
        if future is not None:
            fail(future, error)

    def _handled(self, position: int) -> None:
        if position not in self._unacknowledged:
            return
        del self._unacknowledged[position]
        acknowledges = self.durable or not self._automatic
        if self._driver is not None and acknowledges and not self._closed and self._lost is None:
            # The unbroken run ends before the first that is open, or with all handed out.
            first = next(iter(self._unacknowledged), self._handed_out + 1)
            if first > position:
                self._acknowledged = first - 1
                self._command(lambda node, _now: node.acknowledge(first - 1))
        self._relieve()

    def _relieve(self) -> None:
        if self._paused and self.pending <= self.pending_max // 2:
            self._paused = False
            if not self._closed and self._lost is None:
                self._command(lambda node, now: node.resume(now_ns=now))
        if self._slow in self._hub.full and self.pending <= self.pending_max // 2:
            del self._hub.full[self._slow]
            self._slow.room.set()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _has_left(node: Reader) -> bool:
    """Whether nobody has to be told any more that a subscription is over."""
    return not isinstance(node, Subscriber) or not any(node.waits({}))
