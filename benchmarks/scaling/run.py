"""Everything that one run measured, and its tables."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.peers.goals import TIMES
from benchmarks.record import Machine
from benchmarks.scaling.layout import Layout
from benchmarks.scaling.measurement import Figures

__all__ = ["Failure", "Measured", "Run", "machine", "table"]

COLUMNS = (
    "topics",
    "subscribers",
    "events in a row",
    "deliveries per event",
    "events/s",
    "CPU µs per event",
    "against the first row",
    "server, publisher, subscribers",
    "server MB: subscribed, peak",
    "subscribed in, s",
)


@dataclass(frozen=True)
class Measured:
    """The results of one layout in one round."""

    part: str
    layout: Layout
    figures: Figures


@dataclass(frozen=True)
class Failure:
    """A layout that failed in one round."""

    part: str
    layout: Layout
    why: str


@dataclass(frozen=True)
class Run:
    """All rounds of all layouts, on one machine."""

    machine: Machine
    rounds: int
    quick: bool
    """Whether the figures are rough."""
    titles: dict[str, str]
    """The parts, by name, in the order of the tables."""
    measured: tuple[Measured, ...]
    failures: tuple[Failure, ...] = ()

    def layouts(self, part: str) -> list[Layout]:
        """Return the layouts of a part, smallest first."""
        found = {each.layout for each in self.measured if each.part == part}
        found |= {each.layout for each in self.failures if each.part == part}
        return sorted(found, key=lambda each: (each.topics, each.subscribers, each.run))

    def of(self, part: str, layout: Layout) -> list[Figures]:
        """Return the results of a layout in each round."""
        return [
            each.figures for each in self.measured if (each.part, each.layout) == (part, layout)
        ]


def machine(run: Run) -> str:
    """Describe the workload, the machine and the versions."""
    quick = "; quick: figures are rough" if run.quick else ""
    return (
        "100-byte events of one publisher, a server that syncs each second, subscribers with a "
        f"connection each in two processes. Measured {run.machine}; median of {run.rounds}{quick}"
    )


def table(run: Run, part: str) -> list[str]:
    """Return the table of one part."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    first: float | None = None
    for layout in run.layouts(part):
        head = (f"{layout.topics:,}", f"{layout.subscribers}", f"{layout.run}", f"{layout.copies}")
        rounds = run.of(part, layout)
        if rounds:
            cpu_us = statistics.median(each.cpu_us for each in rounds)
            first = first or cpu_us
            cells = _cells(rounds, cpu_us, cpu_us / first if first else 1.0)
        else:
            why = next(
                each.why for each in run.failures if (each.part, each.layout) == (part, layout)
            )
            cells = (" ".join(why.split()).replace("|", "/"), *[""] * (len(COLUMNS) - 5))
        lines.append(f"| {' | '.join((*head, *cells))} |")
    return lines


def _cells(rounds: Sequence[Figures], cpu_us: float, growth: float) -> tuple[str, ...]:
    def middle(figure: Callable[[Figures], float]) -> float:
        return statistics.median(map(figure, rounds))

    by_process = (
        middle(lambda each: each.server_us),
        middle(lambda each: each.publisher_us),
        middle(lambda each: each.subscribers_us),
    )
    before = middle(lambda each: each.memory_before)
    peak = middle(lambda each: each.memory_peak)
    return (
        f"{middle(lambda each: each.rate):,.0f}",
        f"{cpu_us:,.1f}",
        f"{growth:.2f} {TIMES}",
        ", ".join(f"{each:,.1f}" for each in by_process),
        f"{before / 1e6:,.0f}, {peak / 1e6:,.0f}",
        f"{middle(lambda each: each.subscribed_s):.1f}",
    )
