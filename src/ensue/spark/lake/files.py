"""Committed files of a lake's tables, and removal of uncommitted ones.

Spark's Parquet sink writes the growing tables. Tasks write files into the table's folder; when all
are done, Spark commits the batch: a file in `_spark_metadata` lists them. An interrupted batch
leaves unlisted files, some of them empty. Spark ignores them; a tool that reads every file of the
folder reads rows twice, or fails on an empty file.

A pipeline removes them when it starts and when it ends. That is safe while no other process writes:
the driver's lock excludes other pipelines, and `held_by_java` excludes Spark's Java process, which
may outlive a killed driver for a moment, and commit its batch.
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
"""Time to wait for the Java process of a killed pipeline to end."""

READS_MAX = 10
"""Attempts to read a list of files that changes meanwhile."""

_VERSION = "v1"
_POLL_S = 0.1


def committed(table: Path) -> set[str]:
    """Return the names of a table's committed files."""
    for _ in range(READS_MAX):
        # Spark compacts lists into a later one, and removes them some minutes after.
        with suppress(FileNotFoundError):
            return _committed(table)
    raise BadInput(f"{table}: its list of files changes faster than it can be read")


def _committed(table: Path) -> set[str]:
    names: set[str] = set()
    for path in (table / "_spark_metadata").glob("[0-9]*"):
        version, *lines = path.read_text(encoding="utf-8").splitlines()
        if version != _VERSION:
            raise BadInput(f"{path} is of version {version!r}; this release knows {_VERSION}")
        # A compacted list repeats the files of earlier ones.
        names |= {unquote(json.loads(line)["path"]).rpartition("/")[2] for line in lines if line}
    return names


def sweep(table: Path) -> int:
    """Remove files of interrupted batches; return their number."""
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
    """Lock a file in Spark's Java process, until that process ends."""
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001
    channel = jvm.java.io.RandomAccessFile(str(path), "rw").getChannel()
    try:
        deadline = time.monotonic() + JAVA_WAIT_S
        while channel.tryLock() is None:
            if time.monotonic() > deadline:
                raise BadInput(
                    f"the Java process of a killed pipeline still holds {path}: wait until that "
                    "process has ended, or end it"
                )
            threading.Event().wait(_POLL_S)
        yield
    finally:
        channel.close()
