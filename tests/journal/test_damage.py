"""Truncate and flip a small journal at every byte: a clean prefix remains, or opening raises."""

from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import msgspec
import pytest
from tests.journal.model import (
    Model,
    check,
    check_no_wrong_value,
    copied,
    files,
    no_disk,
    persists,
    prefixes,
    retain,
    sample,
)

from ensue.core.errors import LogDamaged
from ensue.journal import Journal, segments
from ensue.journal.format import Head, encode


@pytest.fixture(autouse=True)
def _no_disk() -> Iterator[None]:
    with no_disk():
        yield


def fill(directory: Path, count: int, *, segment_bytes: int, sync_every: int) -> list[int]:
    """Write batches one by one; return where each ends in the newest segment."""
    ends = []
    journal = Journal(directory, segment_bytes=segment_bytes)
    for number, batch in enumerate(sample(count), start=1):
        journal.append(persists(batch))
        journal.write()
        ends.append(journal._segments.active.size)
        if sync_every and number % sync_every == 0:
            assert journal.sync() == number
    copied(directory, directory.with_suffix(".left"))  # Closing would sync.
    journal.close()
    copied(directory.with_suffix(".left"), directory)
    return ends


def test_truncation_at_any_byte_leaves_the_batches_before_it(tmp_path: Path) -> None:
    ends = fill(tmp_path / "whole", 6, segment_bytes=1 << 20, sync_every=0)
    models = prefixes(sample(6))
    (log,) = files(tmp_path / "whole", ".log")
    with Journal(copied(tmp_path / "whole", tmp_path / "cut")) as journal:
        body = journal._segments.active.body
    for cut in range(log.stat().st_size):
        left = copied(tmp_path / "whole", tmp_path / "cut")
        with (left / log.name).open("r+b") as file:
            file.truncate(cut)
        if cut < body:
            with pytest.raises(LogDamaged, match=f"{log.name} is damaged at byte"):
                Journal(left)
            continue
        with Journal(left) as journal:
            survived = sum(end <= cut for end in ends)
            assert journal.write() == survived
            check(journal, models[survived])
            # Later batches are appended after the prefix.
            journal.append(persists([("after", b"cut")]))
        with Journal(left) as journal:
            assert journal.write() == survived + 1
            assert journal.records["after"] == b"cut"


@pytest.mark.parametrize("zeroed", [False, True])
def test_missing_synced_batch_of_a_killed_process_raises(tmp_path: Path, zeroed: bool) -> None:
    ends = fill(tmp_path / "whole", 7, segment_bytes=1 << 20, sync_every=3)
    (log,) = files(tmp_path / "whole", ".log")
    data = log.read_bytes()
    for cut in ends:
        for back in (0, 1):
            left = copied(tmp_path / "whole", tmp_path / "cut")
            kept = data[: cut - back]
            rest = bytes(len(data) - len(kept)) if zeroed else b""
            (left / log.name).write_bytes(kept + rest)
            survived = sum(end <= len(kept) for end in ends)
            if survived >= 6:
                with Journal(left) as journal:
                    assert journal.write() == survived
                continue
            why = f"batch {survived + 1} can't be read, and batch 6 was synced"
            with pytest.raises(LogDamaged, match=f"{log.name} is damaged at byte .*: {why}"):
                Journal(left)
            lock = left / "lock"
            lock.write_bytes(lock.read_bytes()[:-1])  # As after a power cut.
            with Journal(left) as journal:
                assert journal.write() == survived


def test_truncated_new_segment_leaves_the_one_before(tmp_path: Path) -> None:
    with Journal(tmp_path / "whole", segment_bytes=250) as journal:
        for batch in sample(6):
            journal.append(persists(batch))
            journal.write()
        left = copied(tmp_path / "whole", tmp_path / "left")
        log_batches = journal._segments.all[1].first_batch - 1
    models = prefixes(sample(6))
    following = files(left, ".next")[0]
    seen = set()
    for cut in range(following.stat().st_size):
        directory = copied(left, tmp_path / "cut")
        with (directory / following.name).open("r+b") as file:
            file.truncate(cut)
        with Journal(directory) as journal:
            number = journal.write()
            assert number >= log_batches
            check(journal, models[number])
            seen.add(number)
    assert seen == set(range(log_batches, max(seen) + 1))
    assert len(seen) > 1


