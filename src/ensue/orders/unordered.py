"""No order: events are delivered as they arrive."""

from typing import TYPE_CHECKING, Any

from ensue.core.order import Order
from ensue.orders.base import Guarantee, PublisherNode, SubscriptionOptions
from ensue.protocols.interface import Frame

if TYPE_CHECKING:
    from ensue.runtime.hub_memory import Hub
    from ensue.simulation.deployments.base import Deployment

__all__ = ["Unordered"]


class Unordered(Guarantee):
    """Each event once, as it arrives, as from a plain broker."""

    name = Order.name
    value = None
    has_topic_log = True
    uses_topics_alone = True
    is_searched = False

    async def publisher(self, hub: "Hub", name: str) -> PublisherNode:
        """Return a publisher that retransmits an event until the topic log has it."""
        from ensue.protocols.unordered.publisher import UnorderedPublisher

        del hub
        return UnorderedPublisher(name=name)

    def subscriber(self, hub: "Hub", wanted: SubscriptionOptions) -> Any:
        """Return a subscriber that delivers events as they arrive."""
        from ensue.protocols.unordered.subscriber import UnorderedSubscriber

        del hub
        return UnorderedSubscriber(name=wanted.name)

    def deployment(self) -> "type[Deployment]":
        """Return topic logs and clients."""
        from ensue.simulation.deployments.unordered import UnorderedDeployment

        return UnorderedDeployment

    def frames(self) -> tuple[type[Frame], ...]:
        """Return the frames of topic logs and fan-outs."""
        from ensue.protocols.topic_log import fanout, frames

        return (*frames.FRAMES, *fanout.FRAMES)
