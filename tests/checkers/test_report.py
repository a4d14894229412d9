"""Bad input to `check`, and the text of reports."""

import json
from collections.abc import Callable
from itertools import permutations

import msgspec
import pytest
from tests.checkers.helpers import Script

from ensue.checkers import Verdict, check, cycles, promises
from ensue.core.errors import BadInput
from ensue.core.trace import Row


def good() -> list[Row]:
    return Script().subscribe("s1", "x").publish("p1", "a").deliver("s1", "a").rows


def test_row_order_is_irrelevant() -> None:
    rows = Script().subscribe("s1", "x").publish("p1", "a").publish("p1", "b")
    every = rows.deliver("s1", "a", "b").rows
    assert {check(list(order)).verdict for order in permutations(every)} == {Verdict.VALID}


def test_stamps_and_positions_are_not_trusted() -> None:
    rows = [msgspec.structs.replace(row, stamp={"x": 9}, position=99) for row in good()]
    assert check(rows) == check(good())


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda rows: [], "the trace is empty"),
        (lambda rows: rows[:1], "run r has no deliveries"),
        (
            lambda rows: [*rows, rows[2]],
            "run r is malformed: node s1 has two rows with step 2",
        ),
        (
            lambda rows: [*rows[:2], msgspec.structs.replace(rows[2], event=None)],
            "run r is malformed: a delivered row without event (node s1, step 2)",
        ),
        (
            lambda rows: [*rows[:2], msgspec.structs.replace(rows[2], publisher_seq=None)],
            "run r is malformed: a delivered row without publisher_seq (node s1, step 2)",
        ),
        (
            lambda rows: [msgspec.structs.replace(rows[0], topic=None), *rows[1:]],
            "run r is malformed: a subscribed row without topic (node s1, step 1)",
        ),
        (
            lambda rows: [*rows, msgspec.structs.replace(rows[2], step=9, action="devoured")],
            "run r is malformed: unknown action 'devoured' (node s1, step 9)",
        ),
        (
            lambda rows: [*rows, msgspec.structs.replace(rows[1], node="p2", event="b")],
            (
                "run r is malformed: a (node p1, step 1) and b (node p2, step 1) "
                "were published as one event"
            ),
        ),
    ],
)
def test_unjudgeable_run_is_unknown_with_reason(
    spoil: Callable[[list[Row]], list[Row]], reason: str
) -> None:
    report = check(spoil(good()))
    assert report.verdict == Verdict.UNKNOWN
    assert report.reasons == (reason,)
    assert f"unknown: {reason}" in report.sentences()


def test_run_without_deliveries_lost_owed_events() -> None:
    report = check(good()[:2])
    assert report.verdict == Verdict.INVALID
    assert report["complete"].anomaly_counts == {"lost": 1}
    assert report.reasons == ("run r has no deliveries",)


def test_restarted_publisher_may_repeat_published_rows() -> None:
    script = Script().publish("p1", "a").subscribe("s1", "x").crash("p1").restart("p1")
    again = msgspec.structs.replace(script.rows[0], step=4, at_ns=9, true_ns=9)
    # The first row counts: published before s1 subscribed, the event is not owed to s1.
    script.publish("p2", "b").deliver("s1", "b")
    assert check([*script.rows, again]).verdict == Verdict.VALID
    for other in ({"step": 3, "event": "a"}, {"event": "c"}, {"node": "p3"}, {"publisher_seq": 2}):
        rows = [row for row in script.rows if row.action != "restarted" or "step" not in other]
        spoiled = msgspec.structs.replace(again, **other)
        assert check([*rows, spoiled]).verdict == Verdict.UNKNOWN


def test_violation_in_one_run_outweighs_unjudgeable_run() -> None:
    bad = Script(run="bad").subscribe("s1", "x").deliver("s1", "ghost").rows
    empty = Script(run="empty").subscribe("s1", "x").rows
    report = check([*bad, *empty])
    assert report.verdict == Verdict.INVALID
    assert report.reasons == ("run empty has no deliveries",)


def test_each_order_has_its_rules() -> None:
    checked = {
        order: [finding.checker for finding in check(good(), order).findings]
        for order in promises()
    }
    assert checked == {
        "total": ["fifo", "total", "causal", "positions", "complete"],
        "total-noncausal": ["fifo", "total", "positions", "complete"],
        "causal": ["fifo", "causal", "positions", "complete"],
        "causal-topic": ["fifo", "causal-topic", "positions", "complete"],
        "merged": ["fifo", "global", "causal", "positions", "complete"],
        "deadline": ["fifo", "causal", "deadline", "positions", "complete"],
        "fifo": ["fifo", "positions", "complete"],
        "none": ["positions", "complete"],
        "transactions": ["atomic", "sequential", "serializable", "converged"],
    }
    with_causal = check(good(), "fifo", causal=True)
    assert [one.checker for one in with_causal.findings] == [
        "fifo",
        "positions",
        "causal",
        "complete",
    ]


def test_unknown_order_is_rejected() -> None:
    with pytest.raises(
        BadInput,
        match=r"no order 'partial'.*total, total-noncausal, causal, causal-topic, merged, "
        r"deadline, fifo, none",
    ):
        check(good(), "partial")


def test_report_keeps_at_least_one_witness() -> None:
    with pytest.raises(BadInput, match="violations_max is 0"):
        check(good(), violations_max=0)


def test_violations_beyond_the_limit_are_counted() -> None:
    script = Script().subscribe("s1", "x")
    for number in range(7):
        script.deliver("s1", f"ghost{number}")
    report = check(script.rows, "none", violations_max=2)
    assert report["complete"].violation_count == 7
    assert report.sentences() == [
        "invalid: checked positions, complete on 7 deliveries of 0 events to 1 subscriber",
        "complete (phantom): s1 delivered ghost0 (its 1st), but no client published it",
        "complete (phantom): s1 delivered ghost1 (its 2nd), but no client published it",
        "complete: and 5 more",
    ]


def test_report_converts_to_plain_values() -> None:
    report = check(Script().subscribe("s1", "x").deliver("s1", "ghost").rows, "none")
    plain = json.loads(json.dumps(report.to_dict()))
    assert plain["verdict"] == "invalid"
    assert plain["findings"][-1]["anomaly_counts"] == {"phantom": 1}
    assert plain["findings"][-1]["violations"][0]["subscribers"] == [
        {"run": "r", "node": "s1", "subscription": "main"}
    ]


def test_missing_finding_is_key_error() -> None:
    with pytest.raises(KeyError):
        check(good(), "none")["total"]


def test_components_of_long_sequences_need_no_recursion() -> None:
    length = 50_000
    forward = list(range(length))
    assert cycles.components([forward, forward[::2]]) == []
    assert cycles.components([forward, [length - 1, 0]]) == [forward]
    assert cycles.components([forward, [5, 4], [9, 7]]) == [[4, 5], [7, 8, 9]]


def test_cycle_has_one_step_per_sequence() -> None:
    # The search begins at 0: in the second case, in the middle of sequence 7.
    assert cycles.cycle({7: [0, 1, 2, 3], 8: [3, 4], 9: [4, 0]}) == [
        (0, 3, 7),
        (3, 4, 8),
        (4, 0, 9),
    ]
    assert cycles.cycle({7: [4, 0, 1], 8: [1, 3], 9: [3, 4]}) == [
        (4, 1, 7),
        (1, 3, 8),
        (3, 4, 9),
    ]
