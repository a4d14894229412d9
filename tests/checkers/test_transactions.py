"""The checker of transactions finds each anomaly in a small trace; a good trace is valid."""

from itertools import permutations
from random import Random
from typing import Any

import pytest

from ensue.checkers import Verdict, check
from ensue.checkers.content_filters import attributes_of, matches
from ensue.core.trace import Row


class Trace:
    def __init__(self) -> None:
        self.rows: list[Row] = []

    def add(self, node: str, action: str, **columns: Any) -> "Trace":
        number = len(self.rows) + 1
        row = Row(
            run="r", node=node, step=number, at_ns=number, true_ns=number, action=action, **columns
        )
        self.rows.append(row)
        return self

    def anomalies(self) -> dict[str, int]:
        report = check(self.rows, order="transactions")
        found: dict[str, int] = {}
        for finding in report.findings:
            found.update(finding.anomaly_counts)
        assert (report.verdict is Verdict.INVALID) == bool(found)
        return found


def moved() -> Trace:
    """A subscription moves from c3 to c2 in a transaction, which publishes before and after."""
    return (
        Trace()
        .add("c3", "subscribed", subscription="c3.s", topic="x = 1")
        .add("b", "began", transaction="1-b", topic="serializable")
        .add("b", "published", event="1-b#1", topic="x = 1", transaction="1-b")
        .add("b", "received", event="1-b#1", transaction="1-b")
        .add("b", "subscribed", event="1-b#2", subscription="c2.s", topic="x = 1",
             transaction="1-b")
        .add("b", "received", event="1-b#2", transaction="1-b")
        .add("b", "unsubscribed", event="1-b#3", subscription="c3.s", transaction="1-b")
        .add("b", "received", event="1-b#3", transaction="1-b")
        .add("b", "published", event="1-b#4", topic="x = 1", transaction="1-b")
        .add("b", "received", event="1-b#4", transaction="1-b")
        .add("b", "committed", transaction="1-b")
    )  # fmt: skip


def delivered(trace: Trace, *pairs: tuple[str, str]) -> Trace:
    for event, subscription in pairs:
        transaction = event.partition("#")[0] if "#" in event else None
        trace.add(
            subscription.partition(".")[0],
            "delivered",
            event=event,
            subscription=subscription,
            transaction=transaction,
        )
    return trace


GOOD = (("1-b#1", "c3.s"), ("1-b#4", "c2.s"))


def test_good_trace_is_valid() -> None:
    assert delivered(moved(), *GOOD).anomalies() == {}


@pytest.mark.parametrize(
    ("pairs", "anomaly"),
    [
        (GOOD[:1], "torn"),
        ((*GOOD, ("1-b#4", "c3.s")), "stale"),
        ((*GOOD, ("1-b#1", "c2.s")), "stale"),
        ((*GOOD, GOOD[0]), "duplicate"),
    ],
)
def test_event_reaches_exactly_its_subscriptions(
    pairs: tuple[tuple[str, str], ...], anomaly: str
) -> None:
    assert delivered(moved(), *pairs).anomalies() == {anomaly: 1}


@pytest.mark.parametrize("subscription", ["c2.t", "c9.s", "c4.s"])
def test_event_must_not_reach_a_subscription_that_does_not_exist(subscription: str) -> None:
    """Of a client with others, of an unknown one, or made by an aborted transaction."""
    trace = moved().add("b", "began", transaction="2-b", topic="serializable")
    trace.add(
        "b", "subscribed", event="2-b#1", subscription="c4.s", topic="x = 1", transaction="2-b"
    )
    trace.add("b", "aborted", transaction="2-b")
    assert delivered(trace, *GOOD).anomalies() == {}
    assert delivered(trace, ("1-b#4", subscription)).anomalies() == {"stale": 1}
    if subscription != "c4.s":
        # It left before it learned that it had subscribed.
        owner = subscription.partition(".")[0]
        trace.add("b", "unsubscribed", publisher=owner, verdict="gone")
        assert trace.anomalies() == {}


def test_uncommitted_event_must_not_be_delivered() -> None:
    trace = Trace().add("b", "began", transaction="1-b", topic="atomic")
    trace.add("c", "subscribed", subscription="c.s", topic="x = 1")
    trace.add("b", "published", event="1-b#1", topic="x = 1", transaction="1-b")
    trace.add("b", "aborted", transaction="1-b")
    assert trace.anomalies() == {}
    assert delivered(trace, ("1-b#1", "c.s")).anomalies() == {"dirty": 1}


