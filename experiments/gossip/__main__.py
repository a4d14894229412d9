"""Repeat the experiment of the paper, and go beyond it: `python -m experiments.gossip [NAME …] [--runs N] [--most N] [--perturbed PERCENT …]`.

Names: throughput (Figure 6), scale (up to 10,000 subscribers, where the paper stops at 200), bytes. Without a name, all of them.
The paper gives no figures beside its curves; what it leaves open is stated in `model`.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from statistics import fmean

import msgspec
from experiments.gossip.model import Load, gossip, reliable
from experiments.gossip.sizes import between_members, from_brokers

SECOND = 1_000_000_000


class Options(msgspec.Struct, frozen=True):
    """What was asked for."""

    runs: int
    most: int
    """The largest group."""
    perturbed: tuple[int, ...]
    """Percent."""


def throughput(options: Options) -> Iterator[str]:
    """Figure 6: groups of 50 to 200, a fifth to half of them perturbed, 0.1 % lost and crashed."""
    yield "4 publishers, 25 events a second each; events a second that a subscriber is given in order and on time, and their share"
    yield f"{'perturbed':>9} {'group':>6} {'gossip':>8} {'share':>7} {'reliable':>9} {'share':>7} {'kB an event':>12} {'reliable':>9}"
    for percent in options.perturbed:
        for count in (50, 100, 150, 200):
            if count > options.most:
                continue
            load = Load(subscribers=count, perturbed=percent / 100, duration_ns=SECOND)
            ours = [gossip(load, seed) for seed in range(options.runs)]
            theirs = [reliable(load, seed) for seed in range(options.runs)]
            yield (
                f"{percent:>8}% {count:>6} {fmean(one.per_second for one in ours):>8.1f} "
                f"{fmean(one.on_time for one in ours):>7.1%} "
                f"{fmean(one.per_second for one in theirs):>9.1f} "
                f"{fmean(one.on_time for one in theirs):>7.1%} "
                f"{fmean(one.bytes for one in ours) / 1000:>12.0f} "
                f"{fmean(one.bytes for one in theirs) / 1000:>9.0f}"
            )
    yield "the paper: gossip hardly changes as groups and perturbation grow, the reliable protocol falls rapidly; it prints no figures"


def scale(options: Options) -> Iterator[str]:
    """Gossip alone, 20 % perturbed, 0.1 % lost and crashed, up to 10,000 subscribers."""
    yield "4 publishers, 5 events a second each, 20 % of the subscribers perturbed; fan-out 4, 3 rounds beyond the logarithm"
    yield f"{'subscribers':>11} {'rounds':>6} {'on time':>8} {'frames an event':>16} {'for each subscriber':>20} {'seconds':>8}"
    for count in (100, 300, 1_000, 3_000, 10_000):
        if count > options.most:
            continue
        load = Load(
            subscribers=count,
            perturbed=0.2,
            per_second=5.0,
            duration_ns=SECOND,
            alpha=3,
            fan_out=4,
        )
        # Time of this process, so that others on the machine don't count.
        started = time.process_time()
        found = [
            gossip(load, seed) for seed in range(max(1, options.runs if count <= 1_000 else 1))
        ]
        seconds = time.process_time() - started
        frames = fmean(one.frames for one in found)
        yield (
            f"{count:>11,} {load.config.lifetime_rounds:>6} {fmean(one.on_time for one in found):>8.2%} "
            f"{frames:>16,.0f} {frames / count:>20.1f} {seconds / len(found):>8.1f}"
        )


def bytes_(options: Options) -> Iterator[str]:
    """Bytes of ordering information for each message, as groups grow."""
    yield "bytes of ordering information a message; brokers publish in turn, one a round, and hear everything"
    yield f"{'brokers':>7} {'to brokers, whole':>18} {'as differences':>15} {'to subscribers':>15}"
    for count in (2, 4, 8, 16, 32):
        if count > options.most:
            continue
        sizes = from_brokers(count)
        yield f"{count:>7} {sizes.whole:>18,.0f} {sizes.differences:>15,.0f} {sizes.rumour:>15,.0f}"
    yield f"{'members':>7} {'reliable, 4 publish':>20} {'reliable, all do':>17}"
    for count in (50, 100, 150, 200):
        if count <= options.most:
            few, everybody = between_members(count, 4), between_members(count, count)
            yield f"{count:>7} {few:>20,.0f} {everybody:>17,.0f}"


EXPERIMENTS: dict[str, Callable[[Options], Iterator[str]]] = {
    "throughput": throughput,
    "scale": scale,
    "bytes": bytes_,
}


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description="Repeat the experiment of the paper.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(EXPERIMENTS))
    parser.add_argument("--runs", type=int, default=3, help="runs of each figure (3)")
    parser.add_argument("--most", type=int, default=10_000, help="the largest group (10000)")
    parser.add_argument(
        "--perturbed", type=int, nargs="+", default=(20, 30, 40, 50), help="percent (20 30 40 50)"
    )
    chosen = parser.parse_args()
    options = Options(chosen.runs, chosen.most, tuple(chosen.perturbed))
    for name in chosen.names or EXPERIMENTS:
        if name not in EXPERIMENTS:
            parser.error(f"there is no experiment {name!r}; there are {', '.join(EXPERIMENTS)}")
        print(f"== {name} ({chosen.runs} runs)")
        for line in EXPERIMENTS[name](options):
            print(line)
            sys.stdout.flush()


if __name__ == "__main__":
    main()
