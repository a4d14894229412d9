"""Random scenarios with every fault there is, one from each seed.

`draw(seed)` decides everything about a scenario; `play(draw(seed), seed)` is the whole run. Sizes are
small, so that many seeds fit into an hour and a failing one can be read; limits are often set so
low that they are hit. The swarm looks at breadth: each seed turns some faults on and others off,
because a fault that is always on hides the others.
"""

from collections.abc import Sequence
from random import Random

from ensue.protocols.link import LinkConfig
from ensue.protocols.sequencer.config import SequencerConfig
from ensue.protocols.topic_log import EnsConfig
from ensue.simulation.clocks import ClockConfig
from ensue.simulation.delays import Constant, DelayModel, LogNormal, Normal, Uniform
from ensue.simulation.disks import DiskConfig
from ensue.simulation.faults import ClockJump, Clog, Crash, Faults, Noise, Partition, Pause
from ensue.simulation.network import NetworkConfig
from ensue.simulation.scenario import (
    Change,
    EnsSpec,
    PublisherSpec,
    Rate,
    Reply,
    Scenario,
    SequencerSpec,
    SubscriberSpec,
    Vanish,
)

__all__ = ["draw"]

MS = 1_000_000
SECOND = 1_000_000_000
EVENTS_PER_RUN = 70
"""About how many events one run publishes."""


def draw(seed: int) -> Scenario:
    """Return the scenario of a seed."""
    random = Random(f"swarm/{seed}")
    duration_ns = random.randrange(1 * SECOND, 4 * SECOND)
    topics = [f"t{index}" for index in range(random.choice((1, 2, 3, 4, 6, 8, 12)))]
    chain = _chain(random, topics)
    ens = tuple(EnsSpec(name=f"ens-{index}") for index in range(1, random.choice((2, 2, 3))))
    by_two = random.random() < 0.15
    subscribers = _subscribers(random, topics, duration_ns, fixed=by_two)
    publishers = _publishers(random, topics, duration_ns)
    reliable = random.random() < 0.8
    # Drawn apart, so that every other seed stands for what it always has.
    stations = reliable and not by_two and Random(f"swarm/stations/{seed}").random() < 0.4
    logs = () if stations else ens
    nodes = [each.name for group in (chain, logs, publishers, subscribers) for each in group]
    vanish: tuple[Vanish, ...] = ()
    if random.random() < 0.2:
        gone = random.choice(publishers).name
        vanish = (Vanish(publisher=gone, at_ns=random.randrange(duration_ns)),)
    return Scenario(
        name="swarm-total",
        duration_ns=duration_ns,
        chain=chain,
        ens=ens,
        publishers=publishers,
        subscribers=subscribers,
        sequencer=_sequencer(
            random,
            subscribers if by_two else (),
            # Room for every publisher: two that each hold a place the other needs would wait for
            # each other. Subscribers may be refused.
            clients_max=len(publishers) + sum(bool(each.replies) for each in subscribers),
            reliable=reliable,
            carries=stations,
        ),
        ens_config=EnsConfig(keeps_log=reliable, batch_max=random.choice((3, 16, 256))),
        link=LinkConfig(
            retry_ns=random.randrange(20 * MS, 300 * MS),
            burst=random.choice((2, 64)),
            unacknowledged_max=random.choice((8, 8192)),
            early_max=random.choice((1, 8, 1024)),
        ),
        network=_network(random),
        disk=DiskConfig(sync=random.choice((Constant(0), Uniform(0, 5 * MS), _delay(random)))),
        clocks=_clocks(random, nodes),
        faults=_faults(random, nodes, duration_ns, _slow_cuts(random, chain, subscribers)),
        vanish=vanish,
        encode=random.random() < 0.2,
    )


def _chain(random: Random, topics: Sequence[str]) -> tuple[SequencerSpec, ...]:
    """Place some topics explicitly and leave the others to hashing."""
    count = random.choice((1, 2, 2, 3, 4))
    placed: list[list[str]] = [[] for _ in range(count)]
    for topic in random.sample(topics, len(topics)):
        if random.random() < 0.8:
            random.choice(placed).append(topic)
    return tuple(
        SequencerSpec(name=f"node-{index}", topics=tuple(hosted))
        for index, hosted in enumerate(placed, 1)
    )


def _some(random: Random, topics: Sequence[str], *, most: int | None = None) -> tuple[str, ...]:
    return tuple(random.sample(topics, random.randint(1, min(most or len(topics), len(topics)))))


