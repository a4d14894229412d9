"""The comparison as one picture: three panels of bars, a row for each case.

The SVG has a background of its own. It follows the light or dark theme of its reader, and has plain
light colors for programs that know no themes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from benchmarks.peers.cases import CASES, Case
from benchmarks.peers.goals import CPU, LOW_P50, RATE, Figure
from benchmarks.peers.measurement import FIRST, SUBSCRIBERS
from benchmarks.peers.run import Run

from ensue.spark.report import svg

__all__ = ["draw"]

WIDTH, MARGIN = 900.0, 16.0
LEFT = 236.0
"""Where the first panel begins, right of the names of the cases."""
TITLE_Y, LEGEND_Y, HEADS_Y, TOP = 28.0, 54.0, 88.0, 112.0
ROW, BAR, GROUP_GAP = 24.0, 15.0, 12.0
VALUE_WIDTH = 56.0
"""Room for the number at the end of the longest bar."""
LETTER = 6.6
"""Approximate width of a letter."""


@dataclass(frozen=True)
class Panel:
    """One column of bars."""

    title: str
    hint: str
    figure: Figure
    left: float
    right: float
    form: str


PANELS = (
    Panel("events/s", "to all subscribers; longer is better", RATE, LEFT, 506.0, ",.0f"),
    Panel("CPU µs per event", "all processes; shorter is better", CPU, 526.0, 706.0, ".1f"),
    Panel("p50 ms at 1,000/s", "shorter is better", LOW_P50, 726.0, 890.0, ".2f"),
)
GROUPS = (
    "Ensue: one order across topics",
    "one order, all topics in one stream",
    "an order per topic",
    "memory only: the limit for Python",
)
"""In the order of the rows."""
LIGHT = {
    "ink": "#1d2126",
    "soft": "#5b646e",
    "back": "#ffffff",
    "base": "#b9c0c8",
    "g0": "#1f6fd0",
    "g1": "#16876b",
    "g2": "#8a939d",
    "g3": "#d9670b",
}
DARK = {
    "ink": "#e8eaed",
    "soft": "#a2abb5",
    "back": "#14171b",
    "base": "#4a535d",
    "g0": "#62a8ff",
    "g1": "#4dc9a3",
    "g2": "#8e98a3",
    "g3": "#ff9d4d",
}
FONT = '12px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif'


@dataclass(frozen=True)
class Row:
    """One case, its group and the top of its bars."""

    case: Case
    group: int
    y: float


def draw(run: Run) -> str:
    """Return the chart of the first shape as SVG."""
    rows, bottom = _rows(run)
    title = f"{FIRST}, {SUBSCRIBERS} subscribers, 100-byte events"
    day = f"measured {run.machine.day}" + (", quick: rough" if run.quick else "")
    parts = [
        svg.element("rect", x=0, y=0, width="100%", height="100%", class_="back"),
        svg.text(title, MARGIN, TITLE_Y, class_="ink title"),
        svg.text(day, WIDTH - MARGIN, TITLE_Y, anchor="end", class_="soft"),
        *_legend(sorted({row.group for row in rows})),
    ]
    parts += [
        svg.text(row.case.label, LEFT - 10, row.y + BAR - 3, anchor="end", class_="ink")
        for row in rows
    ]
    for panel in PANELS:
        parts += _bars(panel, rows, run, bottom)
    height = round(bottom + MARGIN)
    return svg.element(
        "svg",
        svg.element("title", escape(f"Ensue beside its peers: {title}")),
        svg.element("style", _style()),
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH:g} {height:g}",
        width=f"{WIDTH:g}",
        height=f"{height:g}",
        role="img",
    )


def _rows(run: Run) -> tuple[list[Row], float]:
    """Return the measured cases by group, and the y where they end."""
    rows: list[Row] = []
    y = TOP
    for group in range(len(GROUPS)):
        cases = [each for each in CASES if _group(each) == group and run.of(each.name, FIRST)]
        for case in cases:
            rows.append(Row(case, group, y))
            y += ROW
        y += GROUP_GAP if cases else 0.0
    return rows, y - GROUP_GAP if rows else y


def _group(case: Case) -> int:
    if case.is_ours:
        return 0
    if case.client == "hub":
        return 3
    return 1 if case.order == "total" else 2


def _legend(groups: Sequence[int]) -> list[str]:
    x, parts = MARGIN, []
    for group in groups:
        box = {"x": x, "y": LEGEND_Y - 10, "width": 11.0, "height": 11.0}
        parts.append(svg.element("rect", **box, class_=f"g{group}"))
        parts.append(svg.text(GROUPS[group], x + 17, LEGEND_Y, class_="soft"))
        x += 17 + LETTER * len(GROUPS[group]) + 14
    return parts


def _bars(panel: Panel, rows: Sequence[Row], run: Run, bottom: float) -> list[str]:
    values = [run.median(row.case.name, FIRST, panel.figure.of) or 0.0 for row in rows]
    across = svg.linear(0.0, max(values, default=0.0) or 1.0, panel.left, panel.right - VALUE_WIDTH)
    base = {"x1": panel.left, "x2": panel.left, "y1": TOP - 4, "y2": bottom - ROW + BAR + 4}
    parts = [
        svg.text(panel.title, panel.left, HEADS_Y - 6, class_="ink head"),
        svg.text(panel.hint, panel.left, HEADS_Y + 9, class_="soft small"),
        svg.element("line", **base, class_="base"),
    ]
    for row, value in zip(rows, values, strict=True):
        shown, end = f"{value:{panel.form}}", across(value)
        box = {"x": panel.left, "y": row.y, "width": max(1.0, end - panel.left), "height": BAR}
        hint = svg.element("title", escape(f"{row.case.label}: {shown} {panel.title}"))
        parts.append(svg.element("rect", hint, **box, class_=f"g{row.group}"))
        parts.append(svg.text(shown, end + 5, row.y + BAR - 3, class_="ink"))
    return parts


def _style() -> str:
    return (
        f"text {{ font: {FONT}; }} .title {{ font-size: 15px; font-weight: 600; }} "
        ".head { font-weight: 600; } .small { font-size: 10.5px; }\n"
        f"{_colors(LIGHT)}\n@media (prefers-color-scheme: dark) {{\n{_colors(DARK)}\n}}"
    )


def _colors(theme: dict[str, str]) -> str:
    return "\n".join(
        f".{name} {{ {'stroke' if name == 'base' else 'fill'}: {color}; }}"
        for name, color in theme.items()
    )
