"""Offsets survive `kill -9` of the driver: nothing is lost and nothing repeated.

One driver runs two queries over a growing log, to a Parquet table and to another log. It is killed at
random moments, and started again from its checkpoints each time.
"""

import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.copying import END
from tests.store.helpers import everything, rows

from ensue.store import LogWriter

ROOT = Path(__file__).parents[2]
KILLS = 20
TOPICS = ("a", "b", "c")


@contextmanager
def growing(place: Path) -> Iterator[None]:
    """Append to the log until left: a few rows at a time, to topics of which some come later."""
    over = threading.Event()

    def append() -> None:
        written = dict.fromkeys(TOPICS, 0)
        rng = random.Random(0)
        with LogWriter(place) as log:
            round_number = 0
            while not over.wait(1):
                round_number += 1
                added = []
                for topic in TOPICS[: 1 + round_number // 20]:
                    first = written[topic] + 1
                    written[topic] += rng.randrange(12)
                    added += rows(topic, range(first, written[topic] + 1))
                log.append(added)
            log.append(rows(END, [1]))

    thread = threading.Thread(target=append)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def driver(place: Path) -> Iterator["subprocess.Popen[str]"]:
    """Start the driver; kill it and its Java at once when left."""
    with (place / "driver.log").open("a") as told:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.copying", str(place)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
            stdout=subprocess.PIPE,
            stderr=told,
            text=True,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def line(process: "subprocess.Popen[str]", place: Path) -> str:
    assert process.stdout is not None
    said = process.stdout.readline().strip()
    assert said, (place / "driver.log").read_text()[-5000:]
    return said


@pytest.mark.timeout(1800)
def test_a_driver_killed_at_random_points_loses_nothing_and_repeats_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # noqa: T201 - shown when the test fails
    rng = random.Random(seed)
    LogWriter(tmp_path / "log").close()
    with growing(tmp_path / "log"):
        for _ in range(KILLS):
            with driver(tmp_path) as process:
                assert line(process, tmp_path) == "started"
                for _ in range(rng.randrange(4)):
                    assert line(process, tmp_path) == "batch"
                # Then anywhere in the batches that follow.
                try:
                    process.wait(rng.random())
                except subprocess.TimeoutExpired:
                    continue
                pytest.fail((tmp_path / "driver.log").read_text()[-5000:])
    with driver(tmp_path) as process:
        assert line(process, tmp_path) == "started"
        while (said := line(process, tmp_path)) != "done":
            assert said == "batch"

    source = everything(tmp_path / "log")
    assert {topic for topic in TOPICS if source.get(topic)} == set(TOPICS)
    expected = Counter(each["event"] for found in source.values() for each in found)
    assert set(expected.values()) == {1}
    table = spark.read.parquet(str(tmp_path / "parquet")).select("event").collect()
    assert Counter(row.event for row in table) == expected
    copy = everything(tmp_path / "ensue")
    assert Counter(e["key"].decode() for found in copy.values() for e in found) == expected
    for topic, found in copy.items():
        assert [each["key"] for each in found] == [e["event"].encode() for e in source[topic]]
        assert [each["publisher_seq"] for each in found] == list(range(1, len(found) + 1))
    sums = [sum(dict(e["stamp"]).values()) for found in copy.values() for e in found]
    assert sorted(sums) == list(range(1, len(expected) + 1))
    left = [path for path in (tmp_path / "ensue" / "_staged").rglob("*") if path.is_file()]
    assert left == []
