"""Results and goals as Markdown tables."""

import statistics
from collections.abc import Sequence

from benchmarks.peers.cases import CASES, Case
from benchmarks.peers.goals import (
    EVEN_SHAPES,
    GOALS,
    RATIOS,
    TIMES,
    Judged,
    judge,
    judge_shape,
    share,
)
from benchmarks.peers.measurement import FIRST, SUBSCRIBERS, TASKS, Awaited, Figures, Shape
from benchmarks.peers.run import Run

__all__ = ["awaited", "goals", "machine", "rates", "ratios", "table"]

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
AWAITED_COLUMNS = ("events/s", "CPU µs per event", "receipt p50, p99, ms")
LABELS = {case.name: case.label for case in CASES}


def machine(run: Run) -> str:
    """Describe the workload, the machine and the versions."""
    return (
        f"{SUBSCRIBERS} subscribers of all topics, 100-byte events unless stated, every publisher, "
        f"subscriber and server a process. Measured {run.machine}; median of {run.rounds}{run.note}"
    )


def _rows(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    return lines + [f"| {' | '.join(row)} |" for row in rows]


def table(run: Run, shape: Shape) -> list[str]:
    """Return the table of one shape."""
    rows = []
    for case in CASES:
        figures = list(run.of(case.name, shape).values())
        if figures:
            rows.append((case.label, case.order, *_row(figures)))
        elif run.failure(case.name, shape):
            rows.append((case.label, case.order, "failed", *[""] * (len(COLUMNS) - 3)))
    return _rows(COLUMNS, rows)


def _row(rounds: Sequence[Figures]) -> tuple[str, ...]:
    middle = statistics.median
    by_process = [
        middle(each.cpu_by_process[kind] for each in rounds)
        for kind in ("servers", "publishers", "subscribers")
    ]
    overtaken = max(each.overtaken for each in rounds)
    seen = "yes" if all(each.same_order for each in rounds) else "no"
    if overtaken:
        seen += f"; {overtaken:,} overtaken"
    behind = " (fell behind)" if any(each.fell_behind for each in rounds) else ""
    return (
        f"{middle(each.rate for each in rounds):,.0f}",
        f"{middle(each.cpu_us for each in rounds):.1f}",
        ", ".join(f"{each:.1f}" for each in by_process),
        f"{middle(each.low_cpu_us for each in rounds):.0f}",
        _pair([each.low_ms for each in rounds]),
        _pair([each.half_ms for each in rounds]) + behind,
        seen,
    )


def _pair(rounds: Sequence[tuple[float, float]]) -> str:
    return ", ".join(f"{statistics.median(each):.2f}" for each in zip(*rounds, strict=True))


def awaited(run: Run) -> list[str]:
    """Return the table of publishers that wait for the receipt of each event."""
    heads = [
        f"{'one at a time' if tasks == 1 else f'{tasks} tasks'}: {column}"
        for tasks in TASKS
        for column in AWAITED_COLUMNS
    ]
    rows = []
    for case in CASES:
        measured = [each.awaited for each in run.of(case.name, FIRST).values() if each.awaited]
        if measured:
            cells = [
                cell
                for tasks in TASKS
                for cell in _awaited_cells(
                    [each for group in measured for each in group if each.tasks == tasks]
                )
            ]
            rows.append((case.label, *cells))
    return _rows(("", *heads), rows)


def _awaited_cells(rounds: Sequence[Awaited]) -> tuple[str, str, str]:
    return (
        f"{statistics.median(each.rate for each in rounds):,.0f}",
        f"{statistics.median(each.cpu_us for each in rounds):.0f}",
        _pair([each.receipt_ms for each in rounds]),
    )


def rates(run: Run) -> list[str]:
    """Return the events/s of each case in each shape."""
    rows = []
    for case in CASES:
        cells = [_rate(run, case, shape) for shape in run.shapes]
        if any(cells):
            rows.append((case.label, *cells))
    return _rows(("events/s", *map(str, run.shapes)), rows)


def _rate(run: Run, case: Case, shape: Shape) -> str:
    rate = run.median(case.name, shape, lambda each: each.rate)
    if rate is not None:
        return f"{rate:,.0f}"
    return "failed" if run.failure(case.name, shape) else ""


def ratios(run: Run) -> list[str]:
    """Return every ratio in each shape; in brackets its share of the first shape's."""
    shapes = [shape for shape in run.shapes if shape == FIRST or shape in EVEN_SHAPES]
    rows = []
    for ratio in RATIOS:
        cells = []
        for shape in shapes:
            value, part = ratio.of(run, shape), share(ratio, run, shape)
            shown = "" if value is None else f"{value:.2f} {TIMES}"
            cells.append(shown if shape == FIRST or part is None else f"{shown} ({part:.2f})")
        if any(cells):
            what = f"{LABELS[ratio.case]} / {LABELS[ratio.peer]}: {ratio.figure.name}"
            rows.append((what, *cells))
    return _rows(("ratio", *map(str, shapes)), rows)


def goals(run: Run) -> list[str]:
    """Return the table of goals."""
    judged = [judge(goal, run) for goal in GOALS]
    judged += [each for shape in EVEN_SHAPES for each in judge_shape(shape, run)]
    heads = ("goal", "wanted", "measured", "single rounds", "met")
    return _rows(heads, [_judged(each) for each in judged])


def _judged(judged: Judged) -> tuple[str, ...]:
    met = "" if judged.met is None else "yes" if judged.met else "no"
    return (judged.what, judged.wanted, judged.measured, judged.rounds, met)
