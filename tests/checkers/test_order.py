"""Fifo, total and causal: one test per anomaly, with the text of its witness."""

import pytest
from tests.checkers.helpers import Script

from ensue.checkers import Report, Verdict, check, inversions
from ensue.core.errors import BadInput


def two_subscribers() -> Script:
    script = Script().subscribe("s1", "x", "y").subscribe("s2", "x", "y")
    return script.publish("p1", "a").publish("p1", "b").publish("p2", "c", "y")


def because(report: Report, checker: str) -> list[str]:
    return [violation.because for violation in report[checker].violations]


def test_same_order_everywhere_is_valid() -> None:
    rows = two_subscribers().deliver("s1", "a", "c", "b").deliver("s2", "a", "c", "b").rows
    report = check(rows)
    assert report.verdict == Verdict.VALID
    assert report.sentences() == [
        (
            "valid: checked fifo, total, causal, positions, complete on 6 deliveries of 3 events "
            "to 2 subscribers"
        )
    ]


def test_fifo_names_the_nearest_earlier_delivery_with_a_greater_number() -> None:
    script = Script().subscribe("s1", "x")
    for event in "abcd":
        script.publish("p1", event)
    report = check(script.deliver("s1", "d", "c", "a", "b").rows, "fifo")
    assert because(report, "fifo") == [
        "s1 delivered d (its 1st) before c (its 2nd), but they are numbers 4 and 3 of p1 on x",
        "s1 delivered c (its 2nd) before a (its 3rd), but they are numbers 3 and 1 of p1 on x",
        "s1 delivered c (its 2nd) before b (its 4th), but they are numbers 3 and 2 of p1 on x",
    ]
    assert report.verdict == Verdict.INVALID


def test_fifo_does_not_compare_topics_or_publishers() -> None:
    script = Script().subscribe("s1", "x", "y").publish("p1", "a").publish("p1", "b")
    script.publish("p1", "c", "y").publish("p2", "d")
    report = check(script.deliver("s1", "a", "b", "c", "d").rows, "fifo")
    assert report.verdict == Verdict.VALID


def test_fifo_reports_an_event_delivered_twice() -> None:
    rows = two_subscribers().deliver("s1", "a", "b", "a", "c").deliver("s2", "a", "b", "c").rows
    report = check(rows, "fifo")
    assert because(report, "fifo") == ["s1 delivered a twice (its 1st and its 3rd)"]
    assert report["fifo"].violations[0].anomaly == "duplicate"


def test_total_explains_both_orders() -> None:
    rows = two_subscribers().deliver("s1", "a", "c", "b").deliver("s2", "a", "b", "c").rows
    report = check(rows)
    assert because(report, "total") == [
        (
            "s1 delivered c (its 2nd) before b (its 3rd), "
            "but s2 delivered b (its 2nd) before c (its 3rd)"
        )
    ]
    violation = report["total"].violations[0]
    assert violation.nodes == ("s1", "s2")
    assert (violation.first_event, violation.second_event) == ("c", "b")


def test_total_witness_is_the_closest_inverted_pair() -> None:
    script = Script().subscribe("s1", "x").subscribe("s2", "x")
    for number, event in enumerate("abcdef"):
        script.publish(f"p{number}", event)
    script.deliver("s1", "b", "c", "d", "a", "e", "f").deliver("s2", "a", "b", "c", "d", "f", "e")
    report = check(script.rows)
    assert [(v.first_event, v.second_event) for v in report["total"].violations] == [
        ("e", "f"),
        ("b", "a"),
    ]


def test_tagged_deliveries_break_no_order() -> None:
    script = two_subscribers().deliver("s1", "b").deliver("s1", "a", verdict="out_of_order")
    rows = script.deliver("s1", "c").deliver("s2", "a", "b", "c").rows
    assert check(rows, causal=True).verdict == Verdict.VALID


def ring() -> Script:
    script = Script()
    for number, topic in enumerate("xyz", 1):
        script.publish(f"p{number}", f"e{number}", topic)
    script.deliver("s1", "e1", "e2").deliver("s2", "e2", "e3").deliver("s3", "e3", "e1")
    return script


def test_ring_of_three_is_pairwise_consistent_and_noted() -> None:
    finding = check(ring().rows)["total"]
    assert finding.verdict == Verdict.VALID
    assert finding.notes == (
        (
            "orders are pairwise consistent, yet no single order fits all: "
            "s1 delivered e1 before e2, s2 delivered e2 before e3 and s3 delivered e3 before e1"
        ),
    )


