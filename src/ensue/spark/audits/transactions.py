"""Audit transactions of several clients by the rules of `ensue.checkers.transactions`.

Most rows of such a trace record that a broker processed an operation, once for each broker, and the
contents of its tables. Windows and joins judge these in place: *sequential* compares each operation
that a broker processed within a transaction with the previous one; *converged* compares what
brokers sent each other with what they hold. *atomic* and *serializable* depend on the subscriptions
at each publication, and so on all earlier commits: the checker judges them run by run, from the
other rows.

HAZARD: a run's rows without `received` and `held` must fit into the memory of one task.
"""

from collections.abc import Collection
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from ensue.checkers import transactions
from ensue.checkers.verdict import Collector
from ensue.core.errors import BadInput
from ensue.spark.audits import judge as verdicts
from ensue.spark.audits.result import Audit, Totals

__all__ = ["audit_transactions"]

COLUMNS = (*verdicts.ROW_COLUMNS, "transaction")
WHOLE = ("atomic", "serializable")
"""Rules that the checker judges, one run at a time."""
TALLIES = ("events", "deliveries", "subscribers")


def audit_transactions(trace: DataFrame, *, violations_max: int) -> Audit:
    """Judge a trace of transactions."""
    judge = partial(_judge_run, violations_max=violations_max)

    def judge_run(table: pa.Table) -> pa.Table:
        return judge(table)

    unreadable = {
        run: _unreadable(run, transactions.misnamed(event))
        for run, event in _misnamed(trace).items()
    }
    rest = _without(trace, unreadable).where("action NOT IN ('received', 'held')").select(*COLUMNS)
    whole = rest.groupBy("run").applyInArrow(judge_run, verdicts.JUDGED).toArrow()
    found_rows = whole.to_pylist()
    unreadable |= {row["run"]: row["because"] for row in found_rows if row["what"] == "reason"}
    readable = _without(trace, unreadable)
    judged = pa.concat_tables(
        [
            whole,
            _found(_out_of_sequence(readable), "sequential", violations_max),
            _found(_unlike(readable), "converged", violations_max),
        ]
    )
    runs = trace.select("run").distinct().count()
    reasons = [unreadable[run] for run in sorted(unreadable)]
    if not runs:
        reasons.append("the trace is empty")
    tallies = dict.fromkeys(TALLIES, 0)
    for row in found_rows:
        if row["what"] == "tally":
            tallies[row["anomaly"]] += row["count"]
    return Audit(
        trace.sparkSession,
        order="transactions",
        rules=transactions.RULES,
        totals=Totals(runs=runs, **tallies),
        judged=judged,
        reasons=reasons,
        notes={},
    )


def _judge_run(table: pa.Table, violations_max: int) -> pa.Table:
    """Judge one run by the rules that need all of it."""
    run = table.column("run")[0].as_py()
    collectors = {rule: Collector(rule, violations_max=violations_max) for rule in WHOLE}
    judged: list[dict[str, Any]] = []
    counts = (0, 0, 0)
    try:
        ledger = transactions.Ledger(run, verdicts.rows_of(table, COLUMNS))
    except BadInput as error:
        judged.append({"what": "reason", "because": _unreadable(run, error)})
    else:
        counts = (len(ledger.events), _count(ledger), len(ledger.subscriptions))
        transactions.judge(ledger, collectors)
    for collector in collectors.values():
        judged += verdicts.finding_rows(collector.finding())
    judged += [
        {"what": "tally", "anomaly": name, "count": count}
        for name, count in zip(TALLIES, counts, strict=True)
    ]
    return verdicts.judged_table(run, judged)


def _without(trace: DataFrame, runs: Collection[str]) -> DataFrame:
    return trace.where(~f.col("run").isin(list(runs))) if runs else trace


def _unreadable(run: str, why: object) -> str:
    return f"run {run} is not content-based: {why}"


def _count(ledger: transactions.Ledger) -> int:
    return sum(len(rows) for rows in ledger.delivered.values())


def _found(violations: DataFrame, rule: str, violations_max: int) -> pa.Table:
    """Return violations of a rule: the first few of each anomaly, and a count."""
    sequence = Window.partitionBy("anomaly").orderBy("run", "node", "first", "because")
    ranked = violations.withColumns(
        {
            "place": f.row_number().over(sequence),
            "of": f.count("*").over(Window.partitionBy("anomaly")),
        }
    )
    rows: list[dict[str, Any]] = []
    for found in ranked.where(f.col("place") <= violations_max).collect():
        one = found.asDict()
        place, count = one.pop("place"), one.pop("of")
        rows.append({**one, "what": "violation", "checker": rule, "tile": 0, "place": place})
        if place == violations_max and count > place:
            unreported = {"run": one["run"], "anomaly": one["anomaly"], "count": count - place}
            rows.append(
                {**unreported, "what": "unreported", "checker": rule, "tile": 0, "place": place}
            )
    empty = dict.fromkeys(verdicts.JUDGED_ARROW.names)
    return pa.Table.from_pylist([{**empty, **row} for row in rows], schema=verdicts.JUDGED_ARROW)


# -- sequential ------------------------------------------------------------------------------------


_OPERATIONS = "action = 'received' AND transaction != ''"


def _at() -> Column:
    return f.coalesce("true_ns", "at_ns")


def _place() -> Column:
    return f.coalesce(f.substring_index("event", "#", -1), f.lit(""))


