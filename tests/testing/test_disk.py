"""The simulated disk keeps what was synced, and of the rest what it happens to."""

import os
from pathlib import Path
from random import Random

import pytest

from ensue.testing.disk import Disk

ROOT = Path("/data")
CREATE = os.O_RDWR | os.O_CREAT


def made(seed: int = 0) -> tuple[Disk, int]:
    disk = Disk(Random(seed))
    disk.make_folder(ROOT)
    return disk, disk.open(ROOT / "log", CREATE)


def test_synced_content_and_names_survive_a_power_cut() -> None:
    for seed in range(50):
        disk, file = made(seed)
        disk.write(file, b"safe")
        disk.sync(file)
        disk.sync_folder(ROOT)
        disk.write(file, b"unsafe")
        disk.lose_power()
        found = disk.read(ROOT / "log")
        assert found[:4] == b"safe"
        assert len(found) <= 10


def test_unsynced_writes_are_lost_torn_zeroed_or_there() -> None:
    found = set()
    for seed in range(200):
        disk, file = made(seed)
        disk.sync_folder(ROOT)
        disk.write(file, b"abc")
        disk.write(file, b"def")
        disk.lose_power()
        found.add(disk.read(ROOT / "log"))
    assert {b"", b"abc", b"abcdef"} <= found
    assert any(len(each) in (1, 2, 4, 5) for each in found), "none was torn"
    assert any(b"\0" in each for each in found), "none was zeroed"


def test_names_that_were_not_synced_may_be_lost_in_sequence() -> None:
    found = set()
    for seed in range(100):
        disk, file = made(seed)
        disk.write(file, b"x")
        disk.sync(file)
        disk.rename(ROOT / "log", ROOT / "log.2")
        disk.lose_power()
        found.add(tuple(disk.names(ROOT)))
    assert found == {(), ("log",), ("log.2",)}


def test_killed_process_keeps_writes_and_releases_its_lock() -> None:
    disk, file = made()
    disk.write(file, b"written")
    disk.lock(file)
    other = disk.open(ROOT / "log", os.O_RDWR)
    with pytest.raises(BlockingIOError):
        disk.lock(other)
    disk.process_ended()
    again = disk.open(ROOT / "log", os.O_RDWR)
    disk.lock(again)
    assert disk.read_at(again, 100, 0) == b"written"


def test_full_disk_takes_a_part_and_then_nothing() -> None:
    disk, file = made()
    disk.full_after = 5
    assert disk.write(file, b"12345678") == 5
    with pytest.raises(OSError, match="No space left"):
        disk.write(file, b"9")


def test_failed_sync_loses_what_it_should_have_kept() -> None:
    disk, file = made()
    disk.sync_folder(ROOT)
    disk.write(file, b"lost")
    disk.fails_sync = True
    with pytest.raises(OSError, match="Input/output"):
        disk.sync(file)
    disk.lose_power()
    assert disk.read(ROOT / "log") == b""


def test_rolled_back_folder_is_its_older_copy() -> None:
    disk, file = made()
    disk.write(file, b"old")
    assert not disk.roll_back(ROOT)
    disk.copy(ROOT)
    disk.write(file, b"new")
    disk.open(ROOT / "later", CREATE)
    assert disk.roll_back(ROOT)
    assert disk.names(ROOT) == ["log"]
    assert disk.read(ROOT / "log") == b"old"


def test_flipped_bit_changes_one_byte() -> None:
    disk, file = made()
    disk.rename(ROOT / "log", ROOT / "1.log")
    disk.write(file, bytes(100))
    assert disk.flip_bit(ROOT) is not None
    assert sum(each != 0 for each in disk.read(ROOT / "1.log")) == 1


def test_flipped_bit_may_be_one_that_was_synced() -> None:
    disk, file = made()
    disk.rename(ROOT / "log", ROOT / "1.log")
    assert disk.flip_bit(ROOT, synced=True) is None
    disk.write(file, b"0")
    disk.sync(file)
    disk.write(file, bytes(100))
    assert disk.flip_bit(ROOT, synced=True) == f"{ROOT / '1.log'} byte 0"
    assert disk.read(ROOT / "1.log")[1:] == bytes(100)
