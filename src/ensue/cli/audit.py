"""The command `audit`: judge a large trace on Spark."""

from pathlib import Path
from typing import Annotated

import typer

from ensue.checkers import named_order
from ensue.cli import output
from ensue.cli.check import (
    ALL_MAX,
    EXPLAINED_MAX,
    CausalOption,
    ClockErrorOption,
    LossyOption,
    PromiseOption,
    SettleOption,
    WithinOption,
    check_causal,
)
from ensue.cli.spark_runs import on_spark
from ensue.core import trace
from ensue.core.errors import BadInput
from ensue.simulation.scenario_file.values import parse_duration

__all__ = ["MasterOption", "audit"]

MasterOption = Annotated[
    str | None,
    typer.Option(
        "--master",
        metavar="URL",
        help="Spark's master, such as local[4] or spark://host:7077.",
        show_default="all cores of this machine",
    ),
]


@output.command
def audit(
    directory: Annotated[
        str,
        typer.Argument(
            metavar="DIR", help="The trace or recorded run: a directory, or a URL that Spark reads."
        ),
    ],
    *,
    order: PromiseOption = None,
    master: MasterOption = None,
    causal: CausalOption = None,
    lossy: LossyOption = False,
    settle: SettleOption = None,
    clock_error: ClockErrorOption = "0ms",
    within: WithinOption = None,
    violations: Annotated[
        Path | None,
        typer.Option(metavar="OUT", help="Write every violation as Parquet to this new directory."),
    ] = None,
    every: Annotated[
        bool,
        typer.Option("--all", help="Explain every violation, not only the first of each checker."),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
) -> int:
    """Judge a large trace on Spark, by the order that was promised.

    Gives the same verdicts as [bold]ensue check[/bold], which holds a trace in memory. Runs on this
    machine, or with --master on a cluster. Total order implies causal order, for which one task
    holds a whole run without true times; [bold]--no-causal[/bold] splits it.

    Example: [bold]ensue audit runs/tuesday[/bold]
    """
    check_causal(order, causal)
    with output.option("--settle"):
        settle_ns = None if settle is None else parse_duration(settle)
    with output.option("--clock-error"):
        clock_error_ns = parse_duration(clock_error)
    with output.option("--within"):
        within_ns = None if within is None else parse_duration(within)
    if violations is not None and violations.exists():
        raise BadInput(f"--violations: {violations} exists already; name a new directory")
    from ensue import spark as es  # noqa: PLC0415 - an extra, and slow to load
    from ensue.spark.traces import check_files, is_local  # noqa: PLC0415 - as above

    if is_local(directory):
        check_files(Path(directory))  # Spark takes seconds to start.
        order = order or named_order(trace.named_orders(directory), directory)

    with on_spark(master, "ensue audit", reads=directory) as (_, progress):
        progress.stage("auditing")
        found = es.audit(
            directory,
            order,
            causal=causal,
            lossy=lossy,
            settle_ns=settle_ns,
            clock_error_ns=clock_error_ns,
            within_ns=within_ns,
            violations_max=ALL_MAX if every or violations is not None else EXPLAINED_MAX,
        )
        if violations is not None:
            found.violations.write.parquet(str(violations.absolute()))
        report = found.report(violations_max=found.violation_count if every else EXPLAINED_MAX)
    if json:
        output.print_json(report.to_dict())
    else:
        output.print_findings(report)
        output.print_witnesses(report, every=every, more="--all explains every violation")
    return output.exit_code(report.verdict)
