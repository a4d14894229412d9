"""Completeness: one test per anomaly, with the text of its witness."""

import msgspec
from tests.checkers.helpers import Script

from ensue.checkers import Report, Verdict, check


def explained(report: Report) -> list[tuple[str, str]]:
    return [(one.anomaly, one.because) for one in report["complete"].violations]


def lost(event: str, reason: str) -> tuple[str, str]:
    return (
        "lost",
        f"s1 never delivered {event}, which p1 published on x after s1 had subscribed; s1 {reason}",
    )


def test_missing_event_of_open_subscription_is_lost() -> None:
    rows = Script().subscribe("s1", "x").publish("p1", "a").publish("p1", "b").deliver("s1", "a")
    report = check(rows.rows)
    assert explained(report) == [lost("b", "was subscribed to the end")]
    assert report["complete"].anomaly_counts == {"lost": 1}


def test_discarded_event_is_lost_with_its_reason() -> None:
    script = Script().subscribe("s1", "x").publish("p1", "a").publish("p1", "b")
    rows = script.discard("s1", "a", "late").deliver("s1", "b").rows
    assert explained(check(rows)) == [
        lost("a", "was subscribed to the end; s1 discarded it as late")
    ]


def test_event_that_does_not_match_is_owed_to_others_only() -> None:
    script = Script().subscribe("s1", "x").subscribe("s2", "x")
    script.publish("p1", "a").publish("p1", "b")
    script.row("s2", "discarded", event="a", topic="x", subscription="s2", verdict="unmatched")
    rows = script.deliver("s1", "b").deliver("s2", "b").rows
    named = [msgspec.structs.replace(row, subscription=None) for row in rows]
    assert explained(check(named)) == [lost("a", "was subscribed to the end")]


def test_event_published_before_subscription_is_not_owed() -> None:
    script = Script().publish("p1", "a").subscribe("s1", "x").publish("p1", "b").deliver("s1", "b")
    assert check(script.rows).verdict == Verdict.VALID


def closed() -> Script:
    """Lose b and d: b before a delivered event, d after the last one."""
    script = Script().subscribe("s1", "x")
    for event in "abcd":
        script.publish("p1", event)
    return script.deliver("s1", "a", "c").leave("s1", "x").publish("p1", "e")


def test_closed_subscription_is_judged_by_gaps() -> None:
    assert explained(check(closed().rows)) == [lost("b", "delivered c, a later event of p1")]


def test_gap_proves_no_loss_without_order() -> None:
    assert check(closed().rows, "none").verdict == Verdict.VALID


def test_settling_time_makes_closed_subscription_owe_more() -> None:
    # d was published three nanoseconds before the end.
    long_enough = [
        lost("b", "stayed subscribed for long enough"),
        lost("d", "stayed subscribed for long enough"),
    ]
    assert explained(check(closed().rows, settle_ns=3)) == long_enough
    assert explained(check(closed().rows, settle_ns=4)) == long_enough[:1]


def test_clocks_count_only_beyond_their_error() -> None:
    script = Script(simulated=False).subscribe("s1", "x").publish("p1", "a").publish("p1", "b")
    rows = script.deliver("s1", "b").rows
    assert explained(check(rows, clock_error_ns=0)) == [lost("a", "was subscribed to the end")]
    assert check(rows, clock_error_ns=1).verdict == Verdict.VALID


def test_true_time_needs_no_allowance() -> None:
    script = Script().subscribe("s1", "x").publish("p1", "a").publish("p1", "b")
    rows = script.deliver("s1", "b").rows
    assert explained(check(rows, clock_error_ns=1)) == [lost("a", "was subscribed to the end")]


def test_lossy_accepts_losses_and_nothing_else() -> None:
    script = Script().subscribe("s1", "x").publish("p1", "a").publish("p1", "b").deliver("s1", "b")
    report = check(script.rows, lossy=True)
    assert report.verdict == Verdict.VALID
    assert report["complete"].notes == ("1 of 2 owed deliveries are missing",)
    script.deliver("s1", "b")
    assert check(script.rows, "none", lossy=True).verdict == Verdict.INVALID


def test_second_delivery_is_duplicate_even_if_tagged() -> None:
    script = Script().subscribe("s1", "x").publish("p1", "a").deliver("s1", "a")
    report = check(script.deliver("s1", "a", verdict="out_of_order").rows)
    assert explained(report) == [
        ("duplicate", "s1 delivered a (its 2nd), but had delivered it before (its 1st)")
    ]
    assert report["fifo"].verdict == Verdict.VALID


def test_unpublished_event_is_phantom() -> None:
    report = check(Script().subscribe("s1", "x").deliver("s1", "ghost").rows)
    assert explained(report) == [
        ("phantom", "s1 delivered ghost (its 1st), but no client published it")
    ]


def test_event_under_another_number_is_phantom() -> None:
    script = Script().subscribe("s1", "x").publish("p1", "a")
    script.row(
        "s1",
        "delivered",
        event="a",
        topic="x",
        publisher="p1",
        publisher_seq=7,
        subscription="main",
    )
    assert explained(check(script.rows)) == [
        (
            "phantom",
            (
                "s1 delivered a (its 1st), but as number 7 of p1 on x, "
                "and it was published as number 1 of p1 on x"
            ),
        )
    ]


