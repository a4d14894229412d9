"""Build a report: measure, judge, query the diagrams, render the page.

The diagram of a run shows its first violation, or its beginning if it has none; the caller may
choose a span of time or an event instead. At most `DIAGRAMS_MAX` runs have one, those with a
violation first.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession

from ensue.checkers import Verdict, Violation, named_order, promise_of
from ensue.core.errors import BadInput
from ensue.spark.report.figures import Figures, collect
from ensue.spark.report.page import Content, Drawing, render
from ensue.spark.report.runs import read_runs
from ensue.spark.report.spacetime import Diagram
from ensue.spark.report.verdicts import Judgement, judge
from ensue.spark.report.windows import Span, View, gather
from ensue.spark.trace_measurements import measure
from ensue.spark.trace_metrics import tables
from ensue.spark.traces import orders_of_runs

__all__ = ["DIAGRAMS_MAX", "Report", "report"]

DEFAULT_ORDER = "total"
"""The order that runs without one are judged by."""
DIAGRAMS_MAX = 4

_TITLES = {
    "total": "two nodes disagree on the order of A and B",
    "global": "no single order fits all subscribers: A came before B here",
    "position": "the position of B does not follow that of A",
    "again": "A came again after it was acknowledged",
    "fifo": "A and B came against the order of their publisher",
    "causal": "an effect came before its cause",
    "lost": "A was owed and never came",
    "duplicate": "A came twice",
    "phantom": "A was delivered, and no node had published it so",
    "uninvited": "A came without a subscription to its topic",
    "void": "A came, and was void",
    "expired": "A came after its deadline",
    "missed": "A was there in time and not delivered",
    "slow": "A took longer than it may",
}


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A report: page, figures and verdicts."""

    html: str
    figures: Figures
    judgements: dict[str, Judgement]

    @property
    def verdict(self) -> Verdict:
        """The worst verdict on any run."""
        return Verdict.worst(judged.verdict for judged in self.judgements.values())

    def write(self, path: str | Path) -> None:
        """Write the page to a file, atomically."""
        place = Path(path)
        unfinished = place.with_name(f".{place.name}.unfinished")
        try:
            unfinished.write_text(self.html, encoding="utf-8")
            unfinished.replace(place)
        finally:
            unfinished.unlink(missing_ok=True)

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain values, ready for JSON."""
        found: dict[str, Any] = msgspec.to_builtins(
            {
                "verdict": self.verdict,
                "judgements": self.judgements,
                "run_count": self.figures.run_count,
                "tables": self.figures.tables,
            }
        )
        return found


def report(
    spark: SparkSession,
    source: str | Path,
    *,
    order: str | None = None,
    span: Span | None = None,
    around: str | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Report:
    """Build a report of a trace, or of the traces below a directory.

    Every run is judged by `order`; None: each by the one that its rows name, or by total. With
    `span` or `around`, the space-time diagrams show that time, or the time around that event,
    instead of the first violation. `progress` is called with each step.
    """
    if order is not None:
        promise_of(order)  # Raises an error for an unknown order.
    if span is not None and around is not None:
        raise BadInput("a diagram is of a span of time or around an event, not both")
    progress("reading the trace")
    trace = read_runs(spark, source)
    measured = measure(trace).persist()
    try:
        progress("measuring")
        figures = collect(tables(measured))
        if not figures.runs:
            raise BadInput(f"{source} holds a trace without rows: there is nothing to report")
        promised = _promised(trace, figures, order)
        by = " and ".join(sorted(set(promised.values())))
        progress(f"judging {figures.row_count:,} rows by {by} order")
        judgements = judge(trace, promised, row_count=figures.row_count)
        progress("drawing")
        drawings = _drawings(trace, figures, judgements, span=span, around=around)
    finally:
        measured.unpersist()
    title = Path(source).resolve().name if "://" not in str(source) else str(source)
    content = Content(
        title=title, order=by, figures=figures, judgements=judgements, drawings=drawings
    )
    return Report(html=render(content), figures=figures, judgements=judgements)


def _promised(trace: DataFrame, figures: Figures, order: str | None) -> dict[str, str]:
    """Return the order of each run: the given one, or the one that its rows name."""
    if order is not None:
        return dict.fromkeys(figures.runs, order)
    names = orders_of_runs(trace)
    return {
        run: named_order(names[run], f"run {run}", default=DEFAULT_ORDER) for run in figures.runs
    }


def _drawings(
    trace: DataFrame,
    figures: Figures,
    judgements: dict[str, Judgement],
    *,
    span: Span | None,
    around: str | None,
) -> Sequence[Drawing]:
    runs = sorted(figures.runs, key=lambda run: judgements[run].first is None)[:DIAGRAMS_MAX]
    found = [
        _drawing(trace, figures, judgements[run], View(run=run, span=span, event=around))
        for run in runs
    ]
    if around is not None and all(one.diagram is None for one in found):
        raise BadInput(f"no run has an event {around!r}")
    return [one for one in found if around is None or one.diagram is not None]


def _title(first: Violation) -> str:
    anomaly = _TITLES.get(first.anomaly, first.anomaly)
    if first.anomaly == "total" and len(set(first.nodes)) == 1:
        return anomaly.replace("two nodes", f"two subscriptions of {first.nodes[0]}")
    return anomaly


def _drawing(trace: DataFrame, figures: Figures, judged: Judgement, view: View) -> Drawing:
    because = ""
    if view.span is not None:
        title = f"{view.run}: a chosen span of time"
    elif view.event is not None:
        title = f"{view.run}: around {view.event}"
    elif judged.first is not None:
        view = View(run=view.run, violation=judged.first)
        anomaly = _title(judged.first)
        title = f"{view.run}: the first violation, {anomaly}"
        because = f"{judged.first.because}."
    else:
        title = f"{view.run}: its first events"
    begin_ns = (figures.one("totals", view.run) or {}).get("begin_ns")
    diagram: Diagram | None = None
    if begin_ns is not None:
        diagram = gather(trace, view, begin_ns=begin_ns)
    if diagram is None:
        because = "Nothing was published or delivered in this span of time."
    return Drawing(
        run=view.run,
        title=title,
        because=because,
        diagram=diagram,
        foremost=bool(view.events) or view.span is not None,
    )
