"""The network of `harness` with stations: each node of the chain keeps the log of its topics.

Attach, fetch and put requests go to the station that hosts the topic. Events get places, as on a
server.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec
from tests.protocols.total.harness import Net

from ensue.protocols.interface import (
    Attach,
    Broadcast,
    Deliver,
    Detach,
    Effect,
    Multicast,
    Node,
    Persist,
    Refuse,
    Send,
)
from ensue.protocols.topic_log.frames import request_for
from ensue.protocols.topic_log.log import TopicLogConfig
from ensue.protocols.total.config import SequencerConfig
from ensue.protocols.total.publisher import Publisher
from ensue.protocols.total.station import Station, StationConfig
from ensue.protocols.total.subscriber import Subscriber

__all__ = ["CARRIES", "StationNet"]

CARRIES = SequencerConfig(carries=True)


class StationNet(Net):
    """A chain of stations, publishers and subscribers."""

    station_type = Station

    def __init__(
        self,
        chain: Mapping[str, Sequence[str]],
        *,
        config: SequencerConfig = CARRIES,
        topic_log_config: TopicLogConfig | None = None,
        expire_ns: int | None = None,
    ) -> None:
        given = topic_log_config or TopicLogConfig()
        self._topic_log_config = msgspec.structs.replace(given, gives_places=True)
        self._station_config = StationConfig(expire_ns=expire_ns)
        super().__init__(chain, config=config)

    def station(self, name: str) -> Station:
        node = self.nodes[name]
        assert isinstance(node, Station)
        return node

    def reader(
        self, name: str, *, start: int | None = None, acknowledge_each: bool = False
    ) -> Subscriber:
        """Return the subscriber, created with its start at the first call.

        A later call with another start changes the start for its next restart.
        """

        def build(records: dict[str, bytes]) -> Node:
            return self.subscriber_type(
                name=name,
                placement=self.placement,
                config=self.config,
                acknowledge_each=acknowledge_each,
                start=start,
                records=records,
                now_ns=self.now_ns,
            )

        if name not in self._builders:
            self._add(name, build)
        self._builders[name] = build
        node = self.nodes[name]
        assert isinstance(node, Subscriber)
        return node

    def pause(self, subscriber: str) -> None:
        self.subscriber(subscriber).pause()
        self._carry_out(subscriber)

    def resume(self, subscriber: str) -> None:
        self.subscriber(subscriber).resume(now_ns=self.now_ns)
        self._carry_out(subscriber)

    def repeat_all(self, client: str) -> None:
        """Let a client repeat all its requests now."""
        node = self.nodes[client]
        assert isinstance(node, Publisher | Subscriber)
        node.repeat(now_ns=self.now_ns)
        self._carry_out(client)

    def trim(self, topic: str, first: int) -> None:
        name = self.placement.node(topic)
        self.station(name).trim(topic, first)
        self._carry_out(name)

    def put_out(self, station: str) -> list[str]:
        """The events of a station by place: the order of every other subscriber."""
        events = [event for _, event in self.station(station).log.contents() if not event.void]
        return [event.payload.decode() for event in sorted(events, key=lambda each: each.place)]

    def positions(self, subscriber: str) -> list[int]:
        return [each.position for each in self.outcomes[subscriber] if isinstance(each, Deliver)]

    def refusals(self, client: str) -> list[tuple[tuple[str, ...], str]]:
        outcomes = self.outcomes[client]
        return [(each.topics, each.reason) for each in outcomes if isinstance(each, Refuse)]

    def waiting(self) -> list[str]:
        """List which process still waits for what."""
        ends: dict[str, int] = {}
        for node in self.nodes.values():
            if isinstance(node, Station):
                ends |= node.log.ends()
        found: list[str] = []
        for name, node in self.nodes.items():
            if isinstance(node, Subscriber) and not node.expired:
                found += [f"{name} {why}" for why in node.waits(ends)]
            elif isinstance(node, Publisher) and node.unsettled_count:
                found.append(f"{name} has {node.unsettled_count} unsettled")
        return found

    # -- Inside ---------------------------------------------------------------------------------

    def _stage_builder(self, name: str) -> Callable[[dict[str, bytes]], Node]:
        return lambda own: self.station_type(
            name=name,
            placement=self.placement,
            config=self.config,
            station_config=self._station_config,
            topic_log_config=self._topic_log_config,
            records=own,
            now_ns=self.now_ns,
        )

    def _carry_out(self, name: str) -> None:
        effects: Sequence[Effect] = self.nodes[name].take_effects()
        for effect in effects:
            if isinstance(effect, Persist):
                if effect.value is None:
                    self.disks[name].pop(effect.key, None)
                else:
                    self.disks[name][effect.key] = effect.value
        for effect in effects:
            if isinstance(effect, Send):
                self._send(name, effect.peer, effect.frame)
            elif isinstance(effect, Multicast):
                for peer in effect.peers:
                    self._send(name, peer, effect.frame)
            elif isinstance(effect, Broadcast | Attach | Detach):
                topic = effect.event.topic if isinstance(effect, Broadcast) else effect.topic
                self._send(name, self.placement.node(topic), request_for(effect))
            elif not isinstance(effect, Persist):
                self.outcomes[name].append(effect)
                self.history.append((name, effect))
