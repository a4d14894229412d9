"""The hold-back queue against a slow obvious model: a dictionary and a loop."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ensue.core.errors import ConfigurationError, LimitReached
from ensue.spark import hold_back, record_batches
from ensue.spark.conditions import SparkFault
from ensue.spark.hold_back import Limits, TotalHoldBack

FIELDS: "list[pa.Field[Any]]" = [
    pa.field("topic", pa.string()),
    pa.field("event", pa.string()),
    pa.field("value", pa.binary()),
    pa.field("stamp", pa.map_(pa.string(), pa.int64())),
    pa.field("published_at", pa.timestamp("us", tz="UTC")),
    pa.field("offset", pa.int64()),
    pa.field("position", pa.int64()),
]
SCHEMA = pa.schema(FIELDS)
Row = dict[str, Any]
Left = tuple[int, str, str]
"""Position, event and verdict."""


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every size limit matter with a handful of rows."""
    monkeypatch.setattr(hold_back, "MERGE_ROWS", 4)
    monkeypatch.setattr(record_batches, "OUT_ROWS", 3)


def row(position: int, *, at_us: int | None = 0, void: bool = False, event: str = "") -> Row:
    return {
        "topic": "t",
        "event": event or f"p/t/{position}",
        "value": None if void else b"\x00\xff",
        "stamp": [("t", position)],
        "published_at": at_us,
        "offset": position - 1,
        "position": position,
    }


def batch_of(rows: Sequence[Row]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=SCHEMA)


def left(batches: Iterator[pa.RecordBatch]) -> list[Left]:
    return [
        (found["position"], found["event"], found["verdict"])
        for batch in batches
        for found in batch.to_pylist()
    ]


def run(
    micro_batches: Sequence[Sequence[Sequence[Row]]], limits: Limits, *, restored: bool = True
) -> list[list[Left]]:
    """Return the rows that each micro-batch releases; restore the state in between."""
    queue = TotalHoldBack(limits)
    found = []
    for micro_batch in micro_batches:
        out = [gone for rows in micro_batch for gone in left(queue.add(batch_of(rows)))]
        found.append([*out, *left(queue.finish())])
        blob = queue.dump()
        if restored:
            queue = TotalHoldBack(limits, blob)
    return found