def test_no_flipped_bit_gives_a_wrong_value(tmp_path: Path) -> None:
    fill(tmp_path / "whole", 7, segment_bytes=250, sync_every=2)
    models = prefixes(sample(7))
    outcomes = set()
    named = set()
    paths = [path for path in (tmp_path / "whole").iterdir() if path.name != "lock"]
    assert {path.suffix for path in paths} == {".log", ".index", ""}
    for path in paths:
        data = path.read_bytes()
        for at in range(len(data)):
            left = copied(tmp_path / "whole", tmp_path / "flipped")
            flipped = bytearray(data)
            flipped[at] ^= 1 << at % 8
            (left / path.name).write_bytes(flipped)
            try:
                journal = Journal(left)
            except LogDamaged as error:
                outcomes.add("damaged")
                named.add((error.path, str(left / path.name)))
                continue
            with journal:
                number = journal.write()
                assert number >= 6 or path.suffix == ".log"
                check_no_wrong_value(journal, models[number])
                outcomes.add("a prefix" if number < 7 else "all")
    assert outcomes == {"damaged", "a prefix", "all"}
    assert {named_path == meant for named_path, meant in named} == {True}


def overwrite(path: Path, start: int, stop: int, byte: int) -> None:
    data = bytearray(path.read_bytes())
    data[start:stop] = bytes([byte]) * (stop - start)
    path.write_bytes(data)


@pytest.mark.parametrize("byte", [0, 0xFF])
def test_damage_to_a_synced_batch_raises(tmp_path: Path, byte: int) -> None:
    ends = fill(tmp_path / "j", 6, segment_bytes=1 << 20, sync_every=2)
    (log,) = files(tmp_path / "j", ".log")
    overwrite(log, ends[0], ends[2], byte)
    with pytest.raises(LogDamaged, match=f"{log.name} is damaged at byte {ends[0]}: batch 2"):
        Journal(tmp_path / "j")


@pytest.mark.parametrize("byte", [0, 0xFF])
def test_hole_in_unsynced_batches_is_truncated(tmp_path: Path, byte: int) -> None:
    """As after a power cut, if the disk wrote the later pages first."""
    ends = fill(tmp_path / "j", 6, segment_bytes=1 << 20, sync_every=0)
    (log,) = files(tmp_path / "j", ".log")
    overwrite(log, ends[2], ends[3], byte)
    with Journal(tmp_path / "j") as journal:
        assert journal.write() == 3
        check(journal, prefixes(sample(6))[3])


def test_batch_lost_before_a_new_segment_removes_that_segment(tmp_path: Path) -> None:
    """As after a power cut, if the disk wrote the new file first."""
    with Journal(tmp_path / "whole", segment_bytes=250) as journal:
        ends = []
        for batch in sample(6):
            journal.append(persists(batch))
            journal.write()
            ends.append(journal._segments.all[0].size)
        left = copied(tmp_path / "whole", tmp_path / "left")
    (log,) = files(left, ".log")
    assert files(left, ".next")
    with log.open("r+b") as file:
        file.truncate(ends[1])
    with Journal(left) as journal:
        assert journal.write() == 2
        check(journal, prefixes(sample(2))[2])
    assert not files(left, ".next")


def test_synced_batch_missing_before_a_new_segment_raises(tmp_path: Path) -> None:
    with Journal(tmp_path / "whole", segment_bytes=400) as journal:
        for batch in sample(8):
            journal.append(persists(batch))
            journal.write()
            if len(journal._segments.all) == 1:
                journal.sync()
        left = copied(tmp_path / "whole", tmp_path / "left")
        second = journal._segments.all[1]
        assert second.first_batch > 2
    (log,) = files(left, ".log")
    with log.open("r+b") as file:
        file.truncate(journal._segments.all[0].body)
    with pytest.raises(LogDamaged, match="batch 1 can't be read, and a later one says"):
        Journal(left)


@pytest.mark.parametrize("related", [False, True])
def test_journal_published_as_an_event_is_not_read_as_batches(
    tmp_path: Path, related: bool
) -> None:
    """Neither another journal nor, with the same salt, a diverged copy."""
    fill(tmp_path / "outer", 3, segment_bytes=1 << 20, sync_every=1)
    if related:
        copied(tmp_path / "outer", tmp_path / "inner")
    with Journal(tmp_path / "inner") as journal:
        for batch in sample(12)[journal.write() :]:
            journal.append(persists(batch))
            journal.write()
            journal.sync()
    event = files(tmp_path / "inner", ".log")[0].read_bytes()
    with Journal(tmp_path / "outer") as journal:
        journal.append(persists([("event/1/t", event), ("event/2/t", b"cut off")]))
        journal.write()
        left = copied(tmp_path / "outer", tmp_path / "left")
    (log,) = files(left, ".log")
    with log.open("r+b") as file:
        file.truncate(log.stat().st_size - 1)
    with Journal(left) as journal:
        assert journal.write() == 3
        check(journal, prefixes(sample(3))[3])


