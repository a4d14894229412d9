"""Measure how fast Spark merges logs by the clocks in their stamps.

Run `python benchmarks/spark_merge.py --events 20000000`. A log with all columns of the event log is
written as Parquet, one file per topic and segment, with merged stamps: ticks of 16 publishers whose
clocks differ, several events a tick, counters and clocks that are ahead. Then, in one run on one
machine: read, merge, write Parquet; by Spark, and by DuckDB with ORDER BY on the same entries of
the same stamps. DuckDB has as many threads as Spark. Every time includes reading and writing.
"""

import argparse
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.spark_order import (
    PUBLISHERS,
    TOPICS,
    VALUE_BYTES,
    column,
    fixed,
    joined,
    named,
    timed,
)
from benchmarks.usage import Watch

from ensue.spark import merge, session

SEGMENT = 100_000
EPSILON_TICKS = 5
EVENTS_PER_TICK = 32
"""Over all publishers."""
ENTRIES = ["@c", "@i", "@k", "@r"]


def segments(events: int, segment: int) -> Iterator[pa.Table]:
    """Generate a log in order of arrival: roughly the order of the clocks."""
    random = np.random.default_rng(1)
    skew = random.integers(0, EPSILON_TICKS + 1, len(PUBLISHERS))
    for number, first in enumerate(range(0, events, segment)):
        count = min(segment, events - first)
        rows = np.arange(count)
        publisher = random.integers(0, len(PUBLISHERS), count)
        topic = random.integers(0, len(TOPICS), count)
        tick = 1_700_000_000_000 + (first + rows) // EVENTS_PER_TICK + skew[publisher]
        ahead = np.where(random.random(count) < 0.1, random.integers(0, EPSILON_TICKS, count), 0)
        # The counter distinguishes events of one publisher with the same tick and clock.
        order = np.lexsort((rows, tick + ahead, publisher))
        same = (np.diff(publisher[order]) == 0) & (np.diff((tick + ahead)[order]) == 0)
        starts = np.concatenate(([True], ~same))
        at = np.arange(count)
        counter = np.zeros(count, dtype=np.int64)
        counter[order] = at - np.maximum.accumulate(np.where(starts, at, 0))
        publishers, topics = named(publisher, PUBLISHERS), named(topic, TOPICS)
        sequence = column(first + rows)
        data = random.bytes(count * VALUE_BYTES)
        ends = column(np.arange(0, count * 4 + 1, 4, dtype=np.int32))
        # Ticks of two segments overlap and counters restart: the index distinguishes them.
        index = np.full(count, number)
        each = column(np.arange(count + 1, dtype=np.int32))
        yield pa.table(
            {
                "key": fixed(data[: count * 8], count, 8),
                "value": fixed(data, count, VALUE_BYTES),
                "topic": topics,
                "publisher": publishers,
                "publisher_seq": sequence,
                "event": joined(publishers, topics, sequence.cast(pa.string()), "/"),
                "stamp": pa.MapArray.from_arrays(
                    ends,
                    named(np.tile(np.arange(4), count), ENTRIES),
                    column(np.stack((ahead, index, counter, tick), axis=1).ravel()),
                ),
                "published_at": column(tick * 1000, pa.timestamp("us", tz="UTC")),
                "offset": sequence,
                "headers": pa.MapArray.from_arrays(
                    each, named(np.zeros(count, dtype=np.int64), ["kind"]), publishers
                ),
            }
        )


def generate(folder: Path, events: int, segment: int) -> None:
    """Write the log, one file per topic and segment."""
    folder.mkdir()
    for number, table in enumerate(segments(events, segment)):
        topics = np.asarray(table.column("topic").to_pylist())
        for which, name in enumerate(TOPICS):
            part = table.filter(pa.array(topics == name))
            pq.write_table(part, folder / f"{number:06}-{which}.parquet")


def duck(log: Path, out: Path, cores: int, spill: Path) -> None:
    """Do the same with DuckDB."""
    entry = "coalesce(stamp['{}'], 0)".format
    keys = f"stamp['@r'] + {entry('@c')}, {entry('@k')}, publisher, {entry('@i')}"
    with duckdb.connect() as connection:
        connection.execute(f"SET threads = {cores}")
        connection.execute(f"SET temp_directory = '{spill}'")
        connection.execute(
            f"COPY (SELECT * FROM read_parquet('{log}/*.parquet') ORDER BY {keys}) "  # noqa: S608
            f"TO '{out}' (FORMAT parquet)"
        )


def main() -> None:
    """Generate traces, measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--events", type=int, default=2_000_000)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--memory", default="2g", help="of Spark's Java process")
    parser.add_argument("--folder", type=Path, help="where to write; a temporary one unless set")
    parser.add_argument("--quick", action="store_true", help="a few thousand events, to try it out")
    chosen = parser.parse_args()
    events = 6_000 if chosen.quick else chosen.events
    print(f"{os.cpu_count()} cores, {chosen.cores} used, Python {platform.python_version()}")
    if chosen.quick:
        print("quick: scaled down, the figures mean nothing")
    folder = Path(tempfile.mkdtemp(prefix="ensue-merge-", dir=chosen.folder))
    try:
        measure(chosen, folder, events)
    finally:
        shutil.rmtree(folder)


def measure(chosen: argparse.Namespace, folder: Path, events: int) -> None:
    """Run both and print a line each."""
    generate(folder / "log", events, 1_000 if chosen.quick else SEGMENT)
    memory = {"spark.driver.memory": chosen.memory}
    spark = session(f"local[{chosen.cores}]", app="ensue merge benchmark", settings=memory)
    log = spark.read.parquet(str(folder / "log"))
    with Watch() as watch:
        seconds = timed(lambda: log.transform(merge).write.parquet(str(folder / "spark")))
    print(
        f"merged, Spark: {events:,} events, {seconds:.1f} s, {events / seconds:,.0f} rows/s, CPU "
        f"s {watch.cpu_s:.0f}"
    )
    with Watch() as watch:
        duck_s = timed(
            lambda: duck(folder / "log", folder / "duck.parquet", chosen.cores, folder / "spill")
        )
    print(
        f"sorted, DuckDB: {events:,} events, {duck_s:.1f} s, {events / duck_s:,.0f} rows/s, CPU s "
        f"{watch.cpu_s:.0f}"
    )
    print(f"Spark is {duck_s / seconds:.2f} x as fast as DuckDB")
    files = sorted((folder / "spark").glob("*.parquet"))
    ours = [
        name
        for file in files
        for name in pq.read_table(file, columns=["event"])["event"].to_pylist()
    ]
    theirs = pq.read_table(folder / "duck.parquet", columns=["event"])["event"].to_pylist()
    print(f"the same order: {ours == theirs}")
    spark.stop()


if __name__ == "__main__":
    main()
