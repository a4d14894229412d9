"""Read deliveries and publications once, and pack them by tile.

Rows do not travel between tasks one by one: a task packs one subscriber's deliveries of one tile
into a few arrays and sends them as bytes. Each *fragment* of the input is sorted here, unless it is
sorted by run, node and step already.

Two events share a tile only if their units are equal or adjacent. Events of other units have the
same order at all subscribers if no subscriber delivers an event more than one unit behind an
earlier delivery. A fragment checks that for its rows. Deliveries that break it are *outliers*: the
fragment reports them with the range of tiles that they span, and a second scan puts them into all
of these. `tile_scan` compares the ranges of steps and units of all fragments of a subscriber.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from ensue.spark.audits.common_order import Numbers
from ensue.spark.audits.facts import SEQ_MAX, Facts, UnitFinder, codes

__all__ = [
    "BREAKS_MAX",
    "DELIVERED",
    "FRAGMENT",
    "ODD",
    "OUTLIERS",
    "PACKED",
    "POSITIONS",
    "PUBLISHED",
    "STRAYS",
    "SUBMITTED",
    "TAGGED",
    "TILE_BITS",
    "UNPLACED",
    "VOID",
    "Columns",
    "Reach",
    "gathered",
    "narrowed",
    "pack_deliveries",
    "pack_publications",
    "widened",
]

Columns = dict[str, Numbers]

DELIVERED, PUBLISHED, VOID, FRAGMENT, OUTLIERS, STRAYS, POSITIONS, SUBMITTED = range(8)
"""Kinds of packed rows."""
TAGGED, ODD = 1, 2
"""Flags of a delivery: it is tagged with a verdict; its name or label has no code."""
TILE_BITS = 24
NARROWED_MIN = 2
"""Up to this many numbers the narrowed form is no shorter."""
UNPLACED = -(1 << 62)
"""Position of a delivery whose row has none."""
BREAKS_MAX = 1_000
"""Most breaks of positions that a fragment reports for one subscriber."""
STRAYS_MAX = 1_000
"""Most rows without a code that a fragment reports for one subscriber; it counts the others."""

PACKED = t.StructType(
    [
        t.StructField("key", t.LongType()),
        t.StructField("kind", t.IntegerType()),
        t.StructField("home", t.BooleanType()),
        t.StructField("owner", t.LongType()),
        t.StructField("codes", t.BinaryType()),
        t.StructField("steps", t.BinaryType()),
        t.StructField("more", t.BinaryType()),
        t.StructField("names", t.BinaryType()),
    ]
)
"""`key` is the run and the tile; if negative, the run alone. Arrays are little-endian int64. Steps
of deliveries are `narrowed`; flags are one byte each, null if none is set."""
_ARROW = to_arrow_schema(PACKED)


@dataclass(frozen=True, slots=True)
class Reach:
    """Events that belong to further tiles than their own, sorted by code."""

    codes: Numbers = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    first_tiles: Numbers = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    last_tiles: Numbers = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    def of(self, wanted: Numbers) -> tuple[npt.NDArray[np.bool_], Numbers, Numbers]:
        """Return which of these events have further tiles, and the first and last of them."""
        if not len(self.codes):
            nothing = np.zeros(len(wanted), dtype=np.bool_)
            return nothing, wanted, wanted
        found = np.searchsorted(self.codes, wanted)
        found[found == len(self.codes)] = 0
        return self.codes[found] == wanted, self.first_tiles[found], self.last_tiles[found]


class _Packer:
    """Collects packed rows."""

    def __init__(self, facts: Facts, reach: Reach) -> None:
        self.facts = facts
        self.reach = reach
        self.units = UnitFinder(facts.lanes)
        self._rows: list[tuple[object, ...]] = []

    def add(
        self,
        key: int,
        kind: int,
        *,
        home: bool = True,
        owner: int = 0,
        codes: Numbers | None = None,
        steps: npt.NDArray[np.generic] | None = None,
        more: npt.NDArray[np.generic] | None = None,
        names: Numbers | None = None,
    ) -> None:
        arrays = (None if one is None else one.tobytes() for one in (codes, steps, more, names))
        self._rows.append((key, kind, home, owner, *arrays))

    def take(self) -> Iterator[pa.RecordBatch]:
        rows, self._rows = self._rows, []
        if rows:
            columns = [
                pa.array(values, type=field.type)
                for values, field in zip(zip(*rows, strict=True), _ARROW, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=_ARROW)

    def tiles(self, event_codes: Numbers, units: Numbers) -> Iterator[tuple[int, bool, Numbers]]:
        """Yield each tile with its rows: its own first, then shared ones."""
        size = self.facts.tile_units
        own = units // size
        for tile, rows in _grouped(own):
            yield tile, True, rows
        shared = np.flatnonzero((own * size == units) & (units > 0))
        for tile, rows in _grouped(own[shared]):
            yield tile - 1, False, shared[rows]
        further, first, last = self.reach.of(event_codes)
        if further.any():
            for tile in range(int(first[further].min()), int(last[further].max()) + 1):
                at_home = (own == tile) | (units == (tile + 1) * size)
                rows = np.flatnonzero(further & (first <= tile) & (tile <= last) & ~at_home)
                if len(rows):
                    yield tile, False, rows


def _grouped(keys: Numbers) -> Iterator[tuple[int, Numbers]]:
    """Yield each key with its indices, ascending."""
    order = np.argsort(keys, kind="stable")
    cuts = np.flatnonzero(np.diff(keys[order])) + 1
    for places in np.split(order, cuts):
        if len(places):
            yield int(keys[places[0]]), places


def narrowed(numbers: Numbers) -> npt.NDArray[np.generic]:
    """Return numbers in half the bytes if they are close: the first, then offsets."""
    if len(numbers) <= NARROWED_MIN:
        return numbers
    offsets = numbers - numbers[0]
    narrow = offsets.astype(np.int32)
    if not np.array_equal(narrow, offsets):
        return numbers
    return np.concatenate([numbers[:1].view(np.int32), narrow])


def widened(data: bytes, count: int) -> Numbers:
    """Return the `count` numbers that `narrowed` packed."""
    if len(data) == 8 * count:
        return np.frombuffer(data, dtype=np.int64)
    first = np.frombuffer(data, dtype=np.int64, count=1)
    return first + np.frombuffer(data, dtype=np.int32, offset=8)


def gathered(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[Columns]:
    """Join batches into fragments of at least this many rows, one array per column."""
    held: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        held.append(batch)
        count += batch.num_rows
        if count >= rows:
            yield _arrays(held)
            held, count = [], 0
    if count:
        yield _arrays(held)


def _arrays(batches: list[pa.RecordBatch]) -> Columns:
    table = pa.Table.from_batches(batches)
    return {
        name: table.column(name).combine_chunks().fill_null(0).to_numpy(zero_copy_only=False)
        for name in table.column_names
    }


def _coded(rows: Columns, facts: Facts) -> tuple[Numbers, Numbers, npt.NDArray[np.bool_]]:
    """Return the lanes and codes of rows, and which rows have a code."""
    lanes = rows["lane_index"] if "lane_index" in rows else facts.lanes.index(rows["lane"])
    numbers = rows["seq"]
    good = (lanes >= 0) & (numbers >= 0) & (numbers <= SEQ_MAX) & ((rows["flags"] & ODD) == 0)
    return lanes, codes(np.where(good, lanes, 0), np.where(good, numbers, 0)), good


def pack_deliveries(
    fragments: Iterable[Columns],
    facts: Facts,
    reach: Reach,
    describe_strays: Callable[[Numbers], npt.NDArray[np.uint8]] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Pack the rows of deliveries.

    The columns are owner, lane or lane_index, seq, step, position, flags[, name].

    Rows without a code are reported by subscriber and step, or in the form of `describe_strays`. A
    row without a position has the position `UNPLACED`.
    """
    packer = _Packer(facts, reach)
    for fragment in fragments:
        rows = fragment
        _pack_positions(packer, rows)
        rows["lane"], rows["code"], good = _coded(rows, facts)
        if not good.all():
            every = np.flatnonzero(~good)
            some = [places[:STRAYS_MAX] for _, places in _grouped(rows["owner"][every])]
            strays, count = every[np.concatenate(some)], np.array([len(every)], dtype=np.int64)
            if describe_strays is None:
                owners, steps = rows["owner"][strays], rows["step"][strays]
                packer.add(-1, STRAYS, codes=owners, steps=steps, names=count)
            else:
                packer.add(-1, STRAYS, more=describe_strays(strays), names=count)
            rows = _chosen(rows, good)
        rows = _by_subscriber(rows)
        cuts = np.flatnonzero(np.diff(rows["owner"])) + 1
        for start, stop in pairwise([0, *cuts.tolist(), len(rows["owner"])]):
            if stop > start:
                _pack_subscriber(packer, _chosen(rows, slice(start, stop)))
        yield from packer.take()


