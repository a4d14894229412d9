"""An order of its own, in one package: each publisher's events in pairs, the later one first.

Nobody needs it. It shows that a new order takes one package and one call of `register`: see
`ensue.orders`.
"""

from typing import Any

from tests.orders.toy.deployment import PairsDeployment, draw
from tests.orders.toy.order import Pairs
from tests.orders.toy.subscriber import PairsSubscriber

from ensue.orders import Guarantee, PublisherNode, Wanted
from ensue.protocols.interface import Frame
from ensue.protocols.topic_log import fanout, frames
from ensue.protocols.unordered.publisher import UnorderedPublisher
from ensue.runtime.hub_memory import Hub
from ensue.simulation.deployments.base import Deployment
from ensue.simulation.scenario import Scenario

__all__ = ["Pairs", "PairsOrder"]


class PairsOrder(Guarantee):
    """Pairs of events of one publisher and topic, reversed."""

    name = "pairs"
    value = Pairs
    has_topic_log = True
    needs = ("in_process",)

    async def publisher(self, hub: Hub, name: str) -> PublisherNode:
        del hub
        return UnorderedPublisher(name=name)

    def subscriber(self, hub: Hub, wanted: Wanted) -> Any:
        del hub
        return PairsSubscriber(name=wanted.name)

    def deployment(self) -> type[Deployment]:
        return PairsDeployment

    def draw(self, seed: int) -> Scenario:
        return draw(seed)

    def frames(self) -> tuple[type[Frame], ...]:
        return (*frames.FRAMES, *fanout.FRAMES)
