"""The one record that every run writes and every checker and Spark job reads.

A trace is a Parquet dataset: a directory, one row per observable event. See `docs/trace.md`.
"""

import msgspec

__all__ = ["ACTIONS", "Row"]

ACTIONS = (
    "published",
    "received",
    "delivered",
    "discarded",
    "subscribed",
    "unsubscribed",
    "began",
    "committed",
    "aborted",
    "crashed",
    "restarted",
    "sent",
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
