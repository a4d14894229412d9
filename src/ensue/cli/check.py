"""The command `check`: judge a trace that is on disk."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ensue import trace as traces
from ensue.checkers import check as judge
from ensue.cli import output
from ensue.errors import BadInput
from ensue.simulation.scenario_values import parse_duration

__all__ = [
    "CausalOption",
    "ClockErrorOption",
    "LossyOption",
    "Order",
    "SettleOption",
    "WithinOption",
    "check",
]

EXPLAINED_MAX = 20
"""Violations of each checker that are explained, for `--json` too."""
ALL_MAX = 1_000_000
"""The same with `--all`. HAZARD: the search for disagreements then goes on to its end."""


class Order(StrEnum):
    """The orders a trace can be checked for."""

    TOTAL = "total"
    CAUSAL = "causal"
    CAUSAL_TOPIC = "causal-topic"
    MERGED = "merged"
    DEADLINE = "deadline"
    FIFO = "fifo"
    NONE = "none"
    TRANSACTIONS = "transactions"


def check_causal(order: Order, causal: bool | None) -> None:
    """Refuse `--causal` and `--no-causal` where they would change nothing."""
    if causal is False and order is not Order.TOTAL:
        raise BadInput(f"--no-causal is for --order total alone, not for {order.value}")
    if causal and order is Order.TRANSACTIONS:
        raise BadInput("--causal does not go with --order transactions: it has rules of its own")


CausalOption = Annotated[
    bool | None,
    typer.Option(
        "--causal/--no-causal",
        help="Check causal order too, or not. By default as the order promises: total order is "
        "causal unless it is --lossy.",
        show_default=False,
    ),
]
LossyOption = Annotated[
    bool, typer.Option("--lossy", help="Accept that events are lost, and say how many.")
]
SettleOption = Annotated[
    str | None,
    typer.Option(
        metavar="DURATION",
        help="How long before its end a subscription is sure to get what is published, "
        "such as 5s. Without it, nothing is owed to subscriptions that ended.",
    ),
]
ClockErrorOption = Annotated[
    str,
    typer.Option(
        metavar="DURATION",
        help="By how much the clocks of two nodes may differ, such as 10ms. "
        "Simulated traces hold true time and don't need it.",
    ),
]
WithinOption = Annotated[
    str | None,
    typer.Option(
        metavar="DURATION",
        help="Check that no delivery takes longer, such as 100ms. Merged order promises "
        "delta + 3 epsilon, and a tick.",
    ),
]


@output.command
def check(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="The trace or recorded run: a directory.")
    ],
    order: Annotated[Order, typer.Option(help="The order that was promised.")],
    *,
    causal: CausalOption = None,
    lossy: LossyOption = False,
    settle: SettleOption = None,
    clock_error: ClockErrorOption = "0ms",
    within: WithinOption = None,
    every: Annotated[
        bool,
        typer.Option("--all", help="Tell every violation, not only the first of each checker."),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
) -> int:
    """Judge a trace by the order that was promised.

    Prints a table of the checkers, then the first violations of each in words.

    Example: [bold]ensue check runs/tuesday --order total[/bold]
    """
    check_causal(order, causal)
    with output.option("--settle"):
        settle_ns = None if settle is None else parse_duration(settle)
    with output.option("--clock-error"):
        clock_error_ns = parse_duration(clock_error)
    with output.option("--within"):
        within_ns = None if within is None else parse_duration(within)
    report = judge(
        traces.read(directory),
        order.value,
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
        output.print_witnesses(report, every=every, more="--all tells every one")
    return output.exit_code(report.verdict)
