"""Hold-back queue of a stream in merged order: no Spark in here, no clock.

**What it does.** An event whose largest clock known is `merge_tick` may leave once some clock has
passed that by more than delta + epsilon: by then everything that is to come before it has come, or
is late. The clock that is looked at is the newest tick among the rows seen, so that the same rows
give the same result whenever they are read. What leaves in a micro-batch leaves sorted by
`merge_key`.

**What it guarantees.** Which rows leave in a micro-batch, and with which verdict, depends on its
rows and the state before it, not on how they were cut into record batches or in which order these
came. Rows that leave with no verdict are sorted over all micro-batches. A row that comes behind
those of its tick leaves at once, as `late`, or is dropped. A row that is repeated while it is held
leaves once.

HAZARD: the last rows of a stream wait for newer ones. A stream that stands still holds what was
published within the last delta + epsilon: publish something now and then, or merge the whole log as
a batch when it has ended.

HAZARD: a row that is repeated after it has left is `late`: the queue does not remember all that
ever left.

HAZARD: one row with a tick from the future makes all others late until their clocks get there.
Leave such rows out before.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ensue.core.errors import ConfigurationError, LimitReached
from ensue.spark.record_batches import OUT_ROWS, from_bytes, to_bytes

__all__ = ["LATE", "MergeHoldBack", "MergeLimits"]

LATE = "late"


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeLimits:
    """How long to wait, and how much may wait."""

    wait_ticks: int
    """delta + epsilon."""
    held_max: int
    deliver_late: bool


class _State(msgspec.Struct, kw_only=True):
    """What survives a micro-batch, apart from the held rows."""

    VERSION: ClassVar[int] = 1

    version: int = 1
    newest: int | None = None
    """The newest tick seen."""


class MergeHoldBack:
    """Hold-back by clocks. The methods are those of `hold_back.HoldBack`."""

    def __init__(self, limits: MergeLimits, blob: bytes | None = None) -> None:
        self._limits = limits
        self._state, held = (_State(), []) if blob is None else _load(blob)
        self._held: pa.Table | None = pa.Table.from_batches(held) if held else None
        self._fresh: list[pa.RecordBatch] = []

    @property
    def held_count(self) -> int:
        """How many rows wait."""
        return 0 if self._held is None else self._held.num_rows

    def add(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Take rows of the micro-batch; nothing leaves before all of them are there."""
        if batch.num_rows:
            self._fresh.append(batch)
        return iter(())

    def finish(self) -> Iterator[pa.RecordBatch]:
        """End the micro-batch: return what leaves."""
        fresh, self._fresh = self._fresh, []
        if not fresh:
            return
        rows = pa.Table.from_batches(fresh)
        if self._held is not None and not self._held.schema.equals(rows.schema):
            raise ConfigurationError(
                "the columns are not those of the events held in the checkpoint: go on with the "
                "same columns, or start with a new checkpoint"
            )
        ticks = _ticks(rows)
        passed = self._passed()
        if passed is not None:
            late = ticks < passed
            if late.any():
                if self._limits.deliver_late:
                    yield from _with_verdict(_sorted(rows.filter(pa.array(late))), LATE)
                rows = rows.filter(pa.array(~late))
        self._state.newest = max(int(ticks.max()), self._state.newest or 0)
        everything = rows if self._held is None else pa.concat_tables([self._held, rows])
        everything = _once(_sorted(everything))
        passed = self._passed()
        count = int(np.searchsorted(_ticks(everything), passed)) if passed is not None else 0
        rest = everything.slice(count)
        if rest.num_rows > self._limits.held_max:
            raise LimitReached(
                f"[HELD_MAX_REACHED] {rest.num_rows:,} events wait for clocks to pass them; "
                f"held_max is {self._limits.held_max:,}. Raise it, or read less at once",
                limit="held_max",
                value=self._limits.held_max,
            )
        self._held = rest if rest.num_rows else None
        yield from _with_verdict(everything.slice(0, count), "")

    def dump(self) -> bytes:
        """Return all of the state: what is held, compressed, after a few numbers as JSON."""
        assert not self._fresh, "a micro-batch must be finished before its state is kept"
        head = msgspec.json.encode(self._state)
        blob = len(head).to_bytes(4, "big") + head
        if self._held is not None:
            blob += to_bytes(self._held.combine_chunks().to_batches(), compression="zstd")
        return blob

    def _passed(self) -> int | None:
        """Return the first tick whose events may not leave yet."""
        newest = self._state.newest
        return None if newest is None else newest - self._limits.wait_ticks


def _ticks(rows: pa.Table) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    return np.asarray(rows.column("merge_tick").to_numpy(), dtype=np.int64)


def _sorted(rows: pa.Table) -> pa.Table:
    return rows.take(pc.sort_indices(rows.column("merge_key").combine_chunks()))


def _once(rows: pa.Table) -> pa.Table:
    """Leave repetitions out of sorted rows."""
    keys = rows.column("merge_key").combine_chunks()
    if len(keys) < 2:
        return rows
    new = pc.not_equal(keys.slice(1), keys.slice(0, len(keys) - 1))
    if pc.all(new).as_py():
        return rows
    return rows.filter(pa.concat_arrays([pa.array([True]), new]))


def _with_verdict(rows: pa.Table, verdict: str) -> Iterator[pa.RecordBatch]:
    if rows.num_rows:
        judged = rows.append_column("verdict", pa.repeat(verdict, rows.num_rows))
        yield from judged.combine_chunks().to_batches(max_chunksize=OUT_ROWS)


def _load(blob: bytes) -> tuple[_State, list[pa.RecordBatch]]:
    end = 4 + int.from_bytes(blob[:4], "big")
    state = msgspec.json.decode(blob[4:end], type=_State)
    if state.version != _State.VERSION:
        raise ConfigurationError(
            f"the checkpoint's held events are of version {state.version}, this is version "
            f"{_State.VERSION}: finish the query with the release that started it, or start afresh"
        )
    return state, from_bytes(blob[end:]) if len(blob) > end else []
