"""Find what came again to durable subscriptions after it was acknowledged.

The rule is that of `ensue.checkers.redelivery`. Two queries find the subscriptions that may break
it: a running maximum of acknowledged positions, by the steps of each node and by time over all of
them, and events with several positions. A valid trace has almost none. Then the checker judges the
rows of each such subscription, in a task of its own.

HAZARD: the rows of a subscription that may break the rule must fit into the memory of a task.
"""

from collections.abc import Mapping
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from ensue.checkers import redelivery
from ensue.checkers.positions import RULE
from ensue.checkers.verdict import Collector
from ensue.spark.audits import judge

__all__ = ["judge_redelivery"]

AFTER_OTHERS = 1
"""The tile of these findings: in a report they follow those of the rule itself."""
_NAME = ("run", "subscription")


def judge_redelivery(
    trace: DataFrame,
    simulated: Mapping[str, bool],
    *,
    clock_error_ns: int,
    violations_max: int,
) -> pa.Table:
    """Return what came again as a table of `judge.JUDGED`.

    `simulated` maps each run to whether its times are true times.
    """
    names = (
        trace.where("action = 'acknowledged' AND subscription <> '' AND publisher_seq IS NULL")
        .select(*_NAME)
        .distinct()
        .toArrow()
    )
    if not names.num_rows:
        return judge.JUDGED_ARROW.empty_table()
    spark = trace.sparkSession
    is_simulated = pa.array([simulated[row["run"]] for row in names.to_pylist()])
    known = spark.createDataFrame(names.append_column("simulated", is_simulated))
    restarts = trace.where("action = 'restarted'").drop("subscription")
    columns = (*judge.ROW_COLUMNS, "simulated")
    rows = trace.join(f.broadcast(known), list(_NAME)).select(*columns)
    rows = rows.unionByName(restarts.join(f.broadcast(known), "run").select(*columns))
    doubtful = _doubtful(rows, clock_error_ns)
    if not doubtful.num_rows:
        return judge.JUDGED_ARROW.empty_table()
    function = partial(
        _judge,
        simulated=dict(simulated),
        clock_error_ns=clock_error_ns,
        violations_max=violations_max,
    )
    wanted = rows.join(f.broadcast(spark.createDataFrame(doubtful)), list(_NAME))

    def apply(table: pa.Table) -> pa.Table:
        return function(table)

    chosen = wanted.select(*judge.ROW_COLUMNS)
    return chosen.groupBy(*_NAME).applyInArrow(apply, judge.JUDGED).toArrow()


def _doubtful(rows: DataFrame, clock_error_ns: int) -> pa.Table:
    """Return run and name of the subscriptions that may break the rule."""
    by_node = (
        Window.partitionBy(*_NAME, "node")
        .orderBy("step")
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    # Deliveries first: those of one time do not come after a row that another node wrote.
    by_time = (
        Window.partitionBy(*_NAME)
        .orderBy("time", "acknowledges")
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    time = f.when(f.col("simulated"), f.coalesce("true_ns", "at_ns")).otherwise(f.col("at_ns"))
    acknowledges = f.col("action") == "acknowledged"
    covers = f.when(acknowledges, f.col("position"))
    error = f.when(acknowledges & ~f.col("simulated"), clock_error_ns).otherwise(0)
    placed = (
        # A clock that is set back counts as one that stood still.
        rows.withColumn("reading", f.max(time).over(by_node))
        .withColumn("own", f.max(covers).over(by_node))
        .where("action IN ('delivered', 'acknowledged') AND position IS NOT NULL")
        .select(
            *_NAME,
            "position",
            acknowledges.alias("acknowledges"),
            covers.alias("covers"),
            "own",
            # Null on overflow: no 64-bit clock reads a later time.
            f.try_add(f.col("reading"), error).alias("time"),
        )
        .where("time IS NOT NULL")
        .withColumn("any", f.max("covers").over(by_time))
    )
    covered = placed.where("NOT acknowledges AND position <= greatest(own, any)")
    moved = (
        rows.where("action IN ('delivered', 'discarded') AND position IS NOT NULL")
        .groupBy(*_NAME, "event")
        .agg(f.min("position").alias("first"), f.max("position").alias("last"))
        .where("first < last")
    )
    both = covered.select(*_NAME).unionByName(moved.select(*_NAME))
    return both.distinct().toArrow()


def _judge(
    table: pa.Table, simulated: Mapping[str, bool], clock_error_ns: int, violations_max: int
) -> pa.Table:
    run: str = table.column("run")[0].as_py()
    collector = Collector(RULE, violations_max=violations_max)
    redelivery.judge_subscription(
        judge.rows_of(table),
        collector,
        simulated=simulated[run],
        clock_error_ns=clock_error_ns,
    )
    return judge.judged_table(run, list(judge.finding_rows(collector.finding())), AFTER_OTHERS)
