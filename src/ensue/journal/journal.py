"""The embedded durable store of a server: a map of small records and events by slot, in one log.

Guarantees
- A batch is there as a whole or not at all, whenever the process or the machine stops. What is
  there after a crash is a prefix of the batches that were appended.
- What `write` returned is not lost when the process is killed; what `sync` returned is not lost
  when the machine is. Neither is ever claimed and then missing: it is there, or opening or
  reading raises `LogDamaged` with file and byte.
- A value that is read is the one that was written: every read of the log checks its checksum.
- Records and events of one batch share one write and one sync.

A segment starts with a snapshot of the whole map, so the map needs the newest segment only and old
segments can be dropped with their events. Beginning one does not wait for the disk. It costs the
thread that calls `write` the time to encode and copy the map: 20 to 40 ms for 100,000 records of
100 bytes, which is once per `segment_bytes` (see tests/journal/figures.py). Syncing is left to
`sync`.

Limits: `BUFFER_BYTES_MAX` bytes appended and not written (`LimitReached`); `UNSYNCED_SEGMENTS_MAX`
segments begun and not synced, beyond which `write` syncs by itself; `HOLES_MAX` of the index.
A segment is as large as `segment_bytes`, its snapshot and one `write` together. The map is meant
to be small: it is in memory, and in every segment.

A journal has an identity: random, made with it, kept in its manifest beside its first segment and,
once it is closed, its end. What is missing at either end is `LogDamaged` then, too.

HAZARD: damage to the last few batches, those after the last sync that a later batch knows of, can't
be distinguished from a write that was never finished, if the machine stopped. They are cut off when
the journal is opened. If only the process was killed, the number of the last batch that was synced
is left in the file `lock`.

HAZARD: reading one event reads and checks its whole batch. With batches of many megabytes each
event costs that much.

HAZARD: after a failed sync the state of the disk is unknown, and a second sync would not tell. So
the first failure is final: every call to write or sync raises `JournalFailed` until the journal is
opened anew, and that shows what is there.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from secrets import randbits, token_hex
from types import MappingProxyType
from typing import NoReturn, Self

import msgspec

from ensue.core.errors import BadInput, ConfigurationError, LimitReached, LogDamaged
from ensue.journal.files import Files, JournalFailed, write_all
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
    """The oldest segments, which may go."""

    end: int
    """Where they end in the whole log."""
    firsts: dict[str, int]
    """Of each topic that will lose events, the slot behind the highest one lost."""
    ranges: Ranges
    """Where the slots are that they changed."""


class Journal:
    """One journal, open in one process and used by one thread; `sync` alone may run in another.

    `segment_bytes` is how many bytes of batches a segment takes before the next one is begun;
    `clock` tells the time of day in seconds, for dropping events by age.

    `accept_loss` opens a journal that is damaged or incomplete with what can be had of it, and
    gives it another identity: `events` if only events of sealed segments are lost, `all` if the
    tail is, too, with records. `lost` says what was missing.

    `identity` names the log. `failed` is the error that made the journal refuse everything but
    reading, if there was one.
    """

    def __init__(
        self,
        directory: Path,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        clock: Callable[[], float] = time.time,
        accept_loss: Accept = "nothing",
    ) -> None:
        if segment_bytes < 1:
            raise ConfigurationError("Journal.segment_bytes must be at least 1")
        self.directory = directory
        self.failed: BaseException | None = None
        self.on_damage: Callable[[LogDamaged], None] | None = None
        """Called once if an event is unreadable; the journal has failed then."""
        self._segment_bytes = segment_bytes
        self._clock = clock
        self._closed = False
        self._syncing = threading.Lock()
        """Held for as long as a sync takes; nothing that `append` or `write` does waits for it."""
        self._state = threading.Lock()
        """Held for moments, where `write` and `sync` change what both look at."""
        self._buffer: list[bytes] = []
        self._buffered: dict[int, Batch] = {}
        """Batches that are not written yet, by their place in the whole log."""
        self._files = Files(directory)
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
        self.identity = token_hex(8) if known is None else known.identity
        self._index = found.index
        self._records = found.records
        self.records: Mapping[str, bytes] = MappingProxyType(self._records)
        self._appended = self._written = found.next_batch - 1
        self._durable = 0
        self._begun_s: float | None = None
        self._segments = found.segments or Segments(self._files, salt=randbits(32))
        try:
            if found.segments is None:
                self._begin_segment()
                self._files.sync()  # First: a manifest without a segment is a loss.
            # Before anything is written: a process that is killed leaves no end.
            self._note(first=self._segments.all[0].number, end=None)
            self._start = self._end = self._segments.active.end
            # What a killed process wrote may be in the system's memory only: it was not promised
            # to survive the machine, and from here on it is.
            self.sync()
            self._files.set_made()
            self._files.set_synced(self._durable)
        except BaseException:
            self._segments.close()
            raise

    def _note(self, *, first: int, end: End | None) -> None:
        """Write down where the log begins, and ends once it is closed."""
        manifest = Manifest(identity=self.identity, salt=self._segments.salt, first=first, end=end)
        if manifest != self._manifest:
            self._files.write_manifest(manifest)
            self._manifest = manifest

    def append(self, writes: Sequence[Persist]) -> None:
        """Take one batch, to be there as a whole or not at all. It is kept in memory until `write`.

        A key `event/<slot>/<topic>` with a value is an event, and without one drops it. Every
        other key is a record of the map; None removes it. Of several writes to one key the last
        one counts. A batch that is refused has changed nothing.
        """
        if self.failed is not None or self._closed:
            self._refuse()
        batch = {write.key: write.value for write in writes}
        if not batch:
            return
        plan = self._index.plan(batch)
        payload = encode(batch)
        offset = self._end
        size = FRAME_BYTES + len(payload)
        if offset + size - self._start > BUFFER_BYTES_MAX:
            raise LimitReached(
                f"{self.directory} can't take {size} bytes more before they are written: the limit "
                f"is {BUFFER_BYTES_MAX}",
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
        if plan.others:
            merge(self._records, plan.others)

    def write(self) -> int:
        """Hand what was appended to the operating system; return the number of the last batch.

        This begins a new segment if the last one is full.
        """
        self._check()
        segment = self._segments.active
        if self._buffer:
            data = b"".join(self._buffer)
            try:
                write_all(segment.descriptor, data)
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
            if len(self._segments.unsettled) >= UNSYNCED_SEGMENTS_MAX:
                self.sync()
            self._begin_segment()
        return self._written

    def sync(self) -> int:
        """Make what was written survive the machine; return the number of the last batch that does.

        This may run in another thread, and as long as it takes, `append` and `write` go on.
        """
        with self._syncing:
            with self._state:
                self._check()
                written = self._written
                segments = list(self._segments.unsettled)
            if written > self._durable or len(segments) > 1 or segments[0].path.suffix == ".next":
                try:
                    self._segments.settle(segments)
                except BaseException as error:
                    self.failed = error
                    raise
                with self._state:
                    del self._segments.unsettled[: len(segments) - 1]
                    self._durable = written
                if self._files.made:
                    self._files.set_synced(written)
            return written

    def event(self, topic: str, slot: int) -> bytes | None:
        """Return an event, also one that is not written yet; None if there is none."""
        offset = self._index.get(topic, slot)
        return None if offset == HOLE else self._read(topic, slot, offset, READ_BYTES)

    def events(
        self, topic: str, start: int, stop: int, *, bytes_max: int
    ) -> list[tuple[int, bytes]]:
        """Return the events of slots from `start` up to, not including, `stop`, with their slots.

        They end before their bytes are more than `bytes_max`, but there is one if any is there.
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
        """Return the lowest slot with an event and the slot after the highest ever, by topic.

        They are the same where no event is left. A topic that had events is known for ever.
        """
        return {topic: (each.first, each.next) for topic, each in self._index.topics.items()}

    def find_old(
        self, *, bytes_max: int | None, age_s: float | None, now_s: float
    ) -> Outdated | None:
        """Return which of the oldest segments are too much or too old, if any; `drop` drops them.

        A segment is too much while all together have more than `bytes_max` bytes, and too old if
        its youngest batch is older than `age_s`. None is no limit. Only segments that are sealed
        and synced are found, and never the last one.
        """
        self._check()
        end, ranges = self._segments.all[0].base, Ranges()
        for segment in self._segments.all:
            too_much = bytes_max is not None and self._segments.active.end - end > bytes_max
            too_old = age_s is not None and now_s - segment.closed_s > age_s
            settled = segment.number < self._segments.unsettled[0].number
            if not settled or not (too_much or too_old):
                break
            end = segment.end
            self._add_ranges(ranges, segment.number)
        if end == self._segments.all[0].base:
            return None
        return Outdated(end, self._index.firsts_without(ranges, before=end), ranges)

    def _add_ranges(self, ranges: Ranges, number: int) -> None:
        """Add where the slots are that a segment changed."""
        # The sidecar tells where to look; without one, look everywhere.
        sidecar = decode_sidecar(self._files.read_sidecar(number))
        if sidecar is None:
            ranges |= dict.fromkeys(self._index.topics, (0, SLOT_MAX))
            return
        for topic, part in sidecar.parts.items():
            start, stop = ranges.get(topic, (part.start, part.start))
            following = part.start + len(part.offsets) // 8
            ranges[topic] = (min(start, part.start), max(stop, following))

    def drop(self, old: Outdated) -> None:
        """Drop segments that `find_old` found, with all their events; records stay.

        Callers that need their content must have it on disk before.
        """
        self._check()
        self._index.forget(old.ranges, before=old.end)
        self._drop_oldest(sum(segment.base < old.end for segment in self._segments.all))

    def drop_empty(self) -> int:
        """Drop the oldest segments without events; return how many."""
        self._check()
        count = 0
        for segment in self._segments.all:
            if segment.number >= self._segments.unsettled[0].number:
                break
            sidecar = decode_sidecar(self._files.read_sidecar(segment.number))
            if sidecar is None or sidecar.parts:
                break
            count += 1
        self._drop_oldest(count)
        return count

    def _drop_oldest(self, count: int) -> None:
        """Drop so many segments; those before the first one of the manifest are not missed."""
        if count:
            self._note(first=self._segments.all[count].number, end=None)
        for _ in range(count):
            self._segments.drop_oldest()
            self._files.sync()

    def seal(self, *, age_s: float, now_s: float) -> None:
        """Begin a new segment if the last one was begun longer ago: a quiet log grows old too."""
        self.write()
        active = self._segments.active
        if self._begun_s is None:
            self._begun_s = now_s  # Opened, not begun: as good as new.
        elif active.size > active.body and now_s - self._begun_s > age_s:
            self._begin_segment()

    @property
    def size_bytes(self) -> int:
        """Return how much the segments take on the disk, sidecars not included."""
        return self._segments.active.end - self._segments.all[0].base

    @property
    def end_bytes(self) -> int:
        """Return the bytes ever appended, including dropped and unwritten ones."""
        return self._end

    @property
    def batch_count(self) -> int:
        """Return how many batches the whole log has had."""
        return self._appended

    @property
    def topic_count(self) -> int:
        """Return how many topics have had events."""
        return len(self._index.topics)

    @property
    def segment_count(self) -> int:
        """Return in how many segments the log is."""
        return len(self._segments.all)

    def close(self) -> None:
        """Write and sync everything, unless the journal failed, and unlock it."""
        if self._closed:
            return
        try:
            if self.failed is None:
                self.write()
                self.sync()
                active = self._segments.active
                end = End(active.number, active.size, self._appended + 1)
                with suppress(OSError):  # Nothing is lost: it is opened as if it had been killed.
                    self._note(first=self._segments.all[0].number, end=end)
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
            self._refuse()

    def _refuse(self) -> NoReturn:
        if self.failed is None:
            raise BadInput(f"{self.directory} is closed")
        raise JournalFailed(
            f"{self.directory} takes nothing more since an earlier error ({self.failed}): "
            "open it anew"
        ) from self.failed

    def _begin_segment(self) -> None:
        """Seal the last segment and begin the next one, without waiting for the disk."""
        segments, now_s, following = self._segments, self._clock(), self._appended + 1
        self._begun_s = now_s
        snapshot = Snapshot(self._records, self._index.next_slots())
        if segments.all:
            segments.active.seal(
                parts=self._index.take_changes(),
                next_batch=following,
                salt=segments.salt,
                closed_s=now_s,
            )
        try:
            begun = segments.begin(
                first_batch=following, durable=self._durable, created_s=now_s, snapshot=snapshot
            )
        except BaseException as error:
            self.failed = error
            raise
        with self._state:
            segments.take(begun)
        self._start = self._end = begun.end

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
