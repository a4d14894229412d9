"""Clients of topic logs in a world.

A subscriber that replies is two nodes, one that subscribes and one that publishes, with one name in
the trace. A protocol defines which nodes publish and subscribe.

With `Scenario.fan_out` the service is fan-outs, as on servers. As from connections there, a fan-out
notices that a client has crashed, and clients notice that a fan-out has restarted.
"""

from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any

import msgspec

from ensue import orders
from ensue.core.event import Event
from ensue.core.wire import Codec
from ensue.protocols.topic_log.fanout import Fanout
from ensue.protocols.topic_log.log import TopicLog
from ensue.simulation.deployments.base import Deployment
from ensue.simulation.scenario import Scenario
from ensue.simulation.text import at_site
from ensue.simulation.world.clocks import ClockConfig
from ensue.simulation.world.driver import Command
from ensue.simulation.world.process import Factory

__all__ = ["Records", "TopicLogDeployment"]

Records = Mapping[str, bytes]


class TopicLogDeployment(Deployment):
    """Nodes of a notification service that share the topics, and its clients."""

    def _prepare(self) -> Codec:
        self._ens = [each.name for each in self.scenario.ens]
        return Codec(orders.named(self.scenario.order).frames())

    def _publisher_factory(self, name: str) -> Factory:
        """Return what builds a publisher."""
        raise NotImplementedError

    def _subscriber_factory(self, name: str) -> Factory:
        """Return what builds a subscriber."""
        raise NotImplementedError

    def _clock(self, name: str) -> ClockConfig | None:
        """Return the clock of a node."""
        return self.scenario.clocks.get(name)

    def ens_for(self, topic: str) -> str:
        """Return the node that carries a topic."""
        digest = blake2b(topic.encode(), digest_size=8, salt=b"ens").digest()
        return self._ens[int.from_bytes(digest, "big") % len(self._ens)]

    def _add_nodes(self) -> None:
        self._add_servers()
        for publisher in self.scenario.publishers:
            self._add_publisher(publisher.name, publisher.name, publisher.site)
        for subscriber in self.scenario.subscribers:
            self.world.add(
                subscriber.name,
                self._subscriber_factory(subscriber.name),
                site=subscriber.site,
                clock=self._clock(subscriber.name),
                disk=self._client_disk,
            )
            if subscriber.replies:
                self._add_publisher(
                    self._replier(subscriber.name), subscriber.name, subscriber.site
                )

    def _add_servers(self) -> None:
        """Add the notification service; a protocol adds other nodes that are no clients."""
        if self.scenario.fan_out:
            self.world.on_down, self.world.on_up = self._crashed, self._restarted
        for each in self.scenario.ens:
            self.world.add(each.name, self._ens_factory(each.name), site=each.site)

    def _crashed(self, name: str) -> None:
        """Have fan-outs forget a client whose connections are lost."""
        for ens in self._ens:
            if name not in self._ens:
                self.world.call(ens, _forget(name))

    def _restarted(self, name: str) -> None:
        """Have clients repeat their requests to a fan-out: their connections are new."""
        if name in self._ens:
            for client in self.world.names():
                self.world.call(client, _repeat)

    def _add_publisher(self, name: str, seen_as: str, site: str) -> None:
        factory, clock = self._publisher_factory(name), self._clock(seen_as)
        self.world.add(
            name, factory, site=site, clock=clock, seen_as=seen_as, disk=self._client_disk
        )

    def _ens_factory(self, name: str) -> Factory:
        if self.scenario.fan_out:
            return lambda _records, _now: Fanout(name=name)
        config, role = self.scenario.topic_log_config, self.roles.ens
        if not orders.named(self.scenario.order).keeps_log:
            # Subscribers of other orders request nothing that they lack.
            config = msgspec.structs.replace(config, probe_ns=0)
        return lambda records, _now: role(name=name, config=config, records=records)

    def events(self) -> Iterator[tuple[int, Event]]:
        """Yield what the nodes of the notification service hold."""
        for name in self._ens:
            node = self.world.node(name)
            if isinstance(node, TopicLog):
                yield from node.contents()

    @classmethod
    def describe_nodes(cls, scenario: Scenario) -> Iterator[str]:
        """Describe the nodes besides publishers and subscribers."""
        kind = "fan-out" if scenario.fan_out else "notification service"
        for ens in scenario.ens:
            yield f"  {kind} {ens.name}{at_site(ens.site)}"


def _forget(name: str) -> Command:
    return lambda fanout, now_ns: fanout.forget(name, now_ns=now_ns)


def _repeat(node: Any, now_ns: int) -> None:
    repeat = getattr(node, "repeat", None)
    if repeat is not None:
        repeat(now_ns=now_ns)
