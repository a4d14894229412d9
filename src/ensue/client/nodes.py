"""Which protocol node stands behind a bus or a subscription, by the order that was asked for."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from ensue.client.alerts import log_alert
from ensue.errors import UnsupportedOrder
from ensue.order import Deadline, Merged, Order, Total, written
from ensue.protocols.core import Alert, Deliver, Outcome
from ensue.protocols.gossip.broker import GossipBroker
from ensue.protocols.hypercube.node import HypercubeNode
from ensue.protocols.merge.config import MergeConfig, ticks_of
from ensue.protocols.merge.publisher import MergePublisher
from ensue.protocols.merge.subscriber import MergeSubscriber
from ensue.protocols.sequencer.publisher import Publisher
from ensue.protocols.unordered import UnorderedPublisher
from ensue.runtime.hub import Hub

__all__ = [
    "AnyPublisher",
    "check_pair",
    "make_publisher",
    "merge_config",
    "merge_subscriber",
    "watched",
]

AnyPublisher: TypeAlias = (
    Publisher | UnorderedPublisher | MergePublisher | HypercubeNode | GossipBroker
)

SECOND_NS = 1_000_000_000


def merge_config(order: Merged) -> MergeConfig:
    """Return the configuration that a merged order stands for, of processes whose names die with them."""
    tick_ns = max(1, round(order.tick * SECOND_NS))
    return MergeConfig(
        epsilon_ticks=ticks_of(round(order.epsilon * SECOND_NS), tick_ns),
        delta_ticks=ticks_of(round(order.delta * SECOND_NS), tick_ns),
        tick_ns=tick_ns,
        deliver_late=order.late == "deliver",
        held_max=order.held_max,
        durable=False,
    )


async def make_publisher(hub: Hub, name: str, order: Order | None) -> AnyPublisher:
    """Return the node that publishes with an order."""
    if order is None:
        return UnorderedPublisher(name=name)
    if isinstance(order, Merged):
        return MergePublisher(
            name=name,
            config=merge_config(order),
            answered=hub.answers,
            exchanges=hub.exchanges,
            tells_terms=hub.is_unattended,
            now_ns=hub.clock.now_ns(),
        )
    if hub.has_cube:
        return await hub.admit(name)
    return Publisher(
        name=name,
        placement=hub.placement,
        config=hub.config,
        # The rest of a message is for names and lengths.
        request_bytes_max=hub.transport.capabilities.message_bytes_max // 2,
        now_ns=hub.clock.now_ns(),
    )


def check_pair(publishes: Order | None, wanted: Order | None, transport: str) -> None:
    """Refuse a subscription whose order nothing that is published on its bus has."""
    why = None
    if wanted is None:
        if isinstance(publishes, Total) and transport != "memory://":
            why = f"{transport} has events of this bus in total order alone: leave order=None out"
    elif publishes is None:
        why = f"this bus publishes with no order, so nothing on it has {wanted.name} order: {_fix(wanted)}"
    elif publishes.name != wanted.name:
        why = (
            f"this bus publishes in {publishes.name} order, so nothing on it has {wanted.name} order: "
            f"{_fix(wanted)}"
        )
    elif (
        isinstance(publishes, Merged)
        and isinstance(wanted, Merged)
        and (publishes.epsilon, publishes.tick) != (wanted.epsilon, wanted.tick)
    ):
        why = (
            f"this bus stamps for clocks that differ by {publishes.epsilon:g} s in ticks of "
            f"{publishes.tick:g} s: a subscription has to agree; it may choose another delta"
        )
    elif (
        isinstance(publishes, Deadline)
        and isinstance(wanted, Deadline)
        and (publishes.ms, publishes.held_max) != (wanted.ms, wanted.held_max)
    ):
        why = (
            f"events on this bus are of use for {publishes.ms:g} ms: a subscription has to agree; it may "
            "choose another on_late"
        )
    if why is not None:
        name = "none" if wanted is None else wanted.name
        raise UnsupportedOrder(why, order=name, transport=transport)


def _fix(wanted: Order) -> str:
    return f"leave order=… out here, or have a bus of connect(…, order={written(wanted)})"


def watched(
    hub: Hub, client: str, subscription: str, on_outcomes: Callable[[Sequence[Outcome]], None]
) -> Callable[[Sequence[Outcome]], None]:
    """Return what is told the outcomes of a subscription whose order depends on clocks.

    What is handed out before its turn is told to the client's publisher, so that its answers come after it. Alerts
    are logged.
    """

    def look_at(outcome: Outcome) -> None:
        if isinstance(outcome, Deliver) and outcome.verdict:
            observe = hub.observers.get(client)
            if observe is not None and outcome.event.stamp is not None:
                observe(outcome.event.stamp.entries)
        elif isinstance(outcome, Alert):
            log_alert(f"subscription {subscription!r}", outcome)

    def told(outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            look_at(outcome)
        on_outcomes(outcomes)

    return told


def merge_subscriber(name: str, order: Merged, *, agreed: Merged, eager: bool) -> MergeSubscriber:
    """Return the node of a subscription in merged order, or of one without order on a bus that has it.

    `agreed` is the order of its bus: a subscription may have another delta.
    """
    terms = merge_config(agreed).terms
    return MergeSubscriber(name=name, config=merge_config(order), terms=terms, eager=eager)
