"""Query the rows of a space-time diagram: a few, for a trace of any size.

A *view* is the subject of a diagram: a violation, a chosen event, a chosen span of time, or the
beginning of the run. Each takes a few queries with a limit of rows; rows beyond it are dropped,
farthest from the middle of the window first. Nodes of the subject have priority.

A node has one line. If several of its subscriptions are shown, it has one line for each, and one
for its publications.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from ensue.checkers import Violation
from ensue.core.errors import BadInput
from ensue.spark.report.spacetime import Delivery, Diagram, Happening, Publication

__all__ = ["Span", "View", "gather"]

EVENTS_MAX = 48
"""Most events of a diagram besides those of its subject."""
BEGINNING_EVENTS = 24
"""Most events of a diagram of a run's beginning."""
ROWS_MAX = 600
"""Most rows of one query."""
NODES_MAX = 18
PAD = 0.12
"""Margin before and after the subject, as a share of the window."""
PAD_LEAST_MS = 0.001
"""Margin if the subject has no duration."""

_MS_NS = 1_000_000
_HAPPENINGS = ("crashed", "restarted")
_PUBLISHING = ("submitted", "published")
"""Rows that publish an event: drawn where the first of them is."""


class Span(msgspec.Struct, frozen=True):
    """A span of time, since the start of the run."""

    begin_ms: float
    end_ms: float


class View(msgspec.Struct, frozen=True, kw_only=True):
    """Subject of a diagram: one of these, or the beginning of the run."""

    run: str
    violation: Violation | None = None
    event: str | None = None
    span: Span | None = None

    @property
    def events(self) -> tuple[str, ...]:
        """The highlighted events, if any."""
        if self.violation is None:
            return () if self.event is None else (self.event,)
        events = (self.violation.first_event, self.violation.second_event)
        return tuple(dict.fromkeys(event for event in events if event is not None))


def gather(trace: DataFrame, view: View, *, begin_ns: int) -> Diagram | None:
    """Return the diagram of a view; None if the run has no rows in it."""
    at_ms = ((f.coalesce("true_ns", "at_ns") - f.lit(begin_ns)) / _MS_NS).alias("at_ms")
    columns = ("node", "action", "event", "topic", "subscription", "position", "verdict")
    rows = trace.where(f.col("run") == view.run).select("step", *columns, at_ms)
    matter = _collect(_of_events(rows, view.events, *_PUBLISHING, "delivered", "discarded"))
    if view.event is not None and not matter:
        return None
    span = view.span or (_around(view, matter) if view.events else None)
    published = rows.where(f.col("action").isin(*_PUBLISHING) & f.col("event").isNotNull())
    if span is None:
        context = _first_events(published.orderBy("at_ms", "node", "step"), BEGINNING_EVENTS)
    else:
        middle = (span.begin_ms + span.end_ms) / 2
        near = published.where(f.col("at_ms").between(span.begin_ms, span.end_ms)).orderBy(
            f.abs(f.col("at_ms") - middle), "node", "step"
        )
        context = _first_events(near, EVENTS_MAX)
    events = {row["event"] for row in context} | set(view.events)
    of_events = _collect(_of_events(rows, sorted(events), "submitted", "delivered"))
    delivered = [row for row in of_events if row["action"] == "delivered"]
    if not context and not matter:
        return None
    # Those near a moment may be receipts of events that were submitted long before.
    context += [row for row in of_events if row["action"] == "submitted"]
    if span is None:
        span = _beginning(context, delivered)
    happened = rows.where(f.col("action").isin(*_HAPPENINGS)).where(
        f.col("at_ms").between(span.begin_ms, span.end_ms)
    )
    return _diagram(view, span, [*context, *matter], delivered, _collect(happened))


def _of_events(rows: DataFrame, events: Sequence[str], *actions: str) -> DataFrame:
    wanted: Column = f.col("event").isin(*events) if events else f.lit(False)
    return rows.where(wanted).where(f.col("action").isin(*actions)).orderBy("at_ms", "node", "step")


def _collect(rows: DataFrame, most: int = ROWS_MAX) -> list[dict[str, Any]]:
    return [row.asDict() for row in rows.limit(most).collect()]


def _first_events(rows: DataFrame, most: int) -> list[dict[str, Any]]:
    """Return rows of the first so many events; an event has up to two that publish it."""
    events: dict[str, list[dict[str, Any]]] = {}
    for row in _collect(rows, most * len(_PUBLISHING)):
        events.setdefault(row["event"], []).append(row)
    return [row for found in list(events.values())[:most] for row in found]


