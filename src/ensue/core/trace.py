"""Traces: the record that every run writes and every checker and Spark job reads.

A trace is a Parquet dataset: a directory, one row per observable event. See
`docs/reference/trace.md`.

In memory a trace is a list of `Row`. `write` sorts rows by run, node and step and writes one file;
`read` reads all Parquet files below a directory. The columns and their types are exactly those of
`Row`. A missing column, another one or one of another type is an error that names it: a checker
that guesses what a column means proves nothing.

The sequence of rows in a file means nothing: the column `step` orders them.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ensue.core.errors import BadInput, MissingExtra

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "ACTIONS",
    "Row",
    "check_columns",
    "digest",
    "files",
    "folder",
    "named_orders",
    "read",
    "schema",
    "unreadable",
    "write",
]

ACTIONS = (
    "submitted",
    "published",
    "received",
    "delivered",
    "acknowledged",
    "discarded",
    "subscribed",
    "unsubscribed",
    "began",
    "committed",
    "aborted",
    "crashed",
    "restarted",
    "sent",
    "held",
    "node_published",
    "node_delivered",
)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One observable event at one node."""

    run: str
    node: str
    """The process that observed it."""
    step: int
    """1, 2, 3, … at that node: the node's own order."""
    at_ns: int
    """That node's clock."""
    true_ns: int | None = None
    """Simulated time; None on real machines."""
    action: str
    event: str | None = None
    topic: str | None = None
    publisher: str | None = None
    publisher_seq: int | None = None
    """1, 2, 3, … per publisher and topic."""
    position: int | None = None
    """1, 2, 3, … of `delivered` at that node and subscription."""
    subscription: str | None = None
    verdict: str = ""
    """Empty, or why the event was discarded or its delivery tagged."""
    order: str = "none"
    stamp: dict[str, int] | None = None
    transaction: str | None = None
    deadline_ns: int | None = None
    bytes: int | None = None
    """Size on the wire, for `sent` and `published`."""


REQUIRED = ("run", "node", "step", "at_ns", "action", "verdict", "order")
"""Columns that are never null."""


def schema() -> "pa.Schema":
    """Return the Parquet schema of a trace."""
    try:
        import pyarrow as pa  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise MissingExtra(extra="trace", needed_for="Reading and writing traces") from error
    types: dict[str, pa.DataType] = {
        "run": pa.string(),
        "node": pa.string(),
        "step": pa.int64(),
        "at_ns": pa.int64(),
        "true_ns": pa.int64(),
        "action": pa.string(),
        "event": pa.string(),
        "topic": pa.string(),
        "publisher": pa.string(),
        "publisher_seq": pa.int64(),
        "position": pa.int64(),
        "subscription": pa.string(),
        "verdict": pa.string(),
        "order": pa.string(),
        "stamp": pa.map_(pa.string(), pa.int64()),
        "transaction": pa.string(),
        "deadline_ns": pa.int64(),
        "bytes": pa.int32(),
    }
    assert tuple(types) == Row.__struct_fields__
    fields = [pa.field(name, kind, nullable=name not in REQUIRED) for name, kind in types.items()]
    return pa.schema(fields)


def write(
    rows: Iterable[Row], directory: str | Path, *, name: str = "trace", append: bool = False
) -> Path:
    """Write rows as the file `<name>.parquet` of a directory, and return its path.

    The directory is made if absent. One that holds anything is refused, so that two traces are
    never mixed by accident; `append=True` adds a file to it, and never replaces one.
    """
    wanted = schema()
    import pyarrow as pa  # noqa: PLC0415 - an extra
    import pyarrow.parquet as pq  # noqa: PLC0415 - an extra

    folder = Path(directory)
    path = folder / f"{name}.parquet"
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"{folder} is a file; name a directory for the trace")
    if folder.is_dir() and not append and any(folder.iterdir()):
        raise BadInput(f"{folder} is not empty; name an empty directory for the trace")
    if path.exists():
        raise BadInput(f"{path} exists; give this part of the trace another name")
    ordered = _sorted(rows)
    columns: list[pa.Array[Any]] = []
    for field in wanted:
        values = [getattr(row, field.name) for row in ordered]
        if field.name == "stamp":
            values = [None if stamp is None else sorted(stamp.items()) for stamp in values]
        try:
            columns.append(pa.array(values, type=field.type))
        except (pa.ArrowException, OverflowError, TypeError, UnicodeError) as error:
            raise BadInput(
                f"column {field.name!r} can't be written as {field.type}: {error}"
            ) from error
        if columns[-1].null_count and not field.nullable:
            raise BadInput(f"column {field.name!r} needs a value in each row")
    folder.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_arrays(columns, schema=wanted)
    # Under a temporary name until complete: a stream may be watching the directory.
    unfinished = folder / f".{path.name}.unfinished"
    try:
        pq.write_table(table, str(unfinished), compression="zstd")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return path