def test_subscription_withdrawn_by_two_transactions_is_found() -> None:
    trace = delivered(moved(), *GOOD)
    trace.add("b", "began", transaction="2-b", topic="planned")
    trace.add("b", "unsubscribed", event="2-b#1", subscription="c3.s", transaction="2-b")
    assert trace.add("b", "aborted", transaction="2-b").anomalies() == {}
    trace.add("b", "began", transaction="3-b", topic="planned")
    trace.add("b", "unsubscribed", event="3-b#1", subscription="c3.s", transaction="3-b")
    assert trace.add("b", "committed", transaction="3-b").anomalies() == {"withdrawn": 1}


def test_split_decision_is_found() -> None:
    assert moved().add("b2", "aborted", transaction="1-b").anomalies()["split"] == 1


def test_operations_out_of_order_are_found() -> None:
    trace = delivered(moved(), *GOOD)
    trace.add("b2", "received", event="1-b#2.1", transaction="1-b")
    trace.add("b2", "received", event="1-b#2", transaction="1-b")
    assert trace.anomalies() == {"sequential": 1}
    ordered = delivered(moved(), *GOOD)
    ordered.add("b2", "received", event="1-b#2", transaction="1-b")
    ordered.add("b2", "received", event="1-b#2.1", transaction="1-b")
    ordered.add("b2", "received", event="1-b#10", transaction="1-b")
    assert ordered.anomalies() == {}


def conflicting(*names: str) -> Trace:
    """Serializable transactions that all withdraw one subscription."""
    trace = Trace().add("c", "subscribed", subscription="c.s", topic="x = 1")
    for name in names:
        trace.add("b", "began", transaction=name, topic="serializable")
        withdrawal = {"subscription": "c.s", "event": f"{name}#1", "transaction": name}
        trace.add("b", "unsubscribed", **withdrawal)
    return trace


def test_opposite_commit_orders_are_found() -> None:
    trace = conflicting("1-b", "2-b")
    for node, names in (("b", ("1-b", "2-b")), ("b2", ("2-b", "1-b"))):
        for name in names:
            trace.add(node, "committed", transaction=name)
    assert trace.anomalies() == {"cycle": 1, "withdrawn": 1}


def test_opposite_commit_orders_are_found_if_no_node_has_all_commits() -> None:
    commits = {"b1": ["t", "u", "v"], "b2": ["t", "v", "w"], "b3": ["w", "v"]}
    trace = conflicting("t", "u", "v", "w")
    for node, names in commits.items():
        for name in names:
            trace.add(node, "committed", transaction=name)
    (violation,) = check(trace.rows, "transactions")["serializable"].violations
    assert (violation.anomaly, violation.nodes) == ("cycle", ("b3",))
    assert (violation.first_event, violation.second_event) == ("w", "v")


@pytest.mark.parametrize("seed", range(300))
def test_two_nodes_with_opposite_commits_are_found_among_others(
    seed: int,
) -> None:
    """t, u and v change one subscription; w and x conflict with no other transaction."""
    random = Random(seed)
    commits = {node: [name for name in "tuvwx" if random.random() < 0.7] for node in "abc"}
    for names in commits.values():
        if random.random() < 0.3:
            random.shuffle(names)
    trace = conflicting(*"tuv")
    for name in "wx":
        trace.add("a", "began", transaction=name, topic="serializable")
    for node, names in commits.items():
        for name in names:
            trace.add(node, "committed", transaction=name)
    opposite = any(
        mine.index(one) < mine.index(other) and theirs.index(one) > theirs.index(other)
        for mine, theirs in permutations(commits.values(), 2)
        for one, other in permutations(set(mine) & set(theirs) & set("tuv"), 2)
    )
    assert ("cycle" in trace.anomalies()) == opposite


def test_commit_before_its_begin_by_clock_has_a_place() -> None:
    trace = Trace().add("b", "began", transaction="1-b", topic="serializable")
    trace.add("b2", "committed", transaction="2-b").add("b2", "committed", transaction="1-b")
    trace.add("b", "began", transaction="2-b", topic="serializable")
    made = {"subscription": "c.s", "topic": "x = 1", "event": "1-b#1", "transaction": "1-b"}
    trace.add("b", "subscribed", **made)
    trace.add("b", "unsubscribed", subscription="c.s", event="2-b#1", transaction="2-b")
    trace.add("b", "committed", transaction="1-b").add("b", "committed", transaction="2-b")
    assert trace.anomalies() == {"cycle": 1}