def test_missing_segment_raises(tmp_path: Path) -> None:
    fill(tmp_path / "j", 9, segment_bytes=200, sync_every=1)
    logs = files(tmp_path / "j", ".log")
    assert len(logs) > 3
    logs[1].unlink()
    with pytest.raises(LogDamaged, match=f"{logs[1].name} is missing"):
        Journal(tmp_path / "j")


def test_truncated_sealed_segment_raises(tmp_path: Path) -> None:
    fill(tmp_path / "j", 9, segment_bytes=200, sync_every=1)
    sealed = files(tmp_path / "j", ".log")[0]
    size = sealed.stat().st_size
    with sealed.open("r+b") as file:
        file.truncate(size - 3)
    with pytest.raises(LogDamaged, match=f"{sealed.name} is damaged at byte {size - 3}"):
        Journal(tmp_path / "j")
    files(tmp_path / "j", ".index")[0].unlink()
    with pytest.raises(LogDamaged, match="a batch can't be read, and segments follow"):
        Journal(tmp_path / "j")


def test_missing_or_damaged_sidecar_is_rebuilt(tmp_path: Path) -> None:
    fill(tmp_path / "j", 9, segment_bytes=200, sync_every=1)
    sidecars = files(tmp_path / "j", ".index")
    before = [path.read_bytes() for path in sidecars]
    assert len(before) >= 3
    sidecars[0].unlink()
    sidecars[1].write_bytes(before[1][:-1])
    sidecars[2].write_bytes(before[0])
    with Journal(tmp_path / "j") as journal:
        check(journal, prefixes(sample(9))[9])
    assert [path.read_bytes() for path in sidecars] == before


def test_opening_reads_no_sealed_segment(tmp_path: Path) -> None:
    fill(tmp_path / "j", 9, segment_bytes=200, sync_every=1)
    sealed = files(tmp_path / "j", ".log")[:-1]
    for path in sealed:
        path.write_bytes(bytes(path.stat().st_size))
    with Journal(tmp_path / "j") as journal:
        model: Model = prefixes(sample(9))[9]
        assert journal.bounds() == model.bounds()
        assert dict(journal.records) == model.records
        with pytest.raises(LogDamaged, match="an event can't be read"):
            journal.event("bills/eu", 5)


def fill_and_close(directory: Path, count: int, *, segment_bytes: int) -> None:
    """Write batches one by one, and close."""
    with Journal(directory, segment_bytes=segment_bytes) as journal:
        for batch in sample(count):
            journal.append(persists(batch))
            journal.write()
            journal.sync()


@pytest.mark.parametrize("zeroed", [False, True])
def test_closed_log_without_its_tail_raises_at_any_byte(tmp_path: Path, zeroed: bool) -> None:
    fill_and_close(tmp_path / "whole", 4, segment_bytes=1 << 20)
    # A power cut may have lost the synced number: only the manifest has the end.
    (tmp_path / "whole" / "lock").write_bytes(b"made\n")
    (log,) = files(tmp_path / "whole", ".log")
    data = log.read_bytes()
    for cut in range(len(data)):
        left = copied(tmp_path / "whole", tmp_path / "cut")
        rest = bytes(len(data) - cut) if zeroed else b""
        if data[:cut] + rest == data:
            continue
        (left / log.name).write_bytes(data[:cut] + rest)
        with pytest.raises(LogDamaged, match=rf"{log.name} is damaged at byte \d+"):
            Journal(left)
        assert (left / log.name).read_bytes() == data[:cut] + rest


