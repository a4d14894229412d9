"""The command `demo`: run a workload without order and with total order."""

import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from ensue.checkers import Inversions, Report, Verdict, check, inversions
from ensue.checkers.disagreement import Orders
from ensue.checkers.history import histories
from ensue.checkers.statistics import RunStatistics, statistics
from ensue.cli import output
from ensue.cli.demo_workload import Workload, run
from ensue.core.errors import MissingExtra
from ensue.core.order import Order, Total
from ensue.core.trace import Row, read

__all__ = ["demo"]


class _Half:
    """One half of the demo: the same workload with one order."""

    def __init__(self, order: Order | None, trace: Path) -> None:
        self.name = "none" if order is None else order.name
        self.trace = trace
        rows = read(trace)
        self.statistics: RunStatistics = statistics(rows)
        self.inversions: Inversions = inversions(rows)
        self.displaced: int = _displaced(rows)
        self.report: Report = check(rows, order=self.name)


@output.command
def demo(
    *,
    seconds: Annotated[
        float, typer.Option(min=0.2, max=3600, help="How long each half publishes.")
    ] = 12.0,
    trace: Annotated[
        Path | None,
        typer.Option(help="Where to record both runs; by default a new directory below runs/."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the workload and the jitter.")] = 1,
    spark: Annotated[
        bool, typer.Option(help="Audit both recorded runs on Spark at the end.")
    ] = True,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Run a busy shop twice: with no order, and with total order.

    Eight services publish on eight topics, eight others subscribe to four topics each, and each
    notification takes up to 60 ms. With no order, services see the same events in opposite
    orders; with total order none do. Both halves run in this process and are recorded: a trace
    that you can check again, and the event log.

    Example: [bold]ensue demo --seconds 5[/bold]
    """
    folder = trace or Path("runs") / f"demo-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    workload = Workload(seconds=seconds, seed=seed)
    unordered = _half(workload, None, folder / "none", quiet=json)
    if not json:
        _show_problem(unordered)
    total = _half(workload, Total(), folder / "total", quiet=json)
    halves = (unordered, total)
    if not json:
        _show_cure(unordered, total)
    audits = _audits(halves) if spark else {}
    if json:
        results = {half.name: _to_dict(half) for half in halves}
        for name, report in audits.items():
            results[name]["audit"] = report.to_dict()
        output.print_json(results)
    else:
        _show_audits(audits)
    verdicts = [total.report.verdict, *(report.verdict for report in list(audits.values())[1:])]
    return output.exit_code(Verdict.worst(verdicts))


def _half(workload: Workload, order: Order | None, trace: Path, *, quiet: bool) -> _Half:
    name = "no order" if order is None else "total order"
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description:12}"),
        BarColumn(),
        TextColumn("{task.fields[events]:,} events, {task.fields[deliveries]:,} deliveries"),
        TimeElapsedColumn(),
    )
    live = console.is_terminal and not quiet
    if not live and not quiet:
        sys.stderr.write(f"{name}: publishing for {workload.seconds:g} s …\n")
    with Progress(*columns, console=console, disable=not live) as progress:
        task = progress.add_task(name, total=1.0, events=0, deliveries=0)

        def update(share: float, events: int, deliveries: int) -> None:
            progress.update(task, completed=share, events=events, deliveries=deliveries)

        run(workload, order, str(trace), update)
    return _Half(order, trace)


def _show_problem(half: _Half) -> None:
    found = half.inversions
    share = found.count / found.common_count if found.common_count else 0.0
    events = half.statistics.events
    displaced = f"{half.displaced:,} of {events:,} events ({_percent(half.displaced, events)})"
    pairs = f"{found.count:,} of {found.common_count:,} pairs of events ({share:.1%})"
    output.print_lines(
        [
            "",
            f"With no order, {displaced} were seen in different orders by two services:",
            f"services saw {pairs} in opposite orders.",
        ]
    )
    if found.sides is None or found.events is None:
        output.print_lines(
            ["This time no two services disagreed; try a longer run with --seconds."]
        )
        return
    output.print_lines(["One of them, side by side:", ""])
    marks = {found.events[0]: "→ ", found.events[1]: "⇒ "}
    columns = [
        [f"{marks.get(event, '  ')}{position:>5}  {event}" for position, event in side.deliveries]
        for side in found.sides
    ]
    depth = max(len(column) for column in columns)
    rows = [
        tuple(column[index] if index < len(column) else "" for column in columns)
        for index in range(depth)
    ]
    names = [f"{side.name} delivered" for side in found.sides]
    output.print_table("", names, rows)


def _show_cure(unordered: _Half, total: _Half) -> None:
    found = total.inversions
    before, after = unordered.statistics, total.statistics
    displaced = f"{total.displaced:,} of {after.events:,} events"
    pairs = f"{found.count:,} of {found.common_count:,} pairs of events"
    output.print_lines(
        [
            "",
            f"With total order, {displaced} were seen in different orders by two services:",
            f"services saw {pairs} in opposite orders.",
            "",
        ]
    )
    rows = [
        ("events", f"{before.events:,}", f"{after.events:,}"),
        ("deliveries", f"{before.deliveries:,}", f"{after.deliveries:,}"),
        (
            "events in different orders",
            f"{unordered.displaced:,}",
            f"{total.displaced:,}",
        ),
        ("pairs in opposite orders", f"{before.inversions:,}", f"{after.inversions:,}"),
        ("held back", "-", _figure(after.held_count, "")),
        (
            "latency, median",
            _figure(before.latency_p50_ms, " ms"),
            _figure(after.latency_p50_ms, " ms"),
        ),
        (
            "latency, 99th percentile",
            _figure(before.latency_p99_ms, " ms"),
            _figure(after.latency_p99_ms, " ms"),
        ),
        ("stamp entries, mean", "-", _figure(after.stamp_entries_mean, "")),
        ("stamp bytes, mean", "-", _figure(after.stamp_bytes_mean, "")),
    ]
    output.print_table("", ("", "no order", "total order"), rows, right=(1, 2))
    output.print_findings(total.report, "total order, judged from its trace")
    ensue = output.program()
    again = f"{ensue} check {total.trace} --order total"
    if total.report.verdict is not Verdict.VALID:
        output.print_witnesses(total.report, every=False, more=f"every one: {again} --all")
    output.print_lines(
        [
            f"The recorded runs are in {unordered.trace} and {total.trace}.",
            f"Check them yourself: {again}",
            f"                     {ensue} check {unordered.trace} --order total",
        ]
    )


def _audits(halves: Sequence[_Half]) -> dict[str, Report]:
    """Judge the recorded runs on Spark; without Spark, print why and return nothing."""
    try:
        from ensue import spark as es  # noqa: PLC0415 - an extra
        from ensue.spark.java import MissingJava  # noqa: PLC0415 - as above
    except MissingExtra as error:
        sys.stderr.write(f"no audit on Spark: {error}\n")
        return {}
    sys.stderr.write("starting Spark, to audit both recorded runs …\n")
    try:
        session = es.session("local[2]", app="ensue demo")
    except MissingJava as error:
        sys.stderr.write(f"no audit on Spark: {error}\n")
        return {}
    try:
        return {half.name: es.audit(half.trace, "total").report() for half in halves}
    finally:
        session.stop()


def _show_audits(audits: Mapping[str, Report]) -> None:
    for name, report in audits.items():
        title = (
            f"{'no order' if name == 'none' else 'total order'}, audited on Spark for total order"
        )
        output.print_findings(report, title)
    if audits:
        output.print_lines(
            [f"The same on large traces: {output.program()} audit DIR --order total"]
        )


def _displaced(rows: Sequence[Row]) -> int:
    """Count events that two subscribers delivered on different sides of another event."""
    runs, _ = histories(rows)
    count = 0
    for orders in map(Orders, runs):
        events: set[int] = set()
        for part in orders.parts:
            for one, other in combinations(part.values(), 2):
                rank = {event: place for place, event in enumerate(other)}
                common = [event for event in one if event in rank]
                events |= _out_of_place(common, rank)
        count += len(events)
    return count


def _out_of_place(events: list[int], rank: dict[int, int]) -> set[int]:
    """Return events that follow one of higher rank, or precede one of lower rank."""
    found: set[int] = set()
    highest = -1
    for event in events:
        if rank[event] < highest:
            found.add(event)
        highest = max(highest, rank[event])
    lowest = len(rank)
    for event in reversed(events):
        if rank[event] > lowest:
            found.add(event)
        lowest = min(lowest, rank[event])
    return found


def _percent(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "0%"


def _figure(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    return f"{value:,}{unit}" if isinstance(value, int) else f"{value:,.1f}{unit}"


def _to_dict(half: _Half) -> dict[str, Any]:
    return {
        "trace": str(half.trace),
        "statistics": half.statistics.to_dict(),
        "displaced": half.displaced,
        "inversions": half.inversions.count,
        "common_pairs": half.inversions.common_count,
        "example": half.inversions.because,
        "report": half.report.to_dict(),
    }
