"""The claims about other clients that a relay trusts after a restart."""

import pytest

from ensue.server import high_water_marks as marks_module
from ensue.server.high_water_marks import HighWaterMarks


def restarted(marks: HighWaterMarks, *, epoch: int = 1, restored: int = 2) -> HighWaterMarks:
    """Return the marks of a server that restarts with these persisted."""
    records = {write.key: write.value for write in marks.take_writes() if write.value is not None}
    return HighWaterMarks(epoch=epoch, restored=restored, records=records)


def test_claims_beyond_a_clients_own_are_rejected() -> None:
    marks = HighWaterMarks(epoch=1, restored=1)
    assert not marks.is_published(0, "t", 1)
    assert not marks.is_sent(0, 1)
    assert marks.is_published(0, "t", 0)


def test_counts_and_stamps_survive_a_restart() -> None:
    marks = HighWaterMarks(epoch=1)
    marks.published(0, "t", 5)
    marks.published(0, "t", 3)
    marks.published(1, "t", 1)
    marks.sent(0, 500)
    marks.sent(0, 400)
    again = restarted(marks)
    assert [again.is_published(0, "t", count) for count in (5, 6)] == [True, False]
    assert [again.is_published(1, "t", count) for count in (1, 2)] == [True, False]
    assert not again.is_published(0, "u", 1)
    assert [again.is_sent(0, stamp) for stamp in (500, 501)] == [True, False]
    assert not again.is_sent(1, 1)


def test_stamps_before_the_restart_are_trusted() -> None:
    marks = HighWaterMarks(epoch=1, restored=1, started_ns=1_000)
    assert [marks.is_sent(0, stamp) for stamp in (1_000, 1_001)] == [True, False]
    assert not marks.is_sent(1, 1), "nobody was numbered 1 before the restart"


def test_only_changes_are_written() -> None:
    marks = HighWaterMarks(epoch=1, prefix="p/")
    marks.published(0, "t", 5)
    marks.published(0, "u", 5)
    assert [write.key for write in marks.take_writes()] == ["p/counts/t", "p/counts/u"]
    marks.published(0, "t", 5)
    marks.published(0, "u", 6)
    marks.sent(0, 1)
    assert [write.key for write in marks.take_writes()] == ["p/counts/u", "p/stamps"]
    marks.sent(0, 1)
    assert marks.take_writes() == []


def test_marks_of_another_epoch_are_removed() -> None:
    marks = HighWaterMarks(epoch=1)
    marks.published(0, "t", 5)
    marks.sent(0, 500)
    again = restarted(marks, epoch=2, restored=1)
    assert not again.is_published(0, "t", 1)
    assert not again.is_sent(0, 1)
    assert {(write.key, write.value) for write in again.take_writes()} == {
        ("counts/t", None),
        ("stamps", None),
    }


def test_counts_of_a_departed_client_from_before_the_restart_are_trusted() -> None:
    marks = HighWaterMarks(epoch=1, restored=1)
    assert marks.is_published(0, "t", 7, gone=True)
    assert not marks.is_published(1, "t", 7, gone=True)


def test_version_before_a_restart_is_trusted_until_the_client_announces_one() -> None:
    marks = HighWaterMarks(epoch=1, restored=1)
    assert marks.is_version(0, 9)
    assert not marks.is_version(1, 1), "nobody was numbered 1 before the restart"
    marks.announced(0, 8)
    assert [marks.is_version(0, version) for version in (8, 9)] == [True, False]


def test_topics_of_one_client_are_limited_across_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marks_module, "TOPICS_MAX", 2)
    marks = HighWaterMarks(epoch=1)
    for topic in ("a", "b"):
        marks.published(0, topic, 1)
    again = restarted(marks)
    again.published(0, "c", 1)
    again.published(0, "a", 2)
    assert [again.is_published(0, topic, 1) for topic in ("a", "b", "c")] == [True, True, False]
    assert again.is_published(0, "a", 2)