def _misnamed(trace: DataFrame) -> dict[str, str]:
    """Return by run the first operation with an unreadable place."""
    odd = trace.where(_OPERATIONS).where(~_place().rlike(f"^{transactions.PLACE}\\z"))
    first = f.min_by("event", f.struct(_at(), "node", "step")).alias("event")
    return {row["run"]: row["event"] for row in odd.groupBy("run").agg(first).collect()}


def _out_of_sequence(trace: DataFrame) -> DataFrame:
    """Return each broker's first operation of a transaction that is out of order."""
    within = Window.partitionBy("run", "node", "transaction").orderBy(_at(), "step")
    # Operations after a zero may run in any order by plan.
    place = f.regexp_replace(_place(), r"(^|\.)0+(\..*)?$", "")
    numbers = f.split(place, r"\.").cast("array<bigint>")
    path = f.when(place == "", f.array().cast("array<bigint>")).otherwise(numbers)
    steps = trace.where(_OPERATIONS).withColumns(
        {
            "path": path,
            "path_before": f.lag(path).over(within),
            "before": f.lag("event").over(within),
            "number": f.row_number().over(within),
        }
    )
    wrong = steps.where(f.col("path") < f.col("path_before"))
    first = f.min_by(
        f.struct(f.col("before").alias("first"), f.col("event").alias("second")), "number"
    )
    because = f.concat_ws(
        "", "node", f.lit(" processed "), "first", f.lit(" before "), "second",
        f.lit(", which comes first in "), "transaction",
    )  # fmt: skip
    return (
        wrong.groupBy("run", "node", "transaction")
        .agg(first.alias("found"))
        .select("run", "node", "transaction", "found.*")
        .select(
            "run", "node", f.lit("").alias("subscription"), f.lit("sequential").alias("anomaly"),
            "first", "second", because.alias("because"),
        )
    )  # fmt: skip


# -- converged -------------------------------------------------------------------------------------


def _unlike(trace: DataFrame) -> DataFrame:
    """Return the faults in the last reported tables of all brokers."""
    held = trace.where("action = 'held'")
    brokers = (
        held.where("verdict = 'tables'")
        .groupBy("run", "node")
        .agg(
            f.max_by(f.struct("step", f.coalesce("publisher_seq", f.lit(0))), "step").alias("last")
        )
        .select(
            "run", "node", f.col("last.step").alias("since"), f.col("last.col2").alias("commits")
        )
    )
    last = (
        held.join(brokers.select("run", "node", "since"), ["run", "node"])
        .where("step > since")
        .select(
            "run",
            "node",
            "verdict",
            f.col("publisher").alias("peer"),
            f.col("subscription").alias("name"),
        )
    )
    advertised = last.where("verdict = 'advertisement'").select("run", "node", "name").distinct()
    behind = brokers.withColumn("most", f.max("commits").over(Window.partitionBy("run"))).where(
        "commits < most"
    )
    unadvertised = (
        advertised.select("run", "name")
        .distinct()
        .join(brokers.select("run", "node"), "run")
        .join(advertised, ["run", "node", "name"], "left_anti")
    )
    found = [
        _fault(
            behind,
            "behind",
            "node",
            f.format_string(
                "%s has committed %d transactions, others %d", "node", "commits", "most"
            ),
        ),
        _fault(
            unadvertised,
            "unadvertised",
            "name",
            f.format_string("%s does not have the advertisement %s", "node", "name"),
        ),
        _fault(
            _orphans(last, brokers),
            "orphan",
            "name",
            f.format_string("%s has %s of %s, which is not connected", "node", "name", "peer"),
        ),
        *_differences(last, brokers),
    ]
    together = found[0]
    for more in found[1:]:
        together = together.unionByName(more)
    return together


def _orphans(last: DataFrame, brokers: DataFrame) -> DataFrame:
    """Return entries of a node that is neither a broker nor a client of their holder."""
    known = (
        last.where("verdict = 'client'")
        .select("run", "node", "peer")
        .unionByName(
            brokers.select("run", "node").join(
                brokers.select("run", f.col("node").alias("peer")), "run"
            )
        )
    )
    return last.where("verdict IN ('advertisement', 'subscription')").join(
        known, ["run", "node", "peer"], "left_anti"
    )


def _differences(last: DataFrame, brokers: DataFrame) -> list[DataFrame]:
    """Compare what each broker sent to a peer with what the peer holds."""
    peers = brokers.select("run", f.col("node").alias("peer"))
    between = last.join(peers, ["run", "peer"], "left_semi")
    sent = between.where("verdict = 'sent'").select("run", "node", "peer", "name").distinct()
    came = (
        between.where("verdict = 'subscription'")
        .select("run", f.col("peer").alias("node"), f.col("node").alias("peer"), "name")
        .distinct()
    )
    keys = ["run", "node", "peer", "name"]
    missing = sent.join(came, keys, "left_anti")
    surplus = came.join(sent, keys, "left_anti")
    turned = surplus.select("run", f.col("peer").alias("node"), f.col("node").alias("peer"), "name")
    return [
        _fault(
            missing,
            "differ",
            "name",
            f.format_string("%s sent %s to %s, which does not have it", "node", "name", "peer"),
        ),
        _fault(
            turned,
            "differ",
            "name",
            f.format_string("%s has %s of %s, which did not send it", "node", "name", "peer"),
        ),
    ]


def _fault(found: DataFrame, anomaly: str, first: str, because: Column) -> DataFrame:
    return found.select(
        "run", "node", f.lit("").alias("subscription"), f.lit(anomaly).alias("anomaly"),
        f.col(first).alias("first"), f.lit(None).cast("string").alias("second"),
        because.alias("because"),
    )  # fmt: skip
