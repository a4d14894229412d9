"""Common draws of all swarms: nodes, networks, clocks and faults.

Each function draws from the stream it is given and nothing else, in a fixed order, so that a seed
stands for one scenario forever.
"""

from collections.abc import Sequence
from random import Random

import msgspec

from ensue.simulation.scenario import (
    Change,
    Departure,
    PublisherSpec,
    Rate,
    RegistrySpec,
    Reply,
    Scenario,
    SubscriberSpec,
)
from ensue.simulation.world.clocks import ClockConfig
from ensue.simulation.world.delays import Constant, DelayModel, LogNormal, Normal, Uniform
from ensue.simulation.world.faults import ClockJump, Clog, Crash, Faults, Noise, Partition, Pause
from ensue.simulation.world.network import NetworkConfig

__all__ = [
    "EVENTS_PER_RUN",
    "MS",
    "SECOND",
    "chance",
    "draw_clocks",
    "draw_delay",
    "draw_faults",
    "draw_network",
    "draw_publishers",
    "draw_registry",
    "draw_round_trips",
    "draw_subscribers",
    "some_of",
    "with_registry_faults",
]

MS = 1_000_000
SECOND = 1_000_000_000
EVENTS_PER_RUN = 70
"""About how many events one run publishes."""


def some_of(random: Random, topics: Sequence[str], *, most: int | None = None) -> tuple[str, ...]:
    """Return some of the topics, at least one."""
    return tuple(random.sample(topics, random.randint(1, min(most or len(topics), len(topics)))))


def draw_subscribers(
    random: Random, topics: Sequence[str], duration_ns: int, *, fixed: bool
) -> tuple[SubscriberSpec, ...]:
    """Return a few subscribers, perhaps with changes and answers.

    `fixed`: without changes.
    """
    churn = 0 if fixed or random.random() < 0.2 else random.choice((1, 3, 6))
    replying = random.random() < 0.4 and len(topics) > 1
    subscribers = []
    for index in range(random.choice((2, 3, 4, 5))):
        changes = tuple(
            Change(
                at_ns=random.randrange(duration_ns),
                subscribe=some_of(random, topics, most=3) if random.random() < 0.7 else (),
                unsubscribe=some_of(random, topics, most=3) if random.random() < 0.7 else (),
            )
            for _ in range(random.randint(0, churn))
        )
        if changes and random.random() < 0.5:
            # Leave and join again while a change may be pending: the hardest case to resume.
            again = some_of(random, topics, most=2)
            at_ns = random.choice(changes).at_ns + random.randrange(500 * MS)
            changes = (*changes, Change(at_ns=at_ns, subscribe=again, unsubscribe=again))
        replies: tuple[Reply, ...] = ()
        if replying and random.random() < 0.5:
            # Only ever answered on a later topic, so that answers to answers come to an end.
            on = random.randrange(len(topics) - 1)
            answer = random.randrange(on + 1, len(topics))
            replies = (Reply(on=topics[on], topic=topics[answer], share=0.4),)
        start = some_of(random, topics) if fixed or random.random() < 0.85 else ()
        subscribers.append(
            SubscriberSpec(
                name=f"subscriber-{index}", topics=start, changes=changes, replies=replies
            )
        )
    return tuple(subscribers)


def draw_publishers(
    random: Random, topics: Sequence[str], duration_ns: int
) -> tuple[PublisherSpec, ...]:
    """Return a few publishers that together publish the events of a run."""
    count = random.choice((1, 2, 3, 4))
    per_second = EVENTS_PER_RUN / count / (duration_ns / SECOND)
    return tuple(
        PublisherSpec(
            name=f"publisher-{index}",
            rates=(Rate(topics=some_of(random, topics), per_second=per_second),),
        )
        for index in range(count)
    )


