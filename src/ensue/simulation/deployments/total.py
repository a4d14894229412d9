"""Total order in a world, and no order at all: a chain, its notification service, and clients.

Chain nodes talk to each other over numbered links; everybody else repeats requests. A subscriber
that replies is two nodes, one that subscribes and one that publishes, and one name in the trace.
"""

from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any

from ensue.checkers import Report, check
from ensue.event import Event
from ensue.protocols.core import Node
from ensue.protocols.link import Linked
from ensue.protocols.sequencer.node import SequencerNode
from ensue.protocols.sequencer.placement import Placement
from ensue.protocols.sequencer.publisher import Publisher
from ensue.protocols.sequencer.subscriber import Subscriber
from ensue.protocols.station import FRAMES, UNNUMBERED, Station
from ensue.protocols.topic_log import TopicLog
from ensue.protocols.unordered import UnorderedPublisher, UnorderedSubscriber
from ensue.simulation.deployment import Deployment
from ensue.simulation.driver import Command
from ensue.simulation.process import Factory
from ensue.trace import Row
from ensue.wire import Codec

__all__ = ["TotalDeployment"]

NOTICE_NS = 50_000_000
"""Within so long a server notices that a connection was made or lost, …"""
NOTICED = 0.9
"""… if it does: a machine that is gone closes nothing."""

Records = Mapping[str, bytes]


class TotalDeployment(Deployment):
    """A chain of sequencer nodes and its clients; with order `none`, the clients alone."""

    def _prepare(self) -> Codec:
        scenario = self.scenario
        self.placement = Placement(
            [each.name for each in scenario.chain],
            topics={each.name: each.topics for each in scenario.chain},
        )
        self._ens = [each.name for each in scenario.ens]
        self._codec = Codec(FRAMES)
        return self._codec

    def ens_for(self, topic: str) -> str:
        """Return the node that keeps a topic."""
        if self.scenario.sequencer.carries:
            return self.placement.node(topic)
        digest = blake2b(topic.encode(), digest_size=8, salt=b"ens").digest()
        return self._ens[int.from_bytes(digest, "big") % len(self._ens)]

    # -- Nodes ----------------------------------------------------------------------------------

    def _add_nodes(self) -> None:
        scenario, world = self.scenario, self.world
        if scenario.order == "total" and scenario.sequencer.carries:
            # Servers see the connections of their clients.
            world.on_down = self._lose
            world.on_up = self._regain
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
                self._add_publisher(
                    self._replier(subscriber.name), subscriber.name, subscriber.site
                )

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

    # -- Connections ----------------------------------------------------------------------------

    def _lose(self, name: str) -> None:
        """Let servers notice, in a while, that a publisher is gone; some of them never do."""

        def lose(node: Any, now_ns: int) -> None:
            for part in _parts(node):
                if isinstance(part, SequencerNode):
                    part.lose(name, now_ns=now_ns)

        self._notice(name, lose)

    def _regain(self, name: str) -> None:
        """Let servers notice that a publisher is back: sometimes before they notice that it was gone."""

        def regain(node: Any, _now_ns: int) -> None:
            for part in _parts(node):
                if isinstance(part, SequencerNode):
                    part.regain(name)

        self._notice(name, regain)

    def _notice(self, name: str, command: Command) -> None:
        if name in self.placement.nodes:
            return
        random = self.world.stream("connections")
        for server in self.placement.nodes:
            if random.random() < NOTICED:
                at_ns = self.world.now_ns + random.randrange(NOTICE_NS)
                self.world.call(server, command, at_ns=at_ns)

    # -- What came of it ------------------------------------------------------------------------

    def judge(self, rows: list[Row]) -> Report:
        """Judge the trace by what this chain promises."""
        scenario, config = self.scenario, self.scenario.sequencer
        # All topics of a subscription are ordered, with nothing given up.
        causal = config.groups == 1 and config.reliable and config.publisher_order
        return check(
            rows,
            order=scenario.order,
            causal=scenario.order == "total" and causal,
            lossy=not scenario.ens_config.keeps_log,
        )

    def events(self) -> Iterator[tuple[int, Event]]:
        """Yield what the nodes of the notification service hold."""
        for name in self.world.names():
            for part in _parts(self.world.node(name)):
                if isinstance(part, TopicLog):
                    yield from part.contents()

    def waits(self) -> Iterator[str]:
        """Say who still waits for what."""
        world = self.world
        yield from super().waits()
        ends: dict[str, int] = {}
        nodes: list[tuple[str, Node | None]] = []
        for name in world.names():
            for part in _parts(world.node(name)):
                nodes.append((name, part))
                if isinstance(part, TopicLog):
                    ends.update(part.ends())
        for name, node in nodes:
            if isinstance(node, Publisher | UnorderedPublisher) and node.unsettled_count:
                yield f"{name} has {node.unsettled_count} unsettled events"
            elif isinstance(node, SequencerNode) and node.open_count:
                yield f"{name} has {node.open_count} open stamps"
            elif isinstance(node, Subscriber):
                yield from (f"{name} {why}" for why in node.waits(ends))


def _parts(node: Node | None) -> tuple[Node | None, ...]:
    """Return what a process runs: a station is a sequencer node and a log."""
    inner = node.inner if isinstance(node, Linked) else node
    return (inner.node, inner.log) if isinstance(inner, Station) else (inner,)
