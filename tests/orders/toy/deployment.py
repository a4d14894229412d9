"""The simulated deployment, its table in scenario files, and the scenarios of seeds."""

from collections.abc import Iterator
from random import Random

import msgspec
from tests.orders.toy.publisher import BatchPublisher
from tests.orders.toy.subscriber import BatchSubscriber

from ensue.checkers import Report, check
from ensue.core.trace import Row
from ensue.simulation.deployments.topic_log import TopicLogDeployment
from ensue.simulation.scenario import Publication, PublisherSpec, Scenario, SubscriberSpec
from ensue.simulation.world.delays import Uniform
from ensue.simulation.world.network import NetworkConfig
from ensue.simulation.world.process import Factory

__all__ = ["BatchDeployment", "BatchesTable", "draw"]

SECOND_NS = 1_000_000_000
MS_NS = 1_000_000


class BatchesTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table `[batches]` of a scenario file."""

    size: int = 2


class BatchDeployment(TopicLogDeployment):
    """A topic log and its clients."""

    def _publisher_factory(self, name: str) -> Factory:
        return lambda _records, _now: BatchPublisher(name=name)

    def _subscriber_factory(self, name: str) -> Factory:
        size = _table(self.scenario).size
        return lambda _records, _now: BatchSubscriber(name=name, size=size)

    def judge(self, rows: list[Row]) -> Report:
        return check(rows, order="batches")

    def waits(self) -> Iterator[str]:
        yield from super().waits()
        for name in self.world.names():
            node = self.world.node(name)
            if isinstance(node, BatchPublisher) and node.unsettled_count:
                yield f"{name} waits for {node.unsettled_count} receipts"
            if isinstance(node, BatchSubscriber) and node.held_count:
                yield f"{name} holds {node.held_count} events back"

    @classmethod
    def describe_settings(cls, scenario: Scenario) -> Iterator[str]:
        yield from super().describe_settings(scenario)
        yield f"  batches of {_table(scenario).size}"


def _table(scenario: Scenario) -> BatchesTable:
    table = scenario.table
    return table if isinstance(table, BatchesTable) else BatchesTable()


def draw(seed: int) -> Scenario:
    """Return the scenario of a seed: messages overtake each other, and none is lost."""
    random = Random(f"swarm/batches/{seed}")
    topics = ("a", "b")
    size = random.randint(1, 4)
    publishers = tuple(
        PublisherSpec(
            name=f"publisher-{index}",
            events=tuple(
                Publication(at_ns=random.randrange(SECOND_NS, 2 * SECOND_NS), topics=topics)
                for _ in range(size * random.randint(1, 10))
            ),
        )
        for index in range(random.randint(1, 3))
    )
    subscribers = tuple(
        SubscriberSpec(name=f"subscriber-{index}", topics=topics) for index in range(3)
    )
    return Scenario(
        name="swarm-batches",
        order="batches",
        table=BatchesTable(size=size),
        # Longer than events are published: the last ones have to arrive.
        duration_ns=3 * SECOND_NS,
        publishers=publishers,
        subscribers=subscribers,
        network=NetworkConfig(default=Uniform(MS_NS, 100 * MS_NS)),
        encode=random.random() < 0.5,
    )
