"""Logs as the sequencer stamps them, and an ordered stream of files."""

import datetime as dt
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from ensue.spark import order
from ensue.store import log_schema

SCHEMA = (
    "key binary, value binary, topic string, publisher string, publisher_seq bigint, event string,"
    " stamp map<string,bigint>, published_at timestamp, offset bigint, headers map<string,string>"
)
TOPICS = ("ä", "b", "c")
START = dt.datetime(2026, 1, 1, microsecond=123_457, tzinfo=dt.UTC)
Event = dict[str, Any]


def log_of(count: int, *, seed: int = 0, topics: Sequence[str] = TOPICS) -> list[Event]:
    """Return a log in order: each stamp has the counts of all topics."""
    random = Random(seed)
    counts: dict[str, int] = {}
    sequences: dict[tuple[str, str], int] = {}
    log: list[Event] = []
    for index in range(count):
        topic, publisher = random.choice(topics), random.choice("pq")
        counts[topic] = counts.get(topic, 0) + 1
        sequence = sequences[topic, publisher] = sequences.get((topic, publisher), 0) + 1
        log.append(
            {
                "key": random.choice([None, b"", b"\x00\xff\n"]),
                "value": bytes([index % 256, 0, 255]) if random.random() < 0.9 else None,
                "topic": topic,
                "publisher": publisher,
                "publisher_seq": sequence,
                "event": f"{publisher}/{topic}/{sequence}",
                "stamp": dict(counts),
                "published_at": START + dt.timedelta(seconds=index, microseconds=index),
                "offset": counts[topic] - 1,
                "headers": random.choice([{}, None, {"größe": "✓", "none": None}]),
            }
        )
    return log


def arriving(log: Sequence[Event], *, seed: int, reach: int = 12) -> list[Event]:
    """Return the same events, each up to `reach` places from its position."""
    random = Random(seed)
    places = [(index + random.uniform(0, reach), index) for index in range(len(log))]
    return [log[index] for _, index in sorted(places)]


def pieces(events: Sequence[Event], size: int) -> list[list[Event]]:
    return [list(events[at : at + size]) for at in range(0, len(events), size)]


class Streamed:
    """A stream of files, one micro-batch each, ordered into a Parquet table."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark, self.root = spark, root
        self.written = 0
        (root / "in").mkdir(parents=True)

    def arrive(self, *micro_batches: Sequence[Event]) -> None:
        for events in micro_batches:
            staged = self.root / "staged.parquet"
            pq.write_table(pa.Table.from_pylist(list(events), schema=log_schema()), str(staged))
            staged.rename(self.root / "in" / f"{self.written:05}.parquet")
            self.written += 1

    def frame(self) -> DataFrame:
        source = self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        # Spark reads files of the same millisecond in the order of their names.
        return source.parquet(str(self.root / "in"))

    def run(self, topics: Any = TOPICS, **options: Any) -> list[Row]:
        """Order the files that arrived since the last run; return the whole table."""
        ordered = self.frame().transform(order, topics, **options)
        self.started(ordered).awaitTermination()
        return self.table()

    def started(self, ordered: DataFrame) -> StreamingQuery:
        writer = ordered.writeStream.format("parquet").trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(self.root / "checkpoint"))
        return writer.start(str(self.root / "out"))

    def table(self) -> list[Row]:
        return rows_of(self.spark.read.parquet(str(self.root / "out")))


def rows_of(frame: DataFrame) -> list[Row]:
    return frame.orderBy("position", "verdict").collect()


def reported(rows: Sequence[Row]) -> list[tuple[int, str]]:
    return [(row["position"], row["verdict"]) for row in rows if row["verdict"]]


def frame_of(spark: SparkSession, events: Sequence[Event]) -> DataFrame:
    return spark.createDataFrame(pa.Table.from_pylist(list(events), schema=log_schema()))


def expected(
    log: Sequence[Event], topics: Mapping[str, int], *, voids: bool = False
) -> list[Event]:
    """Return the expected rows: the log in order, with positions."""
    chosen = [one for one in log if one["offset"] >= topics.get(one["topic"], len(log))]
    return [
        {**one, "position": position, "verdict": "void" if one["value"] is None else ""}
        for position, one in enumerate(chosen, start=1)
        if voids or one["value"] is not None
    ]


def plain(rows: Sequence[Row]) -> list[Event]:
    """Return rows as events, with times in UTC: Spark returns local time without a zone."""
    return [
        {
            **row.asDict(),
            "key": None if row["key"] is None else bytes(row["key"]),
            "value": None if row["value"] is None else bytes(row["value"]),
            "published_at": row["published_at"].astimezone(dt.UTC),
        }
        for row in rows
    ]


def cut_at(log: Sequence[Event], index: int) -> dict[str, int]:
    """Return the first offset of each topic from an event on: a cut of the order."""
    return {topic: sum(one["topic"] == topic for one in log[:index]) for topic in TOPICS}