def test_error_of_a_lost_tail_names_the_last_closed_batch(tmp_path: Path) -> None:
    fill_and_close(tmp_path / "j", 4, segment_bytes=1 << 20)
    (log,) = files(tmp_path / "j", ".log")
    with log.open("r+b") as file:
        file.truncate(log.stat().st_size - 1)
    with pytest.raises(
        LogDamaged, match="batch 4 can't be read, and the log was closed with batch 4"
    ):
        Journal(tmp_path / "j")


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_missing_last_segments_raise(tmp_path: Path, closed: bool, count: int) -> None:
    if closed:
        fill_and_close(tmp_path / "j", 9, segment_bytes=200)
    else:
        fill(tmp_path / "j", 9, segment_bytes=200, sync_every=1)
    logs = files(tmp_path / "j", ".log")
    assert len(logs) > 4
    for log in logs[-count:]:
        log.unlink()
        log.with_suffix(".index").unlink(missing_ok=True)
    missing = logs[-count].name
    with pytest.raises(LogDamaged, match=f"{missing} is missing"):
        Journal(tmp_path / "j")


@pytest.mark.parametrize("closed", [False, True])
def test_missing_first_segment_raises(tmp_path: Path, closed: bool) -> None:
    if closed:
        fill_and_close(tmp_path / "j", 9, segment_bytes=200)
    else:
        fill(tmp_path / "j", 9, segment_bytes=200, sync_every=1)
    log = files(tmp_path / "j", ".log")[0]
    log.unlink()
    log.with_suffix(".index").unlink()
    with pytest.raises(LogDamaged, match=f"{log.name} is missing"):
        Journal(tmp_path / "j")


def test_dropped_first_segments_raise_nothing(tmp_path: Path) -> None:
    fill_and_close(tmp_path / "j", 9, segment_bytes=200)
    with Journal(tmp_path / "j", segment_bytes=200) as journal:
        retain(journal, bytes_max=800, age_s=None, now_s=0.0)
        left = copied(tmp_path / "j", tmp_path / "left")
        bounds = journal.bounds()
    first = files(left, ".log")[0]
    assert int(first.stem) > 1
    for directory in (left, tmp_path / "j"):
        with Journal(directory, segment_bytes=200) as journal:
            assert journal.bounds() == bounds
    # Opening removes a segment whose drop was interrupted.
    earlier = first.with_name(f"{int(first.stem) - 1:012}.log")
    earlier.write_bytes(b"to be removed")
    with Journal(left, segment_bytes=200) as journal:
        assert journal.bounds() == bounds
    assert not earlier.exists()


@pytest.mark.parametrize("kept", [("lock",), ("lock", "manifest")])
def test_directory_without_its_segments_raises(tmp_path: Path, kept: tuple[str, ...]) -> None:
    fill_and_close(tmp_path / "j", 3, segment_bytes=1 << 20)
    for path in (tmp_path / "j").iterdir():
        if path.name not in kept:
            path.unlink()
    with pytest.raises(LogDamaged, match=r"000000000001.log is missing"):
        Journal(tmp_path / "j")
    assert sorted(path.name for path in (tmp_path / "j").iterdir()) == sorted(kept)


def test_missing_or_foreign_manifest_raises(tmp_path: Path) -> None:
    for name in ("j", "other"):
        fill_and_close(tmp_path / name, 3, segment_bytes=1 << 20)
    manifest = tmp_path / "j" / "manifest"
    manifest.unlink()
    with pytest.raises(LogDamaged, match="manifest is missing"):
        Journal(tmp_path / "j")
    manifest.write_bytes((tmp_path / "other" / "manifest").read_bytes())
    with pytest.raises(LogDamaged, match="manifest is damaged at byte 0: it belongs to another"):
        Journal(tmp_path / "j")


def test_missing_lock_raises_and_can_be_accepted(tmp_path: Path) -> None:
    """It records the last synced batch, so without it a cut tail would go unnoticed."""
    fill_and_close(tmp_path / "whole", 3, segment_bytes=200)
    left = copied(tmp_path / "whole", tmp_path / "j")
    (left / "lock").unlink()
    for _ in range(2):  # A refused start must not create the lock.
        with pytest.raises(LogDamaged, match="lock is missing, but it is part of the journal"):
            Journal(left, segment_bytes=200)
        assert not (left / "lock").exists()
    with reopen_with_losses(left) as journal:
        assert len(journal.lost) == 1
        assert "lock is missing" in journal.lost[0]
        check(journal, prefixes(sample(3))[3])
    Journal(left, segment_bytes=200).close()


