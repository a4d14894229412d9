"""Plots as self-contained SVG files that follow the reader's light or dark theme.

Our results are lines with dots if x is a quantity, and bars if x is a category; a category without
a value has a cross in place of its bar. A value that the paper states is a hollow diamond in the
color of its curve. Hovering over a mark shows its numbers.
"""

import math
from collections.abc import Callable, Sequence
from html import escape

from ensue.spark.report import svg
from experiments.experiment import Chart, Point, Table

__all__ = ["draw"]

WIDTH, HEIGHT = 620.0, 340.0
LEFT, RIGHT, TOP, BOTTOM = 64.0, 606.0, 44.0, 262.0
ROW = 17.0
"""The height of a line of the legend."""
BARS = 0.8
"""The share of a category's width that its bars take."""
LETTER = 6.6
"""Approximate width of a letter."""

_STYLE = """
:root { --ink: #1d2126; --soft: #5b646e; --grid: #e3e6ea; --back: #ffffff;
 --s0: #1f6fd0; --s1: #d9670b; --s2: #16876b; --s3: #8a4fc4;
 --s4: #b6296f; --s5: #6f7d00; --s6: #0e8aa6; --s7: #7a5a3c; }
@media (prefers-color-scheme: dark) {
 :root { --ink: #e8eaed; --soft: #a2abb5; --grid: #2f363e; --back: #14171b;
 --s0: #62a8ff; --s1: #ff9d4d; --s2: #4dc9a3; --s3: #bf93f2;
 --s4: #f178b0; --s5: #c1cc4a; --s6: #54c8e0; --s7: #c9a27c; } }
text { font: 12px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif;
 fill: var(--ink); }
.tick, .axis { fill: var(--soft); } .title { font-size: 14px; font-weight: 600; }
.back { fill: var(--back); } .grid { stroke: var(--grid); } .base { stroke: var(--soft); }
polyline { fill: none; stroke-width: 2; } .paper { fill: none; stroke-width: 2; }
.over { fill: var(--back); } .missing { fill: none; stroke-width: 1.5; }
""" + "".join(
    f".s{n} {{ stroke: var(--s{n}); }} .f{n} {{ fill: var(--s{n}); }}\n" for n in range(8)
)
COLORS = 8


def draw(table: Table, chart: Chart) -> str:
    """Return a figure as SVG."""
    names = table.series(chart.figure)
    points = [each for each in table.points if each.figure == chart.figure]
    assert points, chart.figure
    # A logarithmic axis has no place for 0 or less: leave those points out.
    points = [each for each in points if _shown(each, chart)]
    values = [each.shown(chart) for each in points] + [
        each.published for each in points if each.published is not None
    ]
    # Categories are at 0, 1, 2, …, with room for their names at both ends.
    xs = [-0.4, len(chart.names) - 0.6] if chart.names else [each.x for each in points]
    across, ticks_x = _axis(xs, LEFT, RIGHT, log=chart.log_x)
    if chart.names and chart.log_y and values:
        # Start the axis well below the shortest bar, so that it has a visible length.
        values.append(10.0 ** math.floor(math.log10(min(values) / 1.5)) * 1.15)
    up, ticks_y = _axis(values, BOTTOM, TOP, log=chart.log_y, from_zero=True)
    parts = [svg.element("rect", x=0, y=0, width="100%", height="100%", class_="back")]
    parts.append(svg.text(chart.title, 8, 18, class_="title"))
    parts.append(svg.text(chart.y_label, 8, 36, class_="axis"))
    parts.append(
        svg.text(chart.x_label, (LEFT + RIGHT) / 2, BOTTOM + 34, anchor="middle", class_="axis")
    )
    parts += [_tick_y(value, up) for value in ticks_y]
    if chart.names:
        ticks_x = [float(index) for index in range(len(chart.names))]
    for value in ticks_x:
        label = chart.names[int(value)] if chart.names else _number(value)
        parts.append(_tick_x(value, label, across))
    for number, name in enumerate(names):
        drawn = [each for each in points if each.series == name]
        color = number % COLORS
        if chart.names:
            place = _places(number, len(names), across)
            parts.append(_bars(drawn, chart, color, place, up))
        else:
            parts.append(_curve(drawn, chart, color, across, up))
    if chart.names:
        parts.append(svg.element("line", x1=LEFT, x2=RIGHT, y1=BOTTOM, y2=BOTTOM, class_="base"))
    legend, bottom = _legend(
        names,
        paper=any(each.published is not None for each in points),
        missing=bool(chart.names) and len(points) < len(names) * len(chart.names),
    )
    style = svg.element("style", _STYLE)
    return svg.element(
        "svg",
        svg.element("title", escape(chart.title)),
        style,
        *parts,
        legend,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH:g} {bottom:g}",
        width=f"{WIDTH:g}",
        role="img",
    )


def _shown(point: Point, chart: Chart) -> bool:
    return (point.shown(chart) > 0 or not chart.log_y) and (point.x > 0 or not chart.log_x)


