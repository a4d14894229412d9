"""Run many independent cases on Spark, and watch the results as they arrive.

A case is, for example, a seed of a simulation, or a combination of parameters and seed of an
experiment. `campaign` guarantees
- results in the order of the cases, whichever finishes first: the first failure that `watch` sees
  is the first case that fails, on every machine and with any number of tasks;
- a row for every case: if a case raises, or kills its process, the row has its error;
- that a campaign with a directory resumes after an interruption.

Method. The driver submits jobs of one task each, a few more than can run at once, and takes their
results in order. The first tasks run one case each; their duration gives the number of cases of
later tasks. A task that dies is run again in halves, until the case that kills it is alone. Jobs
run in a separate session, so that ending them ends no other jobs.

Assumptions: `play` can be pickled, and returns the same for the same case. The executors can import
its modules, Ensue included: on a cluster, install them there or ship them with `--py-files` (on
Spark Connect, `spark.addArtifacts`).

HAZARD: without `out` the driver holds the rows in memory, and they are lost with it.
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
"""Target duration of a task: starting one costs some tenths of a second."""
GROWTH_MAX = 8
"""Largest ratio of a task's cases to those of the largest task that succeeded."""
AHEAD = 4
"""Tasks submitted for each that can run at once, before the first has finished."""
GRACE_SECONDS = 2 * TASK_SECONDS
"""Time for abandoned tasks to finish. Spark logs every task that it has to kill on stderr."""

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
    """Run every case and return one row or more for each.

    `play` gets a case and returns a mapping of column to value, or several mappings; `schema` has
    their names and types. `cases` are numbers or strings, in a column named `key`; or mappings; or
    the rows of a data frame, which `play` gets as dictionaries. `error` and `seconds` are added.

    `watch` is called with each row, in the order of the cases; if it returns True, the campaign
    ends after that case.

    `out` is a directory for the rows, as Parquet. Cases with a row in it are not run again, but
    `watch` sees them; the result is all of `out`. Its files carry `name`: results of a campaign
    with another name raise `BadInput`.

    `cases_per_task` and the number of `tasks` at once are chosen automatically by default.
    """
    for option, value in (("cases_per_task", cases_per_task), ("tasks", tasks)):
        if value is not None and value < 1:
            raise BadInput(f"{option} must be at least 1, got {value}")
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
    """Passes every case to `watch` in order, including those of an earlier run."""

    def __init__(self, cases: Cases, earlier: pa.Table, watch: Watch | None) -> None:
        self.ended = False
        """Whether `watch` has ended the campaign."""
        self._cases = cases
        self._watch = watch
        self._next = 0
        self._earlier: dict[str, list[dict[str, Any]]] = {}
        for row in earlier.to_pylist():
            self._earlier.setdefault(cases.identity(row), []).append(row)

    def pending(self) -> Sequence[int]:
        """Return the indices of the cases without a row."""
        places = range(len(self._cases.values))
        if not self._earlier:
            return places
        return [place for place in places if self._found(place) is None]

    def show_earlier(self) -> None:
        """Show earlier results, up to the first case that has to run."""
        while self._earlier and not self.ended and self._next < len(self._cases.values):
            rows = self._found(self._next)
            if rows is None:
                return
            self._show(rows)

    def show(self, rows: pa.Table, places: Sequence[int]) -> pa.Table:
        """Show new rows; return those up to the case where `watch` ended."""
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
            # A list, so that `watch` sees every row of a case.
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
        # One more than can run, so that one is always ready.
        self._pool = ThreadPoolExecutor(self._slots + 1, thread_name_prefix="ensue-campaign")

    @contextmanager
    def work(self, pending: Sequence[int]) -> Iterator[Iterator[pa.Table]]:
        """Yield the rows of the cases at these indices in order; end all tasks on exit."""
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
            # Keep it in the queue until done, so that an interruption finds it there.
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
        # The last tasks are smaller, so that all end at about the same time.
        share = math.ceil(left / self._slots)
        return max(1, min(wanted, GROWTH_MAX * self._largest, share))

    def _learn(self, table: pa.Table) -> None:
        rows = table.select([INDEX, "seconds"]).to_pylist()
        seconds = {row[INDEX]: row["seconds"] or 0.0 for row in rows}
        self._seconds += sum(seconds.values())
        self._played += len(seconds)
        self._largest = max(self._largest, len(seconds))

    def _run(self, indexes: Sequence[int]) -> pa.Table:
        """Run some cases in one task."""
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
    """Return a session whose jobs can be ended without ending others."""
    # On Spark Connect a new session would lack the artifacts of this one; a clone has them.
    clone = getattr(spark, "cloneSession", spark.newSession)
    session = clone()
    assert session is not None
    return session


def _slots(spark: SparkSession) -> int:
    """Return the number of tasks at once: the default partitions of a range."""
    parts = spark.range(1 << 16).select(f.spark_partition_id().alias("part"))
    return int(parts.agg(f.max("part").alias("last")).collect()[0]["last"]) + 1


def _cause(error: Exception) -> str:
    """Return the line of Spark's report that explains the failure."""
    lines = [line.strip() for line in str(error).splitlines()]
    causes = [line for line in lines if line.startswith("Caused by: ")]
    exits = [line for line in lines if "exited unexpectedly" in line]
    return (exits or causes or lines or [type(error).__name__])[-1]