def test_ring_of_three_breaks_merged_order() -> None:
    finding = check(ring().rows, "merged")["global"]
    assert finding.verdict == Verdict.INVALID
    (violation,) = finding.violations
    assert violation.anomaly == "global"
    assert violation.nodes == ("s1", "s2")
    assert (violation.first_event, violation.second_event) == ("e1", "e2")
    assert violation.because == (
        "no single order fits all: s1 delivered e1 before e2, s2 delivered e2 before e3 "
        "and s3 delivered e3 before e1"
    )


def test_ring_is_reported_beside_disagreement_elsewhere() -> None:
    script = ring().publish("p4", "a").publish("p5", "b")
    rows = script.deliver("s4", "a", "b").deliver("s5", "b", "a").rows
    finding = check(rows, "merged")["global"]
    assert finding.anomaly_counts == {"global": 1, "total": 1}


@pytest.mark.parametrize("lossy", [False, True])
def test_total_order_is_causal_across_topics_unless_it_is_lossy(lossy: bool) -> None:
    script = Script().subscribe("s1", "x", "y").publish("p1", "a", "x").publish("p1", "b", "y")
    rows = script.deliver("s1", "b", "a").rows
    report = check(rows, "total", lossy=lossy)
    assert report.verdict == (Verdict.VALID if lossy else Verdict.INVALID)
    assert check(rows, "total", causal=False).verdict == Verdict.VALID
    assert check(rows, "total", lossy=lossy, causal=True)["causal"].verdict == Verdict.INVALID


def test_answer_before_question_breaks_total_order() -> None:
    script = Script().subscribe("s1", "x", "y").subscribe("q", "x")
    script.publish("p1", "question", "x").deliver("q", "question").publish("q", "answer", "y")
    report = check(script.deliver("s1", "answer", "question").rows, "total")
    assert because(report, "causal") == [
        (
            "s1 delivered answer (its 1st) before question (its 2nd), "
            "but q delivered question before it published answer"
        )
    ]


def test_total_search_says_when_it_ended_early() -> None:
    script = Script().publish("p1", "a").publish("p2", "b").publish("p3", "c")
    for node, order in enumerate(("abc", "bca", "cba", "acb")):
        script.deliver(f"s{node}", *order)
    finding = check(script.rows, violations_max=2)["total"]
    assert finding.violation_count == 2
    assert finding.notes == ("the search ended after 2 disagreements; there may be more",)


def test_two_subscriptions_of_one_node_are_two_subscribers() -> None:
    script = Script().publish("p1", "a").publish("p2", "b")
    script.deliver("s1", "a", "b", subscription="left")
    script.deliver("s1", "b", "a", subscription="right")
    assert because(check(script.rows), "total") == [
        (
            "s1/left delivered a (its 1st) before b (its 2nd), "
            "but s1/right delivered b (its 1st) before a (its 2nd)"
        )
    ]


def test_runs_are_never_compared() -> None:
    one = Script(run="r1").publish("p1", "a").publish("p2", "b").subscribe("s1", "x")
    other = Script(run="r2").subscribe("s2", "x").publish("p1", "a").publish("p2", "b")
    one.deliver("s1", "a", "b")
    other.deliver("s2", "b", "a")
    report = check([*one.rows, *other.rows])
    assert report.verdict == Verdict.VALID
    assert report.run_count == 2
    other.deliver("s2", "a")
    report = check([*one.rows, *other.rows])
    assert report.sentences()[1:] == [
        "fifo (duplicate): in run r2, s2 delivered a twice (its 2nd and its 3rd)",
        (
            "complete (duplicate): in run r2, s2 delivered a (its 3rd), "
            "but had delivered it before (its 2nd)"
        ),
    ]


def test_causal_explains_the_chain() -> None:
    script = Script().publish("p1", "a").publish("p1", "b")
    script.deliver("p2", "b").publish("p2", "c", "y").deliver("p3", "c").publish("p3", "d", "z")
    report = check(script.deliver("s1", "d", "c", "a").rows, "causal")
    assert because(report, "causal") == [
        "s1 delivered d (its 1st) before c (its 2nd), but p3 delivered c before it published d",
        (
            "s1 delivered c (its 2nd) before a (its 3rd), "
            "but p1 published a before b; p2 delivered b before it published c"
        ),
    ]


