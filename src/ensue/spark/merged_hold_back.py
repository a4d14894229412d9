"""Hold-back queue of a stream in merged order, without Spark and without a clock.

**Task.** An event with the tick `merge_tick` is released once some clock is more than
delta + epsilon past it: every event that belongs before it has arrived by then, or is late. The
clock is the newest tick among the rows seen, so that the same rows give the same result whenever
they are read. A micro-batch releases rows sorted by `merge_key`.

**Guarantee.** Which rows are released in a micro-batch, and with which verdict, depends on its rows
and on the state before it, not on how the rows are divided into record batches or in which order
these arrive. Rows with an empty verdict are sorted over all micro-batches. A row that arrives after
its tick was released is released at once, as `late`, or dropped. A row that is repeated while it is
held is released once.

HAZARD: the last rows of a stream wait for newer ones. An idle stream holds what was published
within the last delta + epsilon: publish something now and then, or merge the whole log as a batch
when it has ended.

HAZARD: a row that is repeated after its release is `late`: the queue does not remember all released
rows.

HAZARD: one row with a tick from the future makes all others late until their clocks reach it.
Filter such rows out first.
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
    """Bounds of a merged hold-back queue: time and number of rows."""

    wait_ticks: int
    """delta + epsilon."""
    held_max: int
    deliver_late: bool


class _State(msgspec.Struct, kw_only=True):
    """State between micro-batches, apart from the held rows."""

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
        """Number of held rows."""
        return 0 if self._held is None else self._held.num_rows

    def add(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Take rows of the micro-batch; `finish` releases."""
        if batch.num_rows:
            self._fresh.append(batch)
        return iter(())

    def finish(self) -> Iterator[pa.RecordBatch]:
        """End the micro-batch: return the released rows."""
        fresh, self._fresh = self._fresh, []
        if not fresh:
            return
        rows = pa.Table.from_batches(fresh)
        if self._held is not None and not self._held.schema.equals(rows.schema):
            raise ConfigurationError(
                "the columns differ from those of the events held in the checkpoint: keep the "
                "same columns, or use a new checkpoint"
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
                f"[HELD_MAX_REACHED] {rest.num_rows:,} events wait for newer clocks; "
                f"held_max is {self._limits.held_max:,}: raise it, or read less at once",
                limit="held_max",
                value=self._limits.held_max,
            )
        self._held = rest if rest.num_rows else None
        yield from _with_verdict(everything.slice(0, count), "")

    def dump(self) -> bytes:
        """Return the whole state: a JSON header, then the held rows, compressed."""
        assert not self._fresh, "finish a micro-batch before its state is saved"
        head = msgspec.json.encode(self._state)
        blob = len(head).to_bytes(4, "big") + head
        if self._held is not None:
            blob += to_bytes(self._held.combine_chunks().to_batches(), compression="zstd")
        return blob

    def _passed(self) -> int | None:
        """Return the first tick whose events must still wait."""
        newest = self._state.newest
        return None if newest is None else newest - self._limits.wait_ticks


def _ticks(rows: pa.Table) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    return np.asarray(rows.column("merge_tick").to_numpy(), dtype=np.int64)


def _sorted(rows: pa.Table) -> pa.Table:
    return rows.take(pc.sort_indices(rows.column("merge_key").combine_chunks()))


def _once(rows: pa.Table) -> pa.Table:
    """Drop repetitions from sorted rows."""
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
            f"{_State.VERSION}: finish the query with the release that started it, or use a new "
            "checkpoint"
        )
    return state, from_bytes(blob[end:]) if len(blob) > end else []
