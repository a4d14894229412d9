"""Adds the nodes of a scenario to a world: the protocol objects of production.

This module has what all protocols share: the world, the publications and subscriptions, the replies
and the faults. A protocol adds a subclass in its own module (`total`, `causal`, `merged`,
`deadline`, `transactions`), which defines the nodes (`_add_nodes`), their frames (`_prepare`), how
to judge a trace (`judge`) and which nodes still wait (`waits`). `ensue.orders` has the subclass of
each order, for `run`, `seeds`, the command line and Spark.
"""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from ensue.checkers import Report
from ensue.core.event import Event
from ensue.core.trace import Row
from ensue.core.wire import Codec
from ensue.protocols.causal.node import CausalNode
from ensue.protocols.deadline.broker import DeadlineBroker
from ensue.protocols.deadline.subscriber import DeadlineSubscriber
from ensue.protocols.interface import Deliver, Outcome
from ensue.protocols.merged.publisher import MergedPublisher
from ensue.protocols.merged.relay import MergedRelay
from ensue.protocols.merged.subscriber import MergedSubscriber
from ensue.protocols.recorder import Recorder
from ensue.protocols.topic_log.log import TopicLog
from ensue.protocols.total.publisher import Publisher
from ensue.protocols.total.sequencer import Sequencer
from ensue.protocols.total.station import Station
from ensue.protocols.total.subscriber import Subscriber
from ensue.protocols.transactions.broker import TransactionBroker
from ensue.protocols.transactions.client import TransactionClient
from ensue.simulation.scenario import Rate, Scenario, SubscriberSpec
from ensue.simulation.world.disks import DiskConfig
from ensue.simulation.world.driver import Command
from ensue.simulation.world.world import World

__all__ = ["Deployment", "Roles"]

SECOND_NS = 1_000_000_000


class Roles(msgspec.Struct, frozen=True, kw_only=True):
    """The classes of the nodes; tests replace them by broken ones."""

    node: type[Sequencer] = Sequencer
    publisher: type[Publisher] = Publisher
    subscriber: type[Subscriber] = Subscriber
    ens: type[TopicLog] = TopicLog
    station: type[Station] = Station
    cube: type[CausalNode] = CausalNode
    merge_publisher: type[MergedPublisher] = MergedPublisher
    merge_relay: type[MergedRelay] = MergedRelay
    merge_subscriber: type[MergedSubscriber] = MergedSubscriber
    broker: type[TransactionBroker] = TransactionBroker
    content_client: type[TransactionClient] = TransactionClient
    gossip_broker: type[DeadlineBroker] = DeadlineBroker
    gossip_subscriber: type[DeadlineSubscriber] = DeadlineSubscriber


