"""The page: one self-contained HTML file to view, print or send.

Its content security policy forbids loading anything, so that a hostile name in a trace can't. It
has no script. Colors follow the reader's choice of light or dark.
"""

from collections.abc import Sequence
from html import escape
from pathlib import Path

import msgspec

from ensue.checkers import Verdict
from ensue.spark.report import charts, spacetime, svg
from ensue.spark.report.figures import RUNS_MAX, Figures
from ensue.spark.report.sections import card, cards
from ensue.spark.report.spacetime import Diagram
from ensue.spark.report.verdicts import Judgement

__all__ = ["Content", "Drawing", "picture", "render"]

SENTENCES_MAX = 6
"""Most sentences shown of a verdict."""

_STYLE = Path(__file__).with_name("page.css")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_VERDICTS = {
    Verdict.VALID: "the order was kept",
    Verdict.INVALID: "the order was broken",
    Verdict.UNKNOWN: "could not be judged",
}


class Drawing(msgspec.Struct, frozen=True, kw_only=True):
    """A space-time diagram with title and text."""

    run: str
    title: str
    because: str
    """A sentence below it; may be empty."""
    diagram: Diagram | None
    """None if there is nothing to draw; the sentence then gives the reason."""
    foremost: bool = False
    """Whether the caller chose it, or it shows a violation."""


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of a page."""

    title: str
    order: str
    """The order by which the runs were judged."""
    figures: Figures
    judgements: dict[str, Judgement]
    drawings: Sequence[Drawing]


def render(content: Content) -> str:
    """Return the page."""
    # Violations and chosen views come first, beginnings of runs last.
    parts = [_drawings(content.drawings), cards(content.figures)]
    if not any(one.foremost for one in content.drawings):
        parts.reverse()
    main = svg.element(
        "main", _header(content), _verdicts(content), *parts, _table(content), _footer()
    )
    return _document(content.title, main)


def picture(drawing: Drawing) -> str:
    """Return a page with one space-time diagram."""
    return _document(drawing.title, svg.element("main", _drawings([drawing])))


def _document(title: str, main: str) -> str:
    head = svg.element(
        "head",
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        svg.element("title", escape(f"{title} - Ensue report")),
        svg.element("style", _STYLE.read_text(encoding="utf-8")),
    )
    body = svg.element("body", main)
    return f"<!DOCTYPE html>\n{svg.element('html', head, body, lang='en')}\n"


def _header(content: Content) -> str:
    figures = content.figures
    totals = [row for row in figures.tables["totals"] if row["duration_ms"] is not None]
    events = sum(row["events"] for row in totals)
    deliveries = sum(row["deliveries"] for row in totals)
    subscribers = sum(row["subscribers"] for row in totals)
    longest = max((row["duration_ms"] for row in totals), default=0.0)
    runs = f"{len(figures.runs)} runs, each up to" if len(figures.runs) > 1 else "One run of"
    summary = (
        f"{runs} {svg.duration_text(longest)}: {events:,} events, {deliveries:,} deliveries, "
        f"{subscribers:,} subscribers. Judged by {content.order} order."
    )
    if figures.run_count > len(figures.runs):
        summary += f" The trace holds {figures.run_count:,} runs; the first {RUNS_MAX} are shown."
    return svg.element(
        "header",
        svg.element("h1", escape(content.title)),
        svg.element("p", escape(summary), class_="sub"),
    )


def _verdicts(content: Content) -> str:
    parts = []
    for run in content.figures.runs:
        judged = content.judgements[run]
        shown = list(judged.sentences[:SENTENCES_MAX])
        if len(judged.sentences) > len(shown):
            shown.append(f"and {len(judged.sentences) - len(shown):,} more such notes")
        items = svg.element("ul", *(svg.element("li", escape(line)) for line in shown))
        parts.append(
            svg.element(
                "div",
                svg.element(
                    "h3",
                    svg.element("b", escape(judged.verdict)),
                    escape(f" · run {run}: {_VERDICTS[judged.verdict]}"),
                ),
                svg.element("p", escape(judged.checked), class_="sub") if judged.checked else "",
                items if shown else "",
                class_=f"verdict {judged.verdict}",
            )
        )
    return svg.element("div", *parts, class_="verdicts")


def _drawings(drawings: Sequence[Drawing]) -> str:
    parts = []
    for number, one in enumerate(drawings):
        content = [svg.element("h3", escape(one.title))]
        if one.diagram is None:
            content.append(charts.empty(one.because))
        else:
            picture = spacetime.draw(one.diagram, title=one.title, mark=f"window-{number}")
            content.append(spacetime.key(one.diagram))
            content.append(svg.element("div", picture, class_="scroll"))
            note = one.because
            if one.diagram.left_out:
                note += f" {one.diagram.left_out} more nodes are not shown."
            if note:
                content.append(svg.element("p", escape(note.strip()), class_="because"))
        parts.append(svg.element("div", *content, class_="run"))
    return card(
        "Who saw what when",
        "A line for each node, or for each of its subscriptions, time to the right; an arrow runs "
        "from the publication of an event to its delivery.",
        *parts,
    )


def _table(content: Content) -> str:
    figures = content.figures
    names = svg.element("tr", "<th></th>", *(svg.element("th", escape(r)) for r in figures.runs))
    columns = [_figures_of(content, run) for run in figures.runs]
    title, why = "All figures", "A dash marks a figure that the trace does not contain."
    if len(columns) == 1:
        facts = (
            svg.element("div", svg.element("dt", escape(name)), svg.element("dd", escape(figure)))
            for name, figure in columns[0].items()
        )
        return card(title, "", svg.element("dl", *facts))
    labels = list(dict.fromkeys(label for column in columns for label in column))
    body = [
        svg.element(
            "tr",
            svg.element("th", escape(label), scope="row"),
            *(svg.element("td", escape(column.get(label, "-"))) for column in columns),
        )
        for label in labels
    ]
    table = svg.element(
        "table", svg.element("thead", names), svg.element("tbody", *body), class_="narrow"
    )
    return card(title, why, svg.element("div", table, class_="scroll"))


def _figures_of(content: Content, run: str) -> dict[str, str]:
    """Return the figures that a run has, by name."""
    figures = content.figures
    totals = figures.one("totals", run)
    assert totals is not None
    seconds = (totals["duration_ms"] or 0.0) / 1_000
    shown = {
        "verdict": str(content.judgements[run].verdict),
        "order asked for": totals["order"],
        "events": f"{totals['events']:,}",
        "deliveries": f"{totals['deliveries']:,}",
        "subscribers": f"{totals['subscribers']:,}",
        "publishers": f"{totals['publishers']:,}",
        "time from first to last": svg.duration_text(totals["duration_ms"] or 0.0),
    }
    if seconds:
        shown["events per second"] = svg.count_text(round(totals["events"] / seconds, 1))
        shown["deliveries per second"] = svg.count_text(round(totals["deliveries"] / seconds, 1))
    latency = figures.one("latency", run)
    if latency is not None:
        for name in ("mean", "p50", "p90", "p99", "p999", "max"):
            label = name.replace("p999", "p99.9")
            shown[f"latency, {label}"] = svg.duration_text(latency[f"{name}_ms"])
    held = figures.one("hold_back", run)
    if held is not None:
        shown["held back"] = f"{held['held_count']:,} ({held['held_share']:.1%})"
        if held["held_count"]:
            shown["held back for, mean"] = svg.duration_text(held["mean_ms"])
            shown["held back for, p99"] = svg.duration_text(held["p99_ms"])
    stamps = figures.one("stamps", run)
    if stamps is not None:
        shown["stamp entries, mean"] = f"{stamps['mean_entries']:.1f}"
        shown["stamp entries, max"] = f"{stamps['max_entries']:,}"
        if stamps["mean_bytes"] is not None:
            shown["stamp bytes, mean"] = f"{stamps['mean_bytes']:.1f}"
    for row in figures.of("verdicts", run):
        action = "tagged" if row["action"] == "delivered" else row["action"]
        shown[f"{action} as {row['verdict'] or 'nothing'}"] = f"{row['count']:,}"
    if totals["crashes"]:
        shown["crashes"] = f"{totals['crashes']:,}"
    return shown


def _footer() -> str:
    return svg.element(
        "footer",
        "<p>Latency runs from publication to delivery: by simulated time where the trace has it, "
        "and otherwise by the clocks of the two nodes, whose difference it then includes. A "
        "delivery was held back if an event that its node received later was delivered before it. "
        "The bytes of a stamp are what sending the event took more than the bare event.</p>"
        "<p>Percentiles are by nearest rank: exact up to 5,000 figures, beyond that with a rank "
        "within 1 / 10,000. Verdicts come from deliveries alone; stamps are not believed.</p>",
    )
