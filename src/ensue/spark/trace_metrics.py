"""Metrics of a trace as tables: latency, hold-back, stamps, throughput, totals.

`metrics(trace)` returns one data frame per table, by name; `TABLES` describes their columns. Tables
depend on the trace alone, by the definitions in `trace_measurements`, and agree with
`ensue.checkers.statistics`. Spark computes a table when it is read, and collects nothing on the
driver. The tables are small for a trace of any size.

Percentiles are by nearest rank, and exact for up to 5,000 figures. Beyond that they come from a
sketch with a rank error of at most 1 / 10,000: a reported 99.9th percentile lies between the
99.89th and the 99.91st. Counts, means and extremes are exact.

Rows with a null `topic` cover all topics together. Times are in milliseconds.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from ensue.core.errors import BadInput
from ensue.spark.trace_measurements import Measured, measure

__all__ = ["ACCURACY", "PER_DECADE", "TABLES", "Table", "metrics", "tables", "write_metrics"]

ACCURACY = 10_000
"""Percentile ranks are off by at most 1 / ACCURACY; exact up to ACCURACY / 2 figures."""
PER_DECADE = 100
"""Buckets of latency per factor of ten: each is 2.3 % wide."""

_MS_NS = 1_000_000
_PERCENTS = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """Description of a table."""

    description: str
    columns: Mapping[str, tuple[str, str]]
    """Type and meaning of each column."""


_RUN = {"run": ("string", "the run")}
_ORDER = {**_RUN, "order": ("string", "the requested order")}
_TOPIC = {**_ORDER, "topic": ("string", "the topic; null for all topics together")}
_BUCKET = {
    "bucket_ms": ("double", "start of the bucket, since the run's first publication or delivery"),
    "width_ms": ("double", "length of the bucket, the same for all of a run"),
}


def _figures(what: str, unit: str) -> dict[str, tuple[str, str]]:
    kind = "double" if unit == "ms" else "bigint"
    middle = {
        f"{name}_{unit}": (kind, f"{percent:.1%} of them are at most this long")
        if unit == "ms"
        else (kind, f"{percent:.1%} of them are at most this large")
        for name, percent in _PERCENTS.items()
    }
    return {
        f"mean_{unit}": ("double", f"mean {what}"),
        **middle,
        f"max_{unit}": (kind, f"largest {what}"),
    }


TABLES: Mapping[str, Table] = {
    "totals": Table(
        description="One row per run: how much happened.",
        columns={
            **_RUN,
            "order": ("string", "the requested orders, comma-separated"),
            "events": ("bigint", "events published"),
            "deliveries": ("bigint", "events delivered, once for each subscriber"),
            "subscribers": ("bigint", "subscriptions that were made or given an event"),
            "publishers": ("bigint", "nodes that published"),
            "discarded": ("bigint", "events discarded by a node; `verdicts` has the reasons"),
            "tagged": ("bigint", "deliveries with a verdict; `verdicts` has them"),
            "crashes": ("bigint", "crashes of nodes"),
            "rows": ("bigint", "rows of the trace"),
            "begin_ns": ("bigint", "time of the first publication or delivery"),
            "duration_ms": ("double", "from then to the last one"),
        },
    ),
    "verdicts": Table(
        description="Rows with a verdict, such as events discarded, by action and verdict; those "
        "of nodes below an application are left out.",
        columns={
            **_RUN,
            "action": ("string", "the action of the rows"),
            "verdict": ("string", "why; empty if a discarded row does not say"),
            "count": ("bigint", "how many"),
        },
    ),
    "latency": Table(
        description="How long events took from publication to delivery: from `submitted` where "
        "an application published, else from `published`.",
        columns={
            **_TOPIC,
            "count": ("bigint", "deliveries of events whose publication is in the trace"),
            **_figures("latency", "ms"),
        },
    ),
    "latency_histogram": Table(
        description="Deliveries by latency, in buckets that grow by 2.3 % each.",
        columns={
            **_ORDER,
            "low_ms": ("double", "latencies of the bucket are at least this; null: zero or less"),
            "high_ms": ("double", "and less than this"),
            "count": ("bigint", "deliveries in the bucket"),
        },
    ),
    "hold_back": Table(
        description="Deliveries that waited because an event received later had to go first. "
        "Empty for runs without `received` rows, which do not record it.",
        columns={
            **_ORDER,
            "count": ("bigint", "deliveries of events whose reception is in the trace"),
            "held_count": ("bigint", "those of them that were held back"),
            "held_share": ("double", "their share, from 0 to 1"),
            **_figures("time that those were held back; null if none was", "ms"),
        },
    ),
    "hold_back_over_time": Table(
        description="The same by the time of the delivery.",
        columns={
            **_ORDER,
            **_BUCKET,
            "count": ("bigint", "deliveries in the bucket"),
            "held_count": ("bigint", "those of them that were held back"),
            **_figures("time that those were held back; null if none was", "ms"),
        },
    ),
    "stamps": Table(
        description="Size of stamps, as the node that published an event first sent it.",
        columns={
            **_TOPIC,
            "count": ("bigint", "events sent with a stamp"),
            **_figures("number of entries", "entries"),
            **_figures("number of bytes more than the bare event", "bytes"),
        },
    ),
    "stamp_histogram": Table(
        description="Events by the number of entries of their stamp.",
        columns={
            **_ORDER,
            "entries": ("int", "entries of the stamp"),
            "count": ("bigint", "events with a stamp of this many"),
        },
    ),
    "stamps_over_time": Table(
        description="Size of stamps by the time of publication.",
        columns={
            **_ORDER,
            **_BUCKET,
            "count": ("bigint", "stamped events published in the bucket"),
            "mean_entries": ("double", "mean number of entries"),
            "max_entries": ("int", "largest number of entries"),
            "mean_bytes": ("double", "mean number of bytes more than the bare event"),
        },
    ),
    "messages": Table(
        description="Messages and bytes for each delivery. A trace without frames holds only what "
        "publishers hand to the notification service; one with frames every frame between nodes.",
        columns={
            **_ORDER,
            "deliveries": ("bigint", "events delivered, once for each subscriber"),
            "sent": ("bigint", "rows with the action `sent`"),
            "sent_with_event": ("bigint", "those that carry an event"),
            "sent_bytes": ("bigint", "bytes of all of them, if recorded"),
            "frames": ("boolean", "whether frames were recorded: some carry no event"),
            "sent_per_delivery": ("double", "sent / deliveries; null if nothing was delivered"),
            "bytes_per_delivery": ("double", "the same of bytes"),
        },
    ),
    "throughput": Table(
        description="Publications and deliveries over time.",
        columns={
            **_TOPIC,
            **_BUCKET,
            "published": ("bigint", "publications in the bucket"),
            "delivered": ("bigint", "deliveries in the bucket"),
        },
    ),
}
"""Every table that `metrics` returns."""


def metrics(trace: DataFrame) -> dict[str, DataFrame]:
    """Return the tables described in `TABLES`, by name.

    Tables share intermediate results, which Spark computes again for each table: persist the trace
    if it is small, or see `Measured.persist`.
    """
    return tables(measure(trace))


def tables(measured: Measured) -> dict[str, DataFrame]:
    """Return the tables of given measurements."""
    found = {
        "totals": _totals(measured),
        "verdicts": _verdicts(measured.trace),
        "latency": _latency(measured.latencies),
        "latency_histogram": _latency_histogram(measured.latencies),
        "hold_back": _hold_back(measured.waits),
        "hold_back_over_time": _hold_back_over_time(measured.waits),
        "stamps": _stamps(measured.stamps),
        "stamp_histogram": measured.stamps.groupBy("run", "order", "entries").count(),
        "stamps_over_time": _stamps_over_time(measured.stamps),
        "messages": _messages(measured.trace),
        "throughput": _throughput(measured.actions),
    }
    assert found.keys() == TABLES.keys()
    return {name: frame.select(*TABLES[name].columns) for name, frame in found.items()}


def write_metrics(metrics: Mapping[str, DataFrame], out: str | Path) -> None:
    """Write each table as Parquet to a directory of its name below `out`.

    An existing table is replaced.
    """
    if "://" not in str(out):
        path = Path(out).absolute()
        if path.exists() and not path.is_dir():
            raise BadInput(f"{out} is a file; tables are written to a directory")
        out = path
    for name, frame in metrics.items():
        # Tables are small: one file each is easier to read.
        frame.coalesce(1).write.mode("overwrite").parquet(f"{out}/{name}")


def _count_if(condition: str | Column) -> Column:
    return f.count_if(f.expr(condition) if isinstance(condition, str) else condition)


def _sum_if(column: str, action: str) -> Column:
    return f.sum(f.when(f.col("action") == action, f.col(column)).otherwise(0))


def _ms(column: Column | str) -> Column:
    return (f.col(column) if isinstance(column, str) else column) / _MS_NS


def _summary(column: Column, unit: str) -> list[Column]:
    """Return mean, percentiles and maximum of a numeric column; times become ms."""
    ranks = f.percentile_approx(column, list(_PERCENTS.values()), ACCURACY)
    figures = {
        "mean": f.sum(column) / f.count(column),
        **{name: ranks[place] for place, name in enumerate(_PERCENTS)},
        "max": f.max(column),
    }
    return [
        (_ms(figure) if unit == "ms" else figure.cast("double" if name == "mean" else "bigint"))
        .cast("double" if unit == "ms" or name == "mean" else "bigint")
        .alias(f"{name}_{unit}")
        for name, figure in figures.items()
    ]


def _by_topic(frame: DataFrame, *aggregates: Column) -> DataFrame:
    """Aggregate each topic, and all together."""
    keys = ("run", "order", "topic")
    return frame.groupingSets([list(keys), list(keys[:2])], *keys).agg(*aggregates)


def _totals(measured: Measured) -> DataFrame:
    # Subscriptions are few: count distinct ones among their groups, not among all rows.
    few = measured.trace.groupBy("run", "order", "action", "node", "subscription").agg(
        f.count(f.lit(1)).alias("rows"), _count_if("verdict <> ''").alias("tagged")
    )
    subscriber = f.when(
        f.col("action").isin("delivered", "subscribed"), f.struct("node", "subscription")
    )
    publisher = f.when(f.col("action").isin("submitted", "published"), f.col("node"))
    counts = few.groupBy("run").agg(
        f.concat_ws(", ", f.array_sort(f.collect_set("order"))).alias("order"),
        _sum_if("rows", "delivered").alias("deliveries"),
        f.count_distinct(subscriber).alias("subscribers"),
        f.count_distinct(publisher).alias("publishers"),
        _sum_if("rows", "discarded").alias("discarded"),
        _sum_if("tagged", "delivered").alias("tagged"),
        _sum_if("rows", "crashed").alias("crashes"),
        f.sum("rows").alias("rows"),
    )
    published = measured.trace.where("action in ('submitted', 'published')")
    events = published.groupBy("run").agg(f.count_distinct("event").alias("events"))
    duration = _ms(f.col("end_ns") - f.col("begin_ns")).alias("duration_ms")
    return (
        counts.join(f.broadcast(events), "run", "left")
        .fillna(0, ["events"])
        .join(f.broadcast(measured.runs), "run", "left")
        .select(*counts.columns, "events", "begin_ns", duration)
    )


def _verdicts(trace: DataFrame) -> DataFrame:
    # What an application is given tagged, its node had delivered tagged.
    judged = trace.where("action = 'discarded' or (verdict <> '' and action <> 'node_delivered')")
    return judged.groupBy("run", "action", "verdict").count()


def _latency(latencies: DataFrame) -> DataFrame:
    column = f.col("latency_ns")
    return _by_topic(latencies, f.count(column).alias("count"), *_summary(column, "ms"))


def _latency_histogram(latencies: DataFrame) -> DataFrame:
    number = f.when(
        f.col("latency_ns") > 0, f.floor(f.log10("latency_ns") * PER_DECADE).cast("int")
    )
    low = f.pow(f.lit(10.0), f.col("number") / PER_DECADE) / _MS_NS
    high = f.pow(f.lit(10.0), (f.col("number") + 1) / PER_DECADE) / _MS_NS
    return (
        latencies.groupBy("run", "order", number.alias("number"))
        .count()
        .withColumn("low_ms", low)
        .withColumn("high_ms", f.coalesce(high, f.lit(0.0)))
    )


def _held(*more: Column) -> list[Column]:
    held_ns = f.when(f.col("held"), f.col("wait_ns"))
    return [
        f.count(f.lit(1)).alias("count"),
        _count_if("held").alias("held_count"),
        *more,
        *_summary(held_ns, "ms"),
    ]


def _hold_back(waits: DataFrame) -> DataFrame:
    share = (_count_if("held") / f.count(f.lit(1))).alias("held_share")
    return waits.groupBy("run", "order").agg(*_held(share))


def _hold_back_over_time(waits: DataFrame) -> DataFrame:
    return waits.groupBy("run", "order", "bucket_ms", "width_ms").agg(*_held())


def _stamps(stamps: DataFrame) -> DataFrame:
    return _by_topic(
        stamps,
        f.count(f.lit(1)).alias("count"),
        *_summary(f.col("entries"), "entries"),
        *_summary(f.col("extra_bytes"), "bytes"),
    )


def _stamps_over_time(stamps: DataFrame) -> DataFrame:
    return stamps.groupBy("run", "order", "bucket_ms", "width_ms").agg(
        f.count(f.lit(1)).alias("count"),
        f.avg("entries").alias("mean_entries"),
        f.max("entries").alias("max_entries"),
        f.avg("extra_bytes").alias("mean_bytes"),
    )


def _messages(trace: DataFrame) -> DataFrame:
    deliveries = f.nullif(f.col("deliveries"), f.lit(0))
    return (
        trace.where("action in ('sent', 'delivered')")
        .groupBy("run", "order")
        .agg(
            _count_if("action = 'delivered'").alias("deliveries"),
            _count_if("action = 'sent'").alias("sent"),
            _count_if("action = 'sent' and event is not null").alias("sent_with_event"),
            f.sum(f.when(f.col("action") == "sent", f.col("bytes"))).alias("sent_bytes"),
        )
        .withColumn("frames", f.col("sent") > f.col("sent_with_event"))
        .withColumn("sent_per_delivery", f.col("sent") / deliveries)
        .withColumn("bytes_per_delivery", f.col("sent_bytes") / deliveries)
    )


def _throughput(actions: DataFrame) -> DataFrame:
    keys = ("run", "order", "topic", "bucket_ms", "width_ms")
    overall = [key for key in keys if key != "topic"]
    return actions.groupingSets([list(keys), overall], *keys).agg(
        _count_if("action = 'published'").alias("published"),
        _count_if("action = 'delivered'").alias("delivered"),
    )
