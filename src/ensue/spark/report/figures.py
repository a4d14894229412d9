"""The figures of a report: tables of `trace_metrics`, limited to what a page can show.

Their size does not grow with the trace: one row per run, per bucket of time or of latency, and the
busiest topics. Of many runs, the first by name are shown.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

__all__ = ["RUNS_MAX", "TOPICS_MAX", "Figures", "collect"]

RUNS_MAX = 8
"""Most runs on a page: the number of colors."""
TOPICS_MAX = 20
"""Most topics listed for a run."""
ROWS_MAX = 20_000
"""Most rows of each table."""

Rows = Sequence[Mapping[str, Any]]


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of each table, by name, of the shown runs."""

    runs: tuple[str, ...]
    run_count: int
    """Number of all runs, shown or not."""
    row_count: int
    """Number of rows of the whole trace."""
    tables: Mapping[str, Rows]
    """Rows of `latency` also have the number of all `topics`, listed or not."""

    def of(self, table: str, run: str) -> list[Mapping[str, Any]]:
        """Return the rows of a run."""
        return [row for row in self.tables[table] if row["run"] == run]

    def one(self, table: str, run: str) -> Mapping[str, Any] | None:
        """Return the row of a whole run, or None; with several orders, the largest."""
        rows = [row for row in self.of(table, run) if row.get("topic") is None]
        return max(rows, key=lambda row: row.get("count") or 0, default=None)


def collect(tables: Mapping[str, DataFrame]) -> Figures:
    """Collect the tables on the driver."""
    totals = tables["totals"].persist()
    summary = totals.agg(f.count(f.lit(1)), f.sum("rows")).collect()[0]
    found: dict[str, Rows] = {"totals": _rows(totals.orderBy("run").limit(RUNS_MAX))}
    totals.unpersist()
    runs = tuple(row["run"] for row in found["totals"])
    shown = {
        name: frame.where(f.col("run").isin(*runs)) if runs else frame
        for name, frame in tables.items()
    }
    topics = Window.partitionBy("run", "order", f.col("topic").isNull())
    latency = (
        shown["latency"]
        .withColumn("place", f.row_number().over(topics.orderBy(f.desc("count"), "topic")))
        .withColumn("topics", f.count(f.lit(1)).over(topics))
    )
    found["latency"] = _rows(latency.where(f.col("place") <= TOPICS_MAX).orderBy("run", "place"))
    for name, order in (
        ("verdicts", ("run", "action", "verdict")),
        ("latency_histogram", ("run", "order", "low_ms")),
        ("hold_back", ("run", "order")),
        ("hold_back_over_time", ("run", "order", "bucket_ms")),
        ("stamp_histogram", ("run", "order", "entries")),
        ("stamps_over_time", ("run", "order", "bucket_ms")),
        ("messages", ("run", "order")),
    ):
        found[name] = _rows(shown[name].orderBy(*order))
    for name, column in (("stamps", "order"), ("throughput", "bucket_ms")):
        found[name] = _rows(shown[name].where("topic is null").orderBy("run", column))
    return Figures(
        runs=runs,
        run_count=summary[0],
        row_count=summary[1] or 0,
        tables=found,
    )


def _rows(frame: DataFrame) -> Rows:
    return [row.asDict() for row in frame.limit(ROWS_MAX).collect()]
