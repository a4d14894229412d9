"""Find effects before their causes within each topic: the rule `causal-topic`.

Topics are independent here, so the checker judges each topic of each run alone, in one task. That
task also gets facts from outside the topic: the position of each delivery among all deliveries of
its subscriber, the other subscribers of the run, and restarts.

HAZARD: the publications and deliveries of one topic of one run must fit into the memory of one
task.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f
from pyspark.sql import types as t

from ensue.checkers import causal
from ensue.checkers.history import Excerpt, histories
from ensue.checkers.verdict import Collector
from ensue.core.trace import Row
from ensue.spark.audits import judge as verdicts

__all__ = ["RULE", "judge_topics"]

RULE = "causal-topic"

_JUDGED = t.StructType([*verdicts.JUDGED.fields, t.StructField("topic", t.StringType())])
_EXCERPT = Excerpt(simulated=False, furthest={})
"""Positions are those of the rows; times are ignored."""


def judge_topics(
    trace: DataFrame,
    changes: Mapping[str, Iterable[Row]],
    unreadable: set[str],
    *,
    violations_max: int,
) -> pa.Table:
    """Return effects before their causes as a table of `judge.JUDGED`.

    Of `changes` only restarts count: a restarted node may publish an event again. `unreadable` runs
    are skipped; others may turn out to be unreadable.
    """
    named = trace.withColumn("subscription", f.coalesce("subscription", f.lit("")))
    subscribers = verdicts.subscribers_of(named)
    restarts = {
        run: [row for row in rows if row.action == "restarted"] for run, rows in changes.items()
    }

    def judge(table: pa.Table) -> pa.Table:
        run, topic = (table.column(name)[0].as_py() for name in ("run", "topic"))
        rows = [*verdicts.rows_of(table), *restarts.get(run, ())]
        found, reasons = histories(rows, excerpt=_EXCERPT)
        judged: list[dict[str, Any]] = [{"what": "reason", "because": why} for why in reasons]
        for history in found:
            # A subscriber goes by its node's name if it is alone there, over all topics.
            known = subscribers.get(run, ())
            history.delivered = {one: history.delivered.get(one, []) for one in known}
            collector = Collector(RULE, violations_max=violations_max)
            causal.judge(history, collector)
            judged += verdicts.finding_rows(collector.finding())
        judgement = verdicts.judged_table(run, judged)
        return judgement.append_column("topic", pa.array([topic] * judgement.num_rows, pa.string()))

    of_subscriber = Window.partitionBy("run", "node", "subscription", "action").orderBy("step")
    rows = (
        named.where("action IN ('submitted', 'published', 'delivered') AND topic IS NOT NULL")
        .where(~f.col("run").isin(*unreadable))
        .withColumn("position", f.row_number().over(of_subscriber))
        .select(*verdicts.ROW_COLUMNS)
    )
    return _in_sequence(rows.groupBy("run", "topic").applyInArrow(judge, _JUDGED).toArrow())


def _in_sequence(judged: pa.Table) -> pa.Table:
    """Return findings by topic, numbered as tiles are, and one reason per run."""
    rows = sorted(judged.to_pylist(), key=lambda row: (row["run"], row["topic"], row["place"]))
    topics: dict[str, dict[str, int]] = {}
    reasons: dict[str, dict[str, Any]] = {}
    for row in rows:
        of_run = topics.setdefault(row["run"], {})
        row["tile"] = of_run.setdefault(row.pop("topic"), len(of_run))
        if row["what"] == "reason":
            reasons.setdefault(row["run"], row)
    kept = [row for row in rows if row["run"] not in reasons]
    return pa.Table.from_pylist([*reasons.values(), *kept], schema=verdicts.JUDGED_ARROW)
