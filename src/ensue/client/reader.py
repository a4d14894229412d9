"""Readers: the sources of a subscription's events.

`Reader` is the interface. `NodeReader` runs a protocol node for one subscription. In causal and
deadline order subscriptions share the node of their bus (`shared_node`); by content, they share its
content session (`content.reader`).
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ensue import orders
from ensue.client.clock_alerts import observed
from ensue.core.event import Event
from ensue.core.order import Order
from ensue.orders import SubscriberNode
from ensue.protocols.content.cells import ContentCounts
from ensue.protocols.deadline.delivery import DeadlineCounts
from ensue.protocols.interface import Deliver, Outcome
from ensue.protocols.merged.counts import MergedCounts
from ensue.protocols.shared.remote_state import RemoteState
from ensue.protocols.unordered.subscriber import UnorderedCounts
from ensue.runtime.driver import Driver
from ensue.runtime.hub_memory import Hub

__all__ = ["Counts", "NodeReader", "Reader"]

Counts = MergedCounts | DeadlineCounts | UnorderedCounts | ContentCounts


class Reader(ABC):
    """The source of one subscription's events."""

    watches_handover = False
    """Whether `hand_over` and `check` are called with each event that the application takes."""

    def __init__(self, name: str) -> None:
        self.name = name
        """Its name on the transport."""
        self.resumed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when it takes commands: at once, or when a durable one has its records."""

    @property
    @abstractmethod
    def node(self) -> Any:
        """The target of commands, with `topics` and `held_count`; None: not ready yet."""

    @property
    def started(self) -> bool:
        """Whether it was opened."""
        return self.node is not None

    @property
    def counts(self) -> Counts | None:
        """Numbers of late and dropped events; None: the order has none."""
        return None

    @abstractmethod
    async def open(
        self,
        *,
        client: str,
        subscription: str,
        on_outcomes: Callable[[Sequence[Outcome]], None],
    ) -> None:
        """Open the reader; `client` and `subscription` are its names in the trace."""

    @abstractmethod
    def command(self, call: Callable[[Any, int], object]) -> None:
        """Call a function with the node and the time."""

    @abstractmethod
    def pause(self) -> None:
        """Deliver nothing more from the end of this turn of the event loop."""

    @abstractmethod
    def resume(self) -> None:
        """Deliver again after a pause."""

    @abstractmethod
    def retire(self, topics: tuple[str, ...]) -> None:
        """Leave topics, and close."""

    @abstractmethod
    def rest(self, *, silently: bool = False) -> None:
        """Close at once; a durable subscription keeps its position."""

    def dismiss(self) -> None:
        """Tell the server to forget a durable subscription."""
        raise NotImplementedError

    def hand_over(self, delivery: Deliver) -> Deliver | None:
        """Return a delivery as the application gets it; None: its deadline has passed."""
        return delivery

    def check(self, event: Event, verdict: str) -> str | None:
        """Return the verdict on an event whose handler is about to run; None: it is late."""
        del event
        return verdict

    def leave_unread(  # noqa: B027 - most readers need nothing
        self, deliveries: Iterable[Deliver], *, ended: bool
    ) -> None:
        """Note that the application never gets these events; `ended`: nor any later ones."""


class NodeReader(Reader):
    """Runs a protocol node for one subscription.

    The records of a durable subscription are at a server, so that any process can resume it.
    """

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
        matches: Callable[[Event], bool] | None = None,
        pending_max: int = 0,
    ) -> None:
        super().__init__(name)
        self._durable = durable
        self._hub = hub
        self._wanted = orders.SubscriptionOptions(
            name=name,
            order=order,
            durable=durable,
            acknowledge_each=acknowledge_each,
            start=start,
            accept_loss=accept_loss,
            matches=matches,
            pending_max=pending_max,
        )
        self._driver: Driver[Any] | None = None
        self._paused = False

    @property
    def node(self) -> Any:
        """The node that delivers; None until its records have arrived."""
        if self._driver is None:
            return None
        node = self._driver.node
        return node.inner if isinstance(node, RemoteState) else node

    @property
    def started(self) -> bool:
        """Whether the node was started."""
        return self._driver is not None

    @property
    def counts(self) -> Counts | None:
        """Numbers of late and dropped events; None: the order has none."""
        counts: Counts | None = getattr(self.node, "counts", None)
        return counts

    async def open(
        self,
        *,
        client: str,
        subscription: str,
        on_outcomes: Callable[[Sequence[Outcome]], None],
    ) -> None:
        """Start the node, and wait for its records if it is durable."""
        hub = self._hub
        await hub.enter(self.name)
        if self.resumed.done():
            hub.leave(self.name)
            self.resumed.result()  # Closed in the meantime: this raises.
        if not self._durable:
            self.resumed.set_result(None)
        if orders.of(hub.order).observes_stamps:
            on_outcomes = observed(hub, client, subscription, on_outcomes)
        self._driver = Driver(
            orders.of(hub.order).subscriber(hub, self._wanted),
            transport=hub.transport,
            clock=hub.clock,
            on_outcomes=on_outcomes,
            recorder=hub.recorder,
            seen_as=client,
            subscription=subscription,
            size_of=hub.size_of,
        )
        hub.watch(self._driver, needs_log=not orders.of(hub.order).uses_topics_alone)
        await self.resumed

    def command(self, call: Callable[[Any, int], object]) -> None:
        """Call a function with the node that delivers, and the time."""
        assert self._driver is not None
        self._driver.command(
            lambda node, now: call(node.inner if isinstance(node, RemoteState) else node, now)
        )

    def pause(self) -> None:
        """Deliver nothing more from the end of this turn of the event loop."""
        if not self._paused:
            self._paused = True
            asyncio.get_running_loop().call_soon(self._pause)

    def resume(self) -> None:
        """Deliver again after a pause."""
        if self._paused:
            self._paused = False
            self.command(lambda node, now: node.resume(now_ns=now))

    def dismiss(self) -> None:
        """Tell the server to forget the subscription, once the chain knows that it has left."""
        assert self._driver is not None
        self._driver.command(lambda node, _now: node.dismiss(_has_left))

    def retire(self, topics: tuple[str, ...]) -> None:
        """Leave topics, and close when the chain knows that."""
        assert self._driver is not None
        try:
            self.command(lambda node, now: node.unsubscribe(topics, now_ns=now))
        finally:
            self._hub.retire(self._driver, _has_left)

    def rest(self, *, silently: bool = False) -> None:
        """Close at once, and keep the position of a durable subscription in the chain."""
        driver, node = self._driver, self.node
        assert driver is not None
        if not silently and node is not None:
            driver.command(lambda _node, _now: node.pause())
        driver.close()
        self._hub.leave(self.name)

    def _pause(self) -> None:
        if self._paused and self._driver is not None and not self._driver.closed:
            try:
                self.command(lambda node, _now: node.pause())
            except Exception as error:  # noqa: BLE001 - called by the event loop
                self._driver.fail(error)


def _has_left(node: SubscriberNode) -> bool:
    """Return whether all servers know that a subscription has left its topics."""
    return node.leave_confirmed