def test_causal_prefers_a_direct_step() -> None:
    script = Script().publish("p1", "a").deliver("p2", "a").publish("p2", "b", "y")
    script.deliver("p3", "b", "a").publish("p3", "c", "z").deliver("s1", "c", "a")
    report = check(script.rows, "causal")
    assert because(report, "causal")[-1] == (
        "s1 delivered c (its 1st) before a (its 2nd), but p3 delivered a before it published c"
    )


def test_causal_allows_concurrent_events_in_any_order() -> None:
    script = Script().subscribe("s1", "x").subscribe("s2", "x")
    script.publish("p1", "a").publish("p2", "b").deliver("s1", "a", "b").deliver("s2", "b", "a")
    assert check(script.rows, "causal").verdict == Verdict.VALID


def test_causal_within_topics_follows_no_chain_through_another_topic() -> None:
    script = Script().subscribe("s1", "x", "y").publish("p1", "a")
    script.deliver("p2", "a").publish("p2", "b", "y").deliver("p3", "b").publish("p3", "c")
    rows = script.deliver("s1", "c", "b", "a").rows
    assert len(because(check(rows, "causal"), "causal")) == 2
    assert check(rows, "causal-topic")["causal-topic"].verdict == Verdict.VALID


def test_causal_within_topics_finds_chains_in_each_topic() -> None:
    script = Script().subscribe("s1", "x", "y").publish("p1", "a").publish("p1", "b", "y")
    script.deliver("p2", "a", "b").publish("p2", "c").publish("p2", "d", "y")
    report = check(script.deliver("s1", "c", "d", "a", "b").rows, "causal-topic")
    assert because(report, "causal-topic") == [
        "s1 delivered c (its 1st) before a (its 3rd), but p2 delivered a before it published c",
        "s1 delivered d (its 2nd) before b (its 4th), but p2 delivered b before it published d",
    ]


def test_causal_relation_counts_tagged_deliveries_of_publisher() -> None:
    script = Script().publish("p1", "a").deliver("p2", "a", verdict="out_of_order")
    report = check(script.publish("p2", "b").deliver("s1", "b", "a").rows, "causal")
    assert because(report, "causal") == [
        "s1 delivered b (its 1st) before a (its 2nd), but p2 delivered a before it published b"
    ]


def test_event_delivered_before_its_cause_exists_is_unknown() -> None:
    script = Script().publish("p1", "a").publish("p2", "b")
    rows = script.deliver("s1", "a").rows
    names = {row.event: row for row in rows if row.action == "published"}
    early = Script()
    for node, event in (("p1", "b"), ("p2", "a")):
        known = names[event]
        early.row(
            node,
            "delivered",
            event=event,
            topic="x",
            publisher=known.publisher,
            publisher_seq=known.publisher_seq,
        )
    finding = check([*early.publish("p1", "a").publish("p2", "b").rows], "causal")["causal"]
    assert finding.verdict == Verdict.UNKNOWN
    assert finding.reasons == ("in run r, events were delivered before they were published",)


def test_inversions_shows_both_sides() -> None:
    script = Script()
    for number, event in enumerate("abcdefg"):
        script.publish(f"p{number}", event)
    script.deliver("s1", *"abcdefg").deliver("s2", *"abcedfg").deliver("s3", *"abcedfg")
    found = inversions(script.rows, context=1)
    assert (found.count, found.common_count) == (2, 63)
    assert found.events == ("d", "e")
    assert found.sides is not None
    one, other = found.sides
    assert (one.name, one.deliveries) == ("s1", ((3, "c"), (4, "d"), (5, "e"), (6, "f")))
    assert (other.name, other.deliveries) == ("s2", ((3, "c"), (4, "e"), (5, "d"), (6, "f")))
    assert found.because == (
        "s1 delivered d (its 4th) before e (its 5th), "
        "but s2 delivered e (its 4th) before d (its 5th)"
    )


def test_without_inversions_there_is_no_example() -> None:
    found = inversions(ring().rows)
    assert (found.count, found.common_count, found.events, found.sides) == (0, 0, None, None)


def test_inversions_rejects_malformed_trace() -> None:
    rows = ring().rows
    with pytest.raises(BadInput, match="node p1 has two rows with step 1"):
        inversions([*rows, rows[0]])
