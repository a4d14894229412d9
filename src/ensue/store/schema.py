"""The columns of the event log and of the Spark source.

| column | type | meaning |
|---|---|---|
| `key` | binary, null | the publisher's key |
| `value` | binary, null | the payload; null for a void, which is never delivered |
| `topic` | string | |
| `publisher` | string | |
| `publisher_seq` | int64 | 1, 2, 3, … per publisher and topic |
| `event` | string | publisher/topic/publisher_seq |
| `stamp` | map<string, int64>, null | the whole stamp; null without an order |
| `published_at` | timestamp, UTC | the publisher's clock |
| `offset` | int64 | 0, 1, 2, … per topic; for a stamped event its slot minus one |
| `headers` | map<string, string> | |

Arrow and Spark see every column as nullable: rows that passed through another format are nullable,
and would not match a stricter schema.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ensue.core.errors import BadInput

__all__ = ["COLUMNS", "check_schema", "event_ids", "log_schema", "table_of"]

_TYPES: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "publisher": pa.string(),
    "publisher_seq": pa.int64(),
    "event": pa.string(),
    "stamp": pa.map_(pa.string(), pa.int64()),
    "published_at": pa.timestamp("us", tz="UTC"),
    "offset": pa.int64(),
    "headers": pa.map_(pa.string(), pa.string()),
}
_SCHEMA = pa.schema(_TYPES)

COLUMNS: tuple[str, ...] = tuple(_SCHEMA.names)
"""Column names, in order."""

_NEVER_NULL = ("topic", "publisher", "publisher_seq", "event", "published_at", "offset", "headers")


def log_schema() -> pa.Schema:
    """Return the Arrow schema of an event log."""
    return _SCHEMA


def check_schema(table: pa.Table) -> None:
    """Raise `BadInput` unless a table has the columns of an event log."""
    for field in _SCHEMA:
        if field.name not in table.schema.names:
            raise BadInput(f"column {field.name!r} is missing; expected {field.type}")
        kind = table.schema.field(field.name).type
        if kind != field.type:
            raise BadInput(f"column {field.name!r} is {kind}; expected {field.type}")
    for name in table.schema.names:
        if name not in COLUMNS:
            allowed = ", ".join(COLUMNS)
            raise BadInput(f"column {name!r} is not part of an event log; expected {allowed}")
    for name in _NEVER_NULL:
        empty = table.column(name).null_count
        if empty:
            raise BadInput(f"column {name!r} is null in {empty} rows; expected a value in each")


def event_ids(table: pa.Table) -> "pa.ChunkedArray[Any]":
    """Return event ids: publisher/topic/publisher_seq."""
    numbers = pc.cast(table.column("publisher_seq"), pa.string())
    return pc.binary_join_element_wise(  # type: ignore[call-overload, no-any-return]
        table.column("publisher"), table.column("topic"), numbers, "/"
    )


def table_of(rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Convert rows to columns. Rows may omit `event` and `headers`."""
    filled = []
    for row in rows:
        event = f"{row['publisher']}/{row['topic']}/{row['publisher_seq']}"
        filled.append({"event": event, **row, "headers": row.get("headers") or {}})
    columns = []
    for field in _SCHEMA:
        values = [row.get(field.name) for row in filled]
        if pa.types.is_map(field.type):
            values = [None if each is None else sorted(each.items()) for each in values]
        try:
            columns.append(pa.array(values, type=field.type))
        except (pa.ArrowException, OverflowError, TypeError) as error:
            raise BadInput(
                f"column {field.name!r} can't be written as {field.type}: {error}"
            ) from error
    return pa.Table.from_arrays(columns, schema=_SCHEMA)