def test_opposite_commits_of_a_subscription_and_a_matching_event_are_found() -> None:
    trace = Trace()
    for name in ("1-b", "2-b"):
        trace.add("b", "began", transaction=name, topic="serializable")
    made = {"subscription": "c.s", "topic": "x = 1", "event": "1-b#1", "transaction": "1-b"}
    trace.add("b", "subscribed", **made)
    told = {"topic": "x = 1", "event": "2-b#1", "transaction": "2-b", "publisher": "d"}
    trace.add("b", "published", **told)
    trace.add("b", "committed", transaction="1-b").add("b", "committed", transaction="2-b")
    trace.add("b2", "committed", transaction="2-b").add("b2", "committed", transaction="1-b")
    assert trace.anomalies() == {"cycle": 1, "torn": 1}


def test_regular_event_need_not_see_commits_that_do_not_concern_it() -> None:
    """A broker has committed 2 but not 1; the other broker committed 1 first."""
    trace = Trace()
    for name in ("1-b", "2-b"):
        trace.add("b", "began", transaction=name, topic="serializable")
    for name, where in (("1-b", "x = 1"), ("2-b", "x = 2")):
        made = {"subscription": f"c.{name}", "topic": where, "event": f"{name}#1"}
        trace.add("b", "subscribed", **made, transaction=name)
    trace.add("b", "committed", transaction="1-b").add("b", "committed", transaction="2-b")
    trace.add("b2", "committed", transaction="2-b")
    trace.add("d", "published", event="d/1", topic="x = 1", publisher="d", publisher_seq=1)
    trace.add("b2", "committed", transaction="1-b")
    assert trace.anomalies() == {}


@pytest.mark.parametrize("commits", [("1-b", "2-b"), ("2-b", "1-b")])
def test_regular_event_sees_the_commits_of_one_broker(commits: tuple[str, str]) -> None:
    """Subscriptions that meet at no broker take effect in different sequences."""
    trace = Trace()
    for name in ("1-b", "2-b"):
        trace.add("b", "began", transaction=name, topic="serializable")
        made = {"subscription": f"c{name[0]}.s", "topic": "x = 1", "event": f"{name}#1"}
        trace.add("b", "subscribed", **made, transaction=name)
    trace.add("b", "committed", transaction="1-b").add("b", "committed", transaction="2-b")
    trace.add("b2", "committed", transaction=commits[0])
    trace.add("p", "published", event="p/1", topic="x = 1", publisher="p", publisher_seq=1)
    trace.add("b2", "committed", transaction=commits[1])
    delivered(trace, ("p/1", "c2.s"))
    assert trace.anomalies() == ({} if commits[0] == "2-b" else {"mixed": 1})


@pytest.mark.parametrize("both", [True, False])
def test_regular_event_never_sees_half_of_a_move(both: bool) -> None:
    """Schedule 2 of the paper, and the one in which the event is lost."""
    trace = Trace().add("c3", "subscribed", subscription="c3.s", topic="x = 1")
    trace.add("b", "began", transaction="1-b", topic="serializable")
    trace.add(
        "b", "subscribed", event="1-b#1", subscription="c2.s", topic="x = 1", transaction="1-b"
    )
    trace.add("b", "unsubscribed", event="1-b#2", subscription="c3.s", transaction="1-b")
    trace.add("c1", "published", event="c1/1", topic="x = 1", publisher="c1", publisher_seq=1)
    trace.add("b", "committed", transaction="1-b")
    halves = (("c1/1", "c2.s"), ("c1/1", "c3.s"))
    for half in halves:
        assert delivered(Trace(), half) is not None
    if both:
        assert delivered(trace, *halves).anomalies() == {"mixed": 1}
    else:
        assert trace.anomalies() == {"mixed": 1}
        assert delivered(trace, halves[0]).anomalies() == {}


def test_event_after_commit_sees_it() -> None:
    trace = moved().add("c1", "published", event="c1/1", topic="x = 1", publisher="c1")
    assert delivered(trace, *GOOD, ("c1/1", "c3.s")).anomalies() == {"mixed": 1}


def test_mixed_violation_shows_two_subscribers_and_names_all() -> None:
    trace = Trace()
    for name in ("c1", "c2", "c3", "c4"):
        trace.add(name, "subscribed", subscription=f"{name}.s", topic="x = 1")
    trace.add("p", "published", event="p/1", topic="x = 1", publisher="p", publisher_seq=1)
    delivered(trace, *(("p/1", f"c{number}.s") for number in (1, 2, 3)))
    (violation,) = check(trace.rows, "transactions")["serializable"].violations
    assert (violation.anomaly, violation.nodes) == ("mixed", ("c1", "c3"))
    assert "c1.s, c2.s, c3.s" in violation.because


