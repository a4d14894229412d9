"""`gaps`: positions of an ordered log that are missing, or taken more than once.

Positions are divided into buckets of equal width. Within a bucket each position is compared with
the previous one; between buckets only their ends are compared. So a task handles one bucket of
rows, except the last one, which handles one row for every 65,536 positions.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from ensue.core.errors import BadInput

__all__ = ["gaps"]

BUCKET_BITS = 16
"""A bucket has 2 ** BUCKET_BITS positions."""
EVENTS_MAX = 10
"""Most events listed for one position."""


def gaps(ordered: DataFrame) -> DataFrame:
    """Return the faults in a batch's positions: (kind, first, last, count, events).

    One row for each range of `count` positions `missing` below the highest one. One row for each
    position taken by `count` rows: `repeated` if by one event, `conflict` if by different events,
    which means that the topics are not mutually ordered. `events` lists up to ten of them. The
    result is exact: empty means positions 1, 2, 3, … each once.

    `order` drops voids by default, and they count as missing. To tell voids from losses, use
    `gaps(order(log, topics, voids=True))`.
    """
    absent = [name for name in ("position", "event") if name not in ordered.columns]
    if absent:
        raise BadInput(
            f"the data frame lacks columns {absent}: give what ensue.spark.order returned"
        )
    bucket = f.shiftright(f.col("position") - 1, BUCKET_BITS).alias("bucket")
    # Events before the cut have no position.
    rows = ordered.where("position is not null").select("position", "event", bucket)
    within = Window.partitionBy("bucket").orderBy("position", "event")
    before = rows.select(
        "position",
        "event",
        f.lag("position").over(within).alias("before"),
        f.lag("event").over(within).alias("event_before"),
    )
    inside = (
        before.where(f.col("position") - f.col("before") != 1)
        .groupBy("before", "position")
        .agg(
            f.count("*").alias("steps"),
            f.array_union(f.collect_set("event"), f.collect_set("event_before")).alias("events"),
        )
    )
    along = Window.orderBy("bucket")
    ends = rows.groupBy("bucket").agg(
        f.min("position").alias("position"), f.max("position").alias("highest")
    )
    between = ends.select(
        f.coalesce(f.lag("highest").over(along), f.lit(0)).alias("before"),
        "position",
        f.lit(0).cast("bigint").alias("steps"),
        f.array().cast("array<string>").alias("events"),
    ).where(f.col("position") - f.col("before") > 1)
    return _as_ranges(inside.unionByName(between))


def _as_ranges(steps: DataFrame) -> DataFrame:
    """Turn steps between positions that are not 1 into ranges and repetitions."""
    position, before = f.col("position"), f.col("before")
    missing = position > before
    kind = f.when(missing, "missing").when(f.size("events") > 1, "conflict").otherwise("repeated")
    named = f.slice(f.array_sort("events"), 1, EVENTS_MAX)
    return steps.select(
        kind.alias("kind"),
        f.when(missing, before + 1).otherwise(position).alias("first"),
        f.when(missing, position - 1).otherwise(position).alias("last"),
        f.when(missing, position - before - 1).otherwise(f.col("steps") + 1).alias("count"),
        f.when(missing, f.array().cast("array<string>")).otherwise(named).alias("events"),
    )
