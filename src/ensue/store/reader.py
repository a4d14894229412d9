"""Readers of the event log.

`LogReader` is the interface that the Spark source and all other readers use. `open_log` chooses the
implementation by the URL: a directory, or servers (`ensue.store.remote_reader`).

Rows are in ascending offset order. A range always returns the same rows until it is trimmed.
Reading trimmed offsets raises `OffsetsGone`; a reader never returns fewer rows silently. A run can
leave gaps: offsets that no event ever had. They have no rows, and reading across them is no error.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import ipc

from ensue.core.errors import BadInput, LogDamaged, OffsetsGone
from ensue.core.event import Event, Stamp
from ensue.store.layout import Layout, Segment, Topic, log_folder
from ensue.store.schema import COLUMNS, log_schema

__all__ = [
    "Bounds",
    "DirectoryReader",
    "EventRow",
    "LogReader",
    "batch_of",
    "merge_stamp",
    "open_log",
]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")


class EventRow(Event, frozen=True, kw_only=True, gc=False):
    """An event that becomes a row.

    The garbage collector does not track rows (`gc=False`): there are too many.
    """


class Bounds(NamedTuple):
    """The range of offsets that a topic has."""

    first: int
    """The lowest readable offset."""
    next: int
    """The offset of the next event."""


class LogReader(Protocol):
    """A readable event log."""

    @property
    def order(self) -> str:
        """The order of its events, as in traces; empty: not known."""
        ...

    def bounds(self) -> dict[str, Bounds]:
        """Return the current offsets of each topic, all at the same commit."""
        ...

    def read(
        self, topic: str, start: int, end: int, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a topic from offset `start` up to, not including, `end`."""
        ...


def open_log(url: str | Path, *, patient: bool = False) -> LogReader:
    """Open the log that a URL names.

    The URL is a path or a `file://` URL of a log or a recorded run, or the `ensue://` URL of a
    server. With `patient`, connecting is retried until the server responds.
    """
    if str(url).lower().startswith("ensue://"):
        from ensue.store.remote_reader import RemoteReader  # noqa: PLC0415 - it needs this module

        return RemoteReader(str(url), patient=patient)
    return DirectoryReader(local_path(url))


def local_path(url: str | Path) -> Path:
    """Return the directory that a URL names."""
    found = _SCHEME.match(str(url))
    if found is None:
        return Path(url)
    if found[1].lower() != "file":
        raise BadInput(
            f"can't open an event log at {url}: {found[1]}:// is not supported; use a path, "
            "file:///path or ensue://HOST:PORT"
        )
    parts = urlsplit(str(url))
    if parts.netloc not in ("", "localhost"):
        raise BadInput(f"{url} names another machine; expected file:///path")
    return Path(unquote(parts.path))


