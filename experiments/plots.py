"""Curves and bars as SVG files that stand alone: in light and dark, on a page or by themselves.

Ours are lines with dots where x is a quantity, and bars where it is a kind; a kind without a value has a cross on the axis in the place of its bar. What the paper
states is a hollow diamond in the colour of its curve. Hovering over a mark tells its figures.
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
"""How much of the room of a kind its bars take."""
LETTER = 6.6
"""About the width of a letter."""

_STYLE = """
:root { --ink: #1d2126; --soft: #5b646e; --grid: #e3e6ea; --back: #ffffff;
 --s0: #1f6fd0; --s1: #d9670b; --s2: #16876b; --s3: #8a4fc4; --s4: #b6296f; --s5: #6f7d00; --s6: #0e8aa6; --s7: #7a5a3c; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8eaed; --soft: #a2abb5; --grid: #2f363e; --back: #14171b;
 --s0: #62a8ff; --s1: #ff9d4d; --s2: #4dc9a3; --s3: #bf93f2; --s4: #f178b0; --s5: #c1cc4a; --s6: #54c8e0; --s7: #c9a27c; } }
text { font: 12px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: var(--ink); }
.tick, .axis { fill: var(--soft); } .title { font-size: 14px; font-weight: 600; }
.back { fill: var(--back); } .grid { stroke: var(--grid); } .base { stroke: var(--soft); }
polyline { fill: none; stroke-width: 2; } .paper { fill: none; stroke-width: 2; } .over { fill: var(--back); } .missing { fill: none; stroke-width: 1.5; }
""" + "".join(
    f".s{n} {{ stroke: var(--s{n}); }} .f{n} {{ fill: var(--s{n}); }}\n" for n in range(8)
)
COLOURS = 8


def draw(table: Table, chart: Chart) -> str:
    """Draw a figure."""
    names = table.series(chart.figure)
    points = [each for each in table.points if each.figure == chart.figure]
    assert points, chart.figure
    # What lies below a logarithmic axis is left out, not moved.
    points = [each for each in points if _shown(each, chart)]
    values = [each.shown(chart) for each in points] + [
        each.published for each in points if each.published is not None
    ]
    # Kinds stand at 0, 1, 2, …, with room for their names at both ends.
    xs = [-0.4, len(chart.names) - 0.6] if chart.names else [each.x for each in points]
    across, ticks_x = _axis(xs, LEFT, RIGHT, log=chart.log_x)
    if chart.names and chart.log_y and values:
        # A bar has a length, so the axis begins a good way below the shortest.
        values.append(10.0 ** math.floor(math.log10(min(values) / 1.5)) * 1.15)
    up, ticks_y = _axis(values, BOTTOM, TOP, log=chart.log_y, from_zero=True)
    parts = [svg.element("rect", x=0, y=0, width="100%", height="100%", class_="back")]
    parts.append(svg.text(chart.title, 8, 18, class_="title"))
    parts.append(svg.text(chart.up, 8, 36, class_="axis"))
    parts.append(
        svg.text(chart.across, (LEFT + RIGHT) / 2, BOTTOM + 34, anchor="middle", class_="axis")
    )
    parts += [_tick_y(value, up) for value in ticks_y]
    if chart.names:
        ticks_x = [float(index) for index in range(len(chart.names))]
    for value in ticks_x:
        label = chart.names[int(value)] if chart.names else _told(value)
        parts.append(_tick_x(value, label, across))
    for number, name in enumerate(names):
        drawn = [each for each in points if each.series == name]
        colour = number % COLOURS
        if chart.names:
            place = _places(number, len(names), across)
            parts.append(_bars(drawn, chart, colour, place, up))
        else:
            parts.append(_curve(drawn, chart, colour, across, up))
    if chart.names:
        parts.append(svg.element("line", x1=LEFT, x2=RIGHT, y1=BOTTOM, y2=BOTTOM, class_="base"))
    legend, bottom = _legend(
        names,
        papers=any(each.published is not None for each in points),
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
    """Return the scale of an axis and the values that are told on it."""
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
    return line + svg.text(_told(value), LEFT - 8, y + 4, anchor="end", class_="tick")


def _tick_x(value: float, label: str, across: svg.Scale) -> str:
    x = across(value)
    line = svg.element("line", x1=x, x2=x, y1=BOTTOM, y2=BOTTOM + 5, class_="base")
    anchor = "end" if x > RIGHT - 12 else "middle"
    return line + svg.text(label, x, BOTTOM + 18, anchor=anchor, class_="tick")


def _told(value: float) -> str:
    if 0 < abs(value) < 0.1:
        return f"{value:.2g}"
    return svg.count_text(value)


def _places(number: int, count: int, across: svg.Scale) -> Callable[[float], tuple[float, float]]:
    """Return from where to where the bar of one series of several is drawn, by its kind."""
    width = BARS * (across(1) - across(0)) / count

    def place(x: float) -> tuple[float, float]:
        left = across(x) + (number - count / 2) * width
        return left + width * 0.06, left + width * 0.94

    return place


def _bars(
    points: Sequence[Point],
    chart: Chart,
    colour: int,
    place: Callable[[float], tuple[float, float]],
    up: svg.Scale,
) -> str:
    found = {int(each.x): each for each in points}
    parts: list[str] = []
    for kind, name in enumerate(chart.names):
        left, right = place(kind)
        point = found.get(kind)
        if point is None:
            parts.append(_cross((left + right) / 2, BOTTOM - 7, f"{name}: no value", colour))
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
                class_=f"f{colour}",
            )
        )
        parts.append(_published(point, (left + right) / 2, up, f"paper over s{colour}"))
    return "".join(parts)


def _curve(
    points: Sequence[Point], chart: Chart, colour: int, across: svg.Scale, up: svg.Scale
) -> str:
    places = " ".join(f"{across(each.x):.1f},{up(each.shown(chart)):.1f}" for each in points)
    parts = [svg.element("polyline", points=places, class_=f"s{colour}")]
    for each in points:
        parts.append(
            svg.element(
                "circle",
                svg.element("title", escape(_hint(each, chart, _told(each.x)))),
                cx=across(each.x),
                cy=up(each.shown(chart)),
                r=3.2,
                class_=f"f{colour}",
            )
        )
        parts.append(_published(each, across(each.x), up, f"paper s{colour}"))
    return "".join(parts)


def _hint(point: Point, chart: Chart, at: str) -> str:
    """Return what hovering over a mark tells."""
    told = f"{point.series}, {at}: {_told(point.shown(chart))}"
    if point.cases > 1 and not chart.most:
        told += f" ± {_told(point.deviation)} ({point.cases} runs)"
    return told


def _published(point: Point, x: float, up: svg.Scale, class_: str) -> str:
    """Return the diamond of what the paper states, if it does."""
    if point.published is None:
        return ""
    title = svg.element("title", escape(f"the paper, {point.series}: {_told(point.published)}"))
    y = up(point.published)
    corners = f"{x - 7:.1f},{y:.1f} {x:.1f},{y - 7:.1f} {x + 7:.1f},{y:.1f} {x:.1f},{y + 7:.1f}"
    return svg.element("polygon", title, points=corners, class_=class_)


def _cross(x: float, y: float, told: str, colour: int | None = None) -> str:
    strokes = (
        f"M{x - 3.5:.1f},{y - 3.5:.1f}L{x + 3.5:.1f},{y + 3.5:.1f}"
        f"M{x - 3.5:.1f},{y + 3.5:.1f}L{x + 3.5:.1f},{y - 3.5:.1f}"
    )
    kind = "base" if colour is None else f"s{colour}"
    title = svg.element("title", escape(told))
    return svg.element("path", title, d=strokes, class_=f"missing {kind}")


def _legend(names: Sequence[str], *, papers: bool, missing: bool) -> tuple[str, float]:
    """Return the names of the curves under the picture, and where they end."""
    x, y = LEFT, BOTTOM + 58
    parts: list[str] = []
    entries: list[tuple[str, Callable[[float, float], str]]] = [
        (name, _dot(number % COLOURS)) for number, name in enumerate(names)
    ]
    if papers:
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


def _dot(colour: int) -> Callable[[float, float], str]:
    return lambda x, y: svg.element("circle", cx=x, cy=y, r=4.5, class_=f"f{colour}")


def _diamond(x: float, y: float) -> str:
    corners = f"{x - 6:.1f},{y:.1f} {x:.1f},{y - 6:.1f} {x + 6:.1f},{y:.1f} {x:.1f},{y + 6:.1f}"
    return svg.element("polygon", points=corners, class_="paper base")
