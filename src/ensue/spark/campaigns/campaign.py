"""Play many cases on Spark, and watch the results as they arrive.

`campaign` is for whatever is played case by case: seeds of a simulation, or parameters times seeds
of an experiment. It guarantees
- results in the order of the cases, whichever finishes first: what `watch` sees first to be wrong
  is the first case that is wrong, on every machine and with any number of tasks;
- a row for every case: one that raises, or takes its whole process down, has its error in that row;
- that a campaign with a directory goes on where it was interrupted.

How. The driver hands out jobs of one task each, a few more at a time than there is room for, and
takes their results in order. The first tasks play one case each; from what cases took follows how
many make a task worth starting. A task that dies is played again in halves, until the case that
killed it is alone. Jobs run in a session of their own, so that ending them ends no other jobs.

Assumptions: `play` can be pickled, and gives the same for the same case. The executors can import
what it imports, Ensue included: on a cluster, install it there or ship it with `--py-files` (on
Spark Connect, `spark.addArtifacts`).

HAZARD: without `out` the rows are kept by the driver, and lost with it.
"""

import math
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from ensue.core.errors import BadInput, EnsueError
from ensue.spark.campaigns.cases import (
    INDEX,
    Cases,
    Play,
    failed,
    outcome_schema,
    play_in_task,
    unpacked,
)
from ensue.spark.campaigns.outcomes import Outcomes
from ensue.spark.failures import SparkFailed, no_python

__all__ = ["campaign"]

TASK_SECONDS = 2.0
"""How long a task should take: starting one costs some tenths of a second."""
GROWTH_MAX = 8
"""A task has at most so many times the cases of the largest one known to have gone well."""
AHEAD = 4
"""Tasks handed out for each that can run at once, before the first of them is back."""
GRACE_SECONDS = 2 * TASK_SECONDS
"""How long abandoned tasks may take to end by themselves. Spark logs every one that is ended by
force on stderr."""

_MISSING_MODULE = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")

Watch = Callable[[Mapping[str, Any]], bool | None]


def campaign(
    spark: SparkSession,
    play: Play,
    cases: Sequence[Any] | DataFrame,
    *,
    schema: str | StructType,
    key: str = "case",
    watch: Watch | None = None,
    out: str | Path | None = None,
    name: str = "",
    cases_per_task: int | None = None,
    tasks: int | None = None,
) -> DataFrame:
    """Play every case and return one row, or more, for each.

    `play` gets a case and returns a mapping of column to value, or several, as `schema` names and
    types them. `cases` are numbers or texts, in a column called `key`; or mappings; or the rows of
    a data frame, which `play` gets as dictionaries. The columns `error` and `seconds` are added.

    `watch` is called with each row as it comes in, in the order of the cases; True ends the
    campaign behind that case.

    `out` is a directory for the rows, as Parquet. Cases that have a row in it already are not
    played again; `watch` sees them all the same. What is returned then is everything in `out`.
    `name` stands in its files: results of a campaign of another name are refused.

    `cases_per_task` is found out unless given, and so is how many `tasks` run at once.
    """
    for option, value in (("cases_per_task", cases_per_task), ("tasks", tasks)):
        if value is not None and value < 1:
            raise BadInput(f"{option} must be at least 1, not {value}")
    listed = Cases(cases, key)
    columns = outcome_schema(listed.schema, schema)
    try:
        cloudpickle.dumps(play)  # type: ignore[no-untyped-call]
    except Exception as error:
        raise BadInput(f"play can't be sent to the executors: {error}") from error
    outcomes = Outcomes(columns, out=out, name=name)
    viewing = _Viewing(listed, outcomes.earlier(), watch)
    viewing.show_earlier()
    pending = [] if viewing.ended else viewing.pending()
    if pending:
        crew = _Crew(spark, play, listed, columns, cases_per_task=cases_per_task, tasks=tasks)
        with crew.work(pending) as tables:
            for table in tables:
                places = table[INDEX].to_numpy().tolist()
                outcomes.add(viewing.show(table.drop_columns([INDEX]), places))
                if viewing.ended:
                    break
    return outcomes.frame(spark)


class _Viewing:
    """Shows every case to `watch` in order, those of an earlier run included."""

    def __init__(self, cases: Cases, earlier: pa.Table, watch: Watch | None) -> None:
        self.ended = False
        """Whether `watch` has seen enough."""
        self._cases = cases
        self._watch = watch
        self._next = 0
        self._earlier: dict[str, list[dict[str, Any]]] = {}
        for row in earlier.to_pylist():
            self._earlier.setdefault(cases.identity(row), []).append(row)

    def pending(self) -> Sequence[int]:
        """Return the places of the cases that have no row yet."""
        places = range(len(self._cases.values))
        if not self._earlier:
            return places
        return [place for place in places if self._found(place) is None]

    def show_earlier(self) -> None:
        """Show what is known of the next cases, up to the first that has to be played."""
        while self._earlier and not self.ended and self._next < len(self._cases.values):
            rows = self._found(self._next)
            if rows is None:
                return
            self._show(rows)

    def show(self, rows: pa.Table, places: Sequence[int]) -> pa.Table:
        """Show new rows, and return those up to where `watch` had seen enough."""
        shown = 0
        for _, same in groupby(places):
            count = len(list(same))
            self._show(rows.slice(shown, count).to_pylist())
            shown += count
            self.show_earlier()
            if self.ended:
                break
        return rows.slice(0, shown)

    def _show(self, rows: list[dict[str, Any]]) -> None:
        self._next += 1
        if self._watch is not None:
            # A list, so that every row of a case is shown.
            self.ended = any([self._watch(row) for row in rows])  # noqa: C419

    def _found(self, place: int) -> list[dict[str, Any]] | None:
        return self._earlier.get(self._cases.identity(self._cases.row(place)))


