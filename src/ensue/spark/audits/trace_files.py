"""Read the Parquet files of a trace into arrays, inside the tasks.

Name columns of a trace are dictionary-encoded on disk. The scan needs only the dictionary indices,
so it makes no string per row, and passes no row through Java. That is several times faster than
reading the same files as a data frame, with the same result.

This works only if every task can open the directory, and ids are publisher, topic and number. Other
traces are read as data frames.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from ensue.core import trace
from ensue.spark.audits import delivery_scan
from ensue.spark.audits.collector import Gathered
from ensue.spark.audits.common_order import Numbers
from ensue.spark.audits.facts import Facts

__all__ = ["Piece", "fallback_hash", "pack_files", "pieces"]

_NAMES = ("run", "node", "subscription", "action", "verdict", "topic", "publisher")
_DIRECT_MAX = 4_000_000
"""Up to this many combinations of names are found by a table of all of them."""

joined: Any = pc.binary_join_element_wise


@dataclass(frozen=True, slots=True)
class Piece:
    """Some row groups of one file."""

    path: str
    groups: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Names:
    """Hashes and indices of names."""

    subscribers: Mapping[tuple[str, str, str], int]
    """By run, node and subscription."""
    nodes: Mapping[tuple[str, str], int]
    """By run and node."""
    lanes: Mapping[tuple[str, str, str], int]
    """By run, publisher and topic."""


def pieces(source: Path, rows: int) -> list[Piece]:
    """Divide the files of a trace into pieces of about this many rows."""
    found: list[Piece] = []
    for path in trace.files(source):
        metadata = pq.ParquetFile(str(path)).metadata
        groups: list[int] = []
        count = 0
        for group in range(metadata.num_row_groups):
            groups.append(group)
            count += metadata.row_group(group).num_rows
            if count >= rows or group == metadata.num_row_groups - 1:
                found.append(Piece(str(path.absolute()), tuple(groups)))
                groups, count = [], 0
    return found


def pack_files(
    spark: SparkSession, found: Sequence[Piece], gathered: Gathered, reach: delivery_scan.Reach
) -> DataFrame:
    """Pack the files of a trace, one task per piece."""
    lanes = gathered.facts.lanes
    runs = [run.name for run in gathered.facts.runs]
    names = _Names(
        subscribers={
            (one.run, one.node, one.subscription): number
            for number, one in gathered.subscribers.items()
        },
        nodes=gathered.nodes,
        lanes={
            (runs[run], publisher, topic): lane
            for lane, (run, publisher, topic) in enumerate(
                zip(lanes.runs.tolist(), lanes.publishers, lanes.topic_names, strict=True)
            )
        },
    )
    facts = gathered.facts

    def pack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_numpy().tolist():
                yield from _pack_piece(found[number], facts, reach, names)

    return spark.range(0, len(found), 1, len(found)).mapInArrow(pack, delivery_scan.PACKED)


def _pack_piece(
    piece: Piece, facts: Facts, reach: delivery_scan.Reach, names: _Names
) -> Iterator[pa.RecordBatch]:
    """Pack the deliveries and publications of a piece."""
    file = pq.ParquetFile(piece.path, read_dictionary=list(_NAMES))
    columns = [*_NAMES, "step", "event", "publisher_seq", "position"]
    table = _read(file, piece, columns)
    action, verdict = _Coded(table, "action"), _Coded(table, "verdict")
    delivered = np.flatnonzero(action.numbers == action.number("delivered"))
    void = (action.numbers == action.number("discarded")) & (
        verdict.numbers == verdict.number("void")
    )
    submitted = action.numbers == action.number("submitted")
    published = np.flatnonzero(void | submitted | (action.numbers == action.number("published")))
    if len(delivered):
        rows = _Rows(_taken(table, delivered), names)
        tagged = verdict.numbers[delivered] != verdict.number("")
        fragment = rows.columns(rows.subscribers(), np.where(tagged, delivery_scan.TAGGED, 0))
        fragment["position"] = rows.positions()
        yield from delivery_scan.pack_deliveries([fragment], facts, reach, rows.describe_strays)
    if len(published):
        rows = _Rows(_taken(table, published), names)
        fragment = rows.columns(rows.nodes(), np.zeros(len(published), dtype=np.int64))
        fragment["kind"] = np.select(
            [void[published], submitted[published]],
            [delivery_scan.VOID, delivery_scan.SUBMITTED],
            delivery_scan.PUBLISHED,
        )
        fragment["time"] = _times(file, piece, facts, rows, published)
        yield from delivery_scan.pack_publications([fragment], facts, reach)


def _taken(table: pa.Table, which: Numbers) -> pa.Table:
    """Return these rows, without a copy if they are adjacent.

    The deliveries of one node usually are.
    """
    first = int(which[0])
    if int(which[-1]) - first + 1 == len(which):
        return table.slice(first, len(which))
    return table.take(which)


def _read(file: pq.ParquetFile, piece: Piece, columns: Sequence[str]) -> pa.Table:
    """Read some columns of a piece; an error on damage names the file."""
    try:
        return file.read_row_groups(list(piece.groups), columns=list(columns), use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise trace.unreadable(Path(piece.path), error) from error


def _times(
    file: pq.ParquetFile, piece: Piece, facts: Facts, rows: "_Rows", which: Numbers
) -> Numbers:
    """Return publication times: true times if the whole run has them."""
    table = _read(file, piece, ["at_ns", "true_ns"]).take(which)
    at_ns, true_ns = (_filled(table.column(name), 0) for name in ("at_ns", "true_ns"))
    simulated = {run.name: run.simulated for run in facts.runs}
    is_true = np.array([simulated.get(name, False) for name in rows.run.values], dtype=np.bool_)
    return np.where(is_true[rows.run.numbers], true_ns, at_ns)


def _filled(column: Any, absent: int) -> Numbers:
    """Return a column of numbers, with `absent` for nulls."""
    numbers: Numbers = column.fill_null(absent).to_numpy().astype(np.int64)
    return numbers


class _Coded:
    """A dictionary-encoded column of names; -1 for nulls."""

    def __init__(self, table: pa.Table, name: str) -> None:
        column: Any = table.column(name)
        if not pa.types.is_dictionary(column.type):
            column = column.dictionary_encode()
        column = column.unify_dictionaries().combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            column = column.chunk(0)
        self.values: list[str] = column.dictionary.to_pylist()
        self.numbers: Numbers = column.indices.fill_null(-1).to_numpy().astype(np.int64)

    @property
    def constant(self) -> bool:
        """Whether all rows have the same name, as in most files of one node."""
        return len(self.values) == 1 and not self.numbers.any()

    def number(self, value: str) -> int:
        """Return the index of a value; -2, which no row has, if it does not occur."""
        return self.values.index(value) if value in self.values else -2


class _Rows:
    """Some rows of a trace, with dictionary-encoded names."""

    def __init__(self, table: pa.Table, names: _Names) -> None:
        self._table = table
        self._names = names
        self.run = _Coded(table, "run")
        self._publisher, self._topic = _Coded(table, "publisher"), _Coded(table, "topic")
        self._numbers = _filled(table.column("publisher_seq"), -1)

    def columns(self, owners: Numbers, flags: Numbers) -> delivery_scan.Columns:
        """Return the columns that the scan needs."""
        lanes, prefixes, which = self._lanes()
        expected = joined(prefixes.take(which), pa.array(self._numbers).cast(pa.string()), "/")
        event = self._table.column("event").combine_chunks()
        same: Any = pc.equal(event, expected)
        odd = ~same.fill_null(False).to_numpy(zero_copy_only=False).astype(np.bool_)
        return {
            "owner": owners,
            "lane_index": lanes,
            "seq": self._numbers,
            "step": self._table.column("step").to_numpy().astype(np.int64),
            "flags": flags + np.where(odd, delivery_scan.ODD, 0),
        }

    def positions(self) -> Numbers:
        """Return each row's position; `UNPLACED` if it has none."""
        return _filled(self._table.column("position"), delivery_scan.UNPLACED)

    def subscribers(self) -> Numbers:
        """Return the hash of each row's subscriber."""
        known = self._names.subscribers
        node, subscription = _Coded(self._table, "node"), _Coded(self._table, "subscription")
        return _looked_up(
            (self.run, node, subscription),
            lambda run, node, subscription: known.get(
                (run, node, subscription), fallback_hash(run, node, subscription)
            ),
        )

    def nodes(self) -> Numbers:
        """Return the hash of each row's node."""
        known = self._names.nodes
        return _looked_up(
            (self.run, _Coded(self._table, "node")),
            lambda run, node: known.get((run, node), fallback_hash(run, node)),
        )

    def _lanes(self) -> tuple[Numbers, Any, Numbers]:
        """Return each row's lane, the id prefixes, and the prefix index of each row."""
        known = self._names.lanes
        prefixes: list[str] = []
        lanes: list[int] = []

        def begin(run: str, publisher: str, topic: str) -> int:
            prefixes.append(f"{publisher}/{topic}")
            lanes.append(known.get((run, publisher, topic), -1))
            return len(prefixes) - 1

        which = _looked_up((self.run, self._publisher, self._topic), begin)
        return np.array(lanes, dtype=np.int64)[which], pa.array(prefixes), which

    def describe_strays(self, which: Numbers) -> npt.NDArray[np.uint8]:
        """Return deliveries without a code as JSON: run, event, lacks a label."""
        table = self._table.select(["run", "event", "topic", "publisher", "publisher_seq"])
        strays = [
            (row.pop("run"), row.pop("event"), None in row.values())
            for row in table.take(which).to_pylist()
        ]
        return np.frombuffer(json.dumps(strays).encode(), dtype=np.uint8)


