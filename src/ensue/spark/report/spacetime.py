"""A space-time diagram: one line per node, time to the right, one arrow per delivery.

A node with several subscriptions has one line for each; below, every line is called a node.

An arrow runs from the publication of an event to its delivery at a node. Highlighted events, such
as two that subscribers delivered in opposite orders, have a letter and a color. The deliveries that
disagree have the letter in a disc beside the line, with its position: above the line for the first
delivery of the node, below for the next one. Everything else is gray, or colored by topic if no
event is highlighted.
"""

from collections.abc import Iterable, Sequence
from html import escape
from math import hypot

import msgspec

from ensue.checkers.history import ordinal
from ensue.spark.report import svg

__all__ = ["Delivery", "Diagram", "Happening", "Publication", "draw", "key"]

WIDTH = 1120.0
NAME_LENGTH = 28
ROW = 36.0
ROW_MARKED = 68.0
TOP = 34.0
COLORS = 8
TOPICS_COLORED_MAX = 8
LETTERS = "AB"
NOTE_LENGTH = 24
NOTE_LETTER = 6.6
"""Width of a letter of a note, about."""


class Publication(msgspec.Struct, frozen=True, kw_only=True):
    """Publication of an event."""

    event: str
    topic: str
    node: str
    at_ms: float
    """Since the start of the run."""


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """Delivery of an event."""

    event: str
    topic: str
    node: str
    at_ms: float
    position: int | None
    """1, 2, 3, … in its subscription, if the trace has it."""
    marked: bool = False
    """Whether it breaks the order."""


class Happening(msgspec.Struct, frozen=True, kw_only=True):
    """Another incident at a node: a crash, a restart, or a highlighted event discarded."""

    node: str
    at_ms: float
    name: str
    event: str | None = None


