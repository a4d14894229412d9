"""Hold-back queue of a stream in total order that is not causal, without Spark and without a clock.

**Task.** The stamp of an event says how many events of each topic precede it. An event is released
when it is the next of its topic and all events that its stamp counts have been released; others are
held. Positions 1, 2, 3, … count what is released. Where stamps leave a choice among the events of a
micro-batch, the one that was published first comes first; so a batch (`vector_order`) and a stream
may put events differently that no two subscribers share.

**Guarantee.** Each event is released at most once, even if rows are repeated. Rows leave in
`finish` alone, so which are released depends on the rows of the micro-batch and on the state before
it, and a micro-batch that is run again yields the same rows.

**Gaps, voids, events before the cut** are as in `hold_back`: without a time to live the queue skips
nothing, and more than `held_max` held rows are an error. Skipped events that arrive later are
released at once, as `out_of_order`, and take the next position.

HAZARD: a micro-batch is held in memory whole. Bound micro-batches at the source.
"""

from collections.abc import Iterator, Mapping
from heapq import heappop, heappush
from typing import Any, ClassVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ensue.core.errors import ConfigurationError, LimitReached
from ensue.spark.hold_back import AFTER_GAP, BEFORE_CUT, IN_ORDER, OUT_OF_ORDER, VOID, Limits
from ensue.spark.record_batches import GivenUp, from_bytes, micros, to_bytes, voids

__all__ = ["VectorHoldBack"]


class _State(msgspec.Struct, kw_only=True):
    """State between micro-batches, apart from the held rows."""

    VERSION: ClassVar[int] = 1

    version: int = 1
    position: int = 0
    """The last position given."""
    newest_us: int | None = None
    """The newest `published_at` seen."""
    after_gap: bool = False
    """Whether the next event shown is the first after a gap."""
    clock: dict[str, int] = {}
    """By topic: how many of its events were released or skipped, or lie before the cut."""
    given_up: dict[str, tuple[list[tuple[int, int]], int]] = {}
    """By topic: ranges of skipped offsets, and how far they were forgotten."""


class _Row(msgspec.Struct, frozen=True):
    """One held row."""

    index: int
    topic: str
    offset: int
    stamp: Mapping[str, int]
    at_us: int


