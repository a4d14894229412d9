"""The runs that a report compares: those of one trace, or of several side by side.

A directory with Parquet files is one trace, whatever runs are in it. A directory of directories, such
as `ensue demo` leaves behind, is several traces; they may all call their run the same, so that each
run is called after its directory.
"""

from functools import reduce
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from ensue import trace
from ensue.errors import BadInput
from ensue.spark.traces import read_trace

__all__ = ["read_runs"]


def read_runs(spark: SparkSession, source: str | Path) -> DataFrame:
    """Read a trace, or the traces below a directory, as one data frame."""
    if "://" in str(source):
        return read_trace(spark, source)
    directory = Path(source)
    folders = _folders(directory)
    if not folders:
        return read_trace(spark, directory)
    return reduce(DataFrame.unionByName, (_called(read_trace(spark, one), one) for one in folders))


def _folders(directory: Path) -> list[Path]:
    """Return the directories of several traces; none if this is a single trace, or no trace."""
    if not directory.exists():
        raise BadInput(f"{directory} does not exist; a report is made of a trace, or of several")
    if directory.is_file():
        return []
    inside = trace.folder(directory)
    if any(path.name[0] not in "._" for path in inside.glob("*.parquet")):
        return []
    # Spark itself splits one data set over directories like `run=1`.
    folders = [path for path in sorted(inside.iterdir()) if path.is_dir() and "=" not in path.name]
    return [path for path in folders if any(trace.folder(path).rglob("*.parquet"))]


def _called(frame: DataFrame, folder: Path) -> DataFrame:
    name = f.lit(folder.name)
    several = len(frame.select("run").distinct().limit(2).collect()) > 1
    return frame.withColumn("run", f.concat(name, f.lit("/"), f.col("run")) if several else name)
