"""`python -m experiments list` and `run`: the evaluations of the papers, on Spark."""

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ensue.cli import output
from ensue.cli.audit import MasterOption
from ensue.cli.help_format import Command, Group, paragraphs
from ensue.cli.seed_pool import progress
from ensue.cli.spark_runs import start
from ensue.core.errors import BadInput

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from experiments.runner import Result

__all__ = ["main"]

OUT = Path("runs/experiments")


def main() -> None:
    """Run the command line of the experiments."""
    group = typer.Typer(
        name="experiments",
        cls=Group,
        help="Repeat the papers' evaluations on Spark, and judge the results.",
        no_args_is_help=True,
        rich_markup_mode="rich",
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for name, function in (("list", list_experiments), ("run", run_experiments)):
        group.command(name, cls=Command, help=paragraphs(function.__doc__ or ""))(function)
    # Spark's Python workers import the cases by name.
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, (str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")))
    )
    group()


@output.command
def list_experiments(
    *,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
) -> int:
    """List the experiments.

    Example: [bold]python -m experiments list[/bold]
    """
    from experiments.catalog import EXPERIMENTS  # noqa: PLC0415 - loads every protocol

    found = [
        {
            "name": each.name,
            "paper": each.paper,
            "figures": each.figures,
            "title": each.title,
            "cases": len(each.cases(False)),
            "quick_cases": len(each.cases(True)),
        }
        for each in EXPERIMENTS.values()
    ]
    if json:
        output.print_json({"experiments": found})
        return output.EXIT_VALID
    # One table per paper: a column for the paper would not fit.
    for paper in dict.fromkeys(str(each["paper"]) for each in found):
        output.print_table(
            paper or "not from a paper",
            ("name", "figures", "title", "cases", "quick"),
            [
                (
                    str(each["name"]),
                    str(each["figures"]) or "-",
                    str(each["title"]),
                    f"{each['cases']:,}",
                    f"{each['quick_cases']:,}",
                )
                for each in found
                if each["paper"] == paper
            ],
            right=(3, 4),
            whole=(0,),
        )
    return output.EXIT_VALID


@output.command
def run_experiments(
    names: Annotated[
        list[str],
        typer.Argument(metavar="NAME…", help="Names from python -m experiments list, or all."),
    ],
    *,
    quick: Annotated[
        bool, typer.Option("--quick", help="Run fewer, smaller cases: minutes, not hours.")
    ] = False,
    master: MasterOption = None,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Directory for the results, as Parquet files.")
    ] = OUT,
    docs: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Write experiments.md and its plots here; keep its other experiments.",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
) -> int:
    """Run experiments and judge the results.

    Cases that have a result in [bold]--out[/bold] do not run again, so an interrupted run resumes.

    Exit codes: 0 if every judged criterion is met, 1 if one is not.

    Example: [bold]python -m experiments run vcube-single --quick[/bold]
    """
    from experiments.catalog import chosen  # noqa: PLC0415 - loads every protocol

    experiments = chosen(names)
    if docs is not None and not docs.is_dir():
        raise BadInput(f"--docs: {docs} is not a directory: create it first")
    session = _session(master)
    from experiments.page import write  # noqa: PLC0415 - needs Spark
    from experiments.runner import run  # noqa: PLC0415 - needs Spark

    results: list[Result] = []
    for number, each in enumerate(experiments, 1):
        cases = len(each.cases(quick))
        label = f"{each.name} ({number} of {len(experiments)})"
        with progress(label, cases) as report:
            result = run(
                session,
                each,
                quick=quick,
                out=out,
                watch=lambda done, _all, report=report: report(done, "cases"),  # type: ignore[misc]
            )
        results.append(result)
        if not json:
            _print(result)
    if docs is not None:
        write(results, docs)
    if json:
        output.print_json({"experiments": [_summary(each) for each in results]})
    met = all(each.met for each in results)
    return output.EXIT_VALID if met else output.EXIT_VIOLATION


def _session(master: str | None) -> "SparkSession":
    started = start(master, "experiments")
    # Spark's handler for Ctrl-C cancels every job and prints a long report of each.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return started


def _print(result: "Result") -> None:
    output.print_table(
        f"{result.experiment.name}: {result.experiment.title} "
        f"({result.cases:,} cases, {result.seconds:,.0f} s of one core)",
        ("figure", "expected", "criterion", "seen", "verdict"),
        [
            (each.figure, each.expected, each.criterion, each.seen, each.verdict)
            for each in result.claims
        ],
    )
    output.print_lines([f"results: {result.directory}"])


def _summary(result: "Result") -> dict[str, object]:
    return {
        "name": result.experiment.name,
        "quick": result.quick,
        "cases": result.cases,
        "seconds": round(result.seconds, 3),
        "directory": str(result.directory),
        "met": result.met,
        "claims": [
            {
                "figure": each.figure,
                "expected": each.expected,
                "criterion": each.criterion,
                "seen": each.seen,
                "verdict": each.verdict,
                "why": each.why if each.met is False else "",
                "change": each.change if each.met is False else "",
            }
            for each in result.claims
        ],
    }


if __name__ == "__main__":
    main()
