"""`pipeline`: a recorded run, complete or still growing, as a lake's tables.

Five streaming queries, each with its own checkpoint:

    event log ─┬─ events ─── gaps
               └─ ordered
    trace ───── trace ────── audit (deliveries, violations, verdicts, metrics)

`events`, `ordered` and `trace` end in Spark's Parquet sink, which commits every batch once. `gaps`
and `audit` read tables of the lake: a batch notifies them of new rows, and they rebuild from the
tables all that depends on these (see `lake.runs` and `lake.versioned_tables`). So any process may
be killed at any time: after a restart each query resumes, and no row is lost or repeated.

With `once=True` the queries run one after another, read all available input and end. Otherwise all
run in parallel and poll for input every `every_s` seconds; each starts when the previous one has
started.

A stage without input is skipped, and a stage that fails is reported; the others continue. Events
without a common order (topics that no client subscribed to together, events without a stamp) make
`ordered` fail. Order begins at the first common cut of the topics (see `common_cuts`), which is
determined once and saved: earlier events are in `ordered` without a position, with the verdict
`before_cut`. A continuous pipeline waits for the first cut.

HAZARD: the first cut is that of the log at that time. If only one topic has events by then, order
seems to have begun; if events of others follow before a client subscribes to them together,
`ordered` fails with POSITION_CONFLICT, and a new lake is needed.

HAZARD: a new file of the trace must be complete when it gets its name, as those of every run are.
It must not be changed or removed afterwards.

HAZARD: `gaps` sorts the log again whenever it grew while not all of it is in order.
"""

import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery

from ensue.checkers import Verdict, rules_of
from ensue.core import trace
from ensue.core.errors import BadInput, EnsueError, UnsupportedOrder
from ensue.spark.common_cuts import common_cut_of_log
from ensue.spark.failures import log_failures, sentence
from ensue.spark.hold_back import Limits
from ensue.spark.jvm_watch import raising_spark_gone
from ensue.spark.lake.files import held_by_java
from ensue.spark.lake.inputs import Inputs, find_inputs
from ensue.spark.lake.lake import Choices, Lake
from ensue.spark.lake.runs import RunVerdict, write_run_tables
from ensue.spark.lake.stage_start import ATTEMPTS_MAX, Starts, worker_missing
from ensue.spark.lake.tables import TABLES, arrow_schema
from ensue.spark.lake.versioned_tables import ALL, key_of
from ensue.spark.order_gaps import gaps
from ensue.spark.order_rules import rule_named
from ensue.spark.total_order import order as put_in_order
from ensue.spark.traces import find_damage, is_local
from ensue.store import open_log

__all__ = ["Outcome", "check", "cut_text", "pipeline"]

DEFAULT_ORDER = "total"
"""The order of a lake whose source names none yet."""
NO_GAPS = "positions of this order count events, so that they have no gaps"
OFFSETS_PER_BATCH = 1_000_000
"""Most events of a micro-batch, so that a long log does not have to fit in memory."""
FILE_AGE_MAX = "36500d"
"""By default Spark ignores files that are a week older than the newest one."""
POLL_S = 0.2

Progress = Callable[[str], None]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of a lake when its pipeline ends."""

    lake: str
    order: str
    topics: list[str] | None
    cut: dict[str, int] | None
    """The offset of each topic where order begins; None if none was found, or in a lake of format
    1, where order begins at the first offset."""
    before_cut: int
    """Events before the cut, which have no common order."""
    tables: dict[str, int]
    """Rows of each table."""
    verdicts: list[RunVerdict]
    left_out: dict[str, str]
    """Stages without input, and why."""
    failed: dict[str, str]
    """Stages that failed, and why."""

    @property
    def verdict(self) -> Verdict | None:
        """The worst verdict on any run; None without a trace.

        Unknown if a stage has failed, or if the trace has no rows.
        """
        found = [one.verdict for one in self.verdicts]
        if self.failed or not (found or "audit" in self.left_out):
            found.append(Verdict.UNKNOWN)
        return Verdict.worst(found) if found else None

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, ready for JSON."""
        verdict = None if self.verdict is None else str(self.verdict)
        plain: dict[str, Any] = {"verdict": verdict, **msgspec.to_builtins(self)}
        return plain


