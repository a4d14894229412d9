"""Find deliveries that took too long: the rule `timely`, as one join.

Times are true times if the whole run has them, else readings of two clocks, with the clock error as
tolerance. Only the first publication and delivery of an event count, and tagged deliveries are
ignored, as in all rules.
"""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from ensue.checkers.history import History, ordinal
from ensue.checkers.verdict import Subscriber
from ensue.spark.audits import judge

__all__ = ["judge_times"]

MILLISECOND_NS = 1_000_000


def judge_times(
    trace: DataFrame,
    simulated: Mapping[str, bool],
    *,
    within_ns: int,
    clock_error_ns: int,
    violations_max: int,
) -> pa.Table:
    """Return slow deliveries as a table of `judge.JUDGED`.

    `simulated` maps each run to whether its times are true times.
    """
    runs = pa.table(
        {
            "run": pa.array(list(simulated), pa.string()),
            "simulated": pa.array(list(simulated.values()), pa.bool_()),
        }
    )
    times = trace.sparkSession.createDataFrame(runs)
    named = trace.join(f.broadcast(times), "run").withColumn(
        "subscription", f.coalesce("subscription", f.lit(""))
    )
    time = f.when(f.col("simulated"), f.coalesce("true_ns", "at_ns")).otherwise(f.col("at_ns"))
    published = (
        # Submitted, or if no row says so, published.
        named.where("action IN ('submitted', 'published')")
        .groupBy("run", "event")
        .agg(f.min_by(f.struct("node", time.alias("time"), "simulated"), "step").alias("p"))
        .select("run", "event", "p.node", "p.time", "p.simulated")
        .toDF("run", "event", "publisher_node", "published_ns", "simulated")
    )
    delivered = (
        named.where("action = 'delivered' AND verdict = ''")
        .groupBy("run", "node", "subscription", "event")
        .agg(f.min_by(f.struct(time.alias("time"), "position"), "step").alias("d"))
        .select("run", "node", "subscription", "event", "d.time", "d.position")
    )
    bound = f.lit(within_ns) + f.when(f.col("simulated"), 0).otherwise(clock_error_ns)
    # Null on overflow: no 64-bit clock reads a later time.
    last = f.try_add(f.col("published_ns"), bound)
    slow = delivered.join(published, ["run", "event"]).where(f.col("time") > last)
    sorted_rows = slow.withColumn("bound", bound).orderBy(
        "run", "node", "time", "subscription", "event"
    )
    found = [row.asDict() for row in sorted_rows.limit(violations_max).collect()]
    names = _names(named) if found else {}
    rows = [_row(one, place, names) for place, one in enumerate(found)]
    unreported = slow.count() - len(rows) if len(rows) == violations_max else 0
    if unreported:
        last_run = found[-1]["run"]
        rows.append(
            {
                **_empty(last_run, len(rows)),
                "what": "unreported",
                "anomaly": "slow",
                "count": unreported,
            }
        )
    return pa.Table.from_pylist(rows, schema=judge.JUDGED_ARROW)


def _names(named: DataFrame) -> dict[Subscriber, str]:
    """Return the name of each subscriber in a sentence."""
    found: dict[Subscriber, str] = {}
    for run, known in judge.subscribers_of(named).items():
        history = History(run=run, simulated=False, delivered={one: [] for one in known})
        found |= {one: history.name(one) for one in known}
    return found


def _empty(run: str, place: int) -> dict[str, Any]:
    names = dict.fromkeys(judge.JUDGED_ARROW.names)
    return {**names, "run": run, "checker": "timely", "tile": 0, "place": place}


def _row(found: dict[str, Any], place: int, names: Mapping[Subscriber, str]) -> dict[str, Any]:
    name = names[Subscriber(found["run"], found["node"], found["subscription"])]
    took_ns = found["time"] - found["published_ns"]
    position = "" if found["position"] is None else f" (its {ordinal(found['position'])})"
    return {
        **_empty(found["run"], place),
        "what": "violation",
        "anomaly": "slow",
        "node": found["node"],
        "subscription": found["subscription"],
        "first": found["event"],
        "because": (
            f"{name} delivered {found['event']}{position} "
            f"{took_ns / MILLISECOND_NS:g} ms after {found['publisher_node']} published it; "
            f"the limit is {found['bound'] / MILLISECOND_NS:g} ms"
        ),
    }
