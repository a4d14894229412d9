"""Recovery of a journal when it is opened: find unfinished writes and damage.

A sidecar replaces reading its sealed segment, so recovery reads only from the last `.log` on. It
rebuilds a missing or damaged sidecar from its segment. The rest can be in these states:

- It ends within a batch, or a `.next` is torn before its first batch. No client has a receipt for
  what is missing: the torn part is truncated, and every later segment removed.
- Bytes can't be read, and a later frame says that they were durable: `LogDamaged`.
- A `.log` with a successor is not whole: `LogDamaged`.
- The log ends before the last synced batch, which a killed process left in `lock`, or that file is
  missing: `LogDamaged`.
- The first segment of the manifest is missing, the log ends before the end in the manifest, or a
  sidecar shows that the next segment existed and it does not: `LogDamaged`. Segments before the
  first one of the manifest are leftovers of a drop.

With `accept_loss` damage is recorded instead of raised. The journal continues with the longest run
of whole segments up to the last readable one. For that, every segment is read; unused files get the
suffix `.lost`.

A journal of a release without manifests gets one when it is opened.

Memory: one whole segment at a time.
"""

from pathlib import Path
from typing import Literal

import msgspec

from ensue.core.errors import BadInput, LogDamaged
from ensue.core.platform import FileSystem
from ensue.journal.files import Files, damaged, missing
from ensue.journal.format import (
    FORMAT,
    HEAD,
    SNAPSHOT,
    Head,
    Manifest,
    Sidecar,
    Snapshot,
    batches,
    decode_batch,
    decode_head,
    decode_sidecar,
    decode_snapshot,
    merge,
    proves_durable,
    read_frame,
    salted,
)
from ensue.journal.index import EventIndex
from ensue.journal.segments import Segment, Segments

__all__ = ["Accept", "Recovery"]

_HEAD_READ_BYTES = 512
"""Larger than any head."""


Accept = Literal["nothing", "events", "all"]
"""Acceptable losses: nothing; sealed segments with their events; or the tail too, with records."""


class _LoadedSegment(msgspec.Struct, frozen=True):
    """The bytes of a segment with a valid head and snapshot."""

    path: Path
    data: bytes
    head: Head
    snapshot: Snapshot
    body: int

    def segment(self, system: FileSystem) -> Segment:
        """Return the segment, without its batches."""
        return Segment(
            system,
            number=self.head.segment,
            path=self.path,
            base=self.head.base,
            size=self.body,
            body=self.body,
            first_batch=self.head.first_batch,
        )


