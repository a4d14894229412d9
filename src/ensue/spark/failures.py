"""One-sentence reports of Spark failures.

Spark reports a failure in pages: the error of a Python worker inside that of a task inside that of
a job, each with its stack trace. A single line explains it.
"""

import os
import re
from typing import TYPE_CHECKING, Any

from ensue.core.errors import EnsueError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SparkFailed", "is_of_spark", "log_failures", "no_python", "sentence"]

_LIBRARIES = ("pyspark", "py4j", "pyarrow")

_RAISED = re.compile(r"ensue\.[\w.]+: ([^\n]+)")
_PYTHON = re.compile(r"^\w[\w.]*(?:Error|Exception|Invalid): [^\n]+", re.MULTILINE)
_CONDITION = re.compile(r"\[[A-Z]+(?:_[A-Z]+)+(?:\.[A-Z_]+)*\] [^\n]+")
_CAUSE = re.compile(r"^Caused by: [\w.$]+: ([^\n]+)", re.MULTILINE)
_JAVA = re.compile(r"^: [\w.$]+(?:Exception|Error): ([^\n]+)", re.MULTILINE)

_MODULE = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")
_PACKAGE = re.compile(r"\[PACKAGE_NOT_INSTALLED\] (\w+)")
_PROGRAM = re.compile(r'Cannot run program "([^"]+)"')
_SOURCE = "Failed to find the data source: ensue."
"""Spark asks its Python for modules `pyspark_…`. A Python that lacks ensue, or does not start,
reports none."""
_UNRESPONSIVE = "All masters are unresponsive"
_DAMAGED = re.compile(
    r"(?:FAILED_READ_FILE[.\w]*\] )?Encountered error while reading file "
    r"(?:file:(?://)?)?(\S+?)\.(?:\s|$)"
)


_LOGGERS = (
    "org.apache.spark.executor.Executor",
    "org.apache.spark.scheduler.TaskSetManager",
    "org.apache.spark.sql.execution.adaptive.AdaptiveSparkPlanExec",
    "org.apache.spark.sql.execution.datasources.FileFormatWriter",
    "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution",
    "org.apache.spark.util.Utils",
)
"""Spark's loggers of failed jobs and queries."""


class SparkFailed(EnsueError, RuntimeError):
    """Spark could not start or finish its work; the text gives the reason."""

    retriable = True


def log_failures(spark: "SparkSession", *, written: bool) -> None:
    """Turn Spark's own log of failed jobs on or off.

    Turn it off where the driver reports failures.
    """
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001
    log4j = jvm.org.apache.logging.log4j
    level = log4j.Level.ERROR if written else log4j.Level.OFF
    for each in _LOGGERS:
        log4j.core.config.Configurator.setLevel(each, level)


def is_of_spark(error: BaseException) -> bool:
    """Return whether Spark, its bridge to Java, or its file reader raised an error."""
    return any(kind.__module__.partition(".")[0] in _LIBRARIES for kind in type(error).__mro__)


def sentence(message: str) -> str:
    """Return the sentence that explains a failure that Spark reports in pages."""
    # The plan of the query follows, and may quote error texts.
    message = message.partition("=== Streaming Query ===")[0].strip()
    python = no_python(message)
    if python:
        return python
    if _UNRESPONSIVE in message:
        return "the cluster's master does not answer as Spark: check its URL"
    damaged = _DAMAGED.search(message)
    if damaged is not None:
        causes = _CAUSE.findall(message)
        why = f": {causes[-1].strip()}" if causes else ""
        return f"{damaged[1]} can't be read{why}"
    return _line(message)


def no_python(message: str) -> str:
    """Return why executors have no usable Python; empty if another failure."""
    missing = _MODULE.findall(message) or _PACKAGE.findall(message)
    if missing:
        return (
            f"Spark's Python on an executor lacks the module {missing[-1].lower()}: install "
            "'ensue[spark]' there, or set PYSPARK_PYTHON to a Python that has it"
        )
    program = _PROGRAM.search(message)
    if program is not None:
        return (
            f"Spark can't start {program[1]} on an executor: set PYSPARK_PYTHON to a Python that "
            "has ensue[spark]"
        )
    if _SOURCE in message:
        python = os.environ.get("PYSPARK_PYTHON", "python3")
        return (
            f"Spark's Python, {python}, does not start or lacks ensue: install 'ensue[spark]' "
            "there, or set PYSPARK_PYTHON to a Python that has it"
        )
    return ""


def _line(message: str) -> str:
    """Return the line that explains the failure."""
    found = _RAISED.findall(message)
    if not found and ("[PYTHON_EXCEPTION]" in message or "Traceback (most recent" in message):
        found = _PYTHON.findall(message)
    found = (
        found or _CONDITION.findall(message) or _CAUSE.findall(message) or _JAVA.findall(message)
    )
    return str(found[-1]).strip() if found else message.partition("\n")[0]
