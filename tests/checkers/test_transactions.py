"""The checker of transactions: each anomaly is found in a small trace, and a good trace is valid."""

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
        .add("b", "subscribed", event="1-b#2", subscription="c2.s", topic="x = 1", transaction="1-b")
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


def test_a_good_trace_is_valid() -> None:
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
def test_an_event_comes_to_whom_it_must_and_to_nobody_else(
    pairs: tuple[tuple[str, str], ...], anomaly: str
) -> None:
    assert delivered(moved(), *pairs).anomalies() == {anomaly: 1}


def test_what_is_not_committed_is_not_delivered() -> None:
    trace = Trace().add("b", "began", transaction="1-b", topic="atomic")
    trace.add("c", "subscribed", subscription="c.s", topic="x = 1")
    trace.add("b", "published", event="1-b#1", topic="x = 1", transaction="1-b")
    trace.add("b", "aborted", transaction="1-b")
    assert trace.anomalies() == {}
    assert delivered(trace, ("1-b#1", "c.s")).anomalies() == {"dirty": 1}


def test_everybody_decides_alike() -> None:
    assert moved().add("b2", "aborted", transaction="1-b").anomalies()["split"] == 1


def test_operations_are_processed_in_their_order() -> None:
    trace = delivered(moved(), *GOOD)
    trace.add("b2", "received", event="1-b#2.1", transaction="1-b")
    trace.add("b2", "received", event="1-b#2", transaction="1-b")
    assert trace.anomalies() == {"sequential": 1}
    ordered = delivered(moved(), *GOOD)
    ordered.add("b2", "received", event="1-b#2", transaction="1-b")
    ordered.add("b2", "received", event="1-b#2.1", transaction="1-b")
    ordered.add("b2", "received", event="1-b#10", transaction="1-b")
    assert ordered.anomalies() == {}


def test_commits_have_one_sequence() -> None:
    trace = Trace()
    for name in ("1-b", "2-b"):
        trace.add("b", "began", transaction=name, topic="serializable")
    for node, names in (("b", ("1-b", "2-b")), ("b2", ("2-b", "1-b"))):
        for name in names:
            trace.add(node, "committed", transaction=name)
    assert trace.anomalies() == {"cycle": 1}


def test_commits_have_one_sequence_where_nobody_has_all_of_them() -> None:
    commits = {"b1": ["t", "u", "v"], "b2": ["t", "v", "w"], "b3": ["w", "v"]}
    trace = Trace()
    for name in ("t", "u", "v", "w"):
        trace.add("b1", "began", transaction=name, topic="serializable")
    for node, names in commits.items():
        for name in names:
            trace.add(node, "committed", transaction=name)
    (told,) = check(trace.rows, "transactions")["serializable"].violations
    assert (told.anomaly, told.nodes) == ("cycle", ("b3",))
    assert (told.first_event, told.second_event) == ("w", "v")


@pytest.mark.parametrize("seed", range(300))
def test_two_nodes_that_commit_the_other_way_round_are_found_whatever_others_have(
    seed: int,
) -> None:
    random = Random(seed)
    commits = {node: [name for name in "tuvwx" if random.random() < 0.7] for node in "abc"}
    for names in commits.values():
        if random.random() < 0.3:
            random.shuffle(names)
    trace = Trace()
    for name in "tuvwx":
        trace.add("a", "began", transaction=name, topic="serializable")
    for node, names in commits.items():
        for name in names:
            trace.add(node, "committed", transaction=name)
    opposite = any(
        mine.index(one) < mine.index(other) and theirs.index(one) > theirs.index(other)
        for mine, theirs in permutations(commits.values(), 2)
        for one, other in permutations(set(mine) & set(theirs), 2)
    )
    assert ("cycle" in trace.anomalies()) == opposite


def test_a_commit_that_seems_to_come_before_its_beginning_has_a_place_too() -> None:
    trace = Trace().add("b", "began", transaction="1-b", topic="serializable")
    trace.add("b2", "committed", transaction="2-b").add("b2", "committed", transaction="1-b")
    trace.add("b", "began", transaction="2-b", topic="serializable")
    trace.add("b", "committed", transaction="1-b").add("b", "committed", transaction="2-b")
    assert trace.anomalies() == {"cycle": 1}


@pytest.mark.parametrize("both", [True, False])
def test_a_regular_event_never_sees_half_of_a_move(both: bool) -> None:
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


def test_an_event_after_a_commit_sees_it() -> None:
    trace = moved().add("c1", "published", event="c1/1", topic="x = 1", publisher="c1")
    assert delivered(trace, *GOOD, ("c1/1", "c3.s")).anomalies() == {"mixed": 1}


def test_an_event_that_came_to_many_is_shown_at_two_of_them_and_names_all() -> None:
    trace = Trace()
    for name in ("c1", "c2", "c3", "c4"):
        trace.add(name, "subscribed", subscription=f"{name}.s", topic="x = 1")
    trace.add("p", "published", event="p/1", topic="x = 1", publisher="p", publisher_seq=1)
    delivered(trace, *(("p/1", f"c{number}.s") for number in (1, 2, 3)))
    (told,) = check(trace.rows, "transactions")["serializable"].violations
    assert (told.anomaly, told.nodes) == ("mixed", ("c1", "c3"))
    assert "c1.s, c2.s, c3.s" in told.because


