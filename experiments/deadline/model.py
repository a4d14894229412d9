"""A group under load, with slow members, losses and crashes, in both systems.

The paper gives the size of groups, the share of perturbed members, and that 0.1 % of messages are
lost and 0.1 % of processes crash. The rest is chosen here. Publishers publish 100 bytes at random
times. A perturbed member pauses for half of the time, 50 to 150 ms at a time. A message takes 1 to
5 ms; a node sends through a 100 Mbit/s network card and takes 20 µs per frame. In both systems, the
deadline of an event is the lifetime of a rumor.
"""

from collections.abc import Callable, Iterable
from random import Random
from typing import Any

import msgspec

from ensue.core.event import Event
from ensue.protocols.deadline.broker import DeadlineBroker
from ensue.protocols.deadline.config import DeadlineConfig
from ensue.protocols.deadline.frames import Matrix, Message, Rumor, Rumors
from ensue.protocols.deadline.subscriber import DeadlineSubscriber
from ensue.protocols.interface import Deliver, Frame, Node, Outcome, Publish
from ensue.simulation import NetworkConfig, QueueConfig, Uniform, World
from ensue.simulation.world.faults import Crash, Faults, Pause
from experiments.deadline.reliable import Acknowledgement, Copy, ReliableMember

__all__ = ["Figures", "Load", "frame_bytes", "gossip", "reliable"]

MS = 1_000_000
SECOND = 1_000_000_000
TOPIC = "t"
PAYLOAD = bytes(100)
ENTRY_BYTES, EVENT_BYTES, PEER_BYTES = 8, 30, 20
"""Approximate bytes of a number in a matrix, of an event's names, and of a peer on the wire."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """The load on a group."""

    subscribers: int
    perturbed: float
    publishers: int = 4
    per_second: float = 25.0
    """Events per publisher."""
    duration_ns: int = 2 * SECOND
    loss: float = 0.001
    crashes: float = 0.001
    period_ns: int = 20 * MS
    alpha: int = 2
    fan_out: int = 3

    @property
    def config(self) -> DeadlineConfig:
        """The configuration of gossip."""
        rounds = DeadlineConfig(subscribers_max=self.subscribers, alpha=self.alpha).lifetime_rounds
        lifetime_ns = rounds * self.period_ns
        return DeadlineConfig(
            subscribers_max=self.subscribers,
            alpha=self.alpha,
            period_ns=self.period_ns,
            fan_out=self.fan_out,
            lifetime_ns=lifetime_ns,
            lifetime_ns_max=lifetime_ns,
            durable=False,
        )


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The results of one load."""

    on_time: float
    """Share of events delivered in order and on time to a subscriber that did not crash."""
    per_second: float
    """Rate of these deliveries per such subscriber."""
    frames: int
    """Frames sent by all nodes, per published event."""
    bytes: int
    """Bytes sent by all nodes, per published event."""
    busiest: float
    """Share of the time that the network card of the busiest publisher was sending."""


