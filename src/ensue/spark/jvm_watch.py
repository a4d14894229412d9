"""Detect that Spark's Java process has ended before the driver.

It was killed, or ran out of memory. Every later call to Spark fails, with varying errors; the cause
to report is that the process has ended.
"""

import logging
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from ensue.core.errors import EnsueError

__all__ = ["SparkGone", "raising_spark_gone", "silence_py4j"]

ENDING_S = 10.0
"""Time for Spark's process to end after the first call to it has failed."""


class SparkGone(EnsueError, RuntimeError):
    """Spark's Java process has ended while it was in use."""

    retriable = True

    def __init__(self, code: int) -> None:
        how = f"by signal {-code}" if code < 0 else f"with code {code}"
        super().__init__(
            f"Spark's Java process has ended, {how}: it was killed, or had too little memory; "
            "start again to resume"
        )
        self.code = code


@contextmanager
def raising_spark_gone(spark: SparkSession) -> Iterator[None]:
    """Raise `SparkGone` instead of errors that the end of Spark's process causes."""
    try:
        yield
    except EnsueError:
        raise
    except Exception as error:
        code = _ended(spark)
        if code is None:
            raise
        raise SparkGone(code) from error


def silence_py4j() -> None:
    """Silence the bridge to Java when Java is about to end."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL + 1)
    # It reports calls that fail halfway to the root logger instead of its own.
    logging.getLogger().addFilter(_is_not_of_py4j)


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return Path(record.pathname).parent.name != "py4j"


def _ended(spark: SparkSession) -> int | None:
    """Return the exit code of Spark's process if it ends within `ENDING_S`, else None."""
    gateway: Any = spark.sparkContext._gateway  # noqa: SLF001
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    if process is None:
        return None
    try:
        return process.wait(ENDING_S)
    except subprocess.TimeoutExpired:
        return None
