"""The tables of a lake and their columns.

`TABLES` is the single description: a new lake's empty tables follow it, and a test compares the
documentation with it. Tables of `trace_metrics` have the prefix `metrics/`.
"""

from collections.abc import Mapping

import pyarrow as pa

from ensue.core import trace
from ensue.spark import trace_metrics
from ensue.spark.trace_metrics import Table
from ensue.store import log_schema

__all__ = ["APPENDED", "OF_LOG", "OF_TRACE", "TABLES", "arrow_schema"]

METRICS = "metrics/"

_TYPES: Mapping[str, pa.DataType] = {
    "array<string>": pa.list_(pa.string()),
    "bigint": pa.int64(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "double": pa.float64(),
    "int": pa.int32(),
    "map<string,bigint>": pa.map_(pa.string(), pa.int64()),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
    "string": pa.string(),
    "timestamp": pa.timestamp("us", "UTC"),
}
_NAMES = {kind: name for name, kind in _TYPES.items()}

_LOG = {
    "key": "the publisher's key for events that belong together; null for none",
    "value": "the payload; null for a void, which takes a place and is never delivered",
    "topic": "the topic",
    "publisher": "the publisher of the event",
    "publisher_seq": "1, 2, 3, … of a publisher on a topic",
    "event": "its name: publisher/topic/publisher_seq",
    "stamp": "events of each topic up to this one; null without an order",
    "published_at": "the publisher's clock",
    "offset": "0, 1, 2, … in its topic",
    "headers": "further information from the publisher",
}
_TRACE = {
    "run": "the run",
    "node": "the process that observed it",
    "step": "1, 2, 3, … at that node: the node's own order",
    "at_ns": "that node's clock",
    "true_ns": "simulated time; null on real machines",
    "action": "what happened: published, delivered, …",
    "event": "the event; null where there is none",
    "topic": "its topic",
    "publisher": "the publisher of the event",
    "publisher_seq": "1, 2, 3, … of a publisher on a topic",
    "position": "1, 2, 3, … of deliveries at that node and subscription",
    "subscription": "which of the node's subscriptions",
    "verdict": "empty, or why it was discarded or its delivery tagged",
    "order": "the requested order",
    "stamp": "the logical timestamp as sent",
    "transaction": "the transaction; null where there is none",
    "deadline_ns": "when it was due; null where it never was",
    "bytes": "size on the wire, of what was sent or published",
}


def _columns(schema: pa.Schema, meanings: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    assert list(meanings) == schema.names
    return {field.name: (_NAMES[field.type], meanings[field.name]) for field in schema}


_EVENT = _columns(log_schema(), _LOG)

TABLES: Mapping[str, Table] = {
    "events": Table(
        description="The event log, one row per event, voids included.", columns=_EVENT
    ),
    "ordered": Table(
        description="The events of the chosen topics in their order: sort by `position`. An event "
        "is here once all earlier ones are. Events from before a subscriber joined the topics lie "
        "before the cut: they have no common order.",
        columns={
            **_EVENT,
            "position": (
                "bigint",
                "1, 2, 3, … in the order of all chosen topics; null before the cut",
            ),
            "verdict": (
                "string",
                "empty for an event, `void` for a void, `before_cut` before the cut",
            ),
        },
    ),
    "gaps": Table(
        description="What is wrong with the positions of `events`: empty if each position from 1 "
        "to the highest occurs once.",
        columns={
            "kind": ("string", "missing; repeated by one event; conflict of different ones"),
            "first": ("bigint", "the first position of the range"),
            "last": ("bigint", "the last one, included"),
            "count": ("bigint", "positions that are missing, or rows that share the one"),
            "events": ("array<string>", "up to ten of the events that share it"),
        },
    ),
    "trace": Table(
        description="The trace, one row per observation.", columns=_columns(trace.schema(), _TRACE)
    ),
    "deliveries": Table(
        description="One row per delivery, with the publication of its event.",
        columns={
            "run": ("string", "the run"),
            "node": ("string", "the node that got the event"),
            "subscription": ("string", "which of the node's subscriptions"),
            "position": ("bigint", "1, 2, 3, … at that node and subscription"),
            "event": ("string", "the event"),
            "topic": ("string", "its topic"),
            "publisher": ("string", "the publisher of the event"),
            "publisher_seq": ("bigint", "1, 2, 3, … of a publisher on a topic"),
            "verdict": ("string", "empty, or why the delivery is tagged"),
            "delivered_at": ("timestamp", "when: simulated time, or the node's clock"),
            "published_at": ("timestamp", "the same of its first publication; null if unknown"),
            "latency_ms": ("double", "from publication to delivery; null if unknown"),
        },
    ),
    "violations": Table(
        description="One row per violation of the order that was promised.",
        columns={
            "run": ("string", "the run"),
            "anomaly": (
                "string",
                "what is wrong: total, global, fifo, causal, position, lost, duplicate, …",
            ),
            "node": ("string", "where it was seen"),
            "first": ("string", "the event it is about, or the first of the two"),
            "second": ("string", "the other one; null where there is none"),
            "because": ("string", "the witness, in words"),
            "checker": (
                "string",
                "the rule that was broken: fifo, total, global, causal, positions, complete",
            ),
            "subscription": ("string", "which of the node's subscriptions"),
            "other_node": ("string", "the node that disagreed; null where no node did"),
            "other_subscription": ("string", "which of that node's subscriptions"),
        },
    ),
    "verdicts": Table(
        description="One row per run: whether the order that was promised was kept.",
        columns={
            "run": ("string", "the run"),
            "order": ("string", "the order that was promised"),
            "verdict": ("string", "valid, invalid or unknown"),
            "because": ("string", "why it is unknown; empty if it is not"),
            "violations": ("bigint", "its rows in `violations`"),
            "events": ("bigint", "events published"),
            "deliveries": ("bigint", "events delivered, once for each subscriber"),
            "subscribers": ("bigint", "subscriptions that were made or given an event"),
            "rows": ("bigint", "rows of the trace that were judged"),
        },
    ),
    **{f"{METRICS}{name}": table for name, table in trace_metrics.TABLES.items()},
}
"""Every table of a lake, by its path below the lake's directory."""

APPENDED = ("events", "ordered", "trace")
"""Tables that only grow: each has its own stream."""
OF_LOG = ("gaps",)
"""Tables that are rebuilt from the log."""
OF_TRACE = tuple(name for name in TABLES if name not in (*APPENDED, *OF_LOG))
"""Tables that are rebuilt from the trace, run by run."""


def arrow_schema(name: str) -> pa.Schema:
    """Return the columns of a table."""
    columns = TABLES[name].columns
    return pa.schema([pa.field(column, _TYPES[kind]) for column, (kind, _) in columns.items()])
