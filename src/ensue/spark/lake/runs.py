"""Tables of a lake about runs: deliveries, verdicts and metrics.

These tables depend only on the run's rows in the lake's trace, and are rebuilt for runs that have
grown. So a killed pipeline rebuilds them with the same result. The price is that a run is read
whole each time it has grown.

A delivery may arrive in an earlier batch than the publication of its event, because every node
writes its own rows; the rebuild joins them when both have arrived.

Runs are judged together, which costs little more than judging one. If the verdict on several is
unknown, they are judged in halves to find the runs that cause it; so a few such runs cost a few
more audits. HAZARD: a trace with thousands of runs that can't be judged costs thousands of audits.
"""

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from ensue.checkers import Verdict
from ensue.spark.audits import audit
from ensue.spark.lake.tables import METRICS, arrow_schema
from ensue.spark.lake.versioned_tables import Draft
from ensue.spark.trace_measurements import measure
from ensue.spark.trace_metrics import tables

__all__ = ["RunVerdict", "deliveries", "judge", "of_runs", "write_run_tables"]

VIOLATIONS_MAX = 1_000_000
"""Most violations of each rule per tile of a run: practically all."""
NAMED_MAX = 1_000
"""More runs than this are joined with the trace instead of listed in the query."""
JOBS_AT_ONCE = 3
"""Tables computed in parallel: for small ones, planning costs more than running."""


class RunVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table `verdicts`."""

    run: str
    order: str
    verdict: Verdict
    because: str = ""
    violations: int = 0
    events: int = 0
    deliveries: int = 0
    subscribers: int = 0
    rows: int = 0


def write_run_tables(
    trace: DataFrame, runs: Sequence[str], order: str, draft: Draft
) -> list[RunVerdict]:
    """Write all tables on these runs; return the verdict on each."""
    chosen = of_runs(trace, runs)
    draft.write_frame("deliveries", deliveries(chosen), by="run")
    measured = measure(chosen).persist()
    try:
        frames = tables(measured)
        with ThreadPoolExecutor(JOBS_AT_ONCE) as pool:
            figures = dict(
                zip(frames, pool.map(lambda name: frames[name].toArrow(), frames), strict=True)
            )
    finally:
        measured.unpersist()
    for name, rows in figures.items():
        table = f"{METRICS}{name}"
        draft.write(table, rows.cast(arrow_schema(table)), by="run")
    violations, found = judge(trace, runs, order)
    draft.write("violations", violations, by="run")
    totals = {row["run"]: row for row in figures["totals"].to_pylist()}
    verdicts = [_with_totals(one, totals[one.run]) for one in found]
    plain = [msgspec.to_builtins(one) for one in verdicts]
    draft.write("verdicts", pa.Table.from_pylist(plain, schema=arrow_schema("verdicts")), by="run")
    return verdicts


def of_runs(trace: DataFrame, runs: Sequence[str]) -> DataFrame:
    """Return the rows of these runs."""
    if len(runs) <= NAMED_MAX:
        return trace.where(f.col("run").isin(list(runs)))
    wanted = trace.sparkSession.createDataFrame(pa.table({"run": list(runs)}))
    return trace.join(f.broadcast(wanted), "run")


def deliveries(trace: DataFrame) -> DataFrame:
    """Return one row per delivery, with the first publication of its event."""
    first = f.min(f.struct("step", "at_ns", "true_ns"))
    published = (
        trace.where("action in ('submitted', 'published') and event is not null")
        .groupBy("run", "event")
        .agg(first.alias("first"))
        .select("run", "event", "first.*")
    )
    latency_ns = f.coalesce(
        f.col("end.true_ns") - f.col("start.true_ns"), f.col("end.at_ns") - f.col("start.at_ns")
    )
    return (
        trace.where("action = 'delivered'")
        .alias("end")
        .join(published.alias("start"), ["run", "event"], "left")
        .select(
            "run",
            "node",
            "subscription",
            "position",
            "event",
            "topic",
            "publisher",
            "publisher_seq",
            "verdict",
            f.expr("timestamp_micros(coalesce(end.true_ns, end.at_ns) div 1000)").alias(
                "delivered_at"
            ),
            f.expr("timestamp_micros(coalesce(start.true_ns, start.at_ns) div 1000)").alias(
                "published_at"
            ),
            (latency_ns / 1_000_000).alias("latency_ms"),
        )
    )


def judge(trace: DataFrame, runs: Sequence[str], order: str) -> tuple[pa.Table, list[RunVerdict]]:
    """Return the violations of these runs, and the verdict on each."""
    if not runs:
        return arrow_schema("violations").empty_table(), []
    found = audit(of_runs(trace, runs), order, violations_max=VIOLATIONS_MAX)
    violations = found.violations.toArrow().cast(arrow_schema("violations"))
    counts = Counter(str(run) for run in violations.column("run").to_pylist())
    broken = [
        RunVerdict(run=run, order=order, verdict=Verdict.INVALID, violations=count)
        for run, count in counts.items()
    ]
    report = found.report(violations_max=1)
    others = [run for run in runs if run not in counts]
    if report.verdict is Verdict.VALID:
        return violations, [RunVerdict(run=run, order=order, verdict=Verdict.VALID) for run in runs]
    if len(runs) == 1 and others:
        reasons = [*report.reasons, *(why for each in report.findings for why in each.reasons)]
        because = "; ".join(reasons)
        unknown = RunVerdict(run=runs[0], order=order, verdict=report.verdict, because=because)
        return violations, [unknown]
    parts = [others] if broken else [others[: len(others) // 2], others[len(others) // 2 :]]
    rest = [judge(trace, part, order) for part in parts]
    # The other runs have no violations.
    return violations, broken + [one for _, each in rest for one in each]


def _with_totals(verdict: RunVerdict, totals: dict[str, int]) -> RunVerdict:
    counts = {name: totals[name] for name in ("events", "deliveries", "subscribers", "rows")}
    return msgspec.structs.replace(verdict, **counts)
