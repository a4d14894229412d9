"""Find effects before their causes within each topic: the rule `causal-topic`.

Topics have nothing to do with each other here, so each topic of each run is judged by itself, by
the checker, in one task. Its task also gets what the topic does not hold: which of all deliveries
of its subscriber each one is, what other subscribers there are, and who restarted.

HAZARD: what was published and delivered on one topic of one run has to fit into the memory of one
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
from ensue.spark.audits import judge as words

__all__ = ["RULE", "judge_topics"]

RULE = "causal-topic"

_JUDGED = t.StructType([*words.JUDGED.fields, t.StructField("topic", t.StringType())])
_EXCERPT = Excerpt(simulated=False, furthest={})
"""Positions are those of the rows; times are not looked at."""


def judge_topics(
    trace: DataFrame,
    changes: Mapping[str, Iterable[Row]],
    unreadable: set[str],
    *,
    violations_max: int,
) -> pa.Table:
    """Return what came before its causes, as the other rules' findings are returned.

    Of `changes`, those who restarted count: they may say again what they published. Runs that are
    `unreadable` are left out; others may turn out to be so.
    """
    named = trace.withColumn("subscription", f.coalesce("subscription", f.lit("")))
    subscribers = words.subscribers_of(named)
    restarts = {
        run: [row for row in rows if row.action == "restarted"] for run, rows in changes.items()
    }

    def judge(table: pa.Table) -> pa.Table:
        run, topic = (table.column(name)[0].as_py() for name in ("run", "topic"))
        rows = [*words.rows_of(table), *restarts.get(run, ())]
        found, reasons = histories(rows, excerpt=_EXCERPT)
        judged: list[dict[str, Any]] = [{"what": "reason", "because": why} for why in reasons]
        for history in found:
            # Who is alone at its node, and so goes by the node's name, is a matter of all topics.
            known = subscribers.get(run, ())
            history.delivered = {one: history.delivered.get(one, []) for one in known}
            collector = Collector(RULE, violations_max=violations_max)
            causal.judge(history, collector)
            judged += words.finding_rows(collector.finding())
        judgement = words.judged_table(run, judged)
        return judgement.append_column("topic", pa.array([topic] * judgement.num_rows, pa.string()))

    of_subscriber = Window.partitionBy("run", "node", "subscription", "action").orderBy("step")
    rows = (
        named.where("action IN ('submitted', 'published', 'delivered') AND topic IS NOT NULL")
        .where(~f.col("run").isin(*unreadable))
        .withColumn("position", f.row_number().over(of_subscriber))
        .select(*words.ROW_COLUMNS)
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
    return pa.Table.from_pylist([*reasons.values(), *kept], schema=words.JUDGED_ARROW)
