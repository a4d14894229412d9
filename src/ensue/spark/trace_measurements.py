"""Measurements of a trace: one row per delivery or event.

The definitions are those of `ensue.checkers.statistics`, written for Spark; `trace_metrics`
aggregates them.

- A *latency* runs from `submitted` to `delivered`, or from `published` if no application submitted
  the event: by simulated time if both rows have it, else by the nodes' own clocks. If a restarted
  publisher published an event again, the first row counts. HAZARD: clocks that differ make a
  latency wrong by their difference, even negative.
- A *wait* runs from the first reception of an event at a node to its delivery. The delivery was
  *held back* if an event that the node received later was delivered before it, to the same
  subscription. Runs without `received` rows have no waits.
- A *stamp* is that of the first frame in which its publisher sent an event. It costs the `bytes` of
  that frame minus those of `published`, or of `node_published` if an application published it.

Time within a run starts at its first publication or delivery. It is divided into buckets of one
width per run: the shortest of `WIDTHS_NS` that gives at most `BUCKETS_MAX` buckets. HAZARD: one
node whose clock is days off stretches the run, and squeezes everything else into a bucket or two.

Cost: one shuffle by event for latencies and stamps; for waits one by node and event and one by
subscriber, whose sort spills to disk. So the largest subscription bounds one task, not memory.
"""

import msgspec
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from ensue.spark.traces import check_trace

__all__ = ["BUCKETS_MAX", "WIDTHS_NS", "Measured", "measure"]

BUCKETS_MAX = 60
"""Most buckets of a run, except for runs too long for the widest bucket."""

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
"""Possible widths of a bucket: round durations."""


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """Data frames with one row per measurement.

    All but `trace` and `runs` have `run`, `order`, `topic`, `bucket_ms` (start of its bucket, since
    the start of the run) and `width_ms` (width of the bucket).
    """

    trace: DataFrame
    runs: DataFrame
    """`run`, `begin_ns`, `end_ns`, `width_ns`: first and last action of a run, and bucket width."""
    actions: DataFrame
    """`action`: one row per publication and delivery."""
    latencies: DataFrame
    """`latency_ns`: one row per delivery of an event whose publication is known."""
    waits: DataFrame
    """`wait_ns`, `held`: one row per delivery of an event whose reception is known."""
    stamps: DataFrame
    """`entries`, `extra_bytes`: one row per stamped event as first sent, at its publication."""

    def persist(self) -> "Measured":
        """Cache the data frames that several tables use, in memory or on disk."""
        for frame in self._shared():
            frame.persist()
        return self

    def unpersist(self) -> None:
        """Drop them from the cache."""
        for frame in self._shared():
            frame.unpersist()

    def _shared(self) -> tuple[DataFrame, ...]:
        return self.runs, self.latencies, self.waits, self.stamps


def measure(trace: DataFrame) -> Measured:
    """Measure a trace lazily: Spark computes rows when they are read."""
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
    # The last bucket ends after the last action, so that it contains that action.
    wide_enough = f.filter(widths, lambda width: width * BUCKETS_MAX > span)
    return (
        trace.where("action in ('submitted', 'published', 'delivered')")
        .groupBy("run")
        .agg(f.min(_time()).alias("begin_ns"), f.max(_time()).alias("end_ns"))
        .withColumn("width_ns", f.coalesce(f.get(wide_enough, f.lit(0)), f.lit(WIDTHS_NS[-1])))
    )


def _in_buckets(measured: DataFrame, runs: DataFrame, *columns: str) -> DataFrame:
    """Add the bucket of each row, by its `time_ns`."""
    number = f.floor((f.col("time_ns") - f.col("begin_ns")) / f.col("width_ns"))
    # `runs` has one row per run: a few, and one in most traces.
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
        # Other nodes that sent the event forwarded it.
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
