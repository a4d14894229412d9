"""The durable store of a server: small records by key, and events by slot.

Guarantees
- A batch is atomic, whenever the process or the machine stops. After a crash, the journal has a
  prefix of the batches that were appended.
- Batches up to the number that `write` returned survive a kill of the process; those up to the
  number that `sync` returned survive a power failure. If the disk loses one, opening or reading
  raises `LogDamaged` with file and byte.
- A value reads as it was written: every read of the log verifies a checksum.
- Records and events of one batch share one write and one sync.

A segment starts with a snapshot of all records. So the records need only the newest segment, and
old segments can be dropped with their events. Creating a segment does not wait for the disk. The
thread that calls `write` encodes and copies the records: 20 to 40 ms for 100,000 records of 100
bytes, once per `segment_bytes` (see tests/journal/figures.py). Only `sync` waits for the disk.

Limits: `BUFFER_BYTES_MAX` bytes appended and not written (`LimitReached`); `UNSYNCED_SEGMENTS_MAX`
unsynced segments, beyond which `write` calls `sync`; `HOLES_MAX` of the index. A segment takes up
to `segment_bytes`, plus its snapshot and one `write`. Keep the records small: all of them are in
memory, and in every segment.

A journal has a random identity. Its manifest holds the identity, the first segment and, once the
journal is closed, the end. Data missing at either end raises `LogDamaged` too.

HAZARD: if the machine stopped, damage to the last few batches, those after the last sync that a
later batch records, looks like an unfinished write. They are truncated when the journal is opened.
If only the process was killed, the file `lock` has the number of the last synced batch.

HAZARD: reading one event reads and verifies its whole batch. With batches of many megabytes each
event costs that much.

HAZARD: after a failed sync the state of the disk is unknown, and a second sync does not reveal it.
So the first failure is final: writes and syncs raise `JournalFailed` until the journal is opened
again, which finds what survived.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import NoReturn, Self

import msgspec

from ensue.core import platform
from ensue.core.errors import BadInput, ConfigurationError, LimitReached, LogDamaged
from ensue.journal.files import Files, JournalFailed
from ensue.journal.format import (
    BATCH,
    FRAME_BYTES,
    SLOT_MAX,
    Batch,
    End,
    Manifest,
    Snapshot,
    decode_sidecar,
    encode,
    event_key,
    frame_header,
    merge,
    salted,
)
from ensue.journal.index import HOLE, Ranges
from ensue.journal.recovery import Accept, Recovery
from ensue.journal.segments import READ_AHEAD_BYTES, READ_BYTES, Segments
from ensue.protocols.interface import Persist

__all__ = ["BUFFER_BYTES_MAX", "SEGMENT_BYTES", "UNSYNCED_SEGMENTS_MAX", "Journal", "Outdated"]

SEGMENT_BYTES = 64 * 1024 * 1024
BUFFER_BYTES_MAX = 256 * 1024 * 1024
UNSYNCED_SEGMENTS_MAX = 4


class Outdated(msgspec.Struct, frozen=True, gc=False):
    """The oldest segments, which retention allows to drop."""

    end: int
    """Where they end in the log."""
    firsts: dict[str, int]
    """By topic that loses events, the slot after the highest one lost."""
    ranges: Ranges
    """The slots that they changed."""


class Journal:
    """One journal, open in one process and used by one thread, except `sync`.

    A segment takes `segment_bytes` of batches before the next one is created. `clock` returns the
    time of day in seconds, for retention by age.

    `accept_loss` opens a damaged or incomplete journal with what can be recovered, and gives it a
    new identity: with `events`, only events of sealed segments may be lost; with `all`, the tail
    too, with records. `lost` lists what was lost.

    `identity` names the log. `failed` is the error that made the journal read-only, if any.
    """

    def __init__(
        self,
        directory: Path,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        clock: Callable[[], float] | None = None,
        accept_loss: Accept = "nothing",
    ) -> None:
        if segment_bytes < 1:
            raise ConfigurationError(f"segment_bytes must be at least 1, got {segment_bytes}")
        self.directory = directory
        self.failed: BaseException | None = None
        self.on_damage: Callable[[LogDamaged], None] | None = None
        """Called once, when an event can't be read; the journal has then failed."""
        self._segment_bytes = segment_bytes
        self._clock = clock or platform.current().wall_s
        self._closed = False
        self._syncing = threading.Lock()
        """Held during a sync; `append` and `write` never wait for it."""
        self._state = threading.Lock()
        """Held briefly, for the state that `write` and `sync` share."""
        self._buffer: list[bytes] = []
        self._buffered: dict[int, Batch] = {}
        """Batches that are not written yet, by their offset in the log."""
        self._files = Files(directory, replace_lock=accept_loss == "all")
        try:
            self._open(accept_loss=accept_loss)
        except BaseException:
            self._files.close()
            raise

    def _open(self, *, accept_loss: Accept) -> None:
        found = Recovery(self._files, accept_loss=accept_loss)
        self.lost = tuple(found.lost)
        self._manifest = found.manifest
        known = found.manifest if accept_loss == "nothing" else None
        self.identity = platform.current().token_hex(8) if known is None else known.identity
        self._index = found.index
        self._records = found.records
        self.records: Mapping[str, bytes] = MappingProxyType(self._records)
        self._appended = self._written = found.next_batch - 1
        self._durable = 0
        self._active_since_s: float | None = None
        self._segments = found.segments or Segments(
            self._files, salt=platform.current().random_bits(32)
        )
        try:
            if found.segments is None:
                self._create_segment()
                self._files.sync()  # First: a manifest without a segment counts as a loss.
            # Before any write: if the process is killed, the manifest must not have an end.
            self._write_manifest(first=self._segments.all[0].number, end=None)
            self._start = self._end = self._segments.active.end
            # Writes of a killed process may be in the page cache only. Sync them: from here on
            # they count as durable.
            self.sync()
            self._files.set_created()
            self._files.set_synced(self._durable)
        except BaseException:
            self._segments.close()
            raise

    def _write_manifest(self, *, first: int, end: End | None) -> None:
        """Write the manifest, if it changed."""
        manifest = Manifest(identity=self.identity, salt=self._segments.salt, first=first, end=end)
        if manifest != self._manifest:
            self._files.write_manifest(manifest)
            self._manifest = manifest

    def append(self, writes: Sequence[Persist]) -> None:
        """Append one atomic batch. It stays in memory until `write`.

        A key `event/<slot>/<topic>` writes an event, or drops it if the value is None. Any other
        key writes a record, or removes it if the value is None. If a batch writes one key several
        times, the last write wins. A batch that raises changes nothing.
        """
        if self.failed is not None or self._closed:
            self._raise_unusable()
        batch = {write.key: write.value for write in writes}
        if not batch:
            return
        plan = self._index.plan(batch)
        payload = encode(batch)
        offset = self._end
        size = FRAME_BYTES + len(payload)
        if offset + size - self._start > BUFFER_BYTES_MAX:
            raise LimitReached(
                f"{self.directory}: {size} bytes more exceed the {BUFFER_BYTES_MAX} that may be "
                "appended before a write",
                limit="BUFFER_BYTES_MAX",
                value=BUFFER_BYTES_MAX,
            )
        number = self._appended = self._appended + 1
        start = salted(self._segments.salt, offset)
        self._buffer += (frame_header(BATCH, payload, start, number, self._durable), payload)
        self._end = offset + size
        if plan.puts or plan.drops:
            self._buffered[offset] = batch
            self._index.apply(plan, offset)
        if plan.records:
            merge(self._records, plan.records)

    def write(self) -> int:
        """Write appended batches to the file; return the number of the last one.

        Creates a new segment if the active one is full.
        """
        self._check()
        segment = self._segments.active
        if self._buffer:
            data = b"".join(self._buffer)
            try:
                self._files.write_all(segment.descriptor, data)
            except BaseException as error:
                self.failed = error
                raise
            with self._state:
                segment.size += len(data)
                self._written = self._appended
            assert segment.end == self._end
            self._start = self._end
            self._buffer.clear()
            self._buffered.clear()
        if segment.size - segment.body >= self._segment_bytes:
            if len(self._segments.unsynced) >= UNSYNCED_SEGMENTS_MAX:
                self.sync()
            self._create_segment()
        return self._written

    def sync(self) -> int:
        """Sync written batches to the disk; return the number of the last one.

        May run in another thread, while `append` and `write` continue.
        """
        with self._syncing:
            with self._state:
                self._check()
                written = self._written
                segments = list(self._segments.unsynced)
            if written > self._durable or len(segments) > 1 or segments[0].path.suffix == ".next":
                try:
                    self._segments.sync(segments)
                except BaseException as error:
                    self.failed = error
                    raise
                with self._state:
                    del self._segments.unsynced[: len(segments) - 1]
                    self._durable = written
                if self._files.created:
                    self._files.set_synced(written)
            return written

    def event(self, topic: str, slot: int) -> bytes | None:
        """Return an event, written or only appended; None if the slot has none."""
        offset = self._index.get(topic, slot)
        return None if offset == HOLE else self._read(topic, slot, offset, READ_BYTES)

    def events(
        self, topic: str, start: int, stop: int, *, bytes_max: int
    ) -> list[tuple[int, bytes]]:
        """Return slots and events from slot `start` up to, not including, `stop`.

        Returns at most `bytes_max` bytes, but always the first event.
        """
        found: list[tuple[int, bytes]] = []
        index = self._index.topics.get(topic)
        if index is None:
            return found
        size = 0
        for slot in range(max(start, index.first), min(stop, index.next)):
            offset = index.get(slot)
            if offset == HOLE:
                continue
            event = self._read(topic, slot, offset, READ_AHEAD_BYTES)
            size += len(event)
            if found and size > bytes_max:
                break
            found.append((slot, event))
        return found

    def bounds(self) -> dict[str, tuple[int, int]]:
        """Return the first and the next slot of each topic.

        The first slot is the lowest with an event; the next one follows the highest ever used. They
        are equal if no event is left. A topic that had events is never forgotten.
        """
        return {topic: (each.first, each.next) for topic, each in self._index.topics.items()}

    def find_old(
        self, *, bytes_max: int | None, age_s: float | None, now_s: float
    ) -> Outdated | None:
        """Return the oldest segments beyond a size or an age, if any, for `drop`.

        Segments are outdated while all together exceed `bytes_max` bytes, or if their newest batch
        is older than `age_s`. None is no limit. Only sealed and synced segments are returned, and
        never the last one.
        """
        self._check()
        end, ranges = self._segments.all[0].base, Ranges()
        for segment in self._segments.all:
            too_much = bytes_max is not None and self._segments.active.end - end > bytes_max
            too_old = age_s is not None and now_s - segment.closed_s > age_s
            synced = segment.number < self._segments.unsynced[0].number
            if not synced or not (too_much or too_old):
                break
            end = segment.end
            self._add_ranges(ranges, segment.number)
        if end == self._segments.all[0].base:
            return None
        return Outdated(end, self._index.firsts_after(ranges, before=end), ranges)

    def _add_ranges(self, ranges: Ranges, number: int) -> None:
        """Add the slots that a segment changed; all slots if it has no sidecar."""
        sidecar = decode_sidecar(self._files.read_sidecar(number))
        if sidecar is None:
            ranges |= dict.fromkeys(self._index.topics, (0, SLOT_MAX))
            return
        for topic, part in sidecar.parts.items():
            start, stop = ranges.get(topic, (part.start, part.start))
            following = part.start + len(part.offsets) // 8
            ranges[topic] = (min(start, part.start), max(stop, following))

    def drop(self, old: Outdated) -> None:
        """Drop segments that `find_old` returned, with all their events; records stay.

        A caller that still needs their content must store it durably first.
        """
        self._check()
        self._index.remove_before(old.ranges, before=old.end)
        self._drop_oldest(sum(segment.base < old.end for segment in self._segments.all))

    def drop_empty(self) -> int:
        """Drop the oldest segments without events; return how many."""
        self._check()
        count = 0
        for segment in self._segments.all:
            if segment.number >= self._segments.unsynced[0].number:
                break
            sidecar = decode_sidecar(self._files.read_sidecar(segment.number))
            if sidecar is None or sidecar.parts:
                break
            count += 1
        self._drop_oldest(count)
        return count

    def _drop_oldest(self, count: int) -> None:
        """Drop a number of segments; first the manifest stops requiring them."""
        if count:
            self._write_manifest(first=self._segments.all[count].number, end=None)
        for _ in range(count):
            self._segments.drop_oldest()
            self._files.sync()

    def seal(self, *, age_s: float, now_s: float) -> None:
        """Create a new segment if the active one is older, so that quiet logs expire too."""
        self.write()
        active = self._segments.active
        if self._active_since_s is None:
            self._active_since_s = now_s  # Recovered: count from now.
        elif active.size > active.body and now_s - self._active_since_s > age_s:
            self._create_segment()

    @property
    def size_bytes(self) -> int:
        """Return the bytes of all segments on the disk, without sidecars."""
        return self._segments.active.end - self._segments.all[0].base

    @property
    def end_bytes(self) -> int:
        """Return the bytes ever appended, including dropped and unwritten ones."""
        return self._end

    @property
    def batch_count(self) -> int:
        """Return the number of batches ever appended."""
        return self._appended

    @property
    def topic_count(self) -> int:
        """Return the number of topics that have had events."""
        return len(self._index.topics)

    @property
    def segment_count(self) -> int:
        """Return the number of segments."""
        return len(self._segments.all)

    def close(self) -> None:
        """Write and sync everything, unless the journal failed, and release the lock."""
        if self._closed:
            return
        try:
            if self.failed is None:
                self.write()
                self.sync()
                active = self._segments.active
                end = End(active.number, active.size, self._appended + 1)
                with suppress(OSError):  # Nothing is lost: the next open treats it as killed.
                    self._write_manifest(first=self._segments.all[0].number, end=end)
        finally:
            with self._syncing:
                self._closed = True
                self._segments.close()
                self._files.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check(self) -> None:
        if self.failed is not None or self._closed:
            self._raise_unusable()

    def _raise_unusable(self) -> NoReturn:
        if self.failed is None:
            raise BadInput(f"the journal in {self.directory} is closed: open it again")
        raise JournalFailed(
            f"the journal in {self.directory} is read-only after an earlier error "
            f"({self.failed}): open it again"
        ) from self.failed

    def _create_segment(self) -> None:
        """Seal the active segment and create the next one, without waiting for the disk."""
        segments, now_s, following = self._segments, self._clock(), self._appended + 1
        self._active_since_s = now_s
        snapshot = Snapshot(self._records, self._index.next_slots())
        if segments.all:
            segments.active.seal(
                parts=self._index.take_changes(),
                next_batch=following,
                salt=segments.salt,
                closed_s=now_s,
            )
        try:
            created = segments.create(
                first_batch=following, durable=self._durable, created_s=now_s, snapshot=snapshot
            )
        except BaseException as error:
            self.failed = error
            raise
        with self._state:
            segments.activate(created)
        self._start = self._end = created.end

    def _read(self, topic: str, slot: int, offset: int, ahead: int) -> bytes:
        batch = self._buffered.get(offset)
        if batch is None:
            try:
                batch = self._segments.batch(offset, ahead=ahead)
            except LogDamaged as error:
                if self.failed is None:
                    self.failed = error
                    if self.on_damage is not None:
                        self.on_damage(error)
                raise
        value = batch[event_key(topic, slot)]
        assert value is not None
        return value
