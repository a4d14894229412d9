"""Merged order on Spark: row for row as live subscribers delivered, in batches and streams."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec import structs
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f
from tests.server.helpers import serving

import ensue
from ensue import spark as es
from ensue.checkers import Verdict, check
from ensue.core.errors import BadInput, ConfigurationError, LimitReached
from ensue.core.trace import write
from ensue.protocols.merged.config import MergedConfig
from ensue.simulation.run import Outcome, play
from ensue.simulation.scenario import (
    MergeSpec,
    PublisherSpec,
    Rate,
    Reply,
    Scenario,
    SubscriberSpec,
)
from ensue.simulation.world.clocks import ClockConfig
from ensue.simulation.world.delays import Uniform
from ensue.simulation.world.network import NetworkConfig
from ensue.spark import merge, merged_order, order_rules
from ensue.spark.merged_hold_back import MergeHoldBack, MergeLimits
from ensue.store import LogSink

MS = 1_000_000
TOPICS = ("orders", "payments", "ä")
SCHEMA = "event string, publisher string, stamp map<string,bigint>"


def simulated(seed: int, *, array: bool) -> Outcome:
    """Four publishers with different clocks, one that answers early, and two subscribers."""
    rate = Rate(topics=TOPICS[:2], per_second=60)
    names = [f"p{number}" for number in range(3)] + ["s", "t", "ö"]
    random = Random(seed)
    scenario = Scenario(
        name="merging",
        order="merged",
        duration_ns=700 * MS,
        settle_ns=5_000 * MS,
        publishers=tuple(PublisherSpec(name=name, rates=(rate,)) for name in names[:3]),
        subscribers=(
            SubscriberSpec(name="s", topics=TOPICS),
            SubscriberSpec(name="t", topics=TOPICS),
            SubscriberSpec(
                name="ö", topics=TOPICS[:2], replies=(Reply(on="orders", topic="ä", share=1.0),)
            ),
        ),
        merge=MergeSpec(
            config=MergedConfig(epsilon_ticks=6, delta_ticks=20, array=array, processes_max=9),
            eager=("ö",),
            lossy=False,
        ),
        network=NetworkConfig(default=Uniform(0, 4 * MS)),
        clocks={
            name: ClockConfig(skew_ns=0 if name == "ö" else random.randrange(3 * MS, 6 * MS))
            for name in names
        },
    )
    outcome = play(scenario, seed, keep_events=True)
    assert outcome.valid, outcome.sentences()
    return outcome


def delivered(outcome: Outcome, node: str) -> list[str | None]:
    rows = [row for row in outcome.rows if row.node == node and row.action == "delivered"]
    return [row.event for row in sorted(rows, key=lambda row: row.step)]


def logged(outcome: Outcome, directory: Path) -> Path:
    sink = LogSink(directory)
    for slot, event in outcome.events:
        sink.accept(event, slot)
    sink.close()
    return directory


@pytest.mark.parametrize(
    "array",
    [False, pytest.param(True, marks=pytest.mark.verify)],
    ids=["counter", "array"],
)
def test_a_log_is_merged_into_the_order_that_live_subscribers_delivered(
    spark: SparkSession, tmp_path: Path, array: bool
) -> None:
    outcome = simulated(7, array=array)
    log = spark.read.format("ensue").load(str(logged(outcome, tmp_path / "log")))
    bounds = ensue.Merged(epsilon=0.006, delta=0.02)
    merged = log.transform(merge, bounds, array=array)
    events = [row["event"] for row in merged.collect()]
    assert events == delivered(outcome, "s") == delivered(outcome, "t")
    assert len(events) > 100
    by_key = merged.repartition(3).orderBy("merge_key").collect()
    assert [row["event"] for row in by_key] == events, "the key alone gives the same order"
    stamps = [row["stamp"] for row in by_key]
    assert any(stamp.get("@c") for stamp in stamps), (
        "some publisher knew of a clock ahead of its own"
    )


def cut_up(monkeypatch: pytest.MonkeyPatch, *, sampled: float) -> None:
    """Sort small batches like large ones: in many ranges, with counts that exceed their bits."""
    monkeypatch.setattr(order_rules, "ROWS_MIN", 20)
    monkeypatch.setattr(order_rules, "ROWS_MAX", 40)
    monkeypatch.setattr(merged_order, "SAMPLED", sampled)
    monkeypatch.setattr(merged_order, "COUNT_BITS", 2)


@pytest.mark.parametrize("array", [False, True], ids=["counter", "array"])
@pytest.mark.verify
def test_a_large_log_is_merged_in_ranges_into_the_same_order(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, array: bool
) -> None:
    outcome = simulated(7, array=array)
    log = spark.read.format("ensue").load(str(logged(outcome, tmp_path / "log")))
    cut_up(monkeypatch, sampled=0.5)
    merged = log.transform(merge, ensue.Merged(epsilon=0.006, delta=0.02), array=array)
    rows = merged.withColumn("part", f.spark_partition_id()).collect()
    assert [row["event"] for row in rows] == delivered(outcome, "s")
    assert len({row["part"] for row in rows}) > 2


@pytest.mark.parametrize(
    ("sampled", "far"),
    [(0.3, (0, 1, 10**12)), (1.0, (-(2**62), 2**62)), (1.0, ())],
    ids=["ticks that were not seen", "ticks that leave no room", "a short log"],
)
@pytest.mark.verify
def test_merge_does_not_depend_on_ranges_and_packing(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, sampled: float, far: tuple[int, ...]
) -> None:
    """Compare with a plain sort, with many events per tick; publisher and index break ties."""
    random = Random(5)
    ticks = [1_000 + random.randrange(60) for _ in range(600)]
    rows = [
        Row(
            event=str(number),
            publisher=random.choice(("a", "b", "ä")),
            stamp={"@r": tick, "@c": random.randrange(3), "@k": random.randrange(9), "@i": number},
        )
        for number, tick in enumerate((*ticks, *far))
    ]
    cut_up(monkeypatch, sampled=sampled)
    merged = spark.createDataFrame(rows, SCHEMA).repartition(3).transform(merge)
    expected = sorted(
        rows,
        key=lambda row: (
            row["stamp"]["@r"] + row["stamp"]["@c"],
            row["stamp"]["@k"],
            row["publisher"],
            row["stamp"]["@i"],
        ),
    )
    assert [row["event"] for row in merged.collect()] == [row["event"] for row in expected]


def test_a_key_is_the_same_bytes_however_large_its_numbers_are(spark: SparkSession) -> None:
    """Small numbers are made in another way than large ones."""
    numbers = (0, 1, 127, 128, 255, 256, 2**40)
    rows = [
        Row(event="e", publisher="ä", stamp={"@r": 7, "@c": 1, "@k": number, "@i": number})
        for number in numbers
    ]
    found = {
        row["merge_key"] for row in spark.createDataFrame(rows, SCHEMA).transform(merge).collect()
    }
    assert {bytes(key) for key in found} == {
        b"".join(
            (
                (8).to_bytes(8, "big"),
                number.to_bytes(8, "big"),
                "ä".encode(),
                b"\0",
                number.to_bytes(8, "big"),
            )
        )
        for number in numbers
    }


@pytest.mark.verify
def test_a_recorded_run_of_a_real_bus_is_merged_as_its_subscriber_saw_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    async def live() -> list[str]:
        order = ensue.Merged(epsilon=0, delta=1.5)
        url = "memory://merged-record?jitter_ms=15"
        async with (
            ensue.connect(url, order=order, record=str(tmp_path / "run"), name="one") as one,
            ensue.connect(url, order=order, name="two") as two,
            one.subscribe("a", "b") as events,
        ):
            for _ in range(40):
                await one.publish("a", b"")
                await two.publish("b", b"")
                await one.publish("b", b"")
            async with asyncio.timeout(60):
                return [(await anext(events)).id for _ in range(120)]

    seen = asyncio.run(live())
    log = spark.read.format("ensue").load(str(tmp_path / "run"))
    assert [row["event"] for row in log.transform(merge).collect()] == seen


@pytest.mark.parametrize("order", [ensue.Merged(epsilon=0.002, delta=1.5), ensue.Causal()])
@pytest.mark.verify
def test_traces_of_clients_of_a_server_are_audited_and_merged_as_one_run(
    spark: SparkSession, tmp_path: Path, order: ensue.Order
) -> None:
    """No server keeps the events of these orders; the traces of the clients have them all."""

    async def live() -> list[list[str]]:
        async with AsyncExitStack() as stack:
            server = await stack.enter_async_context(serving(tmp_path / "data"))
            buses = [
                await stack.enter_async_context(
                    ensue.connect(
                        server.url, order=order, name=name, trace=str(tmp_path / "run" / name)
                    )
                )
                for name in ("one", "two")
            ]
            readers = [
                await stack.enter_async_context(bus.subscribe(*TOPICS, name="all")) for bus in buses
            ]
            for number in range(40):
                for place, bus in enumerate(buses):
                    await bus.publish(TOPICS[(number + place) % 3], b"")
            async with asyncio.timeout(60):
                return [[(await anext(each)).id for _ in range(80)] for each in readers]

    seen, other = asyncio.run(live())
    report = es.audit(str(tmp_path / "run"), order.name)
    assert report.verdict is Verdict.VALID, report.sentences()
    assert sorted(seen) == sorted(other)
    if isinstance(order, ensue.Merged):
        trace = spark.read.option("recursiveFileLookup", "true").parquet(str(tmp_path / "run"))
        merged = trace.where("action = 'published'").drop("verdict").transform(merge)
        assert [row["event"] for row in merged.collect()] == seen == other


def test_stream_releases_events_by_the_delivery_rule_in_the_same_order(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A last micro-batch only advances the clock: all other events are released, in order, once."""
    outcome = simulated(3, array=False)
    events = [event for _, event in outcome.events]
    events.sort(key=lambda event: event.published_at_ns)
    rows = [
        Row(event=e.id, publisher=e.publisher, stamp=dict(e.stamp.entries))
        for e in events
        if e.stamp
    ]
    last = max(row["stamp"]["@r"] for row in rows)
    beat = Row(event="beat", publisher="p0", stamp={"@r": last + 1000})
    half = len(rows) // 2
    arrive(tmp_path, rows[:half], [*rows[half:], *rows[-5:]])
    bounds = ensue.Merged(epsilon=0.006, delta=0.02)
    early = run_stream(spark, tmp_path, bounds)
    assert 0 < len(early) < len(rows)
    arrive(tmp_path, [beat], first=2)
    found = run_stream(spark, tmp_path, bounds)
    assert [row["event"] for row in found] == delivered(outcome, "s")
    assert {row["verdict"] for row in found} == {""}
    assert early == found[: len(early)]


