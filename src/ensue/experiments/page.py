"""What came of the experiments, as Markdown with plots beside it.

`write` makes `experiments.md` and the plots in a directory of documentation, and fills in what other pages there say of an experiment: whatever stands
between the lines `<!-- experiment NAME -->` and `<!-- end -->`.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from ensue.experiments.catalogue import EXPERIMENTS
from ensue.experiments.experiment import Chart, Claim, Table
from ensue.experiments.plots import draw
from ensue.experiments.running import Result

__all__ = ["figure_table", "number", "write"]

PAGE = "experiments.md"
PLOTS = "plots"

PAPERS = {
    "total-notification-order": "Total notification order: stamps by a chain of topic managers",
    "vcube-ps": "VCube-PS: causal order over a hypercube",
    "multi-client-transactions": "Multi-client transactions over content-based brokers",
    "causal-deterministic-merge": "Stabilizing causal deterministic merge",
    "deadline-causal-gossip": "Causal order with deadlines, by gossip",
    "": "What none of the papers has",
}
"""In the order of the page."""

MISSING = {
    "total-notification-order": "The prototype of the paper ran on five machines; here servers and links are simulated.",
}
"""What is not as in a paper."""

_INTRODUCTION = """# Experiments

The evaluations of the five papers, repeated in the simulator with the nodes that run in production, and taken further. Everything below is written by

```sh
make experiments                          # all of them in quick form: this page and its plots
ensue experiment list                     # what there is
ensue experiment run vcube-single         # one, as large as in the paper; --quick for the form shown here
ensue experiment run all --master spark://host:7077
```

Cases are spread over Spark, locally unless told otherwise, and reduced by it to one table. Results are kept in `runs/experiments` as Parquet: an interrupted
campaign goes on where it stopped, and whoever wants to look for themselves finds every case there (`examples/experiments.py` shows how).

Each figure has criteria. *Met* and *not met* are said of what was seen in this run; *not judged* needs sizes that only the full form has. In the plots
lines are ours, and hollow diamonds are what a paper states in figures; its curves are not at hand as numbers, so what they show is a criterion in words.
"""


def write(results: Sequence[Result], docs: Path) -> list[Path]:
    """Write the page of all results, and its plots; return what was written."""
    written: list[Path] = []
    (docs / PLOTS).mkdir(parents=True, exist_ok=True)
    for result in results:
        for chart in [each for each in result.charts if each.drawn]:
            path = docs / PLOTS / plot_name(result, chart)
            path.write_text(draw(result.table, chart) + "\n", encoding="utf-8")
            written.append(path)
    page = docs / PAGE
    page.write_text(_page(results), encoding="utf-8")
    written.append(page)
    others = [each for each in sorted(docs.rglob("*.md")) if each != page]
    return [*written, *(each for each in others if _fill(each, results))]


def plot_name(result: Result, chart: Chart) -> str:
    """Return what the file of a plot is called."""
    words = re.sub(r"[^a-z0-9]+", "-", chart.figure.lower()).strip("-")
    return f"{result.experiment.name}-{words}.svg"


def _fill(page: Path, results: Sequence[Result]) -> bool:
    """Put tables where a page asks for them; say whether it does."""
    text = page.read_text(encoding="utf-8")
    for result in results:
        opening = f"<!-- experiment {result.experiment.name} -->"
        before, found, rest = text.partition(opening)
        _, closed, after = rest.partition("<!-- end -->")
        if found and closed:
            filled = "\n\n".join(tables(result))
            text = f"{before}{opening}\n{filled}\n{closed}{after}"
    if text == page.read_text(encoding="utf-8"):
        return False
    page.write_text(text, encoding="utf-8")
    return True


def _page(results: Sequence[Result]) -> str:
    parts = [_INTRODUCTION, _summary(results)]
    for paper, title in PAPERS.items():
        among = [each for each in results if each.experiment.paper == paper]
        if among:
            parts.append(f"## {title}")
            parts += [MISSING[paper]] if paper in MISSING else []
            parts += [_section(each) for each in among]
    parts.append(_costs(results))
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _summary(results: Sequence[Result]) -> str:
    claims = [claim for result in results for claim in result.claims]
    counts = {
        word: sum(each.verdict == word for each in claims)
        for word in ("met", "not met", "not judged")
    }
    told = f"Of {len(claims)} criteria, {counts['met']} are met, {counts['not met']} are not, {counts['not judged']} are not judged in this form."
    missed = [
        f"* [{result.experiment.name}](#{_anchor(result)}), {each.figure}: {each.expected}. Criterion: {each.criterion}. Seen: {each.seen}."
        + (f" {each.why}" if each.why else "")
        for result in results
        for each in result.claims
        if each.met is False
    ]
    played = {each.experiment.name for each in results}
    if left := [f"`{name}`" for name in EXPERIMENTS if name not in played]:
        told += f" Not part of this run, and so not on this page: {', '.join(left)}."
    return told + ("\n\nNot met:\n\n" + "\n".join(missed) if missed else "")


def _heading(result: Result) -> str:
    figures = f" ({result.experiment.figures})" if result.experiment.figures else ""
    return f"{result.experiment.title}{figures}"


def _anchor(result: Result) -> str:
    """Return how Markdown on the web names a heading."""
    kept = re.sub(r"[^\w\- ]", "", _heading(result).lower())
    return kept.replace(" ", "-")


def _section(result: Result) -> str:
    form = "quick form" if result.quick else "full form"
    parts = [
        f"### {_heading(result)}",
        f"`ensue experiment run {result.experiment.name}`, {form}, {result.cases:,} cases. "
        + " ".join(result.experiment.setting),
        claims_table(result.claims),
    ]
    for chart in result.charts:
        picture = f"![{chart.title}]({PLOTS}/{plot_name(result, chart)})"
        parts.append(picture if chart.drawn else f"{chart.title}:")
        parts.append(figure_table(result.table, chart))
    return "\n\n".join(parts)


def claims_table(claims: Iterable[Claim]) -> str:
    """Return the claims as a table."""
    lines = ["| | expected | criterion | seen | |", "|---|---|---|---|---|"]
    lines += [
        f"| {each.figure} | {each.expected} | {each.criterion} | {each.seen} | {each.verdict} |"
        for each in claims
    ]
    return "\n".join(lines)


def tables(result: Result) -> list[str]:
    """Return the tables of an experiment's figures, those that have no picture if there are any."""
    charts = [each for each in result.charts if not each.drawn] or result.charts
    return [f"{chart.title}:\n\n{figure_table(result.table, chart)}" for chart in charts]


