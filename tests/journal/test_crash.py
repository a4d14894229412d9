"""Crashes of the process or the machine at any point, and disk errors."""

import errno
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.journal.model import check, copied, files, no_disk, persists, prefixes, retain, sample

from ensue.journal import Journal, JournalFailed

COUNT = 12
SEGMENT_BYTES = 300
MODELS = prefixes(sample(COUNT))


class Stop(BaseException):
    """Raised where the process ends."""


@contextmanager
def stopping_at(call: int) -> Iterator[list[int]]:
    """Raise `Stop` at the n-th call that changes files; a write is half done."""
    calls = [0]

    def stopper(name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def stop_or_go(*args: Any, **options: Any) -> Any:
            calls[0] += 1
            if calls[0] == call:
                if name == "write":
                    real(args[0], args[1][: len(args[1]) // 2])
                raise Stop
            return None if name == "fsync" else real(*args, **options)

        return stop_or_go

    names = ("write", "fsync", "rename", "replace", "unlink", "truncate")
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(mock.patch.object(os, name, stopper(name)))
        yield calls


def live(directory: Path, confirmed: list[int]) -> None:
    """Open a journal, write and sync batches; record the confirmed ones."""
    journal = Journal(directory, segment_bytes=SEGMENT_BYTES)
    try:
        for number, batch in enumerate(sample(COUNT), start=1):
            journal.append(persists(batch))
            confirmed.append(journal.write())
            if number % 5 == 0:
                journal.sync()
    except BaseException:
        journal.failed = journal.failed or RuntimeError("stopped")
        raise
    finally:
        journal.close()


def test_process_stopped_at_any_call_loses_no_write(tmp_path: Path) -> None:
    for call in range(1, 1000):
        confirmed = [0]
        shutil.rmtree(tmp_path / "j", ignore_errors=True)
        with stopping_at(call) as calls:
            try:
                live(tmp_path / "j", confirmed)
            except Stop:
                pass
            else:
                break
            assert calls[0] >= call
        # Opening may be stopped at any call too.
        for again in range(1, 1000):
            left = copied(tmp_path / "j", tmp_path / "again")
            whole = False
            with stopping_at(again), suppress(Stop):
                Journal(left, segment_bytes=SEGMENT_BYTES).close()
                whole = True
            with no_disk(), Journal(left, segment_bytes=SEGMENT_BYTES) as journal:
                number = journal.write()
                assert number >= confirmed[-1]
                check(journal, MODELS[number])
            if whole:
                break
    else:
        pytest.fail("the run never finished")
    assert confirmed[-1] == COUNT
    assert call > 20


class Disk:
    """The durable state: synced sizes of files, and synced names of the folder."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.sizes: dict[int, int] = {}
        self.names: dict[str, int] = {}
        self.syncs_left = 1_000_000

    def fsync(self, descriptor: int) -> None:
        self.syncs_left -= 1
        if self.syncs_left < 0:
            raise Stop
        status = os.fstat(descriptor)
        if os.path.samestat(status, self.directory.stat()):
            self.names = {path.name: path.stat().st_ino for path in self.directory.iterdir()}
        else:
            self.sizes[status.st_ino] = status.st_size

    def after_power_cut(self, target: Path, draw: Callable[[int], int], *, new_names: bool) -> Path:
        """Create the files that survive; `draw` decides about unsynced bytes."""
        found = {path.stat().st_ino: path for path in self.directory.iterdir()}
        names = dict(self.names)
        if new_names:
            names = {path.name: inode for inode, path in found.items()}
        target.mkdir()
        for name, inode in sorted(names.items()):
            if inode not in found:
                continue  # The removal is durable.
            data = found[inode].read_bytes()
            safe = self.sizes.get(inode, 0)
            kept = bytearray(data[: safe + draw(len(data) - safe)])
            if len(kept) > safe and draw(1):
                hole = safe + draw(len(kept) - safe - 1)
                kept[hole : hole + 64] = bytes(len(kept[hole : hole + 64]))
            (target / name).write_bytes(kept)
        return target


def kill(journal: Journal) -> None:
    """End as a killed process does: unwritten batches and the lock are gone."""
    journal._segments.close()
    journal._files.close()


@settings(max_examples=120, deadline=None)
@given(
    steps=st.lists(
        st.sampled_from(["append", "append", "append", "write", "write", "sync", "kill"]),
        max_size=40,
    ),
    segment_bytes=st.sampled_from([1, 250, 600, 1 << 20]),
    new_names=st.booleans(),
    syncs=st.one_of(st.just(1_000_000), st.integers(0, 30)),
    data=st.data(),
)
def test_synced_batches_survive_a_power_cut(
    steps: list[str], segment_bytes: int, new_names: bool, syncs: int, data: st.DataObject
) -> None:
    root = Path(tempfile.mkdtemp())
    disk = Disk(root / "j")
    disk.syncs_left = syncs  # The power may fail during a sync.
    batches = sample(40)
    models = prefixes(batches)
    durable = appended = 0
    journal: Journal | None = None
    try:
        with mock.patch.object(os, "fsync", disk.fsync), suppress(Stop):
            journal = Journal(root / "j", segment_bytes=segment_bytes)
            for step in steps:
                if step == "append":
                    journal.append(persists(batches[appended]))
                    appended += 1
                elif step == "write":
                    journal.write()
                elif step == "sync":
                    durable = journal.sync()
                else:
                    kill(journal)
                    appended = journal._written
                    journal = Journal(root / "j", segment_bytes=segment_bytes)
                    durable = appended = journal.write()
        left = disk.after_power_cut(
            root / "left",
            lambda most: data.draw(st.integers(0, most)),
            new_names=new_names,
        )
        if journal is not None:
            kill(journal)
        with no_disk(), Journal(left, segment_bytes=segment_bytes) as journal:
            number = journal.write()
            assert durable <= number <= appended
            check(journal, models[number])
    finally:
        shutil.rmtree(root)


def test_full_disk_raises_and_confirms_nothing(tmp_path: Path) -> None:
    real = os.write
    room = 700

    def write(descriptor: int, data: bytes) -> int:
        nonlocal room
        if room == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = real(descriptor, data[:room])
        room -= written
        return written

    journal = Journal(tmp_path / "j")
    confirmed = 0

    def fill() -> None:
        nonlocal confirmed
        for batch in sample(COUNT):
            journal.append(persists(batch))
            confirmed = journal.write()

    with mock.patch.object(os, "write", write), pytest.raises(OSError, match="No space left"):
        fill()
    assert 0 < confirmed < COUNT
    assert isinstance(journal.failed, OSError)
    for call in (lambda: journal.append([]), journal.write, journal.sync):
        with pytest.raises(JournalFailed, match=r"earlier error.*No space left"):
            call()
    assert journal.event("orders", confirmed - 1) == b"order %d" % (confirmed - 1)
    journal.close()
    with Journal(tmp_path / "j") as journal:
        assert journal.write() == confirmed
        check(journal, MODELS[confirmed])


def test_full_disk_at_a_new_segment_loses_no_write(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j", segment_bytes=1)
    journal.append(persists(sample(1)[0]))
    real = os.write
    calls = 0

    def write(descriptor: int, data: bytes) -> int:
        nonlocal calls
        calls += 1
        if calls > 1:
            real(descriptor, data[:10])
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, data)

    with mock.patch.object(os, "write", write), pytest.raises(OSError, match="No space left"):
        journal.write()
    with pytest.raises(JournalFailed):
        journal.append(persists(sample(2)[1]))
    journal.close()
    assert files(tmp_path / "j", ".next")
    with Journal(tmp_path / "j") as journal:
        assert journal.write() == 1
        check(journal, MODELS[1])


def test_failed_sync_is_final(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    journal.append(persists(sample(1)[0]))
    journal.write()

    def fsync(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with mock.patch.object(os, "fsync", fsync), pytest.raises(OSError, match="Input/output"):
        journal.sync()
    with pytest.raises(JournalFailed):  # The next fsync would succeed without proving anything.
        journal.sync()
    with pytest.raises(JournalFailed):
        journal.append(persists(sample(2)[1]))
    journal.close()


def test_write_in_several_pieces_is_whole(tmp_path: Path) -> None:
    real = os.write
    with (
        mock.patch.object(os, "write", lambda descriptor, data: real(descriptor, data[:50])),
        Journal(tmp_path / "j", segment_bytes=300) as journal,
    ):
        for batch in sample(COUNT):
            journal.append(persists(batch))
            journal.write()
    with Journal(tmp_path / "j") as journal:
        check(journal, MODELS[COUNT])


def test_sync_in_another_thread_blocks_no_write(tmp_path: Path) -> None:
    with Journal(tmp_path / "j", segment_bytes=200) as journal:
        entered, leave = threading.Event(), threading.Event()
        claimed: list[int] = []

        def fsync(descriptor: int) -> None:
            entered.set()
            assert leave.wait(60)

        with mock.patch.object(os, "fsync", fsync):
            for batch in sample(2):
                journal.append(persists(batch))
            journal.write()
            syncing = threading.Thread(target=lambda: claimed.append(journal.sync()))
            syncing.start()
            assert entered.wait(60)
            try:
                for batch in sample(6)[2:]:
                    journal.append(persists(batch))
                    journal.write()
                begun = len(journal._segments.all)
                check(journal, MODELS[6])
            finally:
                leave.set()
                syncing.join()
        assert begun >= 3
        assert claimed == [2]
        assert journal.sync() == 6
        assert not files(tmp_path / "j", ".next")
        check(journal, MODELS[6])


def test_concurrent_syncs_change_nothing(tmp_path: Path) -> None:
    claimed: list[int] = []
    done = threading.Event()
    with no_disk(), Journal(tmp_path / "j", segment_bytes=100) as journal:

        def sync() -> None:
            while not done.is_set():
                claimed.append(journal.sync())

        syncing = threading.Thread(target=sync)
        syncing.start()
        for at in range(500):
            journal.append(persists([(f"event/{at}/t", b"%d" % at), ("last", b"%d" % at)]))
            assert journal.write() == at + 1
            retain(journal, bytes_max=3000, age_s=None, now_s=0)
            assert journal.event("t", at) == b"%d" % at
        done.set()
        syncing.join()
        assert claimed == sorted(claimed)
        assert journal.sync() == 500
    with Journal(tmp_path / "j", segment_bytes=100) as journal:
        assert journal.records["last"] == b"499"
        first, after = journal.bounds()["t"]
        assert 0 < first < after == 500
        assert journal.events("t", 0, 500, bytes_max=1 << 20) == [
            (slot, b"%d" % slot) for slot in range(first, 500)
        ]


def test_full_disk_at_close_loses_nothing(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    journal.append(persists(sample(1)[0]))
    journal.write()
    journal.sync()

    def write(_descriptor: int, _data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with mock.patch.object(os, "write", write):
        journal.close()
    with Journal(tmp_path / "j") as journal:
        assert journal.write() == 1
        check(journal, MODELS[1])
