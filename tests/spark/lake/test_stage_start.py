"""A pipeline on a busy machine: it starts few stages at once, backs off, and gives up.

The queries are fakes: the tests check when they are started.
"""

import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from ensue.spark.failures import sentence
from ensue.spark.lake import stage_start
from ensue.spark.lake.inputs import Inputs
from ensue.spark.lake.lake import Choices, Lake
from ensue.spark.lake.pipeline import _Pipeline
from ensue.spark.lake.stage_start import ATTEMPTS_MAX, PAUSE_MAX_S, MachineTooBusy, worker_missing

TIMED_OUT = (
    "[STREAM_FAILED] Query terminated with exception: Python worker failed to connect back.\n"
    "\tat org.apache.spark.api.python.PythonWorkerFactory.createSimpleWorker\n"
)


PYTHON_FAILED = (
    "[STREAM_FAILED] x [PYTHON_EXCEPTION] An exception was thrown from the Python worker: "
    'Traceback (most recent call last):\n  File "bus.py", line 1\nNameError: no name\n'
    " SQLSTATE: 38000\n"
    "\tat org.apache.spark.SparkException: other\n"
)


class Played:
    """A query that fails, or ends, after so many polls."""

    def __init__(self, looks: int, error: str, *, batch: bool = False) -> None:
        self.looks = looks
        self.error = error
        self.recentProgress = [{"batchId": 0, "numInputRows": 1}] if batch else []
        self.lastProgress = self.recentProgress[-1] if batch else None
        self.status = {"isTriggerActive": False, "message": "Initializing sources"}

    @property
    def isActive(self) -> bool:  # noqa: N802 - Spark's name
        self.looks -= 1
        return self.looks > 0

    def exception(self) -> str:
        return self.error

    def stop(self) -> None:
        self.looks = 0


class Machine:
    """A clock, and the start times of stages."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
        self.now_s = 0.0
        self.place = place
        self.begun: list[tuple[str, float]] = []
        self.reported: list[str] = []
        self.running_most = 0
        monkeypatch.setattr(time, "monotonic", lambda: self.now_s)

    def wait(self, seconds: float) -> bool:
        self.now_s += seconds
        return False

    def run(self, play: Any, *, once: bool = True) -> None:
        stop = cast("threading.Event", self)
        inputs = Inputs(source="run", trace="trace", log="log")
        choices = Choices(source="run", order="total", topics=["a"], cut={"a": 0})
        made = _Pipeline(
            cast("SparkSession", None),
            inputs,
            Lake(self.place),
            choices,
            self.reported.append,
            once=once,
            every_s=1.0,
        )

        def start(stage: str) -> StreamingQuery:
            self.begun.append((stage, self.now_s))
            self.running_most = max(self.running_most, len(made._running) + 1)
            return cast("StreamingQuery", play(stage))

        made._stages = {
            stage: lambda stage=stage: start(stage)  # type: ignore[misc]
            for stage in ("events", "ordered", "trace")
        }
        made._waiting = list(made._stages)
        made.run(stop)

    def is_set(self) -> bool:
        return False

    def times(self, stage: str) -> list[float]:
        return [at for name, at in self.begun if name == stage]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    return Machine(monkeypatch, tmp_path)


def test_stage_whose_process_never_starts_is_retried_with_backoff_then_fails(
    machine: Machine,
) -> None:
    with pytest.raises(MachineTooBusy) as raised:
        machine.run(lambda stage: Played(3, TIMED_OUT if stage == "events" else ""))
    assert "this machine is too busy. Start again when less is running" in str(raised.value)
    times = machine.times("events")
    assert len(times) == ATTEMPTS_MAX
    pauses = [later - earlier for earlier, later in pairwise(times)]
    assert pauses == sorted(pauses)
    assert pauses[1] > 1.5 * pauses[0]
    assert max(pauses) < PAUSE_MAX_S + 2
    reported = [line for line in machine.reported if line.startswith("events: ")]
    assert len(reported) == ATTEMPTS_MAX - 1
    assert not any("\n" in line for line in machine.reported)


def test_position_conflict_advises_a_new_lake(machine: Machine) -> None:
    conflict = "ensue.spark.conditions.SparkFault: [POSITION_CONFLICT] two events at position 4"
    machine.run(lambda stage: Played(3, conflict if stage == "ordered" else ""))
    (reported,) = [line for line in machine.reported if "failed" in line]
    assert reported.startswith(
        "ordered failed: [POSITION_CONFLICT] two events at position 4; a lake "
    )
    assert reported.endswith("name a new lake")


def test_once_runs_one_stage_at_a_time(machine: Machine) -> None:
    machine.run(lambda stage: Played(5, ""))
    assert [stage for stage, _ in machine.begun] == ["events", "ordered", "trace"]
    assert machine.running_most == 1


def test_continuous_stage_starts_after_the_previous_one(machine: Machine) -> None:
    slow = Played(60, "")
    machine.run(lambda stage: slow if stage == "events" else Played(9, "", batch=True), once=False)
    (first,) = machine.times("ordered")
    assert 4 < first <= stage_start.SETTLE_MAX_S + 1
    assert machine.times("trace")[0] - first < 1


def test_progress_resets_the_failures_of_a_stage(machine: Machine) -> None:
    left = [3 * ATTEMPTS_MAX]

    def play(stage: str) -> Played:
        if stage != "events":
            return Played(2, "")
        left[0] -= 1
        return Played(3, TIMED_OUT if left[0] else "", batch=True)

    # A batch number that was reported before is no progress, so numbers continue.
    numbers = iter(range(100))

    def numbered(stage: str) -> Played:
        played = play(stage)
        for batch in played.recentProgress:
            batch["batchId"] = next(numbers)
        return played

    machine.run(numbered)
    assert len(machine.times("events")) == 3 * ATTEMPTS_MAX


@pytest.mark.parametrize(
    ("error", "missing"),
    [
        (TIMED_OUT, True),
        ("Timed out while waiting for the Python worker to connect back after 60000 ms", True),
        ("[OFFSETS_GONE] offsets 1 to 2 of topic 'a' are not in log", False),
        ("", False),
    ],
)
def test_only_a_process_that_did_not_start_is_retried(error: str, missing: bool) -> None:
    assert worker_missing(error) is missing


@pytest.mark.parametrize(
    ("error", "reported"),
    [
        (
            PYTHON_FAILED,
            "NameError: no name",
        ),
        ("a\nensue.spark.conditions.SparkFault: [CONFLICT] two at 4\nb", "[CONFLICT] two at 4"),
        (
            "[STREAM_FAILED] it ended\n=== Streaming Query ===\n[OTHER_ONE]",
            "[STREAM_FAILED] it ended",
        ),
    ],
)
def test_report_of_spark_is_reduced_to_its_cause(error: str, reported: str) -> None:
    assert sentence(error) == reported
