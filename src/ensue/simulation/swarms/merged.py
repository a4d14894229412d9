"""Random scenarios for merged order: inside its assumptions, or beyond them.

There are three ways beyond.

- *inside*: clocks differ by up to epsilon, messages take up to delta, both often to the limit; some
  are lost or repeated, processes crash and come back. The whole trace is judged. Where nothing is
  lost and no node crashes, all must have got everything, in time.
- *slow*: messages take longer than delta, nodes stand still, the network is cut. Events may be
  missing; what is delivered in its turn is judged from the start: order and causality hold.
- *jumps*: clocks jump by more than epsilon and are mended.
- *corruption*: memories are filled with anything and stamps are tampered with, besides.

The last two are judged by what is published after the last fault and the time to recover, delta + 3
epsilon to the end of the tick.
"""

from random import Random

import msgspec

from ensue.protocols.merged.config import MergedConfig, ticks_of
from ensue.protocols.topic_log.log import TopicLogConfig
from ensue.simulation.scenario import (
    Corruption,
    MergeSpec,
    PublisherSpec,
    Reply,
    Scenario,
    SubscriberSpec,
    TopicLogSpec,
)
from ensue.simulation.swarms.draws import (
    MS,
    SECOND,
    chance,
    draw_faults,
    draw_publishers,
    draw_subscribers,
    some_of,
)
from ensue.simulation.world.clocks import ClockConfig
from ensue.simulation.world.delays import Constant, DelayModel, Uniform
from ensue.simulation.world.disks import DiskConfig
from ensue.simulation.world.faults import ClockJump, Crash, Faults
from ensue.simulation.world.network import LinkDelay, NetworkConfig

__all__ = ["KINDS", "draw", "kind_of"]

KINDS = ("inside", "inside", "inside", "slow", "jumps", "corruption")
FAN_OUT = 0.4
"""How likely it is that events go through fan-outs, as on servers, where stamps allow it."""
DRIFT = 1.001
"""No clock runs faster than this, or slower than its inverse."""
RUN_MAX_NS = 8 * SECOND
"""No clock drifts for longer before everything is delivered."""


def kind_of(seed: int) -> str:
    """Return how a seed treats the assumptions."""
    return KINDS[seed % len(KINDS)]


def draw(seed: int) -> Scenario:
    """Return the scenario of a seed."""
    random = Random(f"swarm/merged/{seed}")
    kind = kind_of(seed)
    tick_ns = random.choice((MS, 4 * MS))
    duration_ns = random.randrange(1 * SECOND, 3 * SECOND)
    topics = [f"t{index}" for index in range(random.choice((1, 2, 3, 4)))]
    people = _People(random, topics, duration_ns)
    delays = _Delays(random, people.names)
    epsilon_ticks = random.choice((0, 1, 2, 5, 12))
    config = _config(random, kind, epsilon_ticks, delays.longest_ns, tick_ns)
    faults_end_ns = duration_ns // 2
    crashes = _crashes(random, people.names, duration_ns) if random.random() < 0.4 else ()
    merge = MergeSpec(
        config=config,
        eager=people.eager,
        relays=people.relays,
        stacked=people.stacked,
        # A relay's timer is never late here, but clocks drift while it waits.
        link_delta_ticks=ticks_of(int(delays.longest_ns * DRIFT), tick_ns) + 1,
    )
    network = delays.network(lossy=random.random() < 0.5)
    copies = kind not in ("inside", "jumps") or network.duplication > 0
    faults = Faults(crashes=people.bearable(crashes, config, copies=copies))
    if kind == "slow":
        faults = draw_faults(random, people.names, duration_ns)
        crashes = people.bearable(faults.crashes, config, copies=copies)
        faults = msgspec.structs.replace(faults, clock_jumps=(), crashes=crashes)
    elif kind == "inside":
        span_ns = int(config.span_ticks * tick_ns * DRIFT)
        merge = msgspec.structs.replace(merge, within_ns=None if people.stacked else span_ns + 1)
    else:
        jumps, mended_ns = _jumps(random, people.names, faults_end_ns, config)
        early = tuple(each for each in faults.crashes if each.at_ns < faults_end_ns)
        faults = Faults(crashes=early, clock_jumps=jumps)
        merge = _corrupted(random, kind, merge, people.names, mended_ns)
    # Who leaves and joins again may be deaf until it asks again, if the network confuses the two.
    settled = not any(each.changes for each in people.subscribers)
    strict = kind != "slow" and settled and not network.loss and not faults.crashes
    merge = msgspec.structs.replace(merge, lossy=not strict)
    scenario = Scenario(
        name="swarm-merged",
        order="merged",
        duration_ns=duration_ns,
        settle_ns=20 * SECOND,
        ens=(TopicLogSpec(),),
        publishers=people.publishers,
        subscribers=people.subscribers,
        merge=merge,
        topic_log_config=TopicLogConfig(durable=random.random() < 0.5),
        network=network,
        disk=DiskConfig(sync=Constant(0)),
        clocks=_clocks(random, people.names, config),
        faults=faults,
        encode=random.random() < 0.2,
    )
    # Drawn apart, so that every other seed stands for what it always has.
    apart = Random(f"swarm/merged/fan-out/{seed}")
    if config.modulus is not None or apart.random() >= FAN_OUT:
        return scenario
    return _fanned_out(apart, kind, scenario, people)


