"""Offsets survive `kill -9` of the driver: nothing is lost and nothing repeated.

One driver runs two queries over a growing log, to a Parquet table and to another log. It is killed
at random moments, and started again from its checkpoints each time.

It takes as long as many other tests together, and needs no session of its own: it runs beside them.
"""

import json
import random
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from tests.spark.copy_driver import END, NAMES
from tests.spark.drivers import driver
from tests.store.helpers import everything, rows

from ensue.store import LogWriter

TOPICS = ("a", "b", "c")


@contextmanager
def growing(place: Path, rounds: int) -> Iterator[None]:
    """Append to the log until left: some rows a second, and another topic after some rounds."""
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
            log.append(rows(END, [1]))

    thread = threading.Thread(target=append)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def copier(place: Path) -> AbstractContextManager["subprocess.Popen[str]"]:
    """Start the driver, to be killed when left."""
    return driver(["-m", "tests.spark.copy_driver", str(place)], place / "driver.log")


class Overloaded(Exception):
    """Spark gives its Python workers ten seconds to start, which a busy machine may not have."""


def line(process: "subprocess.Popen[str]", place: Path) -> str:
    """Return the next word of a driver, or tell why there is none."""
    assert process.stdout is not None
    said = process.stdout.readline().strip()
    if not said:
        why = (place / "driver.log").read_text()
        if "failed to connect back" in why:
            raise Overloaded
        pytest.fail(why[-5000:])
    return said


def live(place: Path, query: str, batches: int, then_s: float) -> bool:
    """Kill a driver a moment after some batches of a query; return whether it lived so long."""
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


def finish(place: Path) -> bool:
    """Run a driver until both queries have everything."""
    with copier(place) as process:
        try:
            while line(process, place) != "done":
                pass
        except Overloaded:
            return False
        return True


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.verify)])
def test_a_driver_killed_at_random_points_loses_nothing_and_repeats_nothing(
    kills: int, tmp_path: Path
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # noqa: T201 - shown when the test fails
    rng = random.Random(seed)
    LogWriter(tmp_path / "log").close()
    killed = 0
    with growing(tmp_path / "log", rounds=kills):
        while killed < kills:
            # After some batches, and then anywhere in those that follow.
            killed += live(tmp_path, rng.choice(NAMES), rng.randrange(4), rng.random())
    while not finish(tmp_path):
        pass

    source = everything(tmp_path / "log")
    assert {topic for topic in TOPICS if source.get(topic)} == set(TOPICS)
    expected = Counter(each["event"] for found in source.values() for each in found)
    assert set(expected.values()) == {1}
    assert Counter(json.loads((tmp_path / "table.json").read_text())) == expected
    copy = everything(tmp_path / "ensue")
    assert Counter(e["key"].decode() for found in copy.values() for e in found) == expected
    for topic, found in copy.items():
        assert [each["key"] for each in found] == [e["event"].encode() for e in source[topic]]
        assert [each["publisher_seq"] for each in found] == list(range(1, len(found) + 1))
    sums = [sum(dict(e["stamp"]).values()) for found in copy.values() for e in found]
    assert sorted(sums) == list(range(1, len(expected) + 1))
    left = [path for path in (tmp_path / "ensue" / "_staged").rglob("*") if path.is_file()]
    assert left == []