# -- What a client has, and its application has not -------------------------------------------------


def discarded(trace: Trace, verdict: str, *pairs: tuple[str, str]) -> Trace:
    for event, subscription in pairs:
        node, transaction = subscription.partition(".")[0], event.partition("#")[0]
        columns = {"transaction": transaction} if "#" in event else {}
        trace.add(
            node, "discarded", verdict=verdict, event=event, subscription=subscription, **columns
        )
    return trace


def three_events(kind: str = "") -> Trace:
    """Three events to one subscription: alone, or as one committed transaction of a kind."""
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


def test_what_nobody_has_read_when_a_bus_was_closed_has_come() -> None:
    assert discarded(moved(), "unread", *GOOD).anomalies() == {}
    assert check(discarded(moved(), "unread", *GOOD).rows, "transactions").delivery_count == 0
    stale = discarded(delivered(moved(), *GOOD), "unread", ("1-b#4", "c3.s"))
    assert stale.anomalies() == {"stale": 1}


@pytest.mark.parametrize("verdict", ["not_subscribed", "overflow"])
@pytest.mark.parametrize("kind", ["", "serializable", "atomic", "planned"])
def test_what_was_dropped_is_lost_unless_the_application_had_closed_the_subscription(
    kind: str, verdict: str
) -> None:
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
def test_a_client_that_is_gone_is_owed_what_comes_before_what_came(kind: str) -> None:
    def gone(*numbers: int) -> Trace:
        trace = came(three_events(kind), *numbers, kind=kind)
        return trace.add("b", "unsubscribed", publisher="c", verdict="gone")

    assert gone(1, 2).anomalies() == {}
    assert gone(1, 3).anomalies() == ({"torn": 1} if kind else {"mixed": 1})


def test_an_event_that_is_published_when_a_transaction_is_over_comes_behind_it() -> None:
    trace = came(three_events("atomic"), 1, 2, kind="atomic")
    trace.add("p", "published", event="p/4", topic="x = 1", publisher="p", publisher_seq=4)
    came(trace, 4).add("b", "unsubscribed", publisher="c", verdict="gone")
    assert trace.anomalies() == {"torn": 1}


def test_a_move_does_not_excuse_what_a_client_drops() -> None:
    """The transaction withdrew it, and not the application: events that were routed before are its own."""
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


def test_tables_that_fit_have_converged() -> None:
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
def test_tables_that_do_not_fit_are_found(
    changed: dict[str, Any], anomalies: dict[str, int]
) -> None:
    assert reported(Trace(), **changed).anomalies() == anomalies


def test_nothing_of_a_client_that_is_gone_is_held() -> None:
    entries = [("advertisement", "c1.a", "c1"), ("subscription", "c2.s", "b1")]
    assert reported(Trace(), entries={"b0": entries}).anomalies() == {"orphan": 1}


def test_the_last_report_of_a_broker_counts() -> None:
    trace = reported(Trace(), b1=2, entries={"b0": []})
    assert reported(trace).anomalies() == {}


def test_a_trace_of_topics_is_not_judged() -> None:
    trace = Trace().add("c", "subscribed", subscription="c.s", topic="orders")
    trace.add("p", "published", event="p/orders/1", topic="orders")
    report = check(trace.rows, order="transactions")
    assert report.verdict is Verdict.UNKNOWN
    assert "not one of content" in report.reasons[0]


@pytest.mark.parametrize("topic", ["orders", "a = b", "a = 1.2.3", "a = .", "a ="])
def test_of_a_trace_of_topics_nothing_is_told_but_that(topic: str) -> None:
    trace = Trace().add("c", "subscribed", subscription="c.s", topic="true")
    trace.add("p", "published", event="p/orders/1", topic=topic)
    trace.add("c", "delivered", event="p/orders/1", subscription="c.s")
    trace.add("c", "delivered", event="p/orders/1", subscription="c.s")
    report = check(trace.rows, order="transactions")
    assert report.verdict is Verdict.UNKNOWN
    assert report.reasons == (f"run r is not one of content: {topic!r} does not describe an event",)


@pytest.mark.parametrize("action", ["published", "received"])
def test_an_operation_that_does_not_say_its_place_makes_a_run_unknown(action: str) -> None:
    trace = moved()
    trace.add("b", action, event="1-b#second", topic="x = 1", transaction="1-b")
    report = check(trace.rows, order="transactions")
    assert report.verdict is Verdict.UNKNOWN
    (reason,) = report.reasons
    assert reason == (
        "run r is not one of content: '1-b#second' does not say which operation of a transaction it "
        "is, as 't#2.1' does"
    )


def test_filters_are_read_as_brokers_write_them() -> None:
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


def test_operations_planned_together_may_come_in_any_order() -> None:
    trace = Trace().add("b", "began", topic="planned", transaction="t")
    for path in ("1", "2.0.3", "2.0.2", "4"):
        trace.add("b", "received", event=f"t#{path}", transaction="t")
    trace.add("b", "committed", transaction="t")
    assert trace.anomalies() == {}
    trace.add("b", "received", event="t#1", transaction="t")
    assert trace.anomalies() == {"sequential": 1}
