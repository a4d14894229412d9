"""Run the cases of the experiments with merged order.

Clocks are as far apart as epsilon allows, messages take no time or all of delta, and some
subscribers answer events before their turn. So effects depend on clocks ahead of their own, which
makes events wait longest.
"""

from collections.abc import Iterator
from random import Random
from statistics import fmean
from typing import Any

import msgspec

from ensue.checkers import Verdict, check
from ensue.core.event import Stamp
from ensue.core.trace import Row as TraceRow
from ensue.core.wire import Records
from ensue.protocols.merged.config import MergedConfig
from ensue.protocols.merged.timestamps import Timeline, timestamps_for
from ensue.protocols.topic_log.log import TopicLogConfig
from ensue.simulation import run as simulation
from ensue.simulation.deployments.merged import published_from
from ensue.simulation.scenario import (
    Corruption,
    MergeSpec,
    PublisherSpec,
    Rate,
    Reply,
    Scenario,
    SubscriberSpec,
)
from ensue.simulation.world.clocks import ClockConfig
from ensue.simulation.world.delays import Constant
from ensue.simulation.world.disks import DiskConfig
from ensue.simulation.world.network import LinkDelay, NetworkConfig
from experiments.experiment import Case, Row, row
from experiments.merged.figure3 import Figure3Line

__all__ = ["run_delay", "run_growth", "run_recovery", "run_sizes"]

MS = 1_000_000
SECOND = 1_000_000_000
START_NS = 5 * SECOND
"""The slowest clock at the start."""
DURATION_NS = 1 * SECOND
FAULTS_END_NS = 300 * MS
PEOPLE = 4
_STAMP = Records[Stamp](Stamp)