def _pack_positions(packer: _Packer, fragment: Columns) -> None:
    """Pack breaks in positions, and the first and last row of each subscriber.

    A packed row holds pairs of deliveries: (step, next step, position, next position). The first
    pair is the fragment's first and last delivery; the others are adjacent deliveries.
    """
    rows = {name: fragment[name] for name in ("owner", "step", "position")}
    placed = rows["position"] != UNPLACED
    if not placed.all():
        rows = _chosen(rows, placed)
    rows = _by_subscriber(rows)
    owners, steps, positions = rows["owner"], rows["step"], rows["position"]
    cuts = np.flatnonzero(np.diff(owners)) + 1
    for start, stop in pairwise([0, *cuts.tolist(), len(owners)]):
        if stop == start:
            continue
        own = slice(start, stop)
        every = np.flatnonzero(np.diff(positions[own]) != 1) + start
        broken = every[:BREAKS_MAX]
        first, second = np.r_[start, broken], np.r_[stop - 1, broken + 1]
        pairs = np.stack([steps[first], steps[second], positions[first], positions[second]])
        unreported = np.array([len(every) - len(broken)], dtype=np.int64)
        packer.add(-1, POSITIONS, owner=int(owners[start]), codes=pairs, names=unreported)


def _chosen(rows: Columns, which: slice | npt.NDArray[np.generic]) -> Columns:
    return {name: values[which] for name, values in rows.items()}


