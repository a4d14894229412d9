"""Seeds of the whole stack for `swarm --stack` and `replay --stack`."""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ensue.cli import narration, output
from ensue.core import trace as traces
from ensue.core.errors import BadInput
from ensue.core.trace import Row

if TYPE_CHECKING:
    from ensue.cli.seed_pool import Play
    from ensue.testing.swarm import StackRun

__all__ = ["ALL", "OPERATIONS", "failures", "player", "replay", "write_trace"]

ALL = "all"
"""Stands for every order."""
OPERATIONS = "operations"
"""Programs of operators, on no order in particular."""
ROWS_SHOWN = 40
"""Rows shown of a problem: those about events that it names, or else the last of the run."""


def player(order: str) -> "Play":
    """Return the function that plays a seed of an order, or of all."""
    # Imported late: this loads clients and servers, which other commands don't need.
    from ensue.testing.swarm import seeds  # noqa: PLC0415 - as above

    if order not in (*seeds.ORDERS, ALL):
        known = ", ".join((*seeds.ORDERS, ALL))
        raise BadInput(f"--stack has no programs for {order!r}; expected one of {known}")
    return partial(seeds.play_seed, order)


def failures(failure: Sequence[str]) -> dict[str, list[str]]:
    """Return the sentences of a failed seed of all orders, by order that failed."""
    from ensue.testing.swarm.seeds import by_order  # noqa: PLC0415 - as above

    return by_order(failure)


def write_trace(order: str, seed: int, directory: Path) -> Path | None:
    """Play a seed again to write its trace."""
    return traces.write(_run(order, seed).rows, directory)


def replay(
    order: str,
    seed: int,
    *,
    trace: Path | None,
    diagram: Path | None,
    verbose: bool,
    json: bool,
) -> int:
    """Play one seed again, and tell its story: what it draws, the faults, what went wrong."""
    player(order)
    if order == ALL:
        raise BadInput("replay needs one order instead of all")
    from ensue.testing.swarm.seeds import draw_lines  # noqa: PLC0415 - as above

    run = _run(order, seed)
    written = None if trace is None else traces.write(run.rows, trace)
    if diagram is not None:
        _draw(run, diagram)
    if json:
        output.print_json(
            {
                "order": order,
                "seed": seed,
                "verdict": "invalid" if run.problems else "valid",
                "problems": run.problems,
                "faults": run.faults,
                "digest": run.digest,
                "simulated_s": round(run.seconds, 3),
                "trace": None if written is None else str(written),
            }
        )
        return output.EXIT_VIOLATION if run.problems else output.EXIT_VALID
    output.print_lines([f"seed {seed} draws:", *draw_lines(run.drawn), "", "faults:"])
    output.print_lines([f"  {each}" for each in run.faults] or ["  none"])
    rows = sorted(run.rows, key=lambda row: (row.true_ns or 0, row.node, row.step))
    if run.problems:
        output.print_lines(["", "problems:"], style="bold red")
        output.print_lines(f"  {line}" for each in run.problems for line in each.splitlines())
        named = _about(rows, run.problems[0])
        output.print_lines(["", "around the first:" if named else "the last rows:"])
        output.print_lines(map(narration.row_line, named or rows[-ROWS_SHOWN:]))
    else:
        output.print_lines(["", "valid: every application got what it was owed, in order"])
    if verbose:
        sys.stderr.write(run.traceback)
        output.print_lines(["", "all rows:"])
        output.print_lines(map(narration.row_line, rows))
    output.print_lines([f"digest: {run.digest}"])
    if diagram is not None:
        output.print_lines([f"diagram: {diagram}"])
    if written is not None:
        output.print_lines([f"trace: {written}"])
    return output.EXIT_VIOLATION if run.problems else output.EXIT_VALID


def _run(order: str, seed: int) -> "StackRun":
    from ensue.testing.swarm import draw, run, seeds  # noqa: PLC0415 - as above

    with seeds.quietly():
        return run(draw(seed, order))


def _about(rows: list[Row], problem: str) -> list[Row]:
    """Return the rows about the events that a problem names."""
    named = [row for row in rows if row.event is not None and row.event in problem]
    return named[:ROWS_SHOWN]


def _draw(run: "StackRun", path: Path) -> None:
    """Write a page with the run as a space-time diagram."""
    # Imported late: reports come with the extra for Spark.
    from ensue.cli.stack_diagram import diagram_of  # noqa: PLC0415 - as above
    from ensue.spark.report import page  # noqa: PLC0415 - as above

    because = run.problems[0].splitlines()[0] if run.problems else "Every delivery was in order."
    drawing = page.Drawing(
        run="",
        title=f"Seed {run.drawn.seed}",
        because=because,
        diagram=diagram_of(run),
        foremost=True,
    )
    path.write_text(page.picture(drawing), encoding="utf-8")