class _Group:
    """A simulation of one system."""

    def __init__(self, load: Load, seed: int, start_ns: int) -> None:
        self.load = load
        self.start_ns = start_ns
        self.random = Random(f"gossip/{load.subscribers}/{load.perturbed}/{seed}")
        self.published = 0
        self.delivered: dict[str, int] = {}
        self.sent_bytes = 0
        self.sent_frames = 0
        self._counts = False
        self.publishers = [f"p{number}" for number in range(load.publishers)]
        self.subscribers = [f"s{number}" for number in range(load.subscribers)]
        self.world = World(
            seed,
            network=NetworkConfig(default=Uniform(1 * MS, 5 * MS), loss=load.loss),
            queueing=QueueConfig(
                service_ns=20_000, bandwidth_bytes_per_s=12_500_000, size_of=self._size
            ),
            on_outcome=self._outcome,
        )

    def run(self, *, settle_ns: int) -> Figures:
        """Run all publishers, and measure."""
        load, world, random = self.load, self.world, self.random
        end_ns = self.start_ns + load.duration_ns
        world.inject(self._faults(end_ns))
        for name in self.publishers:
            at_ns = float(self.start_ns)
            while True:
                at_ns += random.expovariate(load.per_second) * SECOND
                if at_ns >= end_ns:
                    break
                world.call(name, _publish, at_ns=int(at_ns))
        world.run(until_ns=self.start_ns)
        self._counts = True
        before_ns = self._busy_ns()
        world.run(until_ns=end_ns)
        busy_ns = [now - before for now, before in zip(self._busy_ns(), before_ns, strict=True)]
        world.run(until_ns=end_ns + settle_ns)
        alive = [name for name in self.subscribers if world.node(name) is not None]
        got = sum(self.delivered.get(name, 0) for name in alive)
        events = max(1, self.published)
        return Figures(
            on_time=got / (events * len(alive)),
            per_second=got / len(alive) / (load.duration_ns / SECOND),
            frames=round(self.sent_frames / events),
            bytes=round(self.sent_bytes / events),
            busiest=max(busy_ns) / load.duration_ns,
        )

    def _busy_ns(self) -> list[int]:
        """Return how long the network card of each publisher has been sending."""
        cards = [self.world.card(name) for name in self.publishers]
        return [card.busy_until(self.world.now_ns) for card in cards if card is not None]

    def _faults(self, end_ns: int) -> Faults:
        load, random = self.load, self.random
        slow = random.sample(self.subscribers, round(load.subscribers * load.perturbed))
        pauses: list[Pause] = []
        for name in slow:
            at_ns = self.start_ns + random.randrange(100 * MS)
            while at_ns < end_ns:
                until_ns = at_ns + random.randrange(50 * MS, 150 * MS)
                pauses.append(Pause(node=name, from_ns=at_ns, until_ns=until_ns))
                at_ns = until_ns + random.randrange(50 * MS, 150 * MS)
        crashes = tuple(
            Crash(node=name, at_ns=random.randrange(self.start_ns, end_ns))
            for name in self.subscribers
            if random.random() < load.crashes
        )
        return Faults(pauses=tuple(pauses), crashes=crashes)

    def _outcome(self, name: str, outcome: Outcome) -> None:
        if isinstance(outcome, Publish):
            self.published += 1
        elif isinstance(outcome, Deliver) and not outcome.verdict:
            self.delivered[name] = self.delivered.get(name, 0) + 1

    def _size(self, frame: Frame) -> int:
        size = frame_bytes(frame)
        if self._counts:
            self.sent_bytes += size
            self.sent_frames += 1
        return size


def _publish(node: Any, now_ns: int) -> None:
    node.publish(TOPIC, PAYLOAD, now_ns=now_ns)


def _event_bytes(events: Iterable[Event]) -> int:
    return sum(EVENT_BYTES + len(event.payload) for event in events)


def _rumor_bytes(rumor: Rumor) -> int:
    entries = sum(map(len, rumor.live.values()))
    return 10 + ENTRY_BYTES * entries + _event_bytes(rumor.events)


def frame_bytes(frame: Frame) -> int:
    """Estimate the bytes of a frame, without the cost of encoding it."""
    size = 20
    match frame:
        case Copy(event=event, after=rows) | Message(event=event, after=rows):
            sets = sum(ENTRY_BYTES + len(bits) for row in rows.values() for bits in row.values())
            size += _event_bytes((event,)) + sets
        case Rumors(rumors=rumors, have=have, peers=peers):
            size += sum(map(_rumor_bytes, rumors)) + 10 * len(have) + PEER_BYTES * len(peers)
        case Acknowledgement():
            pass
        case _:
            size += 30
    return size


def gossip(load: Load, seed: int, *, warm_up_rounds: int = 60) -> Figures:
    """Measure brokers and subscribers that gossip."""
    config = load.config
    start_ns = 10 * MS * load.subscribers // 100 + warm_up_rounds * load.period_ns
    group = _Group(load, seed, start_ns)
    world, names = group.world, group.publishers

    def broker(name: str) -> Callable[[object, int], Node]:
        return lambda _records, now: DeadlineBroker(
            name=name, names=names, config=config, now_ns=now
        )

    def subscriber(name: str) -> Callable[[object, int], Node]:
        return lambda _records, now: DeadlineSubscriber(
            name=name, brokers=names, config=config, now_ns=now
        )

    for name in names:
        world.add(name, broker(name))
    for index, name in enumerate(group.subscribers):
        world.add(name, subscriber(name))
        # Subscribers join one after the other.
        world.call(name, _subscribe, at_ns=index * 10 * MS // 100)
    return group.run(settle_ns=2 * config.lifetime_ns)


def _subscribe(node: Any, now_ns: int) -> None:
    node.subscribe((TOPIC,), now_ns=now_ns)


def reliable(load: Load, seed: int) -> Figures:
    """Measure one reliable group of all members."""
    group = _Group(load, seed, start_ns=100 * MS)
    names = [*group.publishers, *group.subscribers]
    numbers = {name: number for number, name in enumerate(names)}
    lifetime_ns = load.config.lifetime_ns
    decoded: dict[tuple[int, int], Matrix] = {}

    def member(name: str) -> Callable[[object, int], Node]:
        return lambda _records, _now: ReliableMember(
            name=name, names=names, numbers=numbers, lifetime_ns=lifetime_ns, decoded=decoded
        )

    for name in names:
        group.world.add(name, member(name))
    return group.run(settle_ns=2 * lifetime_ns)
