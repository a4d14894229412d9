"""Hold-back queue of a stream in total order: no Spark in here, no clock.

**What it does.** Positions of a total order are the integers 1, 2, 3, … without a gap, so an event
may leave when every smaller position has left: the frontier is the next missing integer. What may
not leave yet is held. The object takes Arrow record batches in any order and returns Arrow record
batches in order, with a column `verdict` added; between two micro-batches its whole state is one
blob (`dump`).

**What it guarantees.** Each position leaves at most once, whatever is repeated. Which rows leave in
a micro-batch, and with which verdict, depends on the rows of that micro-batch and the state before
it, not on how they were cut into record batches or in which order these came: limits are applied in
`finish` alone. So a micro-batch that is run again yields the same rows.

**Gaps.** Two limits can force it to go on without a position: an event that was held for longer
than `time_to_live_us`, and more than `held_max` rows held at the end of a micro-batch. Age is
measured between the events' own `published_at` and the newest one seen, never by a clock on the
wall. The first event shown after a gap has the verdict `after_gap`. A position that was given up
and turns up later leaves at once, as `out_of_order`. Without a time to live nothing is ever given
up, and more than `held_max` rows are an error: waiting is then the only thing that loses nothing,
and memory is not unlimited.

**Voids** (rows whose `value` is null) take their position; they leave only if asked for.

**Before the cut** events have no position (null). They leave at once, each time that they come,
with the verdict `before_cut`.

**Two events at one position** mean that the topics are not mutually ordered, or not part of one
log: that raises, naming both where both are at hand. Where the other one has left already, the
offsets distinguish a repetition (its topic is past that offset) from a conflict.

HAZARD: within one micro-batch `held_max` does not apply: a micro-batch of twenty million rows whose
first row comes last is held in memory whole. Bound micro-batches at the source.

HAZARD: of the ranges given up only the newest `record_batches.RANGES_MAX` are remembered. Below the
forgotten ones a late row looks like a repeated one; it leaves as `out_of_order` each time it comes.
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
"""So many new rows are gathered before looking at what may leave; more if more is held."""

IN_ORDER, AFTER_GAP, OUT_OF_ORDER, VOID = "", "after_gap", "out_of_order", "void"
BEFORE_CUT = "before_cut"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much and how long to wait."""

    held_max: int
    """Rows that may be held from one micro-batch to the next."""
    time_to_live_us: int | None = None
    """How long an event is held before what it waits for is given up; None for ever."""
    voids: bool = False
    """Whether voids leave too, with the verdict `void`."""


