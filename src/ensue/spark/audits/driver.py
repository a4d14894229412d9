"""`ensue.spark.audit`: collect, scan, judge. The package describes the method."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from ensue.checkers import promise_of, rules_of, sum_up
from ensue.checkers.completeness import Terms
from ensue.checkers.history import Excerpt
from ensue.checkers.positions import RULE as POSITIONS
from ensue.checkers.verdict import Collector
from ensue.core.errors import BadInput
from ensue.spark.audits import collector as g
from ensue.spark.audits import delivery_scan
from ensue.spark.audits import judge as verdicts
from ensue.spark.audits.data_frames import pack_frame
from ensue.spark.audits.deadline import judge_deadlines
from ensue.spark.audits.ended_subscriptions import excerpt, with_furthest
from ensue.spark.audits.facts import SEQ_BITS, SEQ_MAX, Facts
from ensue.spark.audits.latency import judge_times
from ensue.spark.audits.positions import judge_positions
from ensue.spark.audits.redelivery import judge_redelivery
from ensue.spark.audits.result import Audit, Totals
from ensue.spark.audits.tile_scan import FOUND, Found, read_found, scan_group
from ensue.spark.audits.topic_causality import RULE, judge_topics
from ensue.spark.audits.trace_files import Piece, pack_files, pieces
from ensue.spark.audits.transactions import audit_transactions
from ensue.spark.sessions import session
from ensue.spark.traces import check_trace, is_local, order_of_trace, read_trace

__all__ = ["audit"]

Judge = Callable[[Any, Any], None]
"""Judges a `History`, into a `Collector`."""

ATTEMPTS_MAX = 8
"""One sorts the trace, others make units four times as large, the last makes each run one unit."""
OUTLIERS_SHARE = 0.01
OUTLIERS_MIN = 1_000
"""Units are too small if more outliers than both this share of deliveries and this number."""
PARTITIONS_MAX = 256

_DOUBTS: dict[str, pa.DataType] = {
    "run": pa.string(),
    "tile": pa.int64(),
    "event": pa.string(),
    "name": pa.int64(),
}


def audit(
    trace: DataFrame | str | Path,
    order: str | None = "total",
    *,
    causal: bool | None = None,
    lossy: bool = False,
    settle_ns: int | None = None,
    clock_error_ns: int = 0,
    within_ns: int | None = None,
    violations_max: int = 1_000,
    sizes: g.Sizes | None = None,
) -> Audit:
    """Judge a trace by the promised order; None: by the one that its rows name.

    `trace` is a directory, which is fastest, or a data frame of `read_trace`. The other arguments
    are those of `ensue.checkers.check`. At most `violations_max` violations of each rule are
    reported per tile. `sizes` controls how a trace is divided.
    """
    if order is None:
        order = order_of_trace(trace)
    promise = promise_of(order)
    rules = rules_of(order, causal=causal, lossy=lossy)
    if violations_max < 1:
        raise BadInput(f"violations_max is {violations_max}; expected at least 1")
    terms = Terms(
        settle_ns=settle_ns, clock_error_ns=clock_error_ns, lossy=lossy, gaps=promise.owes_gaps
    )
    sizes = sizes or g.Sizes()
    found: list[Piece] = []
    if isinstance(trace, DataFrame):
        check_trace(trace)
        frame = trace
    else:
        frame = read_trace(session(), trace)
        if is_local(trace):
            found = pieces(Path(trace), sizes.fragment_rows)
    if promise.check is not None:  # Rows of another kind: those of transactions.
        return audit_transactions(frame, violations_max=violations_max)
    own = {rule: promise.judges[rule] for rule in rules if rule in promise.judges}
    auditor = _Auditor(frame, found, order, rules, own, terms, violations_max, sizes)
    return auditor.audit(within_ns)


class _Auditor:
    def __init__(
        self,
        trace: DataFrame,
        pieces: list[Piece],
        order: str,
        rules: list[str],
        own: Mapping[str, Judge],
        terms: Terms,
        violations_max: int,
        sizes: g.Sizes,
    ) -> None:
        self._trace = trace
        self._pieces = pieces
        self._order = order
        self._promised = rules
        self._own = own
        """Rules that the checkers lack, judged run by run."""
        self._rules = [rule for rule in rules if rule not in (RULE, POSITIONS, *own)]
        """Rules that are judged tile by tile."""
        self._terms = terms
        self._violations_max = violations_max
        self._sizes = sizes
        self._spark = trace.sparkSession
        self._sorted = False
        self._gathered: g.Gathered
        self._stray_counts: dict[str, int] = {}
        """By run: number of deliveries without a code."""
        self._many_strays = False
        """Whether fragments reported only some of them."""

    def audit(self, within_ns: int | None) -> Audit:
        """Judge by all rules.

        If `within_ns` is given, slower deliveries are violations too.
        """
        found = self._scan_until_clear()
        names = [run.name for run in self._gathered.facts.runs]
        doubts, malformed = self._doubts(found, names)
        whole, excerpts, unknown = self._split(found, doubts, malformed, names)
        judged = pa.concat_tables(
            [self._judge_whole(whole), self._judge_excerpts(excerpts, doubts)]
        )
        if RULE in self._promised:
            judged = pa.concat_tables([judged, self._judge_topics(judged, malformed)])
        unreadable_rows = _reasons(judged)
        unknown |= {row["run"]: row["because"] for row in unreadable_rows}
        unreadable = malformed | {row["run"] for row in unreadable_rows}
        judged = pa.concat_tables(
            [
                judged,
                self._judge_positions(found, unreadable),
                self._judge_redelivery(unreadable),
                *self._judge_times(unreadable, within_ns),
                self._judge_own(unreadable),
            ]
        )
        totals, silent = self._totals(found, names, unreadable)
        reasons = [unknown[run] for run in sorted(unknown)]
        reasons += [f"run {run} has no deliveries" for run in silent]
        if not totals.runs:
            reasons.append("the trace is empty")
        rules = list(self._promised)
        if within_ns is not None:
            rules.insert(-1, "timely")
        return Audit(
            self._spark,
            order=self._order,
            rules=rules,
            totals=totals,
            judged=judged,
            reasons=reasons,
            notes=self._notes(found, names, whole | unreadable, judged),
        )

    def _judge_positions(self, found: Found, unreadable: set[str]) -> pa.Table:
        if POSITIONS not in self._promised:
            return verdicts.JUDGED_ARROW.empty_table()
        return judge_positions(
            self._trace,
            found,
            self._gathered,
            unreadable,
            violations_max=self._violations_max,
        )

    def _judge_redelivery(self, unreadable: set[str]) -> pa.Table:
        if POSITIONS not in self._promised:
            return verdicts.JUDGED_ARROW.empty_table()
        return judge_redelivery(
            self._readable(unreadable),
            {run.name: run.simulated for run in self._gathered.facts.runs},
            clock_error_ns=self._terms.clock_error_ns,
            violations_max=self._violations_max,
        )

    def _readable(self, unreadable: set[str]) -> DataFrame:
        if not unreadable:
            return self._trace
        return self._trace.where(~f.col("run").isin(*unreadable))

    def _judge_own(self, unreadable: set[str]) -> pa.Table:
        """Judge by the rules that the checkers lack, with one task for each run."""
        if not self._own:
            return verdicts.JUDGED_ARROW.empty_table()
        judge = partial(
            verdicts.judge_own, rules=dict(self._own), violations_max=self._violations_max
        )
        rows = self._readable(unreadable).select(*verdicts.ROW_COLUMNS)
        return rows.groupBy("run").applyInArrow(_of_table(judge), verdicts.JUDGED).toArrow()

    def _judge_times(self, unreadable: set[str], within_ns: int | None) -> Iterator[pa.Table]:
        """Judge by the rules about times; skip unreadable runs."""
        limits = {
            "clock_error_ns": self._terms.clock_error_ns,
            "violations_max": self._violations_max,
        }
        readable = self._readable(unreadable)
        if "deadline" in self._promised:
            yield judge_deadlines(readable, **limits)
        if within_ns is not None:
            simulated = {run.name: run.simulated for run in self._gathered.facts.runs}
            yield judge_times(readable, simulated, within_ns=within_ns, **limits)

    def _scan_until_clear(self) -> Found:
        """Scan all deliveries; repeat with larger units or sorted rows if needed."""
        coarser: dict[str, int] = {}
        for attempt in range(ATTEMPTS_MAX):
            self._gathered = with_furthest(
                self._trace,
                g.gather(self._trace, self._sizes, coarser, causal="causal" in self._rules),
                self._terms,
            )
            facts = self._gathered.facts
            found = self._scan(facts, delivery_scan.Reach())
            if found.overlapping and not self._sorted:
                self._sorted = True
                continue
            torn = {run for run in found.torn if facts.runs[run].unit_count > 1}
            for run, (codes, _, _) in found.outliers.items():
                bearable = max(OUTLIERS_MIN, OUTLIERS_SHARE * found.totals[run]["deliveries"])
                if len(codes) > bearable:
                    torn.add(run)
            if not torn:
                break
            for run in torn:
                name = facts.runs[run].name
                last = attempt == ATTEMPTS_MAX - 2
                coarser[name] = sys.maxsize if last else coarser.get(name, 1) * 4
        if found.outliers:
            found = self._scan(facts, _reach(found.outliers.values()))
        return found

    def _scan(self, facts: Facts, reach: delivery_scan.Reach) -> Found:
        if self._pieces and not self._sorted and not self._gathered.named:
            packed = pack_files(self._spark, self._pieces, self._gathered, reach)
        else:
            packed = pack_frame(self._trace, self._gathered, reach, sort=self._sorted)
        # One tile per task, but small runs share a task.
        tiles = sum(run.unit_count // facts.tile_units for run in facts.runs)
        partitions = min(PARTITIONS_MAX, max(4, tiles))
        rules = frozenset(self._rules)
        scan = partial(scan_group, facts=facts, terms=self._terms, rules=rules)
        by_tile = packed.repartition(partitions, "key").groupBy("key")
        return read_found(by_tile.applyInArrow(_of_table(scan), FOUND).toArrow())

    def _doubts(self, found: Found, names: list[str]) -> tuple[list[dict[str, Any]], set[str]]:
        """Return doubtful events as (run, tile, event or name), and malformed runs."""
        malformed = {names[run] for run in self._gathered.malformed | set(found.repeated_steps)}
        rows: list[dict[str, Any]] = []
        for (run, tile), codes in found.doubts.items():
            base = {"run": names[run], "tile": tile}
            if self._gathered.named:
                hashes = found.names[run, tile].tolist()
                rows += [{**base, "name": name} for name in hashes]
            else:
                rows += [{**base, "event": event} for event in self._events(codes)]
        unclear = (*self._gathered.voids, *self._gathered.relabeled)
        for row in [*self._strays(found), *unclear]:
            if row["event"] is None or row["unlabelled"]:
                malformed.add(row["run"])
            elif self._gathered.named:
                rows.append({"run": row["run"], "tile": -1, "name": row["name"]})
            else:
                rows.append({"run": row["run"], "tile": -1, "event": row["event"]})
        return rows, malformed

    def _events(self, codes: "np.ndarray[Any, np.dtype[np.int64]]") -> Iterator[str]:
        lanes = self._gathered.facts.lanes
        for code in codes.tolist():
            lane = code >> SEQ_BITS
            yield f"{lanes.publishers[lane]}/{lanes.topic_names[lane]}/{code & SEQ_MAX}"

    def _strays(self, found: Found) -> list[dict[str, Any]]:
        """Look up deliveries without a code, and count them."""
        rows: list[dict[str, Any]] = [
            {"run": run, "event": event, "unlabelled": unlabelled, "count": 1}
            for run, event, unlabelled in found.named_strays
        ]
        if found.strays:
            rows += self._looked_up(found.strays)
        self._many_strays = found.stray_count > len(found.named_strays) + len(found.strays)
        if self._many_strays:
            self._stray_counts = self._count_strays(found)
        else:
            for row in rows:
                known = self._stray_counts.get(row["run"], 0)
                self._stray_counts[row["run"]] = known + row["count"]
        return rows

    def _count_strays(self, found: Found) -> dict[str, int]:
        """Count by run all deliveries that were not packed."""
        delivered = self._trace.where(f.col("action") == "delivered")
        packed = {
            run.name: found.totals.get(index, {}).get("deliveries", 0)
            for index, run in enumerate(self._gathered.facts.runs)
        }
        counts = delivered.groupBy("run").count().toArrow().to_pylist()
        return {row["run"]: row["count"] - packed.get(row["run"], 0) for row in counts}

    def _looked_up(self, strays: list[tuple[int, int]]) -> list[dict[str, Any]]:
        owners, steps = zip(*dict.fromkeys(strays), strict=True)
        wanted = self._spark.createDataFrame(
            pa.table({"owner": pa.array(owners, pa.int64()), "step": pa.array(steps, pa.int64())})
        )
        label = ("topic", "publisher", "publisher_seq")
        unlabelled = f.greatest(*(f.col(name).isNull() for name in label)).alias("unlabelled")
        delivered = self._trace.where(f.col("action") == "delivered")
        table = (
            delivered.withColumn("owner", g.subscriber_hash())
            .join(f.broadcast(wanted), ["owner", "step"])
            .groupBy("run", "event", g.name_hash().alias("name"), unlabelled)
            .count()
            .toArrow()
        )
        found: list[dict[str, Any]] = table.to_pylist()
        return found

    def _split(
        self, found: Found, doubts: list[dict[str, Any]], malformed: set[str], names: list[str]
    ) -> tuple[set[str], set[str], dict[str, str]]:
        """Return the runs to judge whole, by excerpts, and not at all (with reasons)."""
        index = {name: number for number, name in enumerate(names)}
        whole: set[str] = set()
        excerpts: set[str] = set()
        unknown: dict[str, str] = {}
        for name in sorted({row["run"] for row in doubts} | malformed):
            number = index.get(name)
            size = self._stray_counts.get(name, 0)
            if number is not None:
                size += self._gathered.rows[number]
                size += found.totals.get(number, {}).get("deliveries", 0)
            if size <= self._sizes.whole_rows:
                whole.add(name)
            elif name in malformed:
                unknown[name] = f"run {name} is malformed: {self._problem(found, number)}"
            else:
                excerpts.add(name)
        return whole, excerpts, unknown

    def _problem(self, found: Found, run: int | None) -> str:
        """Return why a run is malformed."""
        if run in found.repeated_steps:
            owner, step = found.repeated_steps[run]
            subscriber = self._gathered.subscribers.get(owner)
            node = "a node" if subscriber is None else f"node {subscriber.node}"
            return f"{node} has two rows with step {step}"
        return "rows lack what their action needs, have an unknown one, or give two events one id"

    def _judge_whole(self, runs: set[str]) -> pa.Table:
        judge = partial(
            verdicts.judge_whole,
            rules=self._rules,
            terms=self._terms,
            violations_max=self._violations_max,
        )
        if not runs:
            return verdicts.JUDGED_ARROW.empty_table()
        wanted = self._spark.createDataFrame(pa.table({"run": sorted(runs)}))
        rows = self._trace.join(f.broadcast(wanted), "run").select(*verdicts.ROW_COLUMNS)
        return rows.groupBy("run").applyInArrow(_of_table(judge), verdicts.JUDGED).toArrow()

    def _judge_excerpts(self, runs: set[str], doubts: list[dict[str, Any]]) -> pa.Table:
        if not runs:
            return verdicts.JUDGED_ARROW.empty_table()
        gathered = self._gathered
        # The collector has no facts of runs that have only deliveries.
        excerpts = dict.fromkeys(runs, Excerpt(simulated=True, furthest={}))
        for run in gathered.facts.runs:
            if run.name in runs:
                excerpts[run.name] = excerpt(gathered, run)
        judge = partial(
            verdicts.judge_excerpt,
            changes={run: gathered.changes.get(run, []) for run in runs},
            excerpts=excerpts,
            rules=self._rules,
            terms=self._terms,
            violations_max=self._violations_max,
        )
        by = "name" if gathered.named else "event"
        wanted = self._spark.createDataFrame(
            pa.Table.from_pylist(doubts, schema=pa.schema(_DOUBTS)).select(["run", "tile", by])
        )
        named = self._trace.withColumn("name", g.name_hash())
        rows = (
            named.where(f.col("action").isin(*g.PUBLICATIONS, "delivered", "discarded"))
            .join(f.broadcast(wanted), ["run", by])
            .where(f.col("run").isin(*runs))
            .select("tile", *verdicts.ROW_COLUMNS)
        )
        judged = rows.groupBy("run", "tile").applyInArrow(_of_table(judge), verdicts.JUDGED)
        return judged.toArrow()

    def _judge_topics(self, judged: pa.Table, malformed: set[str]) -> pa.Table:
        unreadable = malformed | {row["run"] for row in _reasons(judged)}
        changes = self._gathered.changes
        return judge_topics(self._trace, changes, unreadable, violations_max=self._violations_max)

    def _totals(
        self, found: Found, names: list[str], unreadable: set[str]
    ) -> tuple[Totals, list[str]]:
        """Return the totals of the audit, and the runs without deliveries."""
        spans = {run.name: len(run.spans) for run in self._gathered.facts.runs}
        known = {name: found.totals.get(index, {}) for index, name in enumerate(names)}
        # Subscribers that delivered only strays are in no tile; so are runs with only strays.
        stray = self._count_subscribers(self._stray_counts.keys() - unreadable)
        events = deliveries = subscribers = 0
        silent = []
        for name in (*names, *sorted(stray.keys() - set(names))):
            if name in unreadable:
                continue
            totals = known.get(name, {})
            events += totals.get("events", 0)
            delivered = totals.get("deliveries", 0) + self._stray_counts.get(name, 0)
            deliveries += delivered
            counted = totals.get("uninvited", 0) + spans.get(name, 0)
            subscribers += stray.get(name, counted)
            if not delivered:
                silent.append(name)
        count = len({*names, *unreadable, *stray})
        return (
            Totals(runs=count, events=events, deliveries=deliveries, subscribers=subscribers),
            silent,
        )

    def _count_subscribers(self, runs: Iterable[str]) -> dict[str, int]:
        """Count the subscribers of these runs, also those that never subscribed."""
        wanted = sorted(runs)
        if not wanted:
            return {}
        frame = self._spark.createDataFrame(pa.table({"run": wanted}))
        found = verdicts.subscribers_of(self._trace.join(f.broadcast(frame), "run"))
        return {run: len(ones) for run, ones in found.items()}

    def _notes(
        self, found: Found, names: list[str], counted: set[str], judged: pa.Table
    ) -> dict[str, list[str]]:
        """Return notes that count over all runs; runs judged whole have their own counts."""
        collector = Collector("complete", violations_max=1)
        for index, known in found.totals.items():
            if index < len(names) and names[index] not in counted:
                if self._terms.lossy:
                    collector.tally({"owed": known["owed"], "lost": known["lost"]})
                collector.tally({"in doubt": known["in_doubt"]})
        for row in judged.to_pylist():
            if row["what"] == "tally" and row["run"] in counted:
                collector.tally({row["anomaly"]: row["count"]})
        sum_up(collector)
        notes = {"complete": list(collector.finding().notes)}
        if self._many_strays:
            for rule in self._rules:
                notes.setdefault(rule, []).append(
                    "more deliveries than were checked are of events whose publisher never "
                    "published on their topic; there may be more violations"
                )
        for run in sorted(found.sampled):
            for rule in self._rules:
                notes.setdefault(rule, []).append(
                    f"run {names[run]} has more doubtful events than were checked; there may be "
                    "more violations"
                )
        return notes


def _reasons(judged: pa.Table) -> list[dict[str, Any]]:
    """Return the rows that explain why a run could not be judged."""
    return [row for row in judged.to_pylist() if row["what"] == "reason"]


def _of_table(function: Callable[[pa.Table], pa.Table]) -> Callable[[pa.Table], pa.Table]:
    """Return a function with one parameter: Spark inspects the signature."""

    def apply(table: pa.Table) -> pa.Table:
        return function(table)

    return apply


def _reach(outliers: Iterable[tuple[Any, Any, Any]]) -> delivery_scan.Reach:
    """Merge the tile ranges of each outlier, which may be one at several subscribers."""
    codes, first, last = (np.concatenate(each) for each in zip(*outliers, strict=True))
    order = np.argsort(codes, kind="stable")
    distinct, starts = np.unique(codes[order], return_index=True)
    return delivery_scan.Reach(
        codes=distinct,
        first_tiles=np.minimum.reduceat(first[order], starts),
        last_tiles=np.maximum.reduceat(last[order], starts),
    )
