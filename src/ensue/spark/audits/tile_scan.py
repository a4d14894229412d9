"""Scan each tile, and check that the fragments of a subscriber fit together.

One group of packed rows is either a tile, which is scanned for doubts, or the fragment ranges of
one run. The ranges of each subscriber must follow each other: steps must not overlap (otherwise the
input has to be sorted first), and no fragment may lie more than one unit behind an earlier one
(otherwise units are too small for the disorder of deliveries).
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from ensue.checkers.completeness import Terms
from ensue.spark.audits import delivery_scan
from ensue.spark.audits.common_order import Numbers
from ensue.spark.audits.facts import Facts
from ensue.spark.audits.tile_check import Deliveries, Doubts, Publications, Tile, find_doubts

__all__ = ["FOUND", "Break", "Found", "read_found", "scan_group"]

FOUND = t.StructType(
    [
        t.StructField("run", t.IntegerType()),
        t.StructField("tile", t.LongType()),
        t.StructField("what", t.StringType()),
        t.StructField("totals", t.ArrayType(t.LongType())),
        t.StructField("codes", t.BinaryType()),
        t.StructField("more", t.BinaryType()),
        t.StructField("last", t.BinaryType()),
    ]
)
_ARROW = to_arrow_schema(FOUND)
_NOTHING = np.empty(0, dtype=np.int64)
TOTALS = ("events", "deliveries", "uninvited", "owed", "lost", "in_doubt")


Break = tuple[int, int, int, int]
"""Two adjacent deliveries: step, next step, position, next position."""


@dataclass(slots=True)
class Found:
    """Findings of all tasks, collected by the driver."""

    totals: dict[int, dict[str, int]] = field(default_factory=dict)
    """By run, the counts named in `TOTALS`."""
    doubts: dict[tuple[int, int], Numbers] = field(default_factory=dict)
    """By run and tile: codes."""
    names: dict[tuple[int, int], Numbers] = field(default_factory=dict)
    """By run and tile: hashes of ids."""
    sampled: set[int] = field(default_factory=set)
    """Runs with more doubts than were retained."""
    repeated_steps: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By run: a subscriber and a step that two of its rows have."""
    strays: list[tuple[int, int]] = field(default_factory=list)
    """Subscriber and step of deliveries without a code."""
    named_strays: list[tuple[str, str | None, bool]] = field(default_factory=list)
    """The same from files: run, event, and whether the row lacks a label."""
    stray_count: int = 0
    """Number of all deliveries without a code; fragments report only some."""
    breaks: list[tuple[int, Break]] = field(default_factory=list)
    """Subscriber, and two adjacent deliveries whose positions are not consecutive."""
    many_breaks: set[int] = field(default_factory=set)
    """Subscribers with more breaks than were reported."""
    overlapping: set[int] = field(default_factory=set)
    """Runs in which a subscriber's rows are not sorted by step."""
    torn: set[int] = field(default_factory=set)
    """Runs whose units are too small."""
    outliers: dict[int, tuple[Numbers, Numbers, Numbers]] = field(default_factory=dict)
    """By run: codes, and the first and last tile of each."""


