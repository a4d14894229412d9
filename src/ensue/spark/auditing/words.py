"""Judges what is in doubt, from the rows themselves and by the rules of `ensue.checkers`.

A run that is small enough is judged as a whole. Of a larger one, the rows of the doubtful events of
a tile are judged as an excerpt: every publication and delivery of these events, and all changes of
subscription. A violation always has its events together in some tile, and adding or leaving out other
events changes nothing for these two, so nothing is found that is not there and nothing is missed.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from ensue import checkers
from ensue.checkers.complete import Terms
from ensue.checkers.history import Excerpt, histories
from ensue.checkers.verdict import Collector, Finding
from ensue.trace import Row

__all__ = ["JUDGED", "JUDGED_ARROW", "ROW_COLUMNS", "judge_excerpt", "judge_whole"]

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
"""What of a row is needed to judge it."""

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
"""`what` is `violation`, or `untold` with the number of those not told, `note`, `unknown` for why one
checker could not judge, or `reason` for why the run could not be judged. `place` is 0, 1, 2, … within
the tile, so that what is told first stays first."""
JUDGED_ARROW = to_arrow_schema(JUDGED)


def judge_whole(
    table: pa.Table, order: str, terms: Terms, *, causal: bool, violations_max: int
) -> pa.Table:
    """Judge all rows of a run."""
    report = checkers.check(
        _rows(table),
        order,
        causal=causal,
        lossy=terms.lossy,
        settle_ns=terms.settle_ns,
        clock_error_ns=terms.clock_error_ns,
        violations_max=violations_max,
    )
    run = table.column("run")[0].as_py()
    judged = [
        {"run": run, "what": "reason", "because": reason}
        for reason in report.reasons
        if "no deliveries" not in reason
    ]
    for finding in report.findings:
        # What `complete` counts over all runs is noted once, for all of them.
        judged += [
            row
            for row in _told(run, finding)
            if row["what"] != "note" or finding.checker != "complete"
        ]
    return _table(judged)


def judge_excerpt(
    table: pa.Table,
    changes: Mapping[str, list[Row]],
    excerpts: Mapping[str, Excerpt],
    rules: list[str],
    terms: Terms,
    violations_max: int,
) -> pa.Table:
    """Judge the rows of the doubtful events of a tile."""
    run = table.column("run")[0].as_py()
    found, reasons = histories([*_rows(table), *changes.get(run, ())], excerpt=excerpts[run])
    judged: list[dict[str, Any]] = [
        {"run": run, "what": "reason", "because": reason} for reason in reasons
    ]
    for history in found:
        for rule in rules:
            collector = Collector(rule, violations_max=violations_max)
            checkers.judge(history, {rule: collector}, terms, violations_max)
            judged += _told(run, collector.finding())
    return _table(judged, table.column("tile")[0].as_py())


def _rows(table: pa.Table) -> list[Row]:
    columns = [table.column(name).to_pylist() for name in ROW_COLUMNS]
    return [
        Row(**dict(zip(ROW_COLUMNS, values, strict=True))) for values in zip(*columns, strict=True)
    ]


def _told(run: str, finding: Finding) -> Iterator[dict[str, Any]]:
    """Turn a finding into rows."""
    told: dict[str, int] = {}
    for violation in finding.violations:
        told[violation.anomaly] = told.get(violation.anomaly, 0) + 1
        one, other = violation.subscribers[0], violation.subscribers[-1]
        two = len(violation.subscribers) > 1
        yield {
            "run": run,
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
        untold = count - told.get(anomaly, 0)
        if untold:
            yield {
                "run": run,
                "what": "untold",
                "checker": finding.checker,
                "anomaly": anomaly,
                "count": untold,
            }
    for what, texts in (("note", finding.notes), ("unknown", finding.reasons)):
        for text in texts:
            yield {"run": run, "what": what, "checker": finding.checker, "because": text}


def _table(judged: list[dict[str, Any]], tile: int = 0) -> pa.Table:
    empty: dict[str, Any] = {**dict.fromkeys(JUDGED_ARROW.names), "tile": tile}
    rows = [{**empty, **one, "place": place} for place, one in enumerate(judged)]
    return pa.Table.from_pylist(rows, schema=JUDGED_ARROW)
