"""Output of commands: tables and sentences, JSON for programs, exit codes.

Results go to stdout; progress and errors go to stderr. With `--json`, stdout gets exactly one
object, also for bad input. `pub` and `sub` use stdout for events only, and stderr for errors.

Exit codes: 0 valid, 1 a violation, 2 unknown, interrupted or bad input.
"""

import functools
import json
import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, ParamSpec

import msgspec
import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ensue.checkers import Finding, Report, Verdict
from ensue.checkers.statistics import RunStatistics
from ensue.checkers.total import SEARCH_ENDED
from ensue.core.errors import BadInput, EnsueError

__all__ = [
    "EXIT_UNKNOWN",
    "EXIT_VALID",
    "EXIT_VIOLATION",
    "choice",
    "command",
    "counted",
    "exit_code",
    "option",
    "print_error",
    "print_findings",
    "print_json",
    "print_lines",
    "print_statistics",
    "print_stderr",
    "print_table",
    "print_witnesses",
    "program",
    "statistics_rows",
    "stream_command",
    "warnings_on_stderr",
    "were",
]

EXIT_VALID = 0
EXIT_VIOLATION = 1
EXIT_UNKNOWN = 2

_STYLES = {"valid": "green", "invalid": "bold red", "unknown": "yellow", "stuck": "bold red"}

WITNESSES_SHOWN = 3
"""Violations of each checker that are explained, unless all are requested."""

_KINDS = {
    "fifo": (
        "delivery against its publisher's order",
        "deliveries against their publisher's order",
    ),
    "total": ("disagreement", "disagreements"),
    "causal": ("effect before its cause", "effects before their causes"),
    "slow": ("slow delivery", "slow deliveries"),
    "lost": ("event lost", "events lost"),
    "duplicate": ("event delivered twice", "events delivered twice"),
    "phantom": ("event that was not published", "events that were not published"),
    "uninvited": ("event without a subscription", "events without a subscription"),
    "void": ("event that was void", "events that were void"),
    "split": (
        "transaction committed here and aborted there",
        "transactions committed here and aborted there",
    ),
    "dirty": ("event of no committed transaction", "events of no committed transaction"),
    "torn": ("event of a transaction missing", "events of transactions missing"),
    "stale": ("unexpected event", "unexpected events"),
    "sequential": ("operation out of order", "operations out of order"),
    "global": ("cycle of orders", "cycles of orders"),
    "cycle": ("disagreement about commits", "disagreements about commits"),
    "position": ("position that does not follow", "positions that do not follow"),
    "again": ("acknowledged event that came again", "acknowledged events that came again"),
    "mixed": ("event routed by two states", "events routed by two states"),
    "tables": ("fault in routing tables", "faults in routing tables"),
}
"""Names of anomalies, in the singular and the plural."""

Parameters = ParamSpec("Parameters")


class _Console(Console):
    """A console that ignores a closed stdout: the exit code still gives the result."""

    def on_broken_pipe(self) -> None:
        _discard_stdout()


def _discard_stdout() -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())


def plain(text: str) -> str:
    """Escape control characters for the terminal: clients choose names."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def command(function: Callable[Parameters, int]) -> Callable[Parameters, None]:
    """Turn a function that returns an exit code into a command.

    Errors of the user or the system are printed in one line, without a traceback.
    """
    return _command(function, json_errors=True)


def stream_command(function: Callable[Parameters, int]) -> Callable[Parameters, None]:
    """Turn a function into a command whose stdout is for events only."""
    return _command(function, json_errors=False)


def _command(
    function: Callable[Parameters, int], *, json_errors: bool
) -> Callable[Parameters, None]:

    @functools.wraps(function)
    def run(*args: Parameters.args, **options: Parameters.kwargs) -> None:
        try:
            code = function(*args, **options)
        except KeyboardInterrupt as interrupt:
            problem = "; ".join(("interrupted", *map(str, interrupt.args)))
        except EnsueError as error:
            problem = str(error)
        except OSError as error:
            problem = f"{error.filename or 'system'}: {error.strerror or error}"
        except Exception as error:
            sentence = _spark_sentence(error)
            if sentence is None:
                raise
            problem = sentence
        else:
            raise typer.Exit(code)
        print_error(problem)
        if json_errors and options.get("json"):
            with suppress(OSError):  # A failing stdout may be the problem itself.
                print_json({"error": problem})
        raise typer.Exit(EXIT_UNKNOWN)

    return run


def _spark_sentence(error: Exception) -> str | None:
    """Return an error of Spark in one sentence; None for any other error."""
    if "pyspark" not in sys.modules and "pyarrow" not in sys.modules:
        return None
    from ensue.spark.failures import is_of_spark, sentence  # noqa: PLC0415 - an extra

    return sentence(str(error)) if is_of_spark(error) else None


@contextmanager
def option(name: str) -> Iterator[None]:
    """Prefix errors with the name of an option."""
    try:
        yield
    except BadInput as error:
        raise BadInput(f"{name}: {error}") from None


def counted(number: int, what: str) -> str:
    """Return a number with its noun, such as `1 event` or `2 events`."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def were(number: int) -> str:
    """Return a number with its verb, such as `1 was` or `2 were`."""
    return f"{number:,} was" if number == 1 else f"{number:,} were"


