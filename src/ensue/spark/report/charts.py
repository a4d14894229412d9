"""Charts as inline SVG; colors and fonts come from the page's style sheet.

A chart is 560 by 270 units, and scales with the page. The style sheet maps the number of a series
to a color (`s0`, `s1`, …), for light, dark and print. Hovering over a mark shows its figures. An
empty chart is a sentence with the reason.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape

import msgspec

from ensue.spark.report import svg

__all__ = ["Bin", "Series", "columns", "empty", "legend", "lines", "spread"]

WIDTH, HEIGHT = 560.0, 270.0
LEFT, RIGHT, TOP, BOTTOM = 58.0, 548.0, 34.0, 222.0
BINS_MAX = 48
"""Most bars of a distribution, after adjacent ones are merged."""
FASTEST_LEFT_OUT = 0.005
"""Share of a distribution that is cut off at its left."""


class Bin(msgspec.Struct, frozen=True):
    """Weight between two values."""

    low: float
    high: float
    weight: float


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """One data series of a chart."""

    name: str
    color: int
    bins: Sequence[Bin] = ()
    """The bars, from `low` to `high`. The line has a gap between bins that are not adjacent."""
    marks: Mapping[str, float] = {}
    """Labeled values on the horizontal axis, by name."""
    dashed: bool = False


def empty(reason: str) -> str:
    """Return the placeholder of an empty chart."""
    return svg.element("p", escape(reason), class_="empty")


def legend(series: Sequence[Series]) -> str:
    """Return the legend; empty for a single name."""
    if len(series) < 2 and not any(one.marks for one in series):
        return ""
    chips = (
        svg.element(
            "li",
            svg.element("i", class_=f"b{one.color}" + (" dashed" if one.dashed else "")),
            escape(one.name),
            *(
                svg.element("span", escape(f"{name} {svg.duration_text(value)}"))
                for name, value in one.marks.items()
            ),
        )
        for one in series
    )
    return svg.element("ul", *chips, class_="legend")


def spread(series: Sequence[Series], *, title: str, unit: str = "share of deliveries") -> str:
    """Draw distributions of durations in ms over a logarithmic axis, with their marks."""
    series = [one for one in series if one.bins]
    assert series
    merged = [_merged(one, _factor(series)) for one in series]
    low = min(_low(one) for one in merged)
    merged = [[each for each in one if each.low >= low * (1 - 1e-9)] for one in merged]
    high = max(one[-1].high for one in merged)
    across = svg.logarithmic(low, high, LEFT, RIGHT)
    top = max(each.weight for one in merged for each in one)
    up = svg.linear(0, top * 1.08, BOTTOM, TOP)
    parts = [_grid_up(up, top, lambda value: f"{value:.0%}" if top > 0.05 else f"{value:.1%}")]
    parts.append(
        _grid_across([(v, svg.duration_text(v)) for v in svg.ticks_log(low, high)], across)
    )
    for one, bins in zip(series, merged, strict=True):
        parts.append(_steps(bins, across, up, one, closed=True))
        parts += [
            svg.element(
                "rect",
                svg.element(
                    "title",
                    escape(
                        f"{one.name}: {each.weight:.1%} between {svg.duration_text(each.low)} and "
                        f"{svg.duration_text(each.high)}"
                    ),
                ),
                x=across(each.low),
                y=TOP,
                width=max(0.5, across(each.high) - across(each.low)),
                height=BOTTOM - TOP,
                class_="touch",
            )
            for each in bins
        ]
    parts.append(_marks(series, across, low, high))
    return _chart(title, [*parts, _axis_names("time from publication to delivery", unit)])


def _marks(series: Sequence[Series], across: svg.Scale, low: float, high: float) -> str:
    """Label values in rows that do not overlap."""
    parts = []
    taken: list[tuple[int, float]] = []
    for one in series:
        for name, value in one.marks.items():
            place = across(min(max(value, low), high))
            width = 6.2 * len(name) + 8
            row = 0
            while any(r == row and place - width < x < place + width for r, x in taken):
                row += 1
            taken.append((row, place))
            y = TOP - 8 + 13 * row
            parts.append(
                svg.element(
                    "line", x1=place, x2=place, y1=y + 4, y2=BOTTOM, class_=f"mark s{one.color}"
                )
            )
            parts.append(
                svg.text(name, place, y, anchor="middle", class_=f"label halo t{one.color}")
            )
    return "".join(parts)


def _low(bins: Sequence[Bin]) -> float:
    """Return the end of the fastest few, which would fill most of a log axis."""
    passed, total = 0.0, sum(each.weight for each in bins)
    for each in bins:
        passed += each.weight
        if passed > FASTEST_LEFT_OUT * total:
            return each.low
    return bins[-1].low


def _factor(series: Sequence[Series]) -> int:
    """Return how many adjacent bins to merge into one."""
    low = min(one.bins[0].low for one in series)
    high = max(one.bins[-1].high for one in series)
    ratio = series[0].bins[0].high / series[0].bins[0].low
    return max(1, math.ceil(math.log(high / low) / math.log(ratio) / BINS_MAX))


def _merged(one: Series, factor: int) -> list[Bin]:
    """Merge groups of adjacent bins of a log grid; fill gaps with empty bins."""
    ratio = math.log(one.bins[0].high / one.bins[0].low)
    weights: dict[int, float] = {}
    for each in one.bins:
        number = round(math.log(each.low) / ratio) // factor
        weights[number] = weights.get(number, 0.0) + each.weight
    width = ratio * factor
    return [
        Bin(math.exp(number * width), math.exp((number + 1) * width), weights.get(number, 0.0))
        for number in range(min(weights), max(weights) + 1)
    ]


def lines(
    series: Sequence[Series], *, title: str, unit: str, format_value: Callable[[float], str]
) -> str:
    """Draw values over time as steps, one per bin."""
    series = [one for one in series if one.bins]
    assert series
    end = max(one.bins[-1].high for one in series)
    top = max((each.weight for one in series for each in one.bins), default=0) or 1.0
    factor, name = svg.time_unit(end)
    across = svg.linear(0, end, LEFT, RIGHT)
    up = svg.linear(0, top * 1.08, BOTTOM, TOP)
    ticks = [
        (value * factor, svg.count_text(value)) for value in svg.ticks_linear(0, end / factor, 7)
    ]
    parts = [_grid_up(up, top, format_value), _grid_across(ticks, across)]
    parts += [_steps(one.bins, across, up, one, closed=False) for one in series]
    width = max(one.bins[0].high - one.bins[0].low for one in series)
    for place in range(math.ceil(end / width)):
        low = place * width
        figures = [
            f"{one.name}: {format_value(each.weight)}"
            for one in series
            for each in one.bins
            if each.low <= low < each.high
        ]
        if figures:
            at = f"{svg.duration_text(low)} to {svg.duration_text(low + width)}"
            parts.append(
                svg.element(
                    "rect",
                    svg.element("title", escape("\n".join([at, *figures]))),
                    x=across(low),
                    y=TOP,
                    width=across(min(end, low + width)) - across(low),
                    height=BOTTOM - TOP,
                    class_="touch",
                )
            )
    return _chart(title, [*parts, _axis_names(f"time since the run began, {name}", unit)])


def columns(series: Sequence[Series], *, title: str, below: str, unit: str) -> str:
    """Draw shares of integers as columns, with several series side by side.

    `low` is the first integer of a bin and `high` its last.
    """
    series = [one for one in series if one.bins]
    assert series
    places = sorted({(each.low, each.high) for one in series for each in one.bins})
    top = max(each.weight for one in series for each in one.bins)
    up = svg.linear(0, top * 1.08, BOTTOM, TOP)
    room = (RIGHT - LEFT) / len(places)
    width = min(46.0, room * 0.78 / len(series))
    parts = [_grid_up(up, top, lambda value: f"{value:.0%}")]
    every = math.ceil(len(places) / 16)
    for index, (low, high) in enumerate(places):
        middle = LEFT + (index + 0.5) * room
        name = f"{low:g}" if low == high else f"{low:g}-{high:g}"
        if index % every == 0:
            parts.append(svg.text(name, middle, BOTTOM + 17, anchor="middle", class_="tick"))
        for number, one in enumerate(series):
            weight = sum(each.weight for each in one.bins if (each.low, each.high) == (low, high))
            if not weight:
                continue
            left = middle + (number - len(series) / 2) * width
            parts.append(
                svg.element(
                    "rect",
                    svg.element("title", escape(f"{one.name}: {name} {below}: {weight:.1%}")),
                    x=left + 1,
                    y=up(weight),
                    width=max(1.0, width - 2),
                    height=BOTTOM - up(weight),
                    class_=f"column f{one.color}",
                )
            )
    return _chart(title, [*parts, _base(), _axis_names(below, unit)])


def _steps(
    bins: Sequence[Bin], across: svg.Scale, up: svg.Scale, one: Series, *, closed: bool
) -> str:
    parts = []
    for piece in _pieces(bins):
        places: list[tuple[float, float]] = []
        for each in piece:
            places += [(across(each.low), up(each.weight)), (across(each.high), up(each.weight))]
        area = [(places[0][0], BOTTOM), *places, (places[-1][0], BOTTOM)]
        if not one.dashed:
            shape = svg.element("polygon", points=_points(area), class_=f"area f{one.color}")
            parts.append(shape)
        style = f"line s{one.color}" + (" dashed" if one.dashed else "")
        points = _points(area if closed else places)
        parts.append(svg.element("polyline", points=points, class_=style))
    return "".join(parts)


def _pieces(bins: Sequence[Bin]) -> list[list[Bin]]:
    """Split bins at gaps."""
    pieces: list[list[Bin]] = []
    for each in bins:
        if pieces and math.isclose(pieces[-1][-1].high, each.low, rel_tol=1e-9):
            pieces[-1].append(each)
        else:
            pieces.append([each])
    return pieces


def _points(places: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)


def _grid_up(up: svg.Scale, top: float, format_value: Callable[[float], str]) -> str:
    parts = []
    for value in svg.ticks_linear(0, top * 1.05, 4):
        y = up(value)
        parts.append(svg.element("line", x1=LEFT, x2=RIGHT, y1=y, y2=y, class_="grid"))
        parts.append(svg.text(format_value(value), LEFT - 8, y + 4, anchor="end", class_="tick"))
    return "".join(parts)


def _grid_across(ticks: Sequence[tuple[float, str]], across: svg.Scale) -> str:
    parts = [_base()]
    for value, name in ticks:
        x = across(value)
        parts.append(svg.element("line", x1=x, x2=x, y1=BOTTOM, y2=BOTTOM + 5, class_="base"))
        # Keep names at the ends within the picture.
        anchor = "end" if x > RIGHT - 12 else "middle"
        parts.append(svg.text(name, x, BOTTOM + 18, anchor=anchor, class_="tick"))
    return "".join(parts)


def _base() -> str:
    return svg.element("line", x1=LEFT, x2=RIGHT, y1=BOTTOM, y2=BOTTOM, class_="base")


def _axis_names(below: str, beside: str) -> str:
    return svg.text(
        below, (LEFT + RIGHT) / 2, HEIGHT - 8, anchor="middle", class_="axis"
    ) + svg.text(beside, 4, 11, class_="axis")


def _chart(title: str, parts: Sequence[str]) -> str:
    return svg.element(
        "svg",
        svg.element("title", escape(title)),
        *parts,
        viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}",
        role="img",
        class_="chart",
    )