def arrive(root: Path, *batches: Sequence[Row], first: int = 0) -> None:
    stamp = pa.map_(pa.string(), pa.int64())
    columns: dict[str, pa.DataType] = {
        "event": pa.string(),
        "publisher": pa.string(),
        "stamp": stamp,
    }
    (root / "in").mkdir(exist_ok=True)
    for number, rows in enumerate(batches, first):
        table = pa.Table.from_pylist([row.asDict() for row in rows], schema=pa.schema(columns))
        pq.write_table(table, str(root / "staged.parquet"))
        (root / "staged.parquet").rename(root / "in" / f"{number:05}.parquet")


def run_stream(spark: SparkSession, root: Path, bounds: ensue.Merged) -> list[Row]:
    source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    frame: DataFrame = source.parquet(str(root / "in")).transform(merge, bounds)
    writer = frame.writeStream.format("parquet").trigger(availableNow=True)
    writer.option("checkpointLocation", str(root / "checkpoint")).start(
        str(root / "out")
    ).awaitTermination()
    return spark.read.parquet(str(root / "out")).orderBy("merge_key").collect()


def test_event_without_a_clock_reading_is_an_error_that_names_it(spark: SparkSession) -> None:
    rows = [Row(event="odd", publisher="p", stamp={"orders": 1})]
    with pytest.raises(PySparkException, match=r"MISSING_STAMP.*odd"):
        spark.createDataFrame(rows, SCHEMA).transform(merge).collect()


