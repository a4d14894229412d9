"""Measure merged order: size of timestamps, rates, and recovery.

Run `python benchmarks/merge.py [sizes|speed|recovery]`, on one core.

* sizes: the largest possible timestamp with one event per tick, in bits and in bytes as sent
  (MessagePack without zero entries), and one without causes; compared with a vector clock of n
  counts (up to a million) and a plain hybrid logical clock (milliseconds and a counter).
* speed: timestamps made and encoded; 16 publishers to 4 mergers, from the stamped event to its
  delivery.
* recovery: swarm scenarios with more events, clock jumps, and corrupted memories and stamps. For
  each seed, the time from the last fault to the publication of the last event of a violation,
  compared with epsilon + delta.
"""

import argparse
import os
import platform
import time
from collections.abc import Iterator
from statistics import median
from typing import Any

import msgspec

from ensue.checkers import Verdict, check
from ensue.core.event import Event, Stamp
from ensue.protocols.interface import Broadcast, Deliver
from ensue.protocols.merged.config import MergedConfig
from ensue.protocols.merged.publisher import MergedPublisher
from ensue.protocols.merged.subscriber import MergedSubscriber
from ensue.protocols.merged.timestamps import (
    ArrayTimestamp,
    CounterTimestamp,
    Timeline,
    timestamps_for,
)
from ensue.protocols.topic_log.frames import Attached, Notify
from ensue.simulation.deployments.merged import published_from
from ensue.simulation.run import play
from ensue.simulation.scenario import Scenario
from ensue.simulation.swarms.merged import draw, kind_of

DELTA_TICKS = 100
EPSILONS = (1, 2, 5, 10, 20, 50)
PROCESSES = (10, 100, 1_000, 10_000)
PUBLISHERS, MERGERS = 16, 4
TICK_NS = 1_000_000
BUSIER = 8
SEQUENCE_MAX = 1_000_000
"""The largest count of a vector clock."""


def encoded(value: Any) -> int:
    """Return the bytes of a value on the wire."""
    return len(msgspec.msgpack.encode(value))


def bounds(epsilon: int, processes: int, *, array: bool, modulus: bool) -> MergedConfig:
    """Return a configuration with one event per tick."""
    config = MergedConfig(
        epsilon_ticks=epsilon,
        delta_ticks=DELTA_TICKS,
        tick_ns=TICK_NS,
        array=array,
        processes_max=processes,
        events_per_tick_max=1,
        durable=False,
    )
    return msgspec.structs.replace(config, modulus=config.modulus_min) if modulus else config


def largest(config: MergedConfig, r: int) -> dict[str, int]:
    """Return the entries of the largest possible timestamp."""
    epsilon, count = config.epsilon_ticks, config.count_max
    made: Any = CounterTimestamp(r, epsilon, count * (epsilon + 1) - 1)
    if config.array:
        made = ArrayTimestamp(r, epsilon, (count,) * (2 * epsilon + 1))
    return timestamps_for(config).to_entries(made)


def bits(config: MergedConfig) -> int:
    """Return the bits that hold any timestamp."""
    epsilon, count = config.epsilon_ticks, config.count_max
    reading = 64 if config.modulus is None else (config.modulus - 1).bit_length()
    if config.array:
        return reading + epsilon.bit_length() + (2 * epsilon + 1) * count.bit_length()
    return reading + epsilon.bit_length() + (count * (epsilon + 1) - 1).bit_length()


def sizes() -> None:
    """Print the table of sizes."""
    now_ms = 1_800_000_000_000
    print(f"bytes of a timestamp; delta = {DELTA_TICKS} ticks, one event a tick")
    print("ε   n       counter mod B    whole r          array mod B      vector   HLC")
    print("            bits most least  bits most least  bits most least  clock")
    for epsilon in EPSILONS:
        for processes in PROCESSES:
            cells = []
            for array, modulus in ((False, True), (False, False), (True, True)):
                config = bounds(epsilon, processes, array=array, modulus=modulus)
                r = now_ms if config.modulus is None else config.modulus - 1
                most = encoded(Stamp(largest(config, r)))
                kind = timestamps_for(config)
                least = encoded(Stamp(kind.to_entries(kind.first(r))))
                cells.append(f"{bits(config):5} {most:4} {least:5}")
            vector = encoded([SEQUENCE_MAX] * processes)
            hybrid = encoded((now_ms, processes))
            print(
                f"{epsilon:<3} {processes:<7} {'  '.join(cells)}  {vector:7,} {hybrid:4}",
                flush=True,
            )


def stamped(count: int, *, array: bool) -> Iterator[Event]:
    """Yield events of all publishers in turn, a few per tick."""
    config = bounds(5, 100, array=array, modulus=False)
    config = msgspec.structs.replace(config, events_per_tick_max=1_000)
    publishers = [
        MergedPublisher(name=f"publisher-{number}", config=config) for number in range(PUBLISHERS)
    ]
    for number in range(count):
        now_ns = 10**12 + number * TICK_NS // 64
        publisher = publishers[number % PUBLISHERS]
        publisher.publish("t", b"", now_ns=now_ns)
        for effect in publisher.take_effects():
            if isinstance(effect, Broadcast):
                yield effect.event


