"""The results of experiments as a Markdown page with plots.

`write` writes `experiments.md` and the plots to a directory of documentation. In other pages of
that directory it replaces the tables between the lines `<!-- experiment NAME -->` and
`<!-- end -->`. The page keeps its sections on experiments that have no new result.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from experiments.catalog import EXPERIMENTS
from experiments.experiment import Chart, Claim, Table
from experiments.page_sections import (
    Cost,
    Part,
    heading_of,
    kept_parts,
    missed_item,
    opening_of,
    wrapped,
)
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
    "": "Beyond the papers",
}
"""Headings of the page, in its order."""

DIFFERENCES = {
    "total-notification-order": (
        "The paper's prototype ran on five machines; here servers and links are simulated. *Ours* "
        "are the nodes that run in production. *Published rules* are a model of the paper's rules, "
        "for comparison."
    ),
}
"""How an evaluation differs from its paper."""

_INTRODUCTION = """# Experiments

These experiments repeat the evaluations of the five papers in the simulator, with the nodes that
run in production, and extend them. Commands generate everything below:

```sh
make experiments                        # the quick form of all: this page and its plots
python -m experiments list              # list the experiments
python -m experiments run vcube-single  # one experiment at the paper's size; --quick: as shown here
python -m experiments run all --master spark://host:7077

# Run one experiment again; the page keeps the others.
python -m experiments run vcube-single --quick --docs docs/explanation
```

Spark runs the cases, on this machine unless `--master` names a cluster, and reduces them to one
table. Results are Parquet files in `runs/experiments`: an interrupted run resumes, and you can
query every case (see `examples/experiments.py`).

Each figure has criteria. *Met* and *not met* refer to this run. *Not judged* means that the
criterion needs sizes of the full form. In the plots, lines are our results and hollow diamonds are
numbers that a paper states. The papers' curves are not available as numbers, so criteria describe
their shape in words. *To meet it* says what would have to change.
"""


def write(results: Sequence[Result], docs: Path) -> list[Path]:
    """Write the page and its plots; return the paths written.

    An existing page keeps its sections on experiments that have no new result.
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
    """Return the file name of a plot."""
    words = re.sub(r"[^a-z0-9]+", "-", chart.figure.lower()).strip("-")
    return f"{result.experiment.name}-{words}.svg"


def _fill(page: Path, results: Sequence[Result]) -> bool:
    """Replace the tables of experiments in a page; return whether it changed."""
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
        missed=[missed_item(experiment, each) for each in result.claims if each.met is False],
        cost=Cost(result.cases, result.seconds, result.full_seconds),
    )


def _page(parts: Sequence[Part]) -> str:
    blocks = [_INTRODUCTION, _summary(parts)]
    for paper, title in PAPERS.items():
        among = [each for each in parts if each.experiment.paper == paper]
        if among:
            blocks.append(f"## {title}")
            blocks += [wrapped(DIFFERENCES[paper])] if paper in DIFFERENCES else []
            blocks += [each.section for each in among]
    blocks.append(_costs(parts))
    return "\n\n".join(each.strip() for each in blocks) + "\n"


def _summary(parts: Sequence[Part]) -> str:
    verdicts = [verdict for part in parts for verdict in part.verdicts]
    met, not_met, not_judged = map(verdicts.count, ("met", "not met", "not judged"))
    counts = (
        f"Of {len(verdicts)} criteria, {met} are met, {not_met} are not met, and {not_judged} are "
        "not judged in this form."
    )
    missed = [item for part in parts for item in part.missed]
    shown = {each.experiment.name for each in parts}
    if left := [f"`{name}`" for name in EXPERIMENTS if name not in shown]:
        counts += f" Never run, so not on this page: {', '.join(left)}."
    return wrapped(counts) + ("\n\nNot met:\n\n" + "\n".join(missed) if missed else "")


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
    """Return claims as a table."""
    lines = ["| | expected | criterion | seen | |", "|---|---|---|---|---|"]
    lines += [
        f"| {each.figure} | {each.expected} | {each.criterion} | {each.seen} | {each.verdict} |"
        for each in claims
    ]
    return "\n".join(lines)


def tables(result: Result) -> list[str]:
    """Return the tables of the figures without a plot; of all figures if every one has a plot."""
    charts = [each for each in result.charts if not each.drawn] or result.charts
    return [f"{chart.title}:\n\n{figure_table(result.table, chart)}" for chart in charts]


def figure_table(table: Table, chart: Chart) -> str:
    """Return the points of a figure: one row per x, one column per curve."""
    names = table.series(chart.figure)
    curves = {name: {each.x: each for each in table.curve(chart.figure, name)} for name in names}
    places = sorted({x for curve in curves.values() for x in curve})
    head = f"| {chart.x_label} | " + " | ".join(names) + " |"
    lines = [head, "|" + "---|" * (len(names) + 1)]
    for x in places:
        cells = []
        for name in names:
            found = curves[name].get(x)
            cell = "" if found is None else number(found.shown(chart))
            if found is not None and found.published is not None:
                cell += f" (paper: {number(found.published)})"
            cells.append(cell)
        label = chart.names[int(x)] if chart.names else number(x)
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def number(value: float) -> str:
    """Format a number for a table."""
    if value == int(value) and abs(value) < 1e12:
        return f"{value:,.0f}"
    digits = 0 if abs(value) >= 1000 else 1 if abs(value) >= 100 else 2 if abs(value) >= 1 else 3
    return f"{value:,.{digits}f}"


def _costs(parts: Sequence[Part]) -> str:
    head = (
        "## Running time\n\n"
        + wrapped(
            "Wall-clock seconds of all cases, one after the other, on a machine with other load. "
            "The quick form is measured in the last run of each experiment. The full form is "
            "estimated from it by the size of its cases, unless the full form ran. Two cores take "
            "about half the time, a cluster less."
        )
        + "\n\n| experiment | cases | seconds | cases, full form | seconds, full form |\n"
        "|---|---|---|---|---|"
    )
    rows = [
        f"| {each.experiment.name} | {each.cost.cases:,} | {each.cost.seconds:,.0f} "
        f"| {len(each.experiment.cases(False)):,} | {each.cost.full_seconds:,.0f} |"
        for each in parts
    ]
    cases, seconds, full = (
        sum(getattr(each.cost, field) for each in parts)
        for field in ("cases", "seconds", "full_seconds")
    )
    return "\n".join([head, *rows, f"| all | {cases:,} | {seconds:,.0f} | | {full:,.0f} |"])
