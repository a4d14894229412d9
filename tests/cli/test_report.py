"""`ensue report`: what it refuses before it starts Spark. Its page is tested in tests/spark."""

from pathlib import Path

import pytest
from tests.checkers.helpers import Script
from tests.cli.helpers import Shell

from ensue.core import trace


@pytest.fixture
def run(tmp_path: Path) -> Path:
    trace.write(Script().publish("p", "a").rows, tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--window", "5s"], "--window: expected START:END like"),
        (["--window", "5:6"], "--window: expected a duration"),
        (["--window", "6s:5s"], "--window: '6s:5s' ends before it begins"),
        (["--window", "5s:6s", "--around", "a"], "--window and --around: give one of them"),
    ],
)
def test_bad_options_are_refused_by_name(
    shell: Shell, run: Path, words: list[str], told: str
) -> None:
    ended = shell("report", run, "-o", run.parent / "page.html", *words)
    assert ended.code == 2
    assert told in ended.stderr


def test_a_missing_trace_is_bad_input(shell: Shell, tmp_path: Path) -> None:
    ended = shell("report", tmp_path / "nowhere", "-o", tmp_path / "page.html")
    assert ended.code == 2
    assert f"{tmp_path / 'nowhere'} does not exist" in ended.stderr
    assert not (tmp_path / "page.html").exists()


def test_a_page_that_can_not_be_written_is_refused_at_once(shell: Shell, run: Path) -> None:
    ended = shell("report", run, "-o", run.parent / "absent" / "page.html")
    assert ended.code == 2
    assert f"--output: {run.parent / 'absent'} does not exist" in ended.stderr
    ended = shell("report", run, "-o", run, "--json")
    assert ended.code == 2
    assert "is a directory" in ended.json()["error"]
    assert "starting Spark" not in ended.stderr
