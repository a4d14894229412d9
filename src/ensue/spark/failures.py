"""What Spark could not do, in one sentence.

Spark tells of a failure in pages: the error of a Python worker within that of a task within that of a job,
each with its trace. One line of them matters.
"""

import re
from typing import TYPE_CHECKING, Any

from ensue.errors import EnsueError

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
_UNRESPONSIVE = "All masters are unresponsive"
_DAMAGED = re.compile(
    r"(?:FAILED_READ_FILE[.\w]*\] )?Encountered error while reading file (?:file:(?://)?)?(\S+?)\.(?:\s|$)"
)


_LOGGERS = (
    "org.apache.spark.executor.Executor",
    "org.apache.spark.scheduler.TaskSetManager",
    "org.apache.spark.sql.execution.datasources.FileFormatWriter",
    "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution",
)
"""What writes of a job or query that fails."""


class SparkFailed(EnsueError, RuntimeError):
    """Spark could not start, or not do its work; the text says why in one sentence."""

    retriable = True


def log_failures(spark: "SparkSession", *, written: bool) -> None:
    """Say whether Spark itself writes of jobs that fail, some traces each, or leaves it to the driver."""
    log4j: Any = spark.sparkContext._jvm.org.apache.logging.log4j  # type: ignore[union-attr] # noqa: SLF001
    level = log4j.Level.ERROR if written else log4j.Level.OFF
    for each in _LOGGERS:
        log4j.core.config.Configurator.setLevel(each, level)


def is_of_spark(error: BaseException) -> bool:
    """Tell whether an error was raised by Spark, by its bridge to Java, or by what reads its files."""
    return any(kind.__module__.partition(".")[0] in _LIBRARIES for kind in type(error).__mro__)


def sentence(told: str) -> str:
    """Return in one sentence what Spark tells of a failure in pages."""
    # Behind it is the plan of the query, which quotes whatever the query might say.
    told = told.partition("=== Streaming Query ===")[0].strip()
    python = no_python(told)
    if python:
        return python
    if _UNRESPONSIVE in told:
        return "the cluster's master does not answer as Spark: check its URL"
    damaged = _DAMAGED.search(told)
    if damaged is not None:
        causes = _CAUSE.findall(told)
        why = f": {causes[-1].strip()}" if causes else ""
        return f"{damaged[1]} can't be read{why}"
    return _line(told)


def no_python(told: str) -> str:
    """Return a sentence if an executor has no Python that can do the work; else empty."""
    missing = _MODULE.findall(told) or _PACKAGE.findall(told)
    if missing:
        return (
            f"Spark's Python on an executor lacks the module {missing[-1].lower()}: install "
            "'ensue[spark]' there, or set PYSPARK_PYTHON to a Python that has it"
        )
    program = _PROGRAM.search(told)
    if program is not None:
        return (
            f"Spark can't start {program[1]} on an executor: set PYSPARK_PYTHON to a Python that has "
            "ensue[spark]"
        )
    return ""


def _line(told: str) -> str:
    """Return the line that matters."""
    found = _RAISED.findall(told)
    if not found and ("[PYTHON_EXCEPTION]" in told or "Traceback (most recent" in told):
        found = _PYTHON.findall(told)
    found = found or _CONDITION.findall(told) or _CAUSE.findall(told) or _JAVA.findall(told)
    return str(found[-1]).strip() if found else told.partition("\n")[0]
