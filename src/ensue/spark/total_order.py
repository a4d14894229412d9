"""`order`: put a log of several topics in order, in batches and streams.

Order is a column: sort by `position` wherever sequence matters. A batch is sorted, and a stream is
in order within each micro-batch, but later operations on the data frame may shuffle rows.

`order` takes and returns a data frame. On a batch it runs one query over the columns `topic`,
`offset` and `stamp`; on a stream it runs none. The position needs neither a join nor a user-defined
function. Ordering rules are in `order_rules`, the queue of a stream in `hold_back` and
`stateful_stream`.
"""

import logging
import re
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from ensue.core.errors import BadInput
from ensue.spark.common_cuts import find_cut, rows_of
from ensue.spark.hold_back import BEFORE_CUT, VOID, Limits
from ensue.spark.order_rules import Cut, OrderingRule, ordering_rules, positions, rule_named
from ensue.spark.source import ORDER
from ensue.spark.stateful_stream import hold_back

__all__ = ["order"]

TOPICS_MAX = 10_000
"""Most topics in one order: their names are part of the query."""

TOPICS_SHOWN = 20
"""Most topics listed in a warning about an absent topic."""

DEFAULT_ORDER = "total"
IF_NONCAUSAL = "if the servers have causal = false, order the log by='total-noncausal'"

_log = logging.getLogger("ensue")

_UNITS = {
    "microsecond": 1,
    "millisecond": 1000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
}
_PERIOD = re.compile(rf"\s*(\d+)\s+({'|'.join(_UNITS)})s?\s*")


class _Statistics(NamedTuple):
    """Statistics of one topic of a batch."""

    first: int
    last: int
    rows: int
    sum: int
    """Sum of the positions of its rows."""


def order(
    frame: DataFrame,
    topics: Iterable[str] | Mapping[str, int] | None = None,
    *,
    by: str | None = None,
    time_to_live: timedelta | str | None = None,
    held_max: int = 1_000_000,
    voids: bool = False,
    before_cut: bool = False,
) -> DataFrame:
    """Put the events of some topics in order: `frame.transform(order, topics=[...])`.

    `frame` has the columns of an event log (topic, event, stamp, published_at, offset). Other
    columns pass unchanged. `order` adds `position`, 1, 2, 3, …, and `verdict`, empty for an event
    in its place.

    `topics` lists the topics to order, or maps each to the first offset of the order. It defaults
    to all topics of a batch; a stream needs it. A topic without events in a batch is a warning, not
    an error: one topic alone may be read at its positions in the order of two. A stream never warns
    of a misspelled topic; the source does.

    Voids, placeholders with a null `value`, take their position and are dropped. With `voids` they
    stay, with the verdict `void`.

    A batch of a whole log begins at its first common cut (see `common_cut`). Earlier events stay
    without a position, with the verdict `before_cut`, and `order` logs a warning. If `topics` gives
    the first offsets, earlier events are dropped, or stay in the same way with `before_cut`.

    `by` names the rule: by default the order of the log under `format("ensue")`, else "total".
    "total-noncausal" orders a log of servers with `causal = false` along its stamps, without a
    common cut. Positions count events: in a batch all, in a stream those released.

    A stream releases an event after all smaller positions. `time_to_live` ("10 minutes" or a
    timedelta, by `published_at` relative to the newest one seen) bounds the wait: when an event has
    waited longer, or more than `held_max` events wait, the stream skips the missing positions
    before it. The event after them has the verdict `after_gap`; a skipped event that arrives later
    is released at once as `out_of_order`. Without a time to live the stream skips nothing, and more
    than `held_max` held events fail the query. Repeated events are released once. A batch keeps
    them, and has no limits; see `gaps`.
    """
    rule = rule_named(by or _order_of(frame))
    _check_columns(frame, rule)
    limits = Limits(held_max=held_max, time_to_live_us=_micros(time_to_live), voids=voids)
    if held_max < 1:
        raise BadInput(f"held_max is {held_max}: at least one event must be allowed to wait")
    statistics: dict[str, _Statistics] | None = None
    if topics is None:
        statistics = _collect_statistics(frame, None)
        topics = sorted(statistics)
    cut = _cut(topics)
    if not cut and statistics is None:
        raise BadInput(
            "topics is empty: name at least one, or leave it out to order all of a batch"
        )
    taken = sorted({"verdict", *rule.columns(cut)} & set(frame.columns))
    if taken:
        raise BadInput(f"the data frame has columns {taken} already: rename or drop them first")
    if frame.isStreaming:
        chosen = _chosen(frame, cut, rule, before_cut=before_cut)
        schema = t.StructType([*chosen.schema.fields, t.StructField("verdict", t.StringType())])
        return hold_back(chosen, schema, rule.hold_back(cut, limits))
    if statistics is None:
        statistics = _collect_statistics(frame.where(f.col("topic").isin(list(cut))), cut)
        _warn_of_absent(frame, cut, statistics)
    if rule.begins_at_cut and not isinstance(topics, Mapping):
        begun = _first_cut(frame, cut, statistics)
        before_cut, cut = before_cut or begun != cut, begun
    chosen = _chosen(frame, cut, rule, before_cut=before_cut)
    judged = _judged(rule.number(chosen), voids=voids)
    return rule.sort(judged, cut, _offsets(cut, statistics))


