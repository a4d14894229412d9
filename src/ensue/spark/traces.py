"""A trace as a data frame.

Columns and types are those of `ensue.core.trace`. Other files in the directory raise `BadInput`.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t
from pyspark.sql.pandas.types import from_arrow_schema

from ensue.checkers import named_order
from ensue.core import trace
from ensue.core.errors import BadInput
from ensue.spark.sessions import session

__all__ = [
    "check_files",
    "check_trace",
    "find_damage",
    "is_local",
    "order_of_trace",
    "orders_of_runs",
    "read_trace",
    "trace_schema",
]

_REMOTE = "://"


def trace_schema() -> t.StructType:
    """Return the schema of a trace."""
    return from_arrow_schema(trace.schema())


def read_trace(spark: SparkSession, source: str | Path) -> DataFrame:
    """Read a trace: a directory, a recorded run, one Parquet file, or a URL."""
    places = [str(source)]
    if is_local(source):
        places = [str(path.absolute()) for path in check_files(Path(source))]
    return spark.read.schema(trace_schema()).parquet(*places)


def order_of_trace(source: DataFrame | str | Path) -> str:
    """Return the order that the rows of a trace name; raise unless it is one."""
    if isinstance(source, str | Path) and is_local(source):
        return named_order(trace.named_orders(source), source)
    frame = source if isinstance(source, DataFrame) else read_trace(session(), source)
    names = set[str]().union(*orders_of_runs(frame).values())
    return named_order(names, "the trace" if isinstance(source, DataFrame) else source)


def orders_of_runs(frame: DataFrame) -> dict[str, set[str]]:
    """Return the orders that the rows of each run name, as `ensue.core.trace.named_orders`."""
    found: dict[str, set[str]] = {}
    parts = f.count("transaction").alias("parts")
    for row in frame.groupBy("run", "order").agg(parts).collect():
        names = found.setdefault(row["run"], set())
        names.add(row["order"])
        if row["parts"]:
            names.add("transactions")
    return found


def is_local(source: str | Path) -> bool:
    """Return whether a trace has a local path, not a URL."""
    return _REMOTE not in str(source)


def find_damage(paths: Iterable[Path]) -> BadInput | None:
    """Return the error of the first damaged Parquet file; None if all are intact.

    Spark names the file of a damaged page only if its reader fails, not if a dictionary lookup
    fails later. This reads every page, so call it after a failure.
    """
    for path in paths:
        try:
            with pq.ParquetFile(str(path)) as file:
                for _ in file.iter_batches():
                    pass
        except (pa.ArrowException, OSError) as error:
            return trace.unreadable(path, error)
    return None


def check_trace(frame: DataFrame) -> None:
    """Raise an error if a data frame lacks a column of a trace, or has a wrong type."""
    wanted = {field.name: field.dataType for field in trace_schema()}
    found = {field.name: field.dataType for field in frame.schema}
    for name, kind in wanted.items():
        if name not in found:
            raise BadInput(
                f"the data frame is no trace: column {name!r} is missing; "
                f"expected {kind.simpleString()}"
            )
        if found[name].simpleString() != kind.simpleString():
            raise BadInput(
                f"the data frame is no trace: column {name!r} is {found[name].simpleString()}; "
                f"expected {kind.simpleString()}"
            )


def check_files(source: Path) -> Sequence[Path]:
    """Return a trace's local files; raise an error for other schemas and formats.

    This needs no Spark.
    """
    paths = trace.files(source)
    for path in paths:
        try:
            with pq.ParquetFile(str(path)) as file:
                found, null_counts = file.schema_arrow, _null_counts(file.metadata)
        except (pa.ArrowException, OSError) as error:
            raise trace.unreadable(path, error) from error
        trace.check_columns(path, found, null_counts)
    return paths


def _null_counts(metadata: pq.FileMetaData) -> Counter[str]:
    """Return the number of nulls of each column, from the file's statistics."""
    found: Counter[str] = Counter()
    for group in range(metadata.num_row_groups):
        for index in range(metadata.num_columns):
            column = metadata.row_group(group).column(index)
            statistics = column.statistics
            if statistics is not None and statistics.null_count:
                found[column.path_in_schema] += statistics.null_count
    return found