def _looked_up(columns: tuple[_Coded, ...], find: Callable[..., int]) -> Numbers:
    """Return a number for each row, computed once per combination of names."""
    rows = len(columns[0].numbers)
    if all(column.constant for column in columns):
        return np.full(rows, find(*(column.values[0] for column in columns)), dtype=np.int64)
    keys = np.zeros(rows, dtype=np.int64)
    size = 1
    for column in columns:
        keys *= len(column.values) + 1
        keys += column.numbers
        keys += 1
        size *= len(column.values) + 1
    if size <= _DIRECT_MAX:
        present = np.zeros(size, dtype=np.bool_)
        present[keys] = True
        distinct, places = np.flatnonzero(present), keys
        table = np.zeros(size, dtype=np.int64)
    else:
        distinct, places = np.unique(keys, return_inverse=True)
        table = np.zeros(len(distinct), dtype=np.int64)
    for place, key in enumerate(distinct.tolist()):
        names = []
        rest = key
        for column in reversed(columns):
            rest, number = divmod(rest, len(column.values) + 1)
            names.append(column.values[number - 1] if number else "")
        table[key if size <= _DIRECT_MAX else place] = find(*reversed(names))
    return table[places]


def fallback_hash(*names: str) -> int:
    """Return a hash for an unknown subscriber; the same in every task."""
    digest = blake2b("\0".join(names).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)
