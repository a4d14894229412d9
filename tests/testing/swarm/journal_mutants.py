"""Planted bugs of the journal.

`mutants` merges them with all others, and runs them.
"""

from collections.abc import Sequence
from typing import Any
from unittest import mock

from tests.testing.swarm.planted import Mutant, nothing

from ensue.journal.files import Files
from ensue.journal.index import EventIndex
from ensue.journal.journal import Journal
from ensue.journal.recovery import Recovery
from ensue.journal.segments import Segments

__all__ = ["JOURNAL"]


def sync_the_last(self: Segments, segments: Sequence[Any]) -> None:
    """Of several segments only the last is synced."""
    with mock.patch.object(self.files.system, "sync", return_value=None):
        if len(segments) > 1:
            real_segments_sync(self, segments[:-1])
    real_segments_sync(self, segments[-1:])


def note_sync_first(self: Journal) -> int:
    """The last synced batch is noted before the sync."""
    if self._files.created:
        self._files.set_synced(self._appended + 1)
    return real_journal_sync(self)


def no_changes(self: EventIndex) -> dict[str, Any]:
    """A sealed segment has no index."""
    real_take_changes(self)
    return {}


def confirm_unsynced(self: Segments, segments: Sequence[Any]) -> None:
    """A segment counts as durable before it is."""
    for segment in segments:
        if segment.path.suffix == ".next":
            self.files.confirm(segment.number)
            segment.path = self.files.log(segment.number)


def write_once(self: Files, descriptor: int, data: bytes) -> None:
    """A write that the disk took a part of counts as done."""
    self.system.write(descriptor, data)


def leave_the_tail(self: Recovery, segment: Any, data: bytes, later: list[int]) -> None:
    """What a crash left half written stays in the log."""
    del segment, data, later


def snapshot_without_records(self: Journal) -> None:
    """A new segment begins without the records."""
    records, self._records = self._records, {}
    try:
        real_create_segment(self)
    finally:
        self._records = records


def ignore_following(self: Recovery, segment: Any, size: int, nexts: list[int]) -> None:
    """Segments that were not confirmed are dropped, whatever is in them."""
    del segment, size, nexts


real_segments_sync, real_journal_sync = Segments.sync, Journal.sync
real_take_changes, real_create_segment = EventIndex.take_changes, Journal._create_segment

JOURNAL = (
    Mutant("only the last segment is synced", "total", ((Segments, "sync", sync_the_last),)),
    Mutant("synced is noted first", "total", ((Journal, "sync", note_sync_first),)),
    Mutant("segments without index", "total", ((EventIndex, "take_changes", no_changes),)),
    Mutant("segments confirmed unsynced", "total", ((Segments, "sync", confirm_unsynced),)),
    Mutant("names are not synced", "total", ((Files, "sync", nothing),)),
    Mutant("short writes count", "total", ((Files, "write_all", write_once),)),
    Mutant("torn tails stay", "total", ((Recovery, "_truncate", leave_the_tail),)),
    Mutant(
        "segments without records",
        "total",
        ((Journal, "_create_segment", snapshot_without_records),),
    ),
    Mutant(
        "unconfirmed segments are dropped", "total", ((Recovery, "_following", ignore_following),)
    ),
    Mutant(
        "a missing end goes unnoticed",
        "total",
        ((Recovery, "_check_end", lambda _self, logs, _nexts: logs),),
    ),
)
