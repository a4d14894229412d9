"""A pipeline run once makes of a run exactly what the functions it is made of say."""

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.spark.audits.application_rows import Application
from tests.spark.lake.sources import add_trace, agreeing, disagreeing, grow_log, record, stamped
from tests.store.helpers import everything

from ensue.checkers import Verdict, check
from ensue.core import trace
from ensue.core.errors import BadInput
from ensue.spark import metrics, order, pipeline, read_table, read_trace, table_files
from ensue.spark.lake import files as lake_files
from ensue.spark.lake.lake import Choices, Lake
from ensue.spark.lake.pipeline import Outcome
from ensue.spark.lake.runs import deliveries
from ensue.spark.lake.tables import APPENDED, TABLES

pytestmark = pytest.mark.timeout(1200)


class Made:
    """A recorded run, and the lake that was made of it."""

    def __init__(self, spark: SparkSession, place: Path) -> None:
        self.spark = spark
        self.run = place / "run"
        self.lake = place / "lake"
        record(self.run)
        self.told: list[str] = []
        self.outcome = self.once()

    def once(self) -> Outcome:
        self.told = []
        return pipeline(self.spark, self.run, self.lake, once=True, progress=self.told.append)

    def table(self, name: str) -> DataFrame:
        return read_table(self.spark, self.lake, name)


