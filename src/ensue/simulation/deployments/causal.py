"""Causal order in a world: every publisher and subscriber is a node of one cube.

There is no chain and no topic log. A subscriber that replies publishes with its own node. Nodes
know each other from the start, or they register (`Scenario.registry`), as processes do. When a node
vanishes, all others remove it after a while, as a registry does.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from ensue.checkers import Report, Verdict, check
from ensue.core.event import Event
from ensue.core.order import Causal
from ensue.core.trace import Row
from ensue.core.wire import Codec
from ensue.protocols.causal.config import CausalConfig
from ensue.protocols.causal.frames import FRAMES, Counts, raise_counts
from ensue.protocols.causal.node import CausalNode
from ensue.protocols.causal.registered import RegisteredNode
from ensue.protocols.interface import Node, Outcome
from ensue.protocols.membership import frames as membership_frames
from ensue.protocols.membership.client import KnownMembers
from ensue.protocols.topic_log.frames import Put
from ensue.simulation.deployments.base import Deployment
from ensue.simulation.deployments.registered import (
    RegisteredClients,
    describe_registry,
    ended_in,
)
from ensue.simulation.scenario import Scenario
from ensue.simulation.text import duration
from ensue.simulation.world.driver import Command
from ensue.simulation.world.process import Factory

__all__ = ["CausalDeployment"]

Records = Mapping[str, bytes]

EXPIRE_NS = 40_000_000_000
"""How long after it vanished a node is taken for gone: longer than others wait for what it alone
had."""


class CausalDeployment(Deployment):
    """The nodes of a cube, numbered as in the scenario: publishers, then subscribers."""

    def _prepare(self) -> Codec:
        scenario = self.scenario
        people = [(each.name, each.site) for each in scenario.publishers]
        self._sites = dict(people + [(each.name, each.site) for each in scenario.subscribers])
        self._names = list(self._sites)
        # What an application published is written into the trace as it would be put on a wire.
        self._clients: RegisteredClients | None = None
        return Codec((*FRAMES, *membership_frames.FRAMES, Put))

    def _add_nodes(self) -> None:
        scenario = self.scenario
        if scenario.registry is not None:
            across = scenario.hypercube.across_topics
            self._clients = RegisteredClients(
                scenario.registry, self.world, order=scenario.order, across=across
            )
        for name, site in self._sites.items():
            clock = scenario.clocks.get(name)
            if self._clients is not None:
                self._clients.add(name, self._registered, site=site, clock=clock)
                continue
            factory = self._factory(name)
            self.world.add(name, factory, site=site, clock=clock, disk=self._client_disk)

    def _schedule(self) -> None:
        super()._schedule()
        if self._clients is not None:
            return  # The registry evicts clients that vanished.
        for vanish in self.scenario.vanish:
            for name in self._names:
                if name != vanish.publisher:
                    at_ns = vanish.at_ns + EXPIRE_NS
                    self.world.call(name, _dismiss(vanish.publisher), at_ns=at_ns)

    def _factory(self, name: str) -> Factory:
        role, names, config = self.roles.cube, self._names, self.scenario.hypercube

        def build(records: Records, now_ns: int) -> Node:
            return role(name=name, names=names, config=config, records=records, now_ns=now_ns)

        return build

    def _registered(self, name: str, members: KnownMembers, now_ns: int) -> RegisteredNode:
        registry = self.scenario.registry
        assert registry is not None
        config = msgspec.structs.replace(self.scenario.hypercube, durable=False)
        return RegisteredNode(
            name=name, registry=registry.name, members=members, config=config, now_ns=now_ns
        )

    def _outcome(self, name: str, outcome: Outcome) -> None:
        super()._outcome(name, outcome)
        if self._clients is not None:
            self._clients.outcome(name, outcome)

    def _replier(self, subscriber: str) -> str:
        return subscriber

    def judge(self, rows: list[Row]) -> Report:
        """Judge the trace by the order across topics, or within each."""
        order = Causal(across_topics=self.scenario.hypercube.across_topics).label
        gone = {each.publisher for each in self.scenario.vanish}
        if self._clients is not None:
            gone = ended_in(rows)
        if not gone:
            published = sum(row.action == "published" for row in rows)
            if published <= self.scenario.hypercube.retained_max:
                rows = [row for row in rows if not _tells_of_a_miss(row)]
            return check(rows, order=order)
        whole = check(rows, order=order, lossy=True)
        owed = _owed(rows, gone)
        nothing = all(row.action != "delivered" for row in owed)
        return whole if nothing or whole.verdict is Verdict.INVALID else check(owed, order=order)

    @classmethod
    def describe_settings(cls, scenario: Scenario) -> Iterator[str]:
        """Describe the configuration of the protocol."""
        yield _cube(scenario.hypercube)
        if scenario.registry is not None:
            yield from describe_registry(scenario.registry)

    def events(self) -> Iterator[tuple[int, Event]]:
        """Yield nothing: there is no log, and no slots in one."""
        return iter(())

    def nodes(self) -> Iterator[CausalNode]:
        """Yield the nodes that are up."""
        if self._clients is not None:
            for process in self._clients.processes():
                if isinstance(process.node, RegisteredNode):
                    yield process.node.node
            return
        for name in self._names:
            node = self.world.node(name)
            if isinstance(node, CausalNode):
                yield node

    def waits(self) -> Iterator[str]:
        """Yield which node still waits for what: all members must be equally far."""
        yield from super().waits()
        if self._clients is not None:
            yield from self._clients.waits()
        yield from self._lags()
        for node in self.nodes():
            if node.unsettled_count:
                yield f"{node.name} has {node.unsettled_count} unsettled events"
            if node.held_count:
                yield f"{node.name} holds {node.held_count} events back"
            for topic in node.joining:
                yield f"{node.name} has not joined {topic}"

    def _lags(self) -> Iterator[str]:
        """Yield which node is behind the others, and how far."""
        furthest: dict[str, Counts] = {}
        for node in self.nodes():
            for topic, counts in node.seen().items():
                raise_counts(furthest.setdefault(topic, {}), counts)
        for node in self.nodes():
            for topic, counts in node.progress().items():
                for source, count in furthest[topic].items():
                    if counts.get(source, 0) < count:
                        yield (
                            f"{node.name} has {counts.get(source, 0)} of {count} events of "
                            f"number {source} on {topic}"
                        )


def _tells_of_a_miss(row: Row) -> bool:
    """Return whether a subscription reports a missed event.

    That is no excuse where every node keeps every event.
    """
    return row.action == "subscribed" and row.verdict == "missed"


def _owed(rows: list[Row], gone: set[str]) -> list[Row]:
    """Remove deliveries of events that were lost with all nodes that had them.

    Their publisher is gone too, so they are owed to no subscriber. Positions are removed as well,
    because removed deliveries leave gaps.
    """
    kept = {row.event for row in rows if row.action == "delivered" and row.node not in gone}
    return [
        msgspec.structs.replace(row, position=None)
        for row in rows
        if row.action != "delivered" or row.publisher not in gone or row.event in kept
    ]


def _dismiss(name: str) -> Command:
    def command(node: Any, now_ns: int) -> None:
        node.dismiss(name, now_ns=now_ns)

    return command


def _cube(cube: CausalConfig) -> str:
    return (
        f"  cube: order kept {'across topics' if cube.across_topics else 'within a topic'}, "
        f"retry {duration(cube.retry_ns)}, suspect {duration(cube.suspect_ns)}, "
        f"beat {duration(cube.beat_ns)}, digest {duration(cube.digest_ns)}, "
        f"gap {duration(cube.gap_ns)}, window {cube.window}, batch_max {cube.batch_max}, "
        f"held_max {cube.held_max}, retained_max {cube.retained_max}"
    )