class Model:
    """A slow, obvious hold-back queue."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.next = 1
        self.held: dict[int, Row] = {}
        self.given_up: set[int] = set()
        self.newest: int | None = None
        self.after_gap = False

    def micro_batch(self, rows: Sequence[Row]) -> tuple[list[Left], list[Left]]:
        """Return the rows released in order, and the late ones."""
        ordered: list[Left] = []
        late: list[Left] = []
        for one in rows:
            position, at = one["position"], one["published_at"]
            if at is not None:
                self.newest = at if self.newest is None else max(self.newest, at)
            if position in self.given_up:
                self.given_up.remove(position)
                if one["value"] is not None:
                    late.append((position, one["event"], "out_of_order"))
                elif self.limits.voids:
                    late.append((position, one["event"], "void"))
            elif position >= self.next:
                self.held.setdefault(position, one)
        self.drain(ordered)
        while self.limits.time_to_live_us is not None and self.overdue():
            first = min(self.held)
            self.given_up |= set(range(self.next, first))
            self.next, self.after_gap = first, True
            self.drain(ordered)
        return ordered, late

    def overdue(self) -> bool:
        ttl = self.limits.time_to_live_us
        assert ttl is not None
        return len(self.held) > self.limits.held_max or any(
            self.newest is not None
            and one["published_at"] is not None
            and self.newest - one["published_at"] > ttl
            for one in self.held.values()
        )

    def drain(self, ordered: list[Left]) -> None:
        while self.next in self.held:
            one = self.held.pop(self.next)
            if one["value"] is not None:
                verdict = "after_gap" if self.after_gap else ""
                ordered.append((self.next, one["event"], verdict))
                self.after_gap = False
            elif self.limits.voids:
                ordered.append((self.next, one["event"], "void"))
            self.next += 1


@st.composite
def arrivals(draw: st.DrawFn) -> list[list[list[Row]]]:
    """A log with lost and repeated events, cut into micro-batches of record batches anyhow."""
    count = draw(st.integers(1, 24))
    log = [
        row(
            position,
            at_us=draw(st.none() | st.integers(position * 10 - 30, position * 10 + 30)),
            void=draw(st.integers(0, 5)) == 0,
        )
        for position in range(1, count + 1)
    ]
    # Near where it belongs, now and then far from it, more than once or never.
    places = [
        (position + draw(st.integers(-4, 4) | st.integers(-24, 24)), one)
        for position, one in enumerate(log)
        for _ in range(draw(st.sampled_from([1, 1, 1, 1, 2, 0])))
    ]
    coming = [one for _, one in sorted(places, key=lambda place: place[0])]
    cuts = st.lists(st.integers(0, len(coming)), max_size=6)
    return [pieces(some, draw(cuts)) for some in pieces(coming, draw(cuts))]


def pieces(rows: Sequence[Row], cuts: Sequence[int]) -> list[list[Row]]:
    ends = sorted({0, len(rows), *(min(cut, len(rows)) for cut in cuts)})
    return [list(rows[low:high]) for low, high in pairwise(ends)]


limits_drawn = st.builds(
    Limits,
    held_max=st.integers(1, 8) | st.just(100),
    time_to_live_us=st.integers(0, 200) | st.just(10_000),
    voids=st.booleans(),
)


@settings(max_examples=150, deadline=None)
@given(arrivals(), limits_drawn, st.booleans())
def test_queue_releases_the_same_rows_as_the_model(
    coming: list[list[list[Row]]], limits: Limits, restored: bool
) -> None:
    compare_with_model(coming, limits, restored=restored)


@pytest.mark.verify
@settings(max_examples=5_000, deadline=None)
@given(arrivals(), limits_drawn, st.booleans())
def test_queue_releases_the_same_rows_as_the_model_in_many_examples(
    coming: list[list[list[Row]]], limits: Limits, restored: bool
) -> None:
    compare_with_model(coming, limits, restored=restored)


def compare_with_model(coming: list[list[list[Row]]], limits: Limits, *, restored: bool) -> None:
    model = Model(limits)
    late_verdicts = {"out_of_order"}
    for micro_batch, found in zip(coming, run(coming, limits, restored=restored), strict=True):
        start = model.next
        ordered, late = model.micro_batch([one for rows in micro_batch for one in rows])
        is_late = [gone for gone in found if gone[2] in late_verdicts or gone[0] < start]
        assert [gone for gone in found if gone not in is_late] == ordered
        assert sorted(is_late) == sorted(late)


@settings(max_examples=60, deadline=None)
@given(arrivals(), limits_drawn, st.randoms(use_true_random=False))
def test_released_rows_do_not_depend_on_the_order_within_a_micro_batch(
    coming: list[list[list[Row]]], limits: Limits, random: Any
) -> None:
    shuffled = []
    for micro_batch in coming:
        rows = [one for some in micro_batch for one in some]
        random.shuffle(rows)
        shuffled.append(pieces(rows, [random.randrange(len(rows) + 1) for _ in range(3)]))
    for one, other in zip(run(coming, limits), run(shuffled, limits), strict=True):
        assert sorted(one) == sorted(other)


def test_without_a_time_to_live_the_queue_waits_for_a_gap() -> None:
    limits = Limits(held_max=3)
    assert run([[[row(2), row(3), row(5)]], [[row(4), row(1)]]], limits) == [
        [],
        [(position, f"p/t/{position}", "") for position in range(1, 6)],
    ]


def test_without_a_time_to_live_too_many_held_rows_are_an_error() -> None:
    with pytest.raises(
        LimitReached, match=r"4 events wait for position 1.*held_max is 3"
    ) as failed:
        run([[[row(2), row(3), row(5), row(6)]]], Limits(held_max=3))
    assert failed.value.limit == "held_max"


def test_within_a_micro_batch_more_than_held_max_may_wait() -> None:
    rows = [row(position) for position in range(9, 0, -1)]
    assert len(run([[[one] for one in rows]], Limits(held_max=1))[0]) == 9


def test_two_events_at_one_position_raise_naming_both() -> None:
    rows = [row(2), row(2, event="q/u/1")]
    for micro_batch in ([rows], [rows[:1], rows[1:]]):
        with pytest.raises(SparkFault, match=r"position 2: 'p/t/2' and 'q/u/1'"):
            run([micro_batch], Limits(held_max=9))
    with pytest.raises(SparkFault, match=r"position 2: 'p/t/2' and 'q/u/1'"):
        run([[rows[:1]], [rows[1:]]], Limits(held_max=9))


def test_event_at_the_position_of_a_released_one_is_a_conflict() -> None:
    other = {**row(1, event="q/u/0"), "topic": "u", "offset": 0}
    with pytest.raises(SparkFault, match=r"position 1: 'q/u/0' came after another"):
        run([[[row(1)]], [[other]]], Limits(held_max=9))


def test_repeated_late_event_is_released_once() -> None:
    limits = Limits(held_max=1, time_to_live_us=1000)
    late = {**row(1), "topic": "seldom", "offset": 5}
    found = run([[[row(2), row(4)]], [[late], [late]], [[late]]], limits)
    assert found == [[(2, "p/t/2", "after_gap")], [(1, "p/t/1", "out_of_order")], []]


def test_only_the_newest_skipped_ranges_are_retained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(record_batches, "RANGES_MAX", 2)
    limits = Limits(held_max=1, time_to_live_us=1000)
    gaps = [[[row(position)]] for position in (2, 4, 6, 8, 10)]
    found = run([*gaps, [[row(1)]], [[row(1)]], [[row(5)]], [[row(5)]]], limits)
    # Position 1 is below the dropped ranges, where repetitions are not recognized; 5 is not.
    late = (1, "p/t/1", "out_of_order")
    assert found[5:] == [[late], [late], [(5, "p/t/5", "out_of_order")], []]


def test_changed_columns_are_rejected_while_events_are_held() -> None:
    limits = Limits(held_max=9)
    queue = TotalHoldBack(limits)
    assert left(queue.add(batch_of([row(2)]))) == []
    assert left(queue.finish()) == []
    changed = batch_of([row(1)]).append_column("more", pa.array([1]))
    with pytest.raises(ConfigurationError, match=r"\['more'\]"):
        left(TotalHoldBack(limits, queue.dump()).add(changed))


def test_state_of_another_version_is_rejected() -> None:
    blob = TotalHoldBack(Limits(held_max=9)).dump()
    other = blob.replace(b'"version":1', b'"version":9')
    assert other != blob
    with pytest.raises(ConfigurationError, match="version 9"):
        TotalHoldBack(Limits(held_max=9), other)


def test_state_restores_rows_exactly() -> None:
    limits = Limits(held_max=9)
    rows = [row(2, at_us=1_234_567_890_123_456), row(3, at_us=None)]
    queue = TotalHoldBack(limits)
    assert left(queue.add(batch_of(rows))) == []
    assert left(queue.finish()) == []
    queue = TotalHoldBack(limits, queue.dump())
    came = [*queue.add(batch_of([row(1)])), *queue.finish()]
    table = pa.Table.from_batches(came).drop_columns(["verdict"])
    assert table.to_pylist() == batch_of([row(1), *rows]).to_pylist()


def test_arrived_position_is_removed_from_its_range() -> None:
    given_up = record_batches.GivenUp([(3, 6), (9, 9)], 0)
    given_up.remove(4)
    given_up.remove(9)
    assert given_up.ranges == [(3, 3), (5, 6)]
    asked = np.arange(1, 11)
    assert asked[given_up.among(asked)].tolist() == [3, 5, 6]
