"""Reading an event log, wherever it is.

`LogReader` is all that the Spark source and every other reader knows of a log. `open_log` chooses
what stands behind it by the URL: a directory, or servers (`ensue.store.remote_reader`).

Rows come by rising offset. What was read once reads the same for ever, until it is trimmed: reading
offsets that are gone raises `OffsetsGone`, never returns less in silence. Offsets that no event has
(a gap that a run left behind) are not rows, and that is no loss.
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
    """An event that becomes a row, of so many that the garbage collector had better not look."""


class Bounds(NamedTuple):
    """Which offsets of a topic there are."""

    first: int
    """The lowest that can be read."""
    next: int
    """The one that the next event gets."""


class LogReader(Protocol):
    """A log that can be read."""

    def bounds(self) -> dict[str, Bounds]:
        """Return what there is of each topic by now, all of it as of one commit."""
        ...

    def read(
        self, topic: str, start: int, end: int, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a topic from an offset up to, not including, another."""
        ...


def open_log(url: str | Path, *, patient: bool = False) -> LogReader:
    """Open the log that a URL names.

    That is a path or `file://`, of a log or of a recorded run, or the `ensue://` of a server. One
    that does not answer is waited for if you are `patient`.
    """
    if str(url).lower().startswith("ensue://"):
        from ensue.store.remote_reader import ServedReader  # noqa: PLC0415 - it needs this module

        return ServedReader(str(url), patient=patient)
    return DirectoryReader(local_path(url))


def local_path(url: str | Path) -> Path:
    """Return the directory that a URL names."""
    found = _SCHEME.match(str(url))
    if found is None:
        return Path(url)
    if found[1].lower() != "file":
        raise BadInput(
            f"no event log can be read from {url}: {found[1]}:// is not supported; expected a "
            "directory, as a path or as file:///path, or a server, as ensue://HOST:PORT"
        )
    parts = urlsplit(str(url))
    if parts.netloc not in ("", "localhost"):
        raise BadInput(f"{url} names another machine; expected file:///path")
    return Path(unquote(parts.path))


class DirectoryReader:
    """Reads a log directory, while others write to it or not."""

    def __init__(self, source: str | Path) -> None:
        self.directory = log_folder(source)
        self._layout = Layout(self.directory)
        if not self.directory.is_dir():
            raise BadInput(f"{source} does not exist; an event log is a directory")
        if not self._layout.exists():
            raise BadInput(f"{source} holds no event log: there is no folder _commits in it")
        self._state = self._layout.load()

    def bounds(self) -> dict[str, Bounds]:
        """Return what there is of each topic by now, all of it as of one commit."""
        self._layout.catch_up(self._state)
        return {name: Bounds(topic.first, topic.next) for name, topic in self._state.topics.items()}

    def read(
        self, topic: str, start: int, end: int, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a topic from an offset up to, not including, another."""
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
                # Trimmed since the state was read; if not, it should be there.
                self._layout.catch_up(self._state)
                if at >= self._known(topic, at, end).first:
                    path = str(self.directory / segment.file)
                    raise LogDamaged(f"{path} is missing: a commit names it", path=path) from None
                continue
            with file:
                yield from _slices(file, segment, at, end, columns)
            at = segment.next

    def _known(self, topic: str, start: int, end: int) -> Topic:
        """Return what there is of a topic, having looked again if it does not reach that far."""
        known = self._state.topics.get(topic)
        if known is None or known.next < end:
            self._layout.catch_up(self._state)
            known = self._state.topics.get(topic)
        if known is None or known.next < end:
            ends = 0 if known is None else known.next
            raise OffsetsGone(
                f"{self.directory} has offsets of {topic!r} up to {ends}, that one not included, "
                f"and not up to {end}: is it the log it was?",
                topic=topic,
                start=max(start, ends),
                end=end,
            )
        if start < known.first:
            raise OffsetsGone(
                f"{self.directory} no longer has offsets {start} to {min(known.first, end) - 1} "
                f"of {topic!r}: they were trimmed, and it begins at {known.first}",
                topic=topic,
                start=start,
                end=min(known.first, end),
            )
        return known


def _slices(
    file: pa.MemoryMappedFile, segment: Segment, start: int, end: int, columns: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    """Yield the part of a segment that lies in a range of offsets."""
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
            f"{segment.file} can't be read: {str(error).splitlines()[0]}", path=segment.file
        ) from error


def _batches(count: int, segment: Segment, start: int, end: int) -> range:
    """Return which record batches of a segment a range of offsets touches."""
    if segment.next - segment.first != segment.rows:
        return range(count)  # With gaps the place of an offset is not known.
    if count != -(-segment.rows // segment.batch_rows):
        return range(count)  # Nor with batches of other sizes.
    first = max(0, start - segment.first) // segment.batch_rows
    last = (min(end, segment.next) - segment.first - 1) // segment.batch_rows
    return range(first, last + 1)


# -- Rows of events
# ---------------------------------------------------------------------------------


def merge_stamp(entries: dict[str, int], stamp: Stamp | None) -> None:
    """Make the whole entries of an event those of the next one; topics stay sorted."""
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
    """Make columns of the events of a topic from an offset on, without a gap.

    `entries` are the whole ones of the event before; afterwards they are those of the last.
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
    """Make the column of stamps, each of them whole."""
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
    """Make a column of maps from offsets; None marks a null."""
    return pa.MapArray.from_arrays(  # type: ignore[call-overload, no-any-return]
        pa.array(starts, pa.int32()), pa.array(keys, pa.string()), pa.array(values, kind)
    )
