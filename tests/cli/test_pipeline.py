"""`ensue pipeline`: what it refuses before it starts Spark. Its tables are tested in tests/spark."""

from pathlib import Path

import pytest
from tests.checkers.helpers import Script
from tests.cli.helpers import Shell

from ensue import trace


@pytest.fixture
def run(tmp_path: Path) -> Path:
    trace.write(Script().publish("p", "a").rows, tmp_path / "run" / "trace")
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--every", "5"], "--every: expected a duration"),
        (["--every", "0s"], "--every: expected more than nothing"),
        (["--topics", "a,,b"], "--topics: expected names between commas like a,b, not 'a,,b'"),
        (["--order", "alphabetical"], "Invalid value for '--order'"),
    ],
)
def test_bad_options_are_refused_by_name(
    shell: Shell, run: Path, words: list[str], told: str
) -> None:
    ended = shell("pipeline", run, "--lake", run.parent / "lake", *words)
    assert ended.code == 2
    assert told in ended.stderr
    assert not (run.parent / "lake").exists()


def test_a_lake_must_be_named(shell: Shell, run: Path) -> None:
    ended = shell("pipeline", run)
    assert ended.code == 2
    assert "--lake" in ended.stderr


def test_a_place_without_a_run_is_refused(shell: Shell, run: Path) -> None:
    for place, told in (
        (run / "nowhere", "does not exist; a pipeline is made of the directory of a recorded run"),
        (run / "trace" / "trace.parquet", "is a file; a pipeline is made of the directory"),
        (run.parent, "holds neither a trace"),
    ):
        ended = shell("pipeline", place, "--lake", run.parent / "lake", "--once", "--json")
        assert ended.code == 2
        assert told in ended.json()["error"]


def test_a_lake_within_what_it_is_made_of_is_refused(shell: Shell, run: Path) -> None:
    ended = shell("pipeline", run, "--lake", run / "trace" / "lake", "--once")
    assert ended.code == 2
    assert f"lies within {run / 'trace'}" in ended.stderr
    assert "starting Spark" not in ended.stderr


def test_a_lake_on_a_remote_system_is_refused(shell: Shell, run: Path) -> None:
    ended = shell("pipeline", run, "--lake", "s3://bucket/lake", "--once")
    assert ended.code == 2
    assert "s3://bucket/lake can't be a lake" in ended.stderr


def test_the_help_says_what_comes_of_it(shell: Shell) -> None:
    ended = shell("pipeline", "--help")
    assert ended.code == 0
    for word in ("--once", "--every", "--topics", "--master", "Ctrl-C", "0 valid, 1 invalid"):
        assert word in ended.stdout
