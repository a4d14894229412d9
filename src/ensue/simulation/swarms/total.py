"""Random scenarios with every fault there is, one from each seed.

`draw(seed)` decides everything about a scenario; `play(draw(seed), seed)` is the whole run. Sizes
are small, so that many seeds fit into an hour and a failing one can be read; limits are often set
so low that they are hit. The swarm looks at breadth: each seed turns some faults on and others off,
because a fault that is always on hides the others.
"""

from collections.abc import Sequence
from random import Random

import msgspec

from ensue.protocols.shared.link import CONNECTED, LinkConfig
from ensue.protocols.topic_log.log import TopicLogConfig
from ensue.protocols.total.config import SequencerConfig
from ensue.protocols.total.topic_moves import MoveConfig
from ensue.simulation.scenario import (
    Change,
    Scenario,
    SequencerSpec,
    SubscriberSpec,
    TopicLogSpec,
    TopicMove,
    Vanish,
)
from ensue.simulation.swarms.draws import (
    MS,
    SECOND,
    draw_clocks,
    draw_delay,
    draw_faults,
    draw_network,
    draw_publishers,
    draw_round_trips,
    draw_subscribers,
    some_of,
)
from ensue.simulation.world.delays import Constant, Uniform
from ensue.simulation.world.disks import DiskConfig
from ensue.simulation.world.faults import Clog, Crash

__all__ = ["draw", "draw_moves", "draw_noncausal"]

NONCAUSAL_SETTLE_NS = 600 * SECOND
"""Many changes cross each link: one that keeps a single early frame takes longer to catch up."""


def draw(seed: int, *, stations: bool = False) -> Scenario:
    """Return the scenario of a seed; with `stations` on a chain that keeps its topics' logs."""
    random = Random(f"swarm/{seed}")
    duration_ns = random.randrange(1 * SECOND, 4 * SECOND)
    topics = [f"t{index}" for index in range(random.choice((1, 2, 3, 4, 6, 8, 12)))]
    chain = _chain(random, topics)
    ens = tuple(TopicLogSpec(name=f"ens-{index}") for index in range(1, random.choice((2, 2, 3))))
    by_two = random.random() < 0.15 and not stations
    subscribers = draw_subscribers(random, topics, duration_ns, fixed=by_two)
    publishers = draw_publishers(random, topics, duration_ns)
    reliable = random.random() < 0.8 or stations
    # Drawn apart, so that every other seed stands for what it always has.
    by_chance = reliable and not by_two and Random(f"swarm/stations/{seed}").random() < 0.4
    stations = stations or by_chance
    logs = () if stations else ens
    nodes = [each.name for group in (chain, logs, publishers, subscribers) for each in group]
    vanish: tuple[Vanish, ...] = ()
    if random.random() < 0.2:
        gone = random.choice(publishers).name
        vanish = (Vanish(publisher=gone, at_ns=random.randrange(duration_ns)),)
    scenario = Scenario(
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
            runs_max=Random(f"swarm/requests/{seed}").choice((1, 2, 1024, 1024)),
        ),
        topic_log_config=TopicLogConfig(keeps_log=reliable, batch_max=random.choice((3, 16, 256))),
        link=_link(random, seed),
        network=draw_network(random),
        disk=DiskConfig(sync=random.choice((Constant(0), Uniform(0, 5 * MS), draw_delay(random)))),
        clocks=draw_clocks(random, nodes),
        faults=draw_faults(random, nodes, duration_ns, _slow_cuts(random, chain, subscribers)),
        vanish=vanish,
        encode=random.random() < 0.2,
    )
    return draw_round_trips(scenario, seed)