class DirectoryReader:
    """A reader for a log directory. Another process may write to it meanwhile."""

    def __init__(self, source: str | Path) -> None:
        self.directory = log_folder(source)
        self._layout = Layout(self.directory)
        if not self.directory.is_dir():
            state = "is a file" if self.directory.exists() else "does not exist"
            raise BadInput(f"{source} {state}: name the directory of an event log")
        if not self._layout.exists():
            raise BadInput(f"{source} holds no event log: it has no folder _commits")
        self._state = self._layout.load()

    @property
    def order(self) -> str:
        """The order of its events, as in traces; empty: not known."""
        return self._state.order

    def bounds(self) -> dict[str, Bounds]:
        """Return the current offsets of each topic, all at the same commit."""
        self._layout.catch_up(self._state)
        return {name: Bounds(topic.first, topic.next) for name, topic in self._state.topics.items()}

    def read(
        self, topic: str, start: int, end: int, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a topic from offset `start` up to, not including, `end`."""
        chosen = COLUMNS if columns is None else tuple(columns)
        for name in chosen:
            if name not in COLUMNS:
                raise BadInput(f"an event log has no column {name!r}; it has {', '.join(COLUMNS)}")
        return self._read(topic, start, end, chosen)

    def _read(
        self, topic: str, start: int, end: int, columns: tuple[str, ...]
    ) -> Iterator[pa.RecordBatch]:
        at = start
        while at < end:
            known = self._known(topic, at, end)
            index = bisect_right(known.segments, at, key=lambda each: each.next)
            if index == len(known.segments) or known.segments[index].first >= end:
                return
            segment = known.segments[index]
            try:
                file = pa.memory_map(str(self.directory / segment.file))
            except FileNotFoundError:
                # A trim may have deleted the file since the state was loaded.
                self._layout.catch_up(self._state)
                if at >= self._known(topic, at, end).first:
                    path = str(self.directory / segment.file)
                    text = f"segment {path} is missing, but a commit lists it"
                    raise LogDamaged(text, path=path) from None
                continue
            with file:
                yield from _slices(file, segment, at, end, columns)
            at = segment.next

    def _known(self, topic: str, start: int, end: int) -> Topic:
        """Return the state of a topic; load new commits if it ends before `end`."""
        known = self._state.topics.get(topic)
        if known is None or known.next < end:
            self._layout.catch_up(self._state)
            known = self._state.topics.get(topic)
        if known is None or known.next < end:
            ends = 0 if known is None else known.next
            raise OffsetsGone(
                f"{topic!r} in {self.directory} ends before offset {ends}, and a read up to {end} "
                "was requested: was the log replaced?",
                topic=topic,
                start=max(start, ends),
                end=end,
            )
        if start < known.first:
            raise OffsetsGone(
                f"{self.directory} no longer has offsets {start} to {min(known.first, end) - 1} "
                f"of {topic!r}: they were trimmed, and the topic begins at {known.first}",
                topic=topic,
                start=start,
                end=min(known.first, end),
            )
        return known


def _slices(
    file: pa.MemoryMappedFile, segment: Segment, start: int, end: int, columns: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a segment whose offsets are in a range."""
    whole = start <= segment.first and end >= segment.next
    wanted = columns if whole or "offset" in columns else (*columns, "offset")
    names = log_schema().names
    fields = sorted(names.index(name) for name in set(wanted))
    options = ipc.IpcReadOptions(included_fields=fields, use_threads=False)
    try:
        opened = ipc.open_file(file, options=options)
        for number in _batches(opened.num_record_batches, segment, start, end):
            batch = opened.get_batch(number)
            if not whole:
                offsets = batch.column("offset").to_numpy()
                low, high = np.searchsorted(offsets, (start, end))
                batch = batch.slice(int(low), int(high - low))
            if batch.num_rows:
                yield batch if batch.schema.names == list(columns) else batch.select(list(columns))
    except pa.ArrowException as error:
        raise LogDamaged(
            f"can't read segment {segment.file}: {str(error).splitlines()[0]}", path=segment.file
        ) from error


def _batches(count: int, segment: Segment, start: int, end: int) -> range:
    """Return the numbers of the record batches that a range of offsets touches."""
    if segment.next - segment.first != segment.rows:
        return range(count)  # With gaps, an offset does not tell its batch.
    if count != -(-segment.rows // segment.batch_rows):
        return range(count)  # Nor if batches have other sizes.
    first = max(0, start - segment.first) // segment.batch_rows
    last = (min(end, segment.next) - segment.first - 1) // segment.batch_rows
    return range(first, last + 1)


# -- Rows of events
# ---------------------------------------------------------------------------------


def merge_stamp(entries: dict[str, int], stamp: Stamp | None) -> None:
    """Update the whole entries of an event to those of the next one, sorted by topic."""
    if stamp is None:
        return
    changed = stamp.entries
    if stamp.whole and changed.keys() != entries.keys():
        entries.clear()
    known = len(entries)
    entries.update(changed)
    if len(entries) > known:
        merged = sorted(entries.items())
        entries.clear()
        entries.update(merged)


def batch_of(
    events: Sequence[EventRow],
    topic: str,
    first: int,
    entries: dict[str, int],
    columns: Sequence[str],
) -> pa.RecordBatch:
    """Convert consecutive events of a topic, from offset `first`, to a record batch.

    `entries` is the whole stamp of the event before them; it is updated to that of the last event.
    """
    publishers = [event.publisher for event in events]
    numbers = [event.publisher_seq for event in events]
    count = len(events)
    makers: dict[str, Callable[[], Any]] = {
        "key": lambda: pa.array([event.key for event in events], pa.binary()),
        "value": lambda: pa.array(
            [None if event.void else event.payload for event in events], pa.binary()
        ),
        "topic": lambda: pa.repeat(topic, count),
        "publisher": lambda: pa.array(publishers, pa.string()),
        "publisher_seq": lambda: pa.array(numbers, pa.int64()),
        "event": lambda: _ids(publishers, topic, numbers),
        "stamp": lambda: _stamps([event.stamp for event in events], entries),
        "published_at": lambda: pa.array(
            np.array([event.published_at_ns for event in events], dtype=np.int64) // 1_000
        ),
        "offset": lambda: pa.array(np.arange(first, first + count, dtype=np.int64)),
        "headers": lambda: _headers([event.headers for event in events]),
    }
    fields = [log_schema().field(name) for name in columns]
    return pa.RecordBatch.from_arrays(
        [makers[field.name]().cast(field.type) for field in fields], schema=pa.schema(fields)
    )


def _ids(publishers: Sequence[str], topic: str, numbers: Sequence[int]) -> "pa.Array[Any]":
    texts = pa.array(numbers, pa.int64()).cast(pa.string())
    return pc.binary_join_element_wise(  # type: ignore[call-overload, no-any-return]
        pa.array(publishers, pa.string()), topic, texts, "/"
    )


def _stamps(stamps: Sequence[Stamp | None], entries: dict[str, int]) -> "pa.Array[Any]":
    """Return the column of stamps, each of them whole."""
    keys: list[str] = []
    values: list[int] = []
    starts: list[int | None] = []
    for stamp in stamps:
        if stamp is None:
            starts.append(None)
            continue
        starts.append(len(keys))
        merge_stamp(entries, stamp)
        keys += entries
        values += entries.values()
    return _maps(keys, values, [*starts, len(keys)], pa.int64())


def _headers(headers: Sequence[dict[str, str]]) -> "pa.Array[Any]":
    keys: list[str] = []
    values: list[str] = []
    starts: list[int | None] = []
    for each in headers:
        starts.append(len(keys))
        if each:
            for name in sorted(each):
                keys.append(name)
                values.append(each[name])
    return _maps(keys, values, [*starts, len(keys)], pa.string())


def _maps(
    keys: Sequence[str], values: Sequence[Any], starts: Sequence[int | None], kind: pa.DataType
) -> "pa.Array[Any]":
    """Return a column of maps; `starts` are indexes into `keys`, None for a null."""
    return pa.MapArray.from_arrays(  # type: ignore[call-overload, no-any-return]
        pa.array(starts, pa.int32()), pa.array(keys, pa.string()), pa.array(values, kind)
    )