# -- Events that reached a client but not its application ---------------------------------------


def discarded(trace: Trace, verdict: str, *pairs: tuple[str, str]) -> Trace:
    for event, subscription in pairs:
        node, transaction = subscription.partition(".")[0], event.partition("#")[0]
        columns = {"transaction": transaction} if "#" in event else {}
        trace.add(
            node, "discarded", verdict=verdict, event=event, subscription=subscription, **columns
        )
    return trace


def three_events(kind: str = "") -> Trace:
    """Three events to one subscription: regular, or in one committed transaction."""
    trace = Trace().add("c", "subscribed", subscription="c.s", topic="x = 1")
    if kind:
        trace.add("b", "began", transaction="1-b", topic=kind)
    for number in (1, 2, 3):
        columns: dict[str, Any] = {"event": f"p/{number}"}
        if kind:
            columns = {"event": f"1-b#{number}", "transaction": "1-b"}
        trace.add("p", "published", topic="x = 1", publisher="p", publisher_seq=number, **columns)
    return trace.add("b", "committed", transaction="1-b") if kind else trace


def came(trace: Trace, *numbers: int, kind: str = "") -> Trace:
    for number in numbers:
        event = f"1-b#{number}" if kind else f"p/{number}"
        trace.add(
            "c",
            "delivered",
            event=event,
            subscription="c.s",
            publisher="p",
            publisher_seq=number,
            transaction="1-b" if kind else None,
        )
    return trace


def test_unread_event_of_closed_bus_counts_as_received() -> None:
    assert discarded(moved(), "unread", *GOOD).anomalies() == {}
    assert check(discarded(moved(), "unread", *GOOD).rows, "transactions").delivery_count == 0
    stale = discarded(delivered(moved(), *GOOD), "unread", ("1-b#4", "c3.s"))
    assert stale.anomalies() == {"stale": 1}


@pytest.mark.parametrize("verdict", ["not_subscribed", "overflow"])
@pytest.mark.parametrize("kind", ["", "serializable", "atomic", "planned"])
def test_dropped_event_is_lost_unless_subscription_was_closed(kind: str, verdict: str) -> None:
    events = [f"1-b#{number}" if kind else f"p/{number}" for number in (1, 2, 3)]
    anomaly = {"torn": 1} if kind else {"mixed": 1}

    def dropped(*numbers: int, closed: bool) -> Trace:
        rest = [number for number in (1, 2, 3) if number not in numbers]
        trace = came(three_events(kind), *rest, kind=kind)
        if closed:
            trace.add("c", "unsubscribed", subscription="c.s")
        return discarded(trace, verdict, *((events[number - 1], "c.s") for number in numbers))

    assert dropped(3, closed=True).anomalies() == {}
    assert dropped(3, closed=False).anomalies() == anomaly
    assert dropped(2, closed=True).anomalies() == anomaly, "one that comes behind it has come"
    assert dropped(1, 2, 3, closed=True).anomalies() == {}


@pytest.mark.parametrize("kind", ["", "serializable", "atomic", "planned"])
def test_gone_client_is_owed_events_before_those_it_received(kind: str) -> None:
    def gone(*numbers: int) -> Trace:
        trace = came(three_events(kind), *numbers, kind=kind)
        return trace.add("b", "unsubscribed", publisher="c", verdict="gone")

    assert gone(1, 2).anomalies() == {}
    assert gone(1, 3).anomalies() == ({"torn": 1} if kind else {"mixed": 1})


def test_event_published_after_transaction_comes_after_it() -> None:
    trace = came(three_events("atomic"), 1, 2, kind="atomic")
    trace.add("p", "published", event="p/4", topic="x = 1", publisher="p", publisher_seq=4)
    came(trace, 4).add("b", "unsubscribed", publisher="c", verdict="gone")
    assert trace.anomalies() == {"torn": 1}


