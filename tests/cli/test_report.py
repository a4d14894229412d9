"""`ensue report`: input that it rejects before Spark starts. tests/spark tests its page."""

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
    ("words", "message"),
    [
        (["--window", "5s"], "--window: expected START:END like"),
        (["--window", "5:6"], "--window: expected a duration"),
        (["--window", "6s:5s"], "--window: '6s:5s' ends before it begins"),
        (["--window", "5s:6s", "--around", "a"], "--window and --around exclude each other"),
    ],
)
def test_error_names_the_invalid_option(
    shell: Shell, run: Path, words: list[str], message: str
) -> None:
    ended = shell("report", run, "-o", run.parent / "page.html", *words)
    assert ended.code == 2
    assert message in ended.stderr


def test_missing_trace_is_bad_input(shell: Shell, tmp_path: Path) -> None:
    ended = shell("report", tmp_path / "nowhere", "-o", tmp_path / "page.html")
    assert ended.code == 2
    assert f"{tmp_path / 'nowhere'} does not exist" in ended.stderr
    assert not (tmp_path / "page.html").exists()


def test_page_that_can_not_be_written_is_rejected_at_once(shell: Shell, run: Path) -> None:
    ended = shell("report", run, "-o", run.parent / "absent" / "page.html")
    assert ended.code == 2
    assert f"--output: {run.parent / 'absent'} does not exist" in ended.stderr
    ended = shell("report", run, "-o", run, "--json")
    assert ended.code == 2
    assert "is a directory" in ended.json()["error"]
    assert "starting Spark" not in ended.stderr
