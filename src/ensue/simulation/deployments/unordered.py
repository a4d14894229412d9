"""No order in a world: a notification service and its clients."""

from collections.abc import Iterator

from ensue.checkers import Report, check
from ensue.core.trace import Row
from ensue.protocols.unordered.publisher import UnorderedPublisher
from ensue.protocols.unordered.subscriber import UnorderedSubscriber
from ensue.simulation.deployments.topic_log import TopicLogDeployment
from ensue.simulation.world.process import Factory

__all__ = ["UnorderedDeployment"]


class UnorderedDeployment(TopicLogDeployment):
    """Clients that deliver events as they arrive."""

    def _publisher_factory(self, name: str) -> Factory:
        return lambda _records, _now: UnorderedPublisher(name=name)

    def _subscriber_factory(self, name: str) -> Factory:
        return lambda _records, _now: UnorderedSubscriber(name=name)

    def judge(self, rows: list[Row]) -> Report:
        """Judge the trace by what is promised without an order."""
        lossy = self.scenario.fan_out or not self.scenario.topic_log_config.keeps_log
        return check(rows, order=self.scenario.order, lossy=lossy)

    def waits(self) -> Iterator[str]:
        """Yield which node still waits for what."""
        yield from super().waits()
        for name in self.world.names():
            node = self.world.node(name)
            if isinstance(node, UnorderedPublisher) and node.unsettled_count:
                yield f"{name} has {node.unsettled_count} unsettled events"
