"""Work of a command on Spark: its session, what it says on stderr, and a bar on a terminal."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ensue.cli import output
from ensue.cli.child_stderr import filtered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Work", "on_spark", "start"]

LOOK_S = 0.5
"""How often a bar is brought up to date."""


def start(master: str | None, app: str, work: "Work | None" = None) -> "SparkSession":
    """Start Spark, without the lines of its processes that say nothing."""
    from ensue.spark import session  # noqa: PLC0415 - an extra
    from ensue.spark.failures import log_failures  # noqa: PLC0415 - as above
    from ensue.spark.masters import check_master  # noqa: PLC0415 - as above

    if master is not None:
        check_master(master, "--master")
    with filtered(work.tell if work is not None and work.has_bar else None):
        spark = session(master, app=app)
    # The command says in one sentence what failed.
    log_failures(spark, written=False)
    return spark


class Work:
    """Tells what a command is at: in lines, and on a terminal by a bar beneath them."""

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
                # A descriptor of its own, as that of stderr is another one while Spark starts.
                console=Console(file=os.fdopen(os.dup(2), "w"), highlight=False),
                transient=True,
            )
            self._task = self._bar.add_task("", total=None)

    @property
    def has_bar(self) -> bool:
        """Whether there is a terminal to show one."""
        return self._bar is not None

    def tell(self, line: str) -> None:
        """Say something in a line."""
        if self._bar is None:
            output.tell(line)
        else:
            self._bar.console.print(line, markup=False, emoji=False, soft_wrap=True)

    def at(self, what: str) -> None:
        """Say what is being done from now on."""
        if self._bar is None:
            output.tell(f"{what} …")
        else:
            self._bar.update(self._task, description=what)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the bar meanwhile, if there is one."""
        if self._bar is None:
            yield
            return
        with self._bar:
            try:
                yield
            finally:
                self._ended.set()

    def follow(self, spark: "SparkSession") -> None:
        """Let the bar tell how many of the tasks are done that Spark is at."""
        if self._bar is not None:
            tracker = spark.sparkContext.statusTracker()
            threading.Thread(target=self._follow, args=(tracker,), daemon=True).start()

    def _follow(self, tracker: Any) -> None:
        assert self._bar is not None
        # Spark may end at any moment; who needs it tells of that.
        with suppress(Exception):
            while not self._ended.wait(LOOK_S):
                stages = [tracker.getStageInfo(each) for each in tracker.getActiveStageIds()]
                known = [each for each in stages if each is not None]
                self._bar.update(
                    self._task,
                    total=sum(each.numTasks for each in known) or None,
                    completed=sum(each.numCompletedTasks for each in known),
                )


@contextmanager
def on_spark(master: str | None, app: str) -> Iterator[tuple["SparkSession", Work]]:
    """Start Spark for a command, and have it say meanwhile how far it is."""
    work = Work()
    with work.shown():
        work.at("starting Spark")
        spark = start(master, app, work)
        work.follow(spark)
        yield spark, work
