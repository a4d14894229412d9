"""What a durable subscription acknowledged never comes again to it."""

from collections import Counter
from random import Random

import pytest
from tests.checkers import brute
from tests.checkers.durable_lives import generate
from tests.checkers.helpers import Script

from ensue.checkers import Violation, check
from ensue.core.trace import Row

SEEDS = 1_500


def started() -> Script:
    """One life at s1: it delivers a and b, and acknowledges both."""
    script = Script()
    for event in "abcdef":
        script.publish("p1", event)
    return acknowledge(read(script.subscribe("s1", "x", subscription="billing"), "s1", "ab"), 2)


def read(script: Script, node: str, events: str, first: int = 1) -> Script:
    for place, event in enumerate(events):
        script.deliver(node, event, subscription="billing", position=first + place)
    return script


def acknowledge(script: Script, position: int, node: str = "s1") -> Script:
    return script.row(node, "acknowledged", subscription="billing", position=position)


def end(script: Script, verdict: str, node: str = "s1") -> Script:
    columns = {"topic": "x", "subscription": "billing", "verdict": verdict}
    return script.row(node, "unsubscribed", **columns)


def enter(script: Script, node: str) -> Script:
    return script.subscribe(node, "x", subscription="billing")


def violations(rows: list[Row], clock_error_ns: int = 0) -> list[Violation]:
    report = check(rows, "none", lossy=True, clock_error_ns=clock_error_ns)
    return [one for one in report["positions"].violations if one.anomaly == "again"]


def witnesses(script: Script, clock_error_ns: int = 0) -> list[str]:
    return [one.because for one in violations(script.rows, clock_error_ns)]


def events(script: Script, clock_error_ns: int = 0) -> list[str]:
    return [one.first_event for one in violations(script.rows, clock_error_ns)]


def test_another_process_gets_acknowledged_events_again() -> None:
    script = read(enter(started().crash("s1"), "s2"), "s2", "abc")
    assert witnesses(script) == [
        f"s2 delivered {event} to billing at position {position} again (first at s1), though "
        "s1 had acknowledged everything up to position 2"
        for position, event in enumerate("ab", 1)
    ]
    assert check(script.rows, "total").verdict == "invalid"
    assert violations(script.rows)[0].nodes == ("s2",)


def test_restarted_node_gets_acknowledged_events_again() -> None:
    assert events(read(started().crash("s1").restart("s1"), "s1", "ab")) == ["a", "b"]


def test_life_itself_gets_acknowledged_events_again() -> None:
    assert events(read(started(), "s1", "b", 2)) == ["b"]


@pytest.mark.parametrize("first", [2, 3])
def test_next_life_begins_behind_what_was_acknowledged(first: int) -> None:
    """Events that were handed out and not acknowledged come again."""
    script = acknowledge(read(started(), "s1", "cd", 3), 3)
    script = enter(script.crash("s1"), "s2")
    assert events(read(script, "s2", "de", 4)) == []
    script = enter(acknowledge(read(enter(Script(), "s1"), "s1", "abc"), first), "s2")
    assert events(read(script, "s2", "abc"[first:], first + 1)) == []


def test_duplicates_before_an_acknowledgement_are_allowed() -> None:
    script = read(enter(read(enter(Script(), "s1"), "s1", "ab").crash("s1"), "s2"), "s2", "ab")
    script = read(enter(script.crash("s2"), "s3"), "s3", "ab")
    assert events(acknowledge(script, 2, "s3")) == []
    assert events(read(enter(script, "s4"), "s4", "bc", 2)) == ["b"]


def test_event_that_comes_again_under_another_position_is_found() -> None:
    assert events(read(enter(started(), "s2"), "s2", "b", 3)) == ["b"]


def test_position_that_no_row_knows_is_found() -> None:
    """The trace lacks an earlier life."""
    script = acknowledge(read(enter(Script(), "s1"), "s1", "c", 3), 3)
    (because,) = witnesses(read(enter(script, "s2"), "s2", "b", 2))
    assert because == (
        "s2 delivered b to billing at position 2, though "
        "s1 had acknowledged everything up to position 3"
    )


