"""Offsets survive `kill -9` of the driver: nothing is lost and nothing repeated.

One driver runs two queries over a growing log, to a Parquet table and to another log. The test
kills it at random moments and starts it again from its checkpoints. In the end the session of the
tests resumes both queries and reads the rest of the log.
"""

import random
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from tests.spark.copy_driver import NAMES, start
from tests.spark.drivers import driver
from tests.store.helpers import everything, rows

from ensue.store import LogWriter

TOPICS = ("a", "b", "c")


@contextmanager
def growing(place: Path, rounds: int) -> Iterator[None]:
    """Append some rows a second, and another topic after some rounds, until the exit."""
    over = threading.Event()

    def append() -> None:
        written = dict.fromkeys(TOPICS, 0)
        rng = random.Random(0)
        with LogWriter(place) as log:
            round_number = 0
            while not over.wait(1) or not all(written.values()):
                round_number += 1
                added = []
                for topic in TOPICS[: 1 + round_number // rounds]:
                    first = written[topic] + 1
                    written[topic] += rng.randrange(12)
                    added += rows(topic, range(first, written[topic] + 1))
                log.append(added)

    thread = threading.Thread(target=append)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def copier(place: Path) -> AbstractContextManager["subprocess.Popen[str]"]:
    """Start the driver; kill it on exit."""
    return driver(["-m", "tests.spark.copy_driver", str(place)], place / "driver.log")


NOT_STARTED = "failed to connect back"
"""Spark waits ten seconds for a Python worker, which may be too short on a busy machine."""


class Overloaded(Exception):
    """A Python worker did not start in time."""


def line(process: "subprocess.Popen[str]", place: Path) -> str:
    """Return the next line of a driver; fail with its log if it has ended."""
    assert process.stdout is not None
    found = process.stdout.readline().strip()
    if not found:
        why = (place / "driver.log").read_text()
        if NOT_STARTED in why:
            raise Overloaded
        pytest.fail(why[-5000:])
    return found


def kill_after(place: Path, query: str, batches: int, then_s: float) -> bool:
    """Kill a driver a moment after some batches of a query; return whether it got there."""
    with copier(place) as process:
        try:
            assert line(process, place) == "started"
            while batches:
                batches -= line(process, place) == query
        except Overloaded:
            return False
        try:
            process.wait(then_s)
        except subprocess.TimeoutExpired:
            return True
        pytest.fail((place / "driver.log").read_text()[-5000:])


def finish(spark: SparkSession, place: Path) -> bool:
    """Resume both queries until they have read the whole log; return whether they have."""
    queries = start(spark, place, once=True)
    try:
        for query in queries:
            query.awaitTermination()
    except StreamingQueryException as error:
        if NOT_STARTED not in str(error):
            raise
        return False
    finally:
        for query in queries:
            query.stop()
    return True


@pytest.mark.verify
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kills", [1, 20])
def test_driver_killed_at_random_points_loses_and_repeats_nothing(
    kills: int, spark: SparkSession, tmp_path: Path
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # noqa: T201 - shown when the test fails
    rng = random.Random(seed)
    LogWriter(tmp_path / "log").close()
    killed = 0
    with growing(tmp_path / "log", rounds=kills):
        while killed < kills:
            # After some batches, and then at any point of the next ones.
            batches = rng.randrange(4) if kills > 1 else rng.randrange(1, 4)
            killed += kill_after(tmp_path, rng.choice(NAMES), batches, rng.random())
    while not finish(spark, tmp_path):
        pass

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
