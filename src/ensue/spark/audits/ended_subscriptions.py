"""Progress of ended subscriptions, which no single tile can determine.

A subscription that ended is owed an event if it delivered a later one of the same publisher and
topic. That later event may be in another tile.
"""

from dataclasses import replace

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from ensue.checkers.completeness import Terms
from ensue.checkers.history import Excerpt
from ensue.spark.audits.collector import PUBLICATIONS, Gathered, lane_hash, subscriber_hash
from ensue.spark.audits.facts import RunFacts

__all__ = ["excerpt", "with_furthest"]

_SPANS: dict[str, pa.DataType] = {
    "owner": pa.int64(),
    "topic": pa.string(),
    "opened": pa.int64(),
    "closed": pa.int64(),
}


def with_furthest(trace: DataFrame, gathered: Gathered, terms: Terms) -> Gathered:
    """Add the last delivered number of each publisher to ended subscriptions."""
    spans = [
        {
            "owner": owner,
            "topic": gathered.topics[span.topic],
            "opened": span.opened_step,
            "closed": span.closed_step,
        }
        for run in gathered.facts.runs
        for owner, ones in run.spans.items()
        for span in ones
        if span.closed_ns is not None
    ]
    if not spans or not terms.gaps:
        return gathered
    ended = trace.sparkSession.createDataFrame(
        pa.Table.from_pylist(spans, schema=pa.schema(_SPANS))
    )
    step = f.col("step")
    same = ["run", "event", "publisher", "topic", "publisher_seq"]
    published = trace.where(f.col("action").isin(*PUBLICATIONS)).select(*same)
    table = (
        trace.where(f.col("action") == "delivered")
        .withColumn("owner", subscriber_hash())
        .join(f.broadcast(ended), ["owner", "topic"])
        .where((step > f.col("opened")) & (step < f.col("closed")))
        # A phantom does not count as progress with its publisher.
        .join(published, same, "leftsemi")
        .groupBy("owner", "opened", lane_hash().alias("lane"))
        .agg(f.max("publisher_seq").alias("furthest"))
        .toArrow()
    )
    lanes = gathered.facts.lanes
    indexes = lanes.index(table.column("lane").to_numpy().astype(np.int64)).tolist()
    furthest: dict[tuple[int, int, int], dict[int, int]] = {}
    for row, lane in zip(table.to_pylist(), indexes, strict=True):
        if lane >= 0:
            key = (row["owner"], row["opened"], int(lanes.topics[lane]))
            furthest.setdefault(key, {})[lane] = row["furthest"]
    runs = tuple(_with_progress(run, furthest) for run in gathered.facts.runs)
    return replace(gathered, facts=replace(gathered.facts, runs=runs))


def _with_progress(run: RunFacts, furthest: dict[tuple[int, int, int], dict[int, int]]) -> RunFacts:
    spans = {
        owner: tuple(
            replace(span, furthest=furthest.get((owner, span.opened_step, span.topic), {}))
            for span in ones
        )
        for owner, ones in run.spans.items()
    }
    return replace(run, spans=spans)


def excerpt(gathered: Gathered, run: RunFacts) -> Excerpt:
    """Return the facts that an excerpt of a run does not contain."""
    lanes = gathered.facts.lanes
    furthest = {}
    for owner, spans in run.spans.items():
        for span in spans:
            topic = gathered.topics[span.topic]
            furthest[gathered.subscribers[owner], topic, span.opened_step] = {
                lanes.publishers[lane]: (number, f"{lanes.publishers[lane]}/{topic}/{number}")
                for lane, number in span.furthest.items()
            }
    return Excerpt(simulated=run.simulated, furthest=furthest)
