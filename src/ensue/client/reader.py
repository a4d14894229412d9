"""The node behind a subscription, and the driver that runs it.

A subscription is one of four nodes: one that delivers as events arrive; one that delivers in total order; one that
does so and whose records are kept at a server, so that it can be resumed; or one that sorts by clocks.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from secrets import randbits
from typing import Any

from ensue.client.nodes import merge_subscriber, watched
from ensue.event import Event
from ensue.order import Merged, Order, Total
from ensue.protocols.core import Deliver, Outcome
from ensue.protocols.gossip.handing import GossipCounts
from ensue.protocols.kept import Kept
from ensue.protocols.merge.subscriber import MergeSubscriber
from ensue.protocols.merge.watching import MergeCounts
from ensue.protocols.sequencer.subscriber import UNASKED, Subscriber
from ensue.protocols.unordered import UnorderedCounts, UnorderedSubscriber
from ensue.runtime.driver import Driver
from ensue.runtime.hub import Hub

__all__ = ["Reader"]

Delivering = Subscriber | UnorderedSubscriber | MergeSubscriber
AnyNode = Delivering | Kept[Subscriber]


class Reader:
    """Runs the node of one subscription, called `name` on the chain."""

    def __init__(
        self,
        hub: Hub,
        *,
        name: str,
        order: Order | None,
        durable: bool,
        acknowledge_each: bool,
        start: int | None,
        accept_loss: bool = False,
    ) -> None:
        self.name = name
        self.durable = durable
        self.resumed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once commands can be given: at once, or when a durable one has its records."""
        self._hub = hub
        self._order = order
        self._acknowledge_each = acknowledge_each
        self._start = start
        self._accept_loss = accept_loss
        self._driver: Driver[AnyNode] | None = None
        self._paused = False

    @property
    def node(self) -> Delivering | None:
        """The node that delivers; None while its records are on their way."""
        if self._driver is None:
            return None
        node = self._driver.node
        return node.inner if isinstance(node, Kept) else node

    @property
    def started(self) -> bool:
        """Whether there is a node to be ended."""
        return self._driver is not None

    @property
    def counts(self) -> MergeCounts | GossipCounts | UnorderedCounts | None:
        """What became of the events that came, if those that are dropped stay lost."""
        node = self.node
        return node.counts if isinstance(node, MergeSubscriber | UnorderedSubscriber) else None

    async def open(
        self,
        *,
        client: str,
        subscription: str,
        on_outcomes: Callable[[Sequence[Outcome]], None],
    ) -> None:
        """Start the node; `client` and `subscription` name it in the trace."""
        hub = self._hub
        await hub.enter(self.name)
        if self.resumed.done():
            hub.leave(self.name)
            self.resumed.result()  # It was closed meanwhile: this raises.
        if not self.durable:
            self.resumed.set_result(None)
        if isinstance(hub.order, Merged):
            on_outcomes = watched(hub, client, subscription, on_outcomes)
        self._driver = Driver(
            self._make(),
            transport=hub.transport,
            clock=hub.clock,
            on_outcomes=on_outcomes,
            recorder=hub.recorder,
            seen_as=client,
            subscription=subscription,
            size_of=hub.size_of,
        )
        hub.watch(self._driver)
        await self.resumed

    @property
    def has_deadlines(self) -> bool:
        """Whether events may be late by the time they are handed over."""
        return False

    def hand_over(self, delivery: Deliver) -> Deliver | None:
        """Return what the application is handed of a delivery; None: nothing, it is late by now."""
        return delivery

    def check(self, event: Event, verdict: str) -> str | None:
        """Return the verdict on an event whose handler is called now; None: it is late, and dropped."""
        del event
        return verdict

    def leave_unread(self, deliveries: Iterable[Deliver], *, ended: bool) -> None:
        """Note that events are not handed over while the subscription to their topic lasts."""

    def command(self, call: Callable[[Any, int], object]) -> None:
        """Give the node that delivers a command."""
        assert self._driver is not None
        self._driver.command(
            lambda node, now: call(node.inner if isinstance(node, Kept) else node, now)
        )

    def pause(self) -> None:
        """Have nothing more delivered, at the end of this turn of the event loop."""
        if not self._paused:
            self._paused = True
            asyncio.get_running_loop().call_soon(self._pause)

    def resume(self) -> None:
        """Go on after a pause."""
        if self._paused:
            self._paused = False
            self.command(lambda node, now: node.resume(now_ns=now))

    def dismiss(self) -> None:
        """Have a durable subscription forgotten, once the chain knows that it has left."""
        assert self._driver is not None
        self._driver.command(lambda node, _now: node.dismiss(_has_left))  # type: ignore[union-attr]

    def retire(self, topics: tuple[str, ...]) -> None:
        """Leave topics, and end when the chain knows."""
        assert self._driver is not None
        try:
            self.command(lambda node, now: node.unsubscribe(topics, now_ns=now))
        finally:
            self._hub.retire(self._driver, _has_left)

    def rest(self, *, silently: bool = False) -> None:
        """End at once and keep the place in the chain, of a durable subscription or a lost one."""
        driver, node = self._driver, self.node
        assert driver is not None
        if not silently and isinstance(node, Subscriber):
            driver.command(lambda _node, _now: node.pause())
        driver.close()
        self._hub.leave(self.name)

    def _pause(self) -> None:
        if self._paused and self._driver is not None and not self._driver.closed:
            try:
                self.command(lambda node, _now: node.pause())
            except Exception as error:  # noqa: BLE001 - nobody called who could be told
                self._driver.fail(error)

    def _make(self) -> AnyNode:
        hub, order = self._hub, self._order
        if isinstance(order, Merged):
            assert isinstance(hub.order, Merged)
            return merge_subscriber(self.name, order, agreed=hub.order, eager=False)
        if isinstance(hub.order, Merged):
            return merge_subscriber(self.name, hub.order, agreed=hub.order, eager=True)
        if not isinstance(order, Total):
            return UnorderedSubscriber(name=self.name)
        config = hub.subscriber_config(order, durable=self.durable)

        def build(records: Mapping[str, bytes], now_ns: int) -> Subscriber:
            subscriber = Subscriber(
                name=self.name,
                placement=hub.placement,
                config=config,
                acknowledge_each=self._acknowledge_each,
                start=self._start,
                accept_loss=self._accept_loss,
                records=records,
                # A durable name may have been forgotten and be created anew: later is higher.
                life=now_ns if self.durable else 0,
                now_ns=now_ns,
            )
            question = None if hub.connections_tell_logs else UNASKED
            for node, log in hub.logs.items():
                subscriber.learn_log(node, log, now_ns=now_ns, question=question)
            return subscriber

        now_ns = hub.clock.now_ns()
        if not self.durable:
            return build({}, now_ns)
        keeper = hub.placement.keeper(self.name)
        return Kept(build, name=self.name, keeper=keeper, number=randbits(53), now_ns=now_ns)


def _has_left(node: AnyNode) -> bool:
    """Whether nobody has to be told any more that a subscription is over."""
    return not isinstance(node, Subscriber) or not any(node.waits({}))