def test_bad_arguments_of_merge_are_rejected(spark: SparkSession) -> None:
    frame = spark.createDataFrame([], SCHEMA)
    stream = spark.readStream.schema(SCHEMA).parquet(".")
    wrongs: tuple[tuple[Callable[[], DataFrame], str], ...] = (
        (lambda: merge(frame, array=True), "needs the bounds"),
        (lambda: merge(frame, "merged"), "order must be a value"),  # type: ignore[arg-type]
        (lambda: merge(frame, late="keep"), "late must be"),
        (lambda: merge(frame, held_max=0), "held_max is 0"),
        (lambda: merge(frame.drop("stamp")), "column 'stamp' is missing"),
        (lambda: merge(merge(frame)), "already"),
        (lambda: merge(stream), "a stream needs the bounds"),
    )
    for wrong, message in wrongs:
        with pytest.raises(BadInput, match=message):
            wrong()


@pytest.mark.verify
def test_audit_of_merged_order_agrees_with_check(spark: SparkSession, tmp_path: Path) -> None:
    """Valid as recorded; invalid alike with two deliveries swapped, or with too tight a bound."""
    outcome = simulated(7, array=False)
    whole = tmp_path / "whole"
    write(outcome.rows, whole)
    span_ns = 40 * MS
    assert es.audit(str(whole), "merged", within_ns=span_ns).verdict is Verdict.VALID
    rows = list(outcome.rows)
    mine = [at for at, row in enumerate(rows) if (row.node, row.action) == ("s", "delivered")]
    first, second = mine[20], mine[21]
    rows[first], rows[second] = (
        structs.replace(rows[second], step=rows[first].step, position=rows[first].position),
        structs.replace(rows[first], step=rows[second].step, position=rows[second].position),
    )
    broken = tmp_path / "broken"
    write(rows, broken)
    reported = check(rows, "merged", within_ns=27 * MS)
    found = es.audit(str(broken), "merged", within_ns=27 * MS).report()
    assert reported.verdict is found.verdict is Verdict.INVALID
    for one in reported.findings:
        assert found[one.checker].anomaly_counts == one.anomaly_counts, one.checker
    assert reported["timely"].violations
    assert {each.because for each in found["timely"].violations} <= {
        each.because
        for each in check(rows, "merged", within_ns=27 * MS, violations_max=999)[
            "timely"
        ].violations
    }