def figure_table(table: Table, chart: Chart) -> str:
    """Return the points of a figure: a row for each x, a column for each curve."""
    names = table.series(chart.figure)
    curves = {name: {each.x: each for each in table.curve(chart.figure, name)} for name in names}
    places = sorted({x for curve in curves.values() for x in curve})
    head = f"| {chart.across} | " + " | ".join(names) + " |"
    lines = [head, "|" + "---|" * (len(names) + 1)]
    for x in places:
        cells = []
        for name in names:
            found = curves[name].get(x)
            told = "" if found is None else number(found.shown(chart))
            if found is not None and found.published is not None:
                told += f" (paper: {number(found.published)})"
            cells.append(told)
        label = chart.names[int(x)] if chart.names else number(x)
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def number(value: float) -> str:
    """Return a figure as it stands in a table."""
    if value == int(value) and abs(value) < 1e12:
        return f"{value:,.0f}"
    digits = 0 if abs(value) >= 1000 else 1 if abs(value) >= 100 else 2 if abs(value) >= 1 else 3
    return f"{value:,.{digits}f}"


def _costs(results: Sequence[Result]) -> str:
    head = (
        "## What it costs\n\n"
        "Seconds by the clock while cases were played one at a time, whatever else the machine had to do. The quick form is measured, in this run; the full form is extrapolated from it by the size of its cases, unless it is what was run. "
        "Two cores take about half of it, a cluster less.\n\n"
        "| experiment | cases | seconds | cases of the full form | its seconds, about |\n|---|---|---|---|---|"
    )
    rows = [
        f"| {each.experiment.name} | {each.cases:,} | {each.seconds:,.0f} | {len(each.experiment.cases(False)):,} | {each.full_seconds:,.0f} |"
        for each in results
    ]
    total = f"| all | {sum(each.cases for each in results):,} | {sum(each.seconds for each in results):,.0f} | | {sum(each.full_seconds for each in results):,.0f} |"
    return "\n".join([head, *rows, total])
