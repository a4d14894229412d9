"""`format("ensue")` reads event logs: every option, every error, batches and streams alike."""

import json
import pickle
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from tests.store.helpers import rows

import pyspark_ensue
from ensue.spark.conditions import SparkFault
from ensue.spark.options import SinkOptions, SourceOptions
from ensue.spark.source import EnsueDataSource, LogBatchReader, LogStreamReader, share
from ensue.store import COLUMNS, LogWriter


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LogWriter]:
    """Write a log of topics a (0 to 9), b (0 to 4) and c.d (0 to 1), in segments of up to five."""
    with LogWriter(tmp_path / "log") as writer:
        writer.append(rows("a", range(1, 6), stamp={"a": 1}) + rows("b", range(1, 6)))
        writer.append(rows("a", range(6, 11), key=b"k", headers={"x": "y"}) + rows("c.d", [1, 2]))
        yield writer


def read(spark: SparkSession, log: LogWriter, **options: str) -> DataFrame:
    reader = spark.read.format("ensue").option("url", str(log.directory))
    return reader.options(**options).load()


def places(frame: DataFrame) -> dict[str, list[int]]:
    """Return the offsets of each topic, sorted."""
    found: dict[str, list[int]] = {}
    for row in sorted(frame.select("topic", "offset").collect()):
        found.setdefault(row.topic, []).append(row.offset)
    return found


class Stream:
    """Streaming queries over a log into a Parquet table, one after the other, one checkpoint."""

    def __init__(self, spark: SparkSession, log: LogWriter, place: Path) -> None:
        self.spark = spark
        self.log = log
        self.place = place
        self.batches: list[int] = []

    def run(self, **options: str) -> dict[str, list[int]]:
        stream = self.spark.readStream.format("ensue").options(**options)
        query = (
            stream.load(str(self.log.directory))
            .writeStream.format("parquet")
            .option("checkpointLocation", str(self.place / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(self.place / "out"))
        )
        try:
            query.awaitTermination(120)
            self.batches = [each["numInputRows"] for each in query.recentProgress]
        finally:
            query.stop()
        return places(self.spark.read.parquet(str(self.place / "out")))


@pytest.fixture
def stream(spark: SparkSession, log: LogWriter, tmp_path: Path) -> Stream:
    return Stream(spark, log, tmp_path)


def refused(condition: str, action: Callable[[], object]) -> str:
    """Run what must fail with a condition; return the text."""
    with pytest.raises((PySparkException, SparkFault)) as error:
        action()
    text = str(error.value)
    assert f"[{condition}]" in text
    return text


def test_source_is_found_without_registration(spark: SparkSession, log: LogWriter) -> None:
    assert pyspark_ensue.DefaultSource is EnsueDataSource
    frame = spark.read.format("ensue").load(str(log.directory))
    assert tuple(frame.columns) == COLUMNS
    assert frame.count() == 17


def test_rows_have_every_column(spark: SparkSession, log: LogWriter) -> None:
    first, last = (
        read(spark, log, subscribe="a").where("offset in (0, 9)").orderBy("offset").collect()
    )
    assert first.asDict() == {
        "key": None,
        "value": b"a 1",
        "topic": "a",
        "publisher": "web",
        "publisher_seq": 1,
        "event": "web/a/1",
        "stamp": {"a": 1},
        "published_at": first.published_at,
        "offset": 0,
        "headers": {},
    }
    assert first.published_at.microsecond == 1
    assert (last.key, last.headers, last.stamp) == (b"k", {"x": "y"}, None)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"a": 10, "b": 5, "c.d": 2}),
        ({"subscribe": "a, c.d"}, {"a": 10, "c.d": 2}),
        ({"subscribe": "a,nowhere", "failOnDataLoss": "false"}, {"a": 10}),
        ({"subscribePattern": "[ab]"}, {"a": 10, "b": 5}),
        ({"SUBSCRIBEPATTERN": "c.*"}, {"c.d": 2}),
    ],
)
def test_topics_are_chosen_by_name_or_pattern(
    log: LogWriter, options: dict[str, str], expected: dict[str, int]
) -> None:
    reader = batch_reader(log, **options)
    found: Counter[str] = Counter()
    for part in reader.partitions():
        for batch in reader.read(part):
            found.update(map(str, batch.column("topic").to_pylist()))
    assert found == expected


def test_batch_has_the_requested_offsets(spark: SparkSession, log: LogWriter) -> None:
    starting, ending = json.dumps({"a": 3, "b": -2}), json.dumps({"a": 6, "c.d": -1})
    found = places(read(spark, log, startingOffsets=starting, endingOffsets=ending))
    assert found == {"a": [3, 4, 5], "b": [0, 1, 2, 3, 4], "c.d": [0, 1]}
    assert places(read(spark, log, startingOffsets="Earliest", endingOffsets="LATEST")) == places(
        read(spark, log)
    )