def pipeline(
    spark: SparkSession,
    source: str | Path,
    lake: str | Path,
    *,
    order: str | None = None,
    topics: Iterable[str] | None = None,
    once: bool = False,
    every_s: float = 30.0,
    progress: Progress = lambda _: None,
    stop: threading.Event | None = None,
) -> Outcome:
    """Turn a recorded run, or only a trace or an event log, into a lake's tables.

    `source` may be a run that is still growing. Runs are judged by `order`; None: by the one that
    the lake has or the source names, and by total if it names none yet. `topics` are put in one
    order; they default to all topics of the log when the first event is ordered. The lake saves
    both, and raises `BadInput` if they change.

    With `once` it reads all available input and returns. Otherwise it polls every `every_s` seconds
    until `stop` is set, and ends each query after its current batch. `progress` is called with one
    line for each batch.
    """
    if every_s <= 0:
        raise BadInput(f"every_s must be above 0, got {every_s}")
    inputs, place, wanted = check(source, lake, order=order, topics=topics, once=once)
    inputs.check(spark)
    lock = place.root / "_lock_java"
    with raising_spark_gone(spark), place.opened(wanted) as choices, held_by_java(spark, lock):
        place.sweep()
        running = _Pipeline(spark, inputs, place, choices, progress, once=once, every_s=every_s)
        with _hushed(spark):
            try:
                running.run(stop or threading.Event())
            finally:
                running.end()
        place.sweep()
        return running.outcome()


def check(
    source: str | Path,
    lake: str | Path,
    *,
    order: str | None = None,
    topics: Iterable[str] | None = None,
    once: bool = False,
) -> tuple[Inputs, Lake, Choices]:
    """Raise an error if a pipeline can't start or resume. This needs no Spark."""
    chosen = _chosen(topics)
    inputs = find_inputs(source)
    place = Lake(lake)
    inputs.check_lake(place.root)
    inputs.check_trace()
    order = order or place.order or inputs.order() or DEFAULT_ORDER
    rules_of(order)
    wanted = Choices(source=inputs.source, order=order, topics=chosen)
    place.check(wanted)
    # Reports a server that does not answer.
    known = {} if inputs.log is None else open_log(inputs.log).bounds()
    if once and chosen is not None and inputs.log is not None:
        unknown = [topic for topic in chosen if topic not in known]
        if unknown:
            raise BadInput(
                f"{inputs.log} has no topics {', '.join(unknown)}; it has "
                f"{', '.join(sorted(known)) or 'none yet'}"
            )
    return inputs, place, wanted


@contextmanager
def _hushed(spark: SparkSession) -> Iterator[None]:
    """Silence Spark's four stack traces per failed query: `progress` gets the reason."""
    log_failures(spark, written=False)
    try:
        yield
    finally:
        log_failures(spark, written=True)


def _chosen(topics: Iterable[str] | None) -> list[str] | None:
    if isinstance(topics, str):
        raise BadInput(f"topics is the text {topics!r}: give a list of topics, [{topics!r}]")
    if topics is None:
        return None
    chosen = sorted(set(topics))
    if not chosen or "" in chosen:
        raise BadInput("topics: name at least one, and no empty one")
    return chosen


