"""Stations and publishers as they run in production, with counters: a chain, and its clients.

Configured as a server makes them from `causal = false` (groups by two common subscriptions) or from
`causal = true`, the default. Events travel with their requests: one that a single server can order
is published in the same step, and any other gets a stamp, with which its client publishes it.
Clients repeat unanswered requests. Frames between servers travel over numbered links, configured
for connections. Subscriptions are made through the chain, before the load.

Left out: subscribers, because the paper measures stamps.
"""

from collections.abc import Iterable, Sequence

from ensue.core.event import Event
from ensue.core.wire import Codec
from ensue.protocols.interface import Broadcast, Effect, Frame, Send, Settle
from ensue.protocols.shared.link import CONNECTED, Linked
from ensue.protocols.total.config import SequencerConfig
from ensue.protocols.total.frames import ChangeRequest, Fill, OrderRequest, Stamped
from ensue.protocols.total.placement import Placement
from ensue.protocols.total.publisher import Publisher
from ensue.protocols.total.station import FRAMES, UNNUMBERED, Station

__all__ = ["CODEC", "MeasuredPublisher", "MeasuredStation", "Traffic", "chain", "linked"]

CODEC = Codec(FRAMES)
"""All frames between servers."""


class Traffic:
    """Count of stamp entries that leave a server, to other servers or to clients."""

    def __init__(self) -> None:
        self.onward = 0
        self.done = 0

    def count(self, effects: Sequence[Effect]) -> Sequence[Effect]:
        """Count the entries of effects; return the effects."""
        for effect in effects:
            if isinstance(effect, Send) and isinstance(effect.frame, Fill):
                self.onward += len(effect.frame.stamp.entries)
            elif isinstance(effect, Send) and isinstance(effect.frame, Stamped):
                self.done += sum(len(grant.stamp.entries) for grant in effect.frame.grants)
        return effects

    @property
    def share(self) -> float:
        """The share of entries that went on to other servers."""
        return self.onward / max(1, self.onward + self.done)


class MeasuredStation(Station):
    """A station that counts its traffic."""

    def __init__(self, name: str, placement: Placement, config: SequencerConfig) -> None:
        super().__init__(name=name, placement=placement, config=config)
        self.traffic = Traffic()
        self._takes_requests = False
        self.log.on_accepted = self._accepted

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Pass a frame on, and note whether it is a request."""
        self._takes_requests = isinstance(frame, OrderRequest)
        super().receive(frame, source=source, now_ns=now_ns)
        self._takes_requests = False

    def take_effects(self) -> Sequence[Effect]:
        """Drain the effects."""
        return self.traffic.count(super().take_effects())

    def _accepted(self, event: Event, _slot: int) -> None:
        """Count the stamp of an event that is published in one step; others come stamped."""
        if self._takes_requests and event.stamp is not None:
            self.traffic.done += len(event.stamp.entries)


class MeasuredPublisher(Publisher):
    """A publisher that measures how long its events wait for their stamps. Command: `request`."""

    def __init__(self, name: str, placement: Placement, config: SequencerConfig) -> None:
        super().__init__(name=name, placement=placement, config=config)
        self.waits: list[tuple[int, int]] = []
        """Per stamp: when it was requested, and when it arrived."""
        self._requested_ns: dict[str, int] = {}
        self._received_ns = 0

    def request(self, topic: int, now_ns: int) -> None:
        """Publish an event."""
        event = self.publish(f"t{topic}", b"", now_ns=now_ns)
        self._requested_ns[event.id] = now_ns

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Handle an answer."""
        self._received_ns = now_ns
        super().receive(frame, source=source, now_ns=now_ns)

    def take_effects(self) -> Sequence[Effect]:
        """Drain the effects; a stamped event is broadcast, one without stamp is settled."""
        effects = super().take_effects()
        for effect in effects:
            if isinstance(effect, Broadcast | Settle):
                requested_ns = self._requested_ns.pop(effect.event.id, None)
                if requested_ns is not None:
                    self.waits.append((requested_ns, self._received_ns))
        return effects


def chain(
    placement: Placement, config: SequencerConfig, subscriptions: Iterable[Sequence[str]]
) -> list[MeasuredStation]:
    """Return the stations of a chain that has these subscriptions."""
    stations = {name: MeasuredStation(name, placement, config) for name in placement.nodes}
    for number, topics in enumerate(subscriptions):
        first, _ = placement.span(topics)
        change: Frame = ChangeRequest(number=1, old=(), new=tuple(topics))
        source, node = f"subscriber-{number}", placement.nodes[first]
        while node in stations:
            station = stations[node]
            station.receive(change, source=source, now_ns=0)
            # To the next station, or to the subscriber, which ends the loop.
            (sent,) = (each for each in station.take_effects() if isinstance(each, Send))
            change, source, node = sent.frame, node, sent.peer
    return list(stations.values())


def linked(station: MeasuredStation, *, durable: bool = False) -> Linked[MeasuredStation]:
    """Return a station with links to its neighbors, as a server builds it."""
    nodes = station.placement.nodes
    stage = nodes.index(station.name)
    return Linked(
        lambda _records: station,
        peers=[name for name in nodes[max(0, stage - 1) : stage + 2] if name != station.name],
        codec=CODEC,
        unnumbered=UNNUMBERED,
        config=CONNECTED,
        durable=durable,
    )
