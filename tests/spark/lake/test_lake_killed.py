"""A pipeline killed at random moments, and started again: every row once, in every table."""

import json
import os
import random
import signal
import subprocess
import threading
from collections import Counter
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.drivers import driver
from tests.spark.lake.sources import add_trace, agreeing, disagreeing, grow_log, stamped
from tests.store.helpers import everything

from ensue.spark import metrics, read_table, read_trace
from ensue.spark.lake.runs import deliveries

KILLS = 5


def pipeline(place: Path, *words: str) -> AbstractContextManager["subprocess.Popen[str]"]:
    """Start the command, to be killed when left."""
    command = ["-c", "from ensue.cli import main; main()", "pipeline"]
    return driver(
        [*command, str(place / "run"), "--lake", str(place / "lake"), *words], place / "reported"
    )


def batches(place: Path, kind: str = "offsets") -> set[tuple[str, str]]:
    """Return the batches that the queries have begun (`offsets`) or ended (`commits`)."""
    found = place.glob(f"lake/_checkpoints/*/{kind}/[0-9]*")
    return {(path.parents[1].name, path.name) for path in found}


def live(place: Path, begun: int, then_s: float) -> None:
    """Kill a pipeline a moment after it has begun so many batches, or when it has ended."""
    wanted = len(batches(place)) + begun
    with pipeline(place, "--every", "1s") as process:
        while len(batches(place)) < wanted:
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.02)
                pytest.fail((place / "reported").read_text()[-5000:])
        with suppress(subprocess.TimeoutExpired):
            process.wait(then_s)
            pytest.fail((place / "reported").read_text()[-5000:])


@pytest.mark.verify
@pytest.mark.timeout(1800)
def test_pipeline_killed_at_random_moments_loses_and_repeats_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # noqa: T201 - shown when the test fails
    rng = random.Random(seed)
    run = tmp_path / "run"
    counts: dict[str, int] = {}

    def grow(number: int) -> None:
        # Of a run that grows, the later part overlaps nothing of what was there.
        grown = agreeing("grows", 3 * number + 3)
        add_trace(run / "trace", f"grows-{number}", grown[(9 * number + 2 if number else 0) :])
        add_trace(run / "trace", f"one-{number}", agreeing(f"one-{number}"))
        grow_log(run / "log", stamped(7, counts=counts))

    for number in range(KILLS):
        grow(number)
        live(tmp_path, rng.randrange(1, 5), rng.random() * 3)
    add_trace(run / "trace", "wrong", disagreeing("wrong"))
    with pipeline(tmp_path, "--once", "--json") as process:
        out, _ = process.communicate()
        assert process.returncode == 1, (tmp_path / "reported").read_text()[-5000:]
    reported = json.loads(out)

    def found(name: str) -> Counter[str]:
        return counted(read_table(spark, tmp_path / "lake", name).toArrow().to_pylist())

    source = everything(run / "log")
    log = [each for rows in source.values() for each in rows]
    assert found("events") == counted(log)
    table = read_table(spark, tmp_path / "lake", "ordered").orderBy("position").collect()
    assert [row.position for row in table] == list(range(1, 7 * KILLS + 1))
    trace = read_trace(spark, run)
    assert found("trace") == counted(trace.toArrow().to_pylist())
    assert found("deliveries") == counted(deliveries(trace).toArrow().to_pylist())
    for name, frame in metrics(trace).items():
        assert found(f"metrics/{name}") == counted(frame.toArrow().to_pylist()), name
    verdicts = {row["run"]: row["verdict"] for row in reported["verdicts"]}
    right = ["grows", *(f"one-{number}" for number in range(KILLS))]
    assert verdicts == {"wrong": "invalid", **dict.fromkeys(right, "valid")}
    assert reported["tables"]["verdicts"] == len(verdicts)
    assert reported["tables"]["violations"] == 1
    assert reported["tables"]["gaps"] == 0
    drafts = [path for path in (tmp_path / "lake" / "_versions").rglob(".*") if path.is_dir()]
    assert drafts == []


@pytest.mark.timeout(600)
@pytest.mark.verify
def test_ctrl_c_ends_pipeline_after_its_current_batches(tmp_path: Path) -> None:
    add_trace(tmp_path / "run" / "trace", "one", agreeing("r"))
    grow_log(tmp_path / "run" / "log", stamped(7, counts={}))
    over = threading.Event()
    with pipeline(tmp_path, "--every", "1s", "--json") as process:
        while len(batches(tmp_path)) < 4:
            assert process.poll() is None, (tmp_path / "reported").read_text()[-5000:]
            over.wait(0.05)
        begun = batches(tmp_path)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate()
    output = (tmp_path / "reported").read_text()
    assert "ending after the current batches" in output
    reported = json.loads(out)
    assert reported["failed"] == {}, output
    assert begun <= batches(tmp_path, "commits")


@pytest.mark.timeout(600)
@pytest.mark.verify
def test_signal_to_spark_too_ends_pipeline_quietly(tmp_path: Path) -> None:
    add_trace(tmp_path / "run" / "trace", "one", agreeing("r"))
    over = threading.Event()
    with pipeline(tmp_path, "--every", "1s") as process:
        while not batches(tmp_path):
            assert process.poll() is None, (tmp_path / "reported").read_text()[-5000:]
            over.wait(0.05)
        os.killpg(process.pid, signal.SIGTERM)
        process.communicate()
    output = (tmp_path / "reported").read_text()
    assert process.returncode == 2, output
    assert output.endswith("ensue: interrupted\n"), output
    assert "py4j" not in output.lower(), output


def counted(rows: list[dict[str, object]]) -> Counter[str]:
    return Counter(repr(sorted(row.items())) for row in rows)
