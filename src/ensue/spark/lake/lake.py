"""A lake: the directory that a pipeline writes its tables to.

    _pipeline.json      source and order of the lake
    _lock               held by the running pipeline
    _lock_java          held by its Java process
    _checkpoints/       progress of each streaming query
    _versions/          the tables that are rebuilt; see `versioned_tables`
    events/ …           the tables; see `tables`

Spark's Parquet sink writes the tables that only grow; its `_spark_metadata` lists the committed
files. The other tables are links to their current version. `read_table` reads both; so does
`spark.read.parquet("lake/violations")`.

HAZARD: while a pipeline runs, and after one was killed until the next has started, `events`,
`ordered` and `trace` may hold files of uncommitted batches (see `files`). Spark ignores them when
it reads the directory; for other tools `table_files` lists the committed ones.

A lake may be moved or copied, with its symbolic links: `read_table`, `table_files` and a pipeline
work wherever it is (see `location`).

HAZARD: Spark's list of files holds absolute paths: until a pipeline has resumed on a lake that was
moved or copied, `spark.read.parquet("lake/events")` reads the files at their old place.
"""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from ensue.core.errors import BadInput
from ensue.spark.lake.files import committed, sweep
from ensue.spark.lake.location import check_whole, relocate
from ensue.spark.lake.tables import APPENDED, OF_LOG, OF_TRACE, TABLES, arrow_schema
from ensue.spark.lake.versioned_tables import VersionedTables
from ensue.store.reader import local_path

__all__ = ["Choices", "Lake", "read_table", "table_files"]

FORMAT = 2
FORMATS_READ = (1, 2)
"""A lake of format 1 orders its topics from their first event."""


class Choices(msgspec.Struct, frozen=True, kw_only=True):
    """Source and order of a lake, fixed for its lifetime."""

    format: int = FORMAT
    source: str
    order: str
    topics: list[str] | None = None
    """The ordered topics; None until the log has some."""
    cut: dict[str, int] | None = None
    """The offset of each topic where their order begins; None until known."""


