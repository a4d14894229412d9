"""`df.write.format("ensue")`: publish the rows of a data frame, each exactly once.

Each task stages its rows in a file. When all are done, the driver's `commit` takes the log's lock,
numbers and stamps the rows, and appends them in one commit of the log: the whole batch or nothing,
whichever process is killed. The commit of a stream carries the query's id and the number of the
batch; if Spark runs the batch again, the sink finds them in the log and publishes nothing.

Rows keep their order within a partition, and partitions keep theirs.

Options: `url` (or `save(path)`): the log, created if absent. `publisher`: the publisher of rows
without a `publisher` column. `topic`: the topic of all rows, in place of a `topic` column.
`lockTimeoutSeconds`: how long to wait for another writer of the log (60).

Columns: `value` (binary or string), and optionally `topic`, `key` (binary or string), `headers`,
`publisher`, `publisher_seq`, `published_at`. With `publisher_seq` a row has its own id, and is
published once, however often and by whichever query it is written. `event`, `stamp` and `offset`
are ignored, so that rows of one log can be written to another, which assigns its own.

Several queries may use one publisher name: numbers are assigned under the lock, and a batch is
identified by its query. A query that restarts with an empty checkpoint is another query, and
publishes everything again, unless the rows have ids.

HAZARD: a batch write (no stream) that is repeated by hand publishes again, unless its rows have
ids.

HAZARD: the log must lie where driver and executors can write, as it must for reading.
"""

import contextlib
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import numpy as np
import pyarrow as pa
from pyarrow import ipc
from pyspark import TaskContext
from pyspark.sql import types as t
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from ensue.spark.conditions import SparkFault
from ensue.spark.options import SinkOptions
from ensue.store import LogWriter, log_folder
from ensue.store.layout import Layout, Token
from ensue.store.local_sequencer import publication_schema, publish
from ensue.store.reader import local_path

__all__ = ["LogBatchWriter", "LogStreamWriter"]

_TYPES: dict[str, tuple[str, ...]] = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "topic": ("string",),
    "publisher": ("string",),
    "publisher_seq": ("bigint", "int"),
    "published_at": ("timestamp",),
    "headers": ("map<string,string>",),
}
_IGNORED = ("event", "stamp", "offset")


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """The rows that one task has staged."""

    partition: int
    file: str
    query: str
    """The id of the streaming query; empty for a batch."""