def _fanned_out(random: Random, kind: str, scenario: Scenario, people: "_People") -> Scenario:
    """Put fan-outs in place of topic logs; some restart."""
    merge, faults = scenario.merge, scenario.faults
    # Publishers retransmit, so there are copies.
    crashes = people.bearable(faults.crashes, merge.config, copies=True)
    if kind in ("inside", "slow") and random.random() < 0.5:
        at_ns = random.randrange(scenario.duration_ns)
        restart_after_ns = random.randrange(400 * MS)
        crashes += (Crash(node="ens", at_ns=at_ns, restart_after_ns=restart_after_ns),)
        merge = msgspec.structs.replace(merge, lossy=True)
    faults = msgspec.structs.replace(faults, crashes=crashes)
    config = msgspec.structs.replace(merge.config, retry_ns_min=random.choice((0, 1, 5, 10)) * MS)
    merge = msgspec.structs.replace(merge, config=config)
    return msgspec.structs.replace(scenario, fan_out=True, merge=merge, faults=faults)


class _People:
    """Who publishes, subscribes and merges."""

    def __init__(self, random: Random, topics: list[str], duration_ns: int) -> None:
        subscribers = draw_subscribers(random, topics, duration_ns, fixed=random.random() < 0.5)
        eager = [each.name for each in subscribers if random.random() < 0.4]
        if len(topics) > 1 and random.random() < 0.7:
            # A subscriber that answers before the order is known makes chains of causes within one
            # tick.
            subscribers = tuple(
                _answering(random, each, topics) if each.name in eager else each
                for each in subscribers
            )
        self.subscribers: tuple[SubscriberSpec, ...] = subscribers
        self.eager = tuple(eager)
        self.publishers: tuple[PublisherSpec, ...] = draw_publishers(random, topics, duration_ns)
        self.relays: tuple[str, ...] = ()
        self.stacked: tuple[str, ...] = ()
        if random.random() < 0.3:
            self.relays = ("merger-1", "merger-2")[: random.randint(1, 2)]
            self.stacked = some_of(random, [each.name for each in subscribers])
        self.names = [each.name for each in self.publishers]
        self.names += [each.name for each in subscribers]
        self.names += self.relays

    def bearable(
        self, crashes: tuple[Crash, ...], config: MergedConfig, *, copies: bool
    ) -> tuple[Crash, ...]:
        """Leave out crashes of nodes that get events out of turn.

        Such a node forgets which it got, and copies are delivered again. Where there are no
        `copies`, only nodes that listen to several mergers get any.
        """
        subscribers = {each.name for each in self.subscribers}
        forgetful = subscribers if config.deliver_late else set(self.eager)
        if not copies:
            forgetful &= set(self.stacked) if len(self.relays) > 1 else set()
        return tuple(each for each in crashes if each.node not in forgetful)


def _answering(random: Random, subscriber: SubscriberSpec, topics: list[str]) -> SubscriberSpec:
    on = random.randrange(len(topics) - 1)
    answer = random.randrange(on + 1, len(topics))
    reply = Reply(on=topics[on], topic=topics[answer], share=0.7)
    return msgspec.structs.replace(subscriber, replies=(reply,))


