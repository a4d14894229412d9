"""Measure the rate of audited deliveries, without trusting stamps.

Run `python benchmarks/spark_audit.py --deliveries 10000000 100000000`. For each size a trace of a
run with total order is written, one file per subscriber. Then fifo, total and complete are judged
together:

* Spark: `ensue.spark.audit`, from the files to the verdict.
* DuckDB, up to `--duck-most` deliveries: the same rules as SQL over the same files, with as many
  threads. It gets the total order, as a table of events and places, which the audit must find by
  itself.

`--planted N` plants violations, and prints how many were found and how many findings are false.
Every time includes reading the files.
"""

import argparse
import os
import platform
import shutil
import sys
import tempfile
import time
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.big_traces import Planted, Shape, generate
from benchmarks.usage import Watch

from ensue.spark import Audit, audit, session

HEADS = ("deliveries", "seconds", "deliveries/s", "CPU s", "Java MB", "Python MB")
SQL = """
with delivered as (
    select d.node, d.step, d.publisher, d.topic, d.publisher_seq, d.event, places.place
    from read_parquet('{trace}/subscriber-*.parquet') as d
    left join read_parquet('{places}') as places on places.event = d.event
    where d.action = 'delivered'
), judged as (
    select
        place < lag(place) over (partition by node order by step) as inverted,
        publisher_seq <= lag(publisher_seq)
            over (partition by node, publisher, topic order by step) as late,
        place is null as phantom,
    from delivered
), owed as (
    select count(*) as owed
    from read_parquet('{trace}/subscriber-*.parquet') as s
    join read_parquet('{trace}/publisher-*.parquet') as p on p.topic = s.topic
    where s.action = 'subscribed' and p.action = 'published'
), had as (select count(distinct (node, event)) as had from delivered)
select
    (select count(*) from judged where inverted or late or phantom) as wrong,
    (select owed from owed) - (select had from had) as lost
"""


def line(name: str, count: int, seconds: float, watch: Watch) -> None:
    """Print one line of the table."""
    java, python = (watch.most.get(kind, 0) / 1e6 for kind in ("java", "python"))
    print(
        f"{name:10}{count:>15,}{seconds:>15.1f}{count / seconds:>15,.0f}{watch.cpu_s:>15.1f}"
        f"{java:>15,.0f}{python:>15,.0f}",
        flush=True,
    )


def duck(trace: Path, places: Path, cores: int) -> tuple[int, int]:
    """Judge a trace by SQL; return the numbers of wrong and of missing deliveries."""
    connection = duckdb.connect(config={"threads": cores})
    found = connection.execute(SQL.format(trace=trace, places=places)).fetchone()
    assert found is not None
    return int(found[0]), int(found[1])


def compare(found: Audit, planted: list[Planted]) -> str:
    """Print how many planted violations were found, and how many findings are false."""
    rows = found.violations.collect()
    by_node: dict[str, list[tuple[int, set[str]]]] = {}
    for number, row in enumerate(rows):
        for node in {row["node"], row["other_node"]} - {None}:
            by_node.setdefault(node, []).append((number, {row["first"], row["second"]}))
    explained: set[int] = set()
    missed = 0
    for one in planted:
        matching = {n for n, events in by_node.get(one.node, ()) if events & set(one.events)}
        missed += not matching
        explained |= matching
    return (
        f"planted {len(planted):,}, found {len(planted) - missed:,}; "
        f"{len(rows):,} findings, {len(rows) - len(explained):,} of them of nothing planted"
    )


def measure(chosen: argparse.Namespace, folder: Path, deliveries: int) -> None:
    """Write a trace, judge it, and print the time."""
    shape = Shape(deliveries=deliveries)
    trace, places = folder / "trace", folder / "places.parquet"
    planted, order = generate(trace, shape, planted=chosen.planted)
    pq.write_table(pa.table({"event": order, "place": pa.array(range(len(order)))}), places)
    del order
    started = time.perf_counter()
    with Watch() as watch:
        found = audit(trace, violations_max=1_000_000)
    seconds = time.perf_counter() - started
    line("Spark", found.totals.deliveries, seconds, watch)
    print(f"          {found.sentences()[0]}")
    if planted:
        print(f"          {compare(found, planted)}")
    if deliveries <= chosen.duck_most:
        started = time.perf_counter()
        with Watch() as watch:
            wrong, lost = duck(trace, places, chosen.cores)
        theirs = time.perf_counter() - started
        line("DuckDB", found.totals.deliveries, theirs, watch)
        print(
            f"          wrong {wrong:,}, lost {lost:,}; Spark takes {seconds / theirs:.2f} x as "
            "long"
        )
    shutil.rmtree(trace)


def main() -> None:
    """Generate traces, measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--deliveries", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--planted", type=int, default=0)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--memory", default="2g", help="of Spark's Java process")
    parser.add_argument("--duck-most", type=int, default=20_000_000)
    parser.add_argument("--folder", type=Path, help="where to write; a temporary one unless set")
    parser.add_argument("--quick", action="store_true", help="a few thousand, to try it out")
    chosen = parser.parse_args()
    print(f"{os.cpu_count()} cores, {chosen.cores} used, Python {platform.python_version()}")
    if chosen.quick:
        print("quick: scaled down, the figures mean nothing")
        chosen.deliveries, chosen.planted = [40_000], 60
    started = time.perf_counter()
    spark = session(f"local[{chosen.cores}]", settings={"spark.driver.memory": chosen.memory})
    up = time.perf_counter() - started
    spark.range(1000).selectExpr("sum(id)").collect()
    print(f"session {up:.1f} s, with its first job {time.perf_counter() - started:.1f} s")
    print(" " * 10 + "".join(f"{head:>15}" for head in HEADS))
    folder = Path(tempfile.mkdtemp(prefix="ensue-audit-", dir=chosen.folder))
    try:
        for deliveries in chosen.deliveries:
            measure(chosen, folder, deliveries)
    finally:
        shutil.rmtree(folder)
        spark.stop()
    print("goals: 1,500,000 deliveries/s at 100,000,000; at most 2 x DuckDB at 20,000,000")


if __name__ == "__main__":
    main()
