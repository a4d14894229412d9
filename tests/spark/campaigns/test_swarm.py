"""`ensue swarm --master`: the seeds of a swarm, spread over Spark tasks."""

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.cli.helpers import Shell

from ensue.cli import seed_pool, sim
from ensue.simulation.seeds import SeedResult, play_seed
from ensue.spark.campaigns import swarm

SEEDS = range(40)
TOTAL = partial(play_seed, "total")


@pytest.fixture
def shell(
    spark: SparkSession, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Shell:
    """Run commands in the session of the tests."""
    return Shell(capsys, monkeypatch)


def plant(monkeypatch: pytest.MonkeyPatch, *failing: int) -> None:
    """Make some seeds fail on the executors, which get this function by value."""

    def planted(protocol: str, seed: int) -> SeedResult:
        why = (f"planted in {seed}",) if seed in failing else ()
        return SeedResult(seed=seed, failure=why, steps=10, published=2, delivered=3)

    monkeypatch.setattr(sim, "play_seed", planted)


def test_spark_and_processes_have_the_same_results(spark: SparkSession) -> None:
    seen: list[SeedResult] = []
    frame = swarm.play_seeds(
        spark, TOTAL, SEEDS, name="swarm total", watch=seen.append, cases_per_task=10
    )
    wanted = list(seed_pool.play_all(TOTAL, SEEDS, 1))
    assert seen == wanted
    found = sorted(
        (row.seed, tuple(row.failure), row.steps, row.published, row.delivered)
        for row in frame.collect()
        if row.valid and row.error is None
    )
    assert found == [
        (one.seed, one.failure, one.steps, one.published, one.delivered) for one in wanted
    ]


def test_a_planted_failure_stops_at_the_lowest_seed_with_the_line_that_replays_it(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, 23, 7, 8)
    ended = shell("swarm", "total", "--seeds", "2:1000000", "--master", "local[2]")
    assert ended.code == 1
    assert "seed 7 failed:\n  planted in 7\nreplay: ensue replay total --seed 7\n" in ended.stdout
    assert "seed 8" not in ended.stdout
    assert "6 of 999,998" in ended.stdout


def test_keep_going_reports_every_failure_and_out_has_every_outcome(
    shell: Shell, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plant(monkeypatch, 3, 5)
    words = [
        "swarm",
        "total",
        "--seeds",
        "0:7",
        "--master",
        "local[2]",
        "--out",
        tmp_path,
        "--json",
    ]
    stopped = shell(*words).json()
    assert [one["seed"] for one in stopped["failures"]] == [3]
    reported = shell(*words, "--keep-going").json()
    assert [one["seed"] for one in reported["failures"]] == [3, 5]
    assert (reported["seeds"], reported["events"], reported["deliveries"], reported["steps"]) == (
        7,
        14,
        21,
        70,
    )
    found = sorted((row.seed, row.valid) for row in spark.read.parquet(str(tmp_path)).collect())
    assert found == [(seed, seed not in (3, 5)) for seed in range(7)]


@pytest.mark.verify
def test_a_seed_that_kills_its_worker_is_a_failure_of_that_seed(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deadly(protocol: str, seed: int) -> SeedResult:
        if seed == 2:
            signal.raise_signal(signal.SIGKILL)
        return play_seed(protocol, seed)

    monkeypatch.setattr(sim, "play_seed", deadly)
    ended = shell("swarm", "total", "--seeds", "0:4", "--master", "local[2]")
    assert ended.code == 1
    assert "seed 2 failed:\n  the task died that played it: " in ended.stdout


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--master", "local[2]", "--jobs", "2"), "--jobs and --master exclude each other: Spark"),
        (("--out", "somewhere"), "--out needs Spark: add --master"),
    ],
)
def test_contradictory_options_are_rejected(shell: Shell, words: tuple[str, ...], why: str) -> None:
    ended = shell("swarm", "total", "--seeds", "0:4", *words)
    assert ended.code == 2
    assert ended.stderr.startswith(f"ensue: {why}")


def test_invalid_master_is_reported_in_one_line() -> None:
    source = "from ensue.cli import main; main()"
    words = ["swarm", "total", "--seeds", "0:4", "--master", "nonsense"]
    done = subprocess.run(
        [sys.executable, "-c", source, *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "ensue: --master: 'nonsense' is no master of Spark; expected local[4]" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.verify
def test_ctrl_c_ends_a_search_with_its_results(tmp_path: Path) -> None:
    # As in a terminal, where the signal reaches every process of the group.
    source = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from ensue.cli import main, seed_pool; seed_pool.PLAIN_SECONDS = 0; main()"
    )
    words = ["swarm", "total", "--seeds", "0:1000000", "--master", "local[2]", "--out", tmp_path]
    with subprocess.Popen(
        [sys.executable, "-c", source, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stderr is not None
        # The first task's outcomes are on disk before those of the second are reported.
        while not any(tmp_path.glob("part-*.parquet")):
            assert process.stderr.readline()
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "interrupted; until then:" in out
    assert "Traceback" not in err


def test_seeds_of_the_whole_stack_run_on_spark(shell: Shell) -> None:
    words = ("swarm", "--stack", "operations", "--seeds", "0:2")
    ended = shell(*words, "--master", "local[1]", "--json")
    assert ended.code == 0, ended.stderr
    here = shell(*words, "--jobs", 1, "--json").json()
    there = ended.json()
    counts = ("protocol", "seeds", "events", "deliveries", "steps", "failures")
    assert [there[each] for each in counts] == [here[each] for each in counts]
    assert there["deliveries"] > 0
