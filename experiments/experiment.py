"""What an experiment is: cases, a pure function from a case to rows, and claims about the table that comes of them.

Theory of operation. A case is a mapping of parameters, its seed among them; all cases of an experiment have the same ones. Playing it gives
rows of `figure`, `series`, `x` and `value`: a point of a curve. Spark reduces the rows of all cases to one table, a row for each point, with the mean
over its cases. Claims are made about that table alone, so whoever has the table can judge them again.

Assumption: `play` depends on its case and on nothing else. What took part in a result is its parameters and the code (`runner.code_version`).
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
"""What playing a case gives, as Spark writes it."""


def row(figure: str, series: str, x: float, value: float) -> Row:
    """Return one row of what a case gave."""
    return {"figure": figure, "series": series, "x": float(x), "value": float(value)}


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table: what all cases at one place of a curve came to."""

    figure: str
    series: str
    x: float
    cases: int
    mean: float
    deviation: float
    """Of the cases, 0 for one."""
    least: float
    most: float
    published: float | None = None
    """What the paper has there, if it says so."""

    def shown(self, chart: "Chart") -> float:
        """Return what a chart tells of it."""
        return self.most if chart.most else self.mean


class Table:
    """The points of an experiment, as claims look at them."""

    def __init__(self, points: Iterable[Point]) -> None:
        self.points = sorted(points, key=lambda each: (each.figure, each.series, each.x))
        self._by_place = {(each.figure, each.series, each.x): each for each in self.points}

    def at(self, figure: str, series: str, x: float) -> float | None:
        """Return the mean at a place; None if no case was played there."""
        found = self._by_place.get((figure, series, float(x)))
        return None if found is None else found.mean

    def curve(self, figure: str, series: str) -> list[Point]:
        """Return the points of a curve from left to right."""
        return [each for each in self.points if (each.figure, each.series) == (figure, series)]

    def series(self, figure: str) -> list[str]:
        """Return the names of the curves of a figure."""
        return list(dict.fromkeys(each.series for each in self.points if each.figure == figure))


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """What was to be seen, and whether it was."""

    figure: str
    expected: str
    """What the paper says, or the theory."""
    criterion: str
    """When it counts as met."""
    seen: str
    met: bool | None
    """None if it needs cases that were not played: those of the full form."""
    why: str = ""
    """Where it is known not to be met: why, and why it is left so."""

    @property
    def verdict(self) -> str:
        """Return the word for it."""
        if self.met is None:
            return "not judged"
        return "met" if self.met else "not met"


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    """How the points of a figure are drawn."""

    figure: str
    title: str
    across: str
    """What x is."""
    up: str
    """What is measured."""
    log_x: bool = False
    log_y: bool = False
    most: bool = False
    """Draw and tell the largest of the cases, not their mean."""
    drawn: bool = True
    """Whether there is a picture; else it is a table alone."""
    names: Sequence[str] = ()
    """What x = 0, 1, 2, … are called, where they are kinds and no quantity."""


class Experiment(msgspec.Struct, frozen=True, kw_only=True):
    """One campaign."""

    name: str
    paper: str
    """The name of the paper; empty for what no paper has."""
    figures: str
    """Which of its figures and tables."""
    title: str
    setting: Sequence[str]
    """The model, and what was chosen where the paper is silent, in sentences."""
    cases: Callable[[bool], Sequence[Case]]
    """Quick or not, to the cases."""
    play: Callable[[Case], Iterable[Row]]
    charts: Sequence[Chart]
    judge: Callable[[Table], Sequence[Claim]]
    work: Callable[[Case], float] = lambda _case: 1.0
    """How much a case is to be done, compared with others: tells from the quick form what the full one takes."""
    published: Mapping[tuple[str, str, float], float] = {}
    """What the paper states, by figure, series and x."""


def claim(
    figure: str,
    expected: str,
    criterion: str,
    needed: Sequence[float | None],
    tell: Callable[..., str],
    met: Callable[..., bool],
    *,
    why: str = "",
) -> Claim:
    """Return a claim about some values; one of them missing, it is not judged."""
    if any(value is None for value in needed):
        seen, judged = "needs the full form", None
    else:
        seen, judged = tell(*needed), met(*needed)
    return Claim(
        figure=figure, expected=expected, criterion=criterion, seen=seen, met=judged, why=why
    )


def close_to(
    figure: str,
    expected: str,
    published: float,
    ours: float | None,
    percent: float,
    *,
    why: str = "",
) -> Claim:
    """Claim that a value is the paper's, within so many percent of it."""
    return claim(
        figure,
        expected,
        f"within {percent:g} %",
        [ours],
        lambda value: f"{_plain(value)} ({value / published - 1:+.0%})",
        lambda value: abs(value / published - 1) <= percent / 100,
        why=why,
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
) -> Claim:
    """Claim that a value lies between two others, these included."""
    return claim(
        figure,
        expected,
        f"{_plain(low)} to {_plain(high)}{unit}",
        [ours],
        lambda value: f"{_plain(value)}{unit}",
        lambda value: low <= value <= high,
        why=why,
    )


def _plain(value: float) -> str:
    if value == int(value) and abs(value) < 1e15:
        return f"{value:,.0f}"
    digits = 0 if abs(value) >= 1000 else 1 if abs(value) >= 100 else 2 if abs(value) >= 1 else 4
    return f"{value:,.{digits}f}"
