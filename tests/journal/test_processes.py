"""A process that is killed, and two that want the same journal."""

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


def test_a_killed_process_loses_nothing_it_wrote(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # noqa: T201 - shown when the test fails
    rng = random.Random(seed)
    for _ in range(KILLS):
        with writer(tmp_path / "j") as process:
            assert process.stdout is not None
            for _ in range(rng.randrange(1, 60)):
                promised = int(process.stdout.readline())
            process.kill()  # While it goes on writing: anywhere.
            said = process.stdout.read().split("\n")[:-1]
            promised = int(said[-1]) if said else promised
        with Journal(tmp_path / "j", segment_bytes=4096) as journal:
            number = journal.write()
            assert number >= promised
            model = Model()
            for each in range(1, number + 1):
                model.apply(batch_of(each))
            assert dict(journal.records) == model.records
            assert journal.bounds() == model.bounds()
            for (topic, slot), value in model.events.items():
                assert journal.event(topic, slot) == value


def test_a_second_process_is_refused_until_the_first_lets_go(tmp_path: Path) -> None:
    with writer(tmp_path / "j", "hold") as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "open\n"
        with pytest.raises(LogInUse, match=f"{tmp_path / 'j'} is open already") as caught:
            Journal(tmp_path / "j")
        assert caught.value.path == str(tmp_path / "j")
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.wait() == 0
    Journal(tmp_path / "j").close()


def test_a_process_that_was_killed_holds_no_lock(tmp_path: Path) -> None:
    with writer(tmp_path / "j", "hold") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        process.kill()
    Journal(tmp_path / "j").close()


def test_one_process_is_refused_its_own_journal_too(tmp_path: Path) -> None:
    with Journal(tmp_path / "j"), pytest.raises(LogInUse):
        Journal(tmp_path / "j")
    Journal(tmp_path / "j").close()