def test_move_does_not_excuse_dropped_event() -> None:
    """The transaction withdrew the subscription, not the application: earlier events are owed."""
    trace = Trace().add("c3", "subscribed", subscription="c3.s", topic="x = 1")
    trace.add("b", "began", transaction="1-b", topic="serializable")
    trace.add(
        "b", "subscribed", event="1-b#1", subscription="c2.s", topic="x = 1", transaction="1-b"
    )
    trace.add("b", "unsubscribed", event="1-b#2", subscription="c3.s", transaction="1-b")
    trace.add("c1", "published", event="c1/1", topic="x = 1", publisher="c1", publisher_seq=1)
    trace.add("b", "committed", transaction="1-b")
    assert discarded(trace, "not_subscribed", ("c1/1", "c3.s")).anomalies() == {"mixed": 1}


def reported(trace: Trace, **changed: Any) -> Trace:
    """Two brokers report their tables: c1 at b0 advertises, c2 at b1 subscribes."""
    entries = {
        "b0": [
            ("client", None, "c1"),
            ("advertisement", "c1.a", "c1"),
            ("subscription", "c2.s", "b1"),
        ],
        "b1": [
            ("client", None, "c2"),
            ("advertisement", "c1.a", "b0"),
            ("subscription", "c2.s", "c2"),
            ("sent", "c2.s", "b0"),
        ],
    }
    for node, rows in {**entries, **changed.pop("entries", {})}.items():
        commits = changed.get(node, 3)
        trace.add(node, "held", verdict="tables", publisher_seq=commits)
        for verdict, name, peer in rows:
            trace.add(node, "held", verdict=verdict, subscription=name, publisher=peer)
    return trace


def test_matching_tables_have_converged() -> None:
    assert reported(Trace()).anomalies() == {}


@pytest.mark.parametrize(
    ("changed", "anomalies"),
    [
        ({"b1": 2}, {"behind": 1}),
        ({"entries": {"b0": [("subscription", "c2.s", "b1")]}}, {"unadvertised": 1}),
        (
            {"entries": {"b0": [("client", None, "c1"), ("advertisement", "c1.a", "c1")]}},
            {"differ": 1},
        ),
        (
            {
                "entries": {
                    "b0": [
                        ("client", None, "c1"),
                        ("advertisement", "c1.a", "c1"),
                        ("subscription", "c2.s", "b1"),
                        ("subscription", "c3.s", "b1"),
                    ]
                }
            },
            {"differ": 1},
        ),
    ],
)
def test_differing_tables_are_found(changed: dict[str, Any], anomalies: dict[str, int]) -> None:
    assert reported(Trace(), **changed).anomalies() == anomalies


def test_entries_of_gone_client_are_found() -> None:
    entries = [("advertisement", "c1.a", "c1"), ("subscription", "c2.s", "b1")]
    assert reported(Trace(), entries={"b0": entries}).anomalies() == {"orphan": 1}


def test_last_report_of_broker_counts() -> None:
    trace = reported(Trace(), b1=2, entries={"b0": []})
    assert reported(trace).anomalies() == {}


def test_topic_trace_is_not_judged() -> None:
    trace = Trace().add("c", "subscribed", subscription="c.s", topic="orders")
    trace.add("p", "published", event="p/orders/1", topic="orders")
    report = check(trace.rows, order="transactions")
    assert report.verdict is Verdict.UNKNOWN
    assert "not content-based" in report.reasons[0]


@pytest.mark.parametrize("topic", ["orders", "a = b", "a = 1.2.3", "a = .", "a ="])
def test_topic_trace_has_only_one_reason(topic: str) -> None:
    trace = Trace().add("c", "subscribed", subscription="c.s", topic="true")
    trace.add("p", "published", event="p/orders/1", topic=topic)
    trace.add("c", "delivered", event="p/orders/1", subscription="c.s")
    trace.add("c", "delivered", event="p/orders/1", subscription="c.s")
    report = check(trace.rows, order="transactions")
    assert report.verdict is Verdict.UNKNOWN
    assert report.reasons == (f"run r is not content-based: {topic!r} does not describe an event",)


@pytest.mark.parametrize("action", ["published", "received"])
def test_operation_without_place_makes_run_unknown(action: str) -> None:
    trace = moved()
    trace.add("b", action, event="1-b#second", topic="x = 1", transaction="1-b")
    report = check(trace.rows, order="transactions")
    assert report.verdict is Verdict.UNKNOWN
    (reason,) = report.reasons
    assert reason == (
        "run r is not content-based: '1-b#second' does not name an operation of a transaction: "
        "expected a name like 't#2.1'"
    )