def test_a_topic_is_split_into_ranges_of_offsets(spark: SparkSession, log: LogWriter) -> None:
    assert read(spark, log).rdd.getNumPartitions() == 3
    frame = read(spark, log, partitionRows="3")
    assert frame.rdd.getNumPartitions() == 4 + 2 + 1
    assert places(frame) == places(read(spark, log))


def test_a_schema_chooses_columns(spark: SparkSession, log: LogWriter) -> None:
    reader = spark.read.format("ensue").schema("offset bigint, topic string")
    frame = reader.load(str(log.directory))
    assert frame.columns == ["offset", "topic"]
    assert places(frame) == places(read(spark, log))
    other = spark.read.format("ensue").schema("offset string")
    refused("UNSUPPORTED_SCHEMA", lambda: other.load(str(log.directory)).collect())


@pytest.mark.parametrize(
    ("condition", "streaming", "options"),
    [
        ("MISSING_OPTION", None, {}),
        ("UNKNOWN_OPTION", None, {"url": "x", "subscrbe": "a"}),
        ("CONFLICTING_OPTIONS", None, {"url": "x", "subscribe": "a", "subscribePattern": "a"}),
        ("CONFLICTING_OPTIONS", None, {"url": "x", "path": "y"}),
        ("CONFLICTING_OPTIONS", True, {"url": "x", "endingOffsets": "latest"}),
        ("CONFLICTING_OPTIONS", False, {"url": "x", "maxOffsetsPerTrigger": "9"}),
        ("INVALID_OPTION_VALUE", None, {"url": "x", "subscribe": "a,,b"}),
        ("INVALID_OPTION_VALUE", None, {"url": "x", "subscribePattern": "("}),
        ("INVALID_OPTION_VALUE", None, {"url": "x", "startingOffsets": "yesterday"}),
        ("INVALID_OPTION_VALUE", None, {"url": "x", "startingOffsets": '{"a": -3}'}),
        ("INVALID_OPTION_VALUE", None, {"url": "x", "startingOffsets": '{"a": "1"}'}),
        ("INVALID_OPTION_VALUE", False, {"url": "x", "startingOffsets": "latest"}),
        ("INVALID_OPTION_VALUE", False, {"url": "x", "startingOffsets": '{"a": -1}'}),
        ("INVALID_OPTION_VALUE", False, {"url": "x", "endingOffsets": "earliest"}),
        ("INVALID_OPTION_VALUE", False, {"url": "x", "endingOffsets": '{"a": -2}'}),
        (
            "INVALID_OPTION_VALUE",
            None,
            {"url": "x", "subscribe": "a", "startingOffsets": '{"b": 1}'},
        ),
        (
            "INVALID_OPTION_VALUE",
            False,
            {"url": "x", "startingOffsets": '{"a": 6}', "endingOffsets": '{"a": 3}'},
        ),
        ("INVALID_OPTION_VALUE", None, {"url": "x", "startingOffsets": '{"a": {"0": 6}}'}),
        ("INVALID_OPTION_VALUE", None, {"url": "x", "maxOffsetsPerTrigger": "0"}),
        ("INVALID_OPTION_VALUE", None, {"url": "x", "partitionRows": "many"}),
        ("INVALID_OPTION_VALUE", None, {"url": "x", "failOnDataLoss": "maybe"}),
    ],
)
def test_bad_options_are_rejected(
    condition: str, streaming: bool | None, options: dict[str, str]
) -> None:
    refused(condition, lambda: SourceOptions.parse(options, streaming=streaming))


def test_bad_option_raises_an_error_of_spark(spark: SparkSession, log: LogWriter) -> None:
    text = refused("UNKNOWN_OPTION", lambda: read(spark, log, subscrbe="a"))
    assert "there is no option 'subscrbe'; expected url, subscribe, " in text
    with pytest.raises(PySparkException, match="endingOffsets is for batches"):
        spark.readStream.format("ensue").option("endingOffsets", "latest").load(
            str(log.directory)
        ).writeStream.format("noop").start().awaitTermination(60)
    with pytest.raises(PySparkException, match="does not exist"):
        spark.read.format("ensue").load(str(log.directory / "nowhere")).count()


def test_a_stream_has_the_rows_of_a_batch(
    spark: SparkSession, log: LogWriter, stream: Stream
) -> None:
    assert stream.run(maxOffsetsPerTrigger="7", partitionRows="3") == places(read(spark, log))
    assert stream.batches == [7, 7, 3]