def _subscribers(
    random: Random, topics: Sequence[str], duration_ns: int, *, fixed: bool
) -> tuple[SubscriberSpec, ...]:
    churn = 0 if fixed or random.random() < 0.2 else random.choice((1, 3, 6))
    replying = random.random() < 0.4 and len(topics) > 1
    subscribers = []
    for index in range(random.choice((2, 3, 4, 5))):
        changes = tuple(
            Change(
                at_ns=random.randrange(duration_ns),
                subscribe=_some(random, topics, most=3) if random.random() < 0.7 else (),
                unsubscribe=_some(random, topics, most=3) if random.random() < 0.7 else (),
            )
            for _ in range(random.randint(0, churn))
        )
        if changes and random.random() < 0.5:
            # Leave and join again while a change may be under way: the hardest thing to resume.
            again = _some(random, topics, most=2)
            at_ns = random.choice(changes).at_ns + random.randrange(500 * MS)
            changes = (*changes, Change(at_ns=at_ns, subscribe=again, unsubscribe=again))
        replies: tuple[Reply, ...] = ()
        if replying and random.random() < 0.5:
            # Only ever answered on a later topic, so that answers to answers come to an end.
            on = random.randrange(len(topics) - 1)
            answer = random.randrange(on + 1, len(topics))
            replies = (Reply(on=topics[on], topic=topics[answer], share=0.4),)
        start = _some(random, topics) if fixed or random.random() < 0.85 else ()
        subscribers.append(
            SubscriberSpec(
                name=f"subscriber-{index}", topics=start, changes=changes, replies=replies
            )
        )
    return tuple(subscribers)


def _publishers(
    random: Random, topics: Sequence[str], duration_ns: int
) -> tuple[PublisherSpec, ...]:
    count = random.choice((1, 2, 3, 4))
    per_second = EVENTS_PER_RUN / count / (duration_ns / SECOND)
    return tuple(
        PublisherSpec(
            name=f"publisher-{index}",
            rates=(Rate(topics=_some(random, topics), per_second=per_second),),
        )
        for index in range(count)
    )


def _sequencer(
    random: Random,
    fixed: Sequence[SubscriberSpec],
    *,
    clients_max: int,
    reliable: bool,
    carries: bool,
) -> SequencerConfig:
    return SequencerConfig(
        carries=carries,
        groups=2 if fixed else 1,
        fixed={each.name: each.topics for each in fixed} if fixed else None,
        reliable=reliable,
        leave_out=reliable and random.random() < 0.8,
        publisher_order=random.random() < 0.8,
        lease_ns=random.randrange(200 * MS, 3 * SECOND),
        retry_ns=random.randrange(30 * MS, 400 * MS),
        poll_ns=random.randrange(200 * MS, 2 * SECOND),
        gap_ns=random.randrange(20 * MS, 300 * MS),
        window=random.choice((1, 3, 1024)),
        held_max=random.choice((2, 8, 65_536)),
        time_to_live_ns=random.randrange(20 * MS, SECOND),
        missing_max=random.choice((4, 65_536)),
        clients_max=clients_max if random.random() < 0.2 else 100_000,
    )


def _delay(random: Random) -> DelayModel:
    mean = random.randrange(1, 40 * MS)
    return random.choice(
        (
            Constant(mean),
            Uniform(0, 2 * mean),
            Normal(mean, mean // 3),
            LogNormal(mean, mean),
        )
    )


def _chance(random: Random, most: float) -> float:
    """Return 0 half of the time, else something up to `most`."""
    return random.uniform(0, most) if random.random() < 0.5 else 0.0


def _network(random: Random) -> NetworkConfig:
    return NetworkConfig(
        default=_delay(random),
        fifo=random.random() < 0.3,
        loss=_chance(random, 0.2),
        duplication=_chance(random, 0.2),
        reordering=_chance(random, 0.3),
        reordering_delay=Uniform(0, random.randrange(1, 300 * MS)),
    )


def _clocks(random: Random, nodes: Sequence[str]) -> dict[str, ClockConfig]:
    if random.random() < 0.5:
        return {}
    return {
        node: ClockConfig(
            skew_ns=random.randrange(0, 10 * SECOND), drift_ppm=random.uniform(-50_000, 50_000)
        )
        for node in nodes
        if random.random() < 0.5
    }


def _slow_cuts(
    random: Random, chain: Sequence[SequencerSpec], subscribers: Sequence[SubscriberSpec]
) -> tuple[list[Clog], list[Crash]]:
    """Make the answers to all changes late, in half of the runs, while events go on arriving.

    Sometimes the subscriber crashes while it waits.
    """
    clogs: list[Clog] = []
    crashes: list[Crash] = []
    if random.random() < 0.5:
        return clogs, crashes
    sources = tuple(node.name for node in chain)
    for subscriber in subscribers:
        for change in subscriber.changes:
            until_ns = change.at_ns + random.randrange(100 * MS, 1000 * MS)
            clogs.append(
                Clog(
                    sources=sources,
                    targets=(subscriber.name,),
                    from_ns=change.at_ns,
                    until_ns=until_ns,
                )
            )
            if random.random() < 0.3:
                at_ns = random.randrange(change.at_ns, until_ns)
                wait_ns = random.randrange(200 * MS)
                crashes.append(Crash(node=subscriber.name, at_ns=at_ns, restart_after_ns=wait_ns))
    return clogs, crashes


class _Dice:
    """What faults are drawn with: how many, when, and whom they hit."""

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


def _faults(
    random: Random,
    nodes: Sequence[str],
    duration_ns: int,
    slow_cuts: tuple[Sequence[Clog], Sequence[Crash]],
) -> Faults:
    dice = _Dice(random, nodes, duration_ns)
    clogs, crashes = slow_cuts
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
