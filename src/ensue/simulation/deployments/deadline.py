"""Deadline order in a world: brokers that publish, subscribers that listen.

Every publisher is a broker. So is every subscriber that replies, and each one in `listening`: these
deliver by the matrix and publish, each as one node. All others get events in rounds of gossip, and
publish nothing. Where clients register (`Scenario.registry`), each of them is a broker, and there
is no gossip, as between processes.

What a node missed because it stood still is not judged: no node could have delivered it.
"""

from collections.abc import Iterator, Mapping

import msgspec

from ensue.checkers import Report, check
from ensue.core.event import Event
from ensue.core.trace import Row
from ensue.core.wire import Codec
from ensue.protocols.deadline.broker import DeadlineBroker
from ensue.protocols.deadline.frames import FRAMES
from ensue.protocols.deadline.registered import RegisteredBroker
from ensue.protocols.deadline.subscriber import DeadlineSubscriber
from ensue.protocols.interface import Node, Outcome
from ensue.protocols.membership import frames as membership_frames
from ensue.protocols.membership.client import KnownMembers
from ensue.protocols.topic_log.frames import Put
from ensue.simulation.deployments.base import Deployment
from ensue.simulation.deployments.registered import (
    RegisteredClients,
    client_of,
    describe_registry,
)
from ensue.simulation.scenario import DeadlineSpec, Scenario
from ensue.simulation.text import duration, listed
from ensue.simulation.world.driver import Command
from ensue.simulation.world.faults import Pause
from ensue.simulation.world.process import Factory

__all__ = ["MARK", "MARKS", "DeadlineDeployment", "without_stalls"]

Records = Mapping[str, bytes]

MARK, MARKS = "mark", ("red", "yellow", "blue")
"""A header of all events, where a subscriber filters by it, and its values in turn."""
REPLIES_MAX = 4
"""Replies to replies to replies, at the most, that a run waits for."""


