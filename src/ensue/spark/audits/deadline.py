"""Find late and missed deliveries by joins: the rule `deadline`.

The rule is that of `ensue.checkers`: it finds deliveries after their deadline, and events that
arrived in time and were not delivered.

Times are readings of each node's own clock, and deadlines those of the events. The checker defines
which omissions are excused.
"""

from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from ensue.checkers.deadline import EXCUSES
from ensue.spark.audits import judge

__all__ = ["judge_deadlines"]

MILLISECOND_NS = 1_000_000
KEY = ["run", "node", "subscription", "event"]


def judge_deadlines(trace: DataFrame, *, clock_error_ns: int, violations_max: int) -> pa.Table:
    """Return late and missed deliveries as a table of `judge.JUDGED`."""
    named = trace.withColumn("subscription", f.coalesce("subscription", f.lit("")))
    arrived = _first(named.where("action = 'received' AND deadline_ns IS NOT NULL"))
    delivered = _first(named.where("action = 'delivered' AND verdict = ''"))
    expired = delivered.where("at_ns > deadline_ns").withColumn("anomaly", f.lit("expired"))
    missed = _missed(named, arrived, delivered, clock_error_ns)
    found = expired.unionByName(missed.withColumn("anomaly", f.lit("missed")))
    rows: list[dict[str, Any]] = []
    for anomaly, count in found.groupBy("anomaly").count().collect():
        sorted_rows = found.where(f.col("anomaly") == anomaly).orderBy(
            "run", "node", "at_ns", "event", "subscription"
        )
        some = [row.asDict() for row in sorted_rows.limit(violations_max).collect()]
        rows += (_row(one, len(rows) + place) for place, one in enumerate(some))
        if count > len(some):
            last = {**_empty(some[-1]["run"], len(rows)), "what": "unreported", "anomaly": anomaly}
            rows.append({**last, "count": count - len(some)})
    rows += _share(arrived, delivered, len(rows))
    return pa.Table.from_pylist(rows, schema=judge.JUDGED_ARROW)


def _first(rows: DataFrame) -> DataFrame:
    """Return the first row of each event at each subscription."""
    first = f.min_by(f.struct("at_ns", "deadline_ns", "step", "topic"), "step")
    return rows.groupBy(*KEY).agg(first.alias("first")).select(*KEY, "first.*")


def _missed(
    named: DataFrame, arrived: DataFrame, delivered: DataFrame, clock_error_ns: int
) -> DataFrame:
    excused = named.where(f.col("action") == "discarded").where(f.col("verdict").isin(*EXCUSES))
    ends = named.groupBy("run", "node").agg(f.max("at_ns").alias("last_ns"))
    open_ones = (
        # Null on underflow: no 64-bit clock reads an earlier time.
        arrived.where(f.col("at_ns") <= f.try_subtract("deadline_ns", f.lit(clock_error_ns)))
        .join(delivered.select(*KEY), KEY, "left_anti")
        .join(excused.select(*KEY), KEY, "left_anti")
        .join(ends, ["run", "node"])
        .where("deadline_ns <= last_ns")
        .drop("last_ns")
    )
    cut = named.where("action IN ('crashed', 'unsubscribed')").select(
        f.col("run").alias("cut_run"),
        f.col("node").alias("cut_node"),
        f.col("step").alias("cut_step"),
        f.col("at_ns").alias("cut_ns"),
        f.col("topic").alias("cut_topic"),
        f.col("subscription").alias("cut_subscription"),
        f.col("action").alias("cut_action"),
    )
    left = (f.col("cut_topic") == f.col("topic")) & (
        f.col("cut_subscription") == f.col("subscription")
    )
    interrupted = (
        (f.col("run") == f.col("cut_run"))
        & (f.col("node") == f.col("cut_node"))
        & (f.col("cut_step") > f.col("step"))
        & (f.col("cut_ns") <= f.col("deadline_ns"))
        & ((f.col("cut_action") == "crashed") | left)
    )
    return open_ones.join(cut, interrupted, "left_anti")


def _share(arrived: DataFrame, delivered: DataFrame, place: int) -> list[dict[str, Any]]:
    """Return a note with the share of received events delivered on time."""
    received = arrived.select(*KEY).union(delivered.select(*KEY)).distinct().count()
    if not received:
        return []
    on_time = delivered.where("at_ns <= deadline_ns").count()
    text = (
        f"{on_time} of {received} events that arrived were delivered in order and on time "
        f"({on_time / received:.1%})"
    )
    return [{**_empty(None, place), "what": "note", "because": text}]


def _empty(run: str | None, place: int) -> dict[str, Any]:
    names = dict.fromkeys(judge.JUDGED_ARROW.names)
    return {**names, "run": run, "checker": "deadline", "tile": 0, "place": place}


def _row(found: dict[str, Any], place: int) -> dict[str, Any]:
    apart_ns = abs(found["at_ns"] - found["deadline_ns"])
    apart = f"{apart_ns / MILLISECOND_NS:g} ms"
    if found["anomaly"] == "expired":
        because = f"{found['node']} delivered {found['event']} {apart} after its deadline, untagged"
    else:
        because = (
            f"{found['event']} arrived at {found['node']} {apart} before its deadline, and was not "
            "delivered in order and on time"
        )
    return {
        **_empty(found["run"], place),
        "what": "violation",
        "anomaly": found["anomaly"],
        "node": found["node"],
        "subscription": found["subscription"],
        "first": found["event"],
        "because": because,
    }