def draw_noncausal(seed: int) -> Scenario:
    """Return the scenario of a seed on a chain that groups topics by two subscriptions.

    Subscribers change all the time: a topic that is left and another that is joined have to be
    ordered for everybody else who has both.
    """
    random = Random(f"swarm/noncausal/{seed}")
    scenario = _by_two(random, draw(seed))
    scenario = msgspec.structs.replace(
        scenario, name="swarm-total-noncausal", settle_ns=NONCAUSAL_SETTLE_NS
    )
    topics = _published(scenario)
    if len(scenario.chain) > 1 and len(topics) > 2 and random.random() < 0.7:
        return _with_movers(random, scenario, topics)
    return scenario


def _published(scenario: Scenario) -> list[str]:
    """Return the topics of a scenario that have events."""
    return sorted(
        {topic for each in scenario.publishers for rate in each.rates for topic in rate.topics}
    )


def _by_two(random: Random, scenario: Scenario) -> Scenario:
    """Group topics by two subscriptions, and let subscribers change all the time."""
    topics, changes_max = _published(scenario), random.choice((3, 8, 20))
    subscribers = tuple(
        msgspec.structs.replace(
            each, changes=_changes(random, topics, scenario.duration_ns, changes_max)
        )
        for each in scenario.subscribers
    )
    sequencer = msgspec.structs.replace(scenario.sequencer, groups=2, fixed=None)
    return msgspec.structs.replace(scenario, subscribers=subscribers, sequencer=sequencer)


def _with_movers(random: Random, scenario: Scenario, topics: Sequence[str]) -> Scenario:
    """Let one subscriber read all topics, late, and the others one after the other.

    Two topics then are ordered together only because of what a mover has left.
    """
    reader, *movers = scenario.subscribers
    duration_ns = scenario.duration_ns
    subscribers = [msgspec.structs.replace(reader, topics=tuple(topics), changes=(), replies=())]
    crashes: list[Crash] = []
    for mover in movers:
        topic, changes = random.choice(topics), []
        start = (topic,)
        for at_ns in sorted(random.sample(range(duration_ns), random.choice((2, 6, 20)))):
            following = random.choice([each for each in topics if each != topic])
            changes.append(Change(at_ns=at_ns, subscribe=(following,), unsubscribe=(topic,)))
            topic = following
            if random.random() < 0.2:
                crashed_ns = at_ns + random.randrange(300 * MS)
                wait_ns = random.randrange(200 * MS)
                crashes.append(Crash(node=mover.name, at_ns=crashed_ns, restart_after_ns=wait_ns))
        subscribers.append(
            msgspec.structs.replace(mover, topics=start, changes=tuple(changes), replies=())
        )
    chain = scenario.chain
    logs = [each.name for each in chain]
    if not scenario.sequencer.carries:
        logs = [each.name for each in scenario.ens]
    hosted: list[list[str]] = [[] for _ in chain]
    for index, topic in enumerate(random.sample(topics, len(topics))):
        hosted[index % len(chain)].append(topic)
    clogs = []
    for _ in range(random.choice((2, 5, 10))):
        from_ns = random.randrange(duration_ns)
        clogs.append(
            Clog(
                sources=(random.choice(logs),),
                targets=(reader.name,),
                from_ns=from_ns,
                until_ns=from_ns + random.randrange(50 * MS, 800 * MS),
            )
        )
    faults = msgspec.structs.replace(
        scenario.faults,
        clogs=(*scenario.faults.clogs, *clogs),
        crashes=(*scenario.faults.crashes, *crashes),
    )
    return msgspec.structs.replace(
        scenario,
        chain=tuple(
            msgspec.structs.replace(node, topics=tuple(own))
            for node, own in zip(chain, hosted, strict=True)
        ),
        subscribers=tuple(subscribers),
        faults=faults,
    )


