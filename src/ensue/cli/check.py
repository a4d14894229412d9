"""The command `check`: judge a trace on disk."""

from pathlib import Path
from typing import Annotated

import typer

from ensue.checkers import check as judge
from ensue.checkers import order_of_rows, promise_of, promises
from ensue.cli import output
from ensue.core import trace as traces
from ensue.core.errors import BadInput
from ensue.simulation.scenario_file.values import parse_duration

__all__ = [
    "CausalOption",
    "ClockErrorOption",
    "LossyOption",
    "PromiseOption",
    "SettleOption",
    "WithinOption",
    "check",
]

EXPLAINED_MAX = 20
"""Violations of each checker that are explained, for `--json` too."""
ALL_MAX = 1_000_000
"""The same with `--all`. HAZARD: the search for disagreements is then exhaustive."""


PromiseOption = Annotated[
    str | None,
    typer.Option(
        parser=output.choice(promises),
        metavar="|".join(promises()),
        help="The order that was promised.",
        show_default="the one that the trace names",
    ),
]


def check_causal(order: str | None, causal: bool | None) -> None:
    """Raise if `--causal` or `--no-causal` does not apply to an order that is given."""
    if order is None:
        return
    promise = promise_of(order)
    if causal is False and not promise.causal_unless_lossy:
        raise BadInput(f"--no-causal is for --order total only, not for --order {order}")
    if causal and promise.check is not None:
        raise BadInput(f"--causal does not apply to --order {order}: leave it out")


CausalOption = Annotated[
    bool | None,
    typer.Option(
        "--causal/--no-causal",
        help="Check causal order too, or not. The default is what the order promises: total "
        "order is causal unless --lossy.",
        show_default=False,
    ),
]
LossyOption = Annotated[
    bool, typer.Option("--lossy", help="Accept lost events, and print their number.")
]
SettleOption = Annotated[
    str | None,
    typer.Option(
        metavar="DURATION",
        help="Events published this long before a subscription's end must reach it, "
        "such as 5s. Without it, ended subscriptions may lack events.",
    ),
]
ClockErrorOption = Annotated[
    str,
    typer.Option(
        metavar="DURATION",
        help="Largest difference between the clocks of two nodes, such as 10ms. "
        "Simulated traces have true times and don't need it.",
    ),
]
WithinOption = Annotated[
    str | None,
    typer.Option(
        metavar="DURATION",
        help="Check that no delivery takes longer, such as 100ms. Merged order promises "
        "delta + 3 epsilon + one tick.",
    ),
]


@output.command
def check(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="The trace or recorded run: a directory.")
    ],
    *,
    order: PromiseOption = None,
    causal: CausalOption = None,
    lossy: LossyOption = False,
    settle: SettleOption = None,
    clock_error: ClockErrorOption = "0ms",
    within: WithinOption = None,
    every: Annotated[
        bool,
        typer.Option("--all", help="Explain every violation, not only the first of each checker."),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
) -> int:
    """Judge a trace by the order that was promised.

    Prints a table of the checkers, then the first violations of each in words.

    Example: [bold]ensue check runs/tuesday[/bold]
    """
    with output.option("--settle"):
        settle_ns = None if settle is None else parse_duration(settle)
    with output.option("--clock-error"):
        clock_error_ns = parse_duration(clock_error)
    with output.option("--within"):
        within_ns = None if within is None else parse_duration(within)
    rows = traces.read(directory)
    order = order_of_rows(rows, directory) if order is None else order
    check_causal(order, causal)
    report = judge(
        rows,
        order,
        causal=causal,
        lossy=lossy,
        settle_ns=settle_ns,
        clock_error_ns=clock_error_ns,
        within_ns=within_ns,
        violations_max=ALL_MAX if every else EXPLAINED_MAX,
    )
    if json:
        output.print_json(report.to_dict())
    else:
        output.print_findings(report)
        output.print_witnesses(report, every=every, more="--all explains every violation")
    return output.exit_code(report.verdict)
