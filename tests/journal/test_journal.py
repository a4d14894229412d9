"""Journal behavior apart from durability: limits, errors, bounds, and open files."""

import os
import tracemalloc
from pathlib import Path
from unittest import mock

import pytest
from tests.journal.model import check, files, no_disk, persists, prefixes, retain, sample

from ensue.core.errors import BadInput, ConfigurationError, LimitReached, LogDamaged
from ensue.journal import UNSYNCED_SEGMENTS_MAX, Journal, journal, segments
from ensue.journal.index import HOLES_MAX, EventIndex, TopicIndex
from ensue.protocols.interface import Persist


def open_files() -> set[str]:
    folder = Path("/proc/self/fd")
    if not folder.is_dir():
        pytest.skip("only Linux lists open files")
    return {path.name for path in folder.iterdir()}


def test_rejected_batch_changes_nothing(tmp_path: Path) -> None:
    with Journal(tmp_path / "j") as store:
        store.append(persists(sample(1)[0]))
        before = prefixes(sample(1))[1]
        far = HOLES_MAX + 10
        for key, error in (
            ("event/x/t", BadInput),
            ("event/7", BadInput),
            ("event/-1/t", BadInput),
            ("event/07/t", BadInput),
            ("event/+7/t", BadInput),
            ("event/1_0/t", BadInput),
            ("event/\N{ARABIC-INDIC DIGIT SEVEN}/t", BadInput),
            (f"event/{1 << 62}/t", BadInput),
            (f"event/{far}/orders", LimitReached),
        ):
            with pytest.raises(error):
                store.append(persists([("a", b"1"), ("event/1/new", b"1"), (key, b"1")]))
            check(store, before)
        text = Persist("a", "1")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="the value of 'a' must be bytes, got str"):
            store.append([Persist("event/1/new", b"1"), text])
        check(store, before)
        with pytest.raises(LimitReached, match="slots away"):
            store.append(persists([("event/1/new", b"1"), (f"event/{far}/new", b"1")]))
        check(store, before)
        store.append([])
        assert store.write() == 1


def test_first_event_of_a_topic_may_have_any_slot(tmp_path: Path) -> None:
    slot = (1 << 62) - 1
    with Journal(tmp_path / "j") as store:
        store.append(persists([(f"event/{slot}/t", b"1"), (f"event/{slot - 5}/t", b"2")]))
    with Journal(tmp_path / "j") as store:
        assert store.bounds() == {"t": (slot - 5, slot + 1)}
        assert store.event("t", slot - 5) == b"2"
        assert store.event("t", slot - 1) is None


def test_unwritten_bytes_are_bounded(tmp_path: Path) -> None:
    with mock.patch.object(journal, "BUFFER_BYTES_MAX", 100), Journal(tmp_path / "j") as store:
        store.append(persists([("a", b"1" * 50)]))
        with pytest.raises(LimitReached) as caught:
            store.append(persists([("b", b"1" * 50)]))
        assert (caught.value.limit, caught.value.value) == ("BUFFER_BYTES_MAX", 100)
        assert dict(store.records) == {"a": b"1" * 50}
        assert store.write() == 1
        store.append(persists([("b", b"1" * 50)]))
        assert store.write() == 2


def test_unsynced_segments_are_bounded(tmp_path: Path) -> None:
    with Journal(tmp_path / "j", segment_bytes=1) as store:
        for batch in sample(12):
            store.append(persists(batch))
            store.write()
            assert len(files(tmp_path / "j", ".next")) < UNSYNCED_SEGMENTS_MAX
        assert len(files(tmp_path / "j", ".log")) > UNSYNCED_SEGMENTS_MAX


def test_open_files_are_bounded(tmp_path: Path) -> None:
    few = mock.patch.object(segments, "OPEN_FILES_MAX", 3)
    with no_disk(), few, Journal(tmp_path / "j", segment_bytes=1) as store:
        before = open_files()
        for batch in sample(30):
            store.append(persists(batch))
            store.write()
            store.sync()
            assert len(open_files()) <= len(before) + 4
        for _ in range(2):
            for slot in range(5, 35):
                assert store.event("bills/eu", slot) == b"bill %d" % (slot - 5)
        assert len(open_files()) <= len(before) + 4


def test_closing_leaves_no_file_open(tmp_path: Path) -> None:
    before = open_files()
    with no_disk(), Journal(tmp_path / "j", segment_bytes=1) as store:
        for batch in sample(5):
            store.append(persists(batch))
            store.write()
    newest = files(tmp_path / "j", ".log")[-1]
    newest.write_bytes(b"")
    with pytest.raises(LogDamaged, match="head can't be read"):
        Journal(tmp_path / "j")
    assert open_files() == before


