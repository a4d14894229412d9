"""The segments of an open journal: finding, reading, beginning, syncing and dropping them.

Everything here but `settle` is for the one thread that has the journal. `settle` may run in
another: it touches only segments that are not settled, and those are neither closed nor dropped.

Limits: `OPEN_FILES_MAX` files of settled segments are kept open.
"""

import os
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path

from ensue.journal.files import Files, damaged, write_all
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
"""What is read at once for one event."""
READ_AHEAD_BYTES = 256 * 1024
"""What is read at once for a row of them."""


class Segment:
    """One segment. `size` is what has been written of it; `body` is where its batches start."""

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
    )

    def __init__(
        self, *, number: int, path: Path, base: int, size: int, body: int, first_batch: int
    ) -> None:
        self.number = number
        self.path = path
        self.base = base
        self.size = size
        self.body = body
        self.first_batch = first_batch
        self.closed_s = 0.0
        """When it got its last batch, once it is sealed."""
        self.descriptor = -1
        self.sidecar = b""
        """What `settle` is to write beside it."""

    @property
    def end(self) -> int:
        """Where it ends in the whole log."""
        return self.base + self.size

    def open(self, *, writable: bool = False) -> int:
        """Return a descriptor to read it by."""
        if self.descriptor < 0:
            flags = os.O_RDWR | os.O_APPEND if writable else os.O_RDONLY
            self.descriptor = os.open(self.path, flags | os.O_CLOEXEC)
        return self.descriptor

    def close(self) -> None:
        """Let go of the descriptor."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def seal(self, *, parts: dict[str, Part], next_batch: int, salt: int, closed_s: float) -> None:
        """Take note that nothing more comes, and of what its sidecar will say."""
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
    """All segments, the oldest first. The last one is written to.

    `unsettled` are those from the last that is called `.log` on: all before them is on the disk.
    """

    def __init__(self, files: Files, *, salt: int) -> None:
        self.files = files
        self.salt = salt
        self.all: list[Segment] = []
        self.unsettled: list[Segment] = []
        self._bases: list[int] = []
        self._open: dict[int, Segment] = {}
        """Settled ones that are open, the one used last at the end."""
        self._written: list[Segment] = []
        """Those that were written to since, and are open for that."""
        self._window = b""
        self._window_at = 0
        """Where in the whole log the bytes that were read last are from."""
        self._batch: Batch = {}
        self._batch_at = -1

    @property
    def active(self) -> Segment:
        """Return the one that is written to."""
        return self.all[-1]

    def add(self, segment: Segment) -> None:
        """Take a segment in, behind all others."""
        assert not self.all or segment.base == self.all[-1].end
        self.all.append(segment)
        self._bases.append(segment.base)

    def begin(
        self, *, first_batch: int, durable: int, created_s: float, snapshot: Snapshot
    ) -> Segment:
        """Begin a new segment and hand its start to the operating system. It is not synced."""
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
            number=number,
            path=self.files.next(number),
            base=base,
            size=len(lead) + len(header) + len(payload),
            body=len(lead) + len(header) + len(payload),
            first_batch=first_batch,
        )
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        segment.descriptor = os.open(segment.path, flags, 0o644)
        try:
            write_all(segment.descriptor, lead + header)
            write_all(segment.descriptor, payload)  # By itself: it may be too large to copy.
        except BaseException:
            segment.close()
            raise
        return segment

    def take(self, segment: Segment) -> None:
        """Write to the segment that was begun from now on."""
        self.add(segment)
        self.unsettled.append(segment)
        self._written.append(segment)
        while self._written[0].number < self.unsettled[0].number:
            before = self._written.pop(0)
            if before.descriptor >= 0:
                self._descriptor(before)

    def resume(self, segments: Sequence[Segment]) -> None:
        """Go on writing where recovery ended: these are the last ones, and not settled yet."""
        for segment in segments:
            segment.open(writable=True)
        self.unsettled.extend(segments)
        self._written.extend(segments)

    def settle(self, segments: Sequence[Segment]) -> None:
        """Make segments durable, in their order, and give them the names that say so.

        The caller takes all but the last of them out of `unsettled` afterwards.
        """
        for segment, following in zip(segments, (*segments[1:], None), strict=True):
            os.fsync(segment.descriptor)
            if segment.path.suffix == ".next":
                self.files.confirm(segment.number)
                segment.path = self.files.log(segment.number)
            if following is not None and segment.sidecar:
                self.files.sync()  # The segment behind it has its name before the sidecar says so.
                self.files.write_sidecar(segment.number, segment.sidecar)
                segment.sidecar = b""

    def drop_oldest(self) -> Segment:
        """Remove the oldest segment, which must be settled."""
        segment = self.all[0]
        assert segment.number < self.unsettled[0].number
        self.files.remove(segment.number)
        self._open.pop(segment.number, None)
        segment.close()
        del self.all[0]
        del self._bases[0]
        return segment

    def batch(self, offset: int, *, ahead: int = READ_BYTES) -> Batch:
        """Read the batch at a place of the whole log, checking that it is as it was written."""
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
        """Let go of every file."""
        for segment in self.all:
            segment.close()

    def _find(self, offset: int) -> Segment:
        return self.all[bisect_right(self._bases, offset) - 1]

    def _read(self, offset: int, ahead: int) -> None:
        """Read at least the whole frame at a place, as far as there is one."""
        segment = self._find(offset)
        descriptor = self._descriptor(segment)
        at = offset - segment.base
        data = os.pread(descriptor, ahead, at)
        missing = min(frame_length(data, 0), segment.size - at) - len(data)
        if missing > 0:
            data += os.pread(descriptor, missing, at + len(data))
        self._window, self._window_at = data, offset

    def _descriptor(self, segment: Segment) -> int:
        """Open a segment; close the least recently read one if there are many."""
        if segment.number >= self.unsettled[0].number:
            return segment.open()
        self._open.pop(segment.number, None)
        self._open[segment.number] = segment
        if len(self._open) > OPEN_FILES_MAX:
            self._open.pop(next(iter(self._open))).close()
        return segment.open()
