"""What came of the experiments, as Markdown with plots beside it.

`write` makes `experiments.md` and the plots in a directory of documentation, and fills in what other pages there say of an experiment: whatever stands
between the lines `<!-- experiment NAME -->` and `<!-- end -->`. What the page says of experiments that are not among the results is kept.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from experiments.catalog import EXPERIMENTS
from experiments.experiment import Chart, Claim, Table
from experiments.page_sections import Cost, Part, anchor_of, heading_of, kept_parts, opening_of
from experiments.plots import draw
from experiments.runner import Result

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
    "total-notification-order": "The prototype of the paper ran on five machines; here servers and links are simulated. *Ours* are the nodes that run in production; *published rules* are a model of the paper's, to compare with.",
}
"""What is not as in a paper."""

_INTRODUCTION = """# Experiments

The evaluations of the five papers, repeated in the simulator with the nodes that run in production, and taken further. Everything below is written by

```sh
make experiments                          # all of them in quick form: this page and its plots
python -m experiments list                     # what there is
python -m experiments run vcube-single         # one, as large as in the paper; --quick for the form shown here
python -m experiments run all --master spark://host:7077
python -m experiments run vcube-single --quick --docs docs/explanation   # one of them anew; the page keeps the others
```

Cases are spread over Spark, locally unless told otherwise, and reduced by it to one table. Results are kept in `runs/experiments` as Parquet: an interrupted
campaign goes on where it stopped, and whoever wants to look for themselves finds every case there (`examples/experiments.py` shows how).

Each figure has criteria. *Met* and *not met* are said of what was seen in this run; *not judged* needs sizes that only the full form has. In the plots
lines are ours, and hollow diamonds are what a paper states in figures; its curves are not at hand as numbers, so what they show is a criterion in words.
"""


def write(results: Sequence[Result], docs: Path) -> list[Path]:
    """Write the page of all results, and its plots; return what was written.

    A page that is there keeps its parts on experiments that have no result.
    """
    written: list[Path] = []
    (docs / PLOTS).mkdir(parents=True, exist_ok=True)
    for result in results:
        for chart in [each for each in result.charts if each.drawn]:
            path = docs / PLOTS / plot_name(result, chart)
            path.write_text(draw(result.table, chart) + "\n", encoding="utf-8")
            written.append(path)
    page = docs / PAGE
    parts = kept_parts(page.read_text(encoding="utf-8"), EXPERIMENTS) if page.exists() else {}
    parts |= {each.experiment.name: _part(each) for each in results}
    page.write_text(_page([parts[name] for name in EXPERIMENTS if name in parts]), "utf-8")
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


def _part(result: Result) -> Part:
    experiment = result.experiment
    return Part(
        experiment=experiment,
        section=_section(result),
        verdicts=[each.verdict for each in result.claims],
        missed=[
            f"* [{experiment.name}](#{anchor_of(experiment)})"
            + (f", {each.figure}" if each.figure else "")
            + f": {each.expected}. Criterion: {each.criterion}. Seen: {each.seen}."
            + (f" {each.why}" if each.why else "")
            for each in result.claims
            if each.met is False
        ],
        cost=Cost(result.cases, result.seconds, result.full_seconds),
    )


def _page(parts: Sequence[Part]) -> str:
    told = [_INTRODUCTION, _summary(parts)]
    for paper, title in PAPERS.items():
        among = [each for each in parts if each.experiment.paper == paper]
        if among:
            told.append(f"## {title}")
            told += [MISSING[paper]] if paper in MISSING else []
            told += [each.section for each in among]
    told.append(_costs(parts))
    return "\n\n".join(each.strip() for each in told) + "\n"


def _summary(parts: Sequence[Part]) -> str:
    verdicts = [verdict for part in parts for verdict in part.verdicts]
    met, not_met, not_judged = map(verdicts.count, ("met", "not met", "not judged"))
    told = f"Of {len(verdicts)} criteria, {met} are met, {not_met} are not, {not_judged} are not judged in this form."
    missed = [line for part in parts for line in part.missed]
    played = {each.experiment.name for each in parts}
    if left := [f"`{name}`" for name in EXPERIMENTS if name not in played]:
        told += f" Never run, and so not on this page: {', '.join(left)}."
    return told + ("\n\nNot met:\n\n" + "\n".join(missed) if missed else "")


def _section(result: Result) -> str:
    form = "quick" if result.quick else "full"
    parts = [
        f"### {heading_of(result.experiment)}",
        opening_of(result.experiment, form, f"{result.cases:,}"),
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


def _costs(parts: Sequence[Part]) -> str:
    head = (
        "## What it costs\n\n"
        "Seconds by the clock while cases were played one at a time, whatever else the machine had to do. The quick form is measured, when the experiment was run last; the full form is extrapolated from it by the size of its cases, unless it is what was run. "
        "Two cores take about half of it, a cluster less.\n\n"
        "| experiment | cases | seconds | cases of the full form | its seconds, about |\n|---|---|---|---|---|"
    )
    rows = [
        f"| {each.experiment.name} | {each.cost.cases:,} | {each.cost.seconds:,.0f} | {len(each.experiment.cases(False)):,} | {each.cost.full_seconds:,.0f} |"
        for each in parts
    ]
    cases, seconds, full = (
        sum(getattr(each.cost, field) for each in parts)
        for field in ("cases", "seconds", "full_seconds")
    )
    return "\n".join([head, *rows, f"| all | {cases:,} | {seconds:,.0f} | | {full:,.0f} |"])