class HoldBack(Protocol):
    """Hold-back queue of one order; `add` and `finish` return rows that leave."""

    def add(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Take rows of the micro-batch, in any order."""
        ...

    def finish(self) -> Iterator[pa.RecordBatch]:
        """End the micro-batch: apply the limits."""
        ...

    def dump(self) -> bytes:
        """Return all of the state, to be given to the next object."""
        ...


MakeHoldBack = Callable[[bytes | None], HoldBack]
"""Makes one from the state before, None at the very beginning. Spark must be able to pickle it."""


class _State(msgspec.Struct, kw_only=True):
    """What survives a micro-batch, apart from the held rows."""

    VERSION: ClassVar[int] = 1

    version: int = 1
    next: int = 1
    """The frontier: the smallest position that has neither left nor been given up."""
    newest_us: int | None = None
    """The newest `published_at` seen."""
    after_gap: bool = False
    """Whether the next event shown is the first one after a gap."""
    offsets: dict[str, int] = {}
    """For each topic the offset after the highest one that left."""
    given_up: list[tuple[int, int]] = []
    forgotten: int = 0


class TotalHoldBack:
    """Hold-back by position: an event leaves when all smaller positions have left."""

    def __init__(self, limits: Limits, blob: bytes | None = None) -> None:
        self._limits = limits
        self._state, held = (_State(), []) if blob is None else _load(blob)
        self._given_up = GivenUp(self._state.given_up, self._state.forgotten)
        self._held = [Part.of(rows) for rows in held]
        """Looked at already: nothing of it may leave yet."""
        self._fresh: list[Part] = []
        """Not looked at yet."""
        self._fresh_count = 0

    @property
    def held_count(self) -> int:
        """How many rows wait, of those that were looked at."""
        return sum(len(part.positions) for part in self._held)

    def add(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Take rows of the micro-batch, in any order; return some that leave."""
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
            yield from self._leave([part], part.positions)
            return
        self._fresh.append(part)
        self._fresh_count += len(part.positions)
        # Waiting for at least as much as is held keeps the whole work linear but for a logarithm.
        if self._fresh_count >= max(MERGE_ROWS, self.held_count):
            yield from self._settle()

    def finish(self) -> Iterator[pa.RecordBatch]:
        """End the micro-batch: return the rest that leaves, and give up what is overdue."""
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
        yield from self._leave(leaving, overdue, overdue[gaps])

    def dump(self) -> bytes:
        """Return all of the state: what is held, compressed, after a few numbers as JSON."""
        assert not self._fresh, "a micro-batch must be finished before its state is kept"
        self._state.given_up = self._given_up.ranges
        self._state.forgotten = self._given_up.forgotten
        head = msgspec.json.encode(self._state)
        blob = len(head).to_bytes(4, "big") + head
        if self._held:
            held = windows(self._held, _sorted_positions(self._held))
            blob += to_bytes([part.rows for part in held], compression="zstd")
        return blob

    def _settle(self) -> Iterator[pa.RecordBatch]:
        """Let leave what follows the frontier without a gap; hold the rest."""
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
            yield from self._leave(leaving, ready)

    def _overdue_count(self, parts: Sequence[Part], positions: Positions) -> int:
        """Return how many of the held positions, from the smallest on, may wait no longer."""
        limits, count = self._limits, len(positions)
        if limits.time_to_live_us is None:
            if count > limits.held_max:
                raise LimitReached(
                    f"[HELD_MAX_REACHED] {count:,} events wait for position {self._state.next:,}, "
                    f"which has not come; held_max is {limits.held_max:,}. Raise it, or set a "
                    "time_to_live after which a gap is given up and reported",
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
        # What follows without a gap waits for nothing any more.
        return overdue + leading(positions[overdue:], int(positions[overdue - 1]) + 1)

    def _leave(
        self, parts: Sequence[Part], positions: Positions, gaps: Positions | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Put the rows of these parts in order and move the frontier behind them.

        `gaps` are the positions right before which others were given up.
        """
        self._state.next = int(positions[-1]) + 1
        for window in windows(parts, positions):
            after = [] if gaps is None else np.flatnonzero(np.isin(window.positions, gaps)).tolist()
            yield from self._shown(window.rows, after)

    def _shown(self, rows: pa.RecordBatch, after: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """Add verdicts to ordered rows; `after` holds the indices right after a gap."""
        void = voids(rows)
        shown = np.flatnonzero(~void)
        verdicts: list[str] | None = None
        if self._state.after_gap or after or len(shown) < len(void):
            verdicts = [VOID if hidden else IN_ORDER for hidden in void]
            for at in [0, *after] if self._state.after_gap else after:
                first = int(np.searchsorted(shown, at))
                # Where nothing is shown after the gap, the next micro-batch has the first event.
                self._state.after_gap = first == len(shown)
                if first < len(shown):
                    verdicts[shown[first]] = AFTER_GAP
        yield from self._judged(rows, void, verdicts)

    def _before_cut(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Let leave what lies before the cut."""
        void = voids(rows)
        yield from self._verdicts_added(rows, void, [VOID if v else BEFORE_CUT for v in void])

    def _late(self, part: Part) -> Iterator[pa.RecordBatch]:
        """Let leave what was given up and turned up after all; drop repetitions."""
        known = self._given_up.among(part.positions)
        repeated = part.where(~known).rows.select(["topic", "offset", "event", "position"])
        for topic, offset, event, position in zip(
            *(column.to_pylist() for column in repeated.columns), strict=True
        ):
            if offset >= self._state.offsets.get(topic, 0):
                raise SparkFault(
                    "POSITION_CONFLICT",
                    f"two events at position {position:,}: {event!r} came after another one of "
                    "that position had left. The topics are not mutually ordered: order only "
                    "topics that one client subscribes together, from their first common cut on "
                    "(ensue.spark.common_cut)",
                )
        late = part.where(known)
        for position in late.positions:
            self._given_up.remove(int(position))
        void = voids(late.rows)
        yield from self._judged(late.rows, void, [VOID if v else OUT_OF_ORDER for v in void])

    def _judged(
        self, rows: pa.RecordBatch, void: Mask, verdicts: list[str] | None
    ) -> Iterator[pa.RecordBatch]:
        """Return rows that leave with their verdicts, without the voids unless asked for."""
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
            f"{_State.VERSION}: finish the query with the release that started it, or start afresh"
        )
    return state, from_bytes(blob[end:]) if len(blob) > end else []


def _same_columns(held: pa.Schema, came: pa.Schema) -> None:
    if not held.equals(came):
        changed = sorted({field.name for field in set(held) ^ set(came)})
        raise ConfigurationError(
            f"columns {changed} are not those of the events held in the checkpoint: go on with the "
            "same columns, or start with a new checkpoint"
        )
