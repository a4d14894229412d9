"""The command `report`: a trace as a page to look at."""

from pathlib import Path
from typing import Annotated

import typer

from ensue import trace
from ensue.cli import output
from ensue.cli.auditing import MasterOption
from ensue.cli.checking import Order
from ensue.cli.spark_work import on_spark
from ensue.errors import BadInput
from ensue.simulation.scenario_values import parse_duration

__all__ = ["report"]

_MS_NS = 1_000_000


@output.command
def report(
    directory: Annotated[
        str,
        typer.Argument(
            metavar="DIR", help="A trace, a recorded run, or a directory of several to compare."
        ),
    ],
    *,
    out: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The page to write.")
    ] = Path("report.html"),
    order: Annotated[
        Order, typer.Option(help="The order that every run is judged by.")
    ] = Order.TOTAL,
    window: Annotated[
        str | None,
        typer.Option(
            metavar="START:END",
            help="The span of time, since the run began, that the space-time diagram shows, such as "
            "1500ms:1700ms; by default that of the first violation.",
        ),
    ] = None,
    around: Annotated[
        str | None,
        typer.Option(
            metavar="EVENT", help="Show the time around this event in the diagram instead."
        ),
    ] = None,
    master: MasterOption = None,
    json: Annotated[bool, typer.Option("--json", help="Print the figures as one object.")] = False,
) -> int:
    """Draw what happened in a trace: one HTML page that needs nothing else.

    Latency, hold-back, stamp sizes, throughput, the verdict on each run, and a space-time diagram of
    the first violation. Of a directory with several traces, the runs are compared. The exit code says
    whether the page was written, and nothing of the verdict.

    Example: [bold]ensue report runs/tuesday -o tuesday.html[/bold]
    """
    begin_end_ms = _parse_window(window)
    if window is not None and around is not None:
        raise BadInput("--window and --around: give one of them")
    _check_writable(out)
    if "://" not in directory and not Path(directory).exists():
        raise BadInput(f"{directory} does not exist; a report is made of a trace, or of several")
    if "://" not in directory:
        trace.files(Path(directory))  # Spark takes seconds to start.
    from ensue.spark import report as reports  # noqa: PLC0415 - an extra, and slow to load

    with on_spark(master, "ensue report") as (spark, work):
        made = reports.report(
            spark,
            directory,
            order=order.value,
            span=None if begin_end_ms is None else reports.Span(*begin_end_ms),
            around=around,
            progress=work.at,
        )
    made.write(out)
    if json:
        output.print_json({"page": str(out), **made.to_dict()})
    else:
        for run, judged in made.judgements.items():
            output.print_lines([f"{run}: {judged.verdict}", *(f"  {s}" for s in judged.sentences)])
        output.print_lines([f"The report lies in {out}."])
    return output.EXIT_VALID


def _parse_window(window: str | None) -> tuple[float, float] | None:
    """Return where a window begins and ends, in ms."""
    if window is None:
        return None
    with output.option("--window"):
        start, colon, end = window.partition(":")
        if not colon:
            raise BadInput(f"expected START:END like 1500ms:1700ms, not {window!r}")
        found = parse_duration(start), parse_duration(end)
        if found[0] >= found[1]:
            raise BadInput(f"{window!r} ends before it begins")
    return found[0] / _MS_NS, found[1] / _MS_NS


def _check_writable(out: Path) -> None:
    """Refuse a place that can't be written before any work is done for it."""
    if out.is_dir():
        raise BadInput(f"--output: {out} is a directory; name a file in it")
    if not out.parent.is_dir():
        raise BadInput(f"--output: {out.parent} does not exist; make it first")
    probe = out.with_name(f".{out.name}.unfinished")
    probe.touch()
    probe.unlink()
