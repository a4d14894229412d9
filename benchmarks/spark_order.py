"""Measure how fast a log of many topics is ordered, in a batch and in a stream.

Run `python benchmarks/spark_order.py --events 20000000`. A log of `--topics` topics with whole
stamps and all columns of the event log is written as Parquet, one file per topic and segment.
Topics are a segment or two behind each other, so that a stream must hold events back. Then, in one
run on one machine:

* batch: read, order by position, write Parquet; by Spark, and by DuckDB with ORDER BY on the same
  sum of the same stamps. DuckDB has as many threads as Spark.
* stream: the same files, a few segments per micro-batch, ordered exactly once into Parquet; and the
  same stream copied without ordering, as an upper bound. "Sustained" omits the first micro-batch,
  in which Java compiles and Python starts.

Every time includes reading and writing. `--cores` applies to both.
"""

import argparse
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.usage import Watch

from ensue.spark import order, session

TOPICS = [f"topic-{number}" for number in range(8)]
PUBLISHERS = [f"publisher-{number}" for number in range(16)]
SEGMENT = 100_000
"""Events per segment of the log, over all topics."""
VALUE_BYTES = 32
Integers = npt.NDArray[np.int64]
joined: Any = pc.binary_join_element_wise


def column(values: Any, kind: pa.DataType | None = None) -> Any:
    """Return an Arrow array, untyped: the type stubs are wrong here."""
    return pa.array(values, kind)


def named(which: Integers, names: list[str]) -> Any:
    """Return names by their numbers."""
    return pa.DictionaryArray.from_arrays(column(which), column(names)).cast(pa.string())