def _published_at(rows: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return, by event, the first row that publishes it."""
    first: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row["action"] in _PUBLISHING:
            known = first.setdefault(row["event"], row)
            if row["at_ms"] < known["at_ms"]:
                first[row["event"]] = row
    return first


def _around(view: View, matter: Sequence[dict[str, Any]]) -> Span:
    """Return the time span of a violation or an event, with a margin."""
    concerned = _concerned(view)
    times = [row["at_ms"] for row in _published_at(matter).values()]
    times += [
        row["at_ms"]
        for row in matter
        if row["action"] not in _PUBLISHING
        and (not concerned or (row["action"] == "delivered" and _subscriber(row) in concerned))
    ]
    if not times:
        raise BadInput(f"no row of run {view.run} is of {' or '.join(view.events)}")
    begin, end = min(times), max(times)
    if begin == end:
        # It was not delivered where it was owed: show its other deliveries.
        end = max(row["at_ms"] for row in matter)
    pad = PAD * (end - begin) or PAD_LEAST_MS
    return Span(begin_ms=begin - pad, end_ms=end + pad)


def _beginning(context: Sequence[dict[str, Any]], delivered: Sequence[dict[str, Any]]) -> Span:
    """Return the time within which nine of ten deliveries happened.

    The slowest may take far longer.
    """
    ends = sorted(row["at_ms"] for row in delivered) or [max(row["at_ms"] for row in context)]
    begin = min(row["at_ms"] for row in context)
    end = max(ends[len(ends) * 9 // 10 - (len(ends) > 9)], begin)
    pad = PAD / 4 * (end - begin) or PAD_LEAST_MS
    return Span(begin_ms=begin - pad, end_ms=end + pad)


def _subscriber(row: dict[str, Any]) -> tuple[str, str]:
    return row["node"], row["subscription"] or ""


def _concerned(view: View) -> set[tuple[str, str]]:
    if view.violation is None:
        return set()
    return {(one.node, one.subscription) for one in view.violation.subscribers}


class _Lines:
    """Names of the lines of a diagram."""

    def __init__(self, subscribers: Iterable[tuple[str, str]]) -> None:
        self._subscriptions: dict[str, set[str]] = {}
        for node, subscription in subscribers:
            self._subscriptions.setdefault(node, set()).add(subscription)

    def of(self, node: str, subscription: str) -> str:
        """Return the line of a subscription."""
        if len(self._subscriptions.get(node, ())) < 2:
            return node
        return f"{node}: {subscription or 'unnamed'}"

    def all_of(self, node: str) -> list[str]:
        """Return the lines of a node's subscriptions, or its only line."""
        return sorted({self.of(node, each) for each in self._subscriptions.get(node, {""})})


def _diagram(
    view: View,
    span: Span,
    shown: Sequence[dict[str, Any]],
    delivered: Sequence[dict[str, Any]],
    happened: Sequence[dict[str, Any]],
) -> Diagram:
    concerned = _concerned(view)
    given = [*delivered, *(row for row in shown if row["action"] not in _PUBLISHING)]
    lines = _Lines([*concerned, *map(_subscriber, given)])
    publications = {
        event: Publication(
            event=event, topic=row["topic"] or "", node=row["node"], at_ms=row["at_ms"]
        )
        for event, row in _published_at(shown).items()
    }
    happenings = [
        Happening(node=line, at_ms=row["at_ms"], name=row["action"])
        for row in happened
        for line in lines.all_of(row["node"])
    ]
    deliveries = _deliveries(view, span, delivered, lines)
    matter = [lines.of(*subscriber) for subscriber in sorted(concerned)]
    absent: tuple[str, ...] = ()
    if view.violation is not None and view.violation.anomaly == "lost":
        absent = tuple(matter)
        # It may have been received and discarded.
        happenings += [
            Happening(node=line, at_ms=r["at_ms"], name=r["verdict"], event=r["event"])
            for r in shown
            if r["action"] == "discarded" and (line := lines.of(*_subscriber(r))) in absent
        ]
    nodes, left_out = _nodes(view, matter, publications.values(), deliveries)
    return Diagram(
        begin_ms=span.begin_ms,
        end_ms=span.end_ms,
        publications=tuple(one for one in publications.values() if one.node in nodes),
        deliveries=tuple(one for one in deliveries if one.node in nodes),
        happenings=tuple(one for one in happenings if one.node in nodes),
        events=view.events,
        absent=absent,
        left_out=left_out,
    )


def _deliveries(
    view: View, span: Span, delivered: Sequence[dict[str, Any]], lines: _Lines
) -> list[Delivery]:
    concerned = _concerned(view)
    again = view.violation is not None and view.violation.anomaly == "duplicate"
    seen: set[tuple[str, str, str]] = set()
    found = []
    for row in delivered:
        subscriber = _subscriber(row)
        first = (*subscriber, row["event"]) not in seen
        seen.add((*subscriber, row["event"]))
        marked = subscriber in concerned and row["event"] in view.events and (first or again)
        # An arrow that ends after the window still shows that the event is on its way.
        if marked or row["event"] in view.events or row["at_ms"] >= span.begin_ms:
            found.append(
                Delivery(
                    event=row["event"],
                    topic=row["topic"] or "",
                    node=lines.of(*subscriber),
                    at_ms=row["at_ms"],
                    position=row["position"],
                    marked=marked,
                )
            )
    return found


def _nodes(
    view: View,
    matter: Sequence[str],
    publications: Iterable[Publication],
    deliveries: Sequence[Delivery],
) -> tuple[set[str], int]:
    """Choose the lines to draw: those of the subject, publishers, subscribers."""
    begun = list(publications)
    chosen = dict.fromkeys(
        [
            *matter,
            *(one.node for one in begun if one.event in view.events),
            *sorted(one.node for one in deliveries if one.event in view.events),
            # Alternate, so that neither crowds out the other.
            *_by_turns(sorted({p.node for p in begun}), sorted({d.node for d in deliveries})),
        ]
    )
    return set(list(chosen)[:NODES_MAX]), max(0, len(chosen) - NODES_MAX)


def _by_turns(ones: Sequence[str], others: Sequence[str]) -> Iterable[str]:
    for index in range(max(len(ones), len(others))):
        yield from ones[index : index + 1]
        yield from others[index : index + 1]
