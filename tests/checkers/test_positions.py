"""Positions count without a gap, in step order."""

import pytest
from tests.checkers.helpers import Script

from ensue.checkers import Verdict, check


def place(script: Script, *positions: int | None) -> Script:
    """Deliver events a, b, c, … at these positions; continue after the last call."""
    done = sum(row.action == "delivered" for row in script.rows)
    for event, position in zip("abcdef"[done:], positions, strict=False):
        script.deliver("s1", event, position=position)
    return script


def subscribed() -> Script:
    script = Script().subscribe("s1", "x", "y")
    for event in "abcdef":
        script.publish("p1", event)
    return script


def findings(script: Script) -> list[str]:
    finding = check(script.rows, "none", lossy=True)["positions"]
    assert (finding.verdict == Verdict.INVALID) == bool(finding.violations)
    return [violation.because for violation in finding.violations]


@pytest.mark.parametrize("positions", [(1, 2, 3), (7, 8, 9), (1, None, 2), (None, None)])
def test_consecutive_positions_are_valid(positions: tuple[int | None, ...]) -> None:
    assert findings(place(subscribed(), *positions)) == []


def test_gap_is_reported() -> None:
    assert findings(place(subscribed(), 1, 3, 4)) == [
        "s1 delivered b at position 3 right after a at position 1; expected position 2"
    ]


@pytest.mark.parametrize("positions", [(2, 1), (1, 1), (3, 2)])
def test_positions_against_step_order_are_reported(positions: tuple[int, int]) -> None:
    assert len(findings(place(subscribed(), *positions))) == 1


def test_tagged_delivery_counts() -> None:
    script = place(subscribed(), 1).deliver("s1", "b", position=2, verdict="late")
    assert findings(place(script, 3)) == []
    assert len(findings(place(place(subscribed(), 1), 3))) == 1


def test_positions_may_restart_after_node_restart() -> None:
    script = place(subscribed(), 1, 2).crash("s1").restart("s1")
    assert findings(place(script, 1, 2)) == []
    assert len(findings(place(place(subscribed(), 1, 2).crash("s1"), 1))) == 1


def test_positions_may_restart_with_new_subscription() -> None:
    script = place(subscribed(), 4, 5).leave("s1", "x", "y").subscribe("s1", "x")
    assert findings(place(script, 1, 2)) == []


def test_added_topic_is_not_a_new_subscription() -> None:
    assert len(findings(place(place(subscribed(), 4).subscribe("s1", "z"), 6))) == 1


def test_left_topic_lets_positions_jump_forward_only() -> None:
    assert findings(place(place(subscribed(), 1).leave("s1", "y"), 5, 6)) == []
    assert len(findings(place(place(subscribed(), 3).leave("s1", "y"), 1))) == 1


def test_another_subscription_excuses_nothing() -> None:
    script = place(subscribed(), 1).subscribe("s1", "x", subscription="other")
    assert len(findings(place(script.leave("s1", "x", subscription="other"), 3))) == 1


def test_every_order_counts_positions() -> None:
    rows = place(subscribed(), 1, 3).rows
    for order in ("total", "causal", "causal-topic", "merged", "deadline", "fifo", "none"):
        assert check(rows, order, lossy=True)["positions"].violation_count == 1
