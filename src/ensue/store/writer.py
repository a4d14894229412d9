"""The writer of an event log: one at a time, and every append is atomic.

`append` returns when its rows are durable and visible to every reader. If the process is killed
before that, none of them is. An append with a token is idempotent: repeated, it writes nothing and
returns False, so a batch can be retried safely.

Offsets increase within a topic; they may skip, never repeat. `trim` removes whole segments from the
old end. It commits first and deletes after, so a reader finds either the rows or the commit that
says they are trimmed.
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
"""Rows in a record batch, the unit that a reader decompresses."""
SEGMENT_ROWS_MAX = 1_048_576
"""Rows in a segment, the unit that a reader opens and a trim removes."""

_log = logging.getLogger("ensue")


class LogWriter:
    """The writer of a log directory, which it creates if absent.

    It waits up to `wait_s` for another writer to close, then raises `LogInUse`. `order` is that of
    the run whose events it writes, as in traces; empty: not known.
    """

    def __init__(self, directory: str | Path, *, order: str = "", wait_s: float = 0.0) -> None:
        self.directory = local_path(directory)
        self._layout = Layout(self.directory)
        self._layout.create()
        self._lock = Lock(self._layout.lock, wait_s=wait_s)
        self._order = order
        self._closed = False
        self._clean = True
        """Whether a commit lists every file of the directory."""
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
        """Release the lock for the next writer."""
        self._closed = True
        if self._clean:
            self._lock.release()
        else:
            self._lock.abandon()

    def bounds(self) -> dict[str, Bounds]:
        """Return the current offsets of each topic."""
        return {name: Bounds(topic.first, topic.next) for name, topic in self._state.topics.items()}

    def has(self, token: Token) -> bool:
        """Return whether the log has a writer's batch, or a later one of that writer."""
        return token.batch <= self._state.tokens.get(token.writer, -1)

    def last_number(self, publisher: str, topic: str) -> int:
        """Return the highest `publisher_seq` of a publisher on a topic; 0 for none."""
        return self._state.published.get(publisher, {}).get(topic, 0)

    def append(
        self,
        rows: pa.Table | pa.RecordBatch | Iterable[Mapping[str, Any]],
        *,
        token: Token | None = None,
    ) -> bool:
        """Append rows of any topics as one commit; return False if the log has the token.

        Rows given as mappings may omit `event`, `headers` and `offset`; the default offset is the
        next of the topic.
        """
        self._check_open()
        if token is not None and self.has(token):
            return False
        table = self._table(rows)
        if not table.num_rows and token is None:
            return True
        segments: list[Segment] = []
        published: dict[str, dict[str, int]] = {}
        # From here on, a crash leaves files that no commit lists; the next writer removes them.
        clean, self._clean = self._clean, False
        for topic, part in _by_topic(table):
            segments.extend(self._write_topic(topic, part))
            for publisher, number in _highest(part):
                published.setdefault(publisher, {})[topic] = number
        self._commit(segments=segments, token=token, published=published)
        self._clean = clean
        return True

    def trim(self, topic: str, before: int) -> int:
        """Remove segments that end before an offset; return the first remaining offset."""
        self._check_open()
        known = self._state.topics.get(topic)
        if known is None:
            raise BadInput(f"can't trim topic {topic!r}: {self.directory} has no such topic")
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
            raise LocalProtocolError(f"the writer of {self.directory} is closed: open a new one")

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
            raise BadInput(
                f"topic {topic!r} has offsets up to {ends - 1}: append from {ends} on, got "
                f"{offsets[0]}"
            )
        if not np.all(np.diff(offsets) > 0):
            raise BadInput(f"the offsets of topic {topic!r} must increase from row to row")
        if not topic:
            raise BadInput("column 'topic' is empty in some rows: name the topic")
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
                # Combine one batch at a time: columns over 2 GB would stay in chunks, and each
                # chunk would end a batch early.
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
            order=self._order,
        )
        try:
            self._layout.write_commit(commit)
        except BaseException:
            # The commit may or may not be on the disk: only opening the log again can tell.
            self._closed = True
            raise
        self._state.apply(commit)
        if self._layout.checkpoint_due(commit.number):
            try:
                self._layout.write_checkpoint(self._state)
            except OSError as error:
                # The commit is durable; without a checkpoint the log only opens more slowly.
                _log.warning("checkpoint failed log=%s reason=%s", self.directory, error)

    def _discard(self, segments: Iterable[Segment]) -> None:
        for segment in segments:
            (self.directory / segment.file).unlink(missing_ok=True)


def _by_topic(table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """Split rows by topic, in their order."""
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
    """Yield each publisher of the rows with its highest `publisher_seq`."""
    grouped = part.group_by("publisher").aggregate([("publisher_seq", "max")])
    names = pc.cast(grouped.column("publisher"), pa.string()).to_pylist()
    yield from zip(names, grouped.column("publisher_seq_max").to_pylist(), strict=True)
