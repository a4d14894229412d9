"""The committed files of a lake's tables, and removal of the others.

A table that grows is written by Spark's Parquet sink. Its tasks write files into the table's
folder, and when all are done a batch is committed: a file in `_spark_metadata` names them. A batch
that was cut short leaves files that nothing names, some of them empty. Spark leaves them out; a
tool that takes every file it finds reads rows twice, or stumbles over an empty one.

They are removed when a pipeline starts, and when it ends. That is safe while no other process
writes: the driver's lock keeps out other pipelines, and `held_by_java` Spark's own process, which
may live for a moment longer than a driver that was killed, and commit what it was at.
"""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from pyspark.sql import SparkSession

from ensue.core.errors import BadInput

__all__ = ["committed", "held_by_java", "sweep"]

JAVA_WAIT_S = 60.0
"""How long to wait for the Spark of a pipeline that was killed to end."""

READS_MAX = 10
"""So often a list of files is read that changes meanwhile."""

_VERSION = "v1"
_POLL_S = 0.1


def committed(table: Path) -> set[str]:
    """Return the names of the files that the committed batches of a table consist of."""
    for _ in range(READS_MAX):
        # Spark removes what it has put together in a later one, some minutes after it did.
        with suppress(FileNotFoundError):
            return _committed(table)
    raise BadInput(f"{table}: its list of files changes faster than it can be read")


def _committed(table: Path) -> set[str]:
    names: set[str] = set()
    for path in (table / "_spark_metadata").glob("[0-9]*"):
        version, *lines = path.read_text(encoding="utf-8").splitlines()
        if version != _VERSION:
            raise BadInput(f"{path} is of version {version!r}; this release knows {_VERSION}")
        # What an earlier one names is in a later, compacted one again.
        names |= {unquote(json.loads(line)["path"]).rpartition("/")[2] for line in lines if line}
    return names


def sweep(table: Path) -> int:
    """Remove files of interrupted batches; return how many. See above."""
    named = committed(table)
    left = [path for path in table.glob("*.parquet") if path.name not in named]
    for path in left:
        path.unlink()
    for path in table.glob(".*.parquet.crc"):
        if path.name.removeprefix(".").removesuffix(".crc") not in named:
            path.unlink()
    return len(left)


@contextmanager
def held_by_java(spark: SparkSession, path: Path) -> Iterator[None]:
    """Let Spark's own process hold a lock, which is free once that process has ended."""
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001
    channel = jvm.java.io.RandomAccessFile(str(path), "rw").getChannel()
    try:
        deadline = time.monotonic() + JAVA_WAIT_S
        while channel.tryLock() is None:
            if time.monotonic() > deadline:
                raise BadInput(
                    f"the Spark of a pipeline that was killed still holds {path}: wait until that "
                    "process has ended, or end it"
                )
            threading.Event().wait(_POLL_S)
        yield
    finally:
        channel.close()