class Recovery:
    """The state that an earlier process left in a directory.

    `segments` is None for a new journal, which needs a first segment. `lost` lists accepted losses;
    `tail_lost` says whether they may include records.
    """

    def __init__(self, files: Files, *, accept_loss: Accept = "nothing") -> None:
        self.index = EventIndex()
        self.records: dict[str, bytes] = {}
        self.next_batch = 1
        self.segments: Segments | None = None
        self.lost: list[str] = []
        self.tail_lost = False
        self._files = files
        self._accept_loss = accept_loss
        if files.lock_missing:
            self._report_loss(missing(files.lock), tail=True)
        files.remove_garbage()
        self.manifest = self._read_manifest()
        logs, nexts = files.numbers(".log"), files.numbers(".next")
        last = self._find_last(logs, nexts)
        if last is None:
            self._start_empty(nexts)
            return
        self._check_manifest(last)
        logs = self._check_end(self._check_start(logs), nexts)
        if accept_loss != "nothing":
            logs = self._check_sealed(logs)
        self.segments = Segments(files, salt=last.head.salt)
        try:
            for number in logs[:-1]:
                self._recover_sealed(number)
            self.segments.resume(self._recover_tail(last, nexts))
        except BaseException:
            self.segments.close()
            raise

    def _report_loss(self, error: LogDamaged, *, tail: bool = False) -> None:
        """Raise the error, or record it if such losses are accepted."""
        if self._accept_loss == "nothing" or (tail and self._accept_loss != "all"):
            raise error
        self.lost.append(str(error))
        self.tail_lost = self.tail_lost or tail

    def _read_manifest(self) -> Manifest | None:
        try:
            return self._files.read_manifest()
        except LogDamaged as error:
            self._report_loss(error)
            return None

    def _find_last(self, logs: list[int], nexts: list[int]) -> "_LoadedSegment | None":
        """Return the last `.log`, or the last readable one if losses are accepted."""
        files = self._files
        while logs:
            try:
                return self._load(files.log(logs[-1]))
            except LogDamaged as error:
                self._report_loss(error, tail=True)
            for number in nexts:
                files.set_aside(files.next(number))
            nexts.clear()
            files.set_aside(files.log(logs.pop()))
            if logs:
                files.discard(files.index(logs[-1]))
        return None

    def _start_empty(self, nexts: list[int]) -> None:
        """Remove the files of a journal whose creation was interrupted."""
        files, manifest = self._files, self.manifest
        absent = 0
        if any(number > 1 for number in nexts):
            absent = nexts[-1] - 1
        elif files.created or (manifest is not None and not nexts):
            absent = 1 if manifest is None else manifest.first
        if absent and not self.lost:
            self._report_loss(missing(files.log(absent)), tail=True)
        self.manifest = None
        files.discard(files.manifest)
        files.sync()  # First: a manifest without a segment counts as a loss.
        for number in nexts:
            files.system.remove(files.next(number))

    def _check_manifest(self, last: "_LoadedSegment") -> None:
        """Check that the log has its own manifest."""
        files, manifest = self._files, self.manifest
        if manifest is None:
            if last.head.manifest and not self.lost:
                self._report_loss(missing(files.manifest))
        elif manifest.salt != last.head.salt:
            self._report_loss(
                damaged(files.manifest, 0, f"it belongs to another log than {last.path.name}")
            )
            self.manifest = None

    def _check_start(self, logs: list[int]) -> list[int]:
        """Check that the first segments exist; return the segments without gaps."""
        files, manifest = self._files, self.manifest
        if manifest is not None:
            if manifest.first not in logs:
                self._report_loss(missing(files.log(manifest.first)))
            elif logs[0] < manifest.first:  # A drop was interrupted.
                while logs[0] < manifest.first:
                    files.remove(logs.pop(0))
                files.sync()
        gaps = [number for number in logs[1:] if number - 1 not in logs]
        if gaps:
            self._report_loss(missing(files.log(gaps[0] - 1)))
            for number in logs[: logs.index(gaps[-1])]:
                files.set_aside(files.log(number))
            logs = logs[logs.index(gaps[-1]) :]
        return logs

    def _check_end(self, logs: list[int], nexts: list[int]) -> list[int]:
        """Check that the last segments exist."""
        files, manifest = self._files, self.manifest
        sidecar, following = files.index(logs[-1]), logs[-1] + 1
        sealed = files.system.exists(sidecar) and following not in nexts
        end = None if manifest is None else manifest.end
        if (sealed and manifest is not None) or (end is not None and logs[-1] < end.segment):
            self._report_loss(missing(files.log(following)), tail=True)
        if sealed:
            files.system.remove(sidecar)
        return logs

    def _check_sealed(self, logs: list[int]) -> list[int]:
        """Read every sealed segment; return the whole ones and the last `.log`."""
        files = self._files
        for number in reversed(logs[:-1]):
            path = files.log(number)
            try:
                found = self._load(path)
                head, at = found.head, found.body
                for frame in batches(
                    found.data, at, base=head.base, salt=head.salt, number=head.first_batch
                ):
                    at = frame.end
                if at != len(found.data):
                    raise damaged(path, at, "a batch can't be read, and segments follow")
            except LogDamaged as error:
                self._report_loss(error)
                for each in logs[: logs.index(number) + 1]:
                    files.set_aside(files.log(each))
                return logs[logs.index(number) + 1 :]
        return logs

    def _recover_sealed(self, number: int) -> None:
        """Recover a segment before the last `.log`, from its sidecar."""
        assert self.segments is not None
        path = self._files.log(number)
        sidecar = decode_sidecar(self._files.read_sidecar(number))
        if sidecar is None or sidecar.segment != number:
            sidecar = self._scan(path, closed_s=self._head(self._files.log(number + 1)).created_s)
        else:
            floor = self.segments.all[0].base if self.segments.all else sidecar.base
            self.index.restore(sidecar.parts, floor=floor)
        size = self._files.system.size_of(path)
        if size != sidecar.size:
            why = f"it has {size} bytes instead of {sidecar.size}"
            raise damaged(path, min(size, sidecar.size), why)
        segment = Segment(
            self._files.system,
            number=number,
            path=path,
            base=sidecar.base,
            size=size,
            body=0,
            first_batch=sidecar.first_batch,
        )
        segment.closed_s = sidecar.closed_s
        self._add(segment, next_batch=sidecar.next_batch)

    def _scan(self, path: Path, *, closed_s: float) -> Sidecar:
        """Rebuild a sidecar from its segment."""
        found = self._load(path)
        segment = found.segment(self._files.system)
        segment.size, next_batch = self._replay(found, {})
        if segment.size != len(found.data):
            raise damaged(path, segment.size, "a batch can't be read, and segments follow")
        segment.seal(
            parts=self.index.take_changes(),
            next_batch=next_batch,
            salt=found.head.salt,
            closed_s=closed_s,
        )
        self._files.write_sidecar(segment.number, segment.sidecar)
        made = decode_sidecar(segment.sidecar)
        assert made is not None
        return made

    def _recover_tail(self, found: _LoadedSegment, nexts: list[int]) -> list[Segment]:
        """Recover the last `.log` and the segments that follow it; truncate the rest."""
        assert self.segments is not None
        taken: list[Segment] = []
        while True:
            self.records = found.snapshot.records
            self.index.reserve(found.snapshot.next_slots)
            segment = found.segment(self._files.system)
            segment.size, next_batch = self._replay(found, self.records)
            self._add(segment, next_batch=next_batch)
            taken.append(segment)
            following = self._following(segment, len(found.data), nexts)
            if following is None:
                later = [each for each in nexts if each > segment.number]
                self._truncate(segment, found.data, later)
                return taken
            segment.seal(
                parts=self.index.take_changes(),
                next_batch=next_batch,
                salt=self.segments.salt,
                closed_s=following.head.created_s,
            )
            found = following

    def _following(self, segment: Segment, size: int, nexts: list[int]) -> _LoadedSegment | None:
        """Return the segment that starts where this one ends, if it is valid."""
        if segment.size < size or segment.number + 1 not in nexts:
            return None
        found = self._read(self._files.next(segment.number + 1))
        if found is None or found.head.first_batch != self.next_batch:
            return None
        return found if found.head.base == segment.end else None

    def _truncate(self, segment: Segment, data: bytes, later: list[int]) -> None:
        """Remove everything after the last whole batch, unless it was durable."""
        assert self.segments is not None
        salt, end, number = self.segments.salt, segment.size, self.next_batch
        lost = proves_durable(data, end, base=segment.base, salt=salt, number=number)
        for each in later:
            following = self._files.system.read(self._files.next(each))
            head = read_frame(following, 0, HEAD, start=0)
            if head is not None:
                base = decode_head(head.payload).base
                lost = lost or head.durable >= number
                lost = lost or proves_durable(following, 0, base=base, salt=salt, number=number)
        self._check_truncation(segment, lost=lost)
        self._files.discard(self._files.index(segment.number))
        self._files.sync()  # First: the sidecar shows that another segment follows.
        for each in reversed(later):
            if self.tail_lost:
                self._files.set_aside(self._files.next(each))
            else:
                self._files.system.remove(self._files.next(each))
        if end < len(data):
            if self.tail_lost:
                self._files.keep_copy(segment.path, data)
            self._files.system.truncate(segment.path, end)
        # Before any write: no removed segment may reappear after the truncated one.
        self._files.sync()

    def _check_truncation(self, segment: Segment, *, lost: bool) -> None:
        """Report a loss if the first batch to be truncated was durable."""
        end = None if self.manifest is None else self.manifest.end
        number = self.next_batch
        if lost:
            why = f"batch {number} can't be read, and a later one says that it was synced"
        elif end is not None and number < end.next_batch:
            last = end.next_batch - 1
            why = f"batch {number} can't be read, and the log was closed with batch {last}"
        elif number <= self._files.synced:
            why = f"batch {number} can't be read, and batch {self._files.synced} was synced"
        else:
            return
        self._report_loss(damaged(segment.path, segment.size, why), tail=True)

    def _add(self, segment: Segment, *, next_batch: int) -> None:
        """Add a segment; raise if it does not follow the one before."""
        assert self.segments is not None
        if self.segments.all:
            before = self.segments.all[-1]
            if (segment.base, segment.first_batch) != (before.end, self.next_batch):
                why = (
                    f"it starts with batch {segment.first_batch} at offset {segment.base}, "
                    f"expected batch {self.next_batch} at offset {before.end}"
                )
                raise damaged(segment.path, 0, why)
        self.segments.add(segment)
        self.next_batch = next_batch

    def _replay(self, found: _LoadedSegment, records: dict[str, bytes]) -> tuple[int, int]:
        """Replay the batches of a segment; return their end and the next number."""
        head, at, number = found.head, found.body, found.head.first_batch
        for frame in batches(found.data, at, base=head.base, salt=head.salt, number=number):
            plan = self.index.plan(decode_batch(frame.payload), limited=False)
            self.index.apply(plan, head.base + at)
            merge(records, plan.records)
            at, number = frame.end, frame.number + 1
        return at, number

    def _head(self, path: Path) -> Head:
        return _checked_head(path, self._files.read_start(path, _HEAD_READ_BYTES))[0]

    def _load(self, path: Path) -> _LoadedSegment:
        found = self._read(path)
        if found is None:
            _, end = _checked_head(path, self._files.read_start(path, _HEAD_READ_BYTES))
            raise damaged(path, end, "its snapshot can't be read")
        return found

    def _read(self, path: Path) -> _LoadedSegment | None:
        """Read a segment; None if its head or snapshot is torn."""
        data = self._files.system.read(path)
        frame = read_frame(data, 0, HEAD, start=0)
        if frame is None:
            return None
        head, body = _checked_head(path, data)
        start = salted(head.salt, head.base + body)
        snapshot = read_frame(data, body, SNAPSHOT, start=start)
        if snapshot is None:
            return None
        return _LoadedSegment(path, data, head, decode_snapshot(snapshot.payload), snapshot.end)


def _checked_head(path: Path, data: bytes) -> tuple[Head, int]:
    """Return the head of a segment, and the offset after it."""
    frame = read_frame(data, 0, HEAD, start=0)
    if frame is None:
        raise damaged(path, 0, "its head can't be read")
    head = decode_head(frame.payload)
    if head.format != FORMAT:
        raise BadInput(
            f"{path} has format {head.format}; this release reads format {FORMAT}: install a "
            "newer one"
        )
    if head.segment != int(path.stem):
        raise damaged(path, 0, f"it contains segment {head.segment}")
    return head, frame.end
