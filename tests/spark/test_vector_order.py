"""Logs of chains whose order is not causal: put in order along their stamps."""

import asyncio
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession
from tests.spark.ordered_logs import Streamed, cut_at, frame_of, log_of

import ensue
from ensue.checkers import check
from ensue.core import trace
from ensue.spark import audit, order, pipeline, read_table, read_trace
from ensue.spark.audits import Sizes
from ensue.spark.conditions import SparkFault
from ensue.spark.report import report
from ensue.spark.vector_order import LogEvent, place
from ensue.store import open_log


async def deliver(folder: Path, count: int) -> tuple[list[str], list[str]]:
    """Record a run with changing subscriptions; return what two readers of a, b, c got."""
    chosen = ensue.Total(causal=False)
    async with (
        ensue.connect("memory://?nodes=3&seed=5", order=chosen, record=str(folder)) as bus,
        bus.subscribe("a", "b", "c") as first,
        bus.subscribe("a", "b", "c") as second,
        bus.subscribe("c") as moving,
    ):
        random = Random(3)
        expected = 0
        for number in range(count):
            topic = random.choice("abcd")
            expected += topic != "d"
            await bus.publish(topic, str(number).encode(), receipt=False)
            if number == count // 2:
                await moving.unsubscribe("c")
                await moving.subscribe("d")
        async with asyncio.timeout(60):
            await bus.flush()
            got = [[(await anext(each)).id for _ in range(expected)] for each in (first, second)]
    return got[0], got[1]


def test_batch_has_the_order_that_common_subscribers_got(
    spark: SparkSession, tmp_path: Path
) -> None:
    first, second = asyncio.run(deliver(tmp_path / "run", 200))
    assert first == second
    frame = spark.read.format("ensue").load(str(tmp_path / "run"))
    rows = order(frame, by="total-noncausal").collect()
    assert [row["position"] for row in rows] == list(range(1, 201))
    assert [row["event"] for row in rows if row["topic"] != "d"] == first
    of_d = [row["offset"] for row in rows if row["topic"] == "d"]
    assert of_d == list(range(len(of_d)))


def test_rule_is_that_of_the_log_unless_it_is_named(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, _ = asyncio.run(deliver(tmp_path / "run", 60))
    frame = spark.read.format("ensue").load(str(tmp_path / "run"))
    for chosen in (frame, frame.where("offset >= 0").select("*")):
        rows = order(chosen).collect()
        assert [row["event"] for row in rows if row["topic"] != "d"] == first
    assert not caplog.messages
    # Without the name of the order, a log that has no common order is no silent matter.
    copy = spark.createDataFrame(frame.toArrow())
    order(copy).count()
    (warning,) = caplog.messages
    assert "order the log by='total-noncausal'" in warning


def test_spark_judges_a_trace_by_its_own_order(tmp_path: Path, spark: SparkSession) -> None:
    del spark  # The audit uses the running session.
    asyncio.run(deliver(tmp_path / "run", 60))
    report = audit(tmp_path / "run", "total-noncausal").report()
    assert report.verdict == "valid"
    assert "causal" not in [finding.checker for finding in report.findings]


def test_spark_finds_subscribers_that_disagree(tmp_path: Path, spark: SparkSession) -> None:
    """One has two events of different topics the other way round."""
    asyncio.run(deliver(tmp_path / "run", 60))
    rows = trace.read(tmp_path / "run")
    reader = next(row.subscription for row in rows if row.action == "delivered")
    mine = [row for row in rows if row.action == "delivered" and row.subscription == reader]
    at = next(n for n, (one, two) in enumerate(pairwise(mine)) if n > 20 and one.topic != two.topic)
    earlier, later = mine[at : at + 2]
    swapped = {
        (one.node, one.step): replace(other, step=one.step, at_ns=one.at_ns, position=one.position)
        for one, other in ((earlier, later), (later, earlier))
    }
    broken = [swapped.get((row.node, row.step), row) for row in rows]
    trace.write(broken, tmp_path / "broken")
    for sizes in (Sizes(), Sizes(whole_rows=0, tile_rows=4)):
        report = audit(read_trace(spark, tmp_path / "broken"), None, sizes=sizes).report()
        assert (report.order, report.verdict) == ("total-noncausal", "invalid")
        found = report["total"].violations
        assert {one.checker for one in report.findings if one.violations} == {"total"}
        assert {frozenset((one.first_event, one.second_event)) for one in found} == {
            frozenset((earlier.event, later.event))
        }
        assert all(reader in {each.subscription for each in one.subscribers} for one in found)
        expected = check(broken, None)["total"].violations
        assert len(found) == len(expected) == 1


def test_pipeline_learns_the_order_from_the_run(spark: SparkSession, tmp_path: Path) -> None:
    first, _ = asyncio.run(deliver(tmp_path / "run", 40))
    assert open_log(tmp_path / "run").order == "total-noncausal"
    made = pipeline(spark, tmp_path / "run", tmp_path / "lake", once=True)
    assert (made.order, made.verdict, made.failed) == ("total-noncausal", "valid", {})
    assert made.tables["ordered"] == 40
    assert made.left_out.keys() == {"gaps"}
    rows = read_table(spark, tmp_path / "lake", "ordered").orderBy("position").collect()
    assert [row["event"] for row in rows if row["topic"] != "d"] == first
    (judged,) = report(spark, tmp_path / "run").judgements.values()
    assert judged.checked.startswith("checked fifo, total, positions, complete on ")


def test_voids_and_cuts_are_as_in_causal_order(spark: SparkSession) -> None:
    log = log_of(60)
    cut = cut_at(log, 10)
    found = order(frame_of(spark, log), cut, by="total-noncausal", voids=True)
    by_sum = order(frame_of(spark, log), cut, voids=True)
    assert [(row["event"], row["position"], row["verdict"]) for row in found.collect()] == [
        (row["event"], row["position"], row["verdict"]) for row in by_sum.collect()
    ]


def test_stream_has_the_order_that_common_subscribers_got(
    spark: SparkSession, tmp_path: Path
) -> None:
    first, _ = asyncio.run(deliver(tmp_path / "run", 60))
    log = spark.read.format("ensue").load(str(tmp_path / "run")).toArrow().to_pylist()
    Random(4).shuffle(log)
    log = [{**row, "stamp": dict(row["stamp"]), "headers": dict(row["headers"])} for row in log]
    streamed = Streamed(spark, tmp_path / "stream")
    streamed.arrive(log[:20], log[20:40], log[30:50], log[50:])
    rows = streamed.run(["a", "b", "c", "d"], by="total-noncausal")
    assert [row["position"] for row in rows] == list(range(1, 61))
    assert [row["event"] for row in rows if row["topic"] != "d"] == first


def test_events_follow_what_their_stamps_count() -> None:
    events: list[LogEvent] = [
        ("a", 0, {"a": 1, "b": 2}, 1),
        ("b", 0, {"b": 1}, 9),
        ("b", 1, {"b": 2, "c": 1}, 9),
        ("b", 1, {"b": 2, "c": 1}, 9),  # Repeated.
        ("c", 0, {"c": 1}, 8),
        ("d", 4, {"d": 5, "missing": 7}, 2),
    ]
    assert list(place(events)) == [("d", 4), ("c", 0), ("b", 0), ("b", 1), ("a", 0)]


def test_events_that_precede_each_other_are_an_error() -> None:
    events: list[LogEvent] = [("a", 0, {"a": 1, "b": 1}, 1), ("b", 0, {"b": 1, "a": 1}, 1)]
    with pytest.raises(SparkFault, match="events of a, b precede each other"):
        list(place(events))
