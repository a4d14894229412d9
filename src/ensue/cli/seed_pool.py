"""Play the scenarios of many seeds, spread over processes or over Spark.

Results come in the order of the seeds, whoever finishes first, so that what is reported as the
first failure is the lowest failing seed, on every machine and with any number of processes.

The death of a process is a failure too, which is told of the lowest seed that has no result.
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

from ensue.cli.spark_work import start
from ensue.errors import BadInput
from ensue.simulation.seeds import SeedResult, play_seed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["parse_seeds", "play_all", "play_on_spark", "progress", "start_spark"]

AHEAD = 4
"""Seeds handed out for each process before the first of them is back."""
PLAIN_SECONDS = 10.0
"""How often progress is told where there is no terminal."""


def parse_seeds(text: str) -> range:
    """Read `A:B`, the seeds from A up to but not including B; or `A`, that one alone."""
    if text.isdecimal():
        return range(int(text), int(text) + 1)
    first, colon, last = text.partition(":")
    if not colon or not first.isdecimal() or not last.isdecimal() or int(first) >= int(last):
        raise BadInput(
            f"{text!r} are no seeds; write the first and the one after the last, such as 0:1000, "
            "or one alone"
        )
    return range(int(first), int(last))


def play_all(protocol: str, seeds: Sequence[int], jobs: int) -> Generator[SeedResult]:
    """Play many seeds and give their results in the order of the seeds."""
    if jobs == 1:
        yield from (play_seed(protocol, seed) for seed in seeds)
        return
    waiting = iter(seeds)
    pending: deque[tuple[int, Future[SeedResult]]] = deque()
    executor = ProcessPoolExecutor(jobs, initializer=_ignore_interrupts)
    try:
        for seed in islice(waiting, jobs * AHEAD):
            pending.append((seed, executor.submit(play_seed, protocol, seed)))
        while pending:
            seed, future = pending.popleft()
            try:
                yield future.result()
            except BrokenProcessPool:
                why = f"the process died that played it, or one of the {len(pending)} after it"
                yield SeedResult(seed=seed, failure=(why,))
                return
            for following in islice(waiting, 1):
                pending.append((following, executor.submit(play_seed, protocol, following)))
    finally:
        # What is still being played is of no interest any more, and could take for ever.
        for child in multiprocessing.active_children():
            child.terminate()
        executor.shutdown(cancel_futures=True)


def start_spark(master: str) -> "SparkSession":
    """Start Spark for a search."""
    spark = start(master, "ensue swarm")
    # Spark's own way with Ctrl-C ends every job at once and tells of each at length.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return spark


def play_on_spark(
    spark: "SparkSession",
    protocol: str,
    seeds: Sequence[int],
    watch: Callable[[SeedResult], bool],
    out: Path | None,
) -> None:
    """Play many seeds on Spark and show their results in the order of the seeds."""
    from ensue.spark.swarms import play_seeds  # noqa: PLC0415 - as above

    play_seeds(spark, protocol, seeds, watch=watch, out=out)


def _ignore_interrupts() -> None:
    """Leave Ctrl-C to the parent, which ends its processes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int, str], None]]:
    """Give a function to be called with what is done: a bar on a terminal, else lines."""
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
    told = time.monotonic()

    def tell(done: int, note: str) -> None:
        nonlocal told
        if time.monotonic() - told >= PLAIN_SECONDS:
            told = time.monotonic()
            sys.stderr.write(f"{what}: {done} of {total}, {note}\n")

    yield tell
