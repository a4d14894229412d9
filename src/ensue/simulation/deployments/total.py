"""Total order in a world: a chain, its notification service, and clients.

Chain nodes talk to each other over numbered links; all others repeat requests. A subscriber that
replies is two nodes, one that subscribes and one that publishes, and one name in the trace.

With cells (`SequencerConfig.cells`) events are by content: the topics of publishers stand for the
attributes of events, as in `symbol = 'a' and price = 3`, and those of subscribers for filters.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from ensue import orders
from ensue.checkers import Report, Verdict, check, content_cells
from ensue.checkers.content_filters import attributes_of
from ensue.core.event import Event
from ensue.core.trace import Row
from ensue.core.wire import Codec
from ensue.protocols.content.cells import Match, headers_of
from ensue.protocols.content.filters.filter import Attributes
from ensue.protocols.content.filters.parser import parse
from ensue.protocols.interface import Node
from ensue.protocols.shared.link import Linked
from ensue.protocols.topic_log.log import TopicLog
from ensue.protocols.total.config import SequencerConfig
from ensue.protocols.total.frames import MoveRequest
from ensue.protocols.total.placement import Placement
from ensue.protocols.total.publisher import Publisher
from ensue.protocols.total.sequencer import Sequencer
from ensue.protocols.total.station import FRAMES, UNNUMBERED, Station, StationConfig
from ensue.protocols.total.subscriber import Subscriber
from ensue.simulation.deployments.topic_log import Records, TopicLogDeployment
from ensue.simulation.scenario import Scenario, SubscriberSpec
from ensue.simulation.text import at_site, duration, listed
from ensue.simulation.world.driver import Command
from ensue.simulation.world.process import Factory

__all__ = ["TotalDeployment"]

NOTICE_NS = 50_000_000
"""Within so long a server notices that a connection was made or lost, …"""
OPERATOR = "operator"
"""Asks for moves of topics."""
MOVE_REQUESTS = 30
MOVE_RETRY_NS = 100_000_000
NOTICED = 0.9
"""… if it does: a machine that is gone closes nothing."""


class TotalDeployment(TopicLogDeployment):
    """A chain of sequencers, a notification service or its own logs, and clients."""

    def _prepare(self) -> Codec:
        scenario = self.scenario
        self.placement = Placement(
            [each.name for each in scenario.chain],
            topics={each.name: each.topics for each in scenario.chain},
        )
        super()._prepare()
        self._cells = scenario.sequencer.partition
        self._filters = {
            (each.name, each.name): filters[0]
            for each in scenario.subscribers
            if (filters := (*each.topics, *(one for c in each.changes for one in c.subscribe)))
        }
        """By subscriber: its filter, or the first of its topics."""
        self._attributes: dict[str, Attributes] = {}
        """By event by content: its attributes."""
        self._codec = Codec(FRAMES)
        return self._codec

    def ens_for(self, topic: str) -> str:
        """Return the node that keeps a topic."""
        if self.scenario.sequencer.carries:
            return self.placement.node(topic)
        return super().ens_for(topic)

    # -- Nodes ----------------------------------------------------------------------------------

    def _add_servers(self) -> None:
        scenario, world = self.scenario, self.world
        if scenario.sequencer.carries:
            # Servers see the connections of their clients.
            world.on_down = self._lose
            world.on_up = self._regain
        else:
            super()._add_servers()
        for node in scenario.chain:
            clock = self._clock(node.name)
            world.add(node.name, self._chain_factory(node.name), site=node.site, clock=clock)
        for number, move in enumerate(scenario.moves, 1):
            self._schedule_move(
                MoveRequest(number=number, topic=move.topic, to=move.to), move.at_ns
            )

    def _schedule_move(self, request: MoveRequest, at_ns: int) -> None:
        """Ask the first node of the chain for a move, again and again."""
        first = self.placement.nodes[0]

        def ask(node: Any, now_ns: int) -> None:
            node.receive(request, source=OPERATOR, now_ns=now_ns)

        for count in range(MOVE_REQUESTS):
            self.world.call(first, ask, at_ns=at_ns + count * MOVE_RETRY_NS)

    def _own_placement(self) -> Placement:
        """Return the placement of one node: where topics move, each learns of that itself."""
        return self.placement.copy() if self.scenario.moves else self.placement

    def _chain_factory(self, name: str) -> Factory:
        scenario, role = self.scenario, self.roles.node
        placement = self.placement
        stage = placement.nodes.index(name)
        neighbors = placement.nodes[max(0, stage - 1) : stage + 2]
        peers = [each for each in neighbors if each != name]

        def build(records: Records, now_ns: int) -> Node:
            def inner(own: Records) -> Node:
                if scenario.sequencer.carries:
                    return self.roles.station(
                        name=name,
                        placement=self._own_placement(),
                        config=scenario.sequencer,
                        station_config=StationConfig(moves=scenario.move),
                        topic_log_config=scenario.topic_log_config,
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
        return self._client_factory(self.roles.publisher, name)

    def _subscriber_factory(self, name: str) -> Factory:
        where = None if self._cells is None else self._filters.get((name, name))
        return self._client_factory(self.roles.subscriber, name, where)

    def _client_factory(
        self, role: type[Publisher] | type[Subscriber], name: str, where: str | None = None
    ) -> Factory:
        def build(records: Records, now_ns: int) -> Node:
            by_content: dict[str, Any] = {} if where is None else {"matches": Match(parse(where))}
            return role(
                name=name,
                placement=self._own_placement(),
                config=self.scenario.sequencer,
                records=records,
                now_ns=now_ns,
                **by_content,
            )

        return build

    # -- Events by content ----------------------------------------------------------------------

    def _publishing(self, topic: str, payload: bytes) -> Command:
        cells = self._cells
        if cells is None:
            return super()._publishing(topic, payload)
        attributes = attributes_of(topic)

        def publish(node: Any, now_ns: int) -> None:
            cell, headers = cells.topic_of(attributes), headers_of(attributes)
            event = node.publish(cell, payload, now_ns=now_ns, headers=headers)
            self._attributes[event.id] = attributes

        return publish

    def _schedule_changes(self, subscriber: SubscriberSpec) -> None:
        if self._cells is not None:
            changes = tuple(
                msgspec.structs.replace(
                    each,
                    subscribe=self._cells_of(each.subscribe),
                    unsubscribe=self._cells_of(each.unsubscribe),
                )
                for each in subscriber.changes
            )
            subscriber = msgspec.structs.replace(
                subscriber, topics=self._cells_of(subscriber.topics), changes=changes
            )
        super()._schedule_changes(subscriber)

    def _cells_of(self, filters: tuple[str, ...]) -> tuple[str, ...]:
        assert self._cells is not None
        return tuple(topic for each in filters for topic in self._cells.topics_in(parse(each)))

    # -- Connections ----------------------------------------------------------------------------

    def _lose(self, name: str) -> None:
        """Let servers notice, in a while, that a publisher is gone; some of them never do."""

        def lose(node: Any, now_ns: int) -> None:
            for part in _parts(node):
                if isinstance(part, Sequencer):
                    part.lose(name, now_ns=now_ns)

        self._notice(name, lose)

    def _regain(self, name: str) -> None:
        """Let servers notice that a publisher is back, sometimes before they miss it."""
        if name in self.placement.nodes:
            self._notice_peer(name)

        def regain(node: Any, _now_ns: int) -> None:
            for part in _parts(node):
                if isinstance(part, Sequencer):
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

    def _notice_peer(self, name: str) -> None:
        """Let the other servers notice, in a while, that a server is connected."""
        if not self.scenario.moves:
            return

        def greet(node: Any, _now_ns: int) -> None:
            for part in _parts(node):
                if isinstance(part, Sequencer):
                    part.moves.greet(name)

        random = self.world.stream("peers")
        for server in self.placement.nodes:
            if server != name:
                at_ns = self.world.now_ns + random.randrange(NOTICE_NS)
                self.world.call(server, greet, at_ns=at_ns)

    # -- In words -------------------------------------------------------------------------------

    @classmethod
    def describe_nodes(cls, scenario: Scenario) -> Iterator[str]:
        """Describe the nodes besides publishers and subscribers."""
        for node in scenario.chain:
            hosted = listed(node.topics, "by hash")
            yield f"  chain node {node.name}{at_site(node.site)} hosts {hosted}"
        yield from super().describe_nodes(scenario)

    @classmethod
    def describe_settings(cls, scenario: Scenario) -> Iterator[str]:
        """Describe the configuration of the protocol."""
        yield _sequencer(scenario.sequencer)

    @classmethod
    def order_label(cls, scenario: Scenario) -> str:
        """Return whether the chain keeps causal order, too."""
        return orders.log_order(scenario.sequencer)

    # -- What came of it ------------------------------------------------------------------------

    def judge(self, rows: list[Row]) -> Report:
        """Judge the trace by what this chain promises."""
        scenario, config = self.scenario, self.scenario.sequencer
        # All topics of a subscription are ordered, with nothing given up.
        causal = config.groups == 1 and config.reliable and config.publisher_order
        report = check(
            rows,
            order=self.order_label(scenario),
            causal=causal,
            lossy=not scenario.topic_log_config.keeps_log,
        )
        if self._cells is None:
            return report
        finding = content_cells.judge(rows, self._attributes, self._filters)
        return msgspec.structs.replace(
            report,
            verdict=Verdict.worst((report.verdict, finding.verdict)),
            findings=(*report.findings, finding),
        )

    def events(self) -> Iterator[tuple[int, Event]]:
        """Yield what the nodes of the notification service hold."""
        for name in self.world.names():
            for part in _parts(self.world.node(name)):
                if isinstance(part, TopicLog):
                    yield from part.contents()

    def waits(self) -> Iterator[str]:
        """Yield which node still waits for what."""
        world = self.world
        yield from super().waits()
        ends: dict[str, int] = {}
        nodes: list[tuple[str, Node | None]] = []
        for name in world.names():
            for part in _parts(world.node(name)):
                nodes.append((name, part))
                if isinstance(part, TopicLog):
                    for topic, end in part.ends().items():
                        ends[topic] = max(end, ends.get(topic, 0))
        for name, node in nodes:
            if isinstance(node, Publisher) and node.unsettled_count:
                yield f"{name} has {node.unsettled_count} unsettled events"
            elif isinstance(node, Sequencer) and (node.moves.frozen or node.coordinator.active):
                yield f"{name} moves {node.moves.frozen or node.coordinator.active}"
            elif isinstance(node, Sequencer) and node.open_count:
                yield f"{name} has {node.open_count} open stamps"
            elif isinstance(node, Subscriber):
                yield from (f"{name} {why}" for why in node.waits(ends))


def _parts(node: Node | None) -> tuple[Node | None, ...]:
    """Return what a process runs: a station is a sequencer node and a log."""
    inner = node.inner if isinstance(node, Linked) else node
    return (inner.node, inner.log) if isinstance(inner, Station) else (inner,)


def _sequencer(chain: SequencerConfig) -> str:
    return (
        f"  sequencer: groups {chain.groups}, {'reliable' if chain.reliable else 'unreliable'}, "
        f"{'leaves out' if chain.leave_out else 'sends all'} entries, "
        f"publishers' order kept {'across topics' if chain.publisher_order else 'within a topic'}, "
        f"lease {duration(chain.lease_ns)}, retry {duration(chain.retry_ns)}, "
        f"gap {duration(chain.gap_ns)}, window {chain.window}, held_max {chain.held_max}"
    )
