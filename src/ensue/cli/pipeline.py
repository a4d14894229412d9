"""The command `pipeline`: write a run to the tables of a lake, on Spark."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ensue.checkers import promises
from ensue.cli import output
from ensue.cli.audit import MasterOption
from ensue.cli.spark_runs import on_spark
from ensue.core.errors import BadInput
from ensue.simulation.scenario_file.values import parse_duration

if TYPE_CHECKING:
    from ensue.spark.lake.pipeline import Outcome

__all__ = ["pipeline"]

VERDICTS_SHOWN = 20
"""Runs listed in the summary; the table `verdicts` has all."""

_SECOND_NS = 1_000_000_000


LakeOption = Annotated[
    str,
    typer.Option(
        "--lake",
        metavar="OUT",
        help="Directory of the tables: a new one, or that of a pipeline to continue.",
    ),
]
TopicsOption = Annotated[
    str | None,
    typer.Option(
        "--topics",
        metavar="A,B",
        help="The topics to put in one order.",
        show_default="all topics in the log at the first start",
    ),
]

_PromiseOption = Annotated[
    str | None,
    typer.Option(
        parser=output.choice(promises),
        metavar="|".join(promises()),
        help="The order that every run is judged by, and events are put in.",
        show_default="the one that the source names, or total",
    ),
]


@output.command
def pipeline(
    source: Annotated[
        str,
        typer.Argument(
            metavar="DIR|URL",
            help="A recorded run, or only its trace or its event log; it may still be growing.",
        ),
    ],
    *,
    lake: LakeOption,
    once: Annotated[bool, typer.Option("--once", help="Process the current run, then stop.")] = (
        False
    ),
    every: Annotated[
        str, typer.Option(metavar="DURATION", help="How often to poll for more, such as 5s.")
    ] = "30s",
    order: _PromiseOption = None,
    topics: TopicsOption = None,
    master: MasterOption = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object at the end instead.")
    ] = False,
) -> int:
    """Write a run to tables: ordered events, deliveries, violations, verdicts, metrics.

    Runs until stopped, or [bold]--once[/bold]. Ctrl-C ends it after the current batches. Killed and
    started again, it continues where it was: no row is lost or duplicated. docs/reference/spark.md
    has every table with its columns.

    The exit code is that of the worst verdict: 0 valid, 1 invalid, 2 unknown, or a stage failed.
    Without a trace, as of a server, there is nothing to judge: 0 if all stages succeeded.

    Example: [bold]ensue pipeline runs/tuesday --lake lake --once[/bold]
    """
    every_s = _parse_every(every)
    names = _parse_topics(topics)
    from ensue import spark as es  # noqa: PLC0415 - an extra
    from ensue.spark.lake.pipeline import check  # noqa: PLC0415 - as above

    # Reject bad input before Spark starts.
    check(source, lake, order=order, topics=names, once=once)

    with (
        on_spark(master, "ensue pipeline") as (spark, progress),
        _stop_on_signal(progress.print_line) as stop,
    ):
        progress.stage("running the pipeline")
        if not once:
            progress.print_line(f"polling every {every}; press Ctrl-C to stop")
        found = es.pipeline(
            spark,
            source,
            lake,
            order=order,
            topics=names,
            once=once,
            every_s=every_s,
            progress=progress.print_line,
            stop=stop,
        )
    if json:
        output.print_json(found.to_dict())
    else:
        _print(found)
    if once and stop.is_set():
        output.print_error("interrupted: the lake is incomplete; start it again to continue")
        return output.EXIT_UNKNOWN
    return output.EXIT_VALID if found.verdict is None else output.exit_code(found.verdict)


def _parse_every(every: str) -> float:
    with output.option("--every"):
        every_ns = parse_duration(every)
        if every_ns <= 0:
            raise BadInput(f"expected a duration above 0, got {every}")
    return every_ns / _SECOND_NS


def _parse_topics(topics: str | None) -> list[str] | None:
    if topics is None:
        return None
    names = [name.strip() for name in topics.split(",")]
    if not all(names):
        raise BadInput(f"--topics: expected names between commas like a,b, got {topics!r}")
    return names


@contextmanager
def _stop_on_signal(print_line: Callable[[str], None]) -> Iterator[threading.Event]:
    """Let the first Ctrl-C set an event; the next one interrupts.

    It replaces Spark's own handler, which would cancel the current batches.
    """
    from ensue.spark.jvm_watch import SparkGone, silence_py4j  # noqa: PLC0415 - an extra

    stop = threading.Event()

    def handle(number: int, frame: Any) -> None:
        del number, frame
        if stop.is_set():
            raise KeyboardInterrupt
        print_line("stopping after the current batches; press Ctrl-C again to stop now")
        silence_py4j()  # Spark may have got the same signal.
        stop.set()

    before = {each: signal.signal(each, handle) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    except SparkGone:
        if stop.is_set():  # A signal to the process group has ended Spark too.
            raise KeyboardInterrupt from None
        raise
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _print(found: "Outcome") -> None:
    output.print_table(
        f"tables in {found.lake}",
        ("table", "rows"),
        [(table, f"{rows:,}") for table, rows in found.tables.items()],
        right=(1,),
    )
    if found.verdicts:
        shown = found.verdicts[:VERDICTS_SHOWN]
        output.print_table(
            f"runs, by {found.order} order",
            ("run", "verdict", "events", "deliveries", "violations", ""),
            [
                (
                    one.run,
                    str(one.verdict),
                    f"{one.events:,}",
                    f"{one.deliveries:,}",
                    f"{one.violations:,}",
                    one.because,
                )
                for one in shown
            ],
            right=(2, 3, 4),
        )
        if len(shown) < len(found.verdicts):
            output.print_lines([f"and {len(found.verdicts) - len(shown):,} more, in verdicts"])
    why: dict[str, list[str]] = {}
    for stage, reason in found.left_out.items():
        why.setdefault(reason, []).append(stage)
    output.print_lines(f"left out: {', '.join(each)}: {reason}" for reason, each in why.items())
    output.print_lines(f"failed: {stage}: {reason}" for stage, reason in found.failed.items())
    output.print_lines(_order_notes(found))
    if found.verdict is None:
        output.print_lines([f"done; nothing to judge: {found.left_out['audit']}"])
    else:
        because = (
            "" if found.verdicts or found.failed else ": nothing was judged: the trace is empty"
        )
        output.print_lines([f"{found.verdict}{because}"])


def _order_notes(found: "Outcome") -> Iterator[str]:
    """Yield notes on events that are not in order, and why."""
    from ensue.spark.lake.pipeline import cut_text  # noqa: PLC0415 - an extra

    if found.cut is not None and found.before_cut:
        yield (
            f"ordered from the first common cut on ({cut_text(found.cut)}): "
            f"{output.counted(found.before_cut, 'event')} before it have no common order, and the "
            "verdict before_cut"
        )
    if found.tables["gaps"] and "ordered" not in found.failed:
        yield "not all events are in order: some wait for others that are not in the log; see gaps"
