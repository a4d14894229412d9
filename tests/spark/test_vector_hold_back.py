"""The hold-back queue of a stream in total order that is not causal."""

import datetime as dt
import sys
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


class SearchesAllRows(VectorHoldBack):
    """Finds the eldest row and those before a row among all that are held."""

    def _overdue(self) -> Any:
        found = super()._overdue()
        rows = [row for held in self._held.values() for row in held.values()]
        if found is not None:
            assert found == min(rows, key=lambda row: (row.at_us, row.topic, row.offset))
        assert self._held_count == len(rows)
        return found

    def _held_before(self, row: Any) -> Any:
        found = super()._held_before(row)
        for topic, count in sorted({**row.stamp, row.topic: row.offset}.items()):
            earlier = [offset for offset in self._held.get(topic, ()) if offset < count]
            if earlier:
                assert found == self._held[topic][min(earlier)]
                return found
        assert found is None
        return None

    def _skip_to(self, row: Any) -> None:
        super()._skip_to(row)
        ready = {topic for _, topic in self._ready}
        assert len(ready) == len(self._ready)
        for topic, held in self._held.items():
            following = held.get(self._state.clock.get(topic, 0))
            clock = self._state.clock
            waits = following is None or any(
                other != topic and clock.get(other, count) < count
                for other, count in following.stamp.items()
            )
            assert (topic in ready) == (not waits)


@pytest.mark.parametrize("seed", range(30))
def test_skipped_gaps_are_those_found_among_all_held_rows(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(seed)
    counts, log = {"a": 0, "b": 0, "c": 0}, []
    for at_s in range(80):
        topic = random.choice("abc")
        others = {each: counts[each] for each in counts if each != topic and random.random() < 0.6}
        plain = event(topic, counts[topic], at_s + random.randint(0, 20))
        log.append(plain | {"stamp": plain["stamp"] | others})
        counts[topic] += 1
    kept = [each for each in log if random.random() < 0.6]
    random.shuffle(kept)
    limits = Limits(held_max=random.choice((3, 1_000)), time_to_live_us=30_000_000)
    batches = [kept[start : start + 20] for start in range(0, len(kept), 20)]
    expected = passed(*batches, limits=limits)
    assert any(verdict == "after_gap" for _, _, verdict in expected)
    monkeypatch.setattr("tests.spark.test_vector_hold_back.VectorHoldBack", SearchesAllRows)
    assert passed(*batches, limits=limits) == expected


def steps_of_skipped(gaps: int) -> int:
    """Return how many instructions of the queue it takes to skip so many gaps."""
    rows = [event("a", 2 * number + 1, number) for number in range(gaps)]
    limits, steps = Limits(held_max=1_000, time_to_live_us=1), 0

    def trace(frame: Any, what: str, _argument: Any) -> Any:
        nonlocal steps
        if not frame.f_code.co_filename.endswith("vector_hold_back.py"):
            return None
        frame.f_trace_opcodes = True
        steps += what == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        found = passed([*rows, event("b", 0, 10 * gaps)], limits=limits)
    finally:
        sys.settrace(before)
    assert len([verdict for _, _, verdict in found if verdict == "after_gap"]) == gaps
    return steps


def test_gaps_are_skipped_in_time_that_grows_with_their_number() -> None:
    assert steps_of_skipped(400) < 3 * steps_of_skipped(200)
