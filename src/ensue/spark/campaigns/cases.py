"""The cases of a campaign, and the function that runs some of them in a task.

A case is a number, a string, or a mapping of parameter to value. Its result is one row or several.
A row of the outcome has the columns of the case, those of the result, `error` (null, or the error
raised) and `seconds` (duration of the case, the same in each of its rows).

Every case gives at least one row, with null results if it returned none or raised. So a case with a
row is known to be done.

A task returns results as one cell of Arrow bytes, so that the driver gets the exact values, without
a conversion to Spark's types.
"""

import contextlib
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType, StructType

from ensue.core.errors import BadInput
from ensue.simulation.seeds import raised

__all__ = ["INDEX", "Cases", "Play", "failed", "outcome_schema", "play_in_task", "unpacked"]

Play = Callable[[Any], Mapping[str, Any] | Iterable[Mapping[str, Any]]]
"""Maps a case to a row of results, or several."""
Row = dict[str, Any]

INDEX = "__case"
"""Column with the index of the case, between task and driver."""
OWN = (("error", pa.string()), ("seconds", pa.float64()))
"""Columns of every campaign."""
CASES_MAX = 10_000_000
"""Most cases of a campaign: the driver holds the list."""


class Cases:
    """The cases of a campaign in order, each with its identifying columns.

    `key` names the column of cases that are not mappings.
    """

    def __init__(self, cases: Sequence[Any] | DataFrame, key: str) -> None:
        if isinstance(cases, DataFrame):
            if not cases.columns:
                raise BadInput("cases: the data frame has no columns")
            cases = cases.limit(CASES_MAX + 1).toArrow().to_pylist()
        if len(cases) > CASES_MAX:
            raise BadInput(f"cases: more than {CASES_MAX:,}; split the campaign")
        self.values = cases
        self.mapped = bool(cases) and isinstance(cases[0], Mapping)
        self.key = key
        self.schema = self._schema()
        if not isinstance(cases, range):
            self._check_distinct()

    def row(self, index: int) -> Row:
        """Return the columns of a case."""
        value = self.values[index]
        return dict(value) if self.mapped else {self.key: value}

    def identity(self, row: Mapping[str, Any]) -> str:
        """Return the identity of the case in a row of cases or outcomes."""
        return repr([row[name] for name in self.schema.names])

    def _schema(self) -> pa.Schema:
        if isinstance(self.values, range):
            return pa.schema([(self.key, pa.int64())])
        for index, value in enumerate(self.values):
            if isinstance(value, Mapping) != self.mapped or (
                self.mapped and list(value) != list(self.values[0])
            ):
                raise BadInput(f"cases: case {index} has other columns than case 0: {value!r}")
        try:
            table = pa.Table.from_pylist([self.row(index) for index in range(len(self.values))])
        except (pa.ArrowException, TypeError) as error:
            raise BadInput(f"cases: they have no common type of column: {error}") from None
        return table.schema if self.values else pa.schema([(self.key, pa.int64())])

    def _check_distinct(self) -> None:
        seen: set[str] = set()
        for index in range(len(self.values)):
            row = self.row(index)
            identity = self.identity(row)
            if identity in seen:
                raise BadInput(f"cases: {row!r} occurs twice; give each a column that differs")
            seen.add(identity)


def outcome_schema(cases: pa.Schema, results: str | DataType) -> pa.Schema:
    """Return the columns of an outcome: the case, its results, and common ones."""
    parsed = DataType.fromDDL(results) if isinstance(results, str) else results
    if not isinstance(parsed, StructType):
        raise BadInput(f"schema: expected columns such as 'count bigint', got {results!r}")
    fields = [*cases, *to_arrow_schema(parsed), *(pa.field(name, kind) for name, kind in OWN)]
    names = [field.name for field in fields]
    for name in names:
        if names.count(name) > 1 or name == INDEX:
            raise BadInput(
                f"schema: the column {name!r} occurs twice, among those of the cases "
                f"({', '.join(cases.names)}), of the results, and error and seconds"
            )
    return pa.schema([field.with_nullable(True) for field in fields])


def play_in_task(
    batches: Iterable[pa.RecordBatch],
    *,
    play: Play,
    cases: Sequence[tuple[int, Any, Row]],
    schema: pa.Schema,
) -> Iterator[pa.RecordBatch]:
    """Run cases given as (index, case, columns); yield all rows as one cell."""
    for _ in batches:
        pass
    with contextlib.suppress(ValueError):  # Only the main thread may set a handler.
        # Ctrl-C in a terminal reaches the workers too; the driver handles it.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    indexed = schema.append(pa.field(INDEX, pa.int64()))
    made = [
        batch for index, case, row in cases for batch in _played(play, index, case, row, indexed)
    ]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, indexed) as writer:
        for batch in made:
            writer.write_batch(batch)
    packed = pa.array([sink.getvalue().to_pybytes()], pa.large_binary())
    yield pa.RecordBatch.from_arrays([packed.cast(pa.binary())], ["rows"])


def unpacked(cell: bytes) -> pa.Table:
    """Return the rows of a task's cell."""
    with pa.ipc.open_stream(cell) as reader:
        return reader.read_all()


def failed(why: str, index: int, row: Row, schema: pa.Schema) -> pa.Table:
    """Return the row of a case without a result."""
    indexed = schema.append(pa.field(INDEX, pa.int64()))
    return pa.Table.from_pylist([{**row, INDEX: index, "error": why}], schema=indexed)


def _played(
    play: Play, index: int, case: Any, row: Row, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    started = time.monotonic()
    try:
        given = play(case)
        rows = [given] if isinstance(given, Mapping) else list(given)
        for each in rows:
            _check_result(each, row, schema)
        own = {**row, INDEX: index, "seconds": time.monotonic() - started}
        batch = pa.RecordBatch.from_pylist(
            [{**each, **own} for each in rows] or [own], schema=schema
        )
    except Exception as error:  # noqa: BLE001 - any error is this case's outcome
        failure = {"error": raised(error), "seconds": time.monotonic() - started}
        batch = pa.RecordBatch.from_pylist([{**row, INDEX: index, **failure}], schema=schema)
    yield batch


def _check_result(result: Mapping[str, Any], case: Row, schema: pa.Schema) -> None:
    """Raise an error for a column that the schema lacks: Arrow would drop it."""
    known = set(schema.names) - {*case, INDEX, "error", "seconds"}
    unknown = sorted(map(str, result.keys() - known))
    if unknown:
        raise BadInput(f"the schema has no column {', '.join(unknown)}; it has {sorted(known)}")