@pytest.fixture(scope="module")
def made(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(spark, tmp_path_factory.mktemp("lake"))


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    """All rows, in an order of their own."""
    plain = [tuple(row.values()) for row in frame.toArrow().to_pylist()]
    return sorted(plain, key=repr)


def test_every_event_and_every_row_of_the_trace_is_there(made: Made) -> None:
    log = [each for found in everything(made.run / "log").values() for each in found]
    assert len(log) > 20
    assert rows(made.table("events").select("event", "offset")) == sorted(
        ((each["event"], each["offset"]) for each in log), key=repr
    )
    assert rows(made.table("trace")) == rows(read_trace(made.spark, made.run))
    assert made.outcome.tables["events"] == len(log)
    assert made.outcome.tables["trace"] == len(trace.read(made.run))
    assert not made.outcome.failed
    assert not made.outcome.left_out


def test_events_are_in_the_order_that_a_batch_puts_them_in(made: Made) -> None:
    log = made.spark.read.format("ensue").load(str(made.run))
    batch = order(log, voids=True).toArrow().to_pylist()
    assert made.table("ordered").orderBy("position").toArrow().to_pylist() == batch
    assert made.outcome.topics == ["orders", "prices"]
    assert made.outcome.tables["gaps"] == 0


def test_the_verdict_is_that_of_the_checkers(made: Made) -> None:
    report = check(trace.read(made.run), "total")
    (verdict,) = made.outcome.verdicts
    assert verdict.verdict == report.verdict == made.outcome.verdict == Verdict.VALID
    assert verdict.events == report.event_count
    assert verdict.deliveries == report.delivery_count == made.outcome.tables["deliveries"]
    assert verdict.subscribers == report.subscriber_count


@pytest.mark.verify
def test_metrics_are_those_of_the_trace(made: Made) -> None:
    for name, frame in metrics(read_trace(made.spark, made.run)).items():
        found = rows(made.table(f"metrics/{name}"))
        assert found == rows(frame), name


def test_every_table_has_the_columns_that_are_documented(made: Made) -> None:
    for name, table in TABLES.items():
        wanted = {column: kind for column, (kind, _) in table.columns.items()}
        for frame in (made.table(name), made.spark.read.parquet(str(made.lake / name))):
            assert {each.name: each.dataType.simpleString() for each in frame.schema} == wanted
            assert frame.count() == made.outcome.tables[name]


def test_a_second_time_adds_what_is_new_and_nothing_else(made: Made) -> None:
    before = {name: rows(made.table(name)) for name in TABLES}
    for name in APPENDED:  # As a batch leaves behind that is killed.
        (made.lake / name / "part-00000-cut-short.snappy.parquet").touch()
        (made.lake / name / ".part-00000-cut-short.snappy.parquet.crc").touch()
        assert len(table_files(made.lake, name)) == len(list((made.lake / name).glob("part-*"))) - 1
    assert made.once().tables == made.outcome.tables
    # A busy machine may need more than one start, and says so.
    assert [line for line in made.told if "did not come up in time" not in line] == []
    assert {name: rows(made.table(name)) for name in TABLES} == before
    for name in TABLES:
        files = [pq.read_table(path).num_rows for path in table_files(made.lake, name)]
        assert sum(files) == len(before[name]), name
        assert pq.read_table(str(made.lake / name)).num_rows == len(before[name]), name

    name = "../2026-01-01/ä %=\n"
    add_trace(made.run / "trace", "later", [*disagreeing(name), *agreeing("0010", 4)])
    counts = Counter(row["topic"] for row in everything(made.run / "log")["orders"])
    counts["prices"] = len(everything(made.run / "log")["prices"])
    grow_log(made.run / "log", stamped(6, counts=counts, topics=("orders", "prices")))
    after = made.once()
    assert after.verdict is Verdict.INVALID
    assert {one.run: (one.verdict, one.deliveries) for one in after.verdicts} == {
        name: (Verdict.INVALID, 4),
        "0010": (Verdict.VALID, 8),
        **{one.run: (one.verdict, one.deliveries) for one in made.outcome.verdicts},
    }
    (violation,) = made.table("violations").collect()
    assert (violation.run, violation.anomaly) == (name, "total")
    assert {violation["first"], violation["second"]} == {"a", "b"}
    added = {name: after.tables[name] - len(before[name]) for name in TABLES}
    assert {name: added[name] for name in ("events", "ordered", "gaps")} == {
        "events": 6,
        "ordered": 6,
        "gaps": 0,
    }
    assert rows(made.table("trace")) == rows(read_trace(made.spark, made.run))
    assert rows(made.table("deliveries")) == rows(deliveries(read_trace(made.spark, made.run)))
    for name in (each for each in TABLES if each not in APPENDED):
        assert set(before[name]) <= set(rows(made.table(name))), name


def test_a_delivery_is_joined_with_the_submission_of_its_event(
    spark: SparkSession, tmp_path: Path
) -> None:
    script = Application().subscribe("s", "x").submit("p", "a", "b").confirm("p", "a")
    trace.write(script.hand_over("s", "a", "b").rows, tmp_path / "t")
    found = deliveries(read_trace(spark, tmp_path / "t")).orderBy("event").collect()
    assert [row.latency_ms for row in found] == [3e-6, 3e-6]


@pytest.mark.verify
def test_a_publication_that_comes_after_its_delivery_is_joined_with_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    by_node: dict[str, list[trace.Row]] = {}
    for row in agreeing("r", 2):
        by_node.setdefault(row.node, []).append(row)
    add_trace(tmp_path / "t", "1", by_node["s1"])
    first = pipeline(spark, tmp_path / "t", tmp_path / "lake", once=True)
    assert first.left_out.keys() == {"events", "ordered", "gaps"}
    assert "there is no event log" in first.left_out["ordered"]
    assert first.verdict is Verdict.INVALID  # Nobody had published, as far as is known by then.
    latencies = read_table(spark, tmp_path / "lake", "deliveries").select("latency_ms").collect()
    assert [row.latency_ms for row in latencies] == [None, None]

    for name in ("p", "s2"):
        add_trace(tmp_path / "t", name, by_node[name])
    second = pipeline(spark, tmp_path / "t", tmp_path / "lake", once=True)
    assert second.verdict is Verdict.VALID
    assert second.tables["deliveries"] == 4
    assert second.tables["violations"] == 0
    table = read_table(spark, tmp_path / "lake", "deliveries")
    assert table.where("latency_ms > 0 and delivered_at >= published_at").count() == 4


@pytest.mark.verify
def test_topics_that_have_no_order_together_fail_alone(spark: SparkSession, tmp_path: Path) -> None:
    place = tmp_path / "log"
    grow_log(place, stamped(2, counts={}, topics=("a",)) + stamped(2, counts={}, topics=("b",)))
    failed = pipeline(spark, place, tmp_path / "lake", once=True)
    assert failed.left_out.keys() == {"trace", "audit"}
    assert failed.failed.keys() == {"ordered"}
    assert "not mutually ordered" in failed.failed["ordered"]
    assert failed.verdict is Verdict.UNKNOWN
    assert failed.tables["events"] == 4
    (conflict, *_) = read_table(spark, tmp_path / "lake", "gaps").orderBy("first").collect()
    assert (conflict.kind, conflict["first"], conflict["count"]) == ("conflict", 1, 2)

    # Nothing is ordered yet, so that other topics may be named; those then stay.
    chosen = pipeline(spark, place, tmp_path / "lake", topics=["b"], once=True)
    assert not chosen.failed
    assert chosen.tables["ordered"] == 2
    assert chosen.tables["gaps"] == 0
    with pytest.raises(BadInput, match="orders the topics b, not a"):
        pipeline(spark, place, tmp_path / "lake", topics=["a"], once=True)
    assert pipeline(spark, place, tmp_path / "lake", once=True).topics == ["b"]


@pytest.mark.verify
def test_order_begins_where_the_topics_were_subscribed_together(
    spark: SparkSession, tmp_path: Path
) -> None:
    place, lake, told = tmp_path / "log", tmp_path / "lake", list[str]()
    counts: dict[str, int] = {}
    early = [
        row | {"stamp": {row["topic"]: row["stamp"][row["topic"]]}}
        for row in stamped(6, counts=counts)
    ]
    grow_log(place, early + stamped(10, counts=counts))
    made = pipeline(spark, place, lake, once=True, progress=told.append)
    assert not made.failed
    assert made.verdict is None  # There is no trace to be judged.
    assert made.to_dict()["verdict"] is None
    # The sixth event counts all before it of its own topic and of the other one as well.
    assert (made.cut, made.before_cut) == ({"a": 3, "b": 3}, 6)
    assert "ordered: begins at the first common cut: a at offset 3, b at offset 3" in told
    assert made.tables["ordered"] == made.tables["events"] == 16
    assert made.tables["gaps"] == 0
    table = read_table(spark, lake, "ordered")
    assert table.where("position is null and verdict = 'before_cut'").count() == 6
    found = [row.position for row in table.where("verdict = ''").orderBy("position").collect()]
    assert found == list(range(1, 11))

    # It goes on from the same cut.
    grow_log(place, stamped(4, counts=counts))
    again = pipeline(spark, place, lake, once=True)
    assert (again.cut, again.before_cut) == (made.cut, 6)
    assert (again.tables["ordered"], again.tables["gaps"]) == (20, 0)


def test_a_lake_of_anything_else_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    source, lake = tmp_path / "t", tmp_path / "lake"
    add_trace(source, "1", agreeing("r"))
    with (
        Lake(lake).opened(Choices(source=str(source), order="total")),
        pytest.raises(BadInput, match=r"a pipeline runs on .*lake already"),
    ):
        pipeline(spark, source, lake, once=True)
    add_trace(tmp_path / "other", "1", agreeing("r"))
    with pytest.raises(BadInput, match=r"was made with source .*/t, not .*/other"):
        pipeline(spark, tmp_path / "other", lake, once=True)
    with pytest.raises(BadInput, match="was made with order total, not fifo"):
        pipeline(spark, source, lake, order="fifo", once=True)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes").touch()
    with pytest.raises(BadInput, match="is no lake, and not empty"):
        pipeline(spark, source, tmp_path / "full", once=True)
    with pytest.raises(BadInput, match="is no lake"):
        read_table(spark, tmp_path / "full", "events")
    with pytest.raises(BadInput, match="has no table 'event'; it has events, ordered"):
        read_table(spark, lake, "event")


def test_a_spark_that_outlives_its_driver_is_waited_for(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_trace(tmp_path / "t", "1", agreeing("r"))
    lake = tmp_path / "lake"
    lake.mkdir()
    (lake / "_lock_java").touch()
    hold = (
        "import fcntl, sys; held = open(sys.argv[1], 'r+'); "
        "fcntl.lockf(held, fcntl.LOCK_EX); print(flush=True); input()"
    )
    monkeypatch.setattr(lake_files, "JAVA_WAIT_S", 0.3)
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(lake / "_lock_java")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(BadInput, match="the Spark of a pipeline that was killed still holds"):
            pipeline(spark, tmp_path / "t", lake, once=True)
        other.kill()
    with lake_files.held_by_java(spark, lake / "_lock_java"):
        pass


def test_bad_arguments_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    grow_log(tmp_path / "log", stamped(2, counts={}))
    lake = tmp_path / "lake"
    for options, told in (
        ({"order": "alphabetical"}, "there is no order 'alphabetical'"),
        ({"every_s": 0}, "every_s must be above 0, got 0"),
        ({"topics": "a"}, "give a list of topics"),
        ({"topics": []}, "name at least one"),
        ({"topics": ["a", "c"], "once": True}, "has no topics c; it has a, b"),
    ):
        with pytest.raises(BadInput, match=told):
            pipeline(spark, tmp_path / "log", lake, **options)
    assert not lake.exists()
