"""The figures of a report as plain values, cut to what a page can hold.

They come from the tables of `trace_metrics`.

What is collected is small whatever the trace: a row a run, a bucket of time or of latency, and the
busiest topics. Of many runs the first are shown, by name.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

__all__ = ["RUNS_MAX", "TOPICS_MAX", "Figures", "collect"]

RUNS_MAX = 8
"""Runs that a page compares: as many as there are colours."""
TOPICS_MAX = 20
"""Topics of a run that are listed one by one."""
ROWS_MAX = 20_000
"""Rows of any table that are brought to the page."""

Rows = Sequence[Mapping[str, Any]]


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of each table, by its name, of the runs that are shown."""

    runs: tuple[str, ...]
    run_count: int
    """How many runs there are, shown or not."""
    row_count: int
    """Rows of the whole trace."""
    tables: Mapping[str, Rows]
    """Rows of `latency` also say how many `topics` there are, listed or not."""

    def of(self, table: str, run: str) -> list[Mapping[str, Any]]:
        """Return the rows of a run."""
        return [row for row in self.tables[table] if row["run"] == run]

    def one(self, table: str, run: str) -> Mapping[str, Any] | None:
        """Return the row of a whole run, or None; of several orders, the largest."""
        rows = [row for row in self.of(table, run) if row.get("topic") is None]
        return max(rows, key=lambda row: row.get("count") or 0, default=None)


def collect(tables: Mapping[str, DataFrame]) -> Figures:
    """Bring the tables here."""
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
