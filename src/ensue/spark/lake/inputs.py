"""The inputs of a pipeline: a recorded run, only its trace, or only its log."""

from pathlib import Path

import msgspec
from pyspark.sql import SparkSession

from ensue.checkers import named_order
from ensue.core import trace
from ensue.core.errors import BadInput
from ensue.core.order import Order
from ensue.spark.traces import check_files, is_local, read_trace
from ensue.store import log_folder, open_log
from ensue.store.layout import Layout
from ensue.store.reader import local_path

__all__ = ["Inputs", "find_inputs"]


class Inputs(msgspec.Struct, frozen=True, kw_only=True):
    """Paths of a trace and an event log; None if absent."""

    source: str
    trace: str | None = None
    log: str | None = None
    no_trace: str = ""
    """Why there is no trace."""
    no_log: str = ""
    """Why there is no event log."""

    def check_trace(self) -> None:
        """Raise an error if local files are not a trace; see `check` for URLs."""
        if self.trace is not None and is_local(self.trace) and _has_files(Path(self.trace)):
            check_files(Path(self.trace))

    def order(self) -> str:
        """Return the order that the log or a local trace names; empty: none yet."""
        if self.log is not None and (named := open_log(self.log).order):
            return named
        if self.trace is None or not is_local(self.trace) or not _has_files(Path(self.trace)):
            return ""
        names = trace.named_orders(self.trace) - {Order.name}
        return named_order(names, self.source) if names else ""

    def check(self, spark: SparkSession) -> None:
        """Raise an error if Spark can't read a trace at a URL."""
        if self.trace is not None and not is_local(self.trace):
            read_trace(spark, self.trace)

    def check_lake(self, lake: Path) -> None:
        """Raise an error for a lake inside its source: it would be read as part of it."""
        for place in (self.trace, self.log):
            if place is not None and "://" not in place and lake.is_relative_to(place):
                raise BadInput(f"{lake} lies within {place}, its source: name another lake")


def find_inputs(source: str | Path) -> Inputs:
    """Find the inputs in a recorded run, or in a directory with only one of them."""
    if str(source).lower().startswith("ensue://"):
        why = "a server keeps the events, and no trace"
        return Inputs(source=str(source), log=str(source), no_trace=why)
    if "://" in str(source) and not str(source).startswith("file://"):
        why = "an event log is read from a directory, not from a URL"
        return Inputs(source=str(source), trace=str(source), no_log=why)
    place = local_path(source).absolute()
    if not place.is_dir():
        what = "is a file" if place.exists() else "does not exist"
        raise BadInput(
            f"{source} {what}; a pipeline reads the directory of a recorded run, a trace or an "
            "event log"
        )
    log = log_folder(place).absolute()
    has_log = Layout(log).exists()
    rows = trace.folder(place)
    # A run that has just begun has an empty directory.
    has_trace = rows != place or (not (has_log and log == place) and _has_files(rows))
    if not has_log and not has_trace:
        raise BadInput(
            f"{source} holds neither a trace (Parquet files, here or in trace/) nor an event log "
            "(a folder _commits, here or in log/)"
        )
    return Inputs(
        source=str(place),
        trace=str(rows) if has_trace else None,
        log=str(log) if has_log else None,
        no_trace="" if has_trace else f"there is no trace in {source}",
        no_log="" if has_log else f"there is no event log in {source}",
    )


def _has_files(place: Path) -> bool:
    """Return whether a folder has files of a trace, also in folders like `run=1`.

    Files of other runs below it do not count.
    """
    found = (path for pattern in ("*.parquet", "*=*/**/*.parquet") for path in place.glob(pattern))
    return any(path.name[0] not in "._" for path in found)
