"""`merge`: put logs of any number of topics and publishers into the one order that clocks give.

Live subscribers of merged order sort by a key that is made from each event's stamp alone (`ensue.protocols.merge.merger`). So does this, natively and one row
at a time: no row has to be looked at together with another one before the sort, and a replay gives the same order every time.

Order is a column: `merge_key` is bytes that compare as the live key does, in Spark and everywhere else: r + c, the counter or the counts, the
publisher, the index within what was sent together. `merge_tick` is its r + c.

HAZARD: clock readings that were sent modulo B can't be told apart in a log that is longer than B ticks. Have logs written with whole readings.
"""

from functools import partial

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from ensue.errors import BadInput
from ensue.order import Merged
from ensue.protocols.merge.config import ticks_of
from ensue.spark.merge_holdback import MergeHoldBack, MergeLimits
from ensue.spark.streams import hold_back

__all__ = ["merge"]

SECOND_NS = 1_000_000_000
READS = {"event": "string", "publisher": "string", "stamp": "map<string,bigint>"}


def merge(
    frame: DataFrame,
    order: Merged | None = None,
    *,
    array: bool = False,
    late: str = "deliver",
    held_max: int = 1_000_000,
) -> DataFrame:
    """Put events in merged order: `frame.transform(merge)`, or `frame.transform(merge, Merged(epsilon=…, delta=…))`.

    `frame` has the columns of an event log (event, publisher, stamp) and any others, which pass unchanged. Added are `merge_tick`
    and `merge_key`, by which rows are sorted, and `verdict`.

    A batch needs no order value, unless timestamps are arrays (`array`), whose length epsilon says. It keeps all events, those too that came
    too late for some subscriber.

    A stream needs one. An event leaves once the newest clock in the stream has passed it by more than delta + epsilon; what
    comes behind that leaves at once with the verdict `late`, or not at all (`late="drop"`). More than `held_max` events
    waiting at the end of a micro-batch fail the query.
    """
    if order is not None and not isinstance(order, Merged):
        raise BadInput(
            f"order is a value such as ensue.Merged(epsilon=0.01, delta=0.1); not {order!r}"
        )
    if late not in ("deliver", "drop"):
        raise BadInput(f"late must be 'deliver' or 'drop', not {late!r}")
    if held_max < 1:
        raise BadInput(f"held_max is {held_max}: at least one event must be allowed to wait")
    _check_columns(frame)
    epsilon, delta = _bounds(order)
    if order is None and (array or frame.isStreaming):
        what = "a stream" if frame.isStreaming else "an order by arrays"
        raise BadInput(f"{what} needs the bounds: merge(Merged(epsilon=…, delta=…))")
    tick = _reading() + _entry("@c")
    counts = _counts(epsilon) if array else f.array(_entry("@k"))
    if not frame.isStreaming:
        # By plain columns, and the key made afterwards: what is shuffled is no wider than it was.
        first = counts[0] if not array else counts
        ordered = frame.orderBy(tick, first, f.col("publisher"), _entry("@i"))
        return ordered.withColumns(
            {"merge_tick": tick, "merge_key": _key(tick, counts), "verdict": f.lit("")}
        )
    chosen = frame.withColumns({"merge_tick": tick, "merge_key": _key(tick, counts)})
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


def _reading() -> Column:
    """Return what the publisher's clock showed; an event without that fails the query by name."""
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
    """Return the counts of an array in the order in which they are compared: from the newest tick back."""
    steps = f.array(*(f.lit(step).cast("bigint") for step in range(epsilon + 1)))
    return f.transform(
        steps, lambda step: _entry(f.concat(f.lit("@"), (_entry("@c") - step).cast("string")))
    )


def _key(tick: Column, counts: Column) -> Column:
    """Return bytes that compare as the live key does: numbers with their highest byte first."""
    joined = f.array_join(f.transform(counts, _digits), "")
    return f.concat(
        f.unhex(f.concat(_digits(tick), joined)),
        f.encode(f.col("publisher"), "UTF-8"),
        f.unhex(f.lit("00")),
        f.unhex(_digits(_entry("@i"))),
    )


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