def _order_of(frame: DataFrame) -> str:
    """Return the order of the log that a data frame was read from, if it has a rule."""
    found = [field.metadata for field in frame.schema if field.name == "stamp"]
    named = str(found[0].get(ORDER, "")) if found else ""
    return named if named in ordering_rules() else DEFAULT_ORDER


def _offsets(
    cut: Mapping[str, int], statistics: Mapping[str, _Statistics]
) -> dict[str, tuple[int, int]]:
    """Return the first and the last offset from the cut on, of each topic that has any."""
    return {
        topic: (max(cut[topic], seen.first), seen.last)
        for topic, seen in statistics.items()
        if seen.last >= cut[topic]
    }


def _judged(chosen: DataFrame, *, voids: bool) -> DataFrame:
    """Add the verdicts of a batch's rows; drop voids unless requested."""
    verdict = f.when(f.col("position").isNull(), BEFORE_CUT).otherwise("")
    if "value" not in chosen.columns:
        return chosen.withColumn("verdict", verdict)
    if not voids:
        return chosen.where(f.col("value").isNotNull()).withColumn("verdict", verdict)
    return chosen.withColumn("verdict", f.when(f.col("value").isNull(), VOID).otherwise(verdict))


def _first_cut(frame: DataFrame, cut: Cut, statistics: Mapping[str, _Statistics]) -> Cut:
    """Return the cut where the order of a whole log begins; warn if it is not the start.

    An event that does not count all earlier ones has too small a position. The sum of all positions
    shows whether there is one.
    """
    count = sum(seen.rows for seen in statistics.values())
    whole = all(seen.first == 0 and seen.rows == seen.last + 1 for seen in statistics.values())
    if not whole or sum(seen.sum for seen in statistics.values()) == count * (count + 1) // 2:
        return cut
    begun = find_cut(cut, rows_of(frame))
    if begun is None or begun == cut:
        _log.warning(
            "order: not all events have a common order, and some share a position (see gaps): "
            "order only topics that one client subscribes to together; %s",
            IF_NONCAUSAL,
        )
        return cut
    _log.warning(
        "order: begins at the first common cut, %s: %s before it have no common order, and the "
        "verdict %s; %s",
        ", ".join(f"{topic} {offset}" for topic, offset in sorted(begun.items()) if offset),
        f"{sum(begun.values()):,} events",
        BEFORE_CUT,
        IF_NONCAUSAL,
    )
    return begun


def _warn_of_absent(frame: DataFrame, cut: Cut, statistics: Mapping[str, _Statistics]) -> None:
    """Warn of requested topics without events in a batch."""
    absent = [
        repr(topic)
        for topic in sorted(cut)
        if topic not in statistics or statistics[topic].last < cut[topic]
    ]
    if absent:
        there = sorted(_collect_statistics(frame, None))
        names_shown = ", ".join(map(repr, there[:TOPICS_SHOWN]))
        more = f" and {len(there) - TOPICS_SHOWN:,} more" if len(there) > TOPICS_SHOWN else ""
        _log.warning(
            "order: the data frame holds no events of %s to be ordered; it holds %s%s",
            ", ".join(absent),
            names_shown or "none at all",
            more,
        )


