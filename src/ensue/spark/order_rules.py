"""Ordering rules: the sort keys that `order` uses for each order.

A rule computes its key columns in native Spark, one row at a time. A batch is sorted by them; a
stream passes through the hold-back queue of the rule. `ensue.orders` names the rule of each order.

**Total order** by the position rule: the entries of a stamp over the ordered topics add up to the
event's position 1, 2, 3, … With a cut (a first offset per topic), events before it are not part of
the order, and each entry counts from the cut. A log has complete stamps; an absent entry is zero.

HAZARD: the sum is a position only for topics that are mutually ordered: every two of them, and of
topics between them, were subscribed together by one client while their events were stamped. For
other topics two events share a position. A stream raises an error on such events; for a batch
`gaps` lists them. Logs of chains whose order is not causal have a rule of their own
(`vector_order`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from ensue import orders
from ensue.core.errors import UnsupportedOrder
from ensue.spark.hold_back import Limits, MakeHoldBack, TotalHoldBack

__all__ = [
    "Cut",
    "Held",
    "OrderingRule",
    "TotalRule",
    "ordering_rules",
    "parts_for",
    "positions",
    "rule_named",
]

Cut = Mapping[str, int]
"""The topics to order, and the offset at which each one starts."""
Held = Mapping[str, tuple[int, int]]
"""By topic: the first and the last offset in a batch."""

ROWS_MIN, ROWS_MAX = 100_000, 500_000
"""Bounds of the events that one task sorts."""


def parts_for(frame: DataFrame, count: int) -> int:
    """Return the number of tasks to sort this many rows of a data frame."""
    few = int(frame.sparkSession.conf.get("spark.sql.shuffle.partitions", None) or 1)
    return max(1, min(-(-count // ROWS_MIN), max(few, -(-count // ROWS_MAX))))


class OrderingRule(Protocol):
    """How one order sorts events by positions.

    Merged order has no positions; see `merged_order`.
    """

    @property
    def reads(self) -> Mapping[str, str]:
        """Columns that it needs besides topic and offset, with their types."""
        ...

    @property
    def begins_at_cut(self) -> bool:
        """Whether the order of a whole log begins at its first common cut (`common_cuts`)."""
        ...

    def sort(self, frame: DataFrame, cut: Cut, held: Held) -> DataFrame:
        """Sort a batch that has the added columns and the offsets `held`."""
        ...

    def number(self, chosen: DataFrame) -> DataFrame:
        """Return a batch with the positions that columns alone can't give."""
        ...

    def columns(self, cut: Cut) -> Mapping[str, Column]:
        """Return the columns to add."""
        ...

    def hold_back(self, cut: Cut, limits: Limits) -> MakeHoldBack:
        """Return a factory of hold-back queues, which see the added columns too."""
        ...


@dataclass(frozen=True, slots=True)
class TotalRule:
    """Total order: sort by the sum of the stamp's entries."""

    begins_at_cut = True

    @property
    def reads(self) -> Mapping[str, str]:
        """See `OrderingRule`."""
        return {"event": "string", "stamp": "map<string,bigint>", "published_at": "timestamp"}

    def sort(self, frame: DataFrame, cut: Cut, held: Held) -> DataFrame:
        """See `OrderingRule`.

        The offsets of a log give its positions, and so the ranges. Spark's own range sort would
        read all columns of all rows twice.
        """
        low = sum(first - cut[topic] for topic, (first, _) in held.items())
        count = max(1, sum(last - first + 1 for first, last in held.values()))
        parts = parts_for(frame, count)
        # A log that lacks topics has positions beyond this range. They are sorted all the same.
        part = f.floor((f.col("position") - 1 - low) * parts / count)
        part = f.greatest(f.lit(0), f.least(f.lit(parts - 1), part)).cast("int")
        return frame.repartitionById(parts, part).sortWithinPartitions("position")

    def number(self, chosen: DataFrame) -> DataFrame:
        """See `OrderingRule`. The columns are the positions."""
        return chosen

    def columns(self, cut: Cut) -> Mapping[str, Column]:
        """See `OrderingRule`."""
        own = f.coalesce(f.col("stamp")[f.col("topic")], f.lit(0))
        unordered = f.raise_error(
            f.concat(
                f.lit("[MISSING_STAMP] event "),
                f.coalesce(f.col("event"), f.lit("without a name")),
                f.lit(
                    " has no stamp for its topic: it was published without total order; leave it "
                    "out, e.g. with where('stamp IS NOT NULL')"
                ),
            )
        )
        position = f.when(own >= 1, positions(cut)).otherwise(unordered)
        return {"position": position.cast("bigint")}

    def hold_back(self, cut: Cut, limits: Limits) -> MakeHoldBack:
        """See `OrderingRule`. Positions start at 1 for any cut."""
        del cut
        return partial(TotalHoldBack, limits)


def positions(cut: Cut) -> Column:
    """Return the sum of a stamp's entries from the cut, null without a stamp.

    It walks through a stamp once: a lookup for each topic takes twice as long for eight topics.
    """
    bases = {topic: base for topic, base in cut.items() if base}
    known = f.create_map(*(f.lit(part) for pair in bases.items() for part in pair))

    def counted(so_far: Column, entry: Column) -> Column:
        value = entry["value"]
        if bases:
            value = f.greatest(
                value - f.coalesce(known[entry["key"]], f.lit(0)), f.lit(0).cast("bigint")
            )
        return f.when(entry["key"].isin(list(cut)), so_far + value).otherwise(so_far)

    return f.aggregate(f.map_entries("stamp"), f.lit(0).cast("bigint"), counted)


def ordering_rules() -> dict[str, OrderingRule]:
    """Return the ordering rules by the names of their orders."""
    return {label: rule for each in orders.every() for label, rule in each.ordering_rules().items()}


def rule_named(name: str) -> OrderingRule:
    """Return the ordering rule of an order."""
    rules = ordering_rules()
    rule = rules.get(name)
    if rule is None:
        raise UnsupportedOrder(
            f"no ordering rule for {name!r}; expected {', '.join(sorted(rules))}",
            order=name,
            transport="spark",
        )
    return rule
