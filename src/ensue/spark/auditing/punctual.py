"""Find deliveries that took too long: the rule `timely` of `ensue.checkers`, as one join.

Times are true times where a trace has them, else readings of two clocks, which are given the clock error. Of an event that is
published or delivered twice the first counts, and tagged deliveries are set aside, as everywhere.
"""

from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from ensue.checkers.history import ordinal
from ensue.spark.auditing import words

__all__ = ["judge_times"]

MILLISECOND_NS = 1_000_000


def judge_times(
    trace: DataFrame, *, within_ns: int, clock_error_ns: int, violations_max: int
) -> pa.Table:
    """Return what is too slow, as the other rules' findings are returned."""
    time = f.coalesce("true_ns", "at_ns")
    first = f.min_by(f.struct("node", time.alias("time"), f.col("true_ns").isNotNull()), "step")
    published = (
        trace.where("action = 'published'")
        .groupBy("run", "event")
        .agg(first.alias("p"))
        .select("run", "event", "p.node", "p.time", f.col("p.col3").alias("true"))
        .toDF("run", "event", "publisher_node", "published_ns", "true")
    )
    subscription = f.coalesce("subscription", f.lit("")).alias("subscription")
    delivered = (
        trace.where("action = 'delivered' AND verdict = ''")
        .groupBy("run", "node", subscription, "event")
        .agg(f.min_by(f.struct(time.alias("time"), "position"), "step").alias("d"))
        .select("run", "node", "subscription", "event", "d.time", "d.position")
    )
    bound = f.lit(within_ns) + f.when(f.col("true"), 0).otherwise(clock_error_ns)
    took = f.col("time") - f.col("published_ns")
    slow = delivered.join(published, ["run", "event"]).where(took > bound)
    told = slow.withColumns({"took": took, "bound": bound}).orderBy("run", "node", "time")
    found = [row.asDict() for row in told.limit(violations_max).collect()]
    rows = [_row(one, place) for place, one in enumerate(found)]
    untold = slow.count() - len(rows) if len(rows) == violations_max else 0
    if untold:
        last = found[-1]["run"]
        rows.append(
            {**_empty(last, len(rows)), "what": "untold", "anomaly": "slow", "count": untold}
        )
    return pa.Table.from_pylist(rows, schema=words.JUDGED_ARROW)


def _empty(run: str, place: int) -> dict[str, Any]:
    names = dict.fromkeys(words.JUDGED_ARROW.names)
    return {**names, "run": run, "checker": "timely", "tile": 0, "place": place}


def _row(found: dict[str, Any], place: int) -> dict[str, Any]:
    position = "" if found["position"] is None else f" (its {ordinal(found['position'])})"
    return {
        **_empty(found["run"], place),
        "what": "violation",
        "anomaly": "slow",
        "node": found["node"],
        "subscription": found["subscription"],
        "first": found["event"],
        "because": (
            f"{found['node']} delivered {found['event']}{position} "
            f"{found['took'] / MILLISECOND_NS:g} ms after {found['publisher_node']} published it; "
            f"{found['bound'] / MILLISECOND_NS:g} ms were promised"
        ),
    }