def draw_moves(seed: int) -> Scenario:
    """Return the scenario of a seed on a chain whose topics move from node to node.

    Nodes crash while they do, in half of the runs, and stay away for so long at times that the move
    is given up. So does one that takes longer than it may, without a crash.
    """
    random = Random(f"swarm/moves/{seed}")
    is_causal = random.random() >= 0.3
    scenario = draw(seed, stations=True)
    if not is_causal:
        scenario = _by_two(Random(f"swarm/noncausal/{seed}"), scenario)
    names = [each.name for each in scenario.chain]
    more = [f"node-{index}" for index in range(len(names) + 1, random.choice((2, 3, 4)) + 1)]
    chain = (*scenario.chain, *(SequencerSpec(name=name) for name in more))
    names += more
    drawn = {topic for each in scenario.publishers for rate in each.rates for topic in rate.topics}
    moves: list[TopicMove] = []
    crashes: list[Crash] = []
    for _ in range(random.randint(1, 4)):
        at_ns = random.randrange(scenario.duration_ns)
        topic, to = random.choice(sorted(drawn)), random.choice(names)
        moves.append(TopicMove(topic=topic, to=to, at_ns=at_ns))
        if random.random() < 0.5:
            crashed_ns = at_ns + random.randrange(random.choice((10 * MS, 100 * MS, 500 * MS)))
            wait_ns = random.randrange(random.choice((500 * MS, 500 * MS, 3 * SECOND)))
            node = random.choice(names)
            crashes.append(Crash(node=node, at_ns=crashed_ns, restart_after_ns=wait_ns))
    faults = msgspec.structs.replace(scenario.faults, crashes=(*scenario.faults.crashes, *crashes))
    return msgspec.structs.replace(
        scenario,
        name="swarm-total-moves",
        chain=chain,
        faults=faults,
        moves=tuple(moves),
        move=MoveConfig(
            ask_ns=random.choice((300 * MS, SECOND)),
            freeze_ns=random.choice((20 * MS, 100 * MS, 500 * MS, 500 * MS)),
            retry_ns=random.choice((10 * MS, 100 * MS)),
            retry_ns_max=random.choice((100 * MS, 2 * SECOND)),
            bytes_max=400 if random.random() < 0.1 else MoveConfig().bytes_max,
        ),
    )


def _changes(
    random: Random, topics: Sequence[str], duration_ns: int, most: int
) -> tuple[Change, ...]:
    """Return changes that replace a few topics, join some or leave some."""
    changes = []
    for _ in range(random.randint(0, most)):
        left = some_of(random, topics, most=2) if random.random() < 0.7 else ()
        joined = some_of(random, topics, most=2) if random.random() < 0.8 else ()
        at_ns = random.randrange(duration_ns)
        changes.append(Change(at_ns=at_ns, subscribe=joined, unsubscribe=left))
    return tuple(changes)


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


def _sequencer(
    random: Random,
    fixed: Sequence[SubscriberSpec],
    *,
    clients_max: int,
    reliable: bool,
    carries: bool,
    runs_max: int,
) -> SequencerConfig:
    # Drawn apart from all else, so that seeds stay what they were.
    lease_lost_ns = Random(str(random.getstate()[1])).randrange(10 * MS, SECOND)
    return SequencerConfig(
        carries=carries,
        runs_max=runs_max,
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
        lease_lost_ns=lease_lost_ns,
    )


def _link(random: Random, seed: int) -> LinkConfig:
    """Draw links; in some seeds frames are grouped and acknowledged late, as over connections."""
    link = LinkConfig(
        retry_ns=random.randrange(20 * MS, 300 * MS),
        burst=random.choice((2, 64)),
        unacknowledged_max=random.choice((8, 8192)),
        early_max=random.choice((1, 8, 1024)),
    )
    apart = Random(f"swarm/groups/{seed}")
    if apart.random() < 0.7:
        return link
    group_bytes = apart.choice((200, CONNECTED.group_bytes))
    return msgspec.structs.replace(
        link, group_bytes=group_bytes, acknowledge_ns=apart.choice((0, link.retry_ns // 2))
    )


def _slow_cuts(
    random: Random, chain: Sequence[SequencerSpec], subscribers: Sequence[SubscriberSpec]
) -> tuple[list[Clog], list[Crash]]:
    """Delay the answers to all changes in half of the runs, while events arrive.

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