def test_stream_resumes_and_reads_new_topics(
    spark: SparkSession, log: LogWriter, stream: Stream
) -> None:
    stream.run()
    log.append(rows("a", [11, 12]) + rows("e", [1, 2, 3]))
    assert stream.run(maxOffsetsPerTrigger="4") == places(read(spark, log))
    assert stream.batches == [4, 1]


@pytest.mark.verify
def test_stream_from_latest_has_later_events(log: LogWriter, stream: Stream) -> None:
    starting = json.dumps({"a": -1, "b": 3, "c.d": -1})
    assert stream.run(startingOffsets=starting) == {"b": [3, 4]}
    log.append(rows("a", [11]) + rows("e", [1]))
    assert stream.run(startingOffsets=starting) == {"a": [10], "b": [3, 4], "e": [0]}


@pytest.mark.verify
def test_missing_offsets_are_an_error_or_a_warning(
    spark: SparkSession, log: LogWriter, stream: Stream
) -> None:
    stream.run(maxOffsetsPerTrigger="5", subscribe="a", startingOffsets='{"a": 1}')
    log.append(rows("a", range(11, 14)))
    log.append(rows("a", range(14, 16)))
    log.trim("a", 13)
    text = refused("OFFSETS_GONE", lambda: stream.run(subscribe="a"))
    assert "offsets 10 to 12 of topic 'a'" in text
    assert stream.run(subscribe="a", failOnDataLoss="false") == {"a": [*range(1, 10), 13, 14]}
    refused("OFFSETS_GONE", lambda: read(spark, log, startingOffsets='{"a": 4}').count())
    lenient = {"failOnDataLoss": "false", "subscribe": "a"}
    assert places(read(spark, log, startingOffsets='{"a": 4}', **lenient)) == {"a": [13, 14]}


@pytest.mark.parametrize(
    ("option", "expected"), [("startingOffsets", []), ("endingOffsets", [(0, 5)])]
)
def test_a_batch_beyond_the_end_is_an_error_or_a_warning(
    log: LogWriter, option: str, expected: list[tuple[int, int]]
) -> None:
    for fail in ("true", "false"):
        given = {"subscribe": "b", option: '{"b": 9}', "failOnDataLoss": fail}
        reader = batch_reader(log, **given)
        if fail == "true":
            text = refused("OFFSETS_BEYOND_END", reader.partitions)
            assert "the log of topic 'b'" in text
            assert f"ends with offset 4, and {option} is 9" in text
        else:
            assert [(part.start, part.end) for part in reader.partitions()] == expected


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        ({"subscribe": "aa"}, "there is no topic 'aa' in"),
        ({"subscribe": "a,bb,cc"}, "there are no topics 'bb', 'cc' in"),
        ({"startingOffsets": '{"aa": 3}'}, "there is no topic 'aa' in"),
        ({"endingOffsets": '{"aa": 0}'}, "there is no topic 'aa' in"),
    ],
)
def test_batch_of_unknown_topic_raises_an_error_that_lists_known_ones(
    log: LogWriter, options: dict[str, str], reported: str
) -> None:
    text = refused("UNKNOWN_TOPIC", batch_reader(log, **options).partitions)
    assert reported in text
    assert "there are 'a', 'b', 'c.d'" in text


def test_unknown_topic_raises_an_error_of_spark(spark: SparkSession, log: LogWriter) -> None:
    text = refused("UNKNOWN_TOPIC", lambda: read(spark, log, subscribe="aa").count())
    assert "there is no topic 'aa'" in text


def test_a_pattern_that_matches_nothing_is_a_warning(
    log: LogWriter, caplog: pytest.LogCaptureFixture
) -> None:
    assert batch_reader(log, subscribePattern="x.*").partitions() == []
    assert "subscribePattern 'x.*' matches no topic" in caplog.text
    assert "there are 'a', 'b', 'c.d'" in caplog.text


def test_stream_waits_for_a_topic_and_warns_once(
    log: LogWriter, caplog: pytest.LogCaptureFixture
) -> None:
    reader = reader_of(log, subscribe="a,late")
    start = reader.initialOffset()
    assert reader.latestOffset(start, ReadAllAvailable()) == {"a": 10}
    log.append(rows("late", [1]))
    assert reader.latestOffset({"a": 10}, ReadAllAvailable()) == {"a": 10, "late": 1}
    (warning,) = caplog.messages
    assert "there is no topic 'late' in" in warning
    assert warning.endswith("there are 'a', 'b', 'c.d': the stream waits for it")


@pytest.mark.verify
def test_a_log_that_was_replaced_by_a_shorter_one_is_an_error(
    log: LogWriter, stream: Stream, tmp_path: Path
) -> None:
    stream.run(subscribe="a")
    with LogWriter(tmp_path / "other") as other:
        other.append(rows("a", [1, 2]))
        stream.log = other
        reported = r"\[OFFSETS_BEYOND_END\] .* ends with offset 1, .*replaced.* resumes at 10"
        with pytest.raises(StreamingQueryException, match=reported):
            stream.run(subscribe="a")


