"""The hold-back queue of a stream in total order that is not causal."""

import datetime as dt
from collections.abc import Sequence
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from tests.spark.ordered_logs import START

from ensue.core.errors import ConfigurationError, LimitReached
from ensue.spark.hold_back import Limits
from ensue.spark.vector_hold_back import VectorHoldBack
from ensue.store import log_schema

MANY = Limits(held_max=1_000)
SCHEMA = log_schema().append(pa.field("position", pa.int64()))


def event(topic: str, offset: int, at_s: int = 0, *, void: bool = False, **stamp: int) -> Any:
    """Return an event that counts so many events of other topics."""
    return {
        "key": None,
        "value": None if void else b"",
        "topic": topic,
        "publisher": "p",
        "publisher_seq": offset + 1,
        "event": f"{topic}{offset}",
        "stamp": {topic: offset + 1, **stamp},
        "published_at": START + dt.timedelta(seconds=at_s),
        "offset": offset,
        "headers": {},
        "position": 1,
    }


def passed(
    *micro_batches: Sequence[Any], limits: Limits = MANY, cut: dict[str, int] | None = None
) -> list[tuple[str, int | None, str]]:
    """Return what a queue releases: event, position and verdict."""
    blob, found = None, []
    for events in micro_batches:
        queue = VectorHoldBack({"a": 0, "b": 0, "c": 0} if cut is None else cut, limits, blob)
        batches = pa.Table.from_pylist(list(events), schema=SCHEMA).to_batches(max_chunksize=2)
        released = [rows for batch in batches for rows in queue.add(batch)]
        for rows in (*released, *queue.finish()):
            found += [(row["event"], row["position"], row["verdict"]) for row in rows.to_pylist()]
        blob = queue.dump()
    return found


def test_events_follow_what_their_stamps_count_across_micro_batches() -> None:
    late = event("a", 0, b=2)
    found = passed([late], [event("b", 1, c=1)], [event("b", 0), event("c", 0, 9)])
    assert found == [("b0", 1, ""), ("c0", 2, ""), ("b1", 3, ""), ("a0", 4, "")]


def test_result_does_not_depend_on_how_rows_arrive() -> None:
    log = [event("abc"[index % 3], index // 3, index, b=index // 3) for index in range(30)]
    expected = passed(log)
    for seed in range(5):
        Random(seed).shuffle(log)
        assert passed(log) == expected
        again = [name for name, _, _ in passed(log[:7], log[7:19], log[5:], log)]
        assert sorted(again) == sorted(name for name, _, _ in expected)
        assert len(again) == 30


def test_topics_that_are_not_ordered_do_not_wait() -> None:
    assert passed([event("a", 0, x=9), event("b", 1)]) == [("a0", 1, "")]


def test_order_begins_at_the_given_offsets() -> None:
    before = {**event("a", 4), "position": None}
    found = passed([before, event("a", 5, b=3), event("b", 3)], cut={"a": 5, "b": 3})
    assert found == [("a4", None, "before_cut"), ("a5", 1, ""), ("b3", 2, "")]


def test_voids_take_a_position() -> None:
    log = [event("a", 0, void=True), event("a", 1)]
    assert passed(log) == [("a1", 2, "")]
    shown = Limits(held_max=9, voids=True)
    assert passed(log, limits=shown) == [("a0", 1, "void"), ("a1", 2, "")]


def test_a_gap_is_skipped_after_the_time_to_live() -> None:
    limits = Limits(held_max=9, time_to_live_us=5_000_000)
    log = [event("b", 1, 1, a=2), event("a", 2, 2, b=2), event("c", 0, 3)]
    found = passed(
        log, [event("c", 1, 9)], [event("b", 0), event("b", 0), event("a", 1)], limits=limits
    )
    assert found == [
        ("c0", 1, ""),
        ("c1", 2, ""),
        ("b1", 3, "after_gap"),
        ("a2", 4, ""),
        ("b0", 5, "out_of_order"),
        ("a1", 6, "out_of_order"),
    ]


def test_no_more_than_held_max_events_wait() -> None:
    log = [event("a", 1), event("a", 2), event("b", 1)]
    with pytest.raises(LimitReached, match=r"3 events wait .* 1 of 'a'; held_max is 2"):
        passed(log, limits=Limits(held_max=2))
    limits = Limits(held_max=2, time_to_live_us=5_000_000)
    assert passed(log, limits=limits) == [("a1", 1, "after_gap"), ("a2", 2, "")]


def test_other_columns_than_those_held_are_refused() -> None:
    queue = VectorHoldBack({"a": 0}, MANY)
    batch = pa.Table.from_pylist([event("a", 1)], schema=SCHEMA).to_batches()[0]
    list(queue.add(batch))
    with pytest.raises(ConfigurationError, match="columns differ"):
        list(queue.add(batch.drop_columns(["key"])))
