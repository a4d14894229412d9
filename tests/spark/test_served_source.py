"""`format("ensue")` reads a served bus: partitions in parallel, streams across server crashes."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.store.publisher_process import publish, topics_at_random
from tests.store.server_process import Served, mirrored, spare_port

from ensue.client import ReceivedEvent
from ensue.spark import gaps, order
from ensue.spark.lake.inputs import find_inputs
from ensue.spark.options import SourceOptions
from ensue.spark.source import LogBatchReader
from ensue.store import COLUMNS

SEED = 2
TOPICS = ("orders", "payments", "shipments")
EVENTS, STREAMED = 900, 6_000

Bus = tuple[Served, list[ReceivedEvent]]


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bus]:
    """A server, and the events that it keeps as a subscriber got them."""
    with Served(tmp_path_factory.mktemp("served") / "data") as server:
        plan = topics_at_random(SEED, EVENTS, TOPICS)
        yield server, publish(server.url, plan, TOPICS)


def read(spark: SparkSession, server: Served, **options: str) -> DataFrame:
    return spark.read.format("ensue").option("url", server.url).options(**options).load()


def wait(query: StreamingQuery, look: Callable[[], Any], enough: Callable[[Any], bool]) -> None:
    """Poll a query until a condition holds."""
    deadline = time.monotonic() + 300
    while (found := look()) is None or not enough(found):
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline, f"never came true: {found}"
        time.sleep(0.1)


def test_a_batch_of_many_partitions_has_the_rows_of_the_directory(
    spark: SparkSession, bus: Bus, tmp_path: Path
) -> None:
    server, _ = bus
    mirrored(tmp_path, server)
    frame = read(spark, server, partitionRows="60")
    planned = LogBatchReader(SourceOptions(url=server.url, partition_rows=60), COLUMNS)
    parts = len(planned.partitions())
    assert parts > 15
    assert frame.rdd.getNumPartitions() == parts
    expected = spark.read.format("ensue").load(str(tmp_path / "mirror"))
    assert expected.count() == EVENTS
    assert sorted(frame.collect(), key=lambda row: row.event) == sorted(
        expected.collect(), key=lambda row: row.event
    )


@pytest.mark.parametrize("rows", ["150", pytest.param("500000", marks=pytest.mark.verify)])
def test_batch_has_the_order_that_a_subscriber_saw(
    spark: SparkSession, bus: Bus, rows: str
) -> None:
    server, seen = bus
    frame = spark.read.format("ensue").option("partitionRows", rows).load(server.url)
    ordered = order(frame, topics=TOPICS).collect()
    assert [row.event for row in ordered] == [event.id for event in seen]
    assert [row.position for row in ordered] == list(range(1, EVENTS + 1))
    assert gaps(order(frame, topics=TOPICS)).isEmpty()


def test_requested_ranges_and_columns_are_read(spark: SparkSession, bus: Bus) -> None:
    server, _ = bus
    frame = (
        spark.read.format("ensue")
        .schema("offset bigint, topic string")
        .options(
            url=server.url,
            subscribe="payments",
            startingOffsets='{"payments": 17}',
            endingOffsets='{"payments": 250}',
            partitionRows="100",
        )
        .load()
    )
    assert sorted(row.offset for row in frame.collect()) == list(range(17, 250))
    assert frame.columns == ["offset", "topic"]


def test_errors_about_missing_topics_and_servers_hide_the_token(
    spark: SparkSession, bus: Bus
) -> None:
    server, _ = bus
    with pytest.raises(PySparkException) as error:
        read(spark, server, subscribe="ordres").collect()
    assert "[UNKNOWN_TOPIC] there is no topic 'ordres'" in str(error.value)
    assert "'orders', 'payments', 'shipments'" in str(error.value)
    nowhere = f"ensue://127.0.0.1:{spare_port()}"
    with pytest.raises(PySparkException, match=r"no server answers at 127\.0\.0\.1:") as error:
        spark.read.format("ensue").load(f"{nowhere}?token=secret").collect()
    options = SourceOptions(url=f"{nowhere}?token=secret")
    assert options.shown == nowhere


def _reached(batches: int, progress: Any) -> bool:
    return bool(progress["batchId"] >= batches)


@pytest.mark.verify
def test_stream_resumes_after_its_server_is_killed(spark: SparkSession, tmp_path: Path) -> None:
    plan = topics_at_random(SEED, STREAMED, TOPICS)
    with Served(tmp_path / "data") as server:
        seen = publish(server.url, plan[:4_000], TOPICS)
        query = (
            spark.readStream.format("ensue")
            .options(maxOffsetsPerTrigger="500", partitionRows="100")
            .load(server.url)
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(processingTime="0 seconds")
            .start(str(tmp_path / "out"))
        )
        try:
            for batches in (2, 4):
                enough = partial(_reached, batches)
                wait(query, lambda: query.lastProgress, enough)
                server.kill()
                time.sleep(1)
                server.start()
            seen += publish(server.url, plan[4_000:], TOPICS)
            wait(
                query,
                lambda: spark.read.parquet(str(tmp_path / "out")).count(),
                lambda count: count >= STREAMED,
            )
            assert query.isActive
            sizes = [each["numInputRows"] for each in query.recentProgress]
            assert max(sizes) <= 500
        finally:
            query.stop()
        found = spark.read.parquet(str(tmp_path / "out"))
        assert found.count() == STREAMED
        ordered = order(found, topics=TOPICS).collect()
        assert [row.event for row in ordered] == [event.id for event in seen]
        expected = spark.read.format("ensue").load(server.url)
        assert sorted(found.collect(), key=lambda row: row.event) == sorted(
            expected.collect(), key=lambda row: row.event
        )


def test_pipeline_reads_events_from_a_server() -> None:
    found = find_inputs("ensue://127.0.0.1:7400?token=t")
    assert found.log == "ensue://127.0.0.1:7400?token=t"
    assert found.trace is None
    assert found.no_trace == "a server keeps the events, and no trace"
