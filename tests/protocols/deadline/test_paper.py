"""The worked examples of the paper and each of its predicates, under the corrected rules."""

import pytest
from tests.protocols.deadline.brokers import A, B, Broker, C, D, Listener, Pusher

from ensue.core.errors import ConfigurationError
from ensue.protocols.deadline.config import DeadlineConfig

THREE = DeadlineConfig(subscribers_max=4, alpha=1)
"""log N + 1 = 3 rounds, as in Figure 3."""


# -- Figure 1: the matrix, and logical deadlines ---------------------------------------------------


def test_figure_1_step_by_step() -> None:
    """Groups {A, B, C}, {A, B, D}: m1 is missing at D; m2, m3, m4 are delivered when m4 is due."""
    a, b, d = Broker(A), Broker(B), Broker(D)
    m1 = a.send("m1", (B, D), 1, deadline=100)
    assert m1.after == {}, "nothing was sent before"
    assert a.rules.matrix == {A: {B: 1, D: 1}}
    b.receive(m1, 3)
    assert b.got == ["m1"]
    assert b.rules.matrix == {A: {D: 1}}
    assert b.rules.settled == {A: 1}
    m2 = b.send("m2", (A, D), 4, deadline=90)
    assert m2.after == {A: {B: 1, D: 1}}, "what was known before it was sent"
    m3 = b.send("m3", (D, C), 5, deadline=95)
    assert m3.after[B] == {A: 4, D: 4}
    a.receive(m2, 6)
    m4 = a.send("m4", (B, D), 7, deadline=80)
    # m2 and m3 wait for m1, each until its own deadline.
    d.receive(m2, 10)
    d.receive(m3, 11)
    assert (d.got, d.rules.next_timer_ns()) == ([], 90)
    # With m4 that of m2 becomes deadline(m4). So would that of m3, had A known of it.
    d.receive(m4, 12)
    assert (d.got, d.rules.next_timer_ns()) == ([], 80)
    d.look(79)
    assert d.got == []
    d.look(80)
    assert d.got == ["m2", "m3", "m4"], "in the order of their stamps, m3 because m1 is settled now"
    d.receive(m1, 81)
    assert d.refused == {"m1": "overtaken"}, "its delivery would break the order"
    d.receive(m1, 100)
    assert d.refused == {"m1": "late"}, "and it is over"


def test_figure_1_nothing_is_late_if_m1_arrives_in_time() -> None:
    a, b, d = Broker(A), Broker(B), Broker(D)
    m1 = a.send("m1", (B, D), 1)
    b.receive(m1, 3)
    m2 = b.send("m2", (D,), 4)
    d.receive(m2, 10)
    d.receive(m1, 50)
    assert d.got == ["m1", "m2"]


# -- Predicates between brokers --------------------------------------------------------------------


def test_too_late() -> None:
    a = Broker(A)
    message = a.send("m", (B,), 10)
    for now, verdict in ((109, ""), (110, "late"), (111, "late")):
        b = Broker(B)
        b.receive(message, now)
        assert b.refused.get("m", "") == verdict, f"due at 110, arrived at {now}"


def test_del_viol_co() -> None:
    a, b = Broker(A), Broker(B)
    first, second = a.send("first", (B,), 10), a.send("second", (B,), 11)
    b.receive(second, 12)
    b.look(111)
    assert b.got == ["second"]
    assert b.rules.is_settled(A, first.stamp), "one after it was delivered"
    b.receive(first, 108)
    assert b.refused == {"first": "overtaken"}


def test_del_ok_tests_all_senders_including_its_own() -> None:
    a, b, c = Broker(A), Broker(B), Broker(C)
    m1 = a.send("m1", (B, C), 1)
    b.receive(m1, 2)
    m2 = b.send("m2", (C,), 3)
    m3 = b.send("m3", (C,), 3)
    c.receive(m3, 4)
    assert c.got == [], "m2 of the same sender is missing"
    c.receive(m2, 5)
    assert c.got == [], "m1 of another is missing"
    c.receive(m1, 6)
    assert c.got == ["m1", "m2", "m3"]


def test_logical_deadline_is_the_earliest_of_its_followers() -> None:
    a, b = Broker(A), Broker(B)
    a.send("lost", (B,), 1)
    early = a.send("early", (B,), 2, deadline=200)
    late = a.send("late", (B,), 3, deadline=150)
    b.receive(early, 4)
    assert b.rules.next_timer_ns() == 200
    b.receive(late, 5)
    assert b.rules.next_timer_ns() == 150
    b.look(150)
    assert b.got == ["early", "late"]


# -- Figure 2: an entry for each group and broker, and groups that overlap -------------------------


def test_figure_2_step_by_step() -> None:
    """Subscriber groups {S1, S2} and {S2, S3}: only S2 has to wait across the groups."""
    a, b = Pusher(A, THREE), Pusher(B, THREE)
    one = b.push("one", "group1", 1)
    assert one.live == {}
    a.learn(one)
    two = a.push("two", "group2", 2)
    assert two.live == {"group1": {B: 1}}
    b.learn(two)
    three = b.push("three", "group1", 3)
    assert three.live == {"group1": {B: 1}, "group2": {A: 2}}
    s1, s2, s3 = (
        Listener(THREE, topics) for topics in (["group1"], ["group1", "group2"], ["group2"])
    )
    s3.receive(two, 2)
    assert s3.got == ["two"], "what it waits for is not addressed to it"
    s2.receive(two, 2)
    assert s2.got == []
    s1.receive(three, 3)
    s2.receive(three, 3)
    assert (s1.got, s2.got) == ([], []), "both lack the first message"
    s1.receive(one, 3)
    s2.receive(one, 3)
    assert s1.got == ["one", "three"]
    assert s2.got == ["one", "two", "three"]


