"""Random scenarios for deadline order: calm, short, perturbed or rough.

Clocks are always inside their bound.

- *calm*: nothing is lost, no node crashes, and all gossip with all: all that is owed must be
  delivered, in order and on time. Colours are drawn here and in the next one, where there is a
  bound on the age of copies.
- *short*: messages are lost, repeated and overtaken, processes crash and come back and change their
  topics; but no copy is old.
- *perturbed*: some processes stand still again and again, as slow ones do, with a little loss.
- *rough*: everything: partitions, clogs, noise, pauses, crashes, churn.

Lifetimes are often shorter than what messages take: then some are late, and nothing else may be.
"""

from random import Random
from typing import TypeVar

import msgspec

from ensue.protocols.deadline.config import DeadlineConfig
from ensue.simulation.scenario import (
    DeadlineSpec,
    PublisherSpec,
    Reply,
    Scenario,
    SubscriberSpec,
)
from ensue.simulation.swarms.draws import (
    MS,
    SECOND,
    chance,
    draw_faults,
    draw_network,
    draw_publishers,
    draw_registry,
    draw_subscribers,
    some_of,
    with_registry_faults,
)
from ensue.simulation.world.clocks import ClockConfig
from ensue.simulation.world.delays import Constant, Uniform
from ensue.simulation.world.disks import DiskConfig
from ensue.simulation.world.faults import Crash, Faults, Pause
from ensue.simulation.world.network import NetworkConfig

__all__ = ["KINDS", "draw", "draw_plain", "kind_of"]

S = TypeVar("S", PublisherSpec, SubscriberSpec)

KINDS = ("calm", "short", "perturbed", "rough", "rough")
REGISTERED = 0.4
"""How likely it is that clients register, as processes do."""
SITES = ("here", "there")


def kind_of(seed: int) -> str:
    """Return how a seed treats its processes."""
    return KINDS[seed % len(KINDS)]


def draw(seed: int) -> Scenario:
    """Return the scenario of a seed."""
    scenario = draw_plain(seed)
    # Drawn apart, so that every other seed stands for what it always has.
    random = Random(f"swarm/deadline/registered/{seed}")
    if random.random() >= REGISTERED:
        return scenario
    return _registered(random, kind_of(seed), scenario)


def draw_plain(seed: int) -> Scenario:
    """Return the scenario of a seed in which brokers know each other from the start."""
    random = Random(f"swarm/deadline/{seed}")
    kind = kind_of(seed)
    duration_ns = random.randrange(1 * SECOND, 3 * SECOND)
    topics = [f"t{index}" for index in range(random.choice((1, 2, 2, 3, 4)))]
    publishers, subscribers = _people(random, kind, topics, duration_ns)
    names = [each.name for group in (publishers, subscribers) for each in group]
    period_ns = random.choice((8 * MS, 15 * MS, 30 * MS))
    network, longest_ns = _network(random, kind, period_ns)
    config = _config(random, kind, period_ns, longest_ns, len(names))
    faults = _faults(random, kind, names, duration_ns)
    deadline = DeadlineSpec(
        config=config,
        listening=tuple(each.name for each in subscribers if random.random() < 0.3),
        lifetimes_ns={
            each.name: random.randint(config.lifetime_ns, config.lifetime_ns_max)
            for each in publishers
            if random.random() < 0.7
        },
        lossy=kind != "calm",
    )
    return Scenario(
        name="swarm-deadline",
        order="deadline",
        duration_ns=duration_ns,
        settle_ns=30 * SECOND,
        publishers=publishers,
        subscribers=subscribers,
        deadline=deadline,
        network=network,
        disk=DiskConfig(sync=Constant(0)),
        clocks=_clocks(random, names, config),
        faults=faults,
        encode=random.random() < 0.2,
    )


def _registered(random: Random, kind: str, scenario: Scenario) -> Scenario:
    """Have all clients register, with the same lifetime of events."""
    groups = (scenario.publishers, scenario.subscribers)
    names = [each.name for group in groups for each in group]
    deadline, duration_ns = scenario.deadline, scenario.duration_ns
    config = deadline.config
    config = msgspec.structs.replace(
        config, lifetime_ns_max=config.lifetime_ns, colors=None, copy_age_rounds=None
    )
    registry = draw_registry(random, names, duration_ns)
    faults = scenario.faults
    if kind != "calm":
        duration_ns += random.randrange(6 * SECOND)
        faults = with_registry_faults(random, faults, registry, names, duration_ns)
    return msgspec.structs.replace(
        scenario,
        duration_ns=duration_ns,
        deadline=msgspec.structs.replace(deadline, config=config, lifetimes_ns={}, listening=()),
        registry=registry,
        faults=faults,
    )


def _people(
    random: Random, kind: str, topics: list[str], duration_ns: int
) -> tuple[tuple[PublisherSpec, ...], tuple[SubscriberSpec, ...]]:
    """Return the publishers and the subscribers, at two sites."""
    fixed = kind == "calm" or random.random() < 0.3
    subscribers = draw_subscribers(random, topics, duration_ns, fixed=fixed)
    more = tuple(
        SubscriberSpec(name=f"listener-{index}", topics=some_of(random, topics))
        for index in range(random.choice((0, 1, 3, 5)))
    )
    if len(topics) > 1 and random.random() < 0.7:
        # Answers among brokers are what makes causes and effects.
        subscribers = tuple(
            _answering(random, each, topics) if random.random() < 0.6 else each
            for each in subscribers
        )
    publishers = draw_publishers(random, topics, duration_ns)
    return (
        tuple(_placed(random, each) for each in publishers),
        tuple(_placed(random, each) for each in (*subscribers, *more)),
    )


