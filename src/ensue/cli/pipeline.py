"""The command `pipeline`: a run as the tables of a lake, once or for ever, on Spark."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ensue.cli import output
from ensue.cli.auditing import MasterOption
from ensue.cli.checking import Order
from ensue.cli.spark_work import on_spark
from ensue.errors import BadInput
from ensue.simulation.scenario_values import parse_duration

if TYPE_CHECKING:
    from ensue.spark.lake_pipeline import Outcome

__all__ = ["pipeline"]

VERDICTS_TOLD = 20
"""Runs that the summary names; all of them are in the table `verdicts`."""

_SECOND_NS = 1_000_000_000


LakeOption = Annotated[
    str,
    typer.Option(
        "--lake",
        metavar="OUT",
        help="Where the tables go: a new directory, or that of a pipeline to go on with.",
    ),
]
TopicsOption = Annotated[
    str | None,
    typer.Option(
        "--topics",
        metavar="A,B",
        help="The topics to put in one order.",
        show_default="all in the log when it first starts",
    ),
]


@output.command
def pipeline(
    source: Annotated[
        str,
        typer.Argument(
            metavar="DIR|URL",
            help="A recorded run, or only its trace or its event log; it may still be going on.",
        ),
    ],
    *,
    lake: LakeOption,
    once: Annotated[
        bool, typer.Option("--once", help="Take all that is there, then stop.")
    ] = False,
    every: Annotated[
        str, typer.Option(metavar="DURATION", help="How often to look for more, such as 5s.")
    ] = "30s",
    order: Annotated[
        Order, typer.Option(help="The order that every run is judged by, and events are put in.")
    ] = Order.TOTAL,
    topics: TopicsOption = None,
    master: MasterOption = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object in the end instead.")
    ] = False,
) -> int:
    """Turn a run into tables: its events in order, deliveries, violations, verdicts and metrics.

    Runs for ever, or [bold]--once[/bold]. Ctrl-C ends it after the batches at hand. Killed and started
    again, it goes on where it was: no row is lost and none is there twice. docs/spark.md has every
    table with its columns.

    The exit code is that of the worst verdict: 0 valid, 1 invalid, 2 unknown, or a stage failed. Without
    a trace, as of a server, there is nothing to judge: 0 if all stages did their work.

    Example: [bold]ensue pipeline runs/tuesday --lake lake --once[/bold]
    """
    every_s = _parse_every(every)
    names = _parse_topics(topics)
    from ensue import spark as es  # noqa: PLC0415 - an extra
    from ensue.spark.lake_pipeline import check  # noqa: PLC0415 - as above

    # What can be refused at once is, before Spark starts.
    check(source, lake, order=order.value, topics=names, once=once)

    with on_spark(master, "ensue pipeline") as (spark, work), _stopping(work.tell) as stop:
        work.at("running the pipeline")
        if not once:
            work.tell(f"looking for more every {every}; Ctrl-C ends it")
        found = es.pipeline(
            spark,
            source,
            lake,
            order=order.value,
            topics=names,
            once=once,
            every_s=every_s,
            progress=work.tell,
            stop=stop,
        )
    if json:
        output.print_json(found.to_dict())
    else:
        _print(found)
    if once and stop.is_set():
        output.print_error("interrupted: not all is in the lake; start it again to go on")
        return output.EXIT_UNKNOWN
    return output.EXIT_VALID if found.verdict is None else output.exit_code(found.verdict)


def _parse_every(every: str) -> float:
    with output.option("--every"):
        every_ns = parse_duration(every)
        if every_ns <= 0:
            raise BadInput("expected more than nothing")
    return every_ns / _SECOND_NS


def _parse_topics(topics: str | None) -> list[str] | None:
    if topics is None:
        return None
    names = [name.strip() for name in topics.split(",")]
    if not all(names):
        raise BadInput(f"--topics: expected names between commas like a,b, not {topics!r}")
    return names


@contextmanager
def _stopping(tell: Callable[[str], None]) -> Iterator[threading.Event]:
    """Let the first Ctrl-C set an event; the next one interrupts.

    Spark's own handler, in whose place this one is, would cancel the batches at hand.
    """
    from ensue.spark.gone import SparkGone, hush_py4j  # noqa: PLC0415 - an extra

    stop = threading.Event()

    def ask(number: int, frame: Any) -> None:
        del number, frame
        if stop.is_set():
            raise KeyboardInterrupt
        tell("ending after the batches at hand; Ctrl-C again ends at once")
        hush_py4j()  # Spark may have got the same signal.
        stop.set()

    before = {each: signal.signal(each, ask) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    except SparkGone:
        if stop.is_set():  # Whoever ended this ended Spark with it, as by a signal to the group.
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
        told = found.verdicts[:VERDICTS_TOLD]
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
                for one in told
            ],
            right=(2, 3, 4),
        )
        if len(told) < len(found.verdicts):
            output.print_lines([f"and {len(found.verdicts) - len(told):,} more, in verdicts"])
    why: dict[str, list[str]] = {}
    for stage, reason in found.left_out.items():
        why.setdefault(reason, []).append(stage)
    output.print_lines(f"left out: {', '.join(each)}: {reason}" for reason, each in why.items())
    output.print_lines(f"failed: {stage}: {reason}" for stage, reason in found.failed.items())
    output.print_lines(_told_order(found))
    if found.verdict is None:
        output.print_lines([f"done; nothing to judge: {found.left_out['audit']}"])
    else:
        because = (
            "" if found.verdicts or found.failed else ": nothing was judged: the trace is empty"
        )
        output.print_lines([f"{found.verdict}{because}"])


def _told_order(found: "Outcome") -> Iterator[str]:
    """Tell which events are not in order, and why."""
    from ensue.spark.lake_pipeline import told_cut  # noqa: PLC0415 - an extra

    if found.cut is not None and found.before_cut:
        yield (
            f"ordered from the first common cut on ({told_cut(found.cut)}): "
            f"{output.counted(found.before_cut, 'event')} before it have no common order, and the verdict "
            "before_cut"
        )
    if found.tables["gaps"] and "ordered" not in found.failed:
        yield "not all events are in order: some wait for others that are not in the log; see gaps"
