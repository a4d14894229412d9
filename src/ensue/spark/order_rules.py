"""Sort keys of orders: what a guarantee supplies so that `order` can sort a log.

A rule computes its key columns natively, one row at a time, so that no row has to be looked at
together with another one before the final sort. In a batch the rows are sorted by them; in a stream
they enter a hold-back queue that the rule makes. `ensue.orders` names the rule of
each order.

**Total order** by the position rule: the entries of a stamp over the ordered topics add up to the
event's position 1, 2, 3, … With a cut (a first offset per topic), events before it are no part of
the order, and each entry counts from the cut on. Stamps are whole in a log; an entry that is absent
is zero.

HAZARD: the sum is a position only for topics that are mutually ordered: every two of them, and of
topics between them, were subscribed together by one client while their events were stamped. For
other topics two events share a position. A stream raises when it meets them; for a batch `gaps`
lists them.
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
    "parts_for",
    "positions",
    "rule_named",
]

Cut = Mapping[str, int]
"""The topics to order, and the offset at which each one starts."""
Held = Mapping[str, tuple[int, int]]
"""By topic: the first and the last offset that a batch holds."""

ROWS_MIN, ROWS_MAX = 100_000, 500_000
"""Events of one task that sorts: not fewer for the sake of more tasks, and not more."""


def parts_for(frame: DataFrame, count: int) -> int:
    """Return how many tasks sort so many rows of a data frame."""
    few = int(frame.sparkSession.conf.get("spark.sql.shuffle.partitions", None) or 1)
    return max(1, min(-(-count // ROWS_MIN), max(few, -(-count // ROWS_MAX))))


class OrderingRule(Protocol):
    """How one guarantee orders events by positions. Merged order has none.

    For merged order see `merged_order`.
    """

    @property
    def reads(self) -> Mapping[str, str]:
        """The columns it needs beside topic and offset, with their types."""
        ...

    def sort(self, frame: DataFrame, cut: Cut, held: Held) -> DataFrame:
        """Sort a batch that has the added columns; `held` says which offsets it holds."""
        ...

    def columns(self, cut: Cut) -> Mapping[str, Column]:
        """Return the columns that it adds."""
        ...

    def hold_back(self, cut: Cut, limits: Limits) -> MakeHoldBack:
        """Return what makes the queue of a stream; it sees all columns, added ones too."""
        ...


@dataclass(frozen=True, slots=True)
class TotalRule:
    """Total order: sort by the sum of the stamp's entries."""

    @property
    def reads(self) -> Mapping[str, str]:
        """See `OrderingRule`."""
        return {"event": "string", "stamp": "map<string,bigint>", "published_at": "timestamp"}

    def sort(self, frame: DataFrame, cut: Cut, held: Held) -> DataFrame:
        """See `OrderingRule`.

        The positions of a log are known from its offsets, so that they can be cut into ranges
        without the look at all columns of all rows that Spark's own range sort takes beforehand.
        """
        low = sum(first - cut[topic] for topic, (first, _) in held.items())
        count = max(1, sum(last - first + 1 for first, last in held.values()))
        parts = parts_for(frame, count)
        # Positions beyond what offsets say, as of a log that lacks topics, are in order all the
        # same.
        part = f.floor((f.col("position") - 1 - low) * parts / count)
        part = f.greatest(f.lit(0), f.least(f.lit(parts - 1), part)).cast("int")
        return frame.repartitionById(parts, part).sortWithinPartitions("position")

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
        """See `OrderingRule`. Positions start at one whatever the cut is."""
        del cut
        return partial(TotalHoldBack, limits)


def positions(cut: Cut) -> Column:
    """Return the sum of a stamp's entries from the cut on, null without a stamp.

    Walk through a stamp once: asking it for each topic takes twice as long for eight topics.
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


def rule_named(name: str) -> OrderingRule:
    """Return the rule of this name."""
    rules = {each.name: each.ordering_rule() for each in orders.every()}
    rule = rules.get(name)
    if rule is None:
        known = ", ".join(sorted(each for each, rule in rules.items() if rule is not None))
        raise UnsupportedOrder(
            f"no rule puts a log in order by {name!r}; there are: {known}",
            order=name,
            transport="spark",
        )
    return rule
