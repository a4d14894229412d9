"""How commands talk: tables and sentences for people, one JSON object for programs, exit codes.

What a command found goes to stdout; progress and what went wrong go to stderr. With `--json`,
stdout gets exactly one object, also when the input was bad.

Exit codes: 0 valid, 1 a violation, 2 unknown, interrupted or bad input.
"""

import functools
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ParamSpec

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from ensue.checkers import Report, Verdict
from ensue.checkers.statistics import RunStatistics
from ensue.errors import BadInput, EnsueError

__all__ = [
    "EXIT_UNKNOWN",
    "EXIT_VALID",
    "EXIT_VIOLATION",
    "command",
    "exit_code",
    "option",
    "print_error",
    "print_findings",
    "print_json",
    "print_lines",
    "print_statistics",
    "print_table",
    "statistics_rows",
]

EXIT_VALID = 0
EXIT_VIOLATION = 1
EXIT_UNKNOWN = 2

_STYLES = {"valid": "green", "invalid": "bold red", "unknown": "yellow", "stuck": "bold red"}

Parameters = ParamSpec("Parameters")


class _Console(Console):
    """Goes on in silence when whoever reads stops reading, so that the exit code stays true."""

    def on_broken_pipe(self) -> None:
        _silence()


def _silence() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())


def command(function: Callable[Parameters, int]) -> Callable[Parameters, None]:
    """Turn a function that returns an exit code into a command that ends with it.

    What a person or the machine got wrong is told in one line, and never as a traceback.
    """

    @functools.wraps(function)
    def run(*args: Parameters.args, **options: Parameters.kwargs) -> None:
        try:
            code = function(*args, **options)
        except KeyboardInterrupt:
            problem = "interrupted"
        except EnsueError as error:
            problem = str(error)
        except OSError as error:
            problem = f"{error.filename or 'system'}: {error.strerror or error}"
        else:
            raise typer.Exit(code)
        print_error(problem)
        if options.get("json"):
            print_json({"error": problem})
        raise typer.Exit(EXIT_UNKNOWN)

    return run


@contextmanager
def option(name: str) -> Iterator[None]:
    """Name the option whose value is refused."""
    try:
        yield
    except BadInput as error:
        raise BadInput(f"{name}: {error}") from None


def exit_code(verdict: Verdict) -> int:
    """Return the exit code of a verdict."""
    codes = {Verdict.VALID: EXIT_VALID, Verdict.INVALID: EXIT_VIOLATION}
    return codes.get(verdict, EXIT_UNKNOWN)


def print_json(value: dict[str, Any]) -> None:
    """Print the one object a program reads."""
    try:
        sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        _silence()


def print_error(line: str) -> None:
    """Say what went wrong, in one line, on stderr."""
    sys.stderr.write(f"ensue: {line}\n")


def print_lines(lines: Iterable[str], *, style: str | None = None) -> None:
    """Print sentences as they are, never cut nor wrapped, so that they can be searched for."""
    console = _Console(highlight=False)
    for line in lines:
        console.print(line, style=style, markup=False, soft_wrap=True)


def print_table(
    title: str, headers: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[int] = ()
) -> None:
    """Print a table; the columns numbered in `right` hold figures. Empty headers aren't shown."""
    named = any(headers)
    table = Table(
        title=title or None,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD if named else None,
        show_header=named,
        pad_edge=True,
    )
    for index, header in enumerate(headers):
        table.add_column(header, justify="right" if index in right else "left")
    for row in rows:
        table.add_row(*(_styled(cell) for cell in row))
    _Console(highlight=False).print(table)


def print_statistics(title: str, statistics: RunStatistics, *more: tuple[str, str]) -> None:
    """Print the figures of a run."""
    print_table(title, ("", ""), [*statistics_rows(statistics), *more], right=(1,))


def print_findings(report: Report) -> None:
    """Print what each checker found."""
    rows = []
    for finding in report.findings:
        counts = ", ".join(f"{count} {kind}" for kind, count in finding.anomaly_counts.items())
        notes = "; ".join((*finding.reasons, *finding.notes))
        rows.append((finding.checker, str(finding.verdict), counts or notes or "nothing wrong"))
    rows.append(("all", str(report.verdict), "; ".join(report.reasons)))
    print_table("", ("checker", "verdict", "found"), rows)


def statistics_rows(statistics: RunStatistics) -> list[tuple[str, str]]:
    """Return the figures of a run as rows of a table, without those that don't apply."""
    rows = [
        ("events", f"{statistics.events:,}"),
        ("deliveries", f"{statistics.deliveries:,}"),
        ("subscribers", f"{statistics.subscribers:,}"),
        (
            "pairs in opposite orders",
            f"{statistics.inversions:,} of {statistics.common_pairs:,}",
        ),
    ]
    if statistics.held_count is not None:
        held = f"{statistics.held_count:,}"
        if statistics.held_mean_ms is not None:
            held += f", for {statistics.held_mean_ms:.1f} ms on average"
        rows.append(("held back", held))
    for name, value, unit in (
        ("latency, median", statistics.latency_p50_ms, " ms"),
        ("latency, 99th percentile", statistics.latency_p99_ms, " ms"),
        ("latency, longest", statistics.latency_max_ms, " ms"),
        ("stamp entries, mean", statistics.stamp_entries_mean, ""),
        ("stamp bytes, mean", statistics.stamp_bytes_mean, ""),
    ):
        if value is not None:
            rows.append((name, f"{value:.1f}{unit}"))
    for what, counts in (("discarded", statistics.discarded), ("tagged", statistics.tagged)):
        rows += [(f"{what} as {verdict or 'nothing'}", f"{n:,}") for verdict, n in counts.items()]
    if statistics.crashes:
        rows.append(("crashes", f"{statistics.crashes:,}"))
    return rows


def _styled(cell: str) -> str:
    style = _STYLES.get(cell)
    escaped = cell.replace("[", r"\[")
    return f"[{style}]{escaped}[/{style}]" if style else escaped
