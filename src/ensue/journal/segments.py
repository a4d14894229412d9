"""The segments of an open journal: find, read, create, sync and drop them.

Only the thread that owns the journal may call these functions, except `sync`. That may run in
another thread: it uses only unsynced segments, which are neither closed nor dropped.

Limits: `OPEN_FILES_MAX` files of synced segments stay open.
"""

import os
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path

from ensue.core.platform import FileSystem
from ensue.journal.files import Files, damaged
from ensue.journal.format import (
    BATCH,
    HEAD,
    SIDECAR,
    SNAPSHOT,
    Batch,
    Head,
    Part,
    Sidecar,
    Snapshot,
    decode_batch,
    encode,
    frame_header,
    frame_length,
    read_frame,
    salted,
)

__all__ = ["OPEN_FILES_MAX", "Segment", "Segments"]

OPEN_FILES_MAX = 64
READ_BYTES = 4 * 1024
"""Bytes per read for one event."""
READ_AHEAD_BYTES = 256 * 1024
"""Bytes per read for consecutive events."""


class Segment:
    """One segment. `size` counts its written bytes; `body` is where its batches start."""

    __slots__ = (
        "base",
        "body",
        "closed_s",
        "descriptor",
        "first_batch",
        "number",
        "path",
        "sidecar",
        "size",
        "system",
    )

    def __init__(
        self,
        system: FileSystem,
        *,
        number: int,
        path: Path,
        base: int,
        size: int,
        body: int,
        first_batch: int,
    ) -> None:
        self.system = system
        self.number = number
        self.path = path
        self.base = base
        self.size = size
        self.body = body
        self.first_batch = first_batch
        self.closed_s = 0.0
        """When it was sealed."""
        self.descriptor = -1
        self.sidecar = b""
        """The sidecar that `Segments.sync` will write."""

    @property
    def end(self) -> int:
        """Where it ends in the log."""
        return self.base + self.size

    def open(self, *, writable: bool = False) -> int:
        """Return the file descriptor; open the file if needed."""
        if self.descriptor < 0:
            flags = os.O_RDWR | os.O_APPEND if writable else os.O_RDONLY
            self.descriptor = self.system.open(self.path, flags)
        return self.descriptor

    def close(self) -> None:
        """Close the file."""
        if self.descriptor >= 0:
            self.system.close(self.descriptor)
            self.descriptor = -1

    def seal(self, *, parts: dict[str, Part], next_batch: int, salt: int, closed_s: float) -> None:
        """Mark the segment as complete, and encode its sidecar."""
        self.closed_s = closed_s
        payload = encode(
            Sidecar(
                segment=self.number,
                base=self.base,
                size=self.size,
                first_batch=self.first_batch,
                next_batch=next_batch,
                salt=salt,
                closed_s=closed_s,
                parts=parts,
            )
        )
        self.sidecar = frame_header(SIDECAR, payload, start=0) + payload