def _by_subscriber(rows: Columns) -> Columns:
    """Sort rows by subscriber and step, unless sorted already."""
    owners, steps = rows["owner"], rows["step"]
    cuts = np.flatnonzero(np.diff(owners)) + 1
    rising = np.diff(steps) > 0
    rising[cuts - 1] = True
    apart = len(np.unique(owners[cuts])) == len(cuts) and owners[:1] not in owners[cuts]
    if rising.all() and apart:
        return rows
    return _chosen(rows, np.lexsort((steps, owners)))


def _pack_subscriber(packer: _Packer, rows: Columns) -> None:
    """Pack one subscriber's deliveries of one fragment, in step order."""
    facts = packer.facts
    run = int(facts.lanes.runs[rows["lane"][0]])
    owner, steps, event_codes = int(rows["owner"][0]), rows["step"], rows["code"]
    tagged = (rows["flags"] & TAGGED) != 0
    names = rows.get("name")
    units = np.zeros(len(steps), dtype=np.int64)
    if facts.runs[run].unit_count > 1:
        units = packer.units.of(event_codes)
    kept, furthest = _in_place(units)
    low, high = int(units[kept].min()), int(units[kept].max())
    ranges = np.array([steps[0], steps[-1], low, high, len(steps)], dtype=np.int64)
    packer.add(-1 - run, FRAGMENT, owner=owner, steps=ranges)
    outliers = np.flatnonzero(~kept)
    if len(outliers):
        tiles = np.stack([units[outliers], furthest[outliers]]) // facts.tile_units
        packer.add(
            -1 - run,
            OUTLIERS,
            codes=event_codes[outliers],
            steps=np.maximum(tiles.min(axis=0) - 1, 0),
            more=tiles.max(axis=0) + 1,
        )
    for tile, home, chosen in packer.tiles(event_codes, units):
        packer.add(
            (run << TILE_BITS) | tile,
            DELIVERED,
            home=home,
            owner=owner,
            codes=event_codes[chosen],
            steps=narrowed(steps[chosen]),
            more=tagged[chosen] if tagged.any() else None,
            names=None if names is None else names[chosen],
        )


def _in_place(units: Numbers) -> tuple[npt.NDArray[np.bool_], Numbers]:
    """Mark deliveries in sequence; return the unit expected at each place.

    No marked delivery is more than one unit behind an earlier marked one. In an almost sorted
    sequence, the i-th smallest unit is the one to expect at place i.
    """
    furthest = np.maximum.accumulate(units)
    if (furthest - units).max() <= 1:
        return np.ones(len(units), dtype=np.bool_), furthest
    expected = np.sort(units)
    kept = np.abs(units - expected) <= 1
    if not kept.any():
        kept[:] = units == np.median(units)
        kept[0] |= not kept.any()
    for _ in range(len(units)):
        reached = np.maximum.accumulate(np.where(kept, units, -1))
        behind = kept & (reached - units > 1)
        if not behind.any():
            break
        kept &= ~behind
    return kept, np.where(kept, units, np.maximum(reached, 0))


def pack_publications(
    fragments: Iterable[Columns], facts: Facts, reach: Reach
) -> Iterator[pa.RecordBatch]:
    """Pack publications and voids: the columns of deliveries, plus time and kind.

    The kind is `PUBLISHED`, `SUBMITTED` or `VOID`.
    """
    packer = _Packer(facts, reach)
    for fragment in fragments:
        fragment["lane"], fragment["code"], good = _coded(fragment, facts)
        rows = _chosen(fragment, good)
        runs, event_codes = facts.lanes.runs[rows["lane"]], rows["code"]
        many = np.array([run.unit_count > 1 for run in facts.runs], dtype=np.bool_)
        units = np.zeros(len(runs), dtype=np.int64)
        cut_up = many[runs] if len(runs) else np.zeros(0, dtype=np.bool_)
        units[cut_up] = packer.units.of(event_codes[cut_up])
        order = np.argsort(runs, kind="stable")
        cuts = np.flatnonzero(np.diff(runs[order])) + 1
        for chosen in np.split(order, cuts):
            if len(chosen):
                run = int(runs[chosen[0]])
                _pack_run(packer, run, _chosen(rows, chosen), units[chosen])
        yield from packer.take()


def _pack_run(packer: _Packer, run: int, rows: Columns, units: Numbers) -> None:
    kinds, event_codes = rows["kind"], rows["code"]
    names = rows.get("name")
    for tile, home, chosen in packer.tiles(event_codes, units):
        key = (run << TILE_BITS) | tile
        for kind in (PUBLISHED, SUBMITTED, VOID):
            mine = chosen[kinds[chosen] == kind]
            if len(mine):
                nodes_and_times = np.concatenate([rows["owner"][mine], rows["time"][mine]])
                packer.add(
                    key,
                    kind,
                    home=home,
                    codes=event_codes[mine],
                    steps=rows["step"][mine],
                    more=nodes_and_times,
                    names=None if names is None else names[mine],
                )