class Deployment:
    """A scenario in a world, ready to run.

    `encode` sends every frame as bytes, which also gives sizes to the trace.
    """

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        *,
        recorder: Recorder | None = None,
        encode: bool = False,
        roles: Roles | None = None,
    ) -> None:
        self.scenario = scenario
        self.roles = roles or Roles()
        codec = self._prepare()
        self.world = World(
            seed,
            network=scenario.network,
            disk=scenario.disk,
            queueing=scenario.queueing,
            codec=codec if encode else None,
            recorder=recorder,
            on_outcome=self._outcome,
            ens_for=self.ens_for,
        )
        # A crash keeps both the records of a client and what reached its application, or neither,
        # so that the trace matches what the application knows.
        self._client_disk = DiskConfig(sync=scenario.disk.sync, crash_loses_all=True)
        self._repliers = {each.name: each for each in scenario.subscribers if each.replies}
        self._workload = self.world.stream("workload")
        self._add_nodes()
        self._schedule()

    # -- Defined by a protocol --------------------------------------------------------------------

    def _prepare(self) -> Codec:
        """Prepare before the world exists, and return the codec of all frames."""
        raise NotImplementedError

    def _add_nodes(self) -> None:
        """Add all nodes to the world."""
        raise NotImplementedError

    def ens_for(self, topic: str) -> str:
        """Return the node that keeps a topic, if the protocol has such nodes."""
        raise NotImplementedError(topic)

    def judge(self, rows: list[Row]) -> Report:
        """Judge the trace by what was promised."""
        raise NotImplementedError

    def events(self) -> Iterator[tuple[int, Event]]:
        """Yield every event that is kept at the end, each with its slot in its topic."""
        raise NotImplementedError

    def waits(self) -> Iterator[str]:
        """Yield which node still waits for what; a protocol adds its own."""
        yield from (f"{name} has yet to act" for name in self.world.busy())

    def _replier(self, subscriber: str) -> str:
        """Name the node that publishes a subscriber's replies."""
        return f"{subscriber}.replies"

    @classmethod
    def describe_nodes(cls, scenario: Scenario) -> Iterator[str]:
        """Describe the nodes besides publishers and subscribers."""
        del scenario
        yield from ()

    @classmethod
    def order_label(cls, scenario: Scenario) -> str:
        """Return the name in traces of the order that the run promises."""
        return scenario.order

    @classmethod
    def describe_settings(cls, scenario: Scenario) -> Iterator[str]:
        """Describe the configuration of the protocol."""
        del scenario
        yield from ()

    # -- What happens ---------------------------------------------------------------------------

    def _schedule(self) -> None:
        scenario, world = self.scenario, self.world
        for subscriber in scenario.subscribers:
            self._schedule_changes(subscriber)
        for publisher in scenario.publishers:
            for publication in publisher.events:
                for topic in publication.topics:
                    publish = self._publishing(topic, bytes(publication.size))
                    world.call(publisher.name, publish, at_ns=publication.at_ns)
            for rate in publisher.rates:
                self._schedule_rate(publisher.name, rate)
        world.inject(scenario.faults)
        for vanish in scenario.vanish:
            world.schedule(vanish.at_ns, world.remove, (vanish.publisher,))

    def _schedule_changes(self, subscriber: SubscriberSpec) -> None:
        name, call = subscriber.name, self.world.call
        if subscriber.topics and self.scenario.sequencer.fixed is None:
            call(name, self._subscribing(name, subscriber.topics))
        for change in subscriber.changes:
            call(name, _unsubscribe(change.unsubscribe), at_ns=change.at_ns)
            call(name, self._subscribing(name, change.subscribe), at_ns=change.at_ns)

    def _schedule_rate(self, publisher: str, rate: Rate) -> None:
        """Publish at the times of a rate."""
        for at_ns in self._arrivals(rate.per_second, rate.from_ns, rate.until_ns):
            topic = self._workload.choice(rate.topics)
            publish = self._publishing(topic, bytes(rate.size))
            self.world.call(publisher, publish, at_ns=at_ns)

    def _arrivals(self, per_second: float, from_ns: int, until_ns: int | None) -> Iterator[int]:
        """Draw the times of a rate: exponential gaps, as of many independent causes."""
        end_ns = self.scenario.duration_ns if until_ns is None else until_ns
        at_ns = float(from_ns)
        while (at_ns := at_ns + self._workload.expovariate(per_second) * SECOND_NS) < end_ns:
            yield int(at_ns)

    def _outcome(self, name: str, outcome: Outcome) -> None:
        if not isinstance(outcome, Deliver) or name not in self._repliers:
            return
        for reply in self._repliers[name].replies:
            event = outcome.event
            if event.topic == reply.on and self._workload.random() < reply.share:
                publish = self._publishing(reply.topic, event.payload)
                self.world.call(self._replier(name), publish)

    def _publishing(self, topic: str, payload: bytes) -> Command:
        """Return what publishes an event."""
        return lambda node, now_ns: node.publish(topic, payload, now_ns=now_ns)

    def _subscribing(self, subscriber: str, topics: tuple[str, ...]) -> Command:  # noqa: ARG002
        """Return what subscribes a node to topics."""
        return lambda node, now_ns: node.subscribe(topics, now_ns=now_ns)


def _unsubscribe(topics: tuple[str, ...]) -> Callable[[Any, int], object]:
    return lambda node, now_ns: node.unsubscribe(topics, now_ns=now_ns)