class Segments:
    """All segments, the oldest first. The last one is active: it takes new batches.

    `unsynced` starts with the last `.log`: everything before it is durable.
    """

    def __init__(self, files: Files, *, salt: int) -> None:
        self.files = files
        self.salt = salt
        self.all: list[Segment] = []
        self.unsynced: list[Segment] = []
        self._bases: list[int] = []
        self._open: dict[int, Segment] = {}
        """Open synced segments, the most recently used one last."""
        self._writable: list[Segment] = []
        """Segments that are open for writing."""
        self._window = b""
        """The bytes of the last read."""
        self._window_at = 0
        """Offset of the window in the log."""
        self._batch: Batch = {}
        self._batch_at = -1

    @property
    def active(self) -> Segment:
        """Return the segment that takes new batches."""
        return self.all[-1]

    def add(self, segment: Segment) -> None:
        """Add a segment after all others."""
        assert not self.all or segment.base == self.all[-1].end
        self.all.append(segment)
        self._bases.append(segment.base)

    def create(
        self, *, first_batch: int, durable: int, created_s: float, snapshot: Snapshot
    ) -> Segment:
        """Create the file of the next segment and write its start, without a sync."""
        number = self.all[-1].number + 1 if self.all else 1
        base = self.all[-1].end if self.all else 0
        head = encode(
            Head(
                segment=number,
                base=base,
                first_batch=first_batch,
                salt=self.salt,
                created_s=created_s,
                manifest=True,
            )
        )
        lead = frame_header(HEAD, head, start=0, number=first_batch, durable=durable) + head
        payload = encode(snapshot)
        place = salted(self.salt, base + len(lead))
        header = frame_header(SNAPSHOT, payload, start=place, number=first_batch, durable=durable)
        segment = Segment(
            self.files.system,
            number=number,
            path=self.files.next(number),
            base=base,
            size=len(lead) + len(header) + len(payload),
            body=len(lead) + len(header) + len(payload),
            first_batch=first_batch,
        )
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL
        segment.descriptor = self.files.system.open(segment.path, flags)
        try:
            self.files.write_all(segment.descriptor, lead + header)
            self.files.write_all(segment.descriptor, payload)  # Apart: it may be too large to copy.
        except BaseException:
            segment.close()
            raise
        return segment

    def activate(self, segment: Segment) -> None:
        """Make a created segment the active one."""
        self.add(segment)
        self.unsynced.append(segment)
        self._writable.append(segment)
        while self._writable[0].number < self.unsynced[0].number:
            before = self._writable.pop(0)
            if before.descriptor >= 0:
                self._descriptor(before)

    def resume(self, segments: Sequence[Segment]) -> None:
        """Resume writing after recovery; these are the last segments, all unsynced."""
        for segment in segments:
            segment.open(writable=True)
        self.unsynced.extend(segments)
        self._writable.extend(segments)

    def sync(self, segments: Sequence[Segment]) -> None:
        """Make segments durable, in order, and rename them to `.log`.

        Afterwards the caller removes all but the last of them from `unsynced`.
        """
        for segment, following in zip(segments, (*segments[1:], None), strict=True):
            self.files.system.sync(segment.descriptor)
            if segment.path.suffix == ".next":
                self.files.confirm(segment.number)
                segment.path = self.files.log(segment.number)
            if following is not None and segment.sidecar:
                # First: a sidecar shows that the next segment exists.
                self.files.sync()
                self.files.write_sidecar(segment.number, segment.sidecar)
                segment.sidecar = b""

    def drop_oldest(self) -> Segment:
        """Remove the oldest segment, which must be synced."""
        segment = self.all[0]
        assert segment.number < self.unsynced[0].number
        self.files.remove(segment.number)
        self._open.pop(segment.number, None)
        segment.close()
        del self.all[0]
        del self._bases[0]
        return segment

    def batch(self, offset: int, *, ahead: int = READ_BYTES) -> Batch:
        """Read the batch at an offset of the log, and verify its checksum."""
        if offset == self._batch_at:
            return self._batch
        at = offset - self._window_at
        within = at >= 0 and at + frame_length(self._window, max(at, 0)) <= len(self._window)
        if not within:
            self._read(offset, ahead)
            at = 0
        frame = read_frame(self._window, at, BATCH, start=salted(self.salt, offset))
        if frame is None:
            self._window = b""
            segment = self._find(offset)
            raise damaged(segment.path, offset - segment.base, "an event can't be read")
        self._batch = decode_batch(frame.payload)
        self._batch_at = offset
        return self._batch

    def close(self) -> None:
        """Close all files."""
        for segment in self.all:
            segment.close()

    def _find(self, offset: int) -> Segment:
        return self.all[bisect_right(self._bases, offset) - 1]

    def _read(self, offset: int, ahead: int) -> None:
        """Read at least the whole frame at an offset into the window."""
        segment = self._find(offset)
        descriptor = self._descriptor(segment)
        at = offset - segment.base
        data = self.files.system.read_at(descriptor, ahead, at)
        missing = min(frame_length(data, 0), segment.size - at) - len(data)
        if missing > 0:
            data += self.files.system.read_at(descriptor, missing, at + len(data))
        self._window, self._window_at = data, offset

    def _descriptor(self, segment: Segment) -> int:
        """Open a segment; close the least recently used one beyond the limit."""
        if segment.number >= self.unsynced[0].number:
            return segment.open()
        self._open.pop(segment.number, None)
        self._open[segment.number] = segment
        if len(self._open) > OPEN_FILES_MAX:
            self._open.pop(next(iter(self._open))).close()
        return segment.open()