class Lake:
    """A lake's directory."""

    def __init__(self, place: str | Path) -> None:
        if "://" in str(place) and not str(place).startswith("file://"):
            raise BadInput(
                f"{place} can't be a lake: expected a directory, as a path or as file:///path; on "
                "a cluster one that the driver and all executors share"
            )
        self.root = local_path(place).absolute()
        self.of_log = VersionedTables(
            self.root, "log", {name: arrow_schema(name) for name in OF_LOG}
        )
        self.of_trace = VersionedTables(
            self.root, "trace", {name: arrow_schema(name) for name in OF_TRACE}
        )
        self._choices = self.root / "_pipeline.json"

    @contextmanager
    def opened(self, wanted: Choices) -> Iterator[Choices]:
        """Lock the lake, created if absent, and yield its choices.

        Choices that contradict those of an existing lake raise `BadInput`.
        """
        found = self._found()
        wanted = self.check(wanted)
        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / "_lock").open("wb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BadInput(
                    f"a pipeline runs on {self.root} already: stop it first, or name another lake"
                ) from None
            if found is not None and found.topics not in (None, wanted.topics):
                self.begin_again("ordered", "gaps")
            if found is not None:
                relocate(self.root)
                check_whole(self.root)
            self.choose(wanted)
            for versioned in (self.of_log, self.of_trace):
                versioned.prepare()
            yield wanted

    def check(self, wanted: Choices) -> Choices:
        """Raise an error if the place can't be this lake; return its choices."""
        if self.root.exists() and not self.root.is_dir():
            raise BadInput(f"{self.root} is a file; a lake is a directory")
        found = self._found()
        if found is not None:
            return self._agreed(found, wanted)
        if self.root.is_dir() and any(self.root.glob("[!_]*")):
            raise BadInput(f"{self.root} is not a lake, and not empty: name a new directory")
        above = next(each for each in self.root.parents if each.exists())
        if not self.root.exists() and not (above.is_dir() and os.access(above, os.W_OK)):
            raise BadInput(f"{self.root} can't be created: {above} is not a writable directory")
        return wanted

    @property
    def order(self) -> str:
        """The order of the lake; empty: there is none yet."""
        found = self._found()
        return "" if found is None else found.order

    def choose(self, choices: Choices) -> None:
        """Save the choices."""
        unfinished = self._choices.with_name(f"{self._choices.name}.unfinished")
        unfinished.write_bytes(msgspec.json.format(msgspec.json.encode(choices)) + b"\n")
        unfinished.replace(self._choices)

    def _found(self) -> Choices | None:
        try:
            data = self._choices.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            found = msgspec.json.decode(data, type=Choices)
        except msgspec.DecodeError as error:
            raise BadInput(f"{self._choices} is damaged: {error}") from None
        if found.format not in FORMATS_READ:
            raise BadInput(
                f"{self.root} is of format {found.format}; this release knows up to {FORMAT}: name "
                "a new lake, or install the release that made it"
            )
        return msgspec.structs.replace(found, format=FORMAT)

    def _agreed(self, found: Choices, wanted: Choices) -> Choices:
        for what in ("source", "order"):
            old, new = getattr(found, what), getattr(wanted, what)
            if old != new:
                raise BadInput(
                    f"{self.root} was made with {what} {old}, not {new}: use {old}, or name "
                    "another lake"
                )
        if wanted.topics is None or wanted.topics == found.topics:
            return found
        # The topics may change until the first event is ordered.
        if found.topics is not None and self.has_begun("ordered"):
            raise BadInput(
                f"{self.root} orders the topics {', '.join(found.topics)}, not "
                f"{', '.join(wanted.topics)}: leave --topics out, or name another lake"
            )
        return wanted

    def checkpoint(self, stage: str) -> str:
        """Return the checkpoint directory of a streaming query."""
        return str(self.root / "_checkpoints" / stage)

    def begin_again(self, *stages: str) -> None:
        """Remove the checkpoints of stages that have written nothing to the lake."""
        for stage in stages:
            shutil.rmtree(self.checkpoint(stage), ignore_errors=True)

    def has_begun(self, table: str) -> bool:
        """Return whether a growing table has its first batch."""
        return any((self.root / table / "_spark_metadata").glob("[0-9]*"))

    def versioned(self, table: str) -> VersionedTables:
        """Return the versioned tables that a rebuilt table belongs to."""
        return self.of_log if table in OF_LOG else self.of_trace

    def sweep(self) -> int:
        """Remove files of interrupted batches; only while no process writes."""
        return sum(sweep(self.root / table) for table in APPENDED)

    def files(self, table: str) -> list[Path]:
        """Return the current files of a table."""
        _check_name(table)
        if table in APPENDED:
            check_whole(self.root, [table])
            return sorted(self.root / table / name for name in committed(self.root / table))
        return sorted(self.versioned(table).directory(table).glob("*.parquet"))

    def read(self, spark: SparkSession, table: str) -> DataFrame:
        """Read a table as it is now."""
        _check_name(table)
        schema = from_arrow_schema(arrow_schema(table))
        if table in APPENDED:
            # By name: the list of files may have the paths of a lake that was moved.
            files = self.files(table)
            if not files:
                return spark.createDataFrame([], schema)
            return spark.read.schema(schema).parquet(*map(str, files))
        return spark.read.schema(schema).parquet(str(self.versioned(table).directory(table)))

    def count(self, spark: SparkSession, table: str) -> int:
        """Return how many rows a table has."""
        if table in APPENDED:
            return self.read(spark, table).count()
        return self.versioned(table).count(table)


def _check_name(table: str) -> None:
    if table not in TABLES:
        raise BadInput(f"a lake has no table {table!r}; it has {', '.join(TABLES)}")


def _existing(lake: str | Path) -> Lake:
    found = Lake(lake)
    if not (found.root / "_pipeline.json").is_file():
        raise BadInput(f"{lake} is not a lake: it has no _pipeline.json")
    return found


def read_table(spark: SparkSession, lake: str | Path, table: str) -> DataFrame:
    """Read a table of a lake as it is now.

    `read_table(spark, "lake", "metrics/latency")`. Rows that a running pipeline adds or replaces
    meanwhile are not seen, and do no harm.
    """
    return _existing(lake).read(spark, table)


def table_files(lake: str | Path, table: str) -> list[str]:
    """Return the Parquet files of a table as it is now, for tools without Spark.

    `pyarrow.dataset.dataset(table_files("lake", "events"))`. Starts no Spark. Empty for a table
    that has had no batch yet.
    """
    return [str(path) for path in _existing(lake).files(table)]
