"""A subscription: events one at a time, in order, with room for a stated number.

An event is handed out when it is asked for, and never lost by cancelling: a task cancelled while it
waits has taken nothing. Acknowledging is automatic by default: asking for the next event says that
the last one was handled. With `acknowledge="manual"` each event is acknowledged by `ack`, in any
order; what counts is the unbroken run from the start.

Back-pressure: events handed out and not acknowledged, and events not yet handed out, count as
pending. At `pending_max` publishers to these topics wait until half of that is handled.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Literal, Self

from ensue.errors import BadInput, LocalProtocolError, SubscriptionRefused
from ensue.event import Stamp
from ensue.order import Order, Total
from ensue.protocols.core import Deliver, Join, Leave, Outcome, Refuse
from ensue.protocols.sequencer.subscriber import Subscriber
from ensue.protocols.unordered import UnorderedSubscriber
from ensue.runtime.driver import Driver
from ensue.runtime.hub import Hub, Slow
from ensue.runtime.names import check_text

__all__ = ["Acknowledge", "ReceivedEvent", "Subscription"]

Acknowledge = Literal["auto", "manual"]
_log = logging.getLogger("ensue")


class ReceivedEvent:
    """An event as a subscriber gets it."""

    __slots__ = ("_subscription", "event", "position", "verdict")

    def __init__(self, subscription: "Subscription", delivery: Deliver) -> None:
        self._subscription = subscription
        self.event = delivery.event
        self.position = delivery.position
        """1, 2, 3, … in this subscription."""
        self.verdict = delivery.verdict
        """Empty, or `out_of_order` for an event that turned up too late for its place."""

    @property
    def topic(self) -> str:
        """The topic it was published on."""
        return self.event.topic

    @property
    def payload(self) -> bytes:
        """What was published."""
        return self.event.payload

    @property
    def key(self) -> bytes | None:
        """The key it was published with."""
        return self.event.key

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers it was published with."""
        return self.event.headers

    @property
    def publisher(self) -> str:
        """Who published it."""
        return self.event.publisher

    @property
    def id(self) -> str:
        """The event's unique id."""
        return self.event.id

    @property
    def stamp(self) -> Stamp | None:
        """The logical timestamp it travelled with."""
        return self.event.stamp

    async def ack(self) -> None:
        """Say that this event has been handled. Saying it twice is harmless."""
        self._subscription.acknowledge(self.position)

    def __repr__(self) -> str:
        tag = f" {self.verdict}" if self.verdict else ""
        return f"<ReceivedEvent {self.position}: {self.id}{tag}>"


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
    ) -> None:
        if pending_max < 1:
            raise BadInput(f"pending_max must be at least 1, not {pending_max}")
        if acknowledge not in ("auto", "manual"):
            raise BadInput(f"acknowledge must be 'auto' or 'manual', not {acknowledge!r}")
        if name is not None:
            check_text(name, "a subscription's name")
        self.order = order
        self.pending_max = pending_max
        self._hub = hub
        self._client = client
        self._wanted_name = name
        self._topics = topics
        self._automatic = acknowledge == "auto"
        self._driver: Driver[Subscriber | UnorderedSubscriber] | None = None
        self._slow = Slow(name or "")
        self._queue: deque[Deliver] = deque()
        self._unacknowledged: dict[int, None] = {}
        self._joining: dict[str, asyncio.Future[None]] = {}
        self._waiter: asyncio.Future[None] | None = None
        self._closed = False

    @property
    def name(self) -> str:
        """The name of this subscription, in traces and warnings."""
        return self._slow.name

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics in effect."""
        return () if self._driver is None else self._driver.node.topics

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
        return 0 if self._driver is None else self._driver.node.held_count

    async def __aenter__(self) -> Self:
        if self._driver is not None:
            raise LocalProtocolError("a subscription is entered once")
        hub = self._hub
        # On the chain a subscription is new each time, whatever people call it.
        own_name = hub.unique(f"{self._client}.subscription")
        self._slow.name = self._wanted_name or own_name
        node: Subscriber | UnorderedSubscriber
        if isinstance(self.order, Total):
            node = Subscriber(
                name=own_name,
                placement=hub.placement,
                config=hub.subscriber_config(self.order),
                acknowledge_each=not self._automatic,
                now_ns=hub.clock.now_ns(),
            )
        else:
            node = UnorderedSubscriber(name=own_name)
        self._driver = Driver(
            node,
            transport=hub.transport,
            clock=hub.clock,
            on_outcome=self._outcome,
            recorder=hub.recorder,
            seen_as=self._client,
            subscription=self.name,
            size_of=hub.size_of,
        )
        try:
            await self.subscribe(*self._topics)
        except BaseException:
            self.close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    async def subscribe(self, *topics: str) -> None:
        """Add topics; returns when events published from now on will be delivered."""
        check_topics(topics)
        loop = asyncio.get_running_loop()
        joined = self.topics
        waiting = []
        for topic in topics:
            if topic in joined:
                continue
            future = self._joining.get(topic)
            if future is None:
                future = self._joining[topic] = loop.create_future()
            waiting.append(future)
        self._open_driver().command(lambda node, now: node.subscribe(topics, now_ns=now))
        for future in waiting:
            await asyncio.shield(future)

    async def unsubscribe(self, *topics: str) -> None:
        """Leave topics: nothing of them is handed out any more."""
        check_topics(topics)
        self._open_driver().command(lambda node, now: node.unsubscribe(topics, now_ns=now))
        left = frozenset(topics)
        self._queue = deque(each for each in self._queue if each.event.topic not in left)
        self._relieve()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedEvent:
        if self._automatic and self._unacknowledged:
            self.acknowledge(next(iter(self._unacknowledged)))
        while not self._queue:
            if self._closed:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        # Nothing is awaited from here on, so a cancelled task has not taken the event.
        delivery = self._queue.popleft()
        self._unacknowledged[delivery.position] = None
        return ReceivedEvent(self, delivery)

    def acknowledge(self, position: int) -> None:
        """Say that the event at a position has been handled."""
        if self._unacknowledged.pop(position, 0) is None and self._driver is not None:
            first = next(iter(self._unacknowledged), position + 1)
            if first > position and not self._automatic and not self._closed:
                self._driver.command(lambda node, _now: node.acknowledge(first - 1))
            self._relieve()

    def close(self) -> None:
        """Leave all topics. What was received can still be read; then iteration ends."""
        if self._closed:
            return
        self._closed = True
        self._hub.full.pop(self._slow, None)
        self._slow.room.set()
        driver = self._driver
        if driver is not None:
            driver.command(lambda node, now: node.unsubscribe(self._all_topics(), now_ns=now))
            driver.close()
        for future in self._joining.values():
            future.cancel()
        self._wake()

    def _all_topics(self) -> tuple[str, ...]:
        return (*self.topics, *self._joining)

    def _open_driver(self) -> Driver[Subscriber | UnorderedSubscriber]:
        if self._driver is None or self._closed:
            raise LocalProtocolError(
                "the subscription is not open: use it inside `async with bus.subscribe(…)`"
            )
        return self._driver

    def _outcome(self, outcome: Outcome) -> None:
        match outcome:
            case Deliver():
                self._queue.append(outcome)
                if self.pending >= self.pending_max:
                    self._hub.full[self._slow] = None
                    self._slow.room.clear()
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
            case Refuse(topics=topics, reason=reason):
                self._refused(topics, reason)
            case _:
                pass  # What was discarded is of interest to the trace alone.

    def _refused(self, topics: tuple[str, ...], reason: str) -> None:
        for topic in topics:
            future = self._joining.pop(topic, None)
            if future is not None and not future.done():
                future.set_exception(
                    SubscriptionRefused(f"{topic!r} was refused: {reason}", reason=reason)
                )

    def _relieve(self) -> None:
        if self._slow in self._hub.full and self.pending <= self.pending_max // 2:
            del self._hub.full[self._slow]
            self._slow.room.set()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def check_topics(topics: tuple[str, ...]) -> None:
    """Refuse what can't be a topic."""
    if not topics:
        raise BadInput("name at least one topic")
    for topic in topics:
        check_text(topic, "a topic")
