"""Spark sessions of commands, with their stderr and a progress bar."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ensue.cli import output
from ensue.cli.child_stderr import filtered
from ensue.core import trace
from ensue.core.errors import BadInput

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["CommandProgress", "on_spark", "start"]

REFRESH_S = 0.5
"""Interval between updates of the bar."""


def start(
    master: str | None, app: str, progress: "CommandProgress | None" = None
) -> "SparkSession":
    """Start Spark, and filter noise from the stderr of its processes."""
    from ensue.spark import session  # noqa: PLC0415 - an extra
    from ensue.spark.failures import log_failures  # noqa: PLC0415 - as above
    from ensue.spark.masters import check_master  # noqa: PLC0415 - as above

    if master is not None:
        check_master(master, "--master")
    with filtered(progress.print_line if progress is not None and progress.has_bar else None):
        spark = session(master, app=app)
    # The command prints failures in one sentence.
    log_failures(spark, written=False)
    return spark


class CommandProgress:
    """The progress of a command: lines and, on a terminal, a bar below them."""

    def __init__(self) -> None:
        self._bar: Progress | None = None
        self._ended = threading.Event()
        if sys.stderr.isatty():
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("tasks"),
                TimeElapsedColumn(),
                # A duplicate: descriptor 2 is redirected while Spark starts.
                console=Console(file=os.fdopen(os.dup(2), "w"), highlight=False),
                transient=True,
            )
            self._task = self._bar.add_task("", total=None)

    @property
    def has_bar(self) -> bool:
        """Whether a bar is shown: on a terminal."""
        return self._bar is not None

    def print_line(self, line: str) -> None:
        """Print a line, above the bar if there is one."""
        if self._bar is None:
            output.print_stderr(line)
        else:
            self._bar.console.print(line, markup=False, emoji=False, soft_wrap=True)

    def stage(self, name: str) -> None:
        """Show the current stage."""
        if self._bar is None:
            output.print_stderr(f"{name} …")
        else:
            self._bar.update(self._task, description=name)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the bar, if there is one, in this context."""
        if self._bar is None:
            yield
            return
        with self._bar:
            try:
                yield
            finally:
                self._ended.set()

    def follow(self, spark: "SparkSession") -> None:
        """Show the completed tasks of Spark's active stages in the bar."""
        if self._bar is not None:
            tracker = spark.sparkContext.statusTracker()
            threading.Thread(target=self._follow, args=(tracker,), daemon=True).start()

    def _follow(self, tracker: Any) -> None:
        assert self._bar is not None
        # Spark may end at any time; the command itself reports that.
        with suppress(Exception):
            while not self._ended.wait(REFRESH_S):
                stages = [tracker.getStageInfo(each) for each in tracker.getActiveStageIds()]
                known = [each for each in stages if each is not None]
                self._bar.update(
                    self._task,
                    total=sum(each.numTasks for each in known) or None,
                    completed=sum(each.numCompletedTasks for each in known),
                )


@contextmanager
def on_spark(
    master: str | None, app: str, *, reads: str | None = None
) -> Iterator[tuple["SparkSession", CommandProgress]]:
    """Start Spark for a command, and show its progress.

    `reads` is a trace. If Spark fails and a file of the trace is damaged, the error names the file.
    """
    progress = CommandProgress()
    with progress.shown():
        progress.stage("starting Spark")
        spark = start(master, app, progress)
        progress.follow(spark)
        try:
            yield spark, progress
        except Exception as error:
            damage = None if reads is None else _damage(reads, error)
            if damage is None:
                raise
            raise damage from error


def _damage(reads: str, error: Exception) -> BadInput | None:
    """Return the error of a damaged file in a trace that Spark could not read."""
    from ensue.spark.failures import is_of_spark  # noqa: PLC0415 - an extra
    from ensue.spark.traces import find_damage, is_local  # noqa: PLC0415 - as above

    if not is_of_spark(error) or not is_local(reads):
        return None
    return find_damage(trace.files(Path(reads)))
