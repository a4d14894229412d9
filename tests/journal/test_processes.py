"""A process that is killed, and two processes that open the same journal."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from tests.journal.model import Model
from tests.journal.writer import batch_of

from ensue.core.errors import LogInUse
from ensue.journal import Journal

ROOT = Path(__file__).parents[2]
KILLS = 5


def writer(directory: Path, *words: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "tests.journal.writer", str(directory), *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_killed_process_loses_no_write(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # noqa: T201 - shown when the test fails
    rng = random.Random(seed)
    for _ in range(KILLS):
        with writer(tmp_path / "j") as process:
            assert process.stdout is not None
            for _ in range(rng.randrange(1, 60)):
                confirmed = int(process.stdout.readline())
            process.kill()  # At any point of its writes.
            lines = process.stdout.read().split("\n")[:-1]
            confirmed = int(lines[-1]) if lines else confirmed
        with Journal(tmp_path / "j", segment_bytes=4096) as journal:
            number = journal.write()
            assert number >= confirmed
            model = Model()
            for each in range(1, number + 1):
                model.apply(batch_of(each))
            assert dict(journal.records) == model.records
            assert journal.bounds() == model.bounds()
            for (topic, slot), value in model.events.items():
                assert journal.event(topic, slot) == value


def test_second_process_is_rejected_until_the_first_closes(tmp_path: Path) -> None:
    with writer(tmp_path / "j", "hold") as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "open\n"
        with pytest.raises(
            LogInUse, match=f"{tmp_path / 'j'} is open in another process"
        ) as caught:
            Journal(tmp_path / "j")
        assert caught.value.path == str(tmp_path / "j")
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.wait() == 0
    Journal(tmp_path / "j").close()


def test_killed_process_holds_no_lock(tmp_path: Path) -> None:
    with writer(tmp_path / "j", "hold") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        process.kill()
    Journal(tmp_path / "j").close()


def test_process_can_not_open_its_own_journal_twice(tmp_path: Path) -> None:
    with Journal(tmp_path / "j"), pytest.raises(LogInUse):
        Journal(tmp_path / "j")
    Journal(tmp_path / "j").close()