class _Crew:
    """The tasks of a campaign."""

    def __init__(
        self,
        spark: SparkSession,
        play: Play,
        cases: Cases,
        schema: pa.Schema,
        *,
        cases_per_task: int | None,
        tasks: int | None,
    ) -> None:
        self._session = _own_session(spark)
        self._play = play
        self._cases = cases
        self._schema = schema
        self._size = cases_per_task
        self._slots = tasks or _slots(spark)
        self._seconds = 0.0
        self._played = 0
        self._largest = 0
        self._stopping = threading.Event()
        self._waiting: deque[Future[pa.Table]] = deque()
        # One more than can run, so that there is always a next one ready.
        self._pool = ThreadPoolExecutor(self._slots + 1, thread_name_prefix="ensue-campaign")

    @contextmanager
    def work(self, pending: Sequence[int]) -> Iterator[Iterator[pa.Table]]:
        """Yield the rows of the cases at these places in order; end all tasks on exit."""
        try:
            yield self._tables(pending)
        finally:
            self._stopping.set()
            self._pool.shutdown(wait=False, cancel_futures=True)
            if wait(self._waiting, timeout=GRACE_SECONDS).not_done:
                self._session.interruptAll()
            self._pool.shutdown(wait=True)

    def _tables(self, pending: Sequence[int]) -> Iterator[pa.Table]:
        position = 0
        while True:
            while position < len(pending) and len(self._waiting) < AHEAD * self._slots:
                size = self._next_size(len(pending) - position)
                chosen = pending[position : position + size]
                self._waiting.append(self._pool.submit(self._run, chosen))
                position += size
            if not self._waiting:
                return
            # Left in the queue until it is done, so that an interruption finds it there.
            table = self._waiting[0].result()
            self._waiting.popleft()
            self._learn(table)
            yield table

    def _next_size(self, left: int) -> int:
        if self._size is not None:
            return self._size
        if not self._played:
            return 1
        wanted = int(TASK_SECONDS * self._played / max(self._seconds, 1e-6))
        # Towards the end the tasks get smaller, so that all end at about the same time.
        share = math.ceil(left / self._slots)
        return max(1, min(wanted, GROWTH_MAX * self._largest, share))

    def _learn(self, table: pa.Table) -> None:
        rows = table.select([INDEX, "seconds"]).to_pylist()
        seconds = {row[INDEX]: row["seconds"] or 0.0 for row in rows}
        self._seconds += sum(seconds.values())
        self._played += len(seconds)
        self._largest = max(self._largest, len(seconds))

    def _run(self, indexes: Sequence[int]) -> pa.Table:
        """Play some cases in a task of their own."""
        chosen = [(index, self._cases.values[index], self._cases.row(index)) for index in indexes]
        task = partial(play_in_task, play=self._play, cases=chosen, schema=self._schema)
        if self._stopping.is_set():
            raise EnsueError("the campaign was ended")
        try:
            frame = self._session.range(0, 1, 1, 1).mapInArrow(task, "rows binary")
            cells = frame.collect()
        except Exception as error:
            missing = _MISSING_MODULE.search(str(error))
            if missing:
                raise BadInput(
                    f"the executors can't import {missing[1]!r}, which play needs: install it "
                    "there, or ship it with --py-files"
                ) from error
            python = no_python(str(error))
            if python:
                raise SparkFailed(python) from error
            if self._stopping.is_set():
                raise
            if len(indexes) == 1:
                why = f"the task died that played it: {_cause(error)}"
                return failed(why, indexes[0], chosen[0][2], self._schema)
            half = len(indexes) // 2
            return pa.concat_tables([self._run(indexes[:half]), self._run(indexes[half:])])
        return pa.concat_tables([unpacked(bytes(cell["rows"])) for cell in cells])


def _own_session(spark: SparkSession) -> SparkSession:
    """Return a session whose jobs can be ended without touching those of another."""
    # On Spark Connect a new session would lack the artifacts of the one given; a clone has them.
    clone = getattr(spark, "cloneSession", spark.newSession)
    session = clone()
    assert session is not None
    return session


def _slots(spark: SparkSession) -> int:
    """Return how many tasks run at once: what Spark itself spreads a range over."""
    parts = spark.range(1 << 16).select(f.spark_partition_id().alias("part"))
    return int(parts.agg(f.max("part").alias("last")).collect()[0]["last"]) + 1


def _cause(error: Exception) -> str:
    """Return the line of Spark's report that says most."""
    lines = [line.strip() for line in str(error).splitlines()]
    causes = [line for line in lines if line.startswith("Caused by: ")]
    exits = [line for line in lines if "exited unexpectedly" in line]
    return (exits or causes or lines or [type(error).__name__])[-1]
