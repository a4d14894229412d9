"""Statistics of a run, against values computed by hand."""

import pytest
from tests.checkers.helpers import Script

from ensue.checkers.statistics import percentile, statistics
from ensue.core.trace import Row

MS = 1_000_000


def row(node: str, step: int, action: str, ms: float, **columns: object) -> Row:
    return Row(
        run="r",
        node=node,
        step=step,
        at_ns=int(ms * MS) + 7_000 * MS,
        true_ns=int(ms * MS),
        action=action,
        **columns,  # type: ignore[arg-type]
    )


def named(event: str) -> dict[str, object]:
    return {"event": event, "topic": "x", "publisher": "p", "publisher_seq": ord(event) - 96}


@pytest.fixture
def run() -> list[Row]:
    """p publishes a, b and c; s gets c and b early, waits for a, and crashes at the end."""
    return [
        row("p", 1, "published", 0, bytes=100, **named("a")),
        row("p", 2, "sent", 1, bytes=110, stamp={"x": 1}, **named("a")),
        row("p", 3, "published", 2, bytes=100, **named("b")),
        row("p", 4, "sent", 3, bytes=120, stamp={"x": 2, "y": 1}, **named("b")),
        # Sent again with another stamp: only the first counts.
        row("p", 5, "sent", 9, bytes=999, stamp={"x": 9, "y": 9, "z": 9}, **named("b")),
        row("p", 6, "published", 4, **named("c")),
        row("p", 7, "sent", 5, bytes=130, stamp={"x": 3, "y": 1, "z": 1}, **named("c")),
        # Forwarded by the topic log: not a cost of the publisher.
        row("ens", 1, "sent", 6, bytes=500, stamp={"x": 1}, **named("a")),
        row("s", 1, "subscribed", 0, topic="x", subscription="s"),
        row("s", 2, "received", 5, **named("b")),
        row("s", 3, "received", 6, **named("c")),
        row("s", 4, "received", 20, **named("a")),
        row("s", 5, "delivered", 20, subscription="s", **named("a")),
        row("s", 6, "delivered", 22, subscription="s", **named("b")),
        row("s", 7, "delivered", 24, subscription="s", verdict="late", **named("c")),
        row("s", 8, "discarded", 25, verdict="duplicate", **named("a")),
        row("s", 9, "crashed", 26),
    ]


def test_all_statistics_of_a_run(run: list[Row]) -> None:
    found = statistics(run)
    assert (found.events, found.deliveries, found.subscribers) == (3, 3, 1)
    # All three took 20 ms.
    assert (found.latency_p50_ms, found.latency_p99_ms, found.latency_max_ms) == (20, 20, 20)
    # b waited from 5 to 22 ms, c from 6 to 24 ms.
    assert (found.held_count, found.held_mean_ms) == (2, (17 + 18) / 2)
    assert found.stamp_entries_mean == (1 + 2 + 3) / 3
    # c was published without a size.
    assert found.stamp_bytes_mean == (10 + 20) / 2
    assert found.discarded == {"duplicate": 1}
    assert found.tagged == {"late": 1}
    assert found.crashes == 1
    assert (found.inversions, found.common_pairs) == (0, 0)


def test_row_order_is_irrelevant(run: list[Row]) -> None:
    assert statistics(run[::-1]) == statistics(run)


def test_statistics_missing_from_trace_are_none() -> None:
    rows = Script().subscribe("s1", "x").publish("p1", "a").rows
    found = statistics(rows)
    assert (found.events, found.deliveries) == (1, 0)
    assert found.latency_p50_ms is None
    assert found.held_count is None
    assert found.held_mean_ms is None
    assert found.stamp_entries_mean is None
    assert found.stamp_bytes_mean is None
    assert statistics([]).events == 0


def test_without_true_time_the_clocks_of_the_nodes_count() -> None:
    rows = [
        Row(
            run="r",
            node="p",
            step=1,
            at_ns=1 * MS,
            action="published",
            **named("a"),  # type: ignore[arg-type]
        ),
        Row(run="r", node="s", step=1, at_ns=0, action="subscribed", topic="x"),
        Row(
            run="r",
            node="s",
            step=2,
            at_ns=9 * MS,
            action="delivered",
            **named("a"),  # type: ignore[arg-type]
        ),
    ]
    assert statistics(rows).latency_max_ms == 8


def test_first_publication_counts_after_crash() -> None:
    rows = [
        row("p", 1, "published", 0, **named("a")),
        row("p", 2, "crashed", 10),
        row("p", 3, "restarted", 40),
        row("p", 4, "published", 50, **named("a")),
        row("s", 1, "delivered", 60, subscription="s", **named("a")),
    ]
    for ordered in (rows, rows[::-1]):
        assert statistics(ordered).events == 1
        assert statistics(ordered).latency_max_ms == 60


def test_opposite_orders_are_counted() -> None:
    script = Script().subscribe("s1", "x").subscribe("s2", "x")
    script.publish("p1", "a").publish("p2", "b").publish("p3", "c")
    rows = script.deliver("s1", "a", "b", "c").deliver("s2", "c", "b", "a").rows
    found = statistics(rows)
    assert (found.inversions, found.common_pairs) == (3, 3)


@pytest.mark.parametrize(
    ("percent", "value"), [(1, 1), (50, 2), (75, 3), (76, 4), (99, 4), (100, 4)]
)
def test_percentiles_are_by_nearest_rank(percent: float, value: float) -> None:
    assert percentile([1, 2, 3, 4], percent) == value


def test_percentile_of_nothing_is_none() -> None:
    assert percentile([], 50) is None