def choice(known: Callable[[], Iterable[str]]) -> Callable[[str], str]:
    """Return an option parser that accepts the names that `known` returns."""

    def name(text: str) -> str:
        names = tuple(known())
        if text not in names:
            listed = ", ".join(map(repr, names))
            raise typer.BadParameter(f"{text!r} is not one of {listed}.")
        return text

    return name


def exit_code(verdict: Verdict) -> int:
    """Return the exit code of a verdict."""
    codes = {Verdict.VALID: EXIT_VALID, Verdict.INVALID: EXIT_VIOLATION}
    return codes.get(verdict, EXIT_UNKNOWN)


def program() -> str:
    """Return how to call this program in a hint: it may not be on the path."""
    called = sys.argv[0]
    if Path(called).name != "ensue":
        return "ensue"
    found = shutil.which("ensue")
    same = found is not None and Path(called).exists() and Path(found).samefile(called)
    return "ensue" if same else called


def print_json(value: dict[str, Any]) -> None:
    """Print one JSON object."""
    try:
        sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_stdout()


def print_stderr(line: str) -> None:
    """Print a line on stderr; ignore a closed stderr."""
    with suppress(OSError):
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


def print_error(line: str) -> None:
    """Print an error or a notice on stderr, in one line."""
    print_stderr(f"ensue: {line}")


class _Warnings(logging.Handler):
    """A log handler that prints lines on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        print_stderr(self.format(record))


@contextmanager
def warnings_on_stderr() -> Iterator[None]:
    """Print the bus's warnings, lost connections and reconnections in this context."""
    logger, link = logging.getLogger("ensue"), logging.getLogger("ensue.link")
    handler, level = _Warnings(), link.level
    handler.setFormatter(logging.Formatter("ensue: %(message)s"))
    logger.addHandler(handler)
    link.setLevel(logging.INFO)
    try:
        yield
    finally:
        link.setLevel(level)
        logger.removeHandler(handler)


def print_lines(lines: Iterable[str], *, style: str | None = None) -> None:
    """Print sentences unwrapped, so that they can be searched."""
    console = _Console(highlight=False)
    for line in lines:
        console.print(line, style=style, markup=False, emoji=False, soft_wrap=True)


def print_table(
    title: str,
    headers: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Sequence[int] = (),
    whole: Sequence[int] = (),
) -> None:
    """Print a table, without a header row if all headers are empty.

    Columns in `right` are right-aligned figures; those in `whole` are never wrapped.
    """
    if title:
        # Not as the table's title: Rich would wrap it to the table's width.
        print_lines([title], style="bold")
    named = any(headers)
    table = Table(
        box=box.SIMPLE_HEAD if named else None,
        show_header=named,
        pad_edge=True,
    )
    for index, header in enumerate(headers):
        justify: Literal["left", "right"] = "right" if index in right else "left"
        table.add_column(header, justify=justify, no_wrap=index in whole)
    for row in rows:
        table.add_row(*(_styled(cell) for cell in row))
    _Console(highlight=False).print(table)


def print_statistics(title: str, statistics: RunStatistics, *more: tuple[str, str]) -> None:
    """Print the figures of a run."""
    print_table(title, ("", ""), [*statistics_rows(statistics), *more], right=(1,))


def print_findings(report: Report, title: str = "") -> None:
    """Print the findings of each checker."""
    rows = []
    for finding in report.findings:
        found = _counts(finding) or "; ".join((*finding.reasons, *finding.notes))
        if not found and not report.delivery_count:
            rows.append((finding.checker, "-", "nothing to judge"))
        else:
            rows.append((finding.checker, str(finding.verdict), found or "nothing wrong"))
    rows.append(("all", str(report.verdict), "; ".join(report.reasons)))
    print_table(title, ("checker", "verdict", "found"), rows)


def _counts(finding: Finding) -> str:
    """Return the number of violations of each kind, and whether there may be more."""
    ended = any(note.startswith(SEARCH_ENDED) for note in finding.notes)
    more = " or more" if ended else ""
    return ", ".join(
        f"{count:,}{more} {_KINDS[kind][count != 1 or ended] if kind in _KINDS else kind}"
        for kind, count in finding.anomaly_counts.items()
    )


def print_witnesses(report: Report, *, every: bool, more: str) -> None:
    """Print the report in sentences, with the first or all witnesses of each checker.

    `more` is a hint how to print all witnesses.
    """
    shown = report
    if not every:
        shown = msgspec.structs.replace(
            report,
            findings=tuple(
                msgspec.structs.replace(each, violations=each.violations[:WITNESSES_SHOWN])
                for each in report.findings
            ),
        )
    print_lines(shown.sentences())
    if shown != report:
        print_lines([more])


def statistics_rows(statistics: RunStatistics) -> list[tuple[str, str]]:
    """Return the figures of a run that apply, as rows of a table."""
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
    if statistics.transactions:
        committed = f"{statistics.committed:,} of {statistics.transactions:,}"
        rows.append(("transactions committed", committed))
    if statistics.crashes:
        rows.append(("crashes", f"{statistics.crashes:,}"))
    return rows


def _styled(cell: str) -> Text:
    # Not as markup: clients choose names.
    return Text(cell, style=_STYLES.get(cell, ""))
