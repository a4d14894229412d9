"""Judge doubtful events from their rows, by the rules of `ensue.checkers`.

A small run is judged whole. For a larger one, the doubtful events of a tile are judged from an
excerpt: every publication and delivery of these events, and all subscription changes. The two
events of a violation are always together in some tile, and other events do not affect the verdict
on them, so the result is exact.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from ensue import checkers
from ensue.checkers.completeness import Terms
from ensue.checkers.history import Excerpt, History, histories
from ensue.checkers.verdict import Collector, Finding, Subscriber
from ensue.core.trace import Row

__all__ = [
    "JUDGED",
    "JUDGED_ARROW",
    "ROW_COLUMNS",
    "finding_rows",
    "judge_excerpt",
    "judge_own",
    "judge_whole",
    "judged_table",
    "rows_of",
    "subscribers_of",
]

ROW_COLUMNS = (
    "run",
    "node",
    "step",
    "at_ns",
    "true_ns",
    "action",
    "event",
    "topic",
    "publisher",
    "publisher_seq",
    "position",
    "subscription",
    "verdict",
)
"""Columns needed to judge a row."""

JUDGED = t.StructType(
    [
        t.StructField("run", t.StringType()),
        t.StructField("what", t.StringType()),
        t.StructField("checker", t.StringType()),
        t.StructField("anomaly", t.StringType()),
        t.StructField("node", t.StringType()),
        t.StructField("subscription", t.StringType()),
        t.StructField("other_node", t.StringType()),
        t.StructField("other_subscription", t.StringType()),
        t.StructField("first", t.StringType()),
        t.StructField("second", t.StringType()),
        t.StructField("because", t.StringType()),
        t.StructField("count", t.LongType()),
        t.StructField("tile", t.LongType()),
        t.StructField("place", t.IntegerType()),
    ]
)
"""`what` is `violation`, or `unreported` with the number of violations not reported, `note`,
`unknown` for why one checker could not judge, `reason` for why the run could not be judged, or
`tally` for a count reported once for all runs. `place` is 0, 1, 2, … within the tile, so that rows
keep their order."""
JUDGED_ARROW = to_arrow_schema(JUDGED)


def judge_whole(
    table: pa.Table, rules: Sequence[str], terms: Terms, violations_max: int
) -> pa.Table:
    """Judge all rows of a run."""
    return _judge(
        table.column("run")[0].as_py(), histories(rows_of(table)), rules, terms, violations_max
    )


def judge_own(
    table: pa.Table, rules: Mapping[str, Callable[[Any, Any], None]], violations_max: int
) -> pa.Table:
    """Judge all rows of a run by functions of an order in its own package."""
    found, _ = histories(rows_of(table))
    judged: list[dict[str, Any]] = []
    for history in found:
        for rule, judge in rules.items():
            collector = Collector(rule, violations_max=violations_max)
            judge(history, collector)
            judged += finding_rows(collector.finding())
    return judged_table(table.column("run")[0].as_py(), judged)


def judge_excerpt(
    table: pa.Table,
    changes: Mapping[str, list[Row]],
    excerpts: Mapping[str, Excerpt],
    rules: Sequence[str],
    terms: Terms,
    violations_max: int,
) -> pa.Table:
    """Judge the rows of the doubtful events of a tile."""
    run = table.column("run")[0].as_py()
    rows = [*rows_of(table), *changes.get(run, ())]
    tile = table.column("tile")[0].as_py()
    read = histories(rows, excerpt=excerpts[run])
    return _judge(run, read, rules, terms, violations_max, tile)


def _judge(
    run: str,
    read: tuple[list[History], list[str]],
    rules: Sequence[str],
    terms: Terms,
    violations_max: int,
    tile: int = 0,
) -> pa.Table:
    found, reasons = read
    judged: list[dict[str, Any]] = [{"what": "reason", "because": reason} for reason in reasons]
    for history in found:
        for rule in rules:
            collector = Collector(rule, violations_max=violations_max)
            checkers.judge(history, {rule: collector}, terms, violations_max)
            judged += finding_rows(collector.finding())
            judged += [
                {"what": "tally", "checker": rule, "anomaly": name, "count": count}
                for name, count in collector.facts.items()
            ]
    return judged_table(run, judged, tile)


def judged_table(run: str, judged: Sequence[Mapping[str, Any]], tile: int = 0) -> pa.Table:
    """Return the findings of a run, or of a tile, as a table of `JUDGED`."""
    empty: dict[str, Any] = {**dict.fromkeys(JUDGED_ARROW.names), "run": run, "tile": tile}
    rows = [{**empty, **one, "place": place} for place, one in enumerate(judged)]
    return pa.Table.from_pylist(rows, schema=JUDGED_ARROW)


def rows_of(table: pa.Table, names: Sequence[str] = ROW_COLUMNS) -> list[Row]:
    """Return the rows of a table."""
    columns = [table.column(name).to_pylist() for name in names]
    return [Row(**dict(zip(names, values, strict=True))) for values in zip(*columns, strict=True)]


def subscribers_of(trace: DataFrame) -> dict[str, list[Subscriber]]:
    """Return the subscribers of each run, in the order of a history of the whole run."""
    who = {"run": f.col("run"), "node": f.col("node")}
    who["subscription"] = f.coalesce("subscription", f.lit(""))
    first = (
        trace.where("action IN ('subscribed', 'delivered')")
        .groupBy(*(column.alias(name) for name, column in who.items()))
        .agg(f.min("step").alias("step"))
        .toArrow()
    )
    found: dict[str, list[Subscriber]] = {}
    for row in sorted(first.to_pylist(), key=lambda row: (row["run"], row["node"], row["step"])):
        found.setdefault(row["run"], []).append(Subscriber(*(row[name] for name in who)))
    return found


def finding_rows(finding: Finding) -> Iterator[dict[str, Any]]:
    """Turn a finding into rows."""
    counts: dict[str, int] = {}
    for violation in finding.violations:
        counts[violation.anomaly] = counts.get(violation.anomaly, 0) + 1
        one, other = violation.subscribers[0], violation.subscribers[-1]
        two = len(violation.subscribers) > 1
        yield {
            "what": "violation",
            "checker": finding.checker,
            "anomaly": violation.anomaly,
            "node": one.node,
            "subscription": one.subscription,
            "other_node": other.node if two else None,
            "other_subscription": other.subscription if two else None,
            "first": violation.first_event,
            "second": violation.second_event,
            "because": violation.because,
        }
    for anomaly, count in finding.anomaly_counts.items():
        unreported = count - counts.get(anomaly, 0)
        if unreported:
            yield {
                "what": "unreported",
                "checker": finding.checker,
                "anomaly": anomaly,
                "count": unreported,
            }
    for what, texts in (("note", finding.notes), ("unknown", finding.reasons)):
        for text in texts:
            yield {"what": what, "checker": finding.checker, "because": text}
