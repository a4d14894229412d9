"""A pipeline with `once` writes the same tables as the functions it consists of."""

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
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
    """A recorded run and its lake."""

    def __init__(self, spark: SparkSession, place: Path) -> None:
        self.spark = spark
        self.run = place / "run"
        self.lake = place / "lake"
        record(self.run)
        self.reported: list[str] = []
        self.outcome = self.once()

    def once(self) -> Outcome:
        self.reported = []
        return pipeline(self.spark, self.run, self.lake, once=True, progress=self.reported.append)

    def table(self, name: str) -> DataFrame:
        return read_table(self.spark, self.lake, name)


@pytest.fixture(scope="module")
def made(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(spark, tmp_path_factory.mktemp("lake"))


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    """Return all rows of a data frame, sorted."""
    return in_order(frame.toArrow())


def in_order(*tables: pa.Table) -> list[tuple[Any, ...]]:
    found = [tuple(row.values()) for table in tables for row in table.to_pylist()]
    return sorted(found, key=repr)


def stored(lake: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Return the rows of all tables, read from their committed files without Spark."""
    files = {name: map(pq.read_table, table_files(lake, name)) for name in TABLES}
    return {name: in_order(*found) for name, found in files.items()}


def test_lake_has_every_event_and_every_row_of_the_trace(made: Made) -> None:
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


def test_events_have_the_order_of_a_batch(made: Made) -> None:
    log = made.spark.read.format("ensue").load(str(made.run))
    batch = order(log, voids=True).toArrow().to_pylist()
    assert made.table("ordered").orderBy("position").toArrow().to_pylist() == batch
    assert made.outcome.topics == ["orders", "prices"]
    assert made.outcome.tables["gaps"] == 0


def test_verdict_agrees_with_checkers(made: Made) -> None:
    report = check(trace.read(made.run), "total")
    (verdict,) = made.outcome.verdicts
    assert verdict.verdict == report.verdict == made.outcome.verdict == Verdict.VALID
    assert verdict.events == report.event_count
    assert verdict.deliveries == report.delivery_count == made.outcome.tables["deliveries"]
    assert verdict.subscribers == report.subscriber_count


@pytest.mark.verify
def test_metrics_agree_with_the_trace(made: Made) -> None:
    for name, frame in metrics(read_trace(made.spark, made.run)).items():
        found = rows(made.table(f"metrics/{name}"))
        assert found == rows(frame), name


def test_every_table_has_the_documented_columns(made: Made) -> None:
    for name, table in TABLES.items():
        wanted = {column: kind for column, (kind, _) in table.columns.items()}
        for frame in (made.table(name), made.spark.read.parquet(str(made.lake / name))):
            assert {each.name: each.dataType.simpleString() for each in frame.schema} == wanted
            assert frame.count() == made.outcome.tables[name]


def leave_files_of_a_killed_batch(lake: Path) -> None:
    for name in APPENDED:
        (lake / name / "part-00000-cut-short.snappy.parquet").touch()
        (lake / name / ".part-00000-cut-short.snappy.parquet.crc").touch()
        assert len(table_files(lake, name)) == len(list((lake / name).glob("part-*"))) - 1


@pytest.mark.verify
def test_second_run_without_new_input_changes_nothing(made: Made) -> None:
    before = stored(made.lake)
    leave_files_of_a_killed_batch(made.lake)
    assert made.once().tables == made.outcome.tables
    # A busy machine may need more than one start, which the pipeline reports.
    assert [line for line in made.reported if "did not start in time" not in line] == []
    assert stored(made.lake) == before
    for name in TABLES:
        assert pq.read_table(str(made.lake / name)).num_rows == len(before[name]), name


def test_second_run_adds_new_input_and_nothing_else(made: Made) -> None:
    before = stored(made.lake)
    leave_files_of_a_killed_batch(made.lake)
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
    found = stored(made.lake)
    for name in TABLES:
        assert all(row in found[name] for row in before[name]), name
        assert len(found[name]) == after.tables[name], name
        assert pq.read_table(str(made.lake / name)).num_rows == len(found[name]), name


def test_a_delivery_is_joined_with_the_submission_of_its_event(
    spark: SparkSession, tmp_path: Path
) -> None:
    script = Application().subscribe("s", "x").submit("p", "a", "b").confirm("p", "a")
    trace.write(script.hand_over("s", "a", "b").rows, tmp_path / "t")
    found = deliveries(read_trace(spark, tmp_path / "t")).orderBy("event").collect()
    assert [row.latency_ms for row in found] == [3e-6, 3e-6]


@pytest.mark.verify
def test_publication_that_arrives_after_its_delivery_is_joined_with_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    by_node: dict[str, list[trace.Row]] = {}
    for row in agreeing("r", 2):
        by_node.setdefault(row.node, []).append(row)
    add_trace(tmp_path / "t", "1", by_node["s1"])
    first = pipeline(spark, tmp_path / "t", tmp_path / "lake", once=True)
    assert first.left_out.keys() == {"events", "ordered", "gaps"}
    assert "there is no event log" in first.left_out["ordered"]
    assert first.verdict is Verdict.INVALID  # No publication has arrived yet.
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
def test_topics_without_a_common_order_fail_only_their_stage(
    spark: SparkSession, tmp_path: Path
) -> None:
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

    # Other topics may be named until the first event is ordered.
    chosen = pipeline(spark, place, tmp_path / "lake", topics=["b"], once=True)
    assert not chosen.failed
    assert chosen.tables["ordered"] == 2
    assert chosen.tables["gaps"] == 0
    with pytest.raises(BadInput, match="orders the topics b, not a"):
        pipeline(spark, place, tmp_path / "lake", topics=["a"], once=True)
    assert pipeline(spark, place, tmp_path / "lake", once=True).topics == ["b"]


@pytest.mark.verify
def test_order_begins_at_the_first_common_cut(spark: SparkSession, tmp_path: Path) -> None:
    place, lake, reported = tmp_path / "log", tmp_path / "lake", list[str]()
    counts: dict[str, int] = {}
    early = [
        row | {"stamp": {row["topic"]: row["stamp"][row["topic"]]}}
        for row in stamped(6, counts=counts)
    ]
    grow_log(place, early + stamped(10, counts=counts))
    made = pipeline(spark, place, lake, once=True, progress=reported.append)
    assert not made.failed
    assert made.verdict is None  # There is no trace to judge.
    assert made.to_dict()["verdict"] is None
    # The sixth event counts all earlier ones of both topics.
    assert (made.cut, made.before_cut) == ({"a": 3, "b": 3}, 6)
    assert "ordered: begins at the first common cut: a at offset 3, b at offset 3" in reported
    assert made.tables["ordered"] == made.tables["events"] == 16
    assert made.tables["gaps"] == 0
    table = read_table(spark, lake, "ordered")
    assert table.where("position is null and verdict = 'before_cut'").count() == 6
    found = [row.position for row in table.where("verdict = ''").orderBy("position").collect()]
    assert found == list(range(1, 11))

    # The next run uses the same cut.
    grow_log(place, stamped(4, counts=counts))
    again = pipeline(spark, place, lake, once=True)
    assert (again.cut, again.before_cut) == (made.cut, 6)
    assert (again.tables["ordered"], again.tables["gaps"]) == (20, 0)


def test_lake_with_other_choices_is_rejected(spark: SparkSession, tmp_path: Path) -> None:
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
    with pytest.raises(BadInput, match="is not a lake, and not empty"):
        pipeline(spark, source, tmp_path / "full", once=True)
    with pytest.raises(BadInput, match="is not a lake"):
        read_table(spark, tmp_path / "full", "events")
    with pytest.raises(BadInput, match="has no table 'event'; it has events, ordered"):
        read_table(spark, lake, "event")


def test_pipeline_waits_for_a_java_process_that_outlives_its_driver(
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
        with pytest.raises(BadInput, match="the Java process of a killed pipeline still holds"):
            pipeline(spark, tmp_path / "t", lake, once=True)
        other.kill()
    with lake_files.held_by_java(spark, lake / "_lock_java"):
        pass


def test_bad_arguments_are_rejected(spark: SparkSession, tmp_path: Path) -> None:
    grow_log(tmp_path / "log", stamped(2, counts={}))
    lake = tmp_path / "lake"
    for options, reported in (
        ({"order": "alphabetical"}, "there is no order 'alphabetical'"),
        ({"every_s": 0}, "every_s must be above 0, got 0"),
        ({"topics": "a"}, "give a list of topics"),
        ({"topics": []}, "name at least one"),
        ({"topics": ["a", "c"], "once": True}, "has no topics c; it has a, b"),
    ):
        with pytest.raises(BadInput, match=reported):
            pipeline(spark, tmp_path / "log", lake, **options)
    assert not lake.exists()