class VectorHoldBack:
    """Hold-back by stamps: releases an event after all that its stamp counts."""

    def __init__(self, cut: Mapping[str, int], limits: Limits, blob: bytes | None = None) -> None:
        self._limits = limits
        self._rows: list[pa.RecordBatch] = []
        """Rows that were held before, and new ones."""
        if blob is None:
            self._state = _State(clock=dict(cut))
        else:
            self._state, self._rows = _load(blob)
        self._given_up = {
            topic: GivenUp(list(ranges), forgotten)
            for topic, (ranges, forgotten) in self._state.given_up.items()
        }
        self._held: dict[str, dict[int, _Row]] = {}
        """By topic and offset: rows that were not released yet."""
        self._waiting: dict[str, set[str]] = {}
        """By topic: topics whose next event waits for one of its events."""
        self._ready: list[tuple[int, str]] = []
        """When the next events of topics were published that wait for nothing."""
        self._entered: set[str] = set()
        """Their topics."""
        self._eldest: list[tuple[int, str, int]] = []
        """When held rows were published, their topics and offsets; released ones too."""
        self._lowest: dict[str, list[int]] = {}
        """By topic: offsets of held rows, and of released ones."""
        self._held_count = 0
        self._released: list[tuple[_Row, str]] = []

    def add(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Take rows of the micro-batch, in any order; return those before the cut."""
        if batch.column("position").null_count:
            early = batch.filter(pc.is_null(batch.column("position")))
            verdicts = [VOID if void else BEFORE_CUT for void in voids(early)]
            yield from self._shown(early, verdicts)
            batch = batch.filter(pc.is_valid(batch.column("position")))
        if batch.num_rows == 0:
            return
        if self._rows and not self._rows[0].schema.equals(batch.schema):
            raise ConfigurationError(
                "the columns differ from those of the events held in the checkpoint: keep the "
                "same columns, or use a new checkpoint"
            )
        newest_us = pc.max(micros(batch)).as_py()
        if newest_us is not None:
            self._state.newest_us = max(newest_us, self._state.newest_us or newest_us)
        self._rows.append(batch)

    def finish(self) -> Iterator[pa.RecordBatch]:
        """End the micro-batch: release what has its turn, and skip overdue gaps."""
        if not self._rows:
            return
        table = pa.Table.from_batches(self._rows).combine_chunks()
        self._sort_in(table)
        for topic in sorted(self._held):
            self._enter(topic)
        self._release_ready()
        while (overdue := self._overdue()) is not None:
            self._skip_to(overdue)
            self._release_ready()
        left = sorted(row.index for rows in self._held.values() for row in rows.values())
        self._rows = table.take(left).to_batches() if left else []
        released, self._released = self._released, []
        if not released:
            return
        rows = table.take([row.index for row, _ in released]).combine_chunks().to_batches()[0]
        first = self._state.position + 1
        self._state.position += len(released)
        places = pa.array(range(first, self._state.position + 1), pa.int64())
        at = rows.schema.get_field_index("position")
        rows = rows.set_column(at, rows.schema.field("position"), places)
        hidden = voids(rows)
        yield from self._shown(rows, self._verdicts([each for _, each in released], hidden))

    def dump(self) -> bytes:
        """Return the whole state: a JSON header, then the held rows, compressed."""
        assert not self._released, "finish a micro-batch before its state is saved"
        self._state.given_up = {
            topic: (one.ranges, one.forgotten) for topic, one in self._given_up.items()
        }
        head = msgspec.json.encode(self._state)
        blob = len(head).to_bytes(4, "big") + head
        return blob + to_bytes(self._rows, compression="zstd") if self._rows else blob

    # -- The queue --------------------------------------------------------------------------------

    def _sort_in(self, table: pa.Table) -> None:
        """Hold all rows; release those of skipped offsets, and drop repetitions."""
        self._held, self._waiting = {}, {}
        names = ("topic", "offset", "stamp")
        columns = [table.column(name).to_pylist() for name in names]
        times = table.column("published_at").cast(pa.int64()).to_pylist()
        for index, (topic, offset, stamp, at_us) in enumerate(zip(*columns, times, strict=True)):
            row = _Row(index, topic, offset, dict(stamp), at_us or 0)
            if offset >= self._state.clock.get(topic, 0):
                self._held.setdefault(topic, {}).setdefault(offset, row)
                continue
            skipped = self._given_up.get(topic)
            # Ranges begin at 1 there, as positions do.
            if skipped is not None and skipped.among(np.array([offset + 1]))[0]:
                skipped.remove(offset + 1)
                self._released.append((row, OUT_OF_ORDER))
        held = [row for rows in self._held.values() for row in rows.values()]
        self._held_count = len(held)
        # Sorted lists are heaps.
        self._eldest = sorted((row.at_us, row.topic, row.offset) for row in held)
        self._lowest = {topic: sorted(rows) for topic, rows in self._held.items()}

    def _enter(self, topic: str) -> None:
        """Note that the next event of a topic is ready, or what it waits for."""
        row = self._held.get(topic, {}).get(self._state.clock.get(topic, 0))
        if row is None:
            return
        clock = self._state.clock
        for other, count in row.stamp.items():
            if other != topic and clock.get(other, count) < count:
                self._waiting.setdefault(other, set()).add(topic)
                return
        if topic not in self._entered:
            self._entered.add(topic)
            heappush(self._ready, (row.at_us, topic))

    def _release_ready(self) -> None:
        """Release events one after the other, the one that was published first at any time."""
        while self._ready:
            _, topic = heappop(self._ready)
            self._entered.remove(topic)
            self._release(self._held[topic][self._state.clock[topic]], IN_ORDER)

    def _release(self, row: _Row, verdict: str) -> None:
        del self._held[row.topic][row.offset]
        self._held_count -= 1
        self._state.clock[row.topic] = row.offset + 1
        self._released.append((row, verdict))
        for topic in sorted({row.topic, *self._waiting.pop(row.topic, ())}):
            self._enter(topic)

    def _overdue(self) -> _Row | None:
        """Return the eldest held row if it has waited for too long, or too many are held."""
        limits, count = self._limits, self._held_count
        if not count or (limits.time_to_live_us is None and count <= limits.held_max):
            return None
        while (found := self._eldest[0])[2] not in self._held[found[1]]:
            heappop(self._eldest)
        _, topic, offset = found
        eldest = self._held[topic][offset]
        if limits.time_to_live_us is None:
            raise LimitReached(
                f"[HELD_MAX_REACHED] {count:,} events wait for others that are missing, one of "
                f"them is before offset {offset:,} of {topic!r}; held_max is "
                f"{limits.held_max:,}: raise it, or set a time_to_live after which a gap is "
                "skipped and reported",
                limit="held_max",
                value=limits.held_max,
            )
        assert self._state.newest_us is not None
        late = eldest.at_us < self._state.newest_us - limits.time_to_live_us
        return eldest if late or count > limits.held_max else None

    def _skip_to(self, row: _Row) -> None:
        """Skip what a row waits for, after held rows that precede it."""
        seen: set[tuple[str, int]] = set()
        while (before := self._held_before(row)) is not None and (
            before.topic,
            before.offset,
        ) not in seen:
            seen.add((before.topic, before.offset))
            row = before
        skipped: set[str] = set()
        for topic, count in {**row.stamp, row.topic: row.offset}.items():
            clock = self._state.clock.get(topic)
            if clock is not None and clock < count:
                self._given_up.setdefault(topic, GivenUp([], 0)).add(clock + 1, count)
                self._state.clock[topic] = count
                skipped.add(topic)
        waited = [each for topic in skipped for each in self._waiting.pop(topic, ())]
        self._release(row, AFTER_GAP)
        for topic in sorted(skipped.union(waited)):
            self._enter(topic)

    def _held_before(self, row: _Row) -> _Row | None:
        """Return a held row that precedes a row by its stamp or in its topic."""
        for topic, count in sorted({**row.stamp, row.topic: row.offset}.items()):
            held, lowest = self._held.get(topic), self._lowest.get(topic)
            if not held or not lowest:
                continue
            while lowest[0] not in held:
                heappop(lowest)
            if lowest[0] < count:
                return held[lowest[0]]
        return None

    # -- Rows -------------------------------------------------------------------------------------

    def _verdicts(self, found: list[str], hidden: Any) -> list[str]:
        """Return the verdicts of released rows: after a gap that of the first row shown."""
        verdicts = []
        for verdict, void in zip(found, hidden, strict=True):
            self._state.after_gap |= verdict == AFTER_GAP
            if void:
                verdicts.append(VOID)
            elif verdict == OUT_OF_ORDER:
                verdicts.append(verdict)
            else:
                verdicts.append(AFTER_GAP if self._state.after_gap else IN_ORDER)
                self._state.after_gap = False
        return verdicts

    def _shown(self, rows: pa.RecordBatch, verdicts: list[str]) -> Iterator[pa.RecordBatch]:
        """Add verdicts; drop voids unless requested."""
        rows = rows.append_column("verdict", pa.array(verdicts, pa.string()))
        if not self._limits.voids:
            rows = rows.filter(pa.array([verdict != VOID for verdict in verdicts]))
        if rows.num_rows:
            yield rows


def _load(blob: bytes) -> tuple[_State, list[pa.RecordBatch]]:
    end = 4 + int.from_bytes(blob[:4], "big")
    state = msgspec.json.decode(blob[4:end], type=_State)
    if state.version != _State.VERSION:
        raise ConfigurationError(
            f"the checkpoint's held events are of version {state.version}, this is version "
            f"{_State.VERSION}: finish the query with the release that started it, or use a new "
            "checkpoint"
        )
    return state, from_bytes(blob[end:]) if len(blob) > end else []