def _axis(
    values: Sequence[float], start: float, end: float, *, log: bool, from_zero: bool = False
) -> tuple[svg.Scale, list[float]]:
    """Return the scale of an axis and its ticks."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    if log:
        low, high = (low / 1.15, high * 1.15) if from_zero or low == high else (low, high)
        return svg.logarithmic(low, high, start, end), svg.ticks_log(low, high)
    if from_zero:
        low, high = min(low, 0.0), (high or 1.0) * 1.06
    elif low == high:
        low, high = low - 1, high + 1
    return svg.linear(low, high, start, end), svg.ticks_linear(low, high)


def _tick_y(value: float, up: svg.Scale) -> str:
    y = up(value)
    line = svg.element("line", x1=LEFT, x2=RIGHT, y1=y, y2=y, class_="grid")
    return line + svg.text(_number(value), LEFT - 8, y + 4, anchor="end", class_="tick")


def _tick_x(value: float, label: str, across: svg.Scale) -> str:
    x = across(value)
    line = svg.element("line", x1=x, x2=x, y1=BOTTOM, y2=BOTTOM + 5, class_="base")
    anchor = "end" if x > RIGHT - 12 else "middle"
    return line + svg.text(label, x, BOTTOM + 18, anchor=anchor, class_="tick")


def _number(value: float) -> str:
    if 0 < abs(value) < 0.1:
        return f"{value:.2g}"
    return svg.count_text(value)


def _places(number: int, count: int, across: svg.Scale) -> Callable[[float], tuple[float, float]]:
    """Return a function from a category to the left and right edge of a series' bar."""
    width = BARS * (across(1) - across(0)) / count

    def place(x: float) -> tuple[float, float]:
        left = across(x) + (number - count / 2) * width
        return left + width * 0.06, left + width * 0.94

    return place


def _bars(
    points: Sequence[Point],
    chart: Chart,
    color: int,
    place: Callable[[float], tuple[float, float]],
    up: svg.Scale,
) -> str:
    found = {int(each.x): each for each in points}
    parts: list[str] = []
    for kind, name in enumerate(chart.names):
        left, right = place(kind)
        point = found.get(kind)
        if point is None:
            parts.append(_cross((left + right) / 2, BOTTOM - 7, f"{name}: no value", color))
            continue
        top = up(point.shown(chart))
        parts.append(
            svg.element(
                "rect",
                svg.element("title", escape(_hint(point, chart, name))),
                x=left,
                y=top,
                width=right - left,
                height=max(0.0, BOTTOM - top),
                class_=f"f{color}",
            )
        )
        parts.append(_published(point, (left + right) / 2, up, f"paper over s{color}"))
    return "".join(parts)


def _curve(
    points: Sequence[Point], chart: Chart, color: int, across: svg.Scale, up: svg.Scale
) -> str:
    places = " ".join(f"{across(each.x):.1f},{up(each.shown(chart)):.1f}" for each in points)
    parts = [svg.element("polyline", points=places, class_=f"s{color}")]
    for each in points:
        parts.append(
            svg.element(
                "circle",
                svg.element("title", escape(_hint(each, chart, _number(each.x)))),
                cx=across(each.x),
                cy=up(each.shown(chart)),
                r=3.2,
                class_=f"f{color}",
            )
        )
        parts.append(_published(each, across(each.x), up, f"paper s{color}"))
    return "".join(parts)


def _hint(point: Point, chart: Chart, at: str) -> str:
    """Return the tooltip of a mark."""
    hint = f"{point.series}, {at}: {_number(point.shown(chart))}"
    if point.cases > 1 and not chart.most:
        hint += f" ± {_number(point.deviation)} ({point.cases} runs)"
    return hint


def _published(point: Point, x: float, up: svg.Scale, class_: str) -> str:
    """Return the diamond of the paper's value, if it states one."""
    if point.published is None:
        return ""
    title = svg.element("title", escape(f"the paper, {point.series}: {_number(point.published)}"))
    return svg.element("polygon", title, points=_corners(x, up(point.published), 7), class_=class_)


def _cross(x: float, y: float, hint: str, color: int | None = None) -> str:
    strokes = (
        f"M{x - 3.5:.1f},{y - 3.5:.1f}L{x + 3.5:.1f},{y + 3.5:.1f}"
        f"M{x - 3.5:.1f},{y + 3.5:.1f}L{x + 3.5:.1f},{y - 3.5:.1f}"
    )
    kind = "base" if color is None else f"s{color}"
    title = svg.element("title", escape(hint))
    return svg.element("path", title, d=strokes, class_=f"missing {kind}")


def _legend(names: Sequence[str], *, paper: bool, missing: bool) -> tuple[str, float]:
    """Return the legend below the plot, and the y where it ends."""
    x, y = LEFT, BOTTOM + 58
    parts: list[str] = []
    entries: list[tuple[str, Callable[[float, float], str]]] = [
        (name, _dot(number % COLORS)) for number, name in enumerate(names)
    ]
    if paper:
        entries.append(("the paper's figures", _diamond))
    if missing:
        entries.append(("no value", lambda x, y: _cross(x, y, "no value")))
    for name, mark in entries:
        width = 22 + LETTER * len(name) + 14
        if x + width > RIGHT and x > LEFT:
            x, y = LEFT, y + ROW
        parts.append(mark(x + 6, y - 4) + svg.text(name, x + 18, y))
        x += width
    return "".join(parts), y + 12


def _dot(color: int) -> Callable[[float, float], str]:
    return lambda x, y: svg.element("circle", cx=x, cy=y, r=4.5, class_=f"f{color}")


def _diamond(x: float, y: float) -> str:
    return svg.element("polygon", points=_corners(x, y, 6), class_="paper base")


def _corners(x: float, y: float, r: float) -> str:
    """Return the corners of a diamond."""
    places = ((x - r, y), (x, y - r), (x + r, y), (x, y + r))
    return " ".join(f"{a:.1f},{b:.1f}" for a, b in places)
