"""`df.write.format("ensue")`: publish a data frame's rows, each of them once.

Tasks write what they are given to files of their own. When all are done the driver's `commit` takes
the log's lock, numbers and stamps the rows, and appends them with one commit of the log: all of a
batch or nothing, whichever process is killed. For a stream that commit carries the query's id and
the number of the batch; a batch that Spark runs again finds them there and publishes nothing.

Rows keep their order within a partition, and partitions theirs.

Options: `url` (or `save(path)`): the log, made if absent. `publisher`: who publishes, needed unless
the rows say so. `topic`: where to, needed unless the rows say so; it wins over the column.
`lockTimeoutSeconds`: how long to wait for another writer of the log (60).

Columns: `value` (binary or string), and optionally `topic`, `key` (binary or string), `headers`,
`publisher`, `publisher_seq`, `published_at`. With `publisher_seq` the row brings its own id: it is
published once, however often and by whomever it is written. `event`, `stamp` and `offset` are not
looked at, so that what was read from one log can be written to another, which gives its own.

Two queries that use one publisher's name don't get in each other's way: numbers are given under the
lock, and each query's batches are identified by its id. A query that begins anew with an empty
checkpoint is another query, and publishes everything again, unless the rows bring their ids.

HAZARD: a batch write (no stream) that is repeated by hand publishes again, unless its rows bring
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
    """What one task wrote."""

    partition: int
    file: str
    query: str
    """The id of the streaming query; empty for a batch."""


class _Writer:
    """What batches and streams share."""

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
        """Write what one task was given to a file of its own."""
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
        """Append what all tasks wrote."""
        with LogWriter(self.directory, wait_s=self.options.lock_timeout_s) as log:
            if token is not None and log.has(token):
                return
            tables = [
                ipc.open_file(pa.memory_map(each.file)).read_all()
                for each in sorted(staged, key=lambda each: each.partition)
            ]
            publish(log, pa.concat_tables(tables), token=token)

    def clear(self, query: str, up_to: int) -> None:
        """Remove what attempts at batches up to one have written."""
        folder = Path(self.directory) / "_staged" / query
        for path in folder.glob("*"):
            if path.name.isdecimal() and int(path.name) <= up_to:
                shutil.rmtree(path, ignore_errors=True)
        # Gone unless another attempt is writing.
        with contextlib.suppress(OSError):
            folder.rmdir()


class LogBatchWriter(_Writer, DataSourceArrowWriter):
    """Publishes a data frame."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:  # type: ignore[override]
        """Write what one task was given to a file of its own."""
        return self.stage(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Append what all tasks wrote."""
        staged = _staged(messages)
        if staged:
            self.publish(staged, None)
        self.clear(self.job, 0)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove what tasks wrote."""
        del messages  # A task that failed has none, and may have left a file all the same.
        self.clear(self.job, 0)


class LogStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Publishes a stream, each micro-batch once."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:  # type: ignore[override]
        """Write what one task was given to a file of its own."""
        staged = self.stage(iterator)
        if not staged.query:
            raise SparkFault("NO_QUERY_ID", "Spark gave no id of the streaming query")
        return staged

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Append what all tasks wrote, unless this batch is in the log already."""
        staged = _staged(messages)
        if not staged:
            return
        query = staged[0].query
        self.publish(staged, Token(writer=f"spark/{query}", batch=batchId))
        self.clear(query, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Remove what tasks wrote."""
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
    """Return the rows as they are to be published, before they are numbered."""
    columns: list[pa.Array[Any]] = []
    for field in publication_schema():
        fixed = getattr(options, field.name, None) if field.name in ("topic", "publisher") else None
        given = batch.column(field.name) if field.name in batch.schema.names else None
        # A publisher column says more than the option; a topic option is meant for all rows.
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
                column = pa.MapArray.from_arrays(edges, nothing, nothing)  # type: ignore[call-overload]
            else:
                column = pa.repeat(pa.scalar(constant, field.type), batch.num_rows)
        if field.name == "headers" and column.null_count:
            column = pa.array([each or [] for each in column.to_pylist()], field.type)
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=publication_schema())
