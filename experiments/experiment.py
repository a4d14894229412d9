"""The parts of an experiment: cases, a function from a case to rows, and claims about the table.

Theory of operation. A case is a mapping of parameters, including its seed; all cases of an
experiment have the same parameters. Running a case yields rows of `figure`, `series`, `x` and
`value`: points of curves. Spark reduces the rows of all cases to one table, one row per point, with
the mean over its cases. Claims depend on that table alone, so they can be judged again from a
stored table.

Assumption: `run_case` is pure. A result depends on its parameters and on the code
(`runner.code_version`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

__all__ = [
    "COLUMNS",
    "Case",
    "Chart",
    "Claim",
    "Experiment",
    "Point",
    "Row",
    "Table",
    "between",
    "claim",
    "close_to",
    "row",
]

Case = Mapping[str, Any]
Row = dict[str, Any]

COLUMNS = "figure string, series string, x double, value double"
"""The rows of a case, as a Spark schema."""


def row(figure: str, series: str, x: float, value: float) -> Row:
    """Return one row of a case."""
    return {"figure": figure, "series": series, "x": float(x), "value": float(value)}


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table: statistics over all cases at one point of a curve."""

    figure: str
    series: str
    x: float
    cases: int
    mean: float
    deviation: float
    """Standard deviation over the cases; 0 for a single case."""
    least: float
    most: float
    published: float | None = None
    """The paper's value at this point, if it states one."""

    def shown(self, chart: "Chart") -> float:
        """Return the value that a chart shows."""
        return self.most if chart.most else self.mean


class Table:
    """The points of an experiment, indexed for claims."""

    def __init__(self, points: Iterable[Point]) -> None:
        self.points = sorted(points, key=lambda each: (each.figure, each.series, each.x))
        self._by_place = {(each.figure, each.series, each.x): each for each in self.points}

    def at(self, figure: str, series: str, x: float) -> float | None:
        """Return the mean at a point; None if no case ran there."""
        found = self._by_place.get((figure, series, float(x)))
        return None if found is None else found.mean

    def error(self, figure: str, series: str, x: float) -> float | None:
        """Return the standard error of the mean at a point; None below two cases."""
        found = self._by_place.get((figure, series, float(x)))
        return None if found is None or found.cases < 2 else found.deviation / found.cases**0.5

    def curve(self, figure: str, series: str) -> list[Point]:
        """Return the points of a curve from left to right."""
        return [each for each in self.points if (each.figure, each.series) == (figure, series)]

    def series(self, figure: str) -> list[str]:
        """Return the names of the curves of a figure."""
        return list(dict.fromkeys(each.series for each in self.points if each.figure == figure))


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """An expectation and whether the results meet it."""

    figure: str
    expected: str
    """What the paper or the theory predicts."""
    criterion: str
    """When the claim counts as met."""
    seen: str
    met: bool | None
    """None if the claim needs cases that did not run: those of the full form."""
    why: str = ""
    """The reason why a claim is not met, where it is known."""
    change: str = ""
    """What would have to change for it to be met."""

    @property
    def verdict(self) -> str:
        """Return `met`, `not met` or `not judged`."""
        if self.met is None:
            return "not judged"
        return "met" if self.met else "not met"


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    """How to show the points of a figure."""

    figure: str
    title: str
    x_label: str
    y_label: str
    log_x: bool = False
    log_y: bool = False
    most: bool = False
    """Show the maximum over the cases, not the mean."""
    drawn: bool = True
    """Whether to draw a plot; if not, there is only a table."""
    names: Sequence[str] = ()
    """Names of x = 0, 1, 2, … if x is a category, not a quantity."""


class Experiment(msgspec.Struct, frozen=True, kw_only=True):
    """One experiment: its cases, how to run them, and how to judge and show the results."""

    name: str
    paper: str
    """The name of the paper; empty if the experiment is not from a paper."""
    figures: str
    """The figures and tables of the paper that it repeats."""
    title: str
    setting: Sequence[str]
    """Paragraphs on the model, and on the choices made where the paper is silent."""
    cases: Callable[[bool], Sequence[Case]]
    """Return the cases of the quick form (True) or of the full form (False)."""
    run_case: Callable[[Case], Iterable[Row]]
    charts: Sequence[Chart]
    judge: Callable[[Table], Sequence[Claim]]
    work: Callable[[Case], float] = lambda _case: 1.0
    """Relative cost of a case, to estimate the time of the full form from the quick form."""
    published: Mapping[tuple[str, str, float], float] = {}
    """The paper's values by figure, series and x."""


def claim(
    figure: str,
    expected: str,
    criterion: str,
    needed: Sequence[float | None],
    describe: Callable[..., str],
    met: Callable[..., bool],
    *,
    why: str = "",
    change: str = "",
) -> Claim:
    """Return a claim about values; it is not judged if one of them is missing."""
    if any(value is None for value in needed):
        seen, judged = "needs the full form", None
    else:
        seen, judged = describe(*needed), met(*needed)
    return Claim(
        figure=figure,
        expected=expected,
        criterion=criterion,
        seen=seen,
        met=judged,
        why=why,
        change=change,
    )


def close_to(
    figure: str,
    expected: str,
    published: float,
    ours: float | None,
    percent: float,
    *,
    why: str = "",
    change: str = "",
) -> Claim:
    """Claim that a value is within `percent` of the paper's."""
    return claim(
        figure,
        expected,
        f"within {percent:g} %",
        [ours],
        lambda value: f"{_plain(value)} ({value / published - 1:+.0%})",
        lambda value: abs(value / published - 1) <= percent / 100,
        why=why,
        change=change,
    )


def between(
    figure: str,
    expected: str,
    low: float,
    high: float,
    ours: float | None,
    unit: str = "",
    *,
    why: str = "",
    change: str = "",
) -> Claim:
    """Claim that a value is between `low` and `high`, inclusive."""
    return claim(
        figure,
        expected,
        f"{_plain(low)} to {_plain(high)}{unit}",
        [ours],
        lambda value: f"{_plain(value)}{unit}",
        lambda value: low <= value <= high,
        why=why,
        change=change,
    )


def _plain(value: float) -> str:
    if value == int(value) and abs(value) < 1e15:
        return f"{value:,.0f}"
    digits = 0 if abs(value) >= 1000 else 1 if abs(value) >= 100 else 2 if abs(value) >= 1 else 4
    return f"{value:,.{digits}f}"
