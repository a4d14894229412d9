"""Hold-back queue of a stream in total order, without Spark and without a clock.

**Task.** Positions of a total order are the integers 1, 2, 3, … without a gap, so an event is
released when every smaller position has been released: the frontier is the next missing integer.
Other events are held. The queue takes Arrow record batches in any order and returns Arrow record
batches in order, with a column `verdict`. Between two micro-batches its whole state is one blob
(`dump`).

**Guarantee.** Each position is released at most once, even if rows are repeated. Which rows are
released in a micro-batch, and with which verdict, depends on the rows of that micro-batch and on
the state before it, not on how the rows are divided into record batches or in which order these
arrive: limits apply in `finish` alone. So a micro-batch that is run again yields the same rows.

**Gaps.** Two limits make the queue skip missing positions: an event held for longer than
`time_to_live_us`, and more than `held_max` rows held at the end of a micro-batch. Age is the
difference between an event's `published_at` and the newest one seen, never wall-clock time. The
first event shown after a gap has the verdict `after_gap`. A skipped position that arrives later is
released at once, as `out_of_order`. Without a time to live the queue skips nothing, and more than
`held_max` held rows are an error: waiting loses no event, but memory is limited.

**Voids** (rows whose `value` is null) take their position. They are released only on request.

**Events before the cut** have no position (null). They are released at once, as often as they
arrive, with the verdict `before_cut`.

**Two events at one position** mean that the topics are not mutually ordered, or not of one log.
That raises an error with both events, if both are at hand. If one was released before, the offsets
distinguish a repetition (its topic is past that offset) from a conflict.

HAZARD: within one micro-batch `held_max` does not apply: a micro-batch of twenty million rows whose
first row comes last is held in memory whole. Bound micro-batches at the source.

HAZARD: only the newest `record_batches.RANGES_MAX` ranges of skipped positions are retained. Below
the dropped ranges a late row and a repeated row look the same: both are released as `out_of_order`,
each time they arrive.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ensue.core.errors import ConfigurationError, LimitReached
from ensue.spark.conditions import SparkFault
from ensue.spark.record_batches import (
    GivenUp,
    Mask,
    Part,
    Positions,
    from_bytes,
    highest_offsets,
    leading,
    micros,
    not_empty,
    to_bytes,
    voids,
    windows,
    without_repetitions,
)

__all__ = ["HoldBack", "Limits", "MakeHoldBack", "TotalHoldBack"]

MERGE_ROWS = 262_144
"""New rows that are collected before the next search for rows to release; more if more is held."""

IN_ORDER, AFTER_GAP, OUT_OF_ORDER, VOID = "", "after_gap", "out_of_order", "void"
BEFORE_CUT = "before_cut"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of a hold-back queue: number of rows and time."""

    held_max: int
    """Rows that may stay held from one micro-batch to the next."""
    time_to_live_us: int | None = None
    """Time that an event waits before missing positions are skipped; None: no limit."""
    voids: bool = False
    """Whether voids are released too, with the verdict `void`."""


