"""Commands on Spark: input rejected before it starts, failures in one sentence, and progress."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import typer
from pyspark.errors import PySparkException
from tests.checkers.helpers import Script
from tests.cli.helpers import Shell

from ensue.cli import output
from ensue.cli.spark_runs import CommandProgress, start
from ensue.core import trace


@pytest.fixture
def run(tmp_path: Path) -> Path:
    trace.write(Script().publish("p", "a").rows, tmp_path / "run" / "trace")
    return tmp_path / "run"


@pytest.mark.parametrize("command", ["audit", "report", "pipeline", "swarm"])
@pytest.mark.parametrize(
    ("master", "message"),
    [
        ("locla[2]", "--master: 'locla[2]' is no master of Spark; expected local[4]"),
        ("spark://127.0.0.1:1", "--master: no Spark master answers at spark://127.0.0.1:1 ("),
    ],
)
def test_invalid_master_is_rejected_before_spark_starts(
    shell: Shell, run: Path, command: str, master: str, message: str
) -> None:
    commands: dict[str, list[object]] = {
        "audit": ["audit", run, "--order", "total"],
        "report": ["report", run, "-o", run.parent / "report.html"],
        "pipeline": ["pipeline", run, "--lake", run.parent / "lake", "--once"],
        "swarm": ["swarm", "total", "--seeds", "0:3"],
    }
    ended = shell(*commands[command], "--master", master, "--json")
    assert ended.code == 2
    assert ended.json()["error"].startswith(message)
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("command", ["audit", "report", "pipeline"])
def test_missing_source_is_rejected_before_spark_starts(
    shell: Shell, tmp_path: Path, command: str
) -> None:
    more: dict[str, list[object]] = {
        "audit": ["--order", "total"],
        "report": [],
        "pipeline": ["--lake", tmp_path / "lake"],
    }
    ended = shell(command, tmp_path / "nowhere", *more[command], "--json")
    assert ended.code == 2
    assert "nowhere does not exist" in ended.json()["error"]
    assert "starting Spark" not in ended.stderr


@pytest.mark.parametrize("command", ["audit", "report"])
def test_directory_without_a_trace_is_rejected_before_spark_starts(
    shell: Shell, tmp_path: Path, command: str
) -> None:
    order = ["--order", "total"] if command == "audit" else []
    ended = shell(command, tmp_path, *order, "--json")
    assert ended.code == 2
    assert "holds no Parquet file" in ended.json()["error"]
    assert "starting Spark" not in ended.stderr


@pytest.mark.parametrize("command", ["audit", "report", "pipeline"])
def test_damaged_parquet_is_rejected_before_spark_starts(
    shell: Shell, run: Path, command: str
) -> None:
    more: dict[str, list[object]] = {
        "audit": ["--order", "total"],
        "report": ["-o", run.parent / "report.html"],
        "pipeline": ["--lake", run.parent / "lake", "--once"],
    }
    path = run / "trace" / "trace.parquet"
    path.write_bytes(path.read_bytes()[:-100])
    ended = shell(command, run, *more[command], "--json")
    assert ended.code == 2
    assert ended.json()["error"].startswith(f"{path} can't be read as Parquet: ")
    assert "starting Spark" not in ended.stderr


@pytest.mark.parametrize(
    ("lake", "message"),
    [
        ("file", "is a file; a lake is a directory"),
        ("full", "is not a lake, and not empty"),
        ("file/lake", "can't be created: "),
    ],
)
def test_invalid_lake_is_rejected_before_spark_starts(
    shell: Shell, run: Path, lake: str, message: str
) -> None:
    (run.parent / "file").touch()
    (run.parent / "full").mkdir()
    (run.parent / "full" / "notes").touch()
    ended = shell("pipeline", run, "--lake", run.parent / lake, "--once", "--json")
    assert ended.code == 2
    assert message in ended.json()["error"]
    assert "starting Spark" not in ended.stderr


def test_spark_failure_exits_with_2_and_one_sentence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*, json: bool) -> int:
        del json
        raise PySparkException("[CANNOT_DO_IT] no room\n\tat org.apache\n" + "trace\n" * 50)

    with pytest.raises(typer.Exit) as ended:
        output.command(fail)(json=True)
    assert ended.value.exit_code == output.EXIT_UNKNOWN
    out, err = capsys.readouterr()
    assert json.loads(out) == {"error": "[CANNOT_DO_IT] no room"}
    assert err == "ensue: [CANNOT_DO_IT] no room\n"


def test_internal_error_is_not_hidden() -> None:
    def fail() -> int:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        output.command(fail)()


def test_stderr_of_spark_processes_is_filtered(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    program = "import sys; sys.stderr.write('WARNING: Using incubator modules: x\\nkept\\n')"

    def session(master: str | None, *, app: str) -> None:
        del master, app
        subprocess.run([sys.executable, "-c", program], check=True, timeout=60)

    monkeypatch.setattr("ensue.spark.session", session)
    monkeypatch.setattr("ensue.spark.failures.log_failures", lambda _, *, written: written)
    start(None, "ensue tests")
    for thread in threading.enumerate():
        if thread.name == "ensue-stderr":
            thread.join(60)
    assert capfd.readouterr().err == "kept\n"


class Tracker:
    """A status tracker with one stage: two of four tasks are done."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.calls = 0

    def getActiveStageIds(self) -> list[int]:  # noqa: N802 - Spark's name
        self.calls += 1
        if self.calls > 1:  # By then the first answer is shown.
            self.asked.set()
        return [7, 8]

    def getStageInfo(self, stage: int) -> Any:  # noqa: N802 - Spark's name
        return SimpleNamespace(numTasks=4, numCompletedTasks=2) if stage == 7 else None


def test_bar_on_a_terminal_shows_completed_tasks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr("ensue.cli.spark_runs.REFRESH_S", 0.01)
    reader, writer = os.pipe()
    monkeypatch.setattr(os, "dup", lambda _: writer)
    progress, tracker = CommandProgress(), Tracker()
    spark = cast(
        "Any", SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=lambda: tracker))
    )
    assert progress.has_bar
    with progress.shown():
        progress.stage("auditing")
        progress.print_line("a line [bold]as it is[/bold]")
        progress.follow(spark)
        assert tracker.asked.wait(60)
    assert progress._bar is not None
    (task,) = progress._bar.tasks
    assert (task.description, task.completed, task.total) == ("auditing", 2, 4)
    progress._bar.console.file.close()
    with os.fdopen(reader, encoding="utf-8") as message:
        assert "a line [bold]as it is[/bold]" in message.read()


def test_without_a_terminal_there_are_lines_alone(capsys: pytest.CaptureFixture[str]) -> None:
    progress = CommandProgress()
    with progress.shown():
        progress.stage("auditing")
        progress.print_line("a line")
    assert capsys.readouterr().err == "auditing …\na line\n"
