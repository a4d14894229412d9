"""Reading an event log, wherever it is.

`LogReader` is all that the Spark source and every other reader knows of a log. `open_log` chooses
what stands behind it by the URL; today that is a directory.

Rows come by rising offset. What was read once reads the same for ever, until it is trimmed: reading
offsets that are gone raises `OffsetsGone`, never returns less in silence. Offsets that no event has
(a gap that a run left behind) are not rows, and that is no loss.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

import numpy as np
import pyarrow as pa
from pyarrow import ipc

from ensue.errors import BadInput, LogDamaged, OffsetsGone
from ensue.store.layout import Layout, Segment, Topic, log_folder
from ensue.store.schema import COLUMNS, log_schema

__all__ = ["Bounds", "DirectoryReader", "LogReader", "open_log"]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")


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


def open_log(url: str | Path) -> LogReader:
    """Open the log that a URL names: a path or `file://`, of a log or of a recorded run."""
    return DirectoryReader(local_path(url))


def local_path(url: str | Path) -> Path:
    """Return the directory that a URL names."""
    found = _SCHEME.match(str(url))
    if found is None:
        return Path(url)
    if found[1].lower() != "file":
        raise BadInput(
            f"no event log can be read from {url}: {found[1]}:// is not supported; expected a "
            "directory, as a path or as file:///path"
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
