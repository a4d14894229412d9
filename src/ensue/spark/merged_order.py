"""`merge`: put logs of any topics and publishers in the order of their clocks.

Live subscribers of merged order sort by a key computed from each event's stamp alone
(`ensue.protocols.merged.merger`). `merge` does the same in native Spark columns, one row at a time,
so a replay gives the same order every time.

Order is a column: `merge_key` is bytes that compare as the live key does, in Spark and everywhere
else: r + c, the counter or the counts, the publisher, the index among events published
together. `merge_tick` is its r + c.

HAZARD: clock readings that were sent modulo B are ambiguous in a log that is longer than B ticks.
Write logs with whole readings.
"""

from functools import partial

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from ensue.core.errors import BadInput
from ensue.core.order import Merged
from ensue.protocols.merged.config import ticks_of
from ensue.spark.merged_hold_back import MergeHoldBack, MergeLimits
from ensue.spark.order_rules import parts_for
from ensue.spark.stateful_stream import hold_back

__all__ = ["merge"]

SECOND_NS = 1_000_000_000
SAMPLED = 0.02
"""Share of the rows that is sampled to divide a batch into ranges."""
POINTS = 1_000
"""Most ranges of one batch."""
COUNT_BITS = 20
"""Bits of a packed number that hold the count, if the ticks leave room."""
LAST = (1 << 63) - 1
PACKED = "__merge_packed"
READS = {"event": "string", "publisher": "string", "stamp": "map<string,bigint>"}


def merge(
    frame: DataFrame,
    order: Merged | None = None,
    *,
    array: bool = False,
    late: str = "deliver",
    held_max: int = 1_000_000,
) -> DataFrame:
    """Put events in merged order: `frame.transform(merge)`.

    With an order value: `frame.transform(merge, Merged(epsilon=…, delta=…))`.

    `frame` has the columns of an event log (event, publisher, stamp). Other columns pass unchanged.
    `merge` adds `merge_tick` and `merge_key`, by which rows are sorted, and `verdict`.

    A batch needs no order value, unless timestamps are arrays (`array`), whose length follows from
    epsilon. It keeps all events, also those too late for a live subscriber. `merge` samples the
    ticks of a batch; the sort runs when the result is used.

    A stream needs an order value. An event is released once the newest clock in the stream is more
    than delta + epsilon past it. A later arrival is released at once with the verdict `late`, or
    dropped (`late="drop"`). More than `held_max` held events at the end of a micro-batch fail the
    query.
    """
    if order is not None and not isinstance(order, Merged):
        raise BadInput(
            f"order must be a value such as ensue.Merged(epsilon=0.01, delta=0.1), got {order!r}"
        )
    if late not in ("deliver", "drop"):
        raise BadInput(f"late must be 'deliver' or 'drop', got {late!r}")
    if held_max < 1:
        raise BadInput(f"held_max is {held_max}: at least one event must be allowed to wait")
    _check_columns(frame)
    epsilon, delta = _bounds(order)
    if order is None and (array or frame.isStreaming):
        what = "a stream" if frame.isStreaming else "an order by arrays"
        raise BadInput(f"{what} needs the bounds: merge(Merged(epsilon=…, delta=…))")
    tick = _reading() + _entry("@c")
    counts = _counts(epsilon) if array else _entry("@k")
    if not frame.isStreaming:
        # The key is added after the shuffle, which keeps shuffled rows narrow.
        ordered = _sort(frame.withColumn("merge_tick", tick), counts, array=array)
        key = _key(f.col("merge_tick"), counts, array=array)
        return ordered.withColumns({"merge_key": key, "verdict": f.lit("")})
    chosen = frame.withColumns({"merge_tick": tick, "merge_key": _key(tick, counts, array=array)})
    limits = MergeLimits(
        wait_ticks=epsilon + delta, held_max=held_max, deliver_late=late == "deliver"
    )
    schema = t.StructType([*chosen.schema.fields, t.StructField("verdict", t.StringType())])
    return hold_back(chosen, schema, partial(MergeHoldBack, limits))


def _bounds(order: Merged | None) -> tuple[int, int]:
    if order is None:
        return 0, 0
    tick_ns = round(order.tick * SECOND_NS)
    return (
        ticks_of(round(order.epsilon * SECOND_NS), tick_ns),
        ticks_of(round(order.delta * SECOND_NS), tick_ns),
    )