def _scenario(epsilon: int, delta: int, seed: int, **merge: Any) -> Scenario:
    """Return a scenario at the limits of its assumptions; `epsilon` and `delta` are in ms."""
    random = Random(f"merging/{epsilon}/{delta}/{seed}")
    config = MergedConfig(
        epsilon_ticks=epsilon, delta_ticks=delta, processes_max=20, events_per_tick_max=1000
    )
    names = [f"p{number}" for number in range(PEOPLE)] + [f"s{number}" for number in range(PEOPLE)]
    # Two hops, publisher to relay to subscriber, take up to delta together.
    links = tuple(
        LinkDelay(source=name, target="ens", delay=Constant(random.choice((0, delta * MS // 2))))
        for name in names
    )
    eager = tuple(f"s{number}" for number in range(PEOPLE) if number % 2)
    return Scenario(
        name="merging",
        order="merged",
        duration_ns=DURATION_NS,
        settle_ns=20 * SECOND,
        publishers=tuple(
            PublisherSpec(name=f"p{number}", rates=(Rate(topics=("a", "b"), per_second=100),))
            for number in range(PEOPLE)
        ),
        subscribers=tuple(
            SubscriberSpec(
                name=f"s{number}",
                topics=("a", "b", "c"),
                replies=(Reply(on="a", topic="c", share=0.5),) if f"s{number}" in eager else (),
            )
            for number in range(PEOPLE)
        ),
        merge=MergeSpec(config=config, eager=eager, lossy=False, **merge),
        topic_log_config=TopicLogConfig(durable=False),
        network=NetworkConfig(default=Constant(delta * MS // 2), links=links),
        disk=DiskConfig(sync=Constant(0)),
        clocks={
            name: ClockConfig(skew_ns=START_NS + random.choice((0, epsilon * MS))) for name in names
        },
    )


def run_delay(case: Case) -> Iterator[Row]:
    """Measure the time from publication to delivery in order."""
    epsilon, delta = case["epsilon_ms"], case["delta_ms"]
    outcome = simulation.play(_scenario(epsilon, delta, case["seed"]), case["seed"])
    assert outcome.valid, outcome.sentences()
    published = {
        each.event: each.true_ns or 0 for each in outcome.rows if each.action == "published"
    }
    took = [
        ((each.true_ns or 0) - published[each.event]) / MS
        for each in outcome.rows
        # Early deliveries to an eager subscriber have a verdict.
        if each.action == "delivered" and not each.verdict and each.event in published
    ]
    bound = delta + 3 * epsilon
    series = f"ε = {epsilon} ms"
    yield row("delay", series, bound, max(took))
    yield row("delay", "δ + 3ε", bound, bound)
    yield row("mean", series, bound, fmean(took))
    # A tick is a millisecond, and the bound holds to the end of a tick.
    yield row("beyond", "all", bound, sum(each > bound + 1 for each in took))


def run_recovery(case: Case) -> Iterator[Row]:
    """Corrupt every node's memory and tamper with stamps; find when order is restored."""
    epsilon, delta, seed = case["epsilon_ms"], case["delta_ms"], case["seed"]
    names = [f"{kind}{number}" for kind in "ps" for number in range(PEOPLE)]
    scenario = _scenario(
        epsilon,
        delta,
        seed,
        corruptions=tuple(Corruption(node=name, at_ns=FAULTS_END_NS) for name in names),
        tampered_share=0.5,
        tampered_until_ns=FAULTS_END_NS,
        judged_from_ns=FAULTS_END_NS,
    )
    outcome = simulation.play(scenario, seed)
    bound = delta + 3 * epsilon
    yield row("recovery", f"ε = {epsilon} ms", bound, _recovered_ms(outcome.rows))
    yield row("recovery", "δ + 3ε", bound, bound)


def _recovered_ms(rows: list[TraceRow]) -> float:
    """Return the time from the last fault to the last event that is missing or out of order.

    The time of an event is that of its publication.
    """
    times = sorted(
        {
            each.true_ns
            for each in rows
            if each.action == "published" and each.true_ns is not None
            if each.true_ns >= FAULTS_END_NS
        }
    )
    low, high = 0, len(times)
    while low < high:
        middle = (low + high) // 2
        judged = check(published_from(rows, times[middle]), order="merged", lossy=False)
        # The later the start, the fewer the violations, so bisection finds the first valid start.
        if judged.verdict is Verdict.VALID:
            high = middle
        else:
            low = middle + 1
    assert low < len(times), "order was never restored"
    return 0.0 if low == 0 else (times[low - 1] - FAULTS_END_NS) / MS


def run_sizes(case: Case) -> Iterator[Row]:
    """Run processes that constantly hear of each other, and encode their stamps."""
    count, epsilon = case["processes"], case["epsilon_ticks"]
    config = MergedConfig(
        epsilon_ticks=epsilon,
        delta_ticks=50,
        processes_max=count,
        events_per_tick_max=4,
        array=case["array"],
    )
    config = msgspec.structs.replace(config, modulus=config.modulus_min)
    kind = timestamps_for(config)
    random = Random(f"sizes/{count}/{epsilon}")
    skews = [random.randint(0, epsilon) for _ in range(count)]
    lines = [Timeline(kind) for _ in range(count)]
    sizes: list[int] = []
    for tick in range(1000, 1000 + 3 * epsilon + 10):
        for number in random.sample(range(count), count):
            last = lines[random.randrange(count)].last
            made = lines[number].event(tick + skews[number], [] if last is None else [last])
            sizes.append(len(_STAMP.encode(Stamp(kind.to_entries(made)))))
    sizes = sizes[len(sizes) // 2 :]
    assert not any(line.resets for line in lines)
    name = "an array, as in the paper" if case["array"] else "one counter"
    if epsilon == case["usual"]:
        yield row("processes", name, count, fmean(sizes))
    if count == case["usual"]:
        yield row("epsilon", name, epsilon, fmean(sizes))


def run_growth(case: Case) -> Iterator[Row]:
    """Figure 4: three processes pass a message around, always to one whose clock is behind."""
    epsilon, rounds, every = case["epsilon_ticks"], case["rounds"], case["window_every"]
    config = MergedConfig(
        epsilon_ticks=epsilon, delta_ticks=10, tick_ns=1, events_per_tick_max=4, processes_max=3
    )
    lines: list[Any] = [
        Timeline(timestamps_for(config)) if case["ours"] else Figure3Line(config) for _ in range(3)
    ]
    j, k, el = lines
    name = "one counter" if case["ours"] else "Figure 3"
    name += f", a window every {every} ticks" if every else ", no windows"
    name += ", then local events" if case["local"] else ""
    tick = epsilon
    message = j.event(tick)
    most = 0
    for number in range(1, rounds + 1):
        if every and tick % every <= 2 * epsilon + 2:
            # No process makes an event until every clock has passed the window.
            tick += 2 * (2 * epsilon + 2)
            message = j.event(tick)
            for line in (k, el) if case["local"] else ():
                line.event(tick - epsilon)
        behind = tick - epsilon
        made = [k.event(behind + 1, [message]), k.event(behind + 2)]
        made += [el.event(behind + 1, [made[-1]]), el.event(behind + 2)]
        made.append(j.event(tick + 1, [made[-1]]))
        tick += 2
        message = j.event(tick)
        most = max(most, *(each.c for each in made))
        if number in (1, 10) or number % 25 == 0:
            yield row("4", name, number, most)
