"""Random scenarios for causal order: churn, answers, and every fault there is.

As in all swarms, sizes are small and limits often low; each seed turns some faults on and others
off.
"""

from random import Random

import msgspec

from ensue.protocols.causal.config import CausalConfig
from ensue.simulation.scenario import Scenario, Vanish
from ensue.simulation.swarms.draws import (
    MS,
    SECOND,
    draw_clocks,
    draw_delay,
    draw_faults,
    draw_network,
    draw_publishers,
    draw_registry,
    draw_round_trips,
    draw_subscribers,
    with_registry_faults,
)
from ensue.simulation.world.delays import Constant, Uniform
from ensue.simulation.world.disks import DiskConfig

__all__ = ["draw", "draw_plain"]

REGISTERED = 0.4
"""How likely it is that nodes register, as processes do."""
STAYING = 0.4
"""How likely it is that all registered nodes stay to the end."""
MORE_VANISH = 0.3
"""How likely it is that more than publishers vanish."""
STAY_MIN = 2
"""Nodes that stay, whichever others vanish."""


def draw(seed: int) -> Scenario:
    """Return the scenario of a seed."""
    scenario = draw_round_trips(draw_plain(seed), seed)
    # Drawn apart, so that every other seed stands for what it always has.
    random = Random(f"swarm/causal/registered/{seed}")
    return _registered(random, scenario) if random.random() < REGISTERED else scenario


def draw_plain(seed: int) -> Scenario:
    """Return the scenario of a seed in which nodes know each other from the start."""
    random = Random(f"swarm/causal/{seed}")
    duration_ns = random.randrange(1 * SECOND, 4 * SECOND)
    topics = [f"t{index}" for index in range(random.choice((1, 1, 2, 3, 4, 6)))]
    subscribers = draw_subscribers(random, topics, duration_ns, fixed=random.random() < 0.1)
    publishers = draw_publishers(random, topics, duration_ns)
    nodes = [each.name for group in (publishers, subscribers) for each in group]
    vanish: tuple[Vanish, ...] = ()
    if random.random() < 0.2:
        gone = random.choice(publishers).name
        vanish = (Vanish(publisher=gone, at_ns=random.randrange(duration_ns)),)
    vanish += _more_vanish(Random(f"swarm/causal/vanish/{seed}"), nodes, vanish, duration_ns)
    return Scenario(
        name="swarm-causal",
        order="causal",
        duration_ns=duration_ns,
        publishers=publishers,
        subscribers=subscribers,
        hypercube=_config(random),
        network=draw_network(random),
        disk=DiskConfig(sync=random.choice((Constant(0), Uniform(0, 5 * MS), draw_delay(random)))),
        clocks=draw_clocks(random, nodes),
        faults=draw_faults(random, nodes, duration_ns),
        vanish=vanish,
        encode=random.random() < 0.2,
    )


def _registered(random: Random, scenario: Scenario) -> Scenario:
    """Have all nodes register, in a longer run: long enough to miss polls."""
    groups = (scenario.publishers, scenario.subscribers)
    nodes = [each.name for group in groups for each in group]
    duration_ns = scenario.duration_ns + random.randrange(6 * SECOND)
    registry = draw_registry(random, nodes, duration_ns)
    faults, vanish = scenario.faults, scenario.vanish
    if random.random() < STAYING:
        # No client ends, so no event may be lost.
        registry = msgspec.structs.replace(registry, expire_ns=40 * SECOND, departures=())
        faults, vanish = msgspec.structs.replace(faults, crashes=()), ()
    return msgspec.structs.replace(
        scenario,
        duration_ns=duration_ns,
        registry=registry,
        faults=with_registry_faults(random, faults, registry, nodes, duration_ns),
        vanish=vanish,
    )


def _more_vanish(
    random: Random, nodes: list[str], gone: tuple[Vanish, ...], duration_ns: int
) -> tuple[Vanish, ...]:
    """Make more nodes vanish, answering ones too, with what they alone had."""
    left = [name for name in nodes if name not in {each.publisher for each in gone}]
    if random.random() >= MORE_VANISH or len(left) <= STAY_MIN:
        return ()
    count = random.randint(1, min(2, len(left) - STAY_MIN))
    return tuple(
        Vanish(publisher=name, at_ns=random.randrange(duration_ns))
        for name in random.sample(left, count)
    )


def _config(random: Random) -> CausalConfig:
    return CausalConfig(
        across_topics=random.random() < 0.6,
        retry_ns=random.randrange(20 * MS, 300 * MS),
        suspect_ns=random.randrange(50 * MS, 1500 * MS),
        beat_ns=random.randrange(200 * MS, 2 * SECOND),
        digest_ns=random.randrange(50 * MS, SECOND),
        gap_ns=random.randrange(20 * MS, 300 * MS),
        # Longer than any fault lasts: only nodes that vanished are given up.
        patience_ns=15 * SECOND,
        window=random.choice((1, 2, 8)),
        batch_max=random.choice((1, 3, 64)),
        held_max=random.choice((4, 65_536, 65_536)),
        # Mostly enough for everything: who comes back late is to be given what it lacks.
        retained_max=random.choice((8, 65_536, 65_536, 65_536)),
    )