def test_delivery_outside_every_subscription_is_uninvited() -> None:
    script = Script().subscribe("s1", "x").publish("p1", "a").publish("p1", "b", "y")
    script.deliver("s1", "a", "b").publish("p1", "c").leave("s1", "x").deliver("s1", "c")
    assert explained(check(script.rows)) == [
        ("uninvited", "s1 delivered b (its 2nd), but was not subscribed to y then"),
        ("uninvited", "s1 delivered c (its 3rd), but was not subscribed to x then"),
    ]


def test_application_reads_on_what_arrived_before_its_subscription_fell_behind() -> None:
    script = Script().subscribe("s1", "x").publish("p1", "a").publish("p1", "b")
    script.row("s1", "unsubscribed", topic="x", subscription="main", verdict="behind")
    script.deliver("s1", "a")
    assert check(script.rows).verdict == Verdict.VALID
    script.subscribe("s1", "x").leave("s1", "x").deliver("s1", "b")
    assert explained(check(script.rows)) == [
        ("uninvited", "s1 delivered b (its 2nd), but was not subscribed to x then")
    ]


def test_subscription_of_another_name_does_not_invite() -> None:
    script = Script().subscribe("s1", "x", subscription="other").publish("p1", "a")
    script.deliver("s1", "a", subscription="other").deliver("s1", "a", subscription="main")
    assert explained(check(script.rows)) == [
        ("uninvited", "s1/main delivered a (its 1st), but was not subscribed to x then")
    ]


def test_void_event_is_not_owed_and_must_not_be_delivered() -> None:
    script = Script().subscribe("s1", "x").publish("p1", "a").publish("p1", "b")
    script.discard("p1", "a", "void").deliver("s1", "b")
    assert check(script.rows).verdict == Verdict.VALID
    script.subscribe("s2", "x").deliver("s2", "a")
    assert explained(check(script.rows)) == [
        (
            "void",
            "s2 delivered a (its 1st), but p1, which published it, had discarded it as void",
        )
    ]


def test_only_the_publisher_can_void_an_event() -> None:
    script = Script().subscribe("s1", "x").publish("p1", "a").publish("p1", "b")
    script.discard("s1", "a", "void").deliver("s1", "b")
    assert explained(check(script.rows)) == [
        lost("a", "was subscribed to the end; s1 discarded it as void")
    ]


def test_subscriber_that_stays_down_is_owed_nothing_after_crash() -> None:
    script = Script().subscribe("s1", "x").publish("p1", "a").deliver("s1", "a").crash("s1")
    script.publish("p1", "b")
    assert check(script.rows).verdict == Verdict.VALID
    script.restart("s1")
    assert explained(check(script.rows)) == [lost("b", "was subscribed to the end")]


def test_subscriber_is_owed_nothing_between_crash_and_new_subscription() -> None:
    script = Script().subscribe("s1", "x").publish("p1", "a").deliver("s1", "a").crash("s1")
    script.publish("p1", "b").restart("s1").subscribe("s1", "x").publish("p1", "c")
    script.deliver("s1", "c")
    assert check(script.rows).verdict == Verdict.VALID
    assert check(script.rows, settle_ns=0).verdict == Verdict.VALID


def test_event_of_publisher_that_stays_down_is_in_doubt_until_delivered() -> None:
    script = Script().subscribe("s1", "x").subscribe("s2", "x")
    script.publish("p1", "a").publish("p1", "b").crash("p1").deliver("s1", "a").deliver("s2", "a")
    report = check(script.rows)
    assert report.verdict == Verdict.VALID
    assert report["complete"].notes == (
        "1 events are in doubt: their publisher never restarted and no subscriber delivered them",
    )
    script.deliver("s2", "b")
    assert explained(check(script.rows)) == [lost("b", "was subscribed to the end")]


def test_subscribing_again_without_crash_closes_nothing_earlier() -> None:
    script = Script().subscribe("s1", "y").crash("s1").restart("s1").subscribe("s1", "x")
    script.publish("p1", "a").subscribe("s1", "x").publish("p1", "b").deliver("s1", "b")
    report = check(script.rows, "none", settle_ns=0)
    assert explained(report) == [lost("a", "stayed subscribed for long enough")]


def test_one_row_without_true_time_makes_clocks_count() -> None:
    script = Script().subscribe("s1", "x").publish("p1", "a").publish("p1", "b").deliver("s1", "b")
    rows = script.rows
    rows[2] = msgspec.structs.replace(rows[2], true_ns=None)
    assert explained(check(rows)) == [lost("a", "was subscribed to the end")]
    assert check(rows, clock_error_ns=1).verdict == Verdict.VALID


def test_gaps_are_found_after_clock_went_back() -> None:
    script = Script(simulated=False).subscribe("s1", "x")
    rows = script.publish("p1", "a").publish("p1", "b").publish("p1", "c").rows
    rows[1] = msgspec.structs.replace(rows[1], at_ns=100)
    script.deliver("s1", "b").leave("s1", "x")
    assert explained(check(rows)) == [lost("a", "delivered b, a later event of p1")]
