"""An ordered stream killed at any moment resumes: each event once, in order."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.tws_tester import TwsTester
from tests.spark.ordered_logs import TOPICS, Streamed, log_of, pieces

from ensue.spark import gaps
from ensue.spark.hold_back import Limits
from ensue.spark.order_rules import rule_named
from ensue.spark.record_batches import from_bytes, to_bytes
from ensue.spark.stateful_stream import HoldBackProcessor

ROOT = Path(__file__).parents[2]
KILLS = 3

DRIVER = """
import sys
from ensue.spark import order, session
root = sys.argv[1]
spark = session("local[2]", settings={"spark.driver.memory": "1g"})
schema = spark.read.parquet(f"{root}/in").schema
source = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(f"{root}/in")
ordered = source.transform(order, topics=sys.argv[2:], voids=True)
writer = ordered.writeStream.format("parquet").option("checkpointLocation", f"{root}/checkpoint")
print("ready", flush=True)
writer.trigger(availableNow=True).start(f"{root}/out").awaitTermination()
print("done", flush=True)
"""


@contextmanager
def driver(root: Path) -> Iterator["subprocess.Popen[str]"]:
    """Start a driver, wait for its session, and kill it with its Java on exit."""
    with subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(root), *TOPICS],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as running:
        try:
            assert running.stdout is not None
            assert running.stdout.readline() == "ready\n"
            yield running
        finally:
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)


def commits(root: Path) -> int:
    return len([*root.glob("checkpoint/commits/[0-9]*")])


@pytest.mark.verify
def test_ordered_stream_killed_at_random_points_repeats_and_loses_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    random = Random(5)
    log = log_of(240)
    coming = sorted(log, key=lambda one: one["published_at"].timestamp() + random.uniform(0, 60))
    streamed = Streamed(spark, tmp_path)
    streamed.arrive(*pieces(coming, 40))
    for _ in range(KILLS):
        with driver(tmp_path) as running:
            # At a random moment: after so many commits, and then within a batch.
            target = commits(tmp_path) + random.randrange(2)
            while commits(tmp_path) < target and running.poll() is None:
                time.sleep(0.02)
            time.sleep(random.uniform(0, 1.5))
    with driver(tmp_path) as running:
        assert running.stdout is not None
        assert running.stdout.read() == "done\n"
    table = spark.read.parquet(str(tmp_path / "out"))
    assert [row["position"] for row in table.orderBy("position").collect()] == [*range(1, 241)]
    assert gaps(table).count() == 0


def test_processor_keeps_held_rows_in_its_state() -> None:
    processor = HoldBackProcessor(rule_named("total").hold_back({"t": 0}, Limits(held_max=10)))
    tester = TwsTester(processor)
    assert positions(tester, 3, 2) == []
    assert positions(tester, 5, 1) == [1, 2, 3]
    assert positions(tester, 4) == [4, 5]


def positions(tester: TwsTester, *coming: int) -> list[int]:
    batch = pa.RecordBatch.from_pylist(
        [
            {"topic": "t", "event": f"e{at}", "offset": at - 1, "position": at, "published_at": at}
            for at in coming
        ]
    )
    found = tester.testInPandas(0, pd.DataFrame({"chunk": [to_bytes([batch])]}))
    left: list[int] = []
    for chunk in found.get("chunk", []):
        for rows in from_bytes(chunk):
            left += np.asarray(rows.column("position")).tolist()
    return left