class HoldBack(Protocol):
    """Hold-back queue of one order; `add` and `finish` return released rows."""

    def add(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Take rows of the micro-batch, in any order."""
        ...

    def finish(self) -> Iterator[pa.RecordBatch]:
        """End the micro-batch and apply the limits."""
        ...

    def dump(self) -> bytes:
        """Return the whole state, for the queue of the next micro-batch."""
        ...


MakeHoldBack = Callable[[bytes | None], HoldBack]
"""Makes a queue from the previous state, None for the first. Spark pickles it."""


class _State(msgspec.Struct, kw_only=True):
    """State between micro-batches, apart from the held rows."""

    VERSION: ClassVar[int] = 1

    version: int = 1
    next: int = 1
    """The frontier: the smallest position neither released nor skipped."""
    newest_us: int | None = None
    """The newest `published_at` seen."""
    after_gap: bool = False
    """Whether the next event shown is the first after a gap."""
    offsets: dict[str, int] = {}
    """By topic: the offset after the highest one released."""
    given_up: list[tuple[int, int]] = []
    forgotten: int = 0


class TotalHoldBack:
    """Hold-back by position: releases an event after all smaller positions."""

    def __init__(self, limits: Limits, blob: bytes | None = None) -> None:
        self._limits = limits
        self._state, held = (_State(), []) if blob is None else _load(blob)
        self._given_up = GivenUp(self._state.given_up, self._state.forgotten)
        self._held = [Part.of(rows) for rows in held]
        """Rows that wait for smaller positions."""
        self._fresh: list[Part] = []
        """New rows that no search for rows to release has seen."""
        self._fresh_count = 0

    @property
    def held_count(self) -> int:
        """Number of rows known to wait for smaller positions."""
        return sum(len(part.positions) for part in self._held)

    def add(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Take rows of the micro-batch, in any order; return some that are released."""
        if batch.column("position").null_count:
            yield from self._before_cut(batch.filter(pc.is_null(batch.column("position"))))
            batch = batch.filter(pc.is_valid(batch.column("position")))
        if batch.num_rows == 0:
            return
        if self._held:
            _same_columns(self._held[0].rows.schema, batch.schema)
        state = self._state
        newest_us = pc.max(micros(batch)).as_py()
        if newest_us is not None:
            state.newest_us = max(newest_us, state.newest_us or newest_us)
        part = Part.of(batch)
        if part.positions[0] < state.next:
            yield from self._late(part.between(0, state.next))
            part = part.between(state.next)
            if not len(part.positions):
                return
        waiting = self._held or self._fresh
        if not waiting and leading(part.positions, state.next) == len(part.positions):
            yield from self._release([part], part.positions)
            return
        self._fresh.append(part)
        self._fresh_count += len(part.positions)
        # Collecting at least as many rows as are held keeps the total work at O(n log n).
        if self._fresh_count >= max(MERGE_ROWS, self.held_count):
            yield from self._settle()

    def finish(self) -> Iterator[pa.RecordBatch]:
        """End the micro-batch: return the last released rows, and skip overdue gaps."""
        yield from self._settle()
        parts = self._held
        if not parts:
            return
        positions = _sorted_positions(parts)
        overdue = positions[: self._overdue_count(parts, positions)]
        if not len(overdue):
            return
        before = np.concatenate(([self._state.next - 1], overdue))
        gaps = np.diff(before) > 1
        for at in np.flatnonzero(gaps):
            self._given_up.add(int(before[at]) + 1, int(overdue[at]) - 1)
        end = int(overdue[-1]) + 1
        self._held = not_empty([part.between(end) for part in parts])
        leaving = not_empty([part.between(0, end) for part in parts])
        yield from self._release(leaving, overdue, overdue[gaps])

    def dump(self) -> bytes:
        """Return the whole state: a JSON header, then the held rows, compressed."""
        assert not self._fresh, "finish a micro-batch before its state is saved"
        self._state.given_up = self._given_up.ranges
        self._state.forgotten = self._given_up.forgotten
        head = msgspec.json.encode(self._state)
        blob = len(head).to_bytes(4, "big") + head
        if self._held:
            held = windows(self._held, _sorted_positions(self._held))
            blob += to_bytes([part.rows for part in held], compression="zstd")
        return blob

    def _settle(self) -> Iterator[pa.RecordBatch]:
        """Release rows that follow the frontier without a gap; hold the rest."""
        parts = [*self._held, *self._fresh]
        self._fresh, self._fresh_count = [], 0
        if not parts:
            return
        positions = _sorted_positions(parts)
        if np.any(positions[1:] == positions[:-1]):
            parts = not_empty(without_repetitions(parts))
            positions = np.unique(positions)
        ready = positions[: leading(positions, self._state.next)]
        end = self._state.next + len(ready)
        self._held = not_empty([part.between(end) for part in parts])
        if len(ready):
            leaving = not_empty([part.between(0, end) for part in parts])
            yield from self._release(leaving, ready)

    def _overdue_count(self, parts: Sequence[Part], positions: Positions) -> int:
        """Return how many of the held positions, smallest first, are overdue."""
        limits, count = self._limits, len(positions)
        if limits.time_to_live_us is None:
            if count > limits.held_max:
                raise LimitReached(
                    f"[HELD_MAX_REACHED] {count:,} events wait for position {self._state.next:,}, "
                    f"which is missing; held_max is {limits.held_max:,}: raise it, or set a "
                    "time_to_live after which a gap is skipped and reported",
                    limit="held_max",
                    value=limits.held_max,
                )
            return 0
        overdue = max(0, count - limits.held_max)
        if self._state.newest_us is not None:
            eldest_us = self._state.newest_us - limits.time_to_live_us
            for part in parts:
                published_us = np.asarray(micros(part.rows).fill_null(eldest_us))
                expired = part.positions[published_us < eldest_us]
                if len(expired):
                    through = np.searchsorted(positions, expired[-1], side="right")
                    overdue = max(overdue, int(through))
        if overdue == 0:
            return 0
        # Rows that follow without a gap need not wait either.
        return overdue + leading(positions[overdue:], int(positions[overdue - 1]) + 1)

    def _release(
        self, parts: Sequence[Part], positions: Positions, gaps: Positions | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Put the rows of these parts in order and move the frontier past them.

        `gaps` are the positions right after skipped ones.
        """
        self._state.next = int(positions[-1]) + 1
        for window in windows(parts, positions):
            after = [] if gaps is None else np.flatnonzero(np.isin(window.positions, gaps)).tolist()
            yield from self._shown(window.rows, after)

    def _shown(self, rows: pa.RecordBatch, after: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """Add verdicts to ordered rows; `after` lists the indices right after a gap."""
        void = voids(rows)
        shown = np.flatnonzero(~void)
        verdicts: list[str] | None = None
        if self._state.after_gap or after or len(shown) < len(void):
            verdicts = [VOID if hidden else IN_ORDER for hidden in void]
            for at in [0, *after] if self._state.after_gap else after:
                first = int(np.searchsorted(shown, at))
                # If no row after the gap is shown, a later micro-batch has the first event.
                self._state.after_gap = first == len(shown)
                if first < len(shown):
                    verdicts[shown[first]] = AFTER_GAP
        yield from self._judged(rows, void, verdicts)

    def _before_cut(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Release rows before the cut."""
        void = voids(rows)
        yield from self._verdicts_added(rows, void, [VOID if v else BEFORE_CUT for v in void])

    def _late(self, part: Part) -> Iterator[pa.RecordBatch]:
        """Release late rows of skipped positions; drop repetitions."""
        known = self._given_up.among(part.positions)
        repeated = part.where(~known).rows.select(["topic", "offset", "event", "position"])
        for topic, offset, event, position in zip(
            *(column.to_pylist() for column in repeated.columns), strict=True
        ):
            if offset >= self._state.offsets.get(topic, 0):
                raise SparkFault(
                    "POSITION_CONFLICT",
                    f"two events at position {position:,}: {event!r} came after another one was "
                    "released. The topics are not mutually ordered: order only topics that one "
                    "client subscribes to together, from their first common cut "
                    "(ensue.spark.common_cut); if the servers have causal = false, order the "
                    "log by='total-noncausal'",
                )
        late = part.where(known)
        for position in late.positions:
            self._given_up.remove(int(position))
        void = voids(late.rows)
        yield from self._judged(late.rows, void, [VOID if v else OUT_OF_ORDER for v in void])

    def _judged(
        self, rows: pa.RecordBatch, void: Mask, verdicts: list[str] | None
    ) -> Iterator[pa.RecordBatch]:
        """Return released rows with their verdicts, voids only on request."""
        for topic, offset in highest_offsets(rows):
            self._state.offsets[topic] = max(offset + 1, self._state.offsets.get(topic, 0))
        yield from self._verdicts_added(rows, void, verdicts)

    def _verdicts_added(
        self, rows: pa.RecordBatch, void: Mask, verdicts: list[str] | None
    ) -> Iterator[pa.RecordBatch]:
        column = (
            pa.repeat(IN_ORDER, rows.num_rows)
            if verdicts is None
            else pa.array(verdicts, pa.string())
        )
        rows = rows.append_column("verdict", column)
        if void.any() and not self._limits.voids:
            rows = rows.filter(pa.array(~void))
        if rows.num_rows:
            yield rows


def _sorted_positions(parts: Sequence[Part]) -> Positions:
    return np.sort(np.concatenate([part.positions for part in parts]), kind="stable")


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


def _same_columns(held: pa.Schema, came: pa.Schema) -> None:
    if not held.equals(came):
        changed = sorted({field.name for field in set(held) ^ set(came)})
        raise ConfigurationError(
            f"columns {changed} differ from those of the events held in the checkpoint: keep the "
            "same columns, or use a new checkpoint"
        )
