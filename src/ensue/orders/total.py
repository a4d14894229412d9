"""Total order: a chain of sequencer nodes stamps every event."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ensue.core import platform
from ensue.core.order import Order, Total
from ensue.orders.base import Guarantee, Option, PublisherNode, SubscriptionOptions
from ensue.protocols.interface import Frame

if TYPE_CHECKING:
    from ensue.protocols.total.config import SequencerConfig
    from ensue.protocols.total.subscriber import Subscriber
    from ensue.runtime.hub_memory import Hub
    from ensue.simulation.deployments.base import Deployment
    from ensue.simulation.scenario import Scenario
    from ensue.spark.order_rules import OrderingRule
    from ensue.transports import Capabilities

__all__ = ["TotalOrder"]


class TotalOrder(Guarantee):
    """Two events reach all common subscribers in one order, whatever their topics."""

    name = "total"
    value = Total
    has_chain = True
    has_topic_log = True
    keeps_log = True
    orders_content = True
    options = (
        Option(
            name="--causal",
            metavar="yes|no",
            help="whether effects come after causes across topics (default: yes); no, for servers "
            "with causal = false.",
            kind=str,
            choices=("yes", "no"),
        ),
    )

    def refusal(
        self, order: Order | None, capabilities: "Capabilities", transport: str
    ) -> str | None:
        """Return why a transport can't carry the order: it can't send lost events again."""
        assert isinstance(order, Total)
        if order.time_to_live is None and not capabilities.replay:
            return (
                f"{transport} loses events and can't send them again, so total order would wait "
                "forever: set a limit with Total(time_to_live=SECONDS)"
            )
        return super().refusal(order, capabilities, transport)

    def disagreement(self, publishes: Order, wanted: Order) -> str | None:
        """Return why a subscription can't be causal: its bus is not."""
        assert isinstance(publishes, Total)
        assert isinstance(wanted, Total)
        if publishes.causal or not wanted.causal:
            return None
        return (
            "this bus has total order that is not causal, so its subscriptions can't be: leave "
            "order=… out, or use a bus of connect(…, order=ensue.Total())"
        )

    def chain_refusal(self, order: Order | None, chain: "SequencerConfig") -> str | None:
        """Return why a chain can't keep causal order: it groups topics by two subscriptions."""
        if chain.groups == 1 or (isinstance(order, Total) and not order.causal):
            return None
        return (
            "these servers don't keep causal order across topics (causal = false in their "
            "configuration): connect with order=ensue.Total(causal=False)"
        )

    def topic_groups(self, order: Order | None) -> int:
        """Return two for an order that need not be causal."""
        return 2 if isinstance(order, Total) and not order.causal else 1

    def log_order(self, chain: "SequencerConfig") -> str:
        """Return whether the logs are in causal order, too."""
        return Total(causal=chain.groups == 1).label

    def from_options(self, given: Mapping[str, Any]) -> Order:
        """Return the order, causal or not."""
        return Total(causal=given["--causal"] != "no")

    def unordered_refusal(self, transport: str) -> str | None:
        """Return why servers can't have a subscription without order: they stamp all events."""
        if transport == "memory://":
            return None
        return f"{transport} delivers events of this bus in total order only: leave order=None out"

    async def publisher(self, hub: "Hub", name: str) -> PublisherNode:
        """Return a client of the chain."""
        from ensue.protocols.total.publisher import Publisher

        return Publisher(
            name=name,
            placement=hub.placement,
            config=hub.config,
            # The other half is for names and lengths.
            request_bytes_max=hub.transport.capabilities.message_bytes_max // 2,
            now_ns=hub.clock.now_ns(),
        )

    def subscriber(self, hub: "Hub", wanted: SubscriptionOptions) -> Any:
        """Return a subscriber of the chain; the records of a durable one are at a server."""
        from ensue.protocols.shared.remote_state import RemoteState
        from ensue.protocols.total.known_logs import UNASKED
        from ensue.protocols.total.subscriber import Subscriber
        from ensue.protocols.unordered.subscriber import UnorderedSubscriber

        order = wanted.order
        if not isinstance(order, Total):
            return UnorderedSubscriber(name=wanted.name)
        config = hub.subscriber_config(order, durable=wanted.durable)

        def build(records: Mapping[str, bytes], now_ns: int) -> "Subscriber":
            subscriber = Subscriber(
                name=wanted.name,
                placement=hub.placement,
                config=config,
                acknowledge_each=wanted.acknowledge_each,
                start=wanted.start,
                accept_loss=wanted.accept_loss,
                matches=wanted.matches,
                room=wanted.pending_max,
                records=records,
                # A durable name may be forgotten and created again: a later life is higher.
                life=now_ns if wanted.durable else 0,
                now_ns=now_ns,
            )
            question = None if hub.connections_tell_logs else UNASKED
            for node, log in hub.logs.items():
                subscriber.learn_log(node, log, now_ns=now_ns, question=question)
            return subscriber

        now_ns = hub.clock.now_ns()
        if not wanted.durable:
            return build({}, now_ns)
        store = hub.placement.state_store(wanted.name)
        return RemoteState(
            build,
            name=wanted.name,
            store=store,
            number=platform.current().random_bits(53),
            now_ns=now_ns,
        )

    def deployment(self) -> "type[Deployment]":
        """Return a chain, its topic logs, and clients."""
        from ensue.simulation.deployments.total import TotalDeployment

        return TotalDeployment

    def draw(self, seed: int) -> "Scenario":
        """Return the random scenario of a seed."""
        from ensue.simulation.swarms.total import draw

        return draw(seed)

    def draws(self) -> "Mapping[str, Callable[[int], Scenario]]":
        """Return how to draw scenarios: causal or not, with topics that move, and by content."""
        from ensue.simulation.swarms import total_content
        from ensue.simulation.swarms.total import draw_moves, draw_noncausal

        draws = {
            "total-noncausal": draw_noncausal,
            "total-moves": draw_moves,
            "total-content": total_content.draw,
        }
        return {**super().draws(), **draws}

    def ordering_rules(self) -> "Mapping[str, OrderingRule]":
        """Return the rules for chains that keep causal order, and that don't."""
        from ensue.spark.order_rules import TotalRule
        from ensue.spark.vector_order import VectorRule

        return {"total": TotalRule(), "total-noncausal": VectorRule()}

    def frames(self) -> tuple[type[Frame], ...]:
        """Return the frames of the chain and of the topic log."""
        from ensue.protocols.total.frames import FRAMES

        return FRAMES
