"""Rows of a hold-back queue: sorted Arrow record batches and NumPy positions.

`hold_back` decides what happens to them. These helpers copy whole columns or slices and never loop
over rows, so that a stream runs at Arrow's speed.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ensue.spark.conditions import SparkFault

__all__ = [
    "GivenUp",
    "Mask",
    "Part",
    "Positions",
    "from_bytes",
    "highest_offsets",
    "leading",
    "micros",
    "not_empty",
    "to_bytes",
    "voids",
    "windows",
    "without_repetitions",
]

Positions = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

OUT_ROWS = 16_384
"""Rows of a released record batch."""
RANGES_MAX = 10_000
"""Most ranges of skipped positions that are retained."""
LAST = int(np.iinfo(np.int64).max)


def to_bytes(
    batches: Sequence[pa.RecordBatch], *, compression: Literal["lz4", "zstd"] = "lz4"
) -> bytes:
    """Serialize record batches of one schema, compressed: moving bytes costs more."""
    out = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(out, batches[0].schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return out.getvalue().to_pybytes()


def from_bytes(blob: bytes) -> list[pa.RecordBatch]:
    """Deserialize record batches."""
    with pa.ipc.open_stream(pa.py_buffer(blob)) as reader:
        return list(reader)


class GivenUp:
    """Ranges of skipped positions, ascending, of which no event has arrived."""

    def __init__(self, ranges: list[tuple[int, int]], forgotten: int) -> None:
        self.ranges = ranges
        self.forgotten = forgotten
        """Ranges up to this position were dropped; 0 if none was."""

    def add(self, first: int, last: int) -> None:
        """Add a range above all others."""
        self.ranges.append((first, last))
        self._bound()

    def among(self, positions: Positions) -> Mask:
        """Return which of these positions may have been skipped."""
        forgotten = positions <= self.forgotten
        if not self.ranges:
            return forgotten
        firsts, lasts = np.array(self.ranges, dtype=np.int64).T
        at = np.searchsorted(firsts, positions, side="right") - 1
        return np.asarray(forgotten | ((at >= 0) & (positions <= lasts[np.maximum(at, 0)])))

    def remove(self, position: int) -> None:
        """Remove a skipped position whose event has arrived."""
        at = bisect_right(self.ranges, (position, LAST)) - 1
        if at < 0 or self.ranges[at][1] < position:
            return  # Its range was dropped.
        first, last = self.ranges[at]
        pieces = [(first, position - 1), (position + 1, last)]
        self.ranges[at : at + 1] = [(low, high) for low, high in pieces if low <= high]
        self._bound()

    def _bound(self) -> None:
        while len(self.ranges) > RANGES_MAX:
            self.forgotten = self.ranges.pop(0)[1]


@dataclass(frozen=True, slots=True)
class Part:
    """Rows by ascending position, each position once."""

    rows: pa.RecordBatch
    positions: Positions

    @classmethod
    def of(cls, rows: pa.RecordBatch) -> "Part":
        """Sort rows by position and drop repeated ones."""
        positions = np.asarray(rows.column("position"))
        steps = np.diff(positions)
        if not np.all(steps >= 0):
            order = np.argsort(positions, kind="stable")
            rows, positions = rows.take(order), positions[order]
            steps = np.diff(positions)
        part = cls(rows, positions)
        return part if np.all(steps > 0) else without_repetitions([part])[0]

    def between(self, low: int, high: int = LAST) -> "Part":
        """Return the rows whose position is at least `low` and below `high`."""
        first, last = (int(at) for at in np.searchsorted(self.positions, (low, high)))
        return Part(self.rows.slice(first, last - first), self.positions[first:last])

    def where(self, kept: Mask) -> "Part":
        """Return the rows that a mask selects."""
        return Part(self.rows.filter(pa.array(kept)), self.positions[kept])


def not_empty(parts: Sequence[Part]) -> list[Part]:
    """Return the parts that have rows."""
    return [part for part in parts if len(part.positions)]


def windows(parts: Sequence[Part], positions: Positions) -> Iterator[Part]:
    """Merge disjoint parts in windows; `positions` are all of theirs, sorted.

    A window copies only its own rows, which bounds memory and Arrow's 32-bit offsets.
    """
    lows = np.array([part.positions[0] for part in parts])
    highs = np.array([part.positions[-1] for part in parts])
    for start in range(0, len(positions), OUT_ROWS):
        window = positions[start : start + OUT_ROWS]
        low, high = int(window[0]), int(window[-1]) + 1
        touched = np.flatnonzero((lows < high) & (highs >= low)).tolist()
        merged = _merged(not_empty([parts[at].between(low, high) for at in touched]))
        assert len(merged.positions) == len(window)
        yield merged


def _merged(parts: Sequence[Part]) -> Part:
    if len(parts) == 1:
        return parts[0]
    table = pa.Table.from_batches([part.rows for part in parts]).combine_chunks()
    positions = np.concatenate([part.positions for part in parts])
    order = np.argsort(positions, kind="stable")
    (rows,) = table.to_batches()
    return Part(rows.take(order), positions[order])


def leading(positions: Positions, first: int) -> int:
    """Return how many of these ascending positions are `first`, `first + 1`, …."""
    # Ascending and distinct: position minus index never falls, so bisection finds the end.
    if not len(positions) or positions[0] != first:
        return 0
    return int(np.searchsorted(positions - np.arange(len(positions)), first, side="right"))


def without_repetitions(parts: Sequence[Part]) -> list[Part]:
    """Keep the first row of each position; raise an error if two events share one."""
    positions = np.concatenate([part.positions for part in parts])
    order = np.argsort(positions, kind="stable")
    again = np.flatnonzero(positions[order][1:] == positions[order][:-1])
    events = pa.chunked_array([part.rows.column("event") for part in parts])
    firsts = events.take(order[again]).to_pylist()
    seconds = events.take(order[again + 1]).to_pylist()
    for at, first, second in zip(again, firsts, seconds, strict=True):
        if first != second:
            raise SparkFault(
                "POSITION_CONFLICT",
                f"two events at position {positions[order[at]]:,}: {first!r} and {second!r}. The "
                "topics are not mutually ordered: order only topics that one client subscribes "
                "to together, from their first common cut (ensue.spark.common_cut)",
            )
    kept = np.ones(len(positions), dtype=np.bool_)
    kept[order[again + 1]] = False
    ends = np.cumsum([len(part.positions) for part in parts])[:-1]
    return [part.where(some) for part, some in zip(parts, np.split(kept, ends), strict=True)]


def micros(rows: pa.RecordBatch) -> Any:
    """Return publication times in microseconds; null if unknown."""
    return rows.column("published_at").cast(pa.int64())


def voids(rows: pa.RecordBatch) -> Mask:
    """Return which rows are voids; none without a column `value`."""
    if "value" not in rows.schema.names or rows.column("value").null_count == 0:
        return np.zeros(rows.num_rows, dtype=np.bool_)
    return np.asarray(pc.is_null(rows.column("value")))


def highest_offsets(rows: pa.RecordBatch) -> Iterator[tuple[str, int]]:
    """Return the highest offset of each topic."""
    found = pa.Table.from_batches([rows.select(["topic", "offset"])])
    highest = found.group_by("topic", use_threads=False).aggregate([("offset", "max")])
    yield from zip(highest["topic"].to_pylist(), highest["offset_max"].to_pylist(), strict=True)
