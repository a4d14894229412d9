"""Order as columns: batches and streams give the same rows, with late, repeated or lost ones."""

import datetime as dt
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from tests.spark.ordered_logs import (
    TOPICS,
    Event,
    Streamed,
    arriving,
    cut_at,
    expected,
    frame_of,
    log_of,
    pieces,
    plain,
    reported,
)

from ensue.core.errors import BadInput, ConfigurationError, UnsupportedOrder
from ensue.spark import gaps, order, order_rules


@pytest.fixture
def streamed(spark: SparkSession, tmp_path: Path) -> Streamed:
    return Streamed(spark, tmp_path)


LOG = log_of(120)


@pytest.mark.parametrize(
    ("topics", "cut"),
    [
        (None, dict.fromkeys(TOPICS, 0)),
        pytest.param(["c", "ä"], {"c": 0, "ä": 0}, marks=pytest.mark.verify),
        (cut_at(LOG, 20), cut_at(LOG, 20)),
    ],
)
@pytest.mark.parametrize("rows_max", [pytest.param(500_000, marks=pytest.mark.verify), 30])
def test_batch_has_the_order_of_the_sequencer(
    spark: SparkSession,
    topics: Any,
    cut: dict[str, int],
    rows_max: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(order_rules, "ROWS_MIN", rows_max)
    monkeypatch.setattr(order_rules, "ROWS_MAX", rows_max)
    frame = frame_of(spark, arriving(LOG, seed=1, reach=200))
    assert plain(frame.transform(order, topics).collect()) == expected(LOG, cut)


def test_batch_is_sorted_in_ranges_of_equal_size_from_its_offsets(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(order_rules, "ROWS_MIN", 1)
    monkeypatch.setattr(order_rules, "ROWS_MAX", 10)
    log = log_of(100)[40:]  # Its beginning was trimmed.
    ordered = frame_of(spark, arriving(log, seed=3, reach=60)).transform(order, voids=True)
    ranges = ordered.groupBy(f.spark_partition_id().alias("part")).agg(
        f.count("*").alias("rows"), f.min("position").alias("first")
    )

    found = [(row["part"], row["rows"], row["first"]) for row in ranges.sort("part").collect()]
    assert found == [(part, 10, 41 + 10 * part) for part in range(6)]


@pytest.mark.verify
def test_positions_outside_the_offsets_are_sorted_too(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(order_rules, "ROWS_MIN", 1)
    monkeypatch.setattr(order_rules, "ROWS_MAX", 5)
    log = [one for one in log_of(90) if one["topic"] == "c"]
    ordered = frame_of(spark, arriving(log, seed=4, reach=60)).transform(order, TOPICS, voids=True)

    assert [row["event"] for row in ordered.collect()] == [one["event"] for one in log]


@pytest.mark.parametrize("count", [100, pytest.param(1_000, marks=pytest.mark.verify)])
def test_many_topics_may_start_at_different_offsets(spark: SparkSession, count: int) -> None:
    cut = {f"topic-{number}": 1 for number in range(count)} | cut_at(LOG, 20)
    ordered = frame_of(spark, LOG).transform(order, cut)

    assert [row["position"] for row in ordered.sort("position").collect()] == [
        one["position"] for one in expected(LOG, cut_at(LOG, 20))
    ]


def test_rows_without_a_topic_or_an_offset_are_rejected(spark: SparkSession) -> None:
    frame = frame_of(spark, LOG).withColumn("topic", f.lit(None).cast("string"))
    with pytest.raises(BadInput, match="rows without a topic or an offset"):
        order(frame)


def test_a_batch_is_sorted_by_one_exchange_and_by_no_python(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    frame_of(spark, log_of(3)).transform(order, TOPICS).explain()
    plan = capsys.readouterr().out
    assert plan.count("Exchange") == 1
    for costly in ("Join", "Python", "InArrow", "Window"):
        assert costly not in plan


def test_voids_are_dropped_or_kept_and_take_their_position(spark: SparkSession) -> None:
    log = log_of(60)
    cut = dict.fromkeys(TOPICS, 0)
    assert any(one["value"] is None for one in log)
    kept = frame_of(spark, log).transform(order, voids=True)
    assert plain(kept.collect()) == expected(log, cut, voids=True)
    assert gaps(kept).count() == 0
    left_out = frame_of(spark, log).transform(order)
    missing = sum(row["count"] for row in gaps(left_out).collect())
    assert missing == sum(one["value"] is None for one in log)


@pytest.mark.parametrize(
    "stamp",
    [
        {"other": 3},
        pytest.param({}, marks=pytest.mark.verify),
        pytest.param(None, marks=pytest.mark.verify),
    ],
)
def test_an_event_without_a_stamp_is_an_error_that_names_it(
    spark: SparkSession, stamp: dict[str, int] | None
) -> None:
    log = log_of(4)
    log[2] = {**log[2], "stamp": stamp}
    with pytest.raises(PySparkException, match=rf"MISSING_STAMP.*{log[2]['event']}"):
        frame_of(spark, log).transform(order, TOPICS).collect()


def test_bad_arguments_of_order_are_rejected(spark: SparkSession, streamed: Streamed) -> None:
    frame = frame_of(spark, log_of(3))
    with pytest.raises(UnsupportedOrder, match="no ordering rule for 'tidy'; expected total"):
        order(frame, by="tidy")
    with pytest.raises(BadInput, match="'stamp' is missing"):
        order(frame.drop("stamp"))
    with pytest.raises(BadInput, match="'offset' is string, not bigint"):
        order(frame.withColumn("offset", f.lit("0")))
    with pytest.raises(BadInput, match=r"\['position'\] already"):
        order(frame.withColumn("position", f.lit(1)))
    with pytest.raises(BadInput, match="held_max is 0"):
        order(frame, held_max=0)
    with pytest.raises(BadInput, match="'soon': write a number"):
        order(frame, time_to_live="soon")
    with pytest.raises(BadInput, match="negative"):
        order(frame, time_to_live=dt.timedelta(seconds=-1))
    with pytest.raises(BadInput, match=r"give a list of topics, \['b'\]"):
        order(frame, "b")
    with pytest.raises(BadInput, match="topics is empty: name at least one"):
        order(frame, [])
    with pytest.raises(BadInput, match=r"first offsets of topics \['b'\]"):
        order(frame, {"b": -1})
    with pytest.raises(BadInput, match="a stream needs topics"):
        order(streamed.frame())


def test_topic_without_events_in_a_batch_is_a_warning(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    log = log_of(30)
    frame = frame_of(spark, log)
    order(frame, TOPICS)
    assert caplog.messages == []
    found = plain(order(frame, [*TOPICS, "oders"]).collect())
    assert found == expected(log, dict.fromkeys(TOPICS, 0))
    (warning,) = caplog.messages
    listed = ", ".join(map(repr, sorted({each["topic"] for each in log})))
    assert warning == (
        f"order: the data frame holds no events of 'oders' to be ordered; it holds {listed}"
    )


def test_stream_without_rocksdb_raises_an_error_with_the_setting(
    spark: SparkSession, streamed: Streamed
) -> None:
    name = "spark.sql.streaming.stateStore.providerClass"
    before = spark.conf.get(name)
    assert before is not None
    spark.conf.set(name, "org.example.Other")
    try:
        with pytest.raises(ConfigurationError, match=name):
            order(streamed.frame(), TOPICS)
    finally:
        spark.conf.set(name, before)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.verify)])
def test_stream_with_late_and_repeated_rows_equals_the_batch(streamed: Streamed, seed: int) -> None:
    log = log_of(90, seed=seed)
    coming = arriving(log, seed=seed, reach=30)
    again = Random(seed).sample(coming, 10)
    streamed.arrive(coming[:60])
    first = streamed.run()
    # Another query resumes from the checkpoint, with the held rows.
    streamed.arrive(*pieces([*coming[60:], *again], 20))
    found = streamed.run()
    assert plain(found) == expected(log, dict.fromkeys(TOPICS, 0))
    assert plain(first) == plain(found)[: len(first)]
    assert 0 < len(first) < len(found)


@pytest.mark.verify
def test_stream_releases_rows_in_order(streamed: Streamed) -> None:
    log = log_of(60)
    streamed.arrive(*pieces(arriving(log, seed=3), 20))
    seen: list[int] = []

    def look(frame: DataFrame, _: int) -> None:
        seen.extend(row["position"] for row in frame.select("position").collect())

    ordered = streamed.frame().transform(order, TOPICS, voids=True)
    writer = ordered.writeStream.foreachBatch(look).trigger(availableNow=True)
    writer.option("checkpointLocation", str(streamed.root / "looked")).start().awaitTermination()
    assert seen == list(range(1, 61))


@pytest.mark.verify
def test_a_stream_starts_at_a_cut(streamed: Streamed) -> None:
    log = log_of(60)
    cut = cut_at(log, 25)
    streamed.arrive(*pieces(arriving(log, seed=2), 20))
    assert plain(streamed.run(cut)) == expected(log, cut)


def lossy(log: Sequence[Event], *lost: int) -> list[Event]:
    return [one for index, one in enumerate(log) if index + 1 not in lost]


@pytest.fixture
def shown() -> list[Event]:
    """A log without voids."""
    return [{**one, "value": b"."} for one in log_of(40)]


def test_gap_is_skipped_after_its_time_to_live_and_reported(
    streamed: Streamed, shown: list[Event]
) -> None:
    streamed.arrive(*pieces(lossy(shown, 7, 8, 20), 20))
    found = streamed.run(time_to_live="5 seconds")
    assert reported(found) == [(9, "after_gap"), (21, "after_gap")]
    table = streamed.spark.read.parquet(str(streamed.root / "out"))
    missing = sorted((row["first"], row["last"], row["count"]) for row in gaps(table).collect())
    assert missing == [(7, 8, 2), (20, 20, 1)]
    # A late event is released once, out of order; the rest of the gap stays skipped.
    streamed.arrive([shown[7], shown[7]], [shown[7], shown[30]])
    found = streamed.run(time_to_live="5 seconds")
    assert reported(found) == [(8, "out_of_order"), (9, "after_gap"), (21, "after_gap")]
    assert len(found) == len({row["position"] for row in found}) == 38


@pytest.mark.verify
def test_held_max_skips_gaps_if_there_is_a_time_to_live(
    streamed: Streamed, shown: list[Event]
) -> None:
    streamed.arrive(*pieces(lossy(shown, 5), 10))
    assert reported(streamed.run(time_to_live=dt.timedelta(days=1), held_max=8)) == [
        (6, "after_gap")
    ]


@pytest.mark.verify
def test_held_max_without_time_to_live_fails_and_loses_nothing(
    streamed: Streamed, shown: list[Event]
) -> None:
    streamed.arrive(*pieces(lossy(shown, 5), 10))
    with pytest.raises(PySparkException, match=r"HELD_MAX_REACHED.*wait for position 5"):
        streamed.run(held_max=8)
    streamed.arrive([shown[4]])
    assert plain(streamed.run(held_max=100)) == expected(shown, dict.fromkeys(TOPICS, 0))


@pytest.mark.verify
def test_topics_not_mutually_ordered_fail_a_stream_with_both_events(
    spark: SparkSession, streamed: Streamed
) -> None:
    apart = [*log_of(5, topics=["b"]), *log_of(5, topics=["c"])]
    streamed.arrive(apart)
    with pytest.raises(PySparkException, match=r"POSITION_CONFLICT.*'[pq]/b/1' and '[pq]/c/1'"):
        streamed.run()
    found = gaps(frame_of(spark, [{**one, "value": b""} for one in apart]).transform(order))
    assert {(row["kind"], row["count"]) for row in found.collect()} == {("conflict", 2)}
    assert found.count() == 5


def test_gaps_are_exact_across_buckets(spark: SparkSession) -> None:
    width = 1 << 16
    lost = {1, 2, 500, width - 1, width, width + 1, 3 * width}
    lost |= set(range(4 * width + 5, 6 * width + 9))
    last = 6 * width + 20
    frame = spark.range(1, last + 1).select(
        f.col("id").alias("position"), f.concat(f.lit("e"), "id").alias("event")
    )
    kept = frame.where(~f.col("position").isin([p for p in lost if p < 4 * width])).where(
        ~f.col("position").between(4 * width + 5, 6 * width + 8)
    )
    more = frame.where("position IN (7, 9)").unionByName(
        frame.where("position = 9").withColumn("event", f.lit("other"))
    )
    found = gaps(kept.unionByName(more)).orderBy("first").collect()
    assert [tuple(row) for row in found] == [
        ("missing", 1, 2, 2, []),
        ("repeated", 7, 7, 2, ["e7"]),
        ("conflict", 9, 9, 3, ["e9", "other"]),
        ("missing", 500, 500, 1, []),
        ("missing", width - 1, width + 1, 3, []),
        ("missing", 3 * width, 3 * width, 1, []),
        ("missing", 4 * width + 5, 6 * width + 8, 2 * width + 4, []),
    ]
    with pytest.raises(BadInput, match=r"lacks columns \['position'\]"):
        gaps(frame.drop("position"))
