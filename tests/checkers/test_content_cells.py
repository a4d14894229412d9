"""Filters of subscriptions by content, judged with the attributes of events."""

from typing import Any

from ensue.checkers.content_cells import judge
from ensue.core.trace import Row

EVENTS: dict[str, dict[str, bool | int | float | str]] = {
    "a": {"price": 1},
    "b": {"price": 5},
    "c": {"price": 9},
}
FILTERS = {("s", "main"): "price > 3"}


def row(step: int, action: str, event: str | None = None, **columns: Any) -> Row:
    node = "p" if action == "published" else "s"
    topic = columns.pop("topic", "cell")
    subscription = None if action == "published" else columns.pop("subscription", "main")
    return Row(
        run="run",
        node=node,
        step=step,
        at_ns=step,
        action=action,
        event=event,
        topic=topic,
        subscription=subscription,
        **columns,
    )


def anomalies(*rows: Row) -> dict[str, int]:
    published = [row(9, "published", "a"), row(10, "published", "b")]
    return judge([row(1, "subscribed"), *rows, *published], EVENTS, FILTERS).anomaly_counts


def test_events_that_match_are_delivered_and_others_discarded() -> None:
    right = row(2, "discarded", "a", verdict="unmatched"), row(3, "delivered", "b")
    assert anomalies(*right) == {}


def test_delivery_outside_of_the_filter_is_uninvited() -> None:
    assert anomalies(row(2, "delivered", "a")) == {"uninvited": 1}


def test_event_that_matches_and_is_discarded_is_lost() -> None:
    assert anomalies(row(2, "discarded", "b", verdict="unmatched")) == {"lost": 1}
    assert anomalies(row(2, "discarded", "b", verdict="void")) == {}


def test_event_of_a_topic_that_was_not_joined_is_lost() -> None:
    assert anomalies(row(2, "published", "c", topic="elsewhere")) == {"lost": 1}
    assert anomalies(row(2, "published", "a", topic="elsewhere")) == {}


def test_subscriptions_without_a_filter_are_not_judged() -> None:
    assert anomalies(row(2, "delivered", "a", subscription="other")) == {}
