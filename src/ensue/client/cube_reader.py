"""A subscription in causal order, or with deadlines: no node of its own, but a share in its bus's."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ensue.client.content_reader import ContentReader, Where
from ensue.client.reader import Reader
from ensue.client.shares import Share, Shares
from ensue.event import Event
from ensue.order import Causal, Deadline, Order
from ensue.protocols.core import Deliver, Outcome
from ensue.protocols.gossip.handing import GossipCounts
from ensue.runtime.hub import Hub

__all__ = ["CubeReader", "Reader", "make_reader"]


class CubeReader(Reader):
    """Has a share in the node of its client's bus."""

    def __init__(self, hub: Hub, *, name: str, client: str, order: Order | None) -> None:
        super().__init__(
            hub, name=name, order=hub.order, durable=False, acknowledge_each=False, start=None
        )
        self._shares: Shares = hub.shares[client]
        # Without an order whatever comes is handed over, in order or late.
        self._tags = not isinstance(order, Deadline) or order.on_late == "tag"
        self._share: Share | None = None

    @property
    def node(self) -> Any:
        """The share, which knows topics and positions as a node does."""
        return self._share

    @property
    def started(self) -> bool:
        """Whether there is a share to be ended."""
        return self._share is not None

    @property
    def counts(self) -> GossipCounts | None:
        """What became of the events that came, where there are deadlines."""
        return self._share.counts if self.has_deadlines and self._share is not None else None

    @property
    def has_deadlines(self) -> bool:
        """Whether events may be late by the time they are handed over."""
        return isinstance(self._hub.order, Deadline)

    async def open(
        self,
        *,
        client: str,
        subscription: str,
        on_outcomes: Callable[[Sequence[Outcome]], None],
    ) -> None:
        """Take the share."""
        del client
        self._share = self._shares.open(
            subscription=subscription,
            on_outcome=lambda outcome: on_outcomes((outcome,)),
            tags=self._tags,
        )
        self.resumed.set_result(None)
        await asyncio.sleep(0)

    def command(self, call: Callable[[Any, int], object]) -> None:
        """Give the share a command."""
        share = self._share
        assert share is not None
        self._shares.driver.command(lambda _node, now: call(share, now))

    def hand_over(self, delivery: Deliver) -> Deliver | None:
        """Return what the application is handed of a delivery; None: nothing, it is late by now."""
        return delivery if self._share is None else self._share.hand_over(delivery)

    def check(self, event: Event, verdict: str) -> str | None:
        """Return the verdict on an event whose handler is called now; None: it is late, and dropped."""
        return verdict if self._share is None else self._share.check(event, verdict)

    def leave_unread(self, deliveries: Iterable[Deliver], *, ended: bool) -> None:
        """Note that events are not handed over while the subscription to their topic lasts."""
        if self._share is not None:
            self._share.leave_unread(deliveries, ended=ended)

    def pause(self) -> None:
        """Have nothing more delivered, at the end of this turn of the event loop."""
        if self._share is not None:
            self._shares.pause(self._share)

    def resume(self) -> None:
        """Go on after a pause."""
        if self._share is not None:
            self._shares.resume(self._share)

    def retire(self, topics: tuple[str, ...]) -> None:
        """End the share."""
        del topics
        if self._share is not None:
            self._shares.close(self._share)

    def rest(self, *, silently: bool = False) -> None:
        """End the share."""
        del silently
        self.retire(())


def make_reader(
    hub: Hub,
    *,
    name: str,
    client: str,
    order: Order | None,
    durable: bool,
    acknowledge_each: bool,
    start: int | None,
    accept_loss: bool = False,
) -> Reader:
    """Return what stands behind a subscription."""
    if isinstance(order, Where):
        return ContentReader(hub, name=name, wanted=order)
    if isinstance(hub.order, Causal | Deadline):
        return CubeReader(hub, name=name, client=client, order=order)
    return Reader(
        hub,
        name=name,
        order=order,
        durable=durable,
        acknowledge_each=acknowledge_each,
        start=start,
        accept_loss=accept_loss,
    )
