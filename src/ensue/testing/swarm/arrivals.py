"""Arrivals in deadline order that owe the application nothing, by no fault of the protocol.

The checker reports every event that arrived before its deadline and was not delivered. It cannot
see two reasons for that, which these functions leave out of a trace:

- the application was killed before it read the event from its queue;
- the process saw no time between the arrival and the deadline: it was paused, or its clock was set
  forward past the deadline, or its timers were late after that.
"""

from collections.abc import Mapping, Sequence

from ensue.core.trace import Row

__all__ = ["without_gaps", "without_unread"]

_SETTLED = frozenset({"delivered", "discarded"})
_Queue = tuple[str, str]
"""A node and its subscription."""


def without_unread(rows: Sequence[Row]) -> list[Row]:
    """Leave out arrivals whose reader was killed before it came to them.

    A slow or paused application finds out that an event is late when it takes it from its queue,
    after all events that were queued before. An event that arrived in time is queued by its
    deadline, so it comes before every event that arrived later than that.
    """
    crashed = {row.node for row in rows if row.action == "crashed"}
    settled = {(*_queue(row), row.event) for row in rows if row.action in _SETTLED}
    taken = {(*_queue(row), row.event) for row in rows if row.action == "delivered"}
    reached_ns: dict[_Queue, int] = {}
    """By queue: the last arrival of an event that the application got."""
    for row in rows:
        if row.action == "received" and (*_queue(row), row.event) in taken:
            reached_ns[_queue(row)] = max(row.at_ns, reached_ns.get(_queue(row), 0))
    return [
        row
        for row in rows
        if row.action != "received"
        or row.node not in crashed
        or (*_queue(row), row.event) in settled
        or reached_ns.get(_queue(row), 0) > (row.deadline_ns or 0)
    ]


def without_gaps(rows: Sequence[Row], gaps: Mapping[str, Sequence[tuple[int, int]]]) -> list[Row]:
    """Leave out arrivals whose deadline fell into a time that their process did not see.

    `gaps` has these times by node: the wall clock before and after.
    """
    return [
        row
        for row in rows
        if row.action != "received"
        or row.deadline_ns is None
        or not any(
            before_ns <= row.deadline_ns <= after_ns
            for before_ns, after_ns in gaps.get(row.node, ())
        )
    ]


def _queue(row: Row) -> _Queue:
    return row.node, row.subscription or ""
