"""Put the nodes of a scenario into a world: the same protocol objects as in production.

Chain nodes talk to each other over numbered links; everybody else repeats requests. A subscriber
that replies is two nodes, one that subscribes and one that publishes, and one name in the trace.
"""

from collections.abc import Callable, Mapping
from hashlib import blake2b

import msgspec

from ensue.protocols.core import Deliver, Node, Outcome
from ensue.protocols.link import Linked
from ensue.protocols.sequencer.node import SequencerNode
from ensue.protocols.sequencer.placement import Placement
from ensue.protocols.sequencer.publisher import Publisher
from ensue.protocols.sequencer.subscriber import Subscriber
from ensue.protocols.station import FRAMES, UNNUMBERED, Station
from ensue.protocols.topic_log import TopicLog
from ensue.protocols.unordered import UnorderedPublisher, UnorderedSubscriber
from ensue.recorder import Recorder
from ensue.simulation.disks import DiskConfig
from ensue.simulation.process import Factory
from ensue.simulation.scenario import Rate, Scenario, SubscriberSpec
from ensue.simulation.world import World
from ensue.wire import Codec

__all__ = ["Deployment", "Roles"]

SECOND_NS = 1_000_000_000

Records = Mapping[str, bytes]


class Roles(msgspec.Struct, frozen=True, kw_only=True):
    """The classes that play the parts; tests put broken ones in their place."""

    node: type[SequencerNode] = SequencerNode
    publisher: type[Publisher] = Publisher
    subscriber: type[Subscriber] = Subscriber
    ens: type[TopicLog] = TopicLog
    station: type[Station] = Station


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
        self.placement = Placement(
            [each.name for each in scenario.chain],
            topics={each.name: each.topics for each in scenario.chain},
        )
        self._codec = Codec(FRAMES)
        self._ens = [each.name for each in scenario.ens]
        self.world = World(
            seed,
            network=scenario.network,
            disk=scenario.disk,
            queueing=scenario.queueing,
            codec=self._codec if encode else None,
            recorder=recorder,
            on_outcome=self._outcome,
            ens_for=self.ens_for,
        )
        # What a client persisted and what its application was told are one here: a crash leaves
        # both or neither, so that the trace tells what the application knows.
        self._client_disk = DiskConfig(sync=scenario.disk.sync, crash_loses_all=True)
        self._repliers: dict[str, SubscriberSpec] = {}
        self._workload = self.world.stream("workload")
        self._add_nodes()
        self._schedule()

    def ens_for(self, topic: str) -> str:
        """Return the node that keeps a topic."""
        if self.scenario.sequencer.carries:
            return self.placement.node(topic)
        digest = blake2b(topic.encode(), digest_size=8, salt=b"ens").digest()
        return self._ens[int.from_bytes(digest, "big") % len(self._ens)]

    # -- Nodes ----------------------------------------------------------------------------------

    def _add_nodes(self) -> None:
        scenario, world = self.scenario, self.world
        for each in () if scenario.sequencer.carries else scenario.ens:
            world.add(each.name, self._ens_factory(each.name), site=each.site)
        if scenario.order == "total":
            for node in scenario.chain:
                clock = scenario.clocks.get(node.name)
                world.add(node.name, self._chain_factory(node.name), site=node.site, clock=clock)
        for publisher in scenario.publishers:
            self._add_publisher(publisher.name, publisher.name, publisher.site)
        for subscriber in scenario.subscribers:
            world.add(
                subscriber.name,
                self._subscriber_factory(subscriber.name),
                site=subscriber.site,
                clock=scenario.clocks.get(subscriber.name),
                disk=self._client_disk,
            )
            if subscriber.replies:
                self._repliers[subscriber.name] = subscriber
                self._add_publisher(_replier(subscriber.name), subscriber.name, subscriber.site)

    def _add_publisher(self, name: str, seen_as: str, site: str) -> None:
        clock = self.scenario.clocks.get(seen_as)
        factory = self._publisher_factory(name)
        self.world.add(
            name, factory, site=site, clock=clock, seen_as=seen_as, disk=self._client_disk
        )

    def _ens_factory(self, name: str) -> Factory:
        scenario, role = self.scenario, self.roles.ens
        return lambda records, _now: role(name=name, config=scenario.ens_config, records=records)

    def _chain_factory(self, name: str) -> Factory:
        scenario, placement, role = self.scenario, self.placement, self.roles.node
        stage = placement.nodes.index(name)
        neighbours = placement.nodes[max(0, stage - 1) : stage + 2]
        peers = [each for each in neighbours if each != name]

        def build(records: Records, now_ns: int) -> Node:
            def inner(own: Records) -> Node:
                if scenario.sequencer.carries:
                    return self.roles.station(
                        name=name,
                        placement=placement,
                        config=scenario.sequencer,
                        ens_config=scenario.ens_config,
                        records=own,
                        now_ns=now_ns,
                    )
                return role(
                    name=name,
                    placement=placement,
                    config=scenario.sequencer,
                    records=own,
                    now_ns=now_ns,
                )

            return Linked(
                inner,
                peers=peers,
                codec=self._codec,
                unnumbered=UNNUMBERED,
                config=scenario.link,
                records=records,
                now_ns=now_ns,
            )

        return build

    def _publisher_factory(self, name: str) -> Factory:
        if self.scenario.order == "none":
            return lambda _records, _now: UnorderedPublisher(name=name)
        return self._client_factory(self.roles.publisher, name)

    def _subscriber_factory(self, name: str) -> Factory:
        if self.scenario.order == "none":
            return lambda _records, _now: UnorderedSubscriber(name=name)
        return self._client_factory(self.roles.subscriber, name)

    def _client_factory(self, role: type[Publisher] | type[Subscriber], name: str) -> Factory:
        def build(records: Records, now_ns: int) -> Node:
            return role(
                name=name,
                placement=self.placement,
                config=self.scenario.sequencer,
                records=records,
                now_ns=now_ns,
            )

        return build

    # -- What happens ---------------------------------------------------------------------------

    def _schedule(self) -> None:
        scenario, world = self.scenario, self.world
        for subscriber in scenario.subscribers:
            self._schedule_changes(subscriber)
        for publisher in scenario.publishers:
            for publication in publisher.events:
                for topic in publication.topics:
                    publish = _publish(topic, bytes(publication.size))
                    world.call(publisher.name, publish, at_ns=publication.at_ns)
            for rate in publisher.rates:
                self._schedule_rate(publisher.name, rate)
        world.inject(scenario.faults)
        for vanish in scenario.vanish:
            world.schedule(vanish.at_ns, world.remove, (vanish.publisher,))

    def _schedule_changes(self, subscriber: SubscriberSpec) -> None:
        name, call = subscriber.name, self.world.call
        if subscriber.topics and self.scenario.sequencer.fixed is None:
            call(name, _subscribe(subscriber.topics))
        for change in subscriber.changes:
            call(name, _unsubscribe(change.unsubscribe), at_ns=change.at_ns)
            call(name, _subscribe(change.subscribe), at_ns=change.at_ns)

    def _schedule_rate(self, publisher: str, rate: Rate) -> None:
        """Draw the times of a rate: exponential gaps, as of many independent causes."""
        until_ns = self.scenario.duration_ns if rate.until_ns is None else rate.until_ns
        at_ns = float(rate.from_ns)
        while True:
            at_ns += self._workload.expovariate(rate.per_second) * SECOND_NS
            if at_ns >= until_ns:
                return
            topic = self._workload.choice(rate.topics)
            self.world.call(publisher, _publish(topic, bytes(rate.size)), at_ns=int(at_ns))

    def _outcome(self, name: str, outcome: Outcome) -> None:
        if not isinstance(outcome, Deliver) or name not in self._repliers:
            return
        for reply in self._repliers[name].replies:
            event = outcome.event
            if event.topic == reply.on and self._workload.random() < reply.share:
                self.world.call(_replier(name), _publish(reply.topic, event.payload))


def _replier(subscriber: str) -> str:
    """Name the node that publishes a subscriber's replies."""
    return f"{subscriber}.replies"


def _publish(topic: str, payload: bytes) -> Callable[[Publisher, int], object]:
    return lambda node, now_ns: node.publish(topic, payload, now_ns=now_ns)


def _subscribe(topics: tuple[str, ...]) -> Callable[[Subscriber, int], object]:
    return lambda node, now_ns: node.subscribe(topics, now_ns=now_ns)


def _unsubscribe(topics: tuple[str, ...]) -> Callable[[Subscriber, int], object]:
    return lambda node, now_ns: node.unsubscribe(topics, now_ns=now_ns)
