"""Deadline order: buses are brokers of their subscriptions, and late events are dropped."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ensue.core.clock import Clock
from ensue.core.errors import BadInput
from ensue.core.order import Deadline, Order
from ensue.orders.base import (
    LATE,
    Guarantee,
    Option,
    PublisherNode,
    RelayedFrame,
    SubscriptionOptions,
    named_as_options,
)
from ensue.protocols.interface import Frame

if TYPE_CHECKING:
    from ensue.runtime.hub_memory import Hub
    from ensue.runtime.memory_membership import MemoryMembership
    from ensue.simulation.deployments.base import Deployment
    from ensue.simulation.scenario import Scenario
    from ensue.transports.framed import FramedTransport

__all__ = ["DeadlineOrder"]


class DeadlineOrder(Guarantee):
    """Causal and on time, or dropped."""

    name = "deadline"
    value = Deadline
    shares_node = True
    has_deadlines = True
    options = (
        Option(
            name="--ms",
            metavar="MILLISECONDS",
            help="how long an event is of use, the same for all clients.",
        ),
        LATE,
    )
    is_lossy = True

    def from_options(self, given: Mapping[str, Any]) -> Order:
        """Return the order with the lifetime of the options."""
        if given["--ms"] is None:
            raise BadInput(
                "--order deadline needs the lifetime of events, the same for all clients, such as "
                "--ms 200"
            )
        with named_as_options():
            return Deadline(ms=given["--ms"], on_late=given["--late"] or "drop")

    def disagreement(self, publishes: Deadline, wanted: Deadline) -> str | None:
        """Return why a subscription can't have another deadline than its bus."""
        if (publishes.ms, publishes.held_max) == (wanted.ms, wanted.held_max):
            return None
        return (
            f"events on this bus have a lifetime of {publishes.ms:g} ms: a subscription must have "
            "the same; it may have another on_late"
        )

    def hands_over_late(self, order: Deadline | None) -> bool:
        """Return whether a subscription gets late events too, tagged; without order it does."""
        return order is None or order.on_late == "tag"

    async def publisher(self, hub: "Hub", name: str) -> PublisherNode:
        """Return a broker, known to all others."""
        return await hub.admit(name)

    def subscriber(self, hub: "Hub", wanted: SubscriptionOptions) -> Any:
        """Refuse: subscriptions share the node of their bus."""
        raise NotImplementedError(f"{hub.order}: {wanted.name} shares the node of its bus")

    def unreliable_frames(self) -> tuple[type[Frame], ...]:
        """Return the frames that loss and jitter of `memory://` apply to."""
        from ensue.protocols.deadline.frames import Message

        return (Message,)

    def membership(self, order: Deadline) -> "MemoryMembership[Any]":
        """Return the membership of a hub in memory."""
        from ensue.runtime.deadline_nodes import deadline_membership

        return deadline_membership(order)

    async def enroll(
        self,
        transport: "FramedTransport",
        *,
        name: str,
        registry: str,
        order: Deadline,
        clock: Clock,
    ) -> PublisherNode:
        """Register the node of a new bus with a registry; return the node."""
        from ensue.runtime.deadline_nodes import register_deadline_broker

        return await register_deadline_broker(
            transport, name=name, registry=registry, order=order, clock=clock
        )

    def relayed_frames(self) -> Mapping[type[Frame], RelayedFrame]:
        """Return the frames between brokers; a message has one event, stamped by clocks."""
        from ensue.protocols.deadline.frames import BETWEEN_BROKERS, Message

        message = RelayedFrame(events=lambda frame: (frame.event,), stamped=True)
        return {**dict.fromkeys(BETWEEN_BROKERS, RelayedFrame()), Message: message}

    def registries(self) -> Mapping[str, bool]:
        """Return the registries that servers need."""
        return {"deadline": False}

    def deployment(self) -> "type[Deployment]":
        """Return brokers that publish, and subscribers that get their gossip."""
        from ensue.simulation.deployments.deadline import DeadlineDeployment

        return DeadlineDeployment

    def draw(self, seed: int) -> "Scenario":
        """Return the random scenario of a seed."""
        from ensue.simulation.swarms.deadline import draw

        return draw(seed)

    def frames(self) -> tuple[type[Frame], ...]:
        """Return the frames between brokers, and between subscribers."""
        from ensue.protocols.deadline.frames import FRAMES

        return FRAMES
