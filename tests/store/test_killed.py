"""A writer that is killed at any point leaves whole commits and nothing else."""

import os
import random
import subprocess
import sys
from pathlib import Path

from tests.store.helpers import numbers

from ensue.store import DirectoryReader, LogWriter

ROOT = Path(__file__).parents[2]
KILLS = 15


def test_every_commit_is_atomic(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # noqa: T201 - shown when the test fails
    rng = random.Random(seed)
    confirmed = -1
    for _ in range(KILLS):
        with subprocess.Popen(
            [sys.executable, "-m", "tests.store.appender", str(tmp_path / "log")],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            for _ in range(rng.randrange(1, 12)):
                confirmed = int(process.stdout.readline())
            # Kill anywhere between two confirmed batches, not only right after one.
            try:
                process.wait(rng.random() * 0.02)
            except subprocess.TimeoutExpired:
                process.kill()
            lines = process.stdout.read().split()
            confirmed = int(lines[-1]) if lines else confirmed
        found = numbers(tmp_path / "log")
        batches = len(found["a"]) // 2
        assert batches in (confirmed + 1, confirmed + 2)
        assert found["a"] == list(range(1, 2 * batches + 1))
        assert found["b"] == found["a"]
        assert found["c"] == found["a"][-len(found["c"]) :]
    LogWriter(tmp_path / "log").close()
    state = DirectoryReader(tmp_path / "log")._state
    named = {each.file for topic in state.topics.values() for each in topic.segments}
    files = (tmp_path / "log" / "topics").rglob("*.arrow")
    assert {path.relative_to(tmp_path / "log").as_posix() for path in files} == named
