"""The runs that a report compares: those of one trace, or of several.

A directory with Parquet files is one trace, with any number of runs. A directory of directories,
such as `ensue demo` writes, is several traces. Their runs may have equal names, so each run gets
the name of its directory.

Clients in several processes write one trace each of the same run, as `ensue check` reads them.
Their rows distinguish them from traces of several runs: all name one run, no two share a node, and
a node of one delivered an event that only another one published.
"""

from collections.abc import Sequence
from functools import reduce
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from ensue.core import trace
from ensue.core.errors import BadInput
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
    frames = [read_trace(spark, one) for one in folders]
    if _is_one_run(frames):
        return read_trace(spark, directory)
    named = (_called(frame, one) for frame, one in zip(frames, folders, strict=True))
    return reduce(DataFrame.unionByName, named)


def _folders(directory: Path) -> list[Path]:
    """Return the directories of several traces; none for a single trace or no trace."""
    if not directory.exists():
        raise BadInput(f"{directory} does not exist; a report needs a trace, or several")
    if directory.is_file():
        return []
    inside = trace.folder(directory)
    if any(path.name[0] not in "._" for path in inside.glob("*.parquet")):
        return []
    # Spark splits one data set over directories like `run=1`.
    folders = [path for path in sorted(inside.iterdir()) if path.is_dir() and "=" not in path.name]
    return [path for path in folders if path.name[0] not in "._" and _has_files(path)]


def _has_files(folder: Path) -> bool:
    try:
        return bool(trace.files(folder))
    except BadInput:
        return False


def _is_one_run(frames: Sequence[DataFrame]) -> bool:
    """Return whether several processes recorded these traces of one run."""
    if len(frames) < 2:
        return False
    facts = (
        frame.select(
            f.lit(number).alias("folder"),
            "run",
            "node",
            f.when(f.col("action").isin("submitted", "published"), f.col("publisher")).alias(
                "published"
            ),
            f.when(f.col("action") == "delivered", f.col("publisher")).alias("delivered"),
        ).distinct()
        for number, frame in enumerate(frames)
    )
    rows = reduce(DataFrame.unionByName, facts).collect()
    nodes = {(row["folder"], row["node"]) for row in rows}
    if len({row["run"] for row in rows}) != 1 or len(nodes) != len({node for _, node in nodes}):
        return False
    published: dict[str, set[int]] = {}
    for row in rows:
        if row["published"] is not None:
            published.setdefault(row["published"], set()).add(row["folder"])
    heard = ((row["folder"], published.get(row["delivered"], set())) for row in rows)
    return any(folders and folder not in folders for folder, folders in heard)


def _called(frame: DataFrame, folder: Path) -> DataFrame:
    name = f.lit(folder.name)
    several = len(frame.select("run").distinct().limit(2).collect()) > 1
    return frame.withColumn("run", f.concat(name, f.lit("/"), f.col("run")) if several else name)
