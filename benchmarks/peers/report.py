"""Results and goals as Markdown tables."""

import os
import platform
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.cases import CASES, versions
from benchmarks.peers.measurement import SUBSCRIBERS, Figures, Shape
from benchmarks.peers.tally import PAYLOAD_BYTES

__all__ = ["GOALS", "Goal", "goals", "machine", "median", "table"]

Found = Mapping[tuple[str, Shape], Sequence[Figures]]
"""By case and shape: the results of each round."""


TIMES = "\N{MULTIPLICATION SIGN}"
COLUMNS = (
    "",
    "order",
    "events/s",
    "CPU µs per event",
    "servers, publishers, subscribers",
    "CPU µs at 1,000/s",
    "p50, p99 at 1,000/s, ms",
    "p50, p99 at half load, ms",
    "one order seen",
)


@dataclass(frozen=True)
class Goal:
    """A limit on the ratio of two cases' figures."""

    what: str
    case: str
    peer: str
    figure: Callable[[Figures], float]
    bound: float
    at_least: bool = True

    @property
    def wanted(self) -> str:
        """The goal in words."""
        return f"{'≥' if self.at_least else '≤'} {self.bound:g} {TIMES}"

    def met_by(self, ratio: float) -> bool:
        """Whether a ratio meets the goal."""
        return ratio >= self.bound if self.at_least else ratio <= self.bound


def _rate(figures: Figures) -> float:
    return figures.rate


def _low_p50(figures: Figures) -> float:
    return figures.low_ms[0]


def _half_p50(figures: Figures) -> float:
    return figures.half_ms[0]


GOALS = (
    Goal("Ensue, synced each second: rate against NATS", "ensue", "nats", _rate, 1.0),
    Goal("… against Redis in one stream", "ensue", "redis-one", _rate, 1.5),
    Goal("… against JetStream in one stream", "ensue", "jetstream-one", _rate, 6.0),
    Goal("… against the Python hub", "ensue", "hub", _rate, 0.15),
    Goal("… p50 at 1,000/s against NATS", "ensue", "nats", _low_p50, 2.0, at_least=False),
    Goal(
        "Ensue, synced before the receipt: rate against Redis in one stream",
        *("ensue-fsync", "redis-one", _rate, 1.0),
    ),
    Goal("… against JetStream in one stream", "ensue-fsync", "jetstream-one", _rate, 3.0),
    Goal("Ensue on NATS: rate against NATS", "ensue-nats", "nats", _rate, 0.5),
    Goal("… p50 at half load", "ensue-nats", "nats", _half_p50, 2.0, at_least=False),
    Goal(
        "Ensue on JetStream: rate against a stream per topic",
        *("ensue-jetstream", "jetstream", _rate, 0.5),
    ),
    Goal(
        "… p50 at half load",
        *("ensue-jetstream", "jetstream", _half_p50, 2.0),
        at_least=False,
    ),
    Goal(
        "Ensue on Redis streams: rate against a stream per topic",
        *("ensue-redis", "redis", _rate, 0.5),
    ),
    Goal("… p50 at half load", "ensue-redis", "redis", _half_p50, 2.0, at_least=False),
)


def median(rounds: Sequence[Figures], figure: Callable[[Figures], float]) -> float:
    """Return the median of a figure over the rounds."""
    return statistics.median(figure(each) for each in rounds)


def machine(rounds: int, note: str) -> str:
    """Describe the machine and the versions."""
    load = os.getloadavg()[0]
    return (
        f"{PAYLOAD_BYTES}-byte events, {SUBSCRIBERS} subscribers of all topics, every publisher, "
        f"subscriber and server a process; {os.cpu_count()} cores ({_cpu()}), "
        f"Python {platform.python_version()}, {', '.join(versions())}; "
        f"median of {rounds}, load average {load:.1f} at the start{note}"
    )


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def table(found: Found, failed: Mapping[tuple[str, Shape], str], shape: Shape) -> list[str]:
    """Return the table of one shape."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    for case in CASES:
        rounds = found.get((case.name, shape), ())
        head = f"| {case.label} | {case.order} |"
        if rounds:
            lines.append(f"{head} {_row(rounds)} |")
        elif (case.name, shape) in failed:
            lines.append(f"{head} failed |{' |' * (len(COLUMNS) - 3)}")
    return lines


def _row(rounds: Sequence[Figures]) -> str:
    by_process = [
        statistics.median(each.cpu_by_process[kind] for each in rounds)
        for kind in ("servers", "publishers", "subscribers")
    ]
    overtaken = max(each.overtaken for each in rounds)
    same = all(each.same_order for each in rounds)
    seen = "yes" if same else "no"
    if overtaken:
        seen += f"; {overtaken:,} overtaken"
    behind = " (fell behind)" if any(each.fell_behind for each in rounds) else ""
    low, half = (
        ", ".join(f"{median(rounds, figure):.2f}" for figure in figures)
        for figures in (
            (_low_p50, lambda each: each.low_ms[1]),
            (_half_p50, lambda each: each.half_ms[1]),
        )
    )
    return " | ".join(
        (
            f"{median(rounds, _rate):,.0f}",
            f"{median(rounds, lambda each: each.cpu_us):.1f}",
            ", ".join(f"{each:.1f}" for each in by_process),
            f"{median(rounds, lambda each: each.low_cpu_us):.0f}",
            low,
            half + behind,
            seen,
        )
    )


def goals(found: Found, shape: Shape) -> list[str]:
    """Return the table of goals for one shape."""
    lines = ["| goal | wanted | measured | met |", "|---|---|---|---|"]
    for goal in GOALS:
        ours, theirs = found.get((goal.case, shape)), found.get((goal.peer, shape))
        if not ours or not theirs:
            lines.append(f"| {goal.what} | {goal.wanted} | not measured | |")
            continue
        peer = median(theirs, goal.figure)
        ratio = median(ours, goal.figure) / peer if peer else float("inf")
        met = "yes" if goal.met_by(ratio) else "no"
        lines.append(f"| {goal.what} | {goal.wanted} | {ratio:.2f} {TIMES} | {met} |")
    return lines