@pytest.mark.parametrize("verdict", ["forgotten", "replaced", "rolled back"])
def test_subscription_that_begins_anew_may_deliver_everything_again(verdict: str) -> None:
    script = enter(acknowledge(end(started(), verdict), 2), "s2")
    assert events(read(script, "s2", "abc")) == []
    script = acknowledge(script, 1, "s2")
    assert events(read(enter(script, "s3"), "s3", "abc")) == ["a"]


@pytest.mark.parametrize("verdict", ["", "closed", "superseded"])
def test_other_ends_excuse_nothing(verdict: str) -> None:
    assert events(read(enter(end(started(), verdict), "s2"), "s2", "abc")) == ["a", "b"]
    script = enter(end(started(), verdict), "s1")
    assert events(read(script, "s1", "abc")) == ["a", "b"]


def test_other_events_at_acknowledged_positions_are_no_redelivery() -> None:
    """The server lost its directory while no client read, and the subscription began anew."""
    script = read(enter(started(), "s2"), "s2", "cd")
    assert events(script) == []
    # From there on it is as durable as before, for events of both times.
    script = acknowledge(script, 1, "s2")
    assert events(read(enter(script, "s3"), "s3", "cd")) == ["c"]


def test_subscription_in_which_an_event_comes_again_does_not_begin_anew() -> None:
    script = read(enter(started(), "s2"), "s2", "cb")
    assert events(script) == ["c", "b"]
    assert "delivered c to billing at position 1, though s1" in witnesses(script)[0]


def test_superseded_reader_hands_out_what_had_arrived() -> None:
    script = enter(read(enter(Script(), "s1"), "s1", "a"), "s2")
    script = acknowledge(read(script, "s2", "abc"), 3, "s2")
    assert events(read(script, "s1", "bc", 2)) == []


def test_clocks_of_two_nodes_may_differ() -> None:
    script = Script(simulated=False)
    script = read(enter(acknowledge(read(enter(script, "s1"), "s1", "ab"), 2), "s2"), "s2", "ab")
    assert events(script) == ["a", "b"]
    assert events(script, clock_error_ns=1) == []
    own = read(started().crash("s1").restart("s1"), "s1", "ab")
    assert events(own, clock_error_ns=1_000) == ["a", "b"]


def test_other_subscriptions_are_not_judged() -> None:
    script = started().subscribe("s2", "x", subscription="other")
    script.deliver("s2", "a", "b", subscription="other", position=1)
    # Durable by content: its readers are told apart by their attachments.
    row = {"subscription": "durable/billing.sub 1", "position": 1, "publisher_seq": 1}
    script.row("s2", "acknowledged", **row)
    script.deliver("s3", "a", subscription="durable/billing.sub 1", position=1)
    assert events(script) == []


def test_every_order_judges_redelivery() -> None:
    rows = read(enter(started(), "s2"), "s2", "ab").rows
    for order in ("total", "causal", "causal-topic", "merged", "deadline", "fifo", "none"):
        finding = check(rows, order, lossy=True)["positions"]
        assert finding.anomaly_counts == {"again": 2}


def test_rule_agrees_with_its_definition() -> None:
    seen: Counter[str] = Counter()
    for seed in range(SEEDS):
        rows = generate(seed)
        clock_error_ns = Random(seed).choice((0, 3, 10))
        found = Counter(
            (one.anomaly, (one.subscribers[0].node, "billing"), one.first_event)
            for one in violations_of_all(rows, clock_error_ns)
        )
        expected = brute.again(rows, clock_error_ns=clock_error_ns)
        assert found == expected, seed
        seen["again" if found else "valid"] += 1
    assert seen["again"] > SEEDS // 10, seen
    assert seen["valid"] > SEEDS // 10, seen


def violations_of_all(rows: list[Row], clock_error_ns: int) -> list[Violation]:
    limits = {"clock_error_ns": clock_error_ns, "violations_max": 1_000_000}
    report = check(rows, "none", lossy=True, **limits)  # type: ignore[arg-type]
    return [one for one in report["positions"].violations if one.anomaly == "again"]
