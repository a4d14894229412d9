"""Writing an event log: one writer at a time, every append as a whole or not at all.

`append` returns when its rows are on the disk for good and every reader can see them. Killed before
that, nothing of it is there. An append that carries a token is taken once: repeated, it does
nothing and says so, which is what makes a retried batch harmless.

Offsets rise within a topic; they may skip, never repeat. `trim` drops whole segments from
the old end: it commits first and deletes after, so that a reader finds either the rows or the word
that they are gone.
"""

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import ipc

from ensue.core.errors import BadInput, LocalProtocolError
from ensue.store.layout import (
    Commit,
    Layout,
    Lock,
    Segment,
    Token,
    sync_folder,
)
from ensue.store.reader import Bounds, local_path
from ensue.store.schema import check_schema, log_schema, table_of

__all__ = ["BATCH_ROWS", "SEGMENT_ROWS_MAX", "LogWriter"]

BATCH_ROWS = 16_384
"""Rows in a record batch: what a reader decompresses at a time."""
SEGMENT_ROWS_MAX = 1_048_576
"""Rows in a segment: what a trim can't split, and a reader opens at a time."""

_log = logging.getLogger("ensue")


class LogWriter:
    """The writer of a log directory, which is made if absent.

    `wait_s` is how long to wait for another writer to finish; then `LogInUse` is raised.
    """

    def __init__(self, directory: str | Path, *, wait_s: float = 0.0) -> None:
        self.directory = local_path(directory)
        self._layout = Layout(self.directory)
        self._layout.create()
        self._lock = Lock(self._layout.lock, wait_s=wait_s)
        self._closed = False
        self._clean = True
        """Whether every file there is named by a commit."""
        try:
            self._state = self._layout.load()
            if not self._lock.left_clean:
                self._layout.remove_garbage(self._state)
        except BaseException:
            self._lock.abandon()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let others write."""
        self._closed = True
        if self._clean:
            self._lock.release()
        else:
            self._lock.abandon()

    def bounds(self) -> dict[str, Bounds]:
        """Return what there is of each topic."""
        return {name: Bounds(topic.first, topic.next) for name, topic in self._state.topics.items()}

    def has(self, token: Token) -> bool:
        """Tell whether a writer's batch, or a later one of it, is in the log."""
        return token.batch <= self._state.tokens.get(token.writer, -1)

    def last_number(self, publisher: str, topic: str) -> int:
        """Return the highest `publisher_seq` that a publisher ever had on a topic; 0: none."""
        return self._state.published.get(publisher, {}).get(topic, 0)

    def append(
        self,
        rows: pa.Table | pa.RecordBatch | Iterable[Mapping[str, Any]],
        *,
        token: Token | None = None,
    ) -> bool:
        """Append rows of any topics as one commit; return False if the token was seen before.

        Rows given as mappings may leave out `event`, `headers`, and `offset`, which is then
        the next of the topic.
        """
        self._check_open()
        if token is not None and self.has(token):
            return False
        table = self._table(rows)
        if not table.num_rows and token is None:
            return True
        segments: list[Segment] = []
        published: dict[str, dict[str, int]] = {}
        # From here on files may be left that no commit names; the next writer looks for them.
        clean, self._clean = self._clean, False
        for topic, part in _by_topic(table):
            segments.extend(self._write_topic(topic, part))
            for publisher, number in _highest(part):
                published.setdefault(publisher, {})[topic] = number
        self._commit(segments=segments, token=token, published=published)
        self._clean = clean
        return True

    def trim(self, topic: str, before: int) -> int:
        """Drop the segments whose rows all lie below an offset; return the first offset left."""
        self._check_open()
        known = self._state.topics.get(topic)
        if known is None:
            raise BadInput(f"{self.directory} has no topic {topic!r}")
        dropped = [each for each in known.segments if each.next <= before]
        if not dropped:
            return known.first
        left = known.segments[len(dropped) :]
        clean, self._clean = self._clean, False
        self._commit(trims={topic: left[0].first if left else known.next})
        self._discard(dropped)
        self._clean = clean
        return known.first

    def _check_open(self) -> None:
        if self._closed:
            raise LocalProtocolError(f"the writer of {self.directory} is closed")

    def _table(self, rows: pa.Table | pa.RecordBatch | Iterable[Mapping[str, Any]]) -> pa.Table:
        if isinstance(rows, pa.RecordBatch):
            table = pa.Table.from_batches([rows])
        elif isinstance(rows, pa.Table):
            table = rows
        else:
            table = table_of(self._with_offsets(rows))
        check_schema(table)
        return table.select(log_schema().names)

    def _with_offsets(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        ends = {name: topic.next for name, topic in self._state.topics.items()}
        for row in rows:
            topic = row["topic"]
            offset = row.get("offset")
            if offset is None:
                offset = ends.get(topic, 0)
            ends[topic] = offset + 1
            yield {**row, "offset": offset}

    def _write_topic(self, topic: str, part: pa.Table) -> Iterator[Segment]:
        offsets = part.column("offset").to_numpy()
        known = self._state.topics.get(topic)
        ends = 0 if known is None else known.next
        if offsets[0] < ends:
            raise BadInput(f"{topic!r} has offsets up to {ends - 1} already; got {offsets[0]}")
        if not np.all(np.diff(offsets) > 0):
            raise BadInput(f"the offsets of {topic!r} must rise from row to row")
        if not topic:
            raise BadInput("a topic has a name; got an empty one")
        for start in range(0, part.num_rows, SEGMENT_ROWS_MAX):
            rows = part.slice(start, SEGMENT_ROWS_MAX)
            first, last = int(offsets[start]), int(offsets[start + rows.num_rows - 1])
            file = self._layout.new_segment(topic, first)
            self._write_segment(self.directory / file, rows)
            yield Segment(
                topic=topic,
                file=file,
                first=first,
                next=last + 1,
                rows=rows.num_rows,
                batch_rows=BATCH_ROWS,
            )

    def _write_segment(self, path: Path, rows: pa.Table) -> None:
        if not path.parent.exists():
            path.parent.mkdir(parents=True)
            sync_folder(path.parent.parent)
        with path.open("xb") as file:
            options = ipc.IpcWriteOptions(compression="lz4")
            with ipc.new_file(file, log_schema(), options=options) as writer:
                # A batch at a time: joined as a whole, columns of over 2 GB would stay in chunks,
                # each of which ends a batch early.
                for start in range(0, rows.num_rows, BATCH_ROWS):
                    writer.write_table(rows.slice(start, BATCH_ROWS).combine_chunks())
            file.flush()
            os.fsync(file.fileno())
        sync_folder(path.parent)

    def _commit(
        self,
        *,
        segments: list[Segment] | None = None,
        token: Token | None = None,
        trims: dict[str, int] | None = None,
        published: dict[str, dict[str, int]] | None = None,
    ) -> None:
        commit = Commit(
            number=self._state.number + 1,
            segments=segments or [],
            token=token,
            trims=trims or {},
            published=published or {},
        )
        try:
            self._layout.write_commit(commit)
        except BaseException:
            # Whether it was written is unknown: the next open will see.
            self._closed = True
            raise
        self._state.apply(commit)
        if self._layout.checkpoint_due(commit.number):
            try:
                self._layout.write_checkpoint(self._state)
            except OSError as error:
                # The commit is there; without the checkpoint opening the log takes longer.
                _log.warning("%s: no checkpoint was written: %s", self.directory, error)

    def _discard(self, segments: Iterable[Segment]) -> None:
        for segment in segments:
            (self.directory / segment.file).unlink(missing_ok=True)


def _by_topic(table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """Split rows by topic, keeping their order within each."""
    encoded = table.column("topic").combine_chunks().dictionary_encode()
    names = [str(name) for name in encoded.dictionary.to_pylist()]
    if len(names) == 1:
        yield names[0], table
        return
    codes = encoded.indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    edges = np.searchsorted(codes[order], np.arange(len(names) + 1))
    for index, name in enumerate(names):
        yield name, table.take(order[edges[index] : edges[index + 1]])


def _highest(part: pa.Table) -> Iterator[tuple[str, int]]:
    """Yield each publisher of some rows with its highest number."""
    grouped = part.group_by("publisher").aggregate([("publisher_seq", "max")])
    names = pc.cast(grouped.column("publisher"), pa.string()).to_pylist()
    yield from zip(names, grouped.column("publisher_seq_max").to_pylist(), strict=True)