def read(source: str | Path) -> list[Row]:
    """Read a trace from a directory or from one Parquet file, sorted by run, node and step."""
    wanted = schema()
    rows: list[Row] = []
    for path in files(Path(source)):
        rows.extend(_read_file(path, wanted))
    return _sorted(rows)


def named_orders(source: str | Path) -> set[str]:
    """Return the orders that the rows of a trace name; empty: it has no rows.

    `transactions` is one if rows belong to any, whatever the order of their bus.
    """
    schema()  # Raises if pyarrow is missing.
    import pyarrow as pa  # noqa: PLC0415 - an extra
    import pyarrow.parquet as pq  # noqa: PLC0415 - an extra

    found: set[str] = set()
    for path in files(Path(source)):
        try:
            with pq.ParquetFile(str(path)) as file:
                check_columns(path, file.schema_arrow, {})
                table = file.read(columns=["order", "transaction"])
        except (pa.ArrowException, OSError) as error:
            raise unreadable(path, error) from error
        found |= {str(name) for name in table.column("order").unique().to_pylist()}
        if table.column("transaction").null_count < table.num_rows:
            found.add("transactions")
    return found


def digest(rows: Iterable[Row]) -> str:
    """Return a hash that is equal for traces with the same rows, in any sequence.

    The names of the runs are left out, so that two runs of one seed compare equal.
    """
    encode = msgspec.msgpack.Encoder(order="sorted").encode
    running = hashlib.sha256()
    for row in _sorted(rows):
        running.update(encode(msgspec.structs.astuple(row)[1:]))
    return running.hexdigest()


def folder(source: str | Path) -> Path:
    """Return the directory of a trace's files: `trace/` if `source` is a recorded run."""
    inside = Path(source) / "trace"
    return inside if inside.is_dir() else Path(source)


def _sorted(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row.run, row.node, row.step))


def files(source: Path) -> Sequence[Path]:
    """List the Parquet files of a trace, here and in folders below.

    Skips names that begin with `_` or `.`: files of other tools, or unfinished ones.
    """
    if source.is_file():
        return [source]
    if not source.is_dir():
        raise BadInput(f"{source} does not exist; a trace is a directory of Parquet files")
    source = folder(source)
    paths = sorted(
        path
        for path in source.rglob("*.parquet")
        if path.is_file() and not any(part[0] in "._" for part in path.relative_to(source).parts)
    )
    if not paths:
        raise BadInput(f"{source} holds no Parquet file; a trace is a directory of Parquet files")
    return paths


def _read_file(path: Path, wanted: "pa.Schema") -> list[Row]:
    import pyarrow as pa  # noqa: PLC0415 - an extra
    import pyarrow.parquet as pq  # noqa: PLC0415 - an extra

    try:
        table = pq.ParquetFile(str(path)).read()
    except (pa.ArrowException, OSError) as error:
        raise unreadable(path, error) from error
    counts = zip(table.schema.names, (column.null_count for column in table.columns), strict=True)
    check_columns(path, table.schema, dict(counts))
    columns = [table.column(name).to_pylist() for name in wanted.names]
    names = wanted.names
    stamps = names.index("stamp")
    columns[stamps] = [None if stamp is None else dict(stamp) for stamp in columns[stamps]]
    for action in sorted({str(action) for action in columns[names.index("action")]}):
        if action not in ACTIONS:
            raise BadInput(
                f"{path}: column 'action' holds {action!r}; expected one of {', '.join(ACTIONS)}"
            )
    return [Row(**dict(zip(names, values, strict=True))) for values in zip(*columns, strict=True)]


def unreadable(path: Path, error: Exception) -> BadInput:
    """Return the error of a file that is not Parquet."""
    reason = str(error).splitlines()[0]
    return BadInput(f"{path} can't be read as Parquet: {reason}")


def check_columns(path: Path, found: "pa.Schema", null_counts: Mapping[str, int]) -> None:
    """Raise BadInput unless the columns are a trace's; `null_counts` may be partial."""
    wanted = schema()
    for field in wanted:
        if found.names.count(field.name) != 1:
            problem = "is missing" if field.name not in found.names else "occurs more than once"
            raise BadInput(f"{path}: column {field.name!r} {problem}; expected {field.type}")
        kind = found.field(field.name).type
        if kind != field.type:
            raise BadInput(f"{path}: column {field.name!r} is {kind}; expected {field.type}")
        empty = null_counts.get(field.name, 0)
        if empty and not field.nullable:
            raise BadInput(
                f"{path}: column {field.name!r} is null in {empty} rows; expected a value in each"
            )
    for name in found.names:
        if name not in wanted.names:
            raise BadInput(
                f"{path}: column {name!r} is not part of a trace; "
                f"expected only {', '.join(wanted.names)}"
            )
