"""Causal order: buses are nodes of a hypercube and send events to each other."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ensue.core.clock import Clock
from ensue.core.order import Causal
from ensue.orders.base import Guarantee, PublisherNode, RelayedFrame, SubscriptionOptions
from ensue.protocols.interface import Frame

if TYPE_CHECKING:
    from ensue.runtime.hub_memory import Hub
    from ensue.runtime.memory_membership import MemoryMembership
    from ensue.simulation.deployments.base import Deployment
    from ensue.simulation.scenario import Scenario
    from ensue.transports.framed import FramedTransport

__all__ = ["CausalOrder"]


class CausalOrder(Guarantee):
    """No effect before its cause, without a broker between clients."""

    name = "causal"
    value = Causal
    shares_node = True

    async def publisher(self, hub: "Hub", name: str) -> PublisherNode:
        """Return a node of the hypercube, known to all others."""
        return await hub.admit(name)

    def subscriber(self, hub: "Hub", wanted: SubscriptionOptions) -> Any:
        """Refuse: subscriptions share the node of their bus."""
        raise NotImplementedError(f"{hub.order}: {wanted.name} shares the node of its bus")

    def unreliable_frames(self) -> tuple[type[Frame], ...]:
        """Return the frames that loss and jitter of `memory://` apply to."""
        from ensue.protocols.causal.frames import Publication

        return (Publication,)

    def membership(self, order: Causal) -> "MemoryMembership[Any]":
        """Return the membership of a hub in memory."""
        from ensue.runtime.causal_nodes import causal_membership

        return causal_membership(order)

    async def enroll(
        self,
        transport: "FramedTransport",
        *,
        name: str,
        registry: str,
        order: Causal,
        clock: Clock,
    ) -> PublisherNode:
        """Register the node of a new bus with a registry; return the node."""
        from ensue.runtime.causal_nodes import register_causal_node

        return await register_causal_node(
            transport, name=name, registry=registry, order=order, clock=clock
        )

    def relayed_frames(self) -> Mapping[type[Frame], RelayedFrame]:
        """Return the frames between nodes; publications and fills have events."""
        from ensue.protocols.causal.frames import FRAMES, Fill, Publication

        items = RelayedFrame(events=lambda frame: [item.event for item in frame.items])
        return {**dict.fromkeys(FRAMES, RelayedFrame()), Publication: items, Fill: items}

    def registries(self) -> Mapping[str, bool]:
        """Return the registries that servers need."""
        return {"causal": True, "causal-topic": False}

    def deployment(self) -> "type[Deployment]":
        """Return the nodes of a hypercube."""
        from ensue.simulation.deployments.causal import CausalDeployment

        return CausalDeployment

    def draw(self, seed: int) -> "Scenario":
        """Return the random scenario of a seed."""
        from ensue.simulation.swarms.causal import draw

        return draw(seed)

    def frames(self) -> tuple[type[Frame], ...]:
        """Return the frames between nodes."""
        from ensue.protocols.causal.frames import FRAMES

        return FRAMES
