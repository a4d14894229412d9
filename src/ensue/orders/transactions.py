"""Transactions: brokers route by content and commit in two phases.

An application does not choose this order: it calls `bus.transaction` on a bus of any order.
"""

from typing import TYPE_CHECKING, Any

from ensue.orders.base import Guarantee, PublisherNode, SubscriptionOptions
from ensue.protocols.interface import Frame

if TYPE_CHECKING:
    from ensue.runtime.hub_memory import Hub
    from ensue.simulation.deployments.base import Deployment
    from ensue.simulation.scenario import Scenario

__all__ = ["Transactions"]


class Transactions(Guarantee):
    """All operations of a transaction take effect, or none."""

    name = "transactions"
    value = None
    is_offered = False
    has_content_brokers = True

    async def publisher(self, hub: "Hub", name: str) -> PublisherNode:
        """Refuse: no bus is in this order."""
        raise NotImplementedError(f"{hub}, {name}")

    def subscriber(self, hub: "Hub", wanted: SubscriptionOptions) -> Any:
        """Refuse: no bus is in this order."""
        raise NotImplementedError(f"{hub}, {wanted}")

    def deployment(self) -> "type[Deployment]":
        """Return an overlay of brokers and its clients."""
        from ensue.simulation.deployments.transactions import TransactionDeployment

        return TransactionDeployment

    def draw(self, seed: int) -> "Scenario":
        """Return the random scenario of a seed."""
        from ensue.simulation.swarms.transactions import draw

        return draw(seed)

    def frames(self) -> tuple[type[Frame], ...]:
        """Return the frames between brokers and clients."""
        from ensue.protocols.transactions.frames import FRAMES

        return FRAMES
