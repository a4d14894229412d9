"""Total order that is not causal: a log is put in order along its stamps.

A chain with `causal = false` orders two topics together only if two subscribers share them, or if
one server keeps both. The entries of a stamp then do not add up to a position. But each stamp says
which events precede its own: so many of each topic that it names. `place` walks through the log
along the stamps; where they leave a choice, the event that was published first comes first. Events
missing from the log do not hold others back.

Guarantee: two events whose topics two subscribers share have the order in which these subscribers
got them. HAZARD: a single subscriber of two topics may have got their events in another order than
`order` returns, because the chain had no reason to order them. Nothing depends on it but that
subscriber.

A stream (`vector_hold_back`) waits for missing events, and counts positions as it releases events.

One task walks through the columns `topic`, `offset`, `stamp` and `published_at` of all events; the
other columns stay where they are. HAZARD: these four have to fit into its memory.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from ensue.spark.conditions import SparkFault
from ensue.spark.hold_back import Limits, MakeHoldBack
from ensue.spark.order_rules import Cut, Held, TotalRule
from ensue.spark.vector_hold_back import VectorHoldBack

__all__ = ["LogEvent", "VectorRule", "place"]

LogEvent = tuple[str, int, Mapping[str, int], int]
"""The topic, offset, stamp and time of publication of an event."""

_PLACED = "topic string, offset bigint, position bigint"


@dataclass(frozen=True, slots=True)
class VectorRule:
    """Total order that is not causal: positions follow from a walk along the stamps."""

    begins_at_cut = False

    @property
    def reads(self) -> Mapping[str, str]:
        """See `OrderingRule`."""
        return TotalRule().reads

    def columns(self, cut: Cut) -> Mapping[str, Column]:
        """See `OrderingRule`. A placeholder: `number` replaces it."""
        return TotalRule().columns(cut)

    def number(self, chosen: DataFrame) -> DataFrame:
        """See `OrderingRule`."""
        events = chosen.where(f.col("position").isNotNull()).select(
            "topic",
            "offset",
            "stamp",
            f.unix_micros("published_at").alias("at_us"),
            f.lit(0).alias("log"),
        )
        placed = events.groupBy("log").applyInArrow(_placed, _PLACED)
        numbered = chosen.drop("position").join(placed, ["topic", "offset"], "left")
        return numbered.select(chosen.columns)

    def sort(self, frame: DataFrame, cut: Cut, held: Held) -> DataFrame:
        """See `OrderingRule`."""
        del cut, held
        return frame.orderBy("position")

    def hold_back(self, cut: Cut, limits: Limits) -> MakeHoldBack:
        """See `OrderingRule`."""
        return partial(VectorHoldBack, dict(cut), limits)


def place(events: Iterable[LogEvent]) -> Iterator[tuple[str, int]]:
    """Yield topic and offset of each event, once, behind all events that its stamp counts."""
    rows: dict[str, list[LogEvent]] = {}
    for event in events:
        rows.setdefault(event[0], []).append(event)
    for found in rows.values():
        found.sort(key=lambda event: -event[1])
    waiting: dict[str, list[str]] = {}
    """By topic: topics whose next event waits for one of its events."""
    ready: list[tuple[int, str]] = []
    for topic in sorted(rows):
        _enter(topic, rows, waiting, ready)
    while ready:
        _, topic = heappop(ready)
        offset = rows[topic].pop()[1]
        while rows[topic] and rows[topic][-1][1] == offset:
            rows[topic].pop()  # The event again.
        yield topic, offset
        for each in (topic, *waiting.pop(topic, ())):
            _enter(each, rows, waiting, ready)
    stuck = sorted(topic for topic, found in rows.items() if found)
    if stuck:
        raise SparkFault(
            "POSITION_CONFLICT",
            f"events of {', '.join(stuck)} precede each other: their stamps are not of one log",
        )


def _enter(
    topic: str,
    rows: Mapping[str, list[LogEvent]],
    waiting: dict[str, list[str]],
    ready: list[tuple[int, str]],
) -> None:
    """Note that the next event of a topic is ready, or what it waits for."""
    if not rows[topic]:
        return
    _, _, stamp, at_us = rows[topic][-1]
    for other, count in stamp.items():
        left = rows.get(other) if other != topic else None
        if left and left[-1][1] < count:
            waiting.setdefault(other, []).append(topic)
            return
    heappush(ready, (at_us, topic))


def _placed(table: pa.Table) -> pa.Table:
    columns = (table.column(name).to_pylist() for name in ("topic", "offset", "stamp", "at_us"))
    events = (
        (topic, offset, dict(stamp), at_us or 0)
        for topic, offset, stamp, at_us in zip(*columns, strict=True)
    )
    placed = list(place(events))
    return pa.table(
        {
            "topic": pa.array([topic for topic, _ in placed], pa.string()),
            "offset": pa.array([offset for _, offset in placed], pa.int64()),
            "position": pa.array(range(1, len(placed) + 1), pa.int64()),
        }
    )
