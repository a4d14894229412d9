"""The command `report`: a trace as an HTML page."""

from pathlib import Path
from typing import Annotated

import typer

from ensue.checkers import promises
from ensue.cli import output
from ensue.cli.audit import MasterOption
from ensue.cli.spark_runs import on_spark
from ensue.core.errors import BadInput
from ensue.simulation.scenario_file.values import parse_duration

__all__ = ["report"]

_MS_NS = 1_000_000

_PromiseOption = Annotated[
    str | None,
    typer.Option(
        parser=output.choice(promises),
        metavar="|".join(promises()),
        help="The order that every run is judged by.",
        show_default="for each run the one that it names",
    ),
]


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
    order: _PromiseOption = None,
    window: Annotated[
        str | None,
        typer.Option(
            metavar="START:END",
            help="The time span, since the run began, of the space-time diagram, such as "
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
    """Draw a trace as one self-contained HTML page.

    Shows latency, hold-back, stamp sizes, throughput, the verdict on each run, and a space-time
    diagram of the first violation. Compares the runs of a directory with several traces. The exit
    code is 0 if the page was written, whatever the verdict.

    Example: [bold]ensue report runs/tuesday -o tuesday.html[/bold]
    """
    begin_end_ms = _parse_window(window)
    if window is not None and around is not None:
        raise BadInput("--window and --around exclude each other: leave one of them out")
    _check_writable(out)
    if "://" not in directory and not Path(directory).exists():
        raise BadInput(f"{directory} does not exist; name a trace, or a directory of several")
    from ensue.spark import report as reports  # noqa: PLC0415 - an extra, and slow to load
    from ensue.spark.traces import check_files, is_local  # noqa: PLC0415 - as above

    if is_local(directory):
        check_files(Path(directory))  # Spark takes seconds to start.

    with on_spark(master, "ensue report", reads=directory) as (spark, progress):
        made = reports.report(
            spark,
            directory,
            order=order,
            span=None if begin_end_ms is None else reports.Span(*begin_end_ms),
            around=around,
            progress=progress.stage,
        )
    made.write(out)
    if json:
        output.print_json({"page": str(out), **made.to_dict()})
    else:
        for run, judged in made.judgements.items():
            output.print_lines([f"{run}: {judged.verdict}", *(f"  {s}" for s in judged.sentences)])
        output.print_lines([f"The report is in {out}."])
    return output.EXIT_VALID


def _parse_window(window: str | None) -> tuple[float, float] | None:
    """Return the start and end of a window, in ms."""
    if window is None:
        return None
    with output.option("--window"):
        start, colon, end = window.partition(":")
        if not colon:
            raise BadInput(f"expected START:END like 1500ms:1700ms, got {window!r}")
        found = parse_duration(start), parse_duration(end)
        if found[0] >= found[1]:
            raise BadInput(f"{window!r} ends before it begins")
    return found[0] / _MS_NS, found[1] / _MS_NS


def _check_writable(out: Path) -> None:
    """Raise before any work if the page can't be written."""
    if out.is_dir():
        raise BadInput(f"--output: {out} is a directory; name a file in it")
    if not out.parent.is_dir():
        raise BadInput(f"--output: {out.parent} does not exist; create it first")
    probe = out.with_name(f".{out.name}.unfinished")
    probe.touch()
    probe.unlink()