class DeadlineDeployment(Deployment):
    """Brokers, numbered as they stand in the scenario, and subscribers."""

    def _prepare(self) -> Codec:
        scenario = self.scenario
        brokers = [(each.name, each.site) for each in scenario.publishers]
        brokers += [
            (each.name, each.site)
            for each in scenario.subscribers
            if scenario.registry is not None
            or each.replies
            or each.name in scenario.deadline.listening
        ]
        self._brokers = dict(brokers)
        self._clients: RegisteredClients | None = None
        self._marked = 0
        # What an application published is written into the trace as it would be put on a wire.
        return Codec((*FRAMES, *membership_frames.FRAMES, Put))

    def _add_nodes(self) -> None:
        scenario, world = self.scenario, self.world
        if scenario.registry is not None:
            terms = f"deadlines of {duration(scenario.deadline.config.lifetime_ns)}"
            self._clients = RegisteredClients(
                scenario.registry, world, order=scenario.order, terms=terms
            )
        for name, site in self._brokers.items():
            clock = scenario.clock_of(name)
            if self._clients is not None:
                self._clients.add(name, self._registered, site=site, clock=clock)
                continue
            factory = self._broker_factory(name, site)
            world.add(name, factory, site=site, clock=clock, disk=self._client_disk)
        for each in scenario.subscribers:
            if each.name not in self._brokers:
                clock = scenario.clock_of(each.name)
                factory = self._subscriber_factory(each.name, each.site)
                world.add(each.name, factory, site=each.site, clock=clock, disk=self._client_disk)

    def _broker_factory(self, name: str, site: str) -> Factory:
        role, names, deadline = (
            self.roles.gossip_broker,
            list(self._brokers),
            self.scenario.deadline,
        )
        lifetime_ns = deadline.lifetimes_ns.get(name, deadline.config.lifetime_ns)
        config = msgspec.structs.replace(deadline.config, lifetime_ns=lifetime_ns)

        def build(records: Records, now_ns: int) -> Node:
            return role(
                name=name, names=names, config=config, site=site, records=records, now_ns=now_ns
            )

        return build

    def _registered(self, name: str, members: KnownMembers, now_ns: int) -> RegisteredBroker:
        registry = self.scenario.registry
        assert registry is not None
        config = msgspec.structs.replace(
            self.scenario.deadline.config, spreads=False, durable=False
        )
        return RegisteredBroker(
            name=name, registry=registry.name, members=members, config=config, now_ns=now_ns
        )

    def _outcome(self, name: str, outcome: Outcome) -> None:
        super()._outcome(name, outcome)
        if self._clients is not None:
            self._clients.outcome(name, outcome)

    def _subscriber_factory(self, name: str, site: str) -> Factory:
        role, config = self.roles.gossip_subscriber, self.scenario.deadline.config
        brokers = tuple(self._brokers)

        def build(records: Records, now_ns: int) -> Node:
            return role(
                name=name, brokers=brokers, config=config, site=site, records=records, now_ns=now_ns
            )

        return build

    def _replier(self, subscriber: str) -> str:
        return subscriber

    def _publishing(self, topic: str, payload: bytes) -> Command:
        if not self.scenario.deadline.wishes:
            return super()._publishing(topic, payload)
        self._marked += 1
        headers = {MARK: MARKS[self._marked % len(MARKS)]}
        return lambda node, now_ns: node.publish(topic, payload, now_ns=now_ns, headers=headers)

    def _subscribing(self, subscriber: str, topics: tuple[str, ...]) -> Command:
        where = self.scenario.deadline.wishes.get(subscriber)
        if where is None or subscriber in self._brokers:
            return super()._subscribing(subscriber, topics)
        return lambda node, now_ns: node.subscribe(topics, now_ns=now_ns, where=where)

    def judge(self, rows: list[Row]) -> Report:
        """Judge the trace by what was promised."""
        deadline = self.scenario.deadline
        return check(
            without_stalls(rows, self.scenario),
            order="deadline",
            lossy=deadline.lossy,
            clock_error_ns=deadline.config.slack_ns,
        )

    @classmethod
    def describe_settings(cls, scenario: Scenario) -> Iterator[str]:
        """Describe the configuration of the protocol."""
        yield from _describe(scenario.deadline)
        if scenario.registry is not None:
            yield from describe_registry(scenario.registry)

    def events(self) -> Iterator[tuple[int, Event]]:
        """Yield nothing: there is no log, and no slots in one."""
        return iter(())

    def waits(self) -> Iterator[str]:
        """Yield which node still waits for what."""
        yield from super().waits()
        config = self.scenario.deadline.config
        rounds = config.lifetime_rounds + config.skew_rounds + 1
        longest = max(config.horizon_ns, rounds * config.period_ns)
        if self.world.now_ns < self.scenario.duration_ns + (1 + REPLIES_MAX) * longest:
            # No node waits for an answer here, so none knows what is still on its way.
            yield "messages may be on their way"
        if self._clients is not None:
            yield from self._clients.waits()
        for name, node in self._nodes():
            if isinstance(node, DeadlineBroker) and node.unsettled_count:
                yield f"{name} has {node.unsettled_count} events that may not be sent yet"
            if node.held_count:
                yield f"{name} holds {node.held_count} messages back"

    def _nodes(self) -> Iterator[tuple[str, DeadlineBroker | DeadlineSubscriber]]:
        """Yield the nodes that are up."""
        if self._clients is not None:
            for process in self._clients.processes():
                if isinstance(process.node, RegisteredBroker):
                    yield process.name, process.node.broker
            return
        for name in self.world.names():
            node = self.world.node(name)
            if isinstance(node, DeadlineBroker | DeadlineSubscriber):
                yield name, node


def without_stalls(rows: list[Row], scenario: Scenario) -> list[Row]:
    """Leave out arrivals whose deadline passed while their node stood still.

    The round before the deadline counts too.
    """
    pauses = scenario.faults.pauses
    if not pauses:
        return rows
    period_ns = scenario.deadline.config.period_ns
    return [row for row in rows if row.action != "received" or not _stalled(row, pauses, period_ns)]


def _stalled(row: Row, pauses: tuple[Pause, ...], period_ns: int) -> bool:
    if row.deadline_ns is None or row.true_ns is None:
        return False
    due_ns = row.true_ns + row.deadline_ns - row.at_ns
    return any(
        pause.node == client_of(row.node)
        and pause.from_ns <= due_ns
        and (pause.until_ns is None or pause.until_ns >= due_ns - period_ns)
        for pause in pauses
    )


def _describe(deadline: DeadlineSpec) -> Iterator[str]:
    config = deadline.config
    rounds = "numbers" if config.colors is None else f"{config.colors} colors"
    yield (
        f"  between brokers events expire after {duration(config.lifetime_ns)}, at most "
        f"{duration(config.lifetime_ns_max)}; clocks differ by {duration(config.skew_ns)}"
    )
    yield (
        f"  at subscribers after {config.lifetime_rounds} rounds of {duration(config.period_ns)}, "
        f"sent as {rounds}; each pushes to {config.fan_out} of {config.view_max} that it knows, "
        f"{config.near_percent}% of them near; late events are "
        f"{'delivered with a tag' if config.deliver_late else 'dropped'}"
    )
    if deadline.listening:
        yield f"  listening as brokers: {listed(deadline.listening, '')}"
    for name, lifetime_ns in deadline.lifetimes_ns.items():
        yield f"  events of {name} expire after {duration(lifetime_ns)}"