def batch_reader(log: LogWriter, **options: str) -> LogBatchReader:
    given = {"url": str(log.directory), **options}
    return LogBatchReader(SourceOptions.parse(given, streaming=False), COLUMNS)


def reader_of(log: LogWriter, **options: str) -> LogStreamReader:
    given = {"url": str(log.directory), **options}
    return LogStreamReader(SourceOptions.parse(given, streaming=True), COLUMNS)


def test_relative_path_is_resolved_on_the_driver(
    log: LogWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = Path(log.directory)
    monkeypatch.chdir(there.parent)
    for given in ({"path": there.name}, {"url": there.name}):
        reader = LogBatchReader(SourceOptions.parse(given, streaming=False), COLUMNS)
        (elsewhere := tmp_path / "elsewhere").mkdir(exist_ok=True)
        monkeypatch.chdir(elsewhere)
        sent = pickle.loads(pickle.dumps(reader))
        assert sum(batch.num_rows for part in sent.partitions() for batch in sent.read(part)) > 0
        monkeypatch.chdir(there.parent)
    assert SinkOptions.parse({"path": "a"}).url == str(there.parent / "a")
    for url in ("ensue://localhost:7400", "file:///a/b"):
        assert SourceOptions.parse({"url": url}, streaming=False).url == url


def test_a_range_trimmed_after_it_was_planned_is_an_error_or_a_warning(log: LogWriter) -> None:
    strict = batch_reader(log, subscribe="a")
    lenient = batch_reader(log, subscribe="a", failOnDataLoss="false")
    (part,) = strict.partitions()
    log.trim("a", 5)
    refused("OFFSETS_GONE", lambda: list(strict.read(part)))
    found = [each["offset"] for batch in lenient.read(part) for each in batch.to_pylist()]
    assert found == [5, 6, 7, 8, 9]


def test_stream_offset_advances_while_there_are_events(log: LogWriter) -> None:
    reader = reader_of(log, maxOffsetsPerTrigger="2")
    assert isinstance(reader.getDefaultReadLimit(), ReadMaxRows)
    assert isinstance(reader_of(log).getDefaultReadLimit(), ReadAllAvailable)
    assert reader.initialOffset() == {"a": 0, "b": 0, "c.d": 0}
    offset = reader.initialOffset()
    seen: dict[str, list[int]] = {}
    while (end := reader.latestOffset(offset, ReadMaxRows(2))) != offset:
        taken = sum(end.values()) - sum(offset.values())
        assert 1 <= taken <= 2
        for part in reader.partitions(offset, end):
            for batch in reader.read(part):
                for each in batch.to_pylist():
                    seen.setdefault(each["topic"], []).append(each["offset"])
        offset = json.loads(json.dumps(end))
    assert offset == reader.reportLatestOffset() == {"a": 10, "b": 5, "c.d": 2}
    assert seen == {"a": list(range(10)), "b": list(range(5)), "c.d": [0, 1]}


def test_available_now_ends_at_the_log_as_it_was_at_the_start(
    log: LogWriter,
) -> None:
    reader = reader_of(log)
    reader.prepareForTriggerAvailableNow()
    log.append(rows("a", [11]) + rows("z", [1]))
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert end == {"a": 10, "b": 5, "c.d": 2, "z": 0}
    assert reader_of(log).latestOffset({}, ReadAllAvailable()) == {
        "a": 11,
        "b": 5,
        "c.d": 2,
        "z": 1,
    }


@pytest.mark.parametrize(
    ("left", "limit", "expected"),
    [
        ({"a": 3, "b": 4}, 9, {"a": 3, "b": 4}),
        ({"a": 900, "b": 100}, 100, {"a": 89, "b": 11}),
        ({"a": 1_000_000, "b": 1}, 10, {"a": 9, "b": 1}),
        ({"a": 5, "b": 5, "c": 5}, 4, {"a": 2, "b": 1, "c": 1}),
    ],
)
def test_limit_is_shared_by_remaining_offsets(
    left: dict[str, int], limit: int, expected: dict[str, int]
) -> None:
    assert share(left, limit, turn=0) == expected


def test_every_topic_gets_a_turn_if_the_limit_is_small() -> None:
    left: dict[str, Any] = {f"t{number}": 100 for number in range(7)}
    taken = dict.fromkeys(left, 0)
    for _ in range(7):
        for topic, count in share(left, 3, turn=sum(taken.values())).items():
            taken[topic] += count
    assert set(taken.values()) == {3}
