"""Statistics of a run, computed from its trace alone.

- Latency is the time from `submitted` to `delivered`, for each delivery, or from `published` where
  no application submitted the event: simulated time if both rows have it, otherwise by the clocks
  of the nodes. HAZARD: the difference of these clocks is an error of the latency.
- An event is held back at a subscriber if an event that was received later was delivered before it.
  Only traces with frames (`received`) show this; in others it is unknown.
- The cost of a stamp is the size of the event when first sent, less that of the bare event: `bytes`
  of `sent` less `bytes` of `published`, or of `node_published` where an application published.

Percentiles are by nearest rank: the smallest value that at least so many percent do not exceed.
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
    """Statistics of a run; None if the trace does not show a value."""

    events: int
    deliveries: int
    subscribers: int
    """Subscriptions that were opened or delivered an event."""
    inversions: int
    """Pairs of events that two subscribers delivered in opposite orders, over all pairs."""
    common_pairs: int
    """Pairs of events that two subscribers both delivered, over all pairs."""
    discarded: Mapping[str, int]
    """Discarded events, by reason."""
    tagged: Mapping[str, int]
    """Deliveries with a verdict, such as those out of order, by verdict."""
    crashes: int
    transactions: int
    """Transactions that began."""
    committed: int
    """Transactions that committed."""
    latency_p50_ms: float | None
    latency_p99_ms: float | None
    latency_max_ms: float | None
    held_count: int | None
    """Deliveries that waited for an event received later."""
    held_mean_ms: float | None
    """Mean wait of these deliveries."""
    stamp_entries_mean: float | None
    stamp_bytes_mean: float | None

    def to_dict(self) -> dict[str, Any]:
        """Return the statistics as plain values, ready for JSON."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain


Key = tuple[str, str]


def statistics(rows: Sequence[Row]) -> RunStatistics:
    """Return the statistics of a trace, over all its runs."""
    published = _published(rows)
    delivered = [row for row in rows if row.action == "delivered"]
    # Content subscriptions have no topics, so common events of two subscribers are not known.
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
        transactions=_transactions(rows, "began"),
        committed=_transactions(rows, "committed"),
        latency_p50_ms=percentile(latencies, 50),
        latency_p99_ms=percentile(latencies, 99),
        latency_max_ms=latencies[-1] if latencies else None,
        held_count=None if held is None else len(held),
        held_mean_ms=_mean(held or ()),
        stamp_entries_mean=_mean(entries),
        stamp_bytes_mean=_mean(extra),
    )


def percentile(ascending: Sequence[float], percent: float) -> float | None:
    """Return a percentile of sorted values by nearest rank; None if there are none."""
    if not ascending:
        return None
    return ascending[max(0, math.ceil(percent / 100 * len(ascending)) - 1)]


def _transactions(rows: Iterable[Row], action: str) -> int:
    """Count transactions: several nodes note that one began or committed."""
    return len({(row.run, row.transaction) for row in rows if row.action == action})


def _key(row: Row) -> Key:
    return row.run, row.event or ""


def _published(rows: Iterable[Row]) -> dict[Key, Row]:
    """Return the first row of each event that was published: a restarted node may repeat it."""
    first: dict[Key, Row] = {}
    for row in rows:
        if row.action in ("submitted", "published"):
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
    """Return the wait of each delivery that an event received later preceded.

    In the order of a subscriber's deliveries: if an earlier delivery was received at a later step,
    it overtook this one, so this one was held back.
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
    bare_bytes = {
        _key(row): row.bytes
        for row in rows
        if row.action in ("published", "node_published") and row.bytes is not None
    }
    for key, row in first.items():
        bare = bare_bytes.get(key)
        if row.bytes is not None and bare is not None:
            extra.append(row.bytes - bare)
    return entries, extra
