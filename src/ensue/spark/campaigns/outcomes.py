"""Results of a campaign: in memory, or in a directory that outlives it.

A directory holds Parquet files, each renamed into place when complete, so that a killed campaign
leaves rows of complete cases only. Every file carries the campaign's name; a directory of another
campaign, or with other columns, raises `BadInput`.

HAZARD: two campaigns that write to one directory at the same time do not see each other, and run
every case twice.
"""

import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from ensue.core.errors import BadInput

__all__ = ["Outcomes"]

_NAME = b"ensue.campaign"


class Outcomes:
    """The rows of a campaign; in the driver's memory without `out`."""

    def __init__(self, schema: pa.Schema, *, out: str | Path | None, name: str) -> None:
        self.schema = schema
        self._name = name
        self._kept: list[pa.Table] = []
        if out is not None and "://" in str(out):
            raise BadInput(f"out: {out} is a URL; name a directory that driver and executors share")
        self._out = None if out is None else Path(out).absolute()

    def earlier(self) -> pa.Table:
        """Return the rows of an earlier run; raise an error if of another campaign."""
        if self._out is None:
            return self.schema.empty_table()
        if self._out.exists() and not self._out.is_dir():
            raise BadInput(f"out: {self._out} is a file; name a directory")
        self._out.mkdir(parents=True, exist_ok=True)
        files = sorted(path for path in self._out.glob("*.parquet") if path.name[0] not in "._")
        return pa.concat_tables([self.schema.empty_table(), *map(self._read, files)])

    def add(self, rows: pa.Table) -> None:
        """Add rows of complete cases."""
        if not rows.num_rows:
            return
        if self._out is None:
            self._kept.append(rows)
            return
        name = f"part-{uuid.uuid4().hex}.parquet"
        # Spark and `earlier` skip names that start with a dot.
        unfinished = self._out / f".{name}"
        pq.write_table(rows.replace_schema_metadata({_NAME: self._name.encode()}), str(unfinished))
        unfinished.replace(self._out / name)

    def frame(self, spark: SparkSession) -> DataFrame:
        """Return all rows."""
        kind = from_arrow_schema(self.schema)
        if self._out is not None:
            return spark.read.schema(kind).parquet(str(self._out))
        rows = pa.concat_tables([self.schema.empty_table(), *self._kept])
        return (
            spark.createDataFrame(rows, kind) if rows.num_rows else spark.createDataFrame([], kind)
        )

    def _read(self, path: Path) -> pa.Table:
        try:
            table = pq.ParquetFile(str(path)).read()
        except pa.ArrowInvalid as error:
            raise BadInput(f"out: {path} is no Parquet file: {error}") from None
        found = (table.schema.metadata or {}).get(_NAME, b"").decode()
        if found != self._name:
            raise BadInput(
                f"out: {path} is of the campaign {found!r}, not {self._name!r}; name a new "
                "directory"
            )
        plain = table.replace_schema_metadata(None)
        if not plain.schema.equals(self.schema):
            raise BadInput(
                f"out: {path} has the columns {', '.join(plain.schema.names)} of a campaign with "
                f"another schema; this one has {', '.join(self.schema.names)}: name a new directory"
            )
        return plain
