"""A sequencer for a log directory: the log's one writer assigns the stamps.

`publish` numbers and stamps rows of topic, publisher and payload, and appends them as one commit.
Stamps are whole: each counts the events of every topic of the log up to its own event. So the log
has one order over all its topics.

A row with a `publisher_seq` is published once: a number at or below the last of its publisher and
topic is a duplicate. Within one call, such rows are sorted by their numbers.

HAZARD: given numbers must not arrive late. If a later call brings a lower number than an earlier
one, for the same publisher and topic, its row counts as a duplicate and is dropped.

HAZARD: each stamp has an entry for each topic of the log: the cost of one order over all topics.
Split a log with thousands of topics.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ensue.core.errors import BadInput
from ensue.core.event import COUNT_MAX
from ensue.store.layout import Token
from ensue.store.schema import event_ids, log_schema
from ensue.store.writer import LogWriter

__all__ = ["publication_schema", "publish"]

_ENTRIES_MAX = 4_000_000
"""Stamp entries in memory at a time."""
_PUBLICATION = (
    "key",
    "value",
    "topic",
    "publisher",
    "publisher_seq",
    "published_at",
    "headers",
)

Numbers = npt.NDArray[np.int64]


def publication_schema() -> pa.Schema:
    """Return the columns that `publish` takes; a null `publisher_seq` is assigned."""
    return pa.schema([log_schema().field(name) for name in _PUBLICATION])


def publish(log: LogWriter, rows: pa.Table, *, token: Token | None = None) -> int:
    """Append rows in their order; return how many were new."""
    if token is not None and log.has(token):
        return 0
    for name in ("value", "topic", "publisher"):
        if rows.column(name).null_count:
            raise BadInput(f"column {name!r} is null in some rows: an event needs a {name}")
    groups, pairs = _groups(rows)
    _check_names(pairs)
    last = np.array([log.last_number(*pair) for pair in pairs], dtype=np.int64)
    given = rows.column("publisher_seq")
    if given.null_count == rows.num_rows:
        numbers = last[groups] + _ranks(groups) + 1 if rows.num_rows else last[:0]
    elif given.null_count:
        raise BadInput(
            "column 'publisher_seq' is null in some rows and not in others: number all rows or none"
        )
    else:
        numbers = given.to_numpy().astype(np.int64)
        if numbers.min(initial=1) < 1:
            raise BadInput(f"column 'publisher_seq' counts from 1, got {numbers.min()}")
        order = _in_number_order(groups, numbers)
        order = order[numbers[order] > last[groups[order]]]
        rows, numbers = rows.take(order), numbers[order]
    # Numbers that overflowed are negative.
    if len(numbers) and not 1 <= numbers.min() <= numbers.max() <= COUNT_MAX:
        raise BadInput(
            f"column 'publisher_seq' counts from 1 to {COUNT_MAX}, and these rows exceed it: "
            "use another publisher name"
        )
    table = _sequenced(log, rows, numbers)
    log.append(table, token=token)
    return table.num_rows


def _check_names(pairs: Iterable[tuple[str, str]]) -> None:
    """Raise `BadInput` for names that would make event ids ambiguous."""
    for publisher, topic in pairs:
        if not publisher or not topic:
            what = "topic" if publisher else "publisher"
            raise BadInput(f"column {what!r} is empty in some rows: an event needs a {what}")
        if "/" in publisher:
            raise BadInput(
                f"publisher name {publisher!r} contains '/', which separates the parts of event "
                "ids: rename it"
            )


def _groups(rows: pa.Table) -> tuple[Numbers, list[tuple[str, str]]]:
    """Return the pairs of publisher and topic, and the index of each row's pair."""
    codes: list[Numbers] = []
    names: list[list[Any]] = []
    for name in ("publisher", "topic"):
        encoded = rows.column(name).combine_chunks().dictionary_encode()
        codes.append(encoded.indices.to_numpy().astype(np.int64))
        names.append(encoded.dictionary.to_pylist())
    width = max(1, len(names[1]))
    found, groups = np.unique(codes[0] * width + codes[1], return_inverse=True)
    pairs = [(names[0][each // width], names[1][each % width]) for each in found.tolist()]
    return groups.astype(np.int64), pairs


def _ranks(groups: Numbers) -> Numbers:
    """Return each row's rank in its group, from 0."""
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    begins = np.searchsorted(ordered, ordered)
    ranks = np.empty(len(groups), dtype=np.int64)
    ranks[order] = np.arange(len(groups)) - begins
    return ranks


def _in_number_order(groups: Numbers, numbers: Numbers) -> Numbers:
    """Return row indexes: each group sorted by number in its places, no duplicates."""
    by_number = np.lexsort((numbers, groups))
    by_place = np.argsort(groups, kind="stable")
    first = np.ones(len(groups), dtype=bool)
    same_group = groups[by_number][1:] == groups[by_number][:-1]
    first[1:] = ~(same_group & (numbers[by_number][1:] == numbers[by_number][:-1]))
    order = np.full(len(groups), -1, dtype=np.int64)
    order[by_place] = np.where(first, by_number, -1)
    return order[order >= 0]


def _sequenced(log: LogWriter, rows: pa.Table, numbers: Numbers) -> pa.Table:
    """Add number, id, offset and stamp to the rows."""
    ends = {topic: bounds.next for topic, bounds in log.bounds().items()}
    encoded = rows.column("topic").combine_chunks().dictionary_encode()
    present = [str(topic) for topic in encoded.dictionary.to_pylist()]
    topics = sorted({*ends, *present})
    place = {topic: index for index, topic in enumerate(topics)}
    columns = np.array([place[topic] for topic in present], dtype=np.int64)
    codes = columns[encoded.indices.to_numpy()] if rows.num_rows else columns[:0]
    base = np.array([ends.get(topic, 0) for topic in topics], dtype=np.int64)
    offsets = base[codes] + _ranks(codes)
    numbered = rows.set_column(
        rows.schema.get_field_index("publisher_seq"), "publisher_seq", pa.array(numbers)
    )
    added = {
        "event": event_ids(numbered),
        "stamp": _stamps(codes, base, topics),
        "offset": pa.array(offsets),
    }
    for name, values in added.items():
        numbered = numbered.append_column(log_schema().field(name), values)
    return numbered.select(log_schema().names)


def _stamps(codes: Numbers, base: Numbers, topics: list[str]) -> "pa.ChunkedArray[Any]":
    """Return each row's stamp: the number of events so far of every topic with events."""
    names = pa.array(topics, pa.string())
    step = max(1, _ENTRIES_MAX // max(1, len(topics)))
    chunks: list[pa.Array[Any]] = []
    for start in range(0, len(codes), step):
        part = codes[start : start + step]
        counts = np.zeros((len(part), len(topics)), dtype=np.int64)
        counts[np.arange(len(part)), part] = 1
        np.cumsum(counts, axis=0, out=counts)
        counts += base
        base = counts[-1].copy()
        row, column = np.nonzero(counts)
        edges = np.searchsorted(row, np.arange(len(part) + 1)).astype(np.int32)
        chunks.append(
            pa.MapArray.from_arrays(  # type: ignore[call-overload]
                pa.array(edges), names.take(column), pa.array(counts[row, column])
            )
        )
    return pa.chunked_array(chunks, type=log_schema().field("stamp").type)