# -- The queue of a stream, without Spark ---------------------------------------------------------


def batch(*ticks: int, name: str = "p") -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "event": [f"{name}{tick}" for tick in ticks],
            "merge_tick": pa.array(ticks, pa.int64()),
            "merge_key": [tick.to_bytes(8, "big") + name.encode() for tick in ticks],
        }
    )


def through(queue: MergeHoldBack, *batches: pa.RecordBatch) -> list[tuple[str, str]]:
    out: list[Any] = []
    for each in batches:
        out += queue.add(each)
    out += queue.finish()
    return [
        (event, verdict)
        for part in out
        for event, verdict in zip(
            part.column("event").to_pylist(), part.column("verdict").to_pylist(), strict=True
        )
    ]


def queue(
    blob: bytes | None = None, *, deliver_late: bool = True, held_max: int = 99
) -> MergeHoldBack:
    limits = MergeLimits(wait_ticks=10, held_max=held_max, deliver_late=deliver_late)
    return MergeHoldBack(limits, blob)


def test_rows_wait_until_a_clock_has_passed_them_by_more_than_delta_and_epsilon() -> None:
    waiting = queue()
    assert through(waiting, batch(12, 10, 11)) == []
    assert through(waiting, batch(21)) == [("p10", "")]
    assert through(waiting, batch(22, 11, name="q")) == [("p11", ""), ("q11", "")]
    assert waiting.held_count == 3


def test_rows_older_than_the_clock_are_late_or_dropped() -> None:
    for deliver_late, found in ((True, [("p5", "late")]), (False, [])):
        waiting = queue(deliver_late=deliver_late)
        through(waiting, batch(100))
        assert through(waiting, batch(5)) == found


def test_state_is_restored_and_repetitions_are_released_once() -> None:
    first = queue()
    through(first, batch(1, 2, 3))
    again = queue(first.dump())
    assert through(again, batch(3, 2), batch(14)) == [("p1", ""), ("p2", ""), ("p3", "")]


def test_result_does_not_depend_on_record_batches() -> None:
    ticks = list(range(40))
    outputs = set()
    for seed in range(5):
        random = Random(seed)
        shuffled = random.sample(ticks, len(ticks))
        cut = random.randrange(1, len(ticks))
        outputs.add(tuple(through(queue(), batch(*shuffled[:cut]), batch(*shuffled[cut:]))))
    assert len(outputs) == 1
    assert len(outputs.pop()) == 29


def test_too_many_held_rows_and_changed_columns_are_errors() -> None:
    with pytest.raises(LimitReached, match="HELD_MAX_REACHED"):
        through(queue(held_max=2), batch(1, 2, 3))
    waiting = queue()
    through(waiting, batch(1))
    waiting.add(batch(2).drop_columns(["event"]))
    with pytest.raises(ConfigurationError, match="the columns differ"):
        list(waiting.finish())
