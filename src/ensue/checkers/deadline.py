"""Checks that events are delivered on time if they arrive on time, and otherwise not at all.

Rules, for each subscriber, by the clock of its node and the deadline of the event (`deadline_ns`):

- `expired`: an event was delivered after its deadline, untagged.
- `missed`: an event arrived before its deadline, with a margin of the clock error, and was not
  delivered, although a late event must not hold up a punctual one.

An event is not missed if the node crashed or the subscription left the topic before the deadline,
if the trace of the node ends before it, if the node had no room (`overflow`) or did not need the
event (`not_subscribed`, `before_join`), or if the application did not read it in time (`unread`).

The first arrival of an event counts. A tagged delivery is late: it breaks no rule, but if the event
arrived on time, it counts as missed.

HAZARD: a node that was paused when a deadline passed, or whose clock was stepped past it, missed
the events that waited, and is reported. That is no fault of the protocol: leave the rows of such
arrivals out, or give a clock error that is longer than the pauses and steps.
"""

from collections.abc import Iterable, Sequence
from functools import partial

import msgspec

from ensue.checkers.verdict import Collector, Subscriber
from ensue.core.trace import Row

__all__ = ["judge"]

MILLISECOND_NS = 1_000_000
EXCUSES = frozenset({"overflow", "not_subscribed", "before_join", "unread"})

Key = tuple[str, str]
"""Subscription and event."""


class _Seen(msgspec.Struct):
    """The arrivals, deliveries and interruptions of one node."""

    arrived: dict[Key, Row]
    delivered: dict[Key, Row]
    """The first untagged delivery."""
    excused: dict[Key, None]
    interrupted: list[Row]
    """Crashes, and subscriptions that left a topic."""
    last_ns: int = 0


def judge(
    run: str, rows: Iterable[Sequence[Row]], collector: Collector, *, clock_error_ns: int
) -> None:
    """Report late deliveries, and events that arrived on time and were not delivered.

    `rows` are the rows of each node of one run, in step order.
    """
    received = on_time = 0
    for node_rows in rows:
        if not node_rows:
            continue
        node, seen = node_rows[0].node, _read(node_rows)
        for (subscription, event), row in seen.delivered.items():
            deadline_ns = row.deadline_ns
            if deadline_ns is None:
                continue
            on_time += row.at_ns <= deadline_ns
            if row.at_ns > deadline_ns:
                where = (Subscriber(run, node, subscription),)
                collector.violation("expired", where, (event,), partial(_expired, row))
        received += len(seen.arrived.keys() | seen.delivered.keys())
        for key, row in seen.arrived.items():
            if _is_missed(key, row, seen, clock_error_ns):
                where = (Subscriber(run, node, key[0]),)
                collector.violation("missed", where, (key[1],), partial(_missed, row))
    collector.tally({"received": received, "on time": on_time})


def _read(rows: Sequence[Row]) -> _Seen:
    seen = _Seen({}, {}, {}, [], max(row.at_ns for row in rows))
    for row in rows:
        if row.action in ("crashed", "unsubscribed"):
            seen.interrupted.append(row)
        if row.event is None:
            continue
        key = (row.subscription or "", row.event)
        if row.action == "received" and row.deadline_ns is not None:
            seen.arrived.setdefault(key, row)
        elif row.action == "delivered" and not row.verdict:
            seen.delivered.setdefault(key, row)
        elif row.action == "discarded" and row.verdict in EXCUSES:
            seen.excused[key] = None
    return seen


def _is_missed(key: Key, row: Row, seen: _Seen, clock_error_ns: int) -> bool:
    deadline_ns = row.deadline_ns
    assert deadline_ns is not None
    if key in seen.delivered or key in seen.excused:
        return False
    if row.at_ns > deadline_ns - clock_error_ns or deadline_ns > seen.last_ns:
        return False
    return not any(
        each.step > row.step
        and each.at_ns <= deadline_ns
        and (each.action == "crashed" or _left(each, row))
        for each in seen.interrupted
    )


def _left(each: Row, row: Row) -> bool:
    """Whether the subscription that an event arrived at left its topic."""
    return (each.topic, each.subscription or "") == (row.topic, row.subscription or "")


def _expired(row: Row) -> str:
    assert row.deadline_ns is not None
    late_ns = row.at_ns - row.deadline_ns
    return (
        f"{row.node} delivered {row.event} {late_ns / MILLISECOND_NS:g} ms after its deadline, "
        "untagged"
    )


def _missed(row: Row) -> str:
    assert row.deadline_ns is not None
    early_ns = row.deadline_ns - row.at_ns
    return (
        f"{row.event} arrived at {row.node} {early_ns / MILLISECOND_NS:g} ms before its deadline, "
        "and was not delivered in order and on time"
    )
