"""The simulated deployment, and what seeds stand for."""

from collections.abc import Iterator
from random import Random

from tests.orders.toy.subscriber import PairsSubscriber

from ensue.checkers import Report, check
from ensue.core.trace import Row
from ensue.protocols.unordered.publisher import UnorderedPublisher
from ensue.simulation.deployments.topic_log import TopicLogDeployment
from ensue.simulation.scenario import Publication, PublisherSpec, Scenario, SubscriberSpec
from ensue.simulation.world.delays import Uniform
from ensue.simulation.world.network import NetworkConfig
from ensue.simulation.world.process import Factory

__all__ = ["PairsDeployment", "draw"]

SECOND_NS = 1_000_000_000
MS_NS = 1_000_000


class PairsDeployment(TopicLogDeployment):
    """A notification service and its clients."""

    def _publisher_factory(self, name: str) -> Factory:
        return lambda _records, _now: UnorderedPublisher(name=name)

    def _subscriber_factory(self, name: str) -> Factory:
        return lambda _records, _now: PairsSubscriber(name=name)

    def judge(self, rows: list[Row]) -> Report:
        return check(rows, order="pairs")

    def waits(self) -> Iterator[str]:
        yield from super().waits()
        for name in self.world.names():
            node = self.world.node(name)
            if isinstance(node, PairsSubscriber) and node.held_count:
                yield f"{name} holds {node.held_count} events back"


def draw(seed: int) -> Scenario:
    """Return the scenario of a seed: messages overtake each other, and none is lost."""
    random = Random(f"swarm/pairs/{seed}")
    topics = ("a", "b")
    publishers = tuple(
        PublisherSpec(
            name=f"publisher-{index}",
            events=tuple(
                Publication(at_ns=random.randrange(SECOND_NS, 2 * SECOND_NS), topics=topics)
                for _ in range(2 * random.randint(1, 10))
            ),
        )
        for index in range(random.randint(1, 3))
    )
    subscribers = tuple(
        SubscriberSpec(name=f"subscriber-{index}", topics=topics) for index in range(3)
    )
    return Scenario(
        name="swarm-pairs",
        order="pairs",
        duration_ns=2 * SECOND_NS,
        publishers=publishers,
        subscribers=subscribers,
        network=NetworkConfig(default=Uniform(MS_NS, 100 * MS_NS)),
        encode=random.random() < 0.5,
    )
