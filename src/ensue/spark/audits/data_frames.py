"""Pack the deliveries and publications of a data frame as numbers."""

from collections.abc import Iterable, Iterator
from functools import partial

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from ensue.spark.audits import collector as g
from ensue.spark.audits import delivery_scan
from ensue.spark.audits.facts import Facts

__all__ = ["pack_frame"]


def pack_frame(
    trace: DataFrame, gathered: g.Gathered, reach: delivery_scan.Reach, *, sort: bool
) -> DataFrame:
    """Pack a trace; `sort` first sorts the deliveries of each subscriber by step."""
    deliveries, publications = _deliveries(trace, gathered), _publications(trace, gathered)
    if sort:
        deliveries = deliveries.repartition("owner").sortWithinPartitions("owner", "step")
    facts = gathered.facts
    packed = deliveries.mapInArrow(
        partial(_pack_deliveries, facts=facts, reach=reach), delivery_scan.PACKED
    )
    return packed.unionByName(
        publications.mapInArrow(
            partial(_pack_publications, facts=facts, reach=reach), delivery_scan.PACKED
        )
    )


def _pack_deliveries(
    batches: Iterable[pa.RecordBatch], facts: Facts, reach: delivery_scan.Reach
) -> Iterator[pa.RecordBatch]:
    return delivery_scan.pack_deliveries(
        delivery_scan.gathered(batches, facts.fragment_rows), facts, reach
    )


def _pack_publications(
    batches: Iterable[pa.RecordBatch], facts: Facts, reach: delivery_scan.Reach
) -> Iterator[pa.RecordBatch]:
    return delivery_scan.pack_publications(
        delivery_scan.gathered(batches, facts.fragment_rows), facts, reach
    )


def _deliveries(trace: DataFrame, gathered: g.Gathered) -> DataFrame:
    tagged = f.when(f.col("verdict") != "", delivery_scan.TAGGED).otherwise(0)
    return trace.where(f.col("action") == "delivered").select(
        g.subscriber_hash().alias("owner"),
        *_label(gathered),
        f.coalesce("position", f.lit(delivery_scan.UNPLACED)).cast("long").alias("position"),
        (tagged + _odd(gathered)).cast("byte").alias("flags"),
    )


def _publications(trace: DataFrame, gathered: g.Gathered) -> DataFrame:
    action = f.col("action")
    is_void = (action == "discarded") & (f.col("verdict") == "void")
    kind = (
        f.when(action == "published", delivery_scan.PUBLISHED)
        .when(action == "submitted", delivery_scan.SUBMITTED)
        .otherwise(delivery_scan.VOID)
    )
    time = f.when(f.col("simulated"), f.col("true_ns")).otherwise(f.col("at_ns"))
    runs = gathered.facts.runs
    times = trace.sparkSession.createDataFrame(
        pa.table(
            {
                "run": pa.array([run.name for run in runs], pa.string()),
                "simulated": pa.array([run.simulated for run in runs], pa.bool_()),
            }
        )
    )
    return (
        trace.where(action.isin(*g.PUBLICATIONS) | is_void)
        .join(f.broadcast(times), "run")
        .select(
            g.node_hash().alias("owner"),
            *_label(gathered),
            _odd(gathered).cast("byte").alias("flags"),
            time.alias("time"),
            kind.cast("byte").alias("kind"),
        )
    )


def _label(gathered: g.Gathered) -> list[Column]:
    columns = [g.lane_hash().alias("lane"), f.col("publisher_seq").alias("seq"), f.col("step")]
    return [*columns, g.name_hash().alias("name")] if gathered.named else columns


def _odd(gathered: g.Gathered) -> Column:
    """Flag rows without a code."""
    odd = f.col("event").isNull()
    for name in ("topic", "publisher", "publisher_seq"):
        odd |= f.col(name).isNull()
    if not gathered.named:
        odd |= ~g.canonical()
    return f.when(odd, delivery_scan.ODD).otherwise(0)