def test_filters_parse_as_brokers_write_them() -> None:
    event = attributes_of("\"two words\" = 'it''s' and price = 10.5 and urgent = true")
    assert event == {"two words": "it's", "price": 10.5, "urgent": True}
    for where, expected in {
        "price > 10": True,
        "(price >= 10 and price < 10.5)": False,
        "price in (1, 10.5)": True,
        "urgent = true": True,
        "urgent = 1": False,
        "\"two words\" starts with 'it'": True,
        "other exists or price exists": True,
        "(price = 1) or (urgent = false)": False,
        "true": True,
    }.items():
        assert matches(where, event) is expected, where


def test_operations_planned_together_may_run_in_any_order() -> None:
    trace = Trace().add("b", "began", topic="planned", transaction="t")
    for path in ("1", "2.0.3", "2.0.2", "4"):
        trace.add("b", "received", event=f"t#{path}", transaction="t")
    trace.add("b", "committed", transaction="t")
    assert trace.anomalies() == {}
    trace.add("b", "received", event="t#1", transaction="t")
    assert trace.anomalies() == {"sequential": 1}


DURABLE = {"subscription": "durable/d.sub1"}


def read_twice() -> Trace:
    """A reader gets two events, acknowledges one and leaves; another one attaches."""
    trace = Trace().add("r", "subscribed", topic="x = 1", publisher_seq=1, **DURABLE)
    for number in (1, 2, 3):
        trace.add(
            "p", "published", event=f"p/{number}", topic="x = 1", publisher="p",
            publisher_seq=number,
        )  # fmt: skip
    handed(trace, "r", 1)
    handed(trace, "r", 2)
    trace.add("r", "acknowledged", position=1, publisher_seq=1, **DURABLE)
    trace.add("r", "unsubscribed", verdict="closed", **DURABLE)
    return trace.add("s", "subscribed", topic="x = 1", publisher_seq=2, **DURABLE)


def handed(trace: Trace, node: str, number: int) -> Trace:
    return trace.add(
        node, "delivered", event=f"p/{number}", topic="x = 1", publisher="p",
        publisher_seq=number, position=number, **DURABLE,
    )  # fmt: skip


def test_unacknowledged_event_of_durable_subscription_may_come_again() -> None:
    assert handed(handed(read_twice(), "s", 2), "s", 3).anomalies() == {}


def test_acknowledged_event_must_not_come_to_a_later_reader() -> None:
    trace = read_twice()
    for number in (1, 2, 3):
        handed(trace, "s", number)
    assert trace.anomalies() == {"again": 1}


def test_earlier_reader_may_still_hold_an_acknowledged_event() -> None:
    trace = read_twice()
    handed(handed(trace, "s", 2), "s", 3).add(
        "s", "acknowledged", position=3, publisher_seq=2, **DURABLE
    )
    assert handed(trace, "r", 3).anomalies() == {}


def test_next_reader_at_one_bus_may_attach_while_a_broker_is_away() -> None:
    trace = handed(handed(read_twice(), "s", 2), "s", 3)
    trace.add("s", "unsubscribed", verdict="closed", **DURABLE)
    # It has no row "subscribed" until the broker that is away is back.
    assert handed(trace, "s", 3).anomalies() == {}
    assert handed(trace, "s", 3).anomalies() == {"duplicate": 1}


def test_reader_of_durable_subscription_gets_no_event_twice() -> None:
    trace = handed(handed(read_twice(), "s", 2), "s", 3)
    assert handed(trace, "s", 3).anomalies() == {"duplicate": 1}


def test_events_are_owed_to_the_last_reader_of_a_durable_subscription() -> None:
    assert handed(read_twice(), "s", 2).anomalies() == {"mixed": 1}
    assert handed(read_twice(), "s", 3).anomalies() == {}
    trace = handed(read_twice(), "s", 2).add("s", "unsubscribed", verdict="detached", **DURABLE)
    assert trace.anomalies() == {}  # The third event waits for the next reader.


def test_durable_subscription_that_is_made_again_counts_anew() -> None:
    again = {"subscription": "durable/d.sub2"}
    trace = handed(handed(read_twice(), "s", 2), "s", 3)
    trace.add("s", "acknowledged", position=3, publisher_seq=2, **DURABLE).add(
        "s", "unsubscribed", **DURABLE
    )
    trace.add("t", "subscribed", topic="x = 1", publisher_seq=1, **again)
    trace.add("p", "published", event="p/4", topic="x = 1", publisher="p", publisher_seq=4)
    trace.add(
        "t", "delivered", event="p/4", topic="x = 1", publisher="p", publisher_seq=4, position=1,
        **again,
    )  # fmt: skip
    assert trace.anomalies() == {}