class _Pipeline:
    """The queries of a running pipeline."""

    def __init__(
        self,
        spark: SparkSession,
        inputs: Inputs,
        lake: Lake,
        choices: Choices,
        progress: Progress,
        *,
        once: bool,
        every_s: float,
    ) -> None:
        self._spark = spark
        self._inputs = inputs
        self._lake = lake
        self._choices = choices
        self._once = once
        self._trigger: Mapping[str, Any] = {"availableNow": True}
        if not once:
            self._trigger = {"processingTime": f"{every_s} seconds"}
        self._every_s = every_s
        self._next_search_s = 0.0
        """When to search for a common cut again."""
        self._progress = progress
        self._left_out: dict[str, str] = {}
        self._failed: dict[str, str] = {}
        self._running: dict[str, StreamingQuery] = {}
        self._reported: dict[str, int] = {}
        """The last reported batch of each query."""
        self._starts = Starts()
        self._stages = self._planned()
        self._waiting = list(self._stages)

    def _planned(self) -> dict[str, Callable[[], StreamingQuery]]:
        """Return the start functions of all stages that have input."""
        stages: dict[str, Callable[[], StreamingQuery]] = {}
        if self._inputs.log is not None:
            stages["events"] = self._start_events
            try:
                rule = rule_named(self._choices.order)  # Raises for an order that has none.
                rule.hold_back({}, Limits(held_max=1))  # Raises for one without streams.
            except UnsupportedOrder as error:
                self._leave_out(str(error), "ordered", "gaps")
            else:
                stages["ordered"] = self._start_ordered
                if rule.begins_at_cut:
                    stages["gaps"] = self._start_gaps
                else:
                    self._leave_out(NO_GAPS, "gaps")
        else:
            self._leave_out(self._inputs.no_log, "events", "ordered", "gaps")
        if self._inputs.trace is not None:
            stages |= {"trace": self._start_trace, "audit": self._start_audit}
        else:
            self._leave_out(self._inputs.no_trace, "trace", "audit")
        return stages

    def _leave_out(self, why: str, *stages: str) -> None:
        self._left_out.update(dict.fromkeys(stages, why))
        self._progress(f"left out: {', '.join(stages)}: {why}")

    def run(self, stop: threading.Event) -> None:
        """Run all stages until they end, or until `stop` is set."""
        while not stop.is_set():
            for stage in list(self._waiting):
                if self._may_start(stage) and self._ready(stage):
                    self._waiting.remove(stage)
                    self._start(stage)
            self._poll()
            if not self._running and not any(self._ready(name) for name in self._waiting):
                break
            stop.wait(POLL_S)
        if "ordered" in self._waiting and self._choices.topics is None:
            self._leave_out("the log has no topics yet", "ordered", "gaps")
        if stop.is_set():
            self._wind_down()

    def _may_start(self, stage: str) -> bool:
        """Return whether it is the turn of a stage, and its pause has ended."""
        if self._once and self._running:
            return False
        coming_up = {name for name, query in self._running.items() if _is_coming_up(query)}
        return self._starts.may_start(stage, coming_up, time.monotonic())

    def _ready(self, stage: str) -> bool:
        """Return whether the input of a stage exists."""
        if stage in ("ordered", "gaps") and self._choices.topics is None:
            assert self._inputs.log is not None
            found = sorted(open_log(self._inputs.log).bounds())
            if not found:
                return False
            self._choose(topics=found)
        if stage in ("ordered", "gaps") and not self._has_cut():
            return False
        table = {"gaps": "events", "audit": "trace"}.get(stage)
        if table is None:
            return True
        before = ("ordered", "events") if stage == "gaps" else ("trace",)
        if self._once and any(each in self._waiting or each in self._running for each in before):
            return False
        # Before its first batch Spark does not know that a stream writes the table.
        return self._lake.has_begun(table)

    def _choose(self, **changes: Any) -> None:
        self._choices = msgspec.structs.replace(self._choices, **changes)
        self._lake.choose(self._choices)

    def _has_cut(self) -> bool:
        """Search for the topics' first common cut; return whether their order may begin.

        It may begin without a cut if it has begun already, or with `once`: events without a common
        order then fail the stage.
        """
        topics, log = self._choices.topics, self._inputs.log
        assert topics is not None
        assert log is not None
        if self._choices.cut is not None or self._lake.has_begun("ordered"):
            return True
        if not rule_named(self._choices.order).begins_at_cut:
            bounds = open_log(log).bounds()
            firsts = {each: bounds[each].first if each in bounds else 0 for each in topics}
            self._choose(cut=firsts)
            return True
        if time.monotonic() < self._next_search_s:
            return self._once
        self._next_search_s = time.monotonic() + self._every_s
        found = common_cut_of_log(open_log(log), topics)
        if found is not None:
            self._lake.begin_again("ordered", "gaps")
            self._choose(cut=found)
            if any(found.values()):
                self._progress(f"ordered: begins at the first common cut: {cut_text(found)}")
        elif not self._once:
            self._progress("ordered: the topics have no common order yet: waits for it")
        return found is not None or self._once

    def _before_cut(self) -> int:
        """Count the events of the lake that have no common order."""
        ordered = self._lake.read(self._spark, "ordered")
        return ordered.where("position is null").count()

    def _start(self, stage: str) -> None:
        self._starts.started(stage, time.monotonic())
        try:
            self._running[stage] = self._stages[stage]()
        except EnsueError as error:
            self._fail(stage, str(error))

    def _fail(self, stage: str, why: str) -> None:
        self._failed[stage] = why
        self._progress(f"{stage} failed: {why}")

    def _poll(self) -> None:
        """Report new batches of all queries, and queries that ended."""
        for stage, query in list(self._running.items()):
            active = query.isActive
            for batch in query.recentProgress:
                if batch["batchId"] > self._reported.get(stage, -1):
                    self._reported[stage] = batch["batchId"]
                    self._starts.worked(stage)
                    if stage in ("events", "ordered", "trace") and batch["numInputRows"]:
                        rows = f"{batch['numInputRows']:,} rows"
                        self._progress(f"{stage}: batch {batch['batchId']}: {rows}")
            if not active:
                del self._running[stage]
                error = str(query.exception() or "")
                if worker_missing(error):
                    pause_s = self._starts.failed(stage, time.monotonic())
                    self._progress(
                        f"{stage}: Spark's Python process did not start in time; retry in "
                        f"{pause_s:g} s, up to {ATTEMPTS_MAX} times in a row"
                    )
                    self._waiting.append(stage)
                elif error:
                    damage = find_damage(self._reads(stage))
                    self._fail(stage, _why(error) if damage is None else str(damage))

    def _reads(self, stage: str) -> Iterator[Path]:
        """Yield the Parquet files that a stage reads."""
        found = self._inputs.trace
        if stage == "trace" and found is not None and is_local(found):
            yield from trace.files(Path(found))
        for table in {"gaps": ("events", "ordered"), "audit": ("trace",)}.get(stage, ()):
            yield from self._lake.files(table)

    def _wind_down(self) -> None:
        """Let every query finish its current batch."""
        # After all finished batches are reported, the current batch of each query is known.
        self._poll()
        at = dict(self._reported)
        while self._running:
            for stage, query in list(self._running.items()):
                if not query.status["isTriggerActive"] or self._reported.get(stage) != at.get(
                    stage
                ):
                    query.stop()
            self._poll()
            threading.Event().wait(POLL_S)

    def end(self) -> None:
        """Stop all queries at once."""
        for query in self._running.values():
            query.stop()

    def outcome(self) -> Outcome:
        """Return the contents of the lake."""
        rows = self._lake.read(self._spark, "verdicts").orderBy("run").toArrow().to_pylist()
        return Outcome(
            lake=str(self._lake.root),
            order=self._choices.order,
            topics=self._choices.topics,
            cut=self._choices.cut,
            before_cut=self._before_cut(),
            tables={table: self._lake.count(self._spark, table) for table in TABLES},
            verdicts=msgspec.convert(rows, list[RunVerdict]),
            left_out=self._left_out,
            failed=self._failed,
        )

    def _log(self, topics: list[str] | None = None) -> DataFrame:
        source = self._spark.readStream.format("ensue")
        source = source.option("maxOffsetsPerTrigger", OFFSETS_PER_BATCH)
        if topics is not None:
            # As a pattern, because a topic may have a comma in its name.
            source = source.option("subscribePattern", "|".join(map(re.escape, topics)))
        return source.load(self._inputs.log)

    def _files(self, table: str, place: str) -> DataFrame:
        return (
            self._spark.readStream.schema(from_arrow_schema(arrow_schema(table)))
            .option("recursiveFileLookup", "true")
            .option("maxFileAge", FILE_AGE_MAX)
            .parquet(place)
        )

    def _table(self, name: str) -> DataFrame:
        """Return a stream of a table of the lake."""
        return self._files(name, str(self._lake.root / name))

    def _append(self, frame: DataFrame, table: str) -> StreamingQuery:
        columns = frame.select(*TABLES[table].columns)
        writer = columns.writeStream.format("parquet").trigger(**self._trigger)
        writer = writer.option("checkpointLocation", self._lake.checkpoint(table))
        return writer.queryName(f"ensue {table}").start(str(self._lake.root / table))

    def _each(
        self, frame: DataFrame, stage: str, make: Callable[[DataFrame, int], None]
    ) -> StreamingQuery:
        writer = frame.writeStream.foreachBatch(make).trigger(**self._trigger)
        writer = writer.option("checkpointLocation", self._lake.checkpoint(stage))
        return writer.queryName(f"ensue {stage}").start()

    def _start_events(self) -> StreamingQuery:
        return self._append(self._log(), "events")

    def _start_ordered(self) -> StreamingQuery:
        topics = self._choices.topics
        assert topics is not None
        cut = self._choices.cut or dict.fromkeys(topics, 0)
        ordered = put_in_order(
            self._log(topics), cut, by=self._choices.order, voids=True, before_cut=True
        )
        return self._append(ordered, "ordered")

    def _start_trace(self) -> StreamingQuery:
        assert self._inputs.trace is not None
        return self._append(self._files("trace", self._inputs.trace), "trace")

    def _start_gaps(self) -> StreamingQuery:
        def make(batch: DataFrame, number: int) -> None:
            del batch
            found = self._gaps()
            with self._lake.of_log.replacing([ALL]) as draft:
                draft.write("gaps", found)
            self._progress(f"gaps: batch {number}: {found.num_rows:,} rows")

        return self._each(self._table("events").select("topic"), "gaps", make)

    def _gaps(self) -> Any:
        topics = self._choices.topics
        assert topics is not None
        events = self._lake.read(self._spark, "events").where(f.col("topic").isin(topics))
        known = self._lake.read(self._spark, "ordered").agg(
            f.count("*").alias("rows"),
            f.count("position").alias("count"),
            f.max("position").alias("last"),
        )
        left = known.first()
        assert left is not None
        schema = arrow_schema("gaps")
        # The hold-back queue releases each position once.
        if left["count"] == (left["last"] or 0) and left["rows"] == events.count():
            return schema.empty_table()
        cut = self._choices.cut or dict.fromkeys(topics, 0)
        wrong = gaps(put_in_order(events, cut, by=self._choices.order, voids=True))
        return wrong.orderBy("first").toArrow().cast(schema)

    def _start_audit(self) -> StreamingQuery:
        def make(batch: DataFrame, number: int) -> None:
            runs = sorted(row["run"] for row in batch.distinct().collect())
            trace = self._lake.read(self._spark, "trace")
            with self._lake.of_trace.replacing([key_of(run) for run in runs]) as draft:
                found = write_run_tables(trace, runs, self._choices.order, draft)
            shown = ", ".join(f"{one.run} {one.verdict}" for one in found[:3])
            more = f" and {len(found) - 3:,} more" if len(found) > 3 else ""
            self._progress(f"audit: batch {number}: {shown}{more}")

        return self._each(self._table("trace").select("run"), "audit", make)


def _why(error: str) -> str:
    """Return the reason of a failed stage, and whether a new lake is needed."""
    advice = "; a lake keeps its cut: if the topics were joined later, name a new lake"
    return sentence(error) + advice * ("[POSITION_CONFLICT]" in error)


def cut_text(cut: Mapping[str, int]) -> str:
    """Return a text of the offsets where the order of topics begins."""
    return ", ".join(f"{topic} at offset {cut[topic]:,}" for topic in sorted(cut) if cut[topic])


def _is_coming_up(query: StreamingQuery) -> bool:
    """Return whether a query is still starting: no batch and no empty poll yet."""
    if not query.isActive or query.lastProgress is not None:
        return False
    status = query.status
    return bool(status["isTriggerActive"]) or status["message"].startswith("Initializing")