class _Delays:
    """Delays of messages, and the longest one from a publisher to a subscriber."""

    def __init__(self, random: Random, names: list[str]) -> None:
        self._random = random
        longest_ns = random.choice((0, MS, 10 * MS, 40 * MS))
        self._held_back_ns = random.choice((0, 0, 20 * MS))
        self._default: DelayModel = random.choice(
            (Constant(longest_ns), Uniform(0, longest_ns), Uniform(longest_ns // 2, longest_ns))
        )
        # Some links take no time and some the maximum, independently of others.
        self._links = tuple(
            LinkDelay(
                source=name,
                target="ens",
                delay=Constant(random.choice((0, longest_ns))),
                both_ways=random.random() < 0.5,
            )
            for name in names
            if random.random() < 0.5
        )
        self.longest_ns = longest_ns + self._held_back_ns

    def network(self, *, lossy: bool) -> NetworkConfig:
        """Return the network."""
        random = self._random
        return NetworkConfig(
            default=self._default,
            links=self._links,
            loss=chance(random, 0.3) if lossy else 0.0,
            duplication=chance(random, 0.3),
            reordering=0.4 if self._held_back_ns else 0.0,
            reordering_delay=Uniform(0, self._held_back_ns),
        )


def _config(
    random: Random, kind: str, epsilon_ticks: int, longest_ns: int, tick_ns: int
) -> MergedConfig:
    """Return bounds that just hold; for *slow*, delta is too small for some messages."""
    hops_ns = int(2 * longest_ns * DRIFT)
    if kind == "slow":
        hops_ns //= random.choice((1, 2, 4))
    delta_ticks = ticks_of(hops_ns, tick_ns)
    config = MergedConfig(
        epsilon_ticks=epsilon_ticks,
        delta_ticks=delta_ticks,
        tick_ns=tick_ns,
        array=random.random() < 0.4,
        processes_max=20,
        events_per_tick_max=random.choice((1, 8, 1000)),
        deliver_late=random.random() < 0.4,
        held_max=random.choice((8, 65_536, 65_536)) if kind == "slow" else 65_536,
        remembered_max=65_536,
        retry_ns=random.randrange(30 * MS, 300 * MS),
    )
    if kind != "slow" and random.random() < 0.4:
        # A relay's listeners have a larger delta, and the same stamps.
        above = config.above(ticks_of(int(longest_ns * DRIFT), tick_ns) + 1)
        return msgspec.structs.replace(config, modulus=above.modulus_min)
    return config


def _clocks(random: Random, names: list[str], config: MergedConfig) -> dict[str, ClockConfig]:
    """Return clocks that differ by no more than epsilon as long as the run lasts."""
    epsilon_ns = config.epsilon_ticks * config.tick_ns
    # So late that no jump takes a clock below zero.
    start_ns = random.randrange(5 * SECOND, 6 * SECOND)
    share = random.choice((0.0, 0.25))
    drift_ppm = min(1_000_000 * (DRIFT - 1), 1_000_000 * share * epsilon_ns / RUN_MAX_NS)
    room_ns = int(epsilon_ns * (1 - 2 * share))
    return {
        name: ClockConfig(
            skew_ns=start_ns + random.choice((0, room_ns, random.randint(0, room_ns))),
            drift_ppm=random.uniform(-drift_ppm, drift_ppm),
        )
        for name in names
    }


def _crashes(random: Random, names: list[str], duration_ns: int) -> tuple[Crash, ...]:
    return tuple(
        Crash(
            node=random.choice(names),
            at_ns=random.randrange(duration_ns),
            restart_after_ns=random.choice((0, random.randrange(400 * MS))),
        )
        for _ in range(random.randint(1, 4))
    )


def _jumps(
    random: Random, names: list[str], until_ns: int, config: MergedConfig
) -> tuple[tuple[ClockJump, ...], int]:
    """Return jumps that are undone, at most one per node, and when the last is."""
    jumps: list[ClockJump] = []
    mended_ns = 0
    for name in random.sample(names, random.randint(1, len(names))):
        at_ns = random.randrange(until_ns // 2)
        back_ns = random.randrange(at_ns + 1, until_ns)
        most_ns = random.choice((2 * config.span_ticks * config.tick_ns, 2 * SECOND))
        by_ns = random.choice((-1, 1)) * random.randrange(1, most_ns + 1)
        # Readings of a clock that is set back by hand go back; one that waits instead would not be
        # mended yet.
        jumps.append(ClockJump(node=name, at_ns=at_ns, by_ns=by_ns, monotone=False))
        jumps.append(ClockJump(node=name, at_ns=back_ns, by_ns=-by_ns, monotone=False))
        mended_ns = max(mended_ns, back_ns)
    return tuple(jumps), mended_ns


def _corrupted(
    random: Random, kind: str, merge: MergeSpec, names: list[str], mended_ns: int
) -> MergeSpec:
    """Add the other faults, and return from when on they must have no effect."""
    config = merge.config
    corruptions: tuple[Corruption, ...] = ()
    share = 0.0
    if kind == "corruption":
        corruptions = tuple(
            Corruption(node=random.choice(names), at_ns=random.randrange(mended_ns + 1))
            for _ in range(random.randint(1, 8))
        )
        share = random.choice((0.0, 0.2, 0.8))
    # Who listens to relays waits for theirs: the longest wait is that of the upper level.
    level = config.above(merge.link_delta_ticks) if merge.stacked else config
    recovery_ns = int((level.span_ticks + 1) * config.tick_ns * DRIFT)
    return msgspec.structs.replace(
        merge,
        corruptions=corruptions,
        tampered_share=share,
        tampered_until_ns=mended_ns,
        judged_from_ns=int(mended_ns * DRIFT) + recovery_ns,
    )