def _sort(frame: DataFrame, counts: Column, *, array: bool) -> DataFrame:
    """Sort a batch that has its ticks.

    A sample of the ticks gives the ranges. Spark's own range sort would read all columns of all
    rows twice. Rows are compared by one packed number where possible: any other key of a stamp is
    a map lookup in every comparison.
    """
    tick, count = f.col("merge_tick"), counts[0] if array else counts
    some = frame.select(tick).sample(fraction=SAMPLED, seed=1)
    shares = [point / POINTS for point in range(1, POINTS)]
    sampled = some.agg(
        f.count(tick), f.min(tick), f.max(tick), f.percentile_approx(tick, shares)
    ).collect()[0]
    seen, low, high, points = sampled
    parts = min(POINTS, parts_for(frame, round(seen / SAMPLED)))
    cuts = [points[part * POINTS // parts - 1] for part in range(1, parts)]
    base, room = _room(low or 0, high or 0)
    most = (1 << room) - 1
    # Ticks outside the sample may lie outside its range, and a count may exceed its bits.
    packed = (
        f.when(tick < base, -1)
        .when(tick > (high or 0), LAST)
        .otherwise(
            f.shiftleft(tick - base, room) + f.greatest(f.lit(0), f.least(count, f.lit(most)))
        )
    )
    number = f.col(PACKED)
    is_all = (number >= 0) & (number < LAST) & (number.bitwiseAND(f.lit(most)) != most)
    none = f.lit(0).cast("bigint")
    keys = (
        number,
        f.when(is_all, none).otherwise(tick),
        counts if array else f.when(is_all, none).otherwise(count),
        f.col("publisher"),
        _entry("@i"),
    )
    ranges = frame.withColumn(PACKED, packed).repartitionById(parts, f.expr(_range(cuts)))
    return ranges.sortWithinPartitions(*keys).drop(PACKED)


def _room(low: int, high: int) -> tuple[int, int]:
    """Return the first tick of packed numbers, and the number of bits of a count."""
    bits = (high - low).bit_length()
    return (low, min(COUNT_BITS, 62 - bits)) if bits <= 62 else (0, 0)


def _range(cuts: list[int], first: int = 0) -> str:
    """Return an expression that finds the range of a tick by bisection."""
    if not cuts:
        return str(first)
    middle = len(cuts) // 2
    above = _range(cuts[middle + 1 :], first + middle + 1)
    return f"if(merge_tick > {cuts[middle]}, {above}, {_range(cuts[:middle], first)})"


def _reading() -> Column:
    """Return the publisher's clock reading; an event without it fails the query."""
    missing = f.raise_error(
        f.concat(
            f.lit("[MISSING_STAMP] event "),
            f.coalesce(f.col("event"), f.lit("without a name")),
            f.lit(
                " has no clock reading in its stamp: it was not published with merged order; leave "
                "it out, e.g. with where(\"stamp['@r'] IS NOT NULL\")"
            ),
        )
    )
    return f.coalesce(f.col("stamp")["@r"], missing.cast("bigint"))


def _entry(name: str | Column) -> Column:
    return f.coalesce(f.col("stamp")[name], f.lit(0).cast("bigint"))


def _counts(epsilon: int) -> Column:
    """Return the counts of an array in order of comparison: newest tick first."""
    steps = f.array(*(f.lit(step).cast("bigint") for step in range(epsilon + 1)))
    return f.transform(
        steps, lambda step: _entry(f.concat(f.lit("@"), (_entry("@c") - step).cast("string")))
    )


def _key(tick: Column, counts: Column, *, array: bool) -> Column:
    """Return bytes that compare as the live key does: numbers in big-endian order."""
    spelled = f.array_join(f.transform(counts, _digits), "") if array else None
    return f.concat(
        f.unhex(_digits(tick)),
        _bytes(counts) if spelled is None else f.unhex(spelled),
        f.col("publisher").cast("binary"),
        f.lit(b"\0"),
        _bytes(_entry("@i")),
    )


def _bytes(number: Column) -> Column:
    """Return the eight bytes of a number.

    Most numbers are small, and have a faster path.
    """
    small = f.concat(f.lit(bytes(7)), f.char(number).cast("binary"))
    return f.when((number >= 0) & (number < 128), small).otherwise(f.unhex(_digits(number)))


def _digits(number: Column) -> Column:
    return f.lpad(f.hex(number), 16, "0")


def _check_columns(frame: DataFrame) -> None:
    found = {field.name: field.dataType.simpleString() for field in frame.schema}
    for name, kind in READS.items():
        if found.get(name) != kind:
            what = f"is {found[name]}" if name in found else "is missing"
            raise BadInput(f"the data frame is no event log: column {name!r} {what}, not {kind}")
    taken = sorted({"merge_tick", "merge_key", "verdict"} & set(frame.columns))
    if taken:
        raise BadInput(f"the data frame has columns {taken} already: rename or drop them first")