def test_closed_journal_rejects_batches(tmp_path: Path) -> None:
    store = Journal(tmp_path / "j")
    store.append(persists([("a", b"1")]))
    store.close()
    store.close()
    with pytest.raises(BadInput, match="is closed"):
        store.append(persists([("a", b"2")]))
    with Journal(tmp_path / "j") as store:
        assert dict(store.records) == {"a": b"1"}


def test_records_are_read_only(tmp_path: Path) -> None:
    with Journal(tmp_path / "j") as store:
        seen = store.records
        store.append(persists([("a", b"1")]))
        assert dict(seen) == {"a": b"1"}
        with pytest.raises(TypeError):
            seen["a"] = b"2"  # type: ignore[index]


def test_journal_is_not_created_among_other_files(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(BadInput, match="holds no journal"):
        Journal(tmp_path)
    with pytest.raises(BadInput, match="is a file"):
        Journal(tmp_path / "notes.txt")
    with pytest.raises(ConfigurationError, match="segment_bytes"):
        Journal(tmp_path / "j", segment_bytes=0)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_empty_topic_keeps_its_next_slot_after_its_segments_are_dropped(tmp_path: Path) -> None:
    with no_disk(), Journal(tmp_path / "j", segment_bytes=1) as store:
        store.append(persists([("event/7/t", b"1")]))
        store.write()
        store.append(persists([("event/1/other", b"1")]))
        store.write()
        store.sync()
        assert retain(store, bytes_max=0, age_s=None, now_s=0) == {"t": 8, "other": 2}
        assert len(files(tmp_path / "j", ".log")) == 1
    with Journal(tmp_path / "j") as store:
        assert store.bounds() == {"t": (8, 8), "other": (2, 2)}
        assert store.size_bytes == files(tmp_path / "j", ".log")[0].stat().st_size


def test_segments_without_events_are_dropped_and_records_stay(tmp_path: Path) -> None:
    with no_disk(), Journal(tmp_path / "j", segment_bytes=1) as store:
        for number in range(3):
            store.append(persists([(f"k{number}", b"v"), ("last", b"%d" % number)]))
            store.write()
        store.append(persists([("event/1/t", b"1"), ("k0", None)]))
        store.write()
        store.append(persists([("k9", b"v")]))
        store.write()
        store.sync()
        before = store.segment_count
        assert store.drop_empty() == 3
        assert store.segment_count == before - 3
        assert store.drop_empty() == 0  # The oldest segment has an event.
        records = dict(store.records)
    with Journal(tmp_path / "j") as store:
        assert dict(store.records) == records == {"k1": b"v", "k2": b"v", "last": b"2", "k9": b"v"}
        assert store.event("t", 1) == b"1"


@pytest.mark.parametrize("scanned", [False, True])
def test_segments_are_dropped_at_the_exact_byte_and_second(tmp_path: Path, scanned: bool) -> None:
    times = iter([0.0, 10.0, 20.0, 30.0])
    with no_disk(), Journal(tmp_path / "j", segment_bytes=1, clock=lambda: next(times)) as store:
        for slot in range(3):
            store.append(persists([(f"event/{slot}/t", b"1")]))
            store.write()
    if scanned:
        for path in files(tmp_path / "j", ".index"):
            path.unlink()
    with no_disk(), Journal(tmp_path / "j") as store:
        assert retain(store, bytes_max=None, age_s=10, now_s=20) == {}
        assert retain(store, bytes_max=None, age_s=10, now_s=20.5) == {"t": 1}
        assert retain(store, bytes_max=store.size_bytes, age_s=None, now_s=99) == {}
        assert retain(store, bytes_max=store.size_bytes - 1, age_s=None, now_s=99) == {"t": 2}
        assert store.events("t", 0, 9, bytes_max=0) == [(2, b"1")]


def test_topic_begins_after_its_last_dropped_slot(tmp_path: Path) -> None:
    with no_disk(), Journal(tmp_path / "j", segment_bytes=1) as store:
        for slot in (1, 3, 4, 2, 5):  # The second slot is filled late.
            store.append(persists([(f"event/{slot}/t", b"1")]))
            store.write()
        store.sync()
        sizes = [each.size for each in store._segments.all]
        for count, first in ((1, 2), (3, 5), (4, 3), (5, 6)):
            old = store.find_old(bytes_max=sum(sizes[count:]), age_s=None, now_s=0)
            assert old is not None
            assert old.firsts == {"t": first}, count
            store.drop(old)


def test_empty_slot_does_not_count_as_lost(tmp_path: Path) -> None:
    with no_disk(), Journal(tmp_path / "j", segment_bytes=1) as store:
        for slot in (1, 3):
            store.append(persists([(f"event/{slot}/t", b"1")]))
            store.write()
        store.sync()
        assert retain(store, bytes_max=store.size_bytes - 1, age_s=None, now_s=0) == {"t": 2}


def test_outdated_events_are_readable_until_dropped(tmp_path: Path) -> None:
    with no_disk(), Journal(tmp_path / "j", segment_bytes=1) as store:
        for slot in range(3):
            store.append(persists([(f"event/{slot}/t", b"%d" % slot)]))
            store.write()
        store.sync()
        old = store.find_old(bytes_max=0, age_s=None, now_s=0)
        assert old is not None
        assert store.event("t", 0) == b"0"
        store.append(persists([("event/3/t", b"3")]))
        store.write()
        store.sync()
        store.drop(old)
        assert store.events("t", 0, 9, bytes_max=99) == [(3, b"3")]


def test_directory_is_synced_after_each_removed_segment(
    tmp_path: Path,
) -> None:
    """Without a sync between two removals, a power cut may undo only the earlier one."""
    with no_disk(), Journal(tmp_path / "j", segment_bytes=1) as store:
        for slot in range(1, 5):
            store.append(persists([(f"event/{slot}/t", b"1")]))
            store.write()
        store.append(persists([("record", b"1")]))
        store.write()
        for slot in range(5, 7):
            store.append(persists([(f"event/{slot}/t", b"1")]))
            store.write()
        store.sync()
        removed: list[int] = []
        since_sync: list[int] = []
        remove = store._files.remove

        def removing(number: int) -> None:
            remove(number)
            removed.append(number)
            since_sync.append(number)
            assert len(since_sync) == 1

        with (
            mock.patch.object(store._files, "remove", removing),
            mock.patch.object(store._files, "sync", since_sync.clear),
        ):
            retain(
                store, bytes_max=sum(e.size for e in store._segments.all[4:]), age_s=None, now_s=0
            )
            store.drop_empty()
        assert removed == [1, 2, 3, 4, 5]
        assert not since_sync


def test_consecutive_events_are_read_in_few_calls(tmp_path: Path) -> None:
    with Journal(tmp_path / "j") as store:
        for slot in range(200):
            store.append(persists([(f"event/{slot}/t", b"v" * 100)]))
        store.write()
        with mock.patch.object(os, "pread", side_effect=os.pread) as pread:
            assert len(store.events("t", 0, 200, bytes_max=1 << 20)) == 200
            assert pread.call_count == 1


def test_index_takes_eight_bytes_an_event() -> None:
    index = EventIndex()
    tracemalloc.start()
    try:
        for slot in range(20_000):
            index.apply(index.plan({f"event/{slot}/t": b""}), slot + 1_000_000)
        assert tracemalloc.get_traced_memory()[0] < 20_000 * 9
    finally:
        tracemalloc.stop()


def test_dropping_the_first_events_frees_memory_and_changes_no_range() -> None:
    index = TopicIndex(0)
    for slot in range(10_000):
        index.put(slot, slot)
    index.take_change()
    for slot in range(9_000):
        assert index.drop(slot)
    assert len(index.offsets) < 5_000
    change = index.take_change()
    assert change is not None
    assert (change.first, change.next, change.offsets) == (9_000, 10_000, b"")
    assert index.take_change() is None


def test_quiet_log_expires_too(tmp_path: Path) -> None:
    now = [0.0]
    with no_disk(), Journal(tmp_path / "j", clock=lambda: now[0]) as store:
        store.append([Persist("event/1/t", b"old")])
        now[0] = 25.0
        store.seal(age_s=25.0, now_s=now[0])
        assert len(files(tmp_path / "j", ".log")) + len(files(tmp_path / "j", ".next")) == 1
        now[0] = 26.0
        store.seal(age_s=25.0, now_s=now[0])
        store.sync()
        store.append([Persist("event/2/t", b"new")])
        store.write()
        assert retain(store, bytes_max=None, age_s=100.0, now_s=126.0) == {}
        assert retain(store, bytes_max=None, age_s=100.0, now_s=126.5) == {"t": 2}
        assert store.event("t", 1) is None
        assert store.event("t", 2) == b"new"


def test_empty_segment_is_not_sealed(tmp_path: Path) -> None:
    with no_disk(), Journal(tmp_path / "j", clock=lambda: 0.0) as store:
        for now_s in (10.0, 20.0, 30.0):
            store.seal(age_s=1.0, now_s=now_s)
        assert len(files(tmp_path / "j", ".log")) == 1