def merge_speed(count: int, *, array: bool) -> float:
    """Return the events per second of CPU time through all mergers."""
    config = bounds(5, 100, array=array, modulus=False)
    config = msgspec.structs.replace(config, events_per_tick_max=1_000, held_max=10**6)
    mergers = [MergedSubscriber(name=f"m{number}", config=config) for number in range(MERGERS)]
    for merger in mergers:
        merger.subscribe(("t",), now_ns=10**12)
        merger.receive(Attached(topic="t", first=1, next=1, sent=1), source="ens", now_ns=10**12)
    frames = [Notify(event=event) for event in stamped(count, array=array)]
    delivered = 0
    started = time.process_time()
    for number, frame in enumerate(frames):
        now_ns = 10**12 + number * TICK_NS // 64 + 20 * TICK_NS
        for merger in mergers:
            merger.receive(frame, source="ens", now_ns=now_ns)
        if number % 256 == 0:
            for merger in mergers:
                delivered += sum(type(each) is Deliver for each in merger.take_effects())
    for merger in mergers:
        merger.handle_timer(now_ns=2 * 10**12)
        delivered += sum(type(each) is Deliver for each in merger.take_effects())
    seconds = time.process_time() - started
    if delivered != count * MERGERS:
        raise SystemExit(f"{delivered} deliveries of {count * MERGERS}")
    return count / seconds


def stamp_speed(count: int, *, array: bool) -> float:
    """Return timestamps per second of CPU time; a few of them know another clock."""
    kind = timestamps_for(bounds(5, 10_000, array=array, modulus=False))
    line, other = Timeline(kind), Timeline(kind)
    received = other.event(10**6 + 3)
    started = time.process_time()
    for number in range(count):
        tick = 10**6 + number // 8
        known = (received,) if number % 8 == 0 else ()
        kind.to_entries(line.event(tick, known))
    return count / (time.process_time() - started)


def speed(*, quick: bool) -> None:
    """Print the rates."""
    count = 2_000 if quick else 200_000
    for array in (False, True):
        name = "array" if array else "counter"
        made = median(stamp_speed(count, array=array) for _ in range(3))
        print(f"{name}: {made:,.0f} timestamps/s")
        merged = median(merge_speed(count, array=array) for _ in range(3))
        print(
            f"{name}: {merged:,.0f} events/s from {PUBLISHERS} publishers through each of "
            f"{MERGERS} mergers on one core, {merged * MERGERS:,.0f} deliveries/s",
            flush=True,
        )


def busier(scenario: Scenario) -> Scenario:
    """Return a scenario with many more events, so that some event is affected at any time."""
    publishers = tuple(
        msgspec.structs.replace(
            each,
            rates=tuple(
                msgspec.structs.replace(rate, per_second=BUSIER * rate.per_second)
                for rate in each.rates
            ),
        )
        for each in scenario.publishers
    )
    return msgspec.structs.replace(scenario, publishers=publishers)


def recovery_ticks(seed: int) -> tuple[float, float] | None:
    """Return ticks from the last fault to the last violation, and epsilon + delta.

    None if there was no violation.

    Events are removed in the order of publication until no violation is left.
    """
    scenario = busier(draw(seed))
    merge = scenario.merge
    outcome = play(scenario, seed)
    tick_ns = merge.config.tick_ns
    # The recovery time that the swarm allows, in ticks of the slowest clock.
    mended_ns = merge.tampered_until_ns
    times = sorted({row.true_ns or 0 for row in outcome.rows if row.action == "published"})

    def wrong_from(cut_ns: int) -> bool:
        rows = published_from(outcome.rows, cut_ns)
        return check(rows, "merged", lossy=merge.lossy).verdict is Verdict.INVALID

    low, high = 0, len(times)
    while low < high:
        middle = (low + high) // 2
        if wrong_from(times[middle]):
            low = middle + 1
        else:
            high = middle
    if low == 0:
        return None
    level = merge.config.above(merge.link_delta_ticks) if merge.stacked else merge.config
    last_ns = times[low - 1]
    return (last_ns - mended_ns) / tick_ns, level.delta_ticks + level.epsilon_ticks


def recovery(seeds: range) -> None:
    """Print the recovery times."""
    found = []
    played = 0
    for seed in seeds:
        if kind_of(seed) in ("jumps", "corruption"):
            played += 1
            measured = recovery_ticks(seed)
            if measured is not None:
                found.append(measured)
    print(
        f"recovery: {played:,} seeds with jumps or corruption, "
        f"{len(found):,} of them with violations"
    )
    if found:
        after = [ticks for ticks, _ in found if ticks > 0]
        print(
            "  the last wrong event was published before the last fault in "
            f"{len(found) - len(after):,}"
        )
        shares = sorted(ticks / max(1, bound) for ticks, bound in found)
        print(
            f"  after the last fault, in units of epsilon + delta: median {median(shares):.2f}, "
            f"longest {shares[-1]:.2f}"
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "what", nargs="?", choices=("all", "sizes", "speed", "recovery"), default="all"
    )
    parser.add_argument("--seeds", type=int, default=600, help="for the recovery")
    parser.add_argument("--quick", action="store_true", help="scaled down, to try it out")
    chosen = parser.parse_args()
    print(f"{os.cpu_count()} cores, one used, Python {platform.python_version()}")
    if chosen.quick:
        print("quick: scaled down, the figures mean nothing")
    if chosen.what in ("all", "sizes"):
        sizes()
    if chosen.what in ("all", "speed"):
        speed(quick=chosen.quick)
    if chosen.what in ("all", "recovery"):
        recovery(range(12 if chosen.quick else chosen.seeds))


if __name__ == "__main__":
    main()
