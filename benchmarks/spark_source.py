"""Rows per second that Spark reads from an event log, and that the log reader alone reads.

Makes a log of 4 topics with 100-byte values and stamps of 4 entries, then reads all of it on two
cores: with Spark, every column and two of them, into a sink that drops everything; as a stream; by
Spark's own Parquet reader, from a copy, which is what Spark can do with such rows; and with the
reader alone, without Spark, on one core. Wall-clock time, and the CPU time of all processes
(Python, Java and its Python workers), which a busy machine disturbs less. The first read, which
starts Python workers, is not counted.

    python benchmarks/spark_source.py [--quick] [--rows N] [--master local[2]]
"""

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.usage import descendants

from ensue.spark import session
from ensue.store import LogWriter, open_log
from ensue.store.local_sequencer import publication_schema, publish

TOPICS = ("orders", "payments", "stock", "refunds")
BATCH = 250_000


def make_log(place: Path, rows: int) -> None:
    """Write a log of `rows` rows."""
    rng = np.random.default_rng(1)
    schema = publication_schema()
    with LogWriter(place) as log:
        for first in range(0, rows, BATCH):
            count = min(BATCH, rows - first)
            values = pa.FixedSizeBinaryArray.from_buffers(
                pa.binary(100), count, [None, pa.py_buffer(rng.bytes(100 * count))]
            )
            columns = {
                "key": pa.nulls(count, pa.binary()),
                "value": values.cast(pa.binary()),
                "topic": pa.array(rng.choice(TOPICS, count).tolist()),
                "publisher": pa.array([f"web-{each}" for each in rng.integers(0, 8, count)]),
                "publisher_seq": pa.nulls(count, pa.int64()),
                "published_at": pa.array(np.arange(first, first + count), pa.int64()).cast(
                    schema.field("published_at").type
                ),
                "headers": pa.array([[]] * count, schema.field("headers").type),
            }
            arrays = [columns[name] for name in schema.names]
            publish(log, pa.Table.from_arrays(arrays, schema=schema))


def drain(frame: DataFrame) -> None:
    """Read all rows and drop them."""
    frame.write.format("noop").mode("overwrite").save()


def follow(spark: SparkSession, place: Path) -> None:
    """Read all rows once as a stream."""
    stream = spark.readStream.format("ensue").option("maxOffsetsPerTrigger", 2_000_000)
    with tempfile.TemporaryDirectory() as checkpoint:
        query = (
            stream.load(str(place))
            .writeStream.format("noop")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()


def read_alone(place: Path) -> None:
    """Read all rows without Spark."""
    log = open_log(place)
    for topic, bounds in log.bounds().items():
        for _ in log.read(topic, *bounds):
            pass


def cpu_s() -> float:
    """Return the CPU seconds of this process and its descendants."""
    return sum(usage.cpu_s for usage in descendants())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rows, one round")
    parser.add_argument("--rows", type=int, default=8_000_000)
    parser.add_argument("--master", default="local[2]")
    given = parser.parse_args()
    rows, rounds = (100_000, 1) if given.quick else (given.rows, 3)
    note = "; quick: figures are rough" if given.quick else f", median of {rounds}"
    print(
        f"event log, {rows:,} rows of {len(TOPICS)} topics, 100-byte values; {given.master}, "
        f"{os.cpu_count()} cores; Python {platform.python_version()}{note}"
    )
    sys.stdout.flush()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "log"
        start = time.perf_counter()
        make_log(place, rows)
        written_s = time.perf_counter() - start
        size = sum(path.stat().st_size for path in place.rglob("*.arrow"))
        print(f"{size / rows:.0f} bytes a row on disk; numbered, stamped and written on one core")
        spark = session(given.master, app="benchmark")
        source = spark.read.format("ensue")
        kinds: dict[str, Callable[[], None]] = {
            "Spark, all columns": lambda: drain(source.load(str(place))),
            "Spark, topic and offset": lambda: drain(
                spark.read.format("ensue").schema("topic string, offset bigint").load(str(place))
            ),
            "Spark, as a stream": lambda: follow(spark, place),
            "Spark, a copy in Parquet": lambda: drain(spark.read.parquet(copy)),
            "the reader alone": lambda: read_alone(place),
        }
        copy = f"{folder}/copy"
        source.load(str(place)).write.parquet(copy)
        kinds["Spark, all columns"]()
        print(f"{'read by':26}{'rows/s':>14}{'seconds':>10}{'CPU s':>10}")
        for name, read in kinds.items():
            taken, used = [], []
            for _ in range(rounds):
                start, before_s = time.perf_counter(), cpu_s()
                read()
                taken.append(time.perf_counter() - start)
                used.append(cpu_s() - before_s)
            middle = statistics.median(taken)
            cpu = statistics.median(used)
            print(f"{name:26}{rows / middle:>14,.0f}{middle:>10.2f}{cpu:>10.2f}")
        print(f"{'(written)':26}{rows / written_s:>14,.0f}{written_s:>10.2f}")
        spark.stop()
    print("goal: at least 2 M rows a second, all columns, on local[2]")


if __name__ == "__main__":
    main()