class _Writer:
    """Common part of the batch and the stream writer."""

    def __init__(self, options: SinkOptions, schema: t.StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise SparkFault(
                "UNSUPPORTED_MODE", 'an event log is never overwritten: write with mode("append")'
            )
        _check_columns(schema, options)
        self.options = options
        self.job = uuid4().hex
        directory = log_folder(local_path(options.url)).absolute()
        self.directory = str(directory)
        if not Layout(directory).exists():
            Layout(directory).create()

    def stage(self, batches: Iterator[pa.RecordBatch]) -> Staged:
        """Write the rows of one task to a file."""
        context = TaskContext.get()
        assert context is not None
        query = context.getLocalProperty("sql.streaming.queryId") or ""
        number = context.getLocalProperty("streaming.sql.batchId") or "0"
        folder = Path(self.directory) / "_staged" / (query or self.job) / number
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{context.partitionId():05}-{uuid4().hex}.arrow"
        now = datetime.now(UTC)
        try:
            options = ipc.IpcWriteOptions(compression="lz4")
            with ipc.new_file(str(path), publication_schema(), options=options) as file:
                for batch in batches:
                    file.write_table(_publication(batch, self.options, now))
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return Staged(partition=context.partitionId(), file=str(path), query=query)

    def publish(self, staged: Sequence[Staged], token: Token | None) -> None:
        """Append the staged rows of all tasks to the log."""
        with LogWriter(self.directory, wait_s=self.options.lock_timeout_s) as log:
            if token is not None and log.has(token):
                return
            tables = [
                ipc.open_file(pa.memory_map(each.file)).read_all()
                for each in sorted(staged, key=lambda each: each.partition)
            ]
            publish(log, pa.concat_tables(tables), token=token)

    def clear(self, query: str, up_to: int) -> None:
        """Remove staged files of all attempts at batches up to this one."""
        folder = Path(self.directory) / "_staged" / query
        for path in folder.glob("*"):
            if path.name.isdecimal() and int(path.name) <= up_to:
                shutil.rmtree(path, ignore_errors=True)
        # Fails while another attempt is writing.
        with contextlib.suppress(OSError):
            folder.rmdir()


class LogBatchWriter(_Writer, DataSourceArrowWriter):
    """Publishes a data frame."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:  # type: ignore[override]
        """Stage the rows of one task."""
        return self.stage(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Append the staged rows of all tasks to the log."""
        staged = _staged(messages)
        if staged:
            self.publish(staged, None)
        self.clear(self.job, 0)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove staged rows."""
        del messages  # A failed task sends none, and may still have left a file.
        self.clear(self.job, 0)


class LogStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Publishes a stream, each micro-batch once."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:  # type: ignore[override]
        """Stage the rows of one task."""
        staged = self.stage(iterator)
        if not staged.query:
            raise SparkFault("NO_QUERY_ID", "Spark gave no id of the streaming query")
        return staged

    def commit(
        self,
        messages: list[WriterCommitMessage | None],
        batchId: int,  # noqa: N803
    ) -> None:
        """Append the staged rows of all tasks, unless the log has this batch already."""
        staged = _staged(messages)
        if not staged:
            return
        query = staged[0].query
        self.publish(staged, Token(writer=f"spark/{query}", batch=batchId))
        self.clear(query, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Remove staged rows."""
        for each in _staged(messages):
            self.clear(each.query, batchId)


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    return [cast("Staged", each) for each in messages if each is not None]


def _check_columns(schema: t.StructType, options: SinkOptions) -> None:
    found = {field.name: field.dataType.simpleString() for field in schema}
    for name, kind in found.items():
        if name in _IGNORED:
            continue
        if name not in _TYPES:
            expected = ", ".join((*_TYPES, *_IGNORED))
            raise SparkFault(
                "UNSUPPORTED_SCHEMA", f"column {name!r} can't be published; expected {expected}"
            )
        if kind not in _TYPES[name]:
            raise SparkFault(
                "UNSUPPORTED_SCHEMA",
                f"column {name!r} is {kind}; expected {' or '.join(_TYPES[name])}",
            )
    if "value" not in found:
        raise SparkFault("UNSUPPORTED_SCHEMA", "there is no column 'value' to publish")
    for name in ("topic", "publisher"):
        if name not in found and getattr(options, name) is None:
            raise SparkFault("MISSING_OPTION", f"give the option {name}, or a column of that name")


def _publication(batch: pa.RecordBatch, options: SinkOptions, now: datetime) -> pa.Table:
    """Return the columns of a publication, before rows are numbered."""
    columns: list[pa.Array[Any]] = []
    for field in publication_schema():
        fixed = getattr(options, field.name, None) if field.name in ("topic", "publisher") else None
        given = batch.column(field.name) if field.name in batch.schema.names else None
        # A publisher column overrides the option; a topic option overrides the column.
        if given is not None and (fixed is None or field.name == "publisher"):
            if field.name in ("value", "topic", "publisher") and given.null_count:
                hint = "; leave out the voids of a log with value IS NOT NULL"
                raise SparkFault(
                    "NULL_COLUMN",
                    f"column {field.name!r} is null in {given.null_count} rows, and an event "
                    f"needs one{hint if field.name == 'value' else ''}",
                )
            column = given.cast(field.type)
        else:
            constant = now if field.name == "published_at" else fixed
            if field.name == "headers":
                nothing = pa.array([], pa.string())
                edges = pa.array(np.zeros(batch.num_rows + 1, dtype=np.int32))
                maps: Any = pa.MapArray
                column = maps.from_arrays(edges, nothing, nothing)
            else:
                column = pa.repeat(pa.scalar(constant, field.type), batch.num_rows)
        if field.name == "headers" and column.null_count:
            column = pa.array([each or [] for each in column.to_pylist()], field.type)
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=publication_schema())
