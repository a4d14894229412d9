"""Repeat the experiments of the paper: `python -m experiments.hypercube [NAME …] [--runs N]`.

Names: single (Figure 4), publishers (Figure 5), barriers (Figure 6), brokers (Figure 9), speed. Without a name, all of them.
The paper's figures stand beside ours where it states them; where it does not say how something is drawn, the text here does.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from random import Random
from statistics import fmean

from experiments.hypercube.model import Cost, Run
from experiments.hypercube.srpt import broker_plan, subscriber_plan

from ensue.event import Event

SIZES = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)


def cube(count: int, subscribers: list[int], cost: Cost, seed: int) -> Run:
    """Return a world with a cube in it."""
    run = Run(cost, seed)
    run.add_cube(count, subscribers)
    return run


def srpt(count: int, subscribers: list[int], cost: Cost, seed: int) -> Run:
    """Return a world with one tree in it, rooted anywhere."""
    run = Run(cost, seed)
    root = Random(f"root/{seed}").randrange(count)
    run.add_srpt(count, subscriber_plan(count, root, subscribers))
    return run


System = Callable[[int, list[int], Cost, int], Run]


def one_event(system: System, count: int, share: float, seed: int) -> tuple[float, int]:
    """Let one subscriber publish once; return the mean latency and the copies it took."""
    random = Random(f"single/{count}/{share}/{seed}")
    subscribers = sorted(random.sample(range(count), max(2, round(count * share))))
    run = system(count, subscribers, Cost(), seed)
    run.publish(random.choice(subscribers), 0)
    return run.go(), run.copies


def single(runs: int) -> Iterator[str]:
    """Figure 4: one event, all or a quarter of the nodes subscribed."""
    yield "one event; mean latency in units, and copies sent"
    yield f"{'nodes':>6} {'subscribed':>10} {'cube':>8} {'SRPT':>8} {'copies':>8} {'SRPT':>8}"
    for share in (1.0, 0.25):
        for count in SIZES:
            times = runs if share < 1 else max(1, runs // 4)
            cubes = [one_event(cube, count, share, seed) for seed in range(times)]
            trees = [one_event(srpt, count, share, seed) for seed in range(times)]
            figures = [fmean(column) for column in (*zip(*cubes, strict=True),)]
            others = [fmean(column) for column in (*zip(*trees, strict=True),)]
            yield (
                f"{count:>6} {share:>10.0%} {figures[0]:>8.1f} {others[0]:>8.1f} "
                f"{figures[1]:>8.1f} {others[1]:>8.1f}"
            )
    yield "the paper, 4096 nodes of which a quarter subscribed: 533 and 720"


def all_publish(system: System, count: int, cost: Cost, seed: int) -> float:
    """Let every node publish once, at any time from 0 to 1000 units."""
    random = Random(f"publishers/{count}/{seed}")
    run = system(count, list(range(count)), cost, seed)
    for number in range(count):
        run.publish(number, random.uniform(0, 1000))
    return run.go()


def publishers(runs: int) -> Iterator[str]:
    """Figure 5: all nodes subscribe and publish once within 1000 units."""
    yield "every node publishes once within 1000 units; mean latency in units"
    yield f"{'nodes':>6} {'a copy costs':>12} {'cube':>8} {'SRPT':>8} {'ratio':>6}"
    for count in (64, 128, 256):
        for copy in (1, 2):
            times = max(1, runs // 10)
            cost = Cost(copy=copy)
            ours = fmean(all_publish(cube, count, cost, seed) for seed in range(times))
            theirs = fmean(all_publish(srpt, count, cost, seed) for seed in range(times))
            yield f"{count:>6} {copy:>12} {ours:>8.1f} {theirs:>8.1f} {theirs / ours:>6.2f}"
    yield "the paper, 256 nodes: a ratio of 2.48, which fits queues that hold a copy for 1 unit"


def answers(count: int, first: int, wait: float, seed: int) -> Run:
    """Let `first` nodes publish, and every other node answer once it has heard all of those."""
    random = Random(f"barriers/{count}/{first}/{wait}/{seed}")
    askers = random.sample(range(count), first)
    run = cube(count, list(range(count)), Cost(), seed)
    heard = {f"p{number}": 0 for number in range(count)}
    asking = {f"p{number}" for number in askers}

    def react(name: str, event: Event) -> None:
        if event.publisher in asking and event.publisher_seq == 1 and name not in asking:
            heard[name] += 1
            if heard[name] == first:
                at_units = run.world.now_ns / 1000 - 1000 + random.uniform(0, wait)
                run.publish(int(name[1:]), at_units)

    run.when_delivered(react)
    for number in askers:
        run.publish(number, 0)
    run.go()
    return run


def barriers(runs: int) -> Iterator[str]:
    """Figure 6: 256 nodes, each answers after a random wait; how many predecessors events name."""
    yield "256 nodes answer 1 or 10 questions, each after a wait drawn from 0 to so many units"
    yield (
        f"{'questions':>9} {'wait':>6} {'mean':>6} {'one':>6} {'<5':>6} {'ten':>6} {'<15':>6} "
        f"{'largest':>7} {'no delay':>8} {'<10':>6}"
    )
    for first in (1, 10):
        for wait in (100.0, 300.0, 1000.0):
            sizes: list[int] = []
            held: list[float] = []
            for seed in range(max(1, runs // 20)):
                run = answers(256, first, wait, seed)
                sizes += run.barriers.values()
                held += run.held
            yield (
                f"{first:>9} {wait:>6.0f} {fmean(sizes):>6.2f} {share(sizes, 1, 2):>6.1%} "
                f"{share(sizes, 0, 5):>6.1%} {share(sizes, 10, 11):>6.1%} "
                f"{share(sizes, 0, 15):>6.1%} {max(sizes):>7} {share(held, 0, 1e-9):>8.1%} "
                f"{share(held, 0, 10):>6.1%}"
            )
    yield (
        "the paper, one question: 19.9% name one, 51.6% fewer than 5; 87.2% delivered with no delay, "
        "95.1% in less than 10 units; ten questions: 35.2% name ten, 79.7% fewer than 15. "
        "It does not say how waits are drawn."
    )


def share(values: list[int] | list[float], low: float, high: float) -> float:
    """Return the share of values from one up to, not including, another."""
    return sum(low <= value < high for value in values) / len(values)


def brokers(runs: int) -> Iterator[str]:
    """Figure 9: 4096 nodes, 128 events, one every 500 units on average."""
    yield "4096 nodes, events 500 units apart on average; mean latency in units"
    events = 16 if runs < 40 else 128
    plans = {"cube": None, "SRPT, subscribers": 0, "SRPT, 32 brokers": 32,
             "SRPT, 256 brokers": 256, "SRPT, 2048 brokers": 2048}  # fmt: skip
    for label, number in plans.items():
        random = Random("brokers")
        run = Run(Cost(), 1)
        everybody = list(range(4096))
        if number is None:
            run.add_cube(4096, everybody)
        elif number == 0:
            run.add_srpt(4096, subscriber_plan(4096, 7, everybody))
        else:
            run.add_srpt(4096, broker_plan(4096, number, 7 % number))
        at_units = 0.0
        for _ in range(events):
            at_units += random.expovariate(1 / 500)
            run.publish(random.randrange(2048, 4096), at_units)
        yield f"{label:>20} {run.go():>8.1f}"
    yield "the paper: the cube is 22% faster than SRPT with 256 brokers"


def speed(runs: int) -> Iterator[str]:
    """How fast the simulator runs a cube of 4096 nodes."""
    run = cube(4096, list(range(4096)), Cost(), 1)
    for number in range(max(4, runs // 4)):
        run.publish(number * 97 % 4096, number * 50)
    # Time of this process, so that others on the machine don't count.
    started, before = time.process_time(), run.world.steps
    run.go()
    seconds = time.process_time() - started
    steps = run.world.steps - before
    yield (
        f"4096 nodes: {len(run.latencies):,} deliveries, {steps:,} frames and timers in "
        f"{seconds:.1f} s: {steps / seconds:,.0f} a second"
    )


EXPERIMENTS: dict[str, Callable[[int], Iterator[str]]] = {
    "single": single,
    "publishers": publishers,
    "barriers": barriers,
    "brokers": brokers,
    "speed": speed,
}


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description="Repeat the experiments of the paper.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(EXPERIMENTS))
    parser.add_argument("--runs", type=int, default=40, help="runs of each figure (40)")
    chosen = parser.parse_args()
    for name in chosen.names or EXPERIMENTS:
        if name not in EXPERIMENTS:
            parser.error(f"there is no experiment {name!r}; there are {', '.join(EXPERIMENTS)}")
        print(f"== {name} ({chosen.runs} runs)")
        for line in EXPERIMENTS[name](chosen.runs):
            print(line)
            sys.stdout.flush()


if __name__ == "__main__":
    main()
