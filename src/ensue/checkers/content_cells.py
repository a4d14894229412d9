"""Checks filters of subscriptions by content that have an order.

A trace of topics does not show attributes, so who ran the program has to know them. Rules:

- `uninvited`: an event was delivered that does not match the filter;
- `lost`: an event that matches was discarded as `unmatched`, or its topic is none of those that the
  subscription joined.

Together with the rules on topics, which take `unmatched` at its word, these say that a subscription
gets all events that match, and no others.
"""

from collections.abc import Mapping, Sequence
from functools import partial

from ensue.checkers.content_filters import matches
from ensue.checkers.verdict import Collector, Finding, Subscriber
from ensue.core.trace import Row

__all__ = ["RULE", "judge"]

RULE = "content"
Value = bool | int | float | str


def judge(
    rows: Sequence[Row],
    events: Mapping[str, Mapping[str, Value]],
    filters: Mapping[tuple[str, str], str],
    *,
    violations_max: int = 20,
) -> Finding:
    """Judge deliveries by attributes of events, and filters by node and subscription."""
    collector = Collector(RULE, violations_max=violations_max)
    topics: dict[Subscriber, set[str]] = {}
    published: dict[str, str] = {}
    for row in rows:
        subscriber = Subscriber(row.run, row.node, row.subscription or "")
        where = filters.get((subscriber.node, subscriber.subscription))
        if row.action in ("submitted", "published") and row.event in events:
            published[row.event or ""] = row.topic or ""
        if where is None:
            continue
        if row.action == "subscribed":
            topics.setdefault(subscriber, set()).add(row.topic or "")
        wanted = row.event in events and matches(where, dict(events[row.event or ""]))
        if row.action == "delivered" and not wanted:
            _report(collector, "uninvited", subscriber, row.event, f"delivered, outside of {where}")
        if row.action == "discarded" and row.verdict == "unmatched" and wanted:
            _report(collector, "lost", subscriber, row.event, f"discarded, although it has {where}")
    for subscriber, joined in topics.items():
        where = filters[subscriber.node, subscriber.subscription]
        for event, topic in published.items():
            if topic not in joined and matches(where, dict(events[event])):
                why = f"published on {topic}, which its filter {where} does not include"
                _report(collector, "lost", subscriber, event, why)
    return collector.finding()


def _report(
    collector: Collector, anomaly: str, subscriber: Subscriber, event: str | None, why: str
) -> None:
    explain = partial("{} of {}: {}".format, event, subscriber.node, why)
    collector.violation(anomaly, (subscriber,), (event or "",), explain)
