"""What is measured in a trace: one row per delivery or event.

The definitions are those of `ensue.checkers.statistics`, written for Spark; `trace_metrics` sums
up.

- A *latency* runs from `submitted` to `delivered`, or from `published` where no application
  submitted the event: by simulated time where both rows have it, by the nodes' own clocks where
  not. Of an event that its publisher, restarted, said to have published again, the first such row
  counts. HAZARD: clocks that differ make a latency wrong by their difference, even negative.
- A *wait* is that of a delivery since its event was first received at that node. The delivery was
  *held back* if an event that the node received later was delivered before it, to the same
  subscription. Runs without `received` rows say nothing of it.
- A *stamp* is that of an event as the node that published it first sent it. It costs the `bytes` of
  that sending less those of `published`, or of `node_published` where an application published.

Time within a run is counted from its first publication or delivery, and cut into buckets of one
width a run: the shortest of `WIDTHS_NS` that makes at most `BUCKETS_MAX` of them. HAZARD: one node
whose clock is days off stretches the run, and squeezes everything else into a bucket or two.

Cost: one shuffle by event for latencies and stamps; for waits one by node and event and one by
subscriber, whose sort spills to disk. So the largest subscription bounds one task, not memory.
"""

import msgspec
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from ensue.spark.traces import check_trace

__all__ = ["BUCKETS_MAX", "WIDTHS_NS", "Measured", "measure"]

BUCKETS_MAX = 60
"""A run is cut into no more than so many spans of time, but for the longest ones."""

_MS = 1_000_000
_SECOND = 1_000 * _MS
_MINUTE = 60 * _SECOND
_HOUR = 60 * _MINUTE

WIDTHS_NS = (
    *(step * scale * _MS for scale in (1, 10, 100) for step in (1, 2, 5)),
    *(step * _SECOND for step in (1, 2, 5, 10, 15, 30)),
    *(step * _MINUTE for step in (1, 2, 5, 10, 15, 30)),
    *(step * _HOUR for step in (1, 2, 6, 12, 24, 168)),
)
"""The widths that a bucket of time may have: whole durations that people count in."""


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """Data frames with one row for each thing measured.

    All but `trace` and `runs` have `run`, `order`, `topic`, `bucket_ms` and `width_ms`: when it
    was, as the begin of its bucket of time since the run's begin, and how wide that is.
    """

    trace: DataFrame
    runs: DataFrame
    """`run`, `begin_ns`, `end_ns`, `width_ns`: the time in which a run published and delivered."""
    actions: DataFrame
    """`action`: of every row that says `published` or `delivered`."""
    latencies: DataFrame
    """`latency_ns`: of every delivery of an event whose publication is known."""
    waits: DataFrame
    """`wait_ns`, `held`: of every delivery of an event that is known to have been received."""
    stamps: DataFrame
    """`entries`, `extra_bytes`: of every stamped event as first sent, at its publication."""

    def persist(self) -> "Measured":
        """Keep in memory, or on disk, what more than one table is made of."""
        for frame in self._shared():
            frame.persist()
        return self

    def unpersist(self) -> None:
        """Let go of it."""
        for frame in self._shared():
            frame.unpersist()

    def _shared(self) -> tuple[DataFrame, ...]:
        return self.runs, self.latencies, self.waits, self.stamps


def measure(trace: DataFrame) -> Measured:
    """Measure a trace. Nothing is computed before rows are read."""
    check_trace(trace)
    runs = _runs(trace)
    published = _published(trace)
    delivered = trace.where("action = 'delivered'").select(
        "run", "order", "topic", "node", "subscription", "step", "event", "at_ns", "true_ns"
    )
    actions = trace.where("action in ('published', 'delivered')")
    return Measured(
        trace=trace,
        runs=runs,
        actions=_in_buckets(actions.withColumn("time_ns", _time()), runs, "action"),
        latencies=_in_buckets(_latencies(published, delivered), runs, "latency_ns"),
        waits=_in_buckets(_waits(trace, delivered), runs, "wait_ns", "held"),
        stamps=_in_buckets(_stamps(trace, published), runs, "entries", "extra_bytes"),
    )


def _time() -> Column:
    return f.coalesce("true_ns", "at_ns")


def _between(earlier: str, later: str) -> Column:
    """Return the time between two rows, by simulated time if both have it."""
    true_ns = f.col(f"{later}.true_ns") - f.col(f"{earlier}.true_ns")
    return f.coalesce(true_ns, f.col(f"{later}.at_ns") - f.col(f"{earlier}.at_ns"))