# -- Figure 3: rounds ------------------------------------------------------------------------------


@pytest.mark.parametrize("colors", [None, 8])
def test_figure_3_step_by_step(colors: int | None) -> None:
    """Red B1, yellow A1, blue B2, red B3: B1 is lost, the others are delivered in round four."""
    copy_age = None if colors is None else 7
    config = DeadlineConfig(subscribers_max=4, alpha=1, colors=colors, copy_age_rounds=copy_age)
    assert config.lifetime_rounds == 3
    a, b, s3 = Pusher(A, config), Pusher(B, config), Listener(config, ["t"])
    b1 = b.push("B1", "t", 1)
    a.learn(b1)
    a1 = a.push("A1", "t", 2)
    b.learn(a1)
    b2 = b.push("B2", "t", 3)
    b3 = b.push("B3", "t", 4)
    for rumor, now_round in ((a1, 2), (b2, 3)):
        assert config.from_wire(config.to_wire(rumor.round), now_round) == rumor.round
        s3.receive(rumor, now_round)
        assert s3.got == [], "B1 may still come"
    s3.look(4)
    assert s3.got == ["A1", "B2"], "B1 is dead, and nobody waits for the dead"
    s3.receive(b3, 4)
    assert s3.got == ["A1", "B2", "B3"]
    s3.receive(b1, 4)
    assert s3.refused == {"B1": "late"}


# -- Predicates towards subscribers ----------------------------------------------------------------


def test_too_late_for_a_subscriber() -> None:
    for now_round, verdict in ((5, ""), (7, ""), (8, "late"), (9, "late")):
        s = Listener(THREE, ["t"])
        s.receive(Pusher(A, THREE).push("m", "t", 5), now_round)
        assert s.refused.get("m", "") == verdict, f"of round 5, arrived in {now_round}"


def test_del_viol_co_for_a_subscriber() -> None:
    a, s = Pusher(A, THREE), Listener(THREE, ["t"])
    first, second = a.push("first", "t", 1), a.push("second", "t", 2)
    s.receive(second, 2)
    s.look(4)
    assert s.got == ["second"]
    s.receive(first, 4)
    assert s.refused == {"first": "late"}, "whatever would break the order is dead by then"


def test_del_ok_for_a_subscriber() -> None:
    a, b, s = Pusher(A, THREE), Pusher(B, THREE), Listener(THREE, ["t"])
    m1 = a.push("m1", "t", 1)
    b.learn(m1)
    m2 = b.push("m2", "t", 2)
    s.receive(m2, 2)
    assert s.got == []
    s.receive(m1, 2)
    assert s.got == ["m1", "m2"]


def test_logical_deadline_for_a_subscriber_is_the_last_expiry_of_missing_messages() -> None:
    a, s = Pusher(A, THREE), Listener(THREE, ["t"])
    a.push("lost", "t", 1)
    a.push("lost too", "t", 2)
    third = a.push("third", "t", 3)
    s.receive(third, 3)
    s.look(4)
    assert s.got == [], "the second one may come until round 5"
    s.look(5)
    assert s.got == ["third"], "in the last round of its life"


# -- Colors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("skew_rounds", [0, 1, 2])
@pytest.mark.parametrize("age", [3, 8, 10])
def test_colors_wrap_and_decode_to_their_rounds(skew_rounds: int, age: int) -> None:
    plain = DeadlineConfig(
        subscribers_max=8,
        alpha=1,
        period_ns=1_000,
        skew_ns=1_000 * skew_rounds,
        copy_age_rounds=age,
    )
    colors = plain.colors_min
    assert colors == max(2 * 4 - 1 + skew_rounds, age + 1) + skew_rounds
    config = DeadlineConfig(
        subscribers_max=8,
        alpha=1,
        period_ns=1_000,
        skew_ns=1_000 * skew_rounds,
        copy_age_rounds=age,
        colors=colors,
    )
    for now_round in range(100, 100 + 2 * colors):
        for sent in range(now_round - age, now_round + skew_rounds + 1):
            assert config.from_wire(config.to_wire(sent), now_round) == sent
    assert config.from_wire(colors, 100) is None


@pytest.mark.parametrize(
    ("age", "skew_rounds", "colors"), [(8, 0, 8), (3, 0, 6), (10, 2, 12), (3, 0, 4)]
)
def test_fewer_colors_are_refused(age: int, skew_rounds: int, colors: int) -> None:
    """With C = 4: counts that fail by the errata; one more is enough, except for the last."""

    def make(count: int) -> DeadlineConfig:
        return DeadlineConfig(
            subscribers_max=8,
            alpha=1,
            period_ns=1_000,
            skew_ns=1_000 * skew_rounds,
            copy_age_rounds=age,
            colors=count,
        )

    with pytest.raises(ConfigurationError, match="colors must be at least"):
        make(colors)
    if colors != 4:
        make(colors + 1)


def test_colors_without_a_bound_on_the_age_of_copies_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="copy_age_rounds"):
        DeadlineConfig(colors=100)