def scan_group(table: pa.Table, facts: Facts, terms: Terms, rules: frozenset[str]) -> pa.Table:
    """Scan one group of packed rows."""
    key = table.column("key")[0].as_py()
    rows = (
        _run_rows(table, -1 - key, facts)
        if key < 0
        else _tile_rows(table, key, facts, terms, rules)
    )
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(_ARROW)
    arrays = [
        pa.array(values, type=field.type) for values, field in zip(columns, _ARROW, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=_ARROW)


Row = tuple[int, int, str, list[int], bytes | None, bytes | None, bytes | None]


def _row(
    run: int,
    tile: int,
    what: str,
    *,
    totals: list[int] | None = None,
    codes: Numbers = _NOTHING,
    more: Numbers = _NOTHING,
    last: Numbers = _NOTHING,
) -> Row:
    return run, tile, what, totals or [], codes.tobytes(), more.tobytes(), last.tobytes()


def _tile_rows(
    table: pa.Table, key: int, facts: Facts, terms: Terms, rules: frozenset[str]
) -> list[Row]:
    run, tile = key >> delivery_scan.TILE_BITS, key & ((1 << delivery_scan.TILE_BITS) - 1)
    packed = _unpack(table)
    doubts = find_doubts(packed, facts.runs[run], facts.lanes, terms, rules)
    totals = [doubts.events, 0, 0, doubts.owed, doubts.lost, doubts.in_doubt]
    rows = [_row(run, tile, "totals", totals=totals)]
    if doubts.whole:
        doubts.codes.update(packed.published.codes.tolist())
        if packed.published.names is not None:
            doubts.names.update(packed.published.names.tolist())
    if doubts.codes or doubts.names:
        rows.append(_doubt_row(run, tile, doubts))
    if doubts.sampled:
        rows.append(_row(run, tile, "sampled"))
    for subscriber, step in doubts.repeated_steps[:1]:
        rows.append(_row(run, tile, "steps", totals=[subscriber, step]))
    return rows


def _doubt_row(run: int, tile: int, doubts: Doubts) -> Row:
    codes, names = (
        np.array(sorted(found), dtype=np.int64) for found in (doubts.codes, doubts.names)
    )
    return _row(run, tile, "doubts", codes=codes, more=names)


def _unpack(table: pa.Table) -> Tile:
    """Assemble a tile from its packed rows."""
    rows = table.to_pylist()
    kinds = (delivery_scan.PUBLISHED, delivery_scan.SUBMITTED)
    published = [row for row in rows if row["kind"] in kinds]
    submitted = [row["kind"] == delivery_scan.SUBMITTED for row in published]
    voids = [row for row in rows if row["kind"] == delivery_scan.VOID]
    named = any(row["names"] is not None for row in rows)
    half = [_numbers(row, "more").reshape(2, -1) for row in published]
    publications = Publications(
        codes=_joined(_numbers(row, "codes") for row in published),
        steps=_joined(_numbers(row, "steps") for row in published),
        nodes=_joined(both[0] for both in half),
        times=_joined(both[1] for both in half),
        home=_repeated(published, [row["home"] for row in published]),
        submitted=_repeated(published, submitted) if any(submitted) else None,
        names=_joined(_numbers(row, "names") for row in published) if named else None,
    )
    pieces: dict[int, list[dict[str, bytes]]] = {}
    for row in rows:
        if row["kind"] == delivery_scan.DELIVERED:
            pieces.setdefault(row["owner"], []).append(row)
    return Tile(
        published=publications,
        delivered={owner: _deliveries(ones, named) for owner, ones in sorted(pieces.items())},
        void_codes=_joined(_numbers(row, "codes") for row in voids),
        void_nodes=_joined(_numbers(row, "more").reshape(2, -1)[0] for row in voids),
    )


def _deliveries(pieces: list[dict[str, bytes]], named: bool) -> Deliveries:
    steps = _joined(delivery_scan.widened(row["steps"], len(row["codes"]) // 8) for row in pieces)
    codes = _joined(_numbers(row, "codes") for row in pieces)
    tagged = np.concatenate([_flags(row) for row in pieces])
    names = _joined(_numbers(row, "names") for row in pieces) if named else None
    if not np.all(np.diff(steps) > 0):
        order = np.argsort(steps, kind="stable")
        steps, codes, tagged = steps[order], codes[order], tagged[order]
        names = None if names is None else names[order]
    return Deliveries(steps=steps, codes=codes, tagged=tagged, names=names)


def _numbers(row: dict[str, bytes], column: str) -> Numbers:
    return np.frombuffer(row[column] or b"", dtype=np.int64)


def _flags(row: dict[str, bytes]) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    if row["more"] is None:
        return np.zeros(len(row["codes"]) // 8, dtype=np.bool_)
    return np.frombuffer(row["more"], dtype=np.bool_)


def _repeated(
    rows: list[dict[str, bytes]], flags: list[bool]
) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    """Return the flag of each row once for each of its events."""
    counts = [len(row["codes"]) // 8 for row in rows]
    return np.repeat(np.array(flags, dtype=np.bool_), counts)


def _joined(arrays: Iterable[Numbers]) -> Numbers:
    return np.concatenate([_NOTHING, *arrays])


def _run_rows(table: pa.Table, run: int, facts: Facts) -> list[Row]:
    """Compare the ranges of the fragments of each subscriber."""
    known = facts.runs[run].spans if run < len(facts.runs) else {}
    rows: list[Row] = []
    fragments: dict[int, list[tuple[int, int, int, int, int]]] = {}
    positions: dict[int, list[Numbers]] = {}
    for row in table.to_pylist():
        if row["kind"] == delivery_scan.POSITIONS:
            positions.setdefault(row["owner"], []).append(_numbers(row, "codes").reshape(4, -1))
            if _numbers(row, "names").any():
                rows.append(_row(run, -1, "breaks", totals=[row["owner"]]))
        elif row["kind"] == delivery_scan.STRAYS:
            count = _numbers(row, "names").tolist()
            rows.append((run, -1, "strays", count, row["codes"], row["steps"], row["more"]))
        elif row["kind"] == delivery_scan.OUTLIERS:
            codes, first, last = (_numbers(row, name) for name in ("codes", "steps", "more"))
            rows.append(_row(run, -1, "outliers", codes=codes, more=first, last=last))
        else:
            first_step, last_step, low, high, count = _numbers(row, "steps").tolist()
            fragments.setdefault(row["owner"], []).append((first_step, last_step, low, high, count))
    rows += [
        _row(run, -1, "breaks", totals=[owner, *two])
        for owner, stretches in positions.items()
        for two in _breaks(stretches)
    ]
    deliveries = 0
    overlapping = torn = False
    for ones in fragments.values():
        reached_step, reached_unit = np.iinfo(np.int64).min, 0
        for first_step, last_step, low, high, count in sorted(ones):
            overlapping = overlapping or first_step <= reached_step
            torn = torn or low < reached_unit - 1
            reached_step, reached_unit = max(reached_step, last_step), max(reached_unit, high)
            deliveries += count
    uninvited = sum(owner not in known for owner in fragments)
    totals = [0, deliveries, uninvited, 0, 0, 0]
    rows.append(_row(run, -1, "totals", totals=totals))
    for flag, what in ((overlapping, "overlapping"), (torn, "torn")):
        if flag:
            rows.append(_row(run, -1, what))
    return rows


def _breaks(stretches: list[Numbers]) -> list[Break]:
    """Return the breaks within and between the fragments of a subscriber."""
    stretches.sort(key=lambda pairs: int(pairs[0, 0]))
    inside = [two for pairs in stretches for two in pairs[:, 1:].T.tolist()]
    between = [
        (int(one[1, 0]), int(other[0, 0]), int(one[3, 0]), int(other[2, 0]))
        for one, other in pairwise(stretches)
    ]
    return [*map(tuple, inside), *(two for two in between if two[3] != two[2] + 1)]


def _read_strays(row: dict[str, Any], found: Found) -> None:
    found.stray_count += row["totals"][0]
    if row["last"]:
        found.named_strays += json.loads(row["last"])
    else:
        owners, steps = _numbers(row, "codes").tolist(), _numbers(row, "more").tolist()
        found.strays += zip(owners, steps, strict=True)


def _read_break(row: dict[str, Any], found: Found) -> None:
    """Record one break, or that its subscriber has more than were reported."""
    owner, *two = row["totals"]
    if not two:
        found.many_breaks.add(owner)
        return
    step, next_step, position, next_position = two
    found.breaks.append((owner, (step, next_step, position, next_position)))


def read_found(table: pa.Table) -> Found:
    """Merge the findings of all tasks."""
    found = Found()
    outliers: dict[int, list[tuple[Numbers, Numbers, Numbers]]] = {}
    for row in table.to_pylist():
        run, what = row["run"], row["what"]
        if what == "strays":
            _read_strays(row, found)
            continue
        if what == "breaks":
            _read_break(row, found)
            continue
        codes, more, last = (_numbers(row, name) for name in ("codes", "more", "last"))
        if what == "totals":
            known = found.totals.setdefault(run, dict.fromkeys(TOTALS, 0))
            for name, count in zip(TOTALS, row["totals"], strict=True):
                known[name] += count
        elif what == "doubts":
            found.doubts[run, row["tile"]] = codes
            found.names[run, row["tile"]] = more
        elif what == "steps":
            found.repeated_steps.setdefault(run, (row["totals"][0], row["totals"][1]))
        elif what == "outliers":
            outliers.setdefault(run, []).append((codes, more, last))
        else:
            flagged = {
                "sampled": found.sampled,
                "overlapping": found.overlapping,
                "torn": found.torn,
            }
            flagged[what].add(run)
    for run, many in outliers.items():
        codes, first, last = (_joined(each) for each in zip(*many, strict=True))
        found.outliers[run] = (codes, first, last)
    return found