def _runs(trace: DataFrame) -> DataFrame:
    span = f.col("end_ns") - f.col("begin_ns")
    widths = f.array(*(f.lit(width) for width in WIDTHS_NS))
    # The last bucket ends behind the run's last moment, so that this moment is within it.
    wide_enough = f.filter(widths, lambda width: width * BUCKETS_MAX > span)
    return (
        trace.where("action in ('submitted', 'published', 'delivered')")
        .groupBy("run")
        .agg(f.min(_time()).alias("begin_ns"), f.max(_time()).alias("end_ns"))
        .withColumn("width_ns", f.coalesce(f.get(wide_enough, f.lit(0)), f.lit(WIDTHS_NS[-1])))
    )


def _in_buckets(measured: DataFrame, runs: DataFrame, *columns: str) -> DataFrame:
    """Add when each row was, by its `time_ns`."""
    number = f.floor((f.col("time_ns") - f.col("begin_ns")) / f.col("width_ns"))
    # There are as many rows in `runs` as runs: a few, and one in most traces.
    return measured.join(f.broadcast(runs), "run").select(
        "run",
        "order",
        f.coalesce("topic", f.lit("")).alias("topic"),  # A null stands for all topics together.
        (number * f.col("width_ns") / _MS).cast("double").alias("bucket_ms"),
        (f.col("width_ns") / _MS).alias("width_ms"),
        *columns,
    )


def _published(trace: DataFrame) -> DataFrame:
    """Return the first publication of each event: submitted or, if no row says so, published."""
    columns = f.struct("step", "node", "order", "topic", "at_ns", "true_ns")
    begins = f.col("action") != "node_published"
    return (
        trace.where("action in ('submitted', 'published', 'node_published') and event is not null")
        .groupBy("run", "event")
        .agg(f.min(f.when(begins, columns)).alias("first"), f.max("bytes").alias("bytes"))
        .where("first is not null")
        .select("run", "event", "first.*", "bytes")
    )


def _latencies(published: DataFrame, delivered: DataFrame) -> DataFrame:
    return (
        delivered.alias("end")
        .join(published.alias("start"), ["run", "event"])
        .select(
            "run",
            "end.order",
            "end.topic",
            f.coalesce("end.true_ns", "end.at_ns").alias("time_ns"),
            _between("start", "end").alias("latency_ns"),
        )
    )


def _waits(trace: DataFrame, delivered: DataFrame) -> DataFrame:
    arrivals = (
        trace.where("action = 'received' and event is not null")
        .groupBy("run", "node", "event")
        # The step comes first, so that the first arrival is the smallest.
        .agg(f.min(f.struct("step", "at_ns", "true_ns")).alias("first"))
        .select("run", "node", "event", "first.*")
    )
    before = (
        Window.partitionBy("run", "node", "subscription")
        .orderBy("step")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    return (
        delivered.alias("end")
        .join(arrivals.alias("start"), ["run", "node", "event"])
        .select(
            "run",
            "node",
            "end.subscription",
            "end.order",
            "end.topic",
            "end.step",
            f.col("start.step").alias("arrival_step"),
            f.coalesce("end.true_ns", "end.at_ns").alias("time_ns"),
            _between("start", "end").alias("wait_ns"),
        )
        .withColumn("furthest", f.max("arrival_step").over(before))
        .withColumn("held", f.coalesce(f.col("arrival_step") < f.col("furthest"), f.lit(False)))
    )


def _stamps(trace: DataFrame, published: DataFrame) -> DataFrame:
    sent = trace.where("action = 'sent' and stamp is not null").select(
        "run", "event", "node", "step", "bytes", f.size("stamp").alias("entries")
    )
    first = f.min(f.struct("sent.step", "sent.entries", "sent.bytes"))
    return (
        published.alias("published")
        # Other nodes that sent it passed it on.
        .join(sent.alias("sent"), ["run", "event", "node"])
        .groupBy("run", "event", "order", "topic", "published.bytes", _time().alias("time_ns"))
        .agg(first.alias("first"))
        .select(
            "run",
            "order",
            "topic",
            "time_ns",
            "first.entries",
            (f.col("first.bytes") - f.col("bytes")).alias("extra_bytes"),
        )
    )
