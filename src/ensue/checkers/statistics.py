"""Figures of a run, from the rows of its trace alone.

- Latency runs from `published` to `delivered`, one figure a delivery, by simulated time where both
  rows have it and by the nodes' own clocks where not. HAZARD: clocks that differ make the latter
  wrong by their difference.
- An event is held back at a subscriber if an event that the subscriber received later was delivered
  before it. This is seen only in traces that hold frames (`received`); in others it is unknown.
- The cost of a stamp is what the event's first sending has more than the bare event: `bytes` of
  `sent` less `bytes` of `published`, at the node that published it.

Percentiles are by nearest rank: the smallest figure that so many of a hundred don't exceed.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from ensue.checkers.disagreement import inversions
from ensue.core.trace import Row

__all__ = ["RunStatistics", "percentile", "statistics"]

MS_NS = 1_000_000


class RunStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What happened in a run, in figures; None where the trace doesn't tell."""

    events: int
    deliveries: int
    subscribers: int
    """Subscriptions that were made or given an event."""
    inversions: int
    """Pairs of events that two subscribers delivered in opposite orders, over all pairs."""
    common_pairs: int
    """Pairs of events that two subscribers both delivered, over all pairs."""
    discarded: Mapping[str, int]
    """Events given up, by reason."""
    tagged: Mapping[str, int]
    """Deliveries with a verdict, such as those out of order, by verdict."""
    crashes: int
    latency_p50_ms: float | None
    latency_p99_ms: float | None
    latency_max_ms: float | None
    held_count: int | None
    """Deliveries that had to wait for one received later."""
    held_mean_ms: float | None
    """How long those waited."""
    stamp_entries_mean: float | None
    stamp_bytes_mean: float | None

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain values, ready for JSON."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain


Key = tuple[str, str]


def statistics(rows: Sequence[Row]) -> RunStatistics:
    """Return the figures of a trace. Of several runs they are taken together."""
    published = _published(rows)
    delivered = [row for row in rows if row.action == "delivered"]
    # Subscriptions by content have no topics by which to tell what two subscribers have in common.
    by_topic = all(row.topic for row in rows if row.action in ("subscribed", "unsubscribed"))
    disagreement = inversions(rows if by_topic else (), context=0)
    latencies = sorted(_latencies_ms(published, delivered))
    held = _held_ms(rows)
    entries, extra = _stamps(published, rows)
    return RunStatistics(
        events=len(published),
        deliveries=len(delivered),
        subscribers=len(
            {
                (row.run, row.node, row.subscription)
                for row in rows
                if row.action in ("delivered", "subscribed")
            }
        ),
        inversions=disagreement.count,
        common_pairs=disagreement.common_count,
        discarded=_count(row for row in rows if row.action == "discarded"),
        tagged=_count(row for row in delivered if row.verdict),
        crashes=sum(row.action == "crashed" for row in rows),
        latency_p50_ms=percentile(latencies, 50),
        latency_p99_ms=percentile(latencies, 99),
        latency_max_ms=latencies[-1] if latencies else None,
        held_count=None if held is None else len(held),
        held_mean_ms=_mean(held or ()),
        stamp_entries_mean=_mean(entries),
        stamp_bytes_mean=_mean(extra),
    )


def percentile(ascending: Sequence[float], percent: float) -> float | None:
    """Return a percentile of sorted figures by nearest rank; None if there are none."""
    if not ascending:
        return None
    return ascending[max(0, math.ceil(percent / 100 * len(ascending)) - 1)]


def _key(row: Row) -> Key:
    return row.run, row.event or ""


def _published(rows: Iterable[Row]) -> dict[Key, Row]:
    """Return the publication of each event: the first, if a restarted publisher said it again."""
    first: dict[Key, Row] = {}
    for row in rows:
        if row.action == "published":
            known = first.setdefault(_key(row), row)
            if row.step < known.step:
                first[_key(row)] = row
    return first


def _count(rows: Iterable[Row]) -> dict[str, int]:
    return dict(sorted(Counter(row.verdict for row in rows).items()))


def _mean(figures: Sequence[float]) -> float | None:
    return sum(figures) / len(figures) if figures else None


def _between_ms(earlier: Row, later: Row) -> float:
    if earlier.true_ns is not None and later.true_ns is not None:
        return (later.true_ns - earlier.true_ns) / MS_NS
    return (later.at_ns - earlier.at_ns) / MS_NS


def _latencies_ms(published: Mapping[Key, Row], delivered: Sequence[Row]) -> list[float]:
    pairs = ((published.get(_key(row)), row) for row in delivered)
    return [_between_ms(start, end) for start, end in pairs if start is not None]


def _held_ms(rows: Sequence[Row]) -> list[float] | None:
    """Return how long each delivery waited that one received later came before.

    Going through a subscriber's deliveries in order: if something before it was received at a later
    step than it, it was overtaken, so it was held back.
    """
    received: dict[tuple[str, str, str], Row] = {}
    for row in rows:
        if row.action == "received" and row.event is not None:
            key = (row.run, row.node, row.event)
            known = received.setdefault(key, row)
            if row.step < known.step:
                received[key] = row
    if not received:
        return None
    held = []
    furthest: dict[tuple[str, str, str | None], int] = {}
    for row in sorted(rows, key=lambda row: (row.run, row.node, row.step)):
        if row.action != "delivered":
            continue
        arrival = received.get((row.run, row.node, row.event or ""))
        if arrival is None:
            continue
        subscriber = (row.run, row.node, row.subscription)
        if arrival.step < furthest.get(subscriber, 0):
            held.append(_between_ms(arrival, row))
        furthest[subscriber] = max(furthest.get(subscriber, 0), arrival.step)
    return held


def _stamps(published: Mapping[Key, Row], rows: Sequence[Row]) -> tuple[list[int], list[int]]:
    """Return the number of entries and the extra bytes of each event as it was first sent."""
    first: dict[Key, Row] = {}
    for row in rows:
        if row.action != "sent" or row.stamp is None or _key(row) not in published:
            continue
        if row.node != published[_key(row)].node:
            continue  # Forwarded by another node.
        known = first.setdefault(_key(row), row)
        if row.step < known.step:
            first[_key(row)] = row
    entries = [len(row.stamp or ()) for row in first.values()]
    extra = []
    for key, row in first.items():
        bare = published[key].bytes
        if row.bytes is not None and bare is not None:
            extra.append(row.bytes - bare)
    return entries, extra
