"""Judge whether positions count without a gap: the rule `positions`.

The scan finds adjacent deliveries of a subscriber whose positions are not consecutive. A valid
trace has almost none, so the driver checks them one by one: it excuses those at restarts and
subscription changes, and those over positions that the application discarded unread, and fetches
the events of the others.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from ensue.checkers.history import Excerpt, History, histories
from ensue.checkers.positions import RULE, Excuses, excuses, explanation
from ensue.checkers.verdict import Collector, Subscriber
from ensue.core.trace import Row
from ensue.spark.audits import collector as g
from ensue.spark.audits import judge
from ensue.spark.audits.delivery_scan import BREAKS_MAX
from ensue.spark.audits.tile_scan import Break, Found
from ensue.spark.audits.trace_files import fallback_hash

__all__ = ["judge_positions"]

Place = tuple[str, str, str, int]
"""Run, node, subscription and step of a delivery."""


def judge_positions(
    trace: DataFrame,
    found: Found,
    gathered: g.Gathered,
    unreadable: set[str],
    *,
    violations_max: int,
) -> pa.Table:
    """Return the findings of the rule as a table of `judge.JUDGED`."""
    unexcused = _unexcused(found.breaks, gathered)
    unreported = judge.judged_table("", list(_unreported(found, gathered, unreadable)))
    if not unexcused:
        return unreported
    every = judge.subscribers_of(trace.where(~f.col("run").isin(*unreadable)))
    breaks = _without_unread(trace, _named(unexcused, every, trace))
    events = _events(trace, breaks)
    tables = [unreported]
    for run, subscribers in sorted(every.items()):
        history = History(run=run, simulated=False, delivered={one: [] for one in subscribers})
        collector = Collector(RULE, violations_max=violations_max)
        for subscriber in subscribers:
            name = history.name(subscriber)
            allowed = _excuses(gathered.changes.get(run, ()), subscriber)
            for step, next_step, position, next_position in sorted(breaks.get(subscriber, ())):
                if allowed.allow((step, position), (next_step, next_position)):
                    continue
                first, second = (
                    events[run, subscriber.node, subscriber.subscription, one]
                    for one in (step, next_step)
                )
                explain = partial(explanation, name, (first, position), (second, next_position))
                collector.violation("position", (subscriber,), (first, second), explain)
        tables.append(judge.judged_table(run, list(judge.finding_rows(collector.finding()))))
    return pa.concat_tables(tables)


def _unreported(
    found: Found, gathered: g.Gathered, unreadable: set[str]
) -> Iterator[dict[str, Any]]:
    """Yield subscribers whose breaks were not all checked: the rest may be faults."""
    known = [gathered.subscribers.get(owner) for owner in found.many_breaks]
    names = sorted(
        {f"{one.node} of run {one.run}" for one in known if one and one.run not in unreadable}
    )
    names += ["a node that never subscribed"] * (None in known)
    for name in names:
        because = (
            f"{name} has over {BREAKS_MAX:,} positions that are not consecutive, and not all "
            "were judged: ensue check judges all"
        )
        yield {"what": "unknown", "checker": RULE, "because": because}


def _unexcused(
    breaks: Sequence[tuple[int, Break]], gathered: g.Gathered
) -> dict[int | Subscriber, list[Break]]:
    """Return unexcused breaks by subscriber, or by hash if it is unknown."""
    left: dict[int | Subscriber, list[Break]] = {}
    known: dict[Subscriber, Excuses] = {}
    for owner, two in breaks:
        subscriber = gathered.subscribers.get(owner)
        if subscriber is None:
            left.setdefault(owner, []).append(two)
            continue
        if subscriber not in known:
            known[subscriber] = _excuses(gathered.changes.get(subscriber.run, ()), subscriber)
        step, next_step, position, next_position = two
        if not known[subscriber].allow((step, position), (next_step, next_position)):
            left.setdefault(subscriber, []).append(two)
    return left


def _excuses(changes: Sequence[Row], subscriber: Subscriber) -> Excuses:
    mine = [
        row
        for row in changes
        if row.node == subscriber.node
        and (row.action == "restarted" or (row.subscription or "") == subscriber.subscription)
    ]
    found, _ = histories(mine, excerpt=Excerpt(simulated=False, furthest={}))
    return excuses(found[0], subscriber) if found else Excuses([], [])


def _named(
    breaks: Mapping[int | Subscriber, list[Break]],
    every: Mapping[str, Sequence[Subscriber]],
    trace: DataFrame,
) -> dict[Subscriber, list[Break]]:
    """Resolve hashes of subscribers that never subscribed; drop unreadable runs."""
    unnamed = [one for ones in every.values() for one in ones]
    hashes: dict[int, Subscriber] = {}
    if any(isinstance(owner, int) for owner in breaks):
        table = pa.table(
            {
                name: pa.array([getattr(one, name) for one in unnamed], pa.string())
                for name in ("run", "node", "subscription")
            }
        )
        frame = trace.sparkSession.createDataFrame(table)
        rows = frame.select(g.subscriber_hash().alias("owner"), "run", "node", "subscription")
        for owner, *names in rows.collect():
            hashes[owner] = hashes[fallback_hash(*names)] = Subscriber(*names)
    wanted = set(unnamed)
    named: dict[Subscriber, list[Break]] = {}
    for owner, found in breaks.items():
        subscriber = hashes.get(owner) if isinstance(owner, int) else owner
        if subscriber in wanted and subscriber is not None:
            named[subscriber] = found
    return named


def _without_unread(
    trace: DataFrame, breaks: Mapping[Subscriber, Sequence[Break]]
) -> dict[Subscriber, list[Break]]:
    """Leave out the breaks over positions that were all discarded unread."""
    skipping = [
        (one.run, one.node, one.subscription, position, next_position)
        for one, found in breaks.items()
        for _, _, position, next_position in found
        if next_position > position + 1
    ]
    if not skipping:
        return {one: list(found) for one, found in breaks.items()}
    who = ("run", "node", "subscription")
    wanted = trace.sparkSession.createDataFrame(
        _table((*who, "low", "high"), skipping, (pa.string(),) * 3 + (pa.int64(),) * 2)
    )
    between = (f.col("position") > f.col("low")) & (f.col("position") < f.col("high"))
    counted = (
        trace.where("action = 'discarded' AND event IS NOT NULL AND position IS NOT NULL")
        .withColumn("subscription", f.coalesce("subscription", f.lit("")))
        .join(f.broadcast(wanted.distinct()), list(who))
        .where(between)
        .groupBy(*who, "low", "high")
        .agg(f.count_distinct("position").alias("count"))
    )
    unread = {
        (Subscriber(*row[:3]), row["low"], row["high"])
        for row in counted.collect()
        if row["count"] == row["high"] - row["low"] - 1
    }
    return {
        one: [two for two in found if (one, two[2], two[3]) not in unread]
        for one, found in breaks.items()
    }


def _table(
    names: Sequence[str], rows: Sequence[Sequence[object]], types: Sequence[pa.DataType]
) -> pa.Table:
    """Return rows as a table; there is at least one."""
    columns = zip(*rows, strict=True)
    return pa.table(
        {name: pa.array(one, kind) for name, one, kind in zip(names, columns, types, strict=True)}
    )


def _events(trace: DataFrame, breaks: Mapping[Subscriber, Sequence[Break]]) -> dict[Place, str]:
    """Fetch the events of both deliveries of each break."""
    places = sorted(
        {
            (one.run, one.node, one.subscription, step)
            for one, found in breaks.items()
            for two in found
            for step in two[:2]
        }
    )
    if not places:
        return {}
    names = ("run", "node", "subscription", "step")
    types = (pa.string(), pa.string(), pa.string(), pa.int64())
    wanted = trace.sparkSession.createDataFrame(_table(names, places, types))
    rows = (
        trace.where("action = 'delivered'")
        .withColumn("subscription", f.coalesce("subscription", f.lit("")))
        .join(f.broadcast(wanted), list(names))
        .select(*names, "event")
    )
    return {(row[0], row[1], row[2], row[3]): row[4] for row in rows.collect()}