def test_identity_is_created_with_a_journal_and_stays(tmp_path: Path) -> None:
    fill_and_close(tmp_path / "j", 3, segment_bytes=200)
    fill_and_close(tmp_path / "other", 3, segment_bytes=200)
    with Journal(tmp_path / "j") as journal, Journal(tmp_path / "other") as other:
        identity = journal.identity
        assert len(identity) == 16
        assert other.identity != identity
        killed = copied(tmp_path / "j", tmp_path / "killed")
    for directory in (tmp_path / "j", killed):
        with Journal(directory) as journal:
            assert journal.identity == identity


def test_journal_of_an_earlier_release_gets_an_identity(tmp_path: Path) -> None:
    directory = tmp_path / "j"

    def without_manifest(value: object) -> bytes:
        if isinstance(value, Head):
            value = msgspec.structs.replace(value, manifest=False)
        return encode(value)

    with mock.patch.object(segments, "encode", without_manifest):
        fill_and_close(directory, 9, segment_bytes=200)
    (directory / "manifest").unlink()
    (directory / "lock").write_bytes(b"")
    last = files(directory, ".log")[-1]
    last.with_suffix(".index").write_bytes(b"left over")  # As a truncation once left it.
    with Journal(directory, segment_bytes=200) as journal:
        check(journal, prefixes(sample(9))[9])
        identity = journal.identity
    with Journal(directory, segment_bytes=200) as journal:
        assert journal.identity == identity
        check(journal, prefixes(sample(9))[9])
    files(directory, ".log")[0].unlink()
    with pytest.raises(LogDamaged, match="is missing"):
        Journal(directory)


def reopen_with_losses(directory: Path) -> Journal:
    """Open a damaged journal with `accept_loss`, after asserting that it raises without."""
    with pytest.raises(LogDamaged):
        Journal(directory, segment_bytes=200)
    return Journal(directory, segment_bytes=200, accept_loss="all")


def test_accepted_losses_keep_the_segments_after_them(tmp_path: Path) -> None:
    fill_and_close(tmp_path / "whole", 9, segment_bytes=200)
    model = prefixes(sample(9))[9]
    logs = files(tmp_path / "whole", ".log")
    with Journal(copied(tmp_path / "whole", tmp_path / "j"), segment_bytes=200) as journal:
        identity = journal.identity
        end = journal._segments.all[2].end

    def flip(path: Path) -> None:
        overwrite(path, path.stat().st_size - 2, path.stat().st_size, 0xFE)
        path.with_suffix(".index").unlink()

    for damage in (flip, Path.unlink):
        left = copied(tmp_path / "whole", tmp_path / "j")
        damage(left / logs[2].name)
        with reopen_with_losses(left) as journal:
            assert journal.identity != identity
            assert len(journal.lost) == 1
            assert logs[2].name in journal.lost[0]
            assert dict(journal.records) == model.records
            assert journal._segments.all[0].base == end
            for topic, (first, following) in journal.bounds().items():
                assert following == model.next[topic]
                for slot in range(first, following):
                    assert journal.event(topic, slot) == model.events.get((topic, slot))
            accepted = journal.identity
        with Journal(left, segment_bytes=200) as journal:
            assert journal.identity == accepted
            assert journal.lost == ()


def test_accepted_losses_of_the_tail_leave_a_prefix(tmp_path: Path) -> None:
    fill_and_close(tmp_path / "whole", 9, segment_bytes=200)
    models = prefixes(sample(9))
    last = files(tmp_path / "whole", ".log")[-1]

    def cut(path: Path) -> None:
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size - 1)

    def empty(path: Path) -> None:
        path.write_bytes(b"")

    for damage in (cut, empty, Path.unlink):
        left = copied(tmp_path / "whole", tmp_path / "j")
        damage(left / last.name)
        with pytest.raises(LogDamaged):
            Journal(left, segment_bytes=200, accept_loss="events")
        with reopen_with_losses(left) as journal:
            number = journal.write()
            assert 0 < number <= 9
            check(journal, models[number])
            journal.append(persists([("after", b"loss")]))
        with Journal(left, segment_bytes=200) as journal:
            assert journal.records["after"] == b"loss"


def test_accepted_losses_of_everything_leave_an_empty_journal(tmp_path: Path) -> None:
    fill_and_close(tmp_path / "j", 3, segment_bytes=1 << 20)
    (log,) = files(tmp_path / "j", ".log")
    log.unlink()
    with reopen_with_losses(tmp_path / "j") as journal:
        assert journal.write() == 0
    Journal(tmp_path / "j").close()
