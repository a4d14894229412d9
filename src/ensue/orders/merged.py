"""Merged order: subscribers sort by the clock readings of publishers."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ensue.core.errors import BadInput
from ensue.core.order import Merged, Order
from ensue.orders.base import (
    LATE,
    Guarantee,
    Option,
    PublisherNode,
    SubscriptionOptions,
    named_as_options,
)
from ensue.protocols.interface import Frame

if TYPE_CHECKING:
    from ensue.protocols.merged.config import MergedConfig
    from ensue.runtime.hub_memory import Hub
    from ensue.simulation.deployments.base import Deployment
    from ensue.simulation.scenario import Scenario

__all__ = ["MergedOrder"]

SECOND_NS = 1_000_000_000


class MergedOrder(Guarantee):
    """Every subscriber merges the streams in the same causal order, by clocks alone."""

    name = "merged"
    value = Merged
    has_topic_log = True
    uses_topics_alone = True
    agrees_on_terms = True
    observes_stamps = True
    options = (
        Option(name="--epsilon", metavar="SECONDS", help="largest difference between two clocks."),
        Option(name="--delta", metavar="SECONDS", help="longest delay of an event."),
        LATE,
    )

    def disagreement(self, publishes: Merged, wanted: Merged) -> str | None:
        """Return why a subscription can't have other clocks than its bus."""
        if (publishes.epsilon, publishes.tick) == (wanted.epsilon, wanted.tick):
            return None
        return (
            f"this bus has epsilon={publishes.epsilon:g} and tick={publishes.tick:g}: a "
            "subscription must have the same; it may have another delta"
        )

    def topic_refusal(self, topic: str) -> str | None:
        """Return why a topic can't be told from the entries of a stamp; None if it can."""
        from ensue.protocols.merged.timestamps import topic_refusal

        return topic_refusal(topic)

    async def publisher(self, hub: "Hub", name: str) -> PublisherNode:
        """Return a publisher that stamps with its clock."""
        from ensue.protocols.merged.publisher import MergedPublisher

        assert isinstance(hub.order, Merged)
        return MergedPublisher(
            name=name,
            config=_config(hub.order),
            answered=hub.answers,
            fanouts=hub.fanouts,
            stamps_terms=hub.is_unattended,
            now_ns=hub.clock.now_ns(),
        )

    def subscriber(self, hub: "Hub", wanted: SubscriptionOptions) -> Any:
        """Return a subscriber that sorts, or without an order delivers events as they arrive.

        It has the terms of its bus, but may have another delta.
        """
        from ensue.protocols.merged.subscriber import MergedSubscriber

        assert isinstance(hub.order, Merged)
        order = wanted.order
        eager = not isinstance(order, Merged)
        return MergedSubscriber(
            name=wanted.name,
            config=_config(order if isinstance(order, Merged) else hub.order),
            terms=_config(hub.order).terms,
            eager=eager,
        )

    def from_options(self, given: Mapping[str, Any]) -> Order:
        """Return the order with the bounds of the options."""
        epsilon, delta = given["--epsilon"], given["--delta"]
        if epsilon is None or delta is None:
            raise BadInput(
                "--order merged needs the largest difference of clocks and the longest delay, the "
                "same for all clients, such as --epsilon 0.01 --delta 1"
            )
        late = "deliver" if given["--late"] == "tag" else "drop"
        with named_as_options():
            return Merged(epsilon=epsilon, delta=delta, late=late)

    def deployment(self) -> "type[Deployment]":
        """Return publishers, topic logs without order, and subscribers."""
        from ensue.simulation.deployments.merged import MergedDeployment

        return MergedDeployment

    def draw(self, seed: int) -> "Scenario":
        """Return the random scenario of a seed."""
        from ensue.simulation.swarms.merged import draw

        return draw(seed)

    def frames(self) -> tuple[type[Frame], ...]:
        """Return the frames of topic logs and fan-outs."""
        from ensue.protocols.topic_log import fanout, frames

        return (*frames.FRAMES, *fanout.FRAMES)


def _config(order: Merged) -> "MergedConfig":
    """Return the configuration of processes that persist nothing."""
    from ensue.protocols.merged.config import MergedConfig, ticks_of

    tick_ns = max(1, round(order.tick * SECOND_NS))
    return MergedConfig(
        epsilon_ticks=ticks_of(round(order.epsilon * SECOND_NS), tick_ns),
        delta_ticks=ticks_of(round(order.delta * SECOND_NS), tick_ns),
        tick_ns=tick_ns,
        deliver_late=order.late == "deliver",
        held_max=order.held_max,
        durable=False,
    )
