"""`ensue pipeline`: input that it rejects before Spark starts. tests/spark tests its tables."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.checkers.helpers import Script
from tests.cli.helpers import Shell

from ensue.checkers import Verdict
from ensue.cli.spark_runs import CommandProgress
from ensue.core import trace
from ensue.spark.lake.pipeline import Outcome
from ensue.spark.lake.runs import RunVerdict


@pytest.fixture
def run(tmp_path: Path) -> Path:
    trace.write(Script().publish("p", "a").rows, tmp_path / "run" / "trace")
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--every", "5"], "--every: expected a duration"),
        (["--every", "0s"], "--every: expected a duration above 0, got 0s"),
        (["--topics", "a,,b"], "--topics: expected names between commas like a,b, got 'a,,b'"),
        (["--order", "alphabetical"], "Invalid value for '--order'"),
    ],
)
def test_error_names_the_invalid_option(
    shell: Shell, run: Path, words: list[str], message: str
) -> None:
    ended = shell("pipeline", run, "--lake", run.parent / "lake", *words)
    assert ended.code == 2
    assert message in ended.stderr
    assert not (run.parent / "lake").exists()


def test_lake_is_required(shell: Shell, run: Path) -> None:
    ended = shell("pipeline", run)
    assert ended.code == 2
    assert "--lake" in ended.stderr


def test_source_without_a_run_is_rejected(shell: Shell, run: Path) -> None:
    for place, message in (
        (run / "nowhere", "does not exist; a pipeline reads the directory of a recorded run"),
        (run / "trace" / "trace.parquet", "is a file; a pipeline reads the directory"),
        (run.parent, "holds neither a trace"),
    ):
        ended = shell("pipeline", place, "--lake", run.parent / "lake", "--once", "--json")
        assert ended.code == 2
        assert message in ended.json()["error"]


def test_lake_within_its_source_is_rejected(shell: Shell, run: Path) -> None:
    ended = shell("pipeline", run, "--lake", run / "trace" / "lake", "--once")
    assert ended.code == 2
    assert f"lies within {run / 'trace'}" in ended.stderr
    assert "starting Spark" not in ended.stderr


def test_lake_on_a_remote_system_is_rejected(shell: Shell, run: Path) -> None:
    ended = shell("pipeline", run, "--lake", "s3://bucket/lake", "--once")
    assert ended.code == 2
    assert "s3://bucket/lake can't be a lake" in ended.stderr


def outcome(**given: Any) -> Outcome:
    """Return the outcome of a pipeline on a log without a trace."""
    why = "a server keeps the events, and no trace"
    made: dict[str, Any] = {
        "lake": "lake",
        "order": "total",
        "topics": ["a", "b"],
        "cut": {"a": 0, "b": 0},
        "before_cut": 0,
        "tables": {"events": 9, "ordered": 9, "gaps": 0},
        "verdicts": [],
        "left_out": {"trace": why, "audit": why},
        "failed": {},
    }
    return Outcome(**made | given)


JUDGED = RunVerdict(run="r", order="total", verdict=Verdict.VALID)


@pytest.mark.parametrize(
    ("found", "code", "verdict", "message"),
    [
        (outcome(), 0, None, "done; nothing to judge: a server keeps the events, and no trace"),
        (outcome(failed={"ordered": "no order"}), 2, "unknown", "failed: ordered: no order"),
        (outcome(left_out={}), 2, "unknown", "unknown: nothing was judged: the trace is empty"),
        (outcome(verdicts=[JUDGED], left_out={}), 0, "valid", "valid"),
        (
            outcome(cut={"a": 3, "b": 0}, before_cut=3),
            0,
            None,
            (
                "ordered from the first common cut on (a at offset 3): 3 events before it have no "
                "common order"
            ),
        ),
        (
            outcome(tables={"events": 9, "ordered": 8, "gaps": 1}),
            0,
            None,
            "not all events are in order: some wait for others that are not in the log; see gaps",
        ),
    ],
)
def test_exit_code_matches_the_outcome(
    shell: Shell,
    run: Path,
    monkeypatch: pytest.MonkeyPatch,
    found: Outcome,
    code: int,
    verdict: str | None,
    message: str,
) -> None:
    @contextmanager
    def no_spark(*_: object) -> Iterator[tuple[None, CommandProgress]]:
        yield None, CommandProgress()

    monkeypatch.setattr("ensue.cli.pipeline.on_spark", no_spark)
    monkeypatch.setattr("ensue.spark.lake.pipeline.pipeline", lambda *_, **__: found)
    words = ["pipeline", run, "--lake", run.parent / "lake", "--once"]
    ended = shell(*words)
    assert ended.code == code
    assert message in ended.stdout
    ended = shell(*words, "--json")
    assert (ended.code, ended.json()["verdict"]) == (code, verdict)


def test_help_explains_options_and_exit_codes(shell: Shell) -> None:
    ended = shell("pipeline", "--help")
    assert ended.code == 0
    for word in ("--once", "--every", "--topics", "--master", "Ctrl-C", "0 valid, 1 invalid"):
        assert word in ended.stdout
