"""Random batches, writes, crashes and retention, against a dictionary."""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.journal.model import Batch, Model, check, copied, files, no_disk, persists, retain

from ensue.core.errors import LogDamaged
from ensue.journal import Journal

VALUES = st.binary(max_size=30)
TOPICS = st.sampled_from(["a", "b/c", ""])
EVENTS = st.tuples(
    st.builds("event/{}/{}".format, st.integers(0, 9), TOPICS), st.one_of(VALUES, st.none())
)
RECORDS = st.tuples(st.sampled_from(["x", "y/1", "event", "z"]), st.one_of(VALUES, st.none()))
BATCHES = st.lists(st.one_of(EVENTS, EVENTS, RECORDS), min_size=1, max_size=6)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), BATCHES),
        st.tuples(st.just("append and sync"), BATCHES),
        st.tuples(st.just("append and sync"), BATCHES),
        st.tuples(st.just("append and write"), BATCHES),
        st.tuples(st.sampled_from(["write", "sync", "sync", "reopen", "kill", "tick"]), st.none()),
        st.tuples(st.just("no sidecar"), st.integers(0, 3)),
        st.tuples(st.just("retain by size"), st.tuples(st.integers(0, 3), st.integers(-1, 0))),
        st.tuples(st.just("retain by age"), st.integers(0, 3)),
    ),
    max_size=25,
)


class Both:
    """A journal, its model, and the model of what was written."""

    def __init__(self, root: Path, segment_bytes: int) -> None:
        self.root = root
        self.now_s = 0.0
        self.lives = 0
        self.segment_bytes = segment_bytes
        self.model = Model()
        self.written = Model()
        self.closed_s: dict[int, float] = {}
        self.journal = self.open(root / "0")

    def open(self, directory: Path) -> Journal:
        return Journal(directory, segment_bytes=self.segment_bytes, clock=lambda: self.now_s)

    def active(self) -> int:
        return self.journal._segments.active.number

    def append(self, batch: Batch) -> None:
        self.journal.append(persists(batch))
        self.model.apply(batch, self.active())

    def write(self) -> None:
        before = self.active()
        self.journal.write()
        self.written = self.model.copy()
        if self.active() != before:
            self.closed_s[before] = self.now_s

    def reopen(self) -> None:
        self.write()  # Closing writes too, but hides whether it created a segment.
        self.journal.close()
        self.journal = self.open(self.journal.directory)

    def kill(self) -> None:
        self.lives += 1
        left = copied(self.journal.directory, self.root / str(self.lives))
        self.journal.close()
        self.journal = self.open(left)
        self.model = self.written.copy()

    def damage_sidecar(self, which: int) -> None:
        for path in files(self.journal.directory, ".index")[which : which + 1]:
            path.write_bytes(path.read_bytes()[:-1])

    def retain(self, *, bytes_max: int | None, age_s: float | None) -> None:
        directory = self.journal.directory
        logs = files(directory, ".log")
        total = sum(path.stat().st_size for path in (*logs, *files(directory, ".next")))
        for path in logs[:-1]:
            too_much = bytes_max is not None and total > bytes_max
            too_old = age_s is not None and self.now_s - self.closed_s[int(path.stem)] > age_s
            if not too_much and not too_old:
                break
            total -= path.stat().st_size
            logs = logs[1:]
        found = retain(self.journal, bytes_max=bytes_max, age_s=age_s, now_s=self.now_s)
        assert files(directory, ".log") == logs
        oldest = int(logs[0].stem)
        assert found == self.model.drop_before(oldest)
        self.written.drop_before(oldest)

    def check_losses(self) -> None:
        """Assert that a missing or truncated segment of a closed journal raises."""
        directory = self.journal.directory
        self.journal.close()
        for path in files(directory, ".log"):
            for size in (None, path.stat().st_size - 1):
                left = copied(directory, self.root / "lost") / path.name
                if size is None:
                    left.unlink()
                else:
                    os.truncate(left, size)
                with pytest.raises(LogDamaged):
                    self.open(left.parent)

    def step(self, name: str, argument: Any) -> None:
        match name:
            case "append":
                self.append(argument)
            case "append and write":
                self.append(argument)
                self.write()
            case "append and sync":
                self.append(argument)
                self.write()
                self.journal.sync()
            case "write":
                self.write()
            case "sync":
                self.write()
                self.journal.sync()
            case "reopen":
                self.reopen()
            case "kill":
                self.kill()
            case "tick":
                self.now_s += 1
            case "no sidecar":
                self.damage_sidecar(argument)
            case "retain by size":
                # Exactly where one segment more or less is dropped.
                count, less = argument
                sizes = [each.size for each in self.journal._segments.all]
                self.retain(bytes_max=sum(sizes[count:]) + less, age_s=None)
            case "retain by age":
                self.retain(bytes_max=None, age_s=argument)


@settings(max_examples=150, deadline=None)
@given(steps=STEPS, segment_bytes=st.sampled_from([1, 1, 100, 300, 1 << 20]))
def test_journal_equals_a_dictionary_after_crashes(
    steps: list[tuple[str, Any]], segment_bytes: int
) -> None:
    root = Path(tempfile.mkdtemp())
    try:
        with no_disk():
            both = Both(root, segment_bytes)
            for name, argument in steps:
                both.step(name, argument)
                check(both.journal, both.model)
            both.kill()
            check(both.journal, both.model)
            both.reopen()
            check(both.journal, both.model)
            both.check_losses()
    finally:
        shutil.rmtree(root)