def _answering(random: Random, subscriber: SubscriberSpec, topics: list[str]) -> SubscriberSpec:
    """Return a subscriber that answers, only on later topics, so that answers end."""
    on = random.randrange(len(topics) - 1)
    answer = random.randrange(on + 1, len(topics))
    reply = Reply(on=topics[on], topic=topics[answer], share=0.5)
    return msgspec.structs.replace(subscriber, replies=(reply,))


def _placed(random: Random, member: S) -> S:
    return msgspec.structs.replace(member, site=random.choice(SITES))


def _network(random: Random, kind: str, period_ns: int) -> tuple[NetworkConfig, int]:
    """Return a network, and the longest delay of a message where it is known."""
    if kind in ("perturbed", "rough"):
        network = draw_network(random)
        if kind == "perturbed":
            network = msgspec.structs.replace(network, loss=0.001)
        return network, 0
    longest_ns = random.choice((0, period_ns // 3, period_ns - 1))
    held_back_ns = 0 if kind == "calm" else random.choice((0, 3 * period_ns))
    network = NetworkConfig(
        default=random.choice((Constant(longest_ns), Uniform(0, longest_ns))),
        loss=0.0 if kind == "calm" else chance(random, 0.3),
        duplication=chance(random, 0.3),
        reordering=0.4 if held_back_ns else 0.0,
        reordering_delay=Uniform(0, held_back_ns),
    )
    return network, longest_ns + held_back_ns


def _config(
    random: Random, kind: str, period_ns: int, longest_ns: int, people: int
) -> DeadlineConfig:
    calm = kind == "calm"
    skew_ns = random.choice((0, 0, period_ns // 2, 2 * period_ns))
    lifetime_ns = random.randrange(20 * MS, 400 * MS)
    if calm:
        lifetime_ns = max(lifetime_ns, 2 * longest_ns + 2 * skew_ns + MS)
    config = DeadlineConfig(
        subscribers_max=random.choice((2, 4, 8)),
        # Long enough for a message that is sent once, and is seen by a clock that is ahead.
        alpha=random.randint(0, 3) + (2 + 2 * -(-skew_ns // period_ns) if calm else 0),
        period_ns=period_ns,
        fan_out=people if calm else random.choice((1, 2, 3)),
        near_percent=random.choice((0, 50, 75, 100)),
        view_max=people if calm else random.choice((2, 4, 16)),
        push_rounds=random.choice((1, 2)),
        skew_ns=skew_ns,
        slack_ns=1,
        lifetime_ns=lifetime_ns,
        lifetime_ns_max=lifetime_ns + random.choice((0, 200 * MS, 400 * MS)),
        deliver_late=random.random() < 0.4,
        held_max=65_536 if calm else random.choice((4, 65_536, 65_536)),
        retained_max=65_536 if calm else random.choice((8, 65_536, 65_536)),
        rounds_ahead_max=10_000,
        batch_max=256 if calm else random.choice((2, 256)),
        announce_rounds=random.choice((4, 16)),
        retry_ns=random.randrange(20 * MS, 200 * MS),
        join_ns=SECOND,
    )
    if kind in ("calm", "short") and random.random() < 0.5:
        # A node passes a message on while it lives by a clock that may be behind.
        age = config.lifetime_rounds + config.skew_rounds + -(-longest_ns // period_ns) + 1
        bounded = msgspec.structs.replace(config, copy_age_rounds=age)
        return msgspec.structs.replace(bounded, colors=bounded.colors_min)
    return config


def _clocks(random: Random, names: list[str], config: DeadlineConfig) -> dict[str, ClockConfig]:
    """Return clocks that differ by no more than they may."""
    start_ns = random.randrange(5 * SECOND, 6 * SECOND)
    room_ns = config.skew_ns
    return {
        name: ClockConfig(
            skew_ns=start_ns + random.choice((0, room_ns, random.randint(0, room_ns)))
        )
        for name in names
    }


def _faults(random: Random, kind: str, names: list[str], duration_ns: int) -> Faults:
    if kind == "calm":
        return Faults()
    if kind == "rough":
        return msgspec.structs.replace(draw_faults(random, names, duration_ns), clock_jumps=())
    crashes = tuple(
        Crash(
            node=random.choice(names),
            at_ns=random.randrange(duration_ns),
            restart_after_ns=random.choice((0, random.randrange(400 * MS))),
        )
        for _ in range(random.choice((0, 1, 3)))
    )
    if kind == "short":
        return Faults(crashes=crashes)
    pauses: list[Pause] = []
    for name in random.sample(names, max(1, len(names) * random.choice((20, 30, 50)) // 100)):
        at_ns = random.randrange(200 * MS)
        while at_ns < duration_ns:
            until_ns = at_ns + random.randrange(1 * MS, 200 * MS)
            pauses.append(Pause(node=name, from_ns=at_ns, until_ns=until_ns))
            at_ns = until_ns + random.randrange(1 * MS, 300 * MS)
    return Faults(crashes=crashes, pauses=tuple(pauses))