def _check_columns(frame: DataFrame, rule: OrderingRule) -> None:
    found = {field.name: field.dataType.simpleString() for field in frame.schema}
    for name, kind in {"topic": "string", "offset": "bigint", **rule.reads}.items():
        if found.get(name) != kind:
            what = f"is {found[name]}" if name in found else "is missing"
            raise BadInput(f"the data frame is no event log: column {name!r} {what}, not {kind}")


def _micros(time_to_live: timedelta | str | None) -> int | None:
    if time_to_live is None:
        return None
    if isinstance(time_to_live, str):
        period = _PERIOD.fullmatch(time_to_live)
        if period is None:
            raise BadInput(
                f"time_to_live is {time_to_live!r}: write a number and one of "
                f"{', '.join(unit + 's' for unit in _UNITS)}, like '10 minutes'"
            )
        return int(period[1]) * _UNITS[period[2]]
    if time_to_live < timedelta(0):
        raise BadInput(f"time_to_live is {time_to_live}: it can't be negative")
    return time_to_live // timedelta(microseconds=1)


def _collect_statistics(frame: DataFrame, cut: Cut | None) -> dict[str, _Statistics]:
    """Return the statistics of each topic of a batch."""
    if frame.isStreaming:
        raise BadInput(
            "a stream needs topics: name them, topics=[...], and keep them for the life of its "
            "checkpoint"
        )
    # Without a cut, sum over all topics: a stamp that counts absent topics makes the sum too large,
    # and `_first_cut` searches for the cut.
    position = (
        positions(cut)
        if cut is not None
        else f.aggregate(
            f.map_values("stamp"), f.lit(0).cast("bigint"), lambda so_far, value: so_far + value
        )
    )
    aggregates = (
        f.min("offset").alias("first"),
        f.max("offset").alias("last"),
        f.count("*").alias("rows"),
        f.sum(f.coalesce(position, f.lit(0)).cast("decimal(38,0)")).alias("sum"),
    )
    found = frame.groupBy("topic").agg(*aggregates).limit(TOPICS_MAX + 1).collect()
    if any(None in tuple(row) for row in found):
        raise BadInput("the data frame is no event log: it has rows without a topic or an offset")
    return {
        row["topic"]: _Statistics(row["first"], row["last"], row["rows"], int(row["sum"]))
        for row in found
    }


def _cut(topics: Iterable[str] | Mapping[str, int]) -> Cut:
    if isinstance(topics, str):
        raise BadInput(f"topics is the text {topics!r}: give a list of topics, [{topics!r}]")
    cut = dict(topics) if isinstance(topics, Mapping) else dict.fromkeys(topics, 0)
    wrong = [topic for topic, first in cut.items() if not isinstance(first, int) or first < 0]
    if wrong:
        raise BadInput(f"the first offsets of topics {wrong} are not integers from 0 on")
    if len(cut) > TOPICS_MAX:
        raise BadInput(f"more than {TOPICS_MAX:,} topics in one order: order fewer at a time")
    return cut


def _chosen(frame: DataFrame, cut: Cut, rule: OrderingRule, *, before_cut: bool) -> DataFrame:
    """Return the events of the order, with its columns: null before the cut."""
    chosen = frame.where(f.col("topic").isin(list(cut)))
    added = rule.columns(cut)
    later = [f.lit(part) for topic, first in cut.items() if first for part in (topic, first)]
    if later:
        starts = f.create_map(*later)[f.col("topic")]
        is_part = f.col("offset") >= f.coalesce(starts, f.lit(0))
        if not before_cut:
            return chosen.where(is_part).withColumns(dict(added))
        added = {name: f.when(is_part, column) for name, column in added.items()}
    return chosen.withColumns(dict(added))
