"""A pool that plays many seeds, in processes or on Spark.

Results are in seed order, whichever process finishes first. So the first reported failure is the
lowest failing seed, on every machine and with any number of processes.

If a process dies, the lowest seed without a result fails.
"""

import multiprocessing
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ensue.cli.spark_runs import start
from ensue.core.errors import BadInput
from ensue.simulation.seeds import SeedResult

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["parse_seeds", "play_all", "play_on_spark", "progress", "start_spark"]

Play = Callable[[int], SeedResult]
"""Plays one seed; a function that can be pickled."""

AHEAD = 4
"""Seeds submitted per process before the first result."""
PLAIN_SECONDS = 10.0
"""Interval between progress lines without a terminal."""


def parse_seeds(text: str) -> range:
    """Parse `A:B`, the seeds from A up to but not including B, or one seed `A`."""
    if text.isdecimal():
        return range(int(text), int(text) + 1)
    first, colon, last = text.partition(":")
    if not colon or not first.isdecimal() or not last.isdecimal() or int(first) >= int(last):
        raise BadInput(
            f"{text!r} is not a range of seeds; expected FIRST:END, such as 0:1000, or one seed"
        )
    return range(int(first), int(last))


def play_all(play: Play, seeds: Sequence[int], jobs: int) -> Generator[SeedResult]:
    """Play many seeds, and yield their results in seed order."""
    if jobs == 1:
        yield from map(play, seeds)
        return
    waiting = iter(seeds)
    pending: deque[tuple[int, Future[SeedResult]]] = deque()
    executor = ProcessPoolExecutor(jobs, initializer=_ignore_interrupts)
    try:
        for seed in islice(waiting, jobs * AHEAD):
            pending.append((seed, executor.submit(play, seed)))
        while pending:
            seed, future = pending.popleft()
            try:
                yield future.result()
            except BrokenProcessPool:
                why = f"a process died while it played this seed or one of the next {len(pending)}"
                yield SeedResult(seed=seed, failure=(why,))
                return
            for following in islice(waiting, 1):
                pending.append((following, executor.submit(play, following)))
    finally:
        # Running seeds are not needed any more, and may never end.
        for child in multiprocessing.active_children():
            child.terminate()
        executor.shutdown(cancel_futures=True)


def start_spark(master: str) -> "SparkSession":
    """Start Spark for a search."""
    spark = start(master, "ensue swarm")
    # Spark's handler of Ctrl-C prints a long message for every job that it cancels.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return spark


def play_on_spark(
    spark: "SparkSession",
    play: Play,
    seeds: Sequence[int],
    watch: Callable[[SeedResult], bool],
    out: Path | None,
    *,
    name: str,
) -> None:
    """Play many seeds on Spark, and call `watch` with each result, in seed order."""
    from ensue.spark.campaigns.swarm import play_seeds  # noqa: PLC0415 - as above

    play_seeds(spark, play, seeds, watch=watch, out=out, name=name)


def _ignore_interrupts() -> None:
    """Ignore Ctrl-C: the parent handles it and ends its processes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int, str], None]]:
    """Yield a function that shows progress: a bar on a terminal, else lines."""
    if sys.stderr.isatty():
        bar = Progress(
            TextColumn(what),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        task = bar.add_task(what, total=total, note="")
        with bar:
            yield lambda done, note: bar.update(task, completed=done, note=note)
        return
    printed = time.monotonic()

    def show(done: int, note: str) -> None:
        nonlocal printed
        if time.monotonic() - printed >= PLAIN_SECONDS:
            printed = time.monotonic()
            sys.stderr.write(f"{what}: {done} of {total}, {note}\n")

    yield show
