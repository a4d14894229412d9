"""A simple model of a journal, and helpers that compare both."""

import copy
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from ensue.core.errors import LogDamaged
from ensue.journal import Journal
from ensue.protocols.interface import Persist

Batch = Sequence[tuple[str, bytes | None]]

SLOTS = range(40)


class Model:
    """A dictionary of records and a dictionary of events."""

    def __init__(self) -> None:
        self.records: dict[str, bytes] = {}
        self.events: dict[tuple[str, int], bytes] = {}
        self.segments: dict[tuple[str, int], int] = {}
        """The segment of each event."""
        self.next: dict[str, int] = {}

    def apply(self, batch: Batch, segment: int = 0) -> None:
        for key, value in dict(batch).items():
            if not key.startswith("event/"):
                if value is None:
                    self.records.pop(key, None)
                else:
                    self.records[key] = value
                continue
            _, slot, topic = key.split("/", 2)
            place = (topic, int(slot))
            if value is None:
                self.events.pop(place, None)
            else:
                self.events[place] = value
                self.segments[place] = segment
                self.next[topic] = max(self.next.get(topic, 0), int(slot) + 1)

    def copy(self) -> "Model":
        return copy.deepcopy(self)

    def drop_before(self, segment: int) -> dict[str, int]:
        """Drop events of older segments; return the slot after the highest one lost."""
        lost = sorted(place for place in self.events if self.segments[place] < segment)
        for place in lost:
            del self.events[place]
        return {topic: slot + 1 for topic, slot in lost}

    def first(self, topic: str) -> int:
        present = [slot for each, slot in self.events if each == topic]
        return min(present, default=self.next[topic])

    def bounds(self) -> dict[str, tuple[int, int]]:
        return {topic: (self.first(topic), self.next[topic]) for topic in self.next}

    def row(self, topic: str, start: int, stop: int, bytes_max: int) -> list[tuple[int, bytes]]:
        found: list[tuple[int, bytes]] = []
        for slot in range(start, stop):
            value = self.events.get((topic, slot))
            if value is None:
                continue
            if found and sum(len(each) for _, each in found) + len(value) > bytes_max:
                break
            found.append((slot, value))
        return found


def persists(batch: Batch) -> list[Persist]:
    return [Persist(key, value) for key, value in batch]


def retain(
    journal: Journal, *, bytes_max: int | None, age_s: float | None, now_s: float
) -> dict[str, int]:
    """Drop outdated segments; return where topics that lost events begin."""
    old = journal.find_old(bytes_max=bytes_max, age_s=age_s, now_s=now_s)
    if old is None:
        return {}
    journal.drop(old)
    return old.firsts


def check(journal: Journal, model: Model) -> None:
    """Assert that every read of the journal returns what the model holds."""
    assert dict(journal.records) == model.records
    assert journal.bounds() == model.bounds()
    for topic in (*model.next, "unknown"):
        for slot in SLOTS:
            assert journal.event(topic, slot) == model.events.get((topic, slot)), (topic, slot)
        for bytes_max in (0, 25, 1 << 20):
            for start in (0, 3):
                found = journal.events(topic, start, SLOTS.stop, bytes_max=bytes_max)
                assert found == model.row(topic, start, SLOTS.stop, bytes_max)


def check_no_wrong_value(journal: Journal, model: Model) -> None:
    """Assert that every value is right or raises `LogDamaged`."""
    assert dict(journal.records) == model.records
    assert journal.bounds() == model.bounds()
    for topic, slot in model.events:
        message = ""
        try:
            assert journal.event(topic, slot) == model.events[topic, slot]
        except LogDamaged as error:
            message = str(error)
        assert not message or re.search(r"\d+\.log is damaged at byte \d+", message)


def prefixes(batches: Sequence[Batch]) -> list[Model]:
    """Return the models after no batch, after the first, and so on."""
    models = [Model()]
    for batch in batches:
        models.append(models[-1].copy())
        models[-1].apply(batch)
    return models


def copied(source: Path, target: Path) -> Path:
    """Copy a journal as a process that is killed now leaves it."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    return target


def files(directory: Path, suffix: str) -> list[Path]:
    return sorted(path for path in directory.iterdir() if path.suffix == suffix)


@contextmanager
def no_disk() -> Iterator[None]:
    """Skip syncs in tests that do not depend on them."""
    with mock.patch.object(os, "fsync", return_value=None):
        yield


def sample(count: int) -> list[Batch]:
    """Return batches with every kind of write, overwrite and drop."""
    return [
        [
            (f"record/{at % 3}", None if at % 4 == 3 else b"r%d" % at),
            (f"event/{at}/orders", b"order %d" % at),
            (f"event/{at + 5}/bills/eu", b"bill %d" % at),
            (f"event/{at - 4}/orders", None) if at >= 4 else ("once", b"x"),
        ]
        for at in range(count)
    ]