class Diagram(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of a diagram, clipped to its window."""

    begin_ms: float
    end_ms: float
    publications: tuple[Publication, ...]
    deliveries: tuple[Delivery, ...]
    happenings: tuple[Happening, ...] = ()
    events: tuple[str, ...] = ()
    """The highlighted events, one or two; may be empty."""
    absent: tuple[str, ...] = ()
    """Nodes that were owed the first of them and never delivered it."""
    left_out: int = 0
    """Number of nodes without room in the diagram."""

    def color(self, event: str, topic: str) -> str:
        """Return the style of an event: a letter's color, a topic's color, or gray."""
        if event in self.events:
            return f"e{self.events.index(event)}"
        if not self.events and len(self.topics()) <= TOPICS_COLORED_MAX:
            return f"c{self.topics().index(topic) % COLORS}"
        return "dim"

    def topics(self) -> list[str]:
        """Return the topics in the diagram."""
        return sorted({one.topic for one in self.publications})


def key(diagram: Diagram) -> str:
    """Return the legend."""
    if diagram.events:
        topics = {one.event: one.topic for one in diagram.deliveries}
        topics.update({one.event: one.topic for one in diagram.publications})
        chips = [
            svg.element(
                "li",
                svg.element("b", LETTERS[number], class_=f"disc d{number}"),
                escape(f"{event} (topic {topics.get(event, 'unknown')})"),
            )
            for number, event in enumerate(diagram.events)
        ]
        chips.append(svg.element("li", svg.element("i", class_="bdim"), "other events"))
    elif len(diagram.topics()) <= TOPICS_COLORED_MAX:
        chips = [
            svg.element("li", svg.element("i", class_=f"b{number}"), escape(topic))
            for number, topic in enumerate(diagram.topics())
        ]
    else:
        chips = [svg.element("li", svg.element("i", class_="bdim"), "events of all topics")]
    return svg.element("ul", *chips, class_="legend")


def draw(diagram: Diagram, *, title: str, mark: str) -> str:
    """Return the picture; `mark` is unique on the page and names its clip path."""
    nodes = _nodes(diagram)
    left = 28 + 8.2 * max((len(svg.shortened(node, NAME_LENGTH)) for node in nodes), default=0)
    right = WIDTH - 20
    rows, bottom = _places(diagram, nodes)
    across = svg.linear(diagram.begin_ms, diagram.end_ms, left, right)
    clip = svg.element(
        "clipPath",
        svg.element("rect", x=left - 8, y=0, width=right - left + 16, height=bottom + 4),
        id=mark,
    )
    lines = [
        part
        for node, y in rows.items()
        for part in (
            svg.element("line", x1=left, x2=right, y1=y, y2=y, class_="life"),
            svg.text(
                svg.shortened(node, NAME_LENGTH), left - 14, y + 4, anchor="end", class_="node"
            ),
        )
    ]
    # Gray first, so that highlighted arrows lie on top.
    arrows = [
        *_arrows(diagram, rows, across, important=False),
        *_arrows(diagram, rows, across, important=True),
    ]
    within = svg.element("g", *arrows, clip_path=f"url(#{mark})")
    return svg.element(
        "svg",
        svg.element("title", escape(title)),
        clip,
        *_axis(diagram, across, bottom),
        *lines,
        within,
        *_publications(diagram, rows, across),
        *_discs(diagram, rows, across),
        *_happenings(diagram, rows, across, right),
        viewBox=f"0 0 {WIDTH:g} {bottom + 46:g}",
        role="img",
        class_="chart wide",
    )


def _nodes(diagram: Diagram) -> list[str]:
    """Return the nodes, top down: publishers, nodes that disagree, the rest."""
    marked = [one.node for one in diagram.deliveries if one.marked]
    concerned = [*sorted(set(marked)), *diagram.absent]
    chosen = [one.node for one in diagram.publications if one.event in diagram.events]
    publishers = sorted({one.node for one in diagram.publications} - {*concerned, *chosen})
    others = sorted({one.node for one in diagram.deliveries})
    happened = sorted({one.node for one in diagram.happenings})
    return list(dict.fromkeys([*publishers, *chosen, *concerned, *others, *happened]))


def _places(diagram: Diagram, nodes: Sequence[str]) -> tuple[dict[str, float], float]:
    """Return the height of each line, with more room for highlighted deliveries."""
    marked = {one.node for one in diagram.deliveries if one.marked}
    rows, y = {}, TOP
    for node in nodes:
        room = ROW_MARKED if node in marked else ROW
        rows[node] = y + room / 2
        y += room
    return rows, y


def _axis(diagram: Diagram, across: svg.Scale, bottom: float) -> Iterable[str]:
    factor, unit = svg.time_unit(diagram.end_ms)
    low, high = diagram.begin_ms / factor, diagram.end_ms / factor
    for value in svg.ticks_linear(low, high, 9):
        x = across(value * factor)
        yield svg.element("line", x1=x, x2=x, y1=TOP - 6, y2=bottom, class_="grid")
        label = f"{value:,.6f}".rstrip("0").rstrip(".")
        yield svg.text(label, x, bottom + 16, anchor="middle", class_="tick")
    middle = across((diagram.begin_ms + diagram.end_ms) / 2)
    yield svg.text(
        f"time since the run began, {unit}", middle, bottom + 36, anchor="middle", class_="axis"
    )


def _arrows(
    diagram: Diagram, rows: dict[str, float], across: svg.Scale, *, important: bool
) -> Iterable[str]:
    starts = {one.event: one for one in diagram.publications}
    for one in diagram.deliveries:
        start = starts.get(one.event)
        if (one.event in diagram.events) is not important or one.node not in rows:
            continue
        x, y = across(one.at_ms), rows[one.node]
        style = diagram.color(one.event, one.topic)
        place = f", its {ordinal(one.position)}," if one.position else ""
        tooltip = svg.element(
            "title",
            escape(f"{one.event} at {one.node}{place} after {svg.duration_text(one.at_ms)}"),
        )
        if start is not None and start.node in rows:
            from_x, from_y = across(start.at_ms), rows[start.node]
            yield svg.element(
                "line", tooltip, x1=from_x, y1=from_y, x2=x, y2=y, class_=f"arrow {style}"
            )
            yield _head(from_x, from_y, x, y, style, 9.0 if important else 5.0)
        else:
            yield svg.element("circle", tooltip, cx=x, cy=y, r=3, class_=f"dot {style}")


def _head(from_x: float, from_y: float, x: float, y: float, style: str, size: float) -> str:
    length = hypot(x - from_x, y - from_y) or 1.0
    along = ((x - from_x) / length, (y - from_y) / length)
    back = (x - along[0] * size, y - along[1] * size)
    aside = (-along[1] * size * 0.38, along[0] * size * 0.38)
    corners = [(x, y), (back[0] + aside[0], back[1] + aside[1])]
    corners.append((back[0] - aside[0], back[1] - aside[1]))
    points = " ".join(f"{px:.1f},{py:.1f}" for px, py in corners)
    return svg.element("polygon", points=points, class_=f"head {style}")


def _publications(diagram: Diagram, rows: dict[str, float], across: svg.Scale) -> Iterable[str]:
    for one in sorted(diagram.publications, key=lambda one: one.event in diagram.events):
        if one.node not in rows or not diagram.begin_ms <= one.at_ms <= diagram.end_ms:
            continue
        x, y = across(one.at_ms), rows[one.node]
        tooltip = svg.element("title", escape(f"{one.node} published {one.event}"))
        style = diagram.color(one.event, one.topic)
        if one.event in diagram.events:
            yield _disc(x, y, diagram.events.index(one.event), tooltip)
        else:
            yield svg.element("circle", tooltip, cx=x, cy=y, r=3, class_=f"dot {style}")


def _disc(x: float, y: float, number: int, tooltip: str = "") -> str:
    circle = svg.element("circle", tooltip, cx=x, cy=y, r=9, class_=f"disc e{number}")
    return circle + svg.text(LETTERS[number], x, y + 4, anchor="middle", class_="letter")


def _discs(diagram: Diagram, rows: dict[str, float], across: svg.Scale) -> Iterable[str]:
    """Draw the letter and position of each delivery that breaks the order."""
    seen: dict[str, int] = {}
    marked = sorted((one for one in diagram.deliveries if one.marked), key=_when)
    for one in marked:
        if one.node not in rows:
            continue
        place = seen[one.node] = seen.get(one.node, 0) + 1
        above = place == 1
        x, line = across(one.at_ms), rows[one.node]
        y = line - 19 if above else line + 19
        number = diagram.events.index(one.event)
        style = f"lead e{number}"
        yield svg.element("line", x1=x, x2=x, y1=line, y2=y, class_=style)
        yield svg.element("circle", cx=x, cy=line, r=3.5, class_=f"dot e{number}")
        yield _disc(x, y, number)
        label = _position(one, place)
        if above:
            yield svg.text(label, x - 13, y + 4, anchor="end", class_="note halo")
        else:
            yield svg.text(label, x + 13, y + 4, class_="note halo")


def _when(one: Delivery) -> tuple[float, int]:
    return one.at_ms, one.position or 0


def _position(one: Delivery, place: int) -> str:
    if one.position:
        return f"its {ordinal(one.position)}"
    return "first" if place == 1 else "then"


def _happenings(
    diagram: Diagram, rows: dict[str, float], across: svg.Scale, right: float
) -> Iterable[str]:
    labels: dict[str, float] = {}
    for one in sorted(diagram.happenings, key=lambda one: one.at_ms):
        if one.node not in rows or not diagram.begin_ms <= one.at_ms <= diagram.end_ms:
            continue
        x, y = across(one.at_ms), rows[one.node]
        style = "cross"
        if one.event in diagram.events:
            style = f"cross e{diagram.events.index(one.event)}"
        tooltip = svg.element("title", escape(f"{one.node}: {one.name} {one.event or ''}".strip()))
        cross = f"M{x - 5:.1f},{y - 5:.1f}L{x + 5:.1f},{y + 5:.1f}M{x - 5:.1f},{y + 5:.1f}"
        yield svg.element("path", tooltip, d=f"{cross}L{x + 5:.1f},{y - 5:.1f}", class_=style)
        half = NOTE_LETTER * min(len(one.name), NOTE_LENGTH) / 2
        # Where crosses are close together, the tooltips of the others have their names.
        if x - half > labels.get(one.node, 0.0):
            labels[one.node] = x + half
            label = svg.shortened(one.name, NOTE_LENGTH)
            yield svg.text(label, x, y - 9, anchor="middle", class_="note halo")
    for node in diagram.absent:
        if node in rows:
            y = rows[node]
            yield svg.text("A never delivered", right, y - 7, anchor="end", class_="note halo bad")