def draw_delay(random: Random) -> DelayModel:
    """Return one of the delay models."""
    mean = random.randrange(1, 40 * MS)
    return random.choice(
        (
            Constant(mean),
            Uniform(0, 2 * mean),
            Normal(mean, mean // 3),
            LogNormal(mean, mean),
        )
    )


def chance(random: Random, most: float) -> float:
    """Return 0 half of the time, else something up to `most`."""
    return random.uniform(0, most) if random.random() < 0.5 else 0.0


def draw_network(random: Random) -> NetworkConfig:
    """Return a network with some of its faults."""
    return NetworkConfig(
        default=draw_delay(random),
        fifo=random.random() < 0.3,
        loss=chance(random, 0.2),
        duplication=chance(random, 0.2),
        reordering=chance(random, 0.3),
        reordering_delay=Uniform(0, random.randrange(1, 300 * MS)),
    )


def draw_clocks(random: Random, nodes: Sequence[str]) -> dict[str, ClockConfig]:
    """Return clocks that differ, in half of the runs."""
    if random.random() < 0.5:
        return {}
    return {
        node: ClockConfig(
            skew_ns=random.randrange(0, 10 * SECOND), drift_ppm=random.uniform(-50_000, 50_000)
        )
        for node in nodes
        if random.random() < 0.5
    }


class _Dice:
    """What faults are drawn with: how many, when, and which nodes they hit."""

    def __init__(self, random: Random, nodes: Sequence[str], duration_ns: int) -> None:
        self.random = random
        self.nodes = nodes
        self.duration_ns = duration_ns

    def count(self, most: int) -> range:
        """Return none half of the time, else up to `most`."""
        return range(self.random.randint(1, most) if self.random.random() < 0.5 else 0)

    def span(self) -> tuple[int, int]:
        """Return when something lasting begins and ends."""
        start_ns = self.random.randrange(self.duration_ns)
        return start_ns, start_ns + self.random.randrange(1 * MS, 1500 * MS)

    def group(self) -> tuple[str, ...]:
        """Return up to half of the nodes."""
        most = max(1, len(self.nodes) // 2)
        return tuple(self.random.sample(self.nodes, self.random.randint(1, most)))


def draw_faults(
    random: Random,
    nodes: Sequence[str],
    duration_ns: int,
    besides: tuple[Sequence[Clog], Sequence[Crash]] = ((), ()),
) -> Faults:
    """Return faults of every kind, each in half of the runs, and all of `besides`."""
    dice = _Dice(random, nodes, duration_ns)
    clogs, crashes = besides
    return Faults(
        partitions=_partitions(dice),
        clogs=(*clogs, *_clogs(dice)),
        noises=_noises(dice),
        pauses=tuple(_pause(dice) for _ in dice.count(3)),
        crashes=(*crashes, *(_crash(dice) for _ in dice.count(6))),
        clock_jumps=tuple(_clock_jump(dice) for _ in dice.count(3)),
    )


def _partitions(dice: _Dice) -> tuple[Partition, ...]:
    partitions = []
    for _ in dice.count(3):
        start_ns, end_ns = dice.span()
        side, one_way = dice.group(), dice.random.random() < 0.5
        partitions.append(Partition(side=side, from_ns=start_ns, until_ns=end_ns, one_way=one_way))
    return tuple(partitions)


def _clogs(dice: _Dice) -> tuple[Clog, ...]:
    clogs = []
    if dice.random.random() < 0.2:
        # Clog nodes one after the other and let them flow again in another order.
        for node in dice.group():
            start_ns, end_ns = dice.span()
            clogs.append(Clog(targets=(node,), from_ns=start_ns, until_ns=end_ns))
    for _ in dice.count(3):
        start_ns, end_ns = dice.span()
        sources, targets = dice.group(), dice.group()
        clogs.append(Clog(sources=sources, targets=targets, from_ns=start_ns, until_ns=end_ns))
    return tuple(clogs)


def _noises(dice: _Dice) -> tuple[Noise, ...]:
    noises = []
    for _ in dice.count(2):
        start_ns, end_ns = dice.span()
        noises.append(
            Noise(
                loss=dice.random.random(),
                duplication=dice.random.random(),
                reordering=dice.random.random(),
                targets=dice.group(),
                from_ns=start_ns,
                until_ns=end_ns,
            )
        )
    return tuple(noises)


def _pause(dice: _Dice) -> Pause:
    start_ns, end_ns = dice.span()
    return Pause(node=dice.random.choice(dice.nodes), from_ns=start_ns, until_ns=end_ns)


def _crash(dice: _Dice) -> Crash:
    return Crash(
        node=dice.random.choice(dice.nodes),
        at_ns=dice.random.randrange(dice.duration_ns),
        restart_after_ns=dice.random.randrange(0, 800 * MS),
    )


def _clock_jump(dice: _Dice) -> ClockJump:
    random = dice.random
    return ClockJump(
        node=random.choice(dice.nodes),
        at_ns=random.randrange(dice.duration_ns),
        by_ns=random.choice((-1, 1)) * random.randrange(1, 5 * SECOND),
        monotone=random.random() < 0.7,
    )


def draw_registry(random: Random, clients: Sequence[str], duration_ns: int) -> RegistrySpec:
    """Return a registry, and clients that come late, leave and return."""
    arrivals = {
        name: random.randrange(1, duration_ns) for name in clients if random.random() < 0.25
    }
    departures = []
    for name in clients:
        if random.random() < 0.2:
            back_after_ns = random.choice((None, random.randrange(800 * MS)))
            at_ns = random.randrange(duration_ns)
            departures.append(Departure(client=name, at_ns=at_ns, back_after_ns=back_after_ns))
    return RegistrySpec(
        # A short one is shorter than some faults: then clients that run are evicted.
        expire_ns=random.choice((40 * SECOND, 40 * SECOND, random.randrange(2500, 5000) * MS)),
        arrivals=arrivals,
        departures=tuple(departures),
        reconnects=random.random() < 0.5,
    )


def with_registry_faults(
    random: Random, faults: Faults, spec: RegistrySpec, clients: Sequence[str], duration_ns: int
) -> Faults:
    """Add crashes of the registry, and partitions between it and clients."""
    dice, registry = _Dice(random, clients, duration_ns), spec.name
    partitions = []
    if spec.expire_ns < duration_ns:
        # Longer than clients may be silent: they are evicted, though they run.
        start_ns = random.randrange(duration_ns - spec.expire_ns)
        end_ns = start_ns + spec.expire_ns + random.randrange(1 * SECOND, 3 * SECOND)
        partitions.append(
            Partition(side=(registry,), other=dice.group(), from_ns=start_ns, until_ns=end_ns)
        )
    for _ in dice.count(2):
        start_ns = random.randrange(duration_ns)
        end_ns = start_ns + random.randrange(100 * MS, 6 * SECOND)
        partitions.append(
            Partition(side=(registry,), other=dice.group(), from_ns=start_ns, until_ns=end_ns)
        )
    crashes = [
        Crash(
            node=registry,
            at_ns=random.randrange(duration_ns),
            restart_after_ns=random.randrange(2 * SECOND),
        )
        for _ in dice.count(3)
    ]
    return msgspec.structs.replace(
        faults,
        partitions=(*faults.partitions, *partitions),
        crashes=(*faults.crashes, *crashes),
    )


def draw_round_trips(scenario: Scenario, seed: int) -> Scenario:
    """Let waits follow round trips in half of the seeds, and be fixed in the others.

    In half of those, logs probe for lost events at the end. Drawn apart from all else, so that the
    others stay what they were.
    """
    random = Random(f"swarm/round-trips/{seed}")
    if random.random() < 0.5:
        return scenario
    least_ns = random.choice((1, 5, 10)) * MS
    if Random(f"swarm/silence/{seed}").random() < 0.5:
        log = msgspec.structs.replace(scenario.topic_log_config, probe_ns=2 * least_ns)
        scenario = msgspec.structs.replace(scenario, topic_log_config=log)
    return msgspec.structs.replace(
        scenario,
        sequencer=msgspec.structs.replace(scenario.sequencer, retry_ns_min=least_ns),
        hypercube=msgspec.structs.replace(scenario.hypercube, retry_ns_min=least_ns),
        link=msgspec.structs.replace(scenario.link, retry_ns_min=least_ns),
    )