def fixed(data: bytes, count: int, width: int) -> Any:
    """Return binaries of one width."""
    ends = np.arange(0, count * width + 1, width, dtype=np.int32)
    buffers = [None, pa.py_buffer(ends.tobytes()), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


def segments(events: int, segment: int) -> Iterator[tuple[Integers, pa.Table]]:
    """Generate a log in its order: the topic of each event, and the events."""
    random = np.random.default_rng(1)
    popular = np.arange(len(TOPICS), 0, -1.0)
    counts = np.zeros(len(TOPICS), dtype=np.int64)
    width = len(TOPICS)
    for first in range(0, events, segment):
        count = min(segment, events - first)
        rows = np.arange(count)
        topic = random.choice(width, size=count, p=popular / popular.sum())
        stamps = np.zeros((count, width), dtype=np.int64)
        stamps[rows, topic] = 1
        stamps = counts + np.cumsum(stamps, axis=0)
        counts = stamps[-1]
        publishers = named(random.integers(0, len(PUBLISHERS), count), PUBLISHERS)
        topics = named(topic, TOPICS)
        sequence = column(first + rows)
        data = random.bytes(count * VALUE_BYTES)
        entry_ends = column(np.arange(0, count * width + 1, width, dtype=np.int32))
        entries = named(np.tile(np.arange(width), count), TOPICS)
        each = column(np.arange(count + 1, dtype=np.int32))
        yield (
            topic,
            pa.table(
                {
                    "key": fixed(data[: count * 8], count, 8),
                    "value": fixed(data, count, VALUE_BYTES),
                    "topic": topics,
                    "publisher": publishers,
                    "publisher_seq": sequence,
                    "event": joined(publishers, topics, sequence.cast(pa.string()), "/"),
                    "stamp": pa.MapArray.from_arrays(entry_ends, entries, column(stamps.ravel())),
                    "published_at": column(
                        1_700_000_000_000_000 + (first + rows) * 10, pa.timestamp("us", tz="UTC")
                    ),
                    "offset": column(stamps[rows, topic] - 1),
                    "headers": pa.MapArray.from_arrays(
                        each, named(np.zeros(count, dtype=np.int64), ["kind"]), publishers
                    ),
                }
            ),
        )


def generate(folder: Path, events: int, segment: int) -> None:
    """Write the log; the times of the files define the order in which a stream reads them."""
    folder.mkdir()
    for number, (topic, table) in enumerate(segments(events, segment)):
        for which in range(len(TOPICS)):
            part = table.filter(pa.array(topic == which))
            if part.num_rows:
                file = folder / f"{number:06}-{which}.parquet"
                pq.write_table(part, file)
                behind = which % 3
                arrival = 1_700_000_000 + (number + behind) * 100 + which
                os.utime(file, (arrival, arrival))


def timed(work: Callable[[], object]) -> float:
    """Return the seconds that a function takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def batch(spark: SparkSession, log: Path, out: Path) -> None:
    """Order the log and write it."""
    ordered = spark.read.parquet(str(log)).transform(order, topics=TOPICS)
    ordered.write.parquet(str(out))


def duck(log: Path, out: Path, cores: int, spill: Path) -> None:
    """Do the same with DuckDB."""
    total = " + ".join(f"coalesce(stamp['{topic}'], 0)" for topic in TOPICS)
    with duckdb.connect() as connection:
        connection.execute(f"SET threads = {cores}")
        connection.execute(f"SET temp_directory = '{spill}'")
        connection.execute(
            f"COPY (SELECT *, {total} AS position FROM read_parquet('{log}/*.parquet')"  # noqa: S608
            f" WHERE value IS NOT NULL ORDER BY position) TO '{out}' (FORMAT parquet)"
        )


def stream(
    spark: SparkSession, log: Path, out: Path, files: int, through: Callable[[DataFrame], DataFrame]
) -> float:
    """Stream the files through a query into a table; return the sustained events per second."""
    schema = spark.read.parquet(str(log)).schema
    source = spark.readStream.schema(schema).option("maxFilesPerTrigger", files).parquet(str(log))
    writer = through(source).writeStream.format("parquet").trigger(availableNow=True)
    query = writer.option("checkpointLocation", f"{out}-checkpoint").start(str(out))
    query.awaitTermination()
    later = query.recentProgress[1:]
    rows = sum(int(one["numInputRows"]) for one in later)
    milliseconds = sum(int(one["durationMs"]["triggerExecution"]) for one in later)
    return rows * 1000 / max(1, milliseconds)


def in_order(spark: SparkSession, table: Path, events: int) -> bool:
    """Return whether a table has positions 1, 2, 3, … each once."""
    found = spark.read.parquet(str(table)).selectExpr(
        "count(position)", "count(DISTINCT position)", "min(position)", "max(position)"
    )
    return [*found.collect()[0]] == [events, events, 1, events]


def main() -> None:
    """Generate traces, measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--events", type=int, default=2_000_000)
    parser.add_argument("--stream-events", type=int, help="of them for the stream; all unless set")
    parser.add_argument("--topics", type=int, default=8, help="and so the entries of a stamp")
    parser.add_argument("--segments-per-batch", type=int, default=5)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--memory", default="2g", help="of Spark's Java process")
    parser.add_argument("--folder", type=Path, help="where to write; a temporary one unless set")
    parser.add_argument("--quick", action="store_true", help="a few thousand events, to try it out")
    chosen = parser.parse_args()
    del TOPICS[chosen.topics :]
    events = 6_000 if chosen.quick else chosen.events
    segment = 1_000 if chosen.quick else SEGMENT
    print(f"{os.cpu_count()} cores, {chosen.cores} used, Python {platform.python_version()}")
    print(f"{len(TOPICS)} topics, {len(TOPICS)} entries a stamp, all columns", flush=True)
    if chosen.quick:
        print("quick: scaled down, the figures mean nothing")
    folder = Path(tempfile.mkdtemp(prefix="ensue-order-", dir=chosen.folder))
    try:
        measure(chosen, folder, events, segment)
    finally:
        shutil.rmtree(folder)


def measure(chosen: argparse.Namespace, folder: Path, events: int, segment: int) -> None:
    """Run all cases and print a line each."""
    log, coming = folder / "log", folder / "log"
    print(
        f"log: {events:,} events written in {timed(lambda: generate(log, events, segment)):.1f} s"
    )
    streamed = min(events, chosen.stream_events or events)
    if streamed < events:
        coming = folder / "coming"
        generate(coming, streamed, segment)
    spark = session(f"local[{chosen.cores}]", settings={"spark.driver.memory": chosen.memory})
    spark.range(1000).selectExpr("sum(id)").collect()
    heads = ("events", "seconds", "events/s", "CPU s", "Java MB", "Python MB")
    print(" " * 20 + "".join(f"{head:>12}" for head in heads))

    sustained: dict[str, float] = {}

    def line(name: str, count: int, work: Callable[[], object]) -> float:
        with Watch() as watch:
            seconds = timed(work)
        java, python = (watch.most.get(kind, 0) / 1e6 for kind in ("java", "python"))
        print(
            f"{name:20}{count:>12,}{seconds:>12.1f}{count / seconds:>12,.0f}"
            f"{watch.cpu_s:>12.1f}{java:>12,.0f}{python:>12,.0f}",
            flush=True,
        )
        return seconds

    ours = line("batch, Spark", events, lambda: batch(spark, log, folder / "batch"))
    theirs = line(
        "batch, DuckDB", events, lambda: duck(log, folder / "duck", chosen.cores, folder / "spill")
    )
    spark.conf.set("spark.sql.shuffle.partitions", str(chosen.cores))
    files = len(TOPICS) * chosen.segments_per_batch
    copied = line(
        "stream, only copied",
        streamed,
        lambda: sustained.update(
            copied=stream(spark, coming, folder / "copied", files, lambda frame: frame)
        ),
    )
    ordered = line(
        "stream, ordered",
        streamed,
        lambda: sustained.update(
            ordered=stream(
                spark, coming, folder / "stream", files, lambda frame: order(frame, TOPICS)
            )
        ),
    )
    print(f"batch: {theirs / ours:.2f} x DuckDB (goal: 0.25), goal: 1,000,000 events/s")
    print(
        f"stream: {copied / ordered:.2f} x a copy; sustained {sustained['ordered']:,.0f} events/s, "
        f"copied {sustained['copied']:,.0f}, goal: 100,000"
    )
    exact = [
        in_order(spark, folder / name, count)
        for name, count in (("batch", events), ("stream", streamed))
    ]
    print(f"exactly the positions of the log, each once: {all(exact)}")
    spark.stop()


if __name__ == "__main__":
    main()
