"""The parts of the audit that work on arrays, against slow and obvious models."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from tests.checkers.helpers import Script

from ensue.checkers import check
from ensue.checkers.completeness import Terms
from ensue.checkers.positions import RULE
from ensue.checkers.verdict import Subscriber
from ensue.core import trace
from ensue.spark.audits import Audit
from ensue.spark.audits.collector import Gathered, _in_one_piece, _Overview
from ensue.spark.audits.delivery_scan import narrowed, widened
from ensue.spark.audits.facts import SEQ_MAX, Lanes, UnitFinder, codes
from ensue.spark.audits.judge import judge_whole
from ensue.spark.audits.positions import judge_positions
from ensue.spark.audits.result import Totals
from ensue.spark.audits.tile_scan import Found

UNITS_OF_LANES = st.lists(
    st.lists(st.integers(1, 40), min_size=1, max_size=6), min_size=1, max_size=5
)
"""By lane: how many numbers each of its units has."""


def lanes_of(units: list[list[int]]) -> Lanes:
    """Return lanes whose n-th unit has so many numbers."""
    ends = [
        (lane, int(end), unit)
        for lane, sizes in enumerate(units)
        for unit, end in enumerate(np.cumsum(sizes))
    ]
    numbers = np.arange(len(units), dtype=np.int64)
    return Lanes(
        hashes=numbers,
        runs=numbers * 0,
        topics=numbers,
        publishers=["p"] * len(units),
        topic_names=["t"] * len(units),
        ends=codes(
            np.array([lane for lane, _, _ in ends], dtype=np.int64),
            np.array([end for _, end, _ in ends], dtype=np.int64),
        ),
        end_units=np.array([unit for _, _, unit in ends], dtype=np.int64),
    )


@given(units=UNITS_OF_LANES, blocks_max=st.sampled_from([1, 5, 50, 1_000]), data=st.data())
def test_the_unit_of_an_event_is_the_first_that_ends_at_it_or_later(
    units: list[list[int]], blocks_max: int, data: st.DataObject
) -> None:
    finder = UnitFinder(lanes_of(units), blocks_max)
    events = data.draw(
        st.lists(
            st.tuples(
                st.integers(0, len(units) - 1), st.one_of(st.integers(0, 250), st.just(SEQ_MAX))
            ),
            min_size=1,
        )
    )
    wanted = codes(
        np.array([lane for lane, _ in events], dtype=np.int64),
        np.array([number for _, number in events], dtype=np.int64),
    )

    expected = []
    for lane, number in events:
        reached = [unit for unit, end in enumerate(np.cumsum(units[lane])) if number <= end]
        expected.append(reached[0] if reached else len(units[lane]) - 1)
    assert finder.of(wanted).tolist() == expected


def test_undivided_runs_have_one_unit() -> None:
    nothing = np.empty(0, dtype=np.int64)
    lanes = Lanes(nothing, nothing, nothing, [], [], nothing, nothing)

    assert UnitFinder(lanes).of(np.array([5, 7])).tolist() == [0, 0]


@given(
    first=st.integers(-(2**40), 2**40),
    offsets=st.lists(st.integers(-(2**33), 2**33) | st.integers(0, 100)),
)
def test_narrowed_numbers_are_restored(first: int, offsets: list[int]) -> None:
    numbers = np.array([first, *(first + offset for offset in offsets)], dtype=np.int64)

    assert widened(narrowed(numbers).tobytes(), len(numbers)).tolist() == numbers.tolist()


@pytest.mark.parametrize("count", [3, 1_000])
def test_near_numbers_take_half_the_bytes(count: int) -> None:
    numbers = np.arange(count, dtype=np.int64) + 2**40

    assert len(narrowed(numbers).tobytes()) == 8 + 4 * count


def test_report_has_as_many_witnesses_as_the_checkers_and_counts_the_rest(
    tmp_path: Path,
) -> None:
    script = Script().subscribe("s1", "x").subscribe("s2", "x")
    for number in range(30):
        script.publish("p", f"e{number}").deliver("s1", f"e{number}")
    trace.write(script.rows, tmp_path / "trace")
    judged = judge_whole(pq.read_table(str(tmp_path / "trace")), ("complete",), Terms(), 100)
    found = Audit(
        cast("SparkSession", None),
        order="none",
        rules=(RULE, "complete"),
        totals=Totals(runs=1, events=30, deliveries=30, subscribers=2),
        judged=judged,
        reasons=(),
        notes={},
    )
    expected = check(script.rows, "none")
    assert found.sentences() == expected.sentences()
    assert found.sentences()[-1] == "complete: and 10 more"
    assert len(found.sentences(violations_max=30)) == 31


def test_partly_judged_positions_are_unknown() -> None:
    found = Found(many_breaks={1, 2, 3})
    known = {1: Subscriber("r", "n", "s"), 2: Subscriber("bad", "n", "s")}
    gathered = cast("Gathered", SimpleNamespace(subscribers=known, changes={}))
    judged = judge_positions(cast("DataFrame", None), found, gathered, {"bad"}, violations_max=5)
    totals = Totals(runs=1, events=1, deliveries=1, subscribers=1)
    report = Audit(
        cast("SparkSession", None),
        order="total",
        rules=[RULE],
        totals=totals,
        judged=judged,
        reasons=[],
        notes={},
    ).report()
    assert report.verdict == "unknown"
    assert [reported.partition(" has over 1,000 ")[0] for reported in report[RULE].reasons] == [
        "n of run r",
        "a node that never subscribed",
    ]


def test_large_run_without_true_times_stays_whole_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    common: dict[str, Any] = {
        "rows": 1,
        "published": 1,
        "named": False,
        "bad": False,
        "nameless_voids": False,
    }
    overviews = [
        _Overview(run=run, simulated=run == "simulated", first_ns=0, last_ns=1, **common)
        for run in ("simulated", "small", "large")
    ]
    assert _in_one_piece(overviews, [32, 1, 32], warns=True) == [32, 1, 1]
    (warning,) = caplog.messages
    assert warning.startswith("audit: run large has no true times")
    assert _in_one_piece(overviews, [8, 1, 8], warns=False) == [8, 1, 1]
    assert len(caplog.messages) == 1
