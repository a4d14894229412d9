"""An order in its own package: each publisher's events in batches, the latest of a batch first.

No application needs it. It shows that a new order is one package and one registration: see
`ensue.orders`.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec
from tests.orders.toy.deployment import BatchDeployment, BatchesTable, draw
from tests.orders.toy.frames import EndOfBatch
from tests.orders.toy.order import Batches
from tests.orders.toy.publisher import BatchPublisher
from tests.orders.toy.subscriber import BatchSubscriber

from ensue.core.order import Order
from ensue.orders import Guarantee, Option, PublisherNode, SubscriptionOptions
from ensue.orders.base import named_as_options
from ensue.protocols.interface import Frame
from ensue.protocols.topic_log import fanout, frames
from ensue.protocols.topic_log.frames import TopicFrame
from ensue.runtime.hub_memory import Hub
from ensue.simulation.deployments.base import Deployment
from ensue.simulation.scenario import Scenario

__all__ = ["BatchOrder", "Batches"]


class BatchOrder(Guarantee):
    """Batches of events of one publisher and topic, each in reverse."""

    name = "batches"
    value = Batches
    has_topic_log = True
    uses_topics_alone = True
    options: ClassVar[tuple[Option, ...]] = (
        Option(name="--size", metavar="EVENTS", help="events in a batch.", kind=int),
    )

    async def publisher(self, hub: Hub, name: str) -> PublisherNode:
        del hub
        return BatchPublisher(name=name)

    def subscriber(self, hub: Hub, wanted: SubscriptionOptions) -> Any:
        order = wanted.order if isinstance(wanted.order, Batches) else hub.order
        assert isinstance(order, Batches)
        return BatchSubscriber(name=wanted.name, size=order.size)

    def unordered_refusal(self, transport: str) -> str | None:
        return f"{transport} has events of this bus in batches alone: leave order=None out"

    def topic_frames(self) -> tuple[type[TopicFrame], ...]:
        return (EndOfBatch,)

    def from_options(self, given: Mapping[str, Any]) -> Order:
        with named_as_options():
            return Batches() if given["--size"] is None else Batches(size=given["--size"])

    def deployment(self) -> type[Deployment]:
        return BatchDeployment

    def draw(self, seed: int) -> Scenario:
        return draw(seed)

    def frames(self) -> tuple[type[Frame], ...]:
        return (*frames.FRAMES, *fanout.FRAMES, EndOfBatch)

    def scenario_table(self) -> type[msgspec.Struct]:
        return BatchesTable
