"""Put the nodes of a scenario into a world: the same protocol objects as in production.

This is the joint at which a protocol meets the simulator. What every protocol has in common is here:
the world, who publishes and subscribes what and when, the replies, the faults. A protocol adds a subclass,
in a module of its own (`total`, `causal`, `merged`, `deadline`, `transactions`), which says which nodes there are
(`_add_nodes`), what their
frames are (`_prepare`), how a trace is judged (`judge`) and who still waits (`waits`); and a line in
`families`, from which `run`, `seeds`, the command line and Spark take it by its name.
"""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from ensue.checkers import Report
from ensue.event import Event
from ensue.protocols.core import Deliver, Outcome
from ensue.protocols.gossip.broker import GossipBroker
from ensue.protocols.gossip.subscriber import GossipSubscriber
from ensue.protocols.hypercube.node import HypercubeNode
from ensue.protocols.merge.publisher import MergePublisher
from ensue.protocols.merge.relay import MergeRelay
from ensue.protocols.merge.subscriber import MergeSubscriber
from ensue.protocols.sequencer.node import SequencerNode
from ensue.protocols.sequencer.publisher import Publisher
from ensue.protocols.sequencer.subscriber import Subscriber
from ensue.protocols.station import Station
from ensue.protocols.topic_log import TopicLog
from ensue.protocols.transactions.client import TransactionClient
from ensue.protocols.transactions.planner import TransactionBroker
from ensue.recorder import Recorder
from ensue.simulation.disks import DiskConfig
from ensue.simulation.driver import Command
from ensue.simulation.scenario import Rate, Scenario, SubscriberSpec
from ensue.simulation.world import World
from ensue.trace import Row
from ensue.wire import Codec

__all__ = ["Deployment", "Roles"]

SECOND_NS = 1_000_000_000


class Roles(msgspec.Struct, frozen=True, kw_only=True):
    """The classes that play the parts; tests put broken ones in their place."""

    node: type[SequencerNode] = SequencerNode
    publisher: type[Publisher] = Publisher
    subscriber: type[Subscriber] = Subscriber
    ens: type[TopicLog] = TopicLog
    station: type[Station] = Station
    cube: type[HypercubeNode] = HypercubeNode
    merge_publisher: type[MergePublisher] = MergePublisher
    merge_relay: type[MergeRelay] = MergeRelay
    merge_subscriber: type[MergeSubscriber] = MergeSubscriber
    broker: type[TransactionBroker] = TransactionBroker
    overlay_client: type[TransactionClient] = TransactionClient
    gossip_broker: type[GossipBroker] = GossipBroker
    gossip_subscriber: type[GossipSubscriber] = GossipSubscriber


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
        # What a client persisted and what its application was told are one here: a crash leaves
        # both or neither, so that the trace tells what the application knows.
        self._client_disk = DiskConfig(sync=scenario.disk.sync, crash_loses_all=True)
        self._repliers = {each.name: each for each in scenario.subscribers if each.replies}
        self._workload = self.world.stream("workload")
        self._add_nodes()
        self._schedule()

    # -- What a protocol says -------------------------------------------------------------------

    def _prepare(self) -> Codec:
        """Do what must be done before there is a world, and return the codec of all frames."""
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
        """Say who still waits for what; a protocol adds its own."""
        yield from (f"{name} has yet to act" for name in self.world.busy())

    def _replier(self, subscriber: str) -> str:
        """Name the node that publishes a subscriber's replies."""
        return f"{subscriber}.replies"

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
        """Draw the times of a rate: exponential gaps, as of many independent causes."""
        until_ns = self.scenario.duration_ns if rate.until_ns is None else rate.until_ns
        at_ns = float(rate.from_ns)
        while True:
            at_ns += self._workload.expovariate(rate.per_second) * SECOND_NS
            if at_ns >= until_ns:
                return
            topic = self._workload.choice(rate.topics)
            publish = self._publishing(topic, bytes(rate.size))
            self.world.call(publisher, publish, at_ns=int(at_ns))

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

    def _subscribing(self, subscriber: str, topics: tuple[str, ...]) -> Command:  # noqa: ARG002 - for those who choose
        """Return what subscribes somebody to topics."""
        return lambda node, now_ns: node.subscribe(topics, now_ns=now_ns)


def _unsubscribe(topics: tuple[str, ...]) -> Callable[[Any, int], object]:
    return lambda node, now_ns: node.unsubscribe(topics, now_ns=now_ns)
