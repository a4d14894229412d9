"""Each published fault of D-TX and D-TX_NI, shown as published and fixed in ours.

Each runs on the schedules of one scenario.
"""

from typing import Any
from unittest import mock

import pytest
from tests.protocols.transactions import algorithm_four, published
from tests.protocols.transactions.algorithm_four import AlgorithmFour
from tests.protocols.transactions.harness import (
    MS,
    TransactionNet,
    adv,
    invite,
    pub,
    sub,
    uadv,
    usub,
)
from tests.protocols.transactions.schedules import SEEDS, aborted, count, figure_1, net_of

from ensue.protocols.content.client import ContentClient
from ensue.protocols.content.filters.filter import Filter
from ensue.protocols.content.filters.index import MatchIndex
from ensue.protocols.content.frames import Stepped
from ensue.protocols.content.tables import Tables
from ensue.protocols.transactions import contexts, two_phase_commit
from ensue.protocols.transactions.broker import TransactionBroker
from ensue.protocols.transactions.contexts import Context
from ensue.simulation.deployments.transactions import table_faults


def test_d1_a_leaf_answers() -> None:
    assert count(figure_1, published.NoAnswerFromLeaves) == SEEDS
    assert count(figure_1, TransactionBroker) == 0


def attracted_twice(broker: type[TransactionBroker], seed: int) -> TransactionNet:
    """Return a net in which b1 has a subscription of b2 that an advertisement at b0 attracts."""
    net = net_of(broker, seed, {"first": "b1", "second": "b0", "third": "b0", "c": "b2"})
    net.regular("first", adv("a1", "x exists"))
    net.settle()
    net.regular("c", sub("s", "x = 1"))
    net.settle()
    return net


def unknown_answers(seed: int, broker: type[TransactionBroker]) -> bool:
    """D2: return whether a node gets an answer that it did not request."""
    strangers: list[Any] = []
    answered, handled = ContentClient.done, TransactionBroker.handle

    def done(self: Any, frame: Any) -> Any:
        if frame.number and frame.number not in self.asked:
            strangers.append(frame)
        return answered(self, frame)

    def handle(self: Any, frame: Any, source: str, now_ns: int) -> None:
        if (
            isinstance(frame, Stepped)
            and self.steps.under_way.get(frame.number, ("",))[0] != source
        ):
            strangers.append(frame)
        handled(self, frame, source, now_ns)

    with (
        mock.patch.object(ContentClient, "done", done),
        mock.patch.object(TransactionBroker, "handle", handle),
    ):
        net = attracted_twice(broker, seed)
        assert net.run("second", adv("a2", "x > 0")) == ""
    return bool(strangers)


def test_d2_triggered_operation_has_no_origin_to_answer() -> None:
    assert count(unknown_answers, published.AnswersWhereSubscriptionsCameFrom) == SEEDS
    assert count(unknown_answers, TransactionBroker) == 0


@pytest.mark.parametrize("seed", range(10))
def test_d2_two_advertisements_may_attract_the_same_subscription(seed: int) -> None:
    """From two sides, in one transaction."""
    net = net_of(TransactionBroker, seed, {"left": "b0", "c": "b1", "right": "b2"})
    net.regular("c", sub("s", "x = 1"))
    net.settle()
    acts = (adv("a1", "x exists"), invite("right", adv("a2", "x > 0"), pub("r", x=1)))
    assert net.run("left", *acts, pub("l", x=1)) == ""
    assert sorted(net.payloads("c")) == ["l", "r"]
    net.at_rest()


def answered_early(seed: int, broker: type[TransactionBroker]) -> bool:
    """D2b: return whether an advertisement is answered before what it triggered; none is lost."""
    net = attracted_twice(broker, seed)
    net.command("second", lambda node, now: node.begin("serializable", 10**10, now_ns=now))
    net.settle()
    transaction = f"{1:010d}-b0"
    number, _ = net.command(
        "second", lambda node, now: node.act(transaction, "adv", where="x exists", now_ns=now)
    )
    while number not in net.answers("second"):
        assert net.step()
    early = any(net.broker(each).steps.under_way for each in net.tree)
    net.settle()
    event = {"attributes": {"x": 1}, "payload": b"p"}
    net.command("second", lambda node, now: node.act(transaction, "pub", **event, now_ns=now))
    net.settle()
    net.command("second", lambda node, now: node.end(transaction, commit=True, now_ns=now))
    net.settle()
    assert net.payloads("c") == ["p"]
    return early


def test_d2b_answer_waits_for_triggered_operations() -> None:
    assert count(answered_early, published.WaitsForNothingTriggered) > 0
    assert count(answered_early, TransactionBroker) == 0


def test_d3_the_motivating_example_commits() -> None:
    with mock.patch.object(Context, "conflict", published.own_tables_against_committed_ones):
        assert count(figure_1, TransactionBroker) == SEEDS
    assert count(figure_1, TransactionBroker) == 0


def two_that_do_not_know_each_other(seed: int, broker: type[TransactionBroker]) -> bool:
    """D4: {adv by c0} and {sub by c1} at once; return whether the tables have a hole."""
    net = net_of(broker, seed, {"c0": "b0", "c1": "b2"})
    net.start("c0", adv("a", "x exists"), isolation="serializable", attempts=6)
    net.start("c1", sub("s", "x = 1"), isolation="serializable", attempts=6)
    for _ in range(30):
        net.settle()
        net.elapse(50 * MS)
    assert [wrong for _, wrong in net.application.outcomes] == ["", ""], seed
    return bool(list(table_faults({name: net.broker(name) for name in net.tree})))


def test_d4_changes_are_checked_too() -> None:
    """The corrections of D11 would fill the hole too: they are disabled here."""
    with (
        mock.patch.object(contexts, "_comparable", published.publications_alone),
        mock.patch.object(two_phase_commit, "fixes", return_value={}),
    ):
        assert count(two_that_do_not_know_each_other, TransactionBroker) > 0
    assert count(two_that_do_not_know_each_other, TransactionBroker) == 0


def crossing(seed: int, broker: type[TransactionBroker]) -> bool:
    """D5: T3 = {pub x, sub y} by c0, T2 = {pub y, sub x} by c1.

    Return whether no serial order explains the outcome.
    """
    net = net_of(broker, seed, {"c0": "b0", "c1": "b2"})
    net.regular("c0", adv("ax", "x exists"))
    net.regular("c1", adv("ay", "y exists"))
    net.settle()
    net.start("c0", pub("x", x=1), sub("sy", "y exists"), isolation="serializable")
    for _ in range(net.random.randrange(60)):
        net.step()
    net.start("c1", pub("y", y=1), sub("sx", "x exists"), isolation="serializable")
    for _ in range(net.random.randrange(40)):
        slow = [key for key, flying in net.flying.items() if flying and key[1] != "b0"]
        if slow:  # Frames to the home of the first coordinator are slow.
            net.step_on(net.random.choice(slow))
    net.settle()
    committed = all(wrong == "" for _, wrong in net.application.outcomes)
    return (
        committed
        and len(net.application.outcomes) == 2
        and not net.payloads("c0")
        and not net.payloads("c1")
    )


def test_d5_a_vote_holds_a_lock_until_the_decision() -> None:
    seeds = range(300)
    assert count(crossing, published.WaitsForEarlierNames, seeds) > 0
    assert count(crossing, TransactionBroker, seeds) == 0


def lost_or_back(seed: int, broker: type[TransactionBroker]) -> bool:
    """D6: two subscribe at once, a third withdraws; return if entries are lost or come back."""
    net = net_of(broker, seed, {"p": "b1", "c0": "b0", "c1": "b2"})
    net.regular("p", adv("a", "x exists"))
    net.regular("c0", sub("old", "x = 3"))
    net.settle()
    net.start("c0", sub("s0", "x = 1"), usub("old"), isolation="serializable", attempts=6)
    net.start("c1", sub("s1", "x = 2"), isolation="serializable", attempts=6)
    for _ in range(30):
        net.settle()
        net.elapse(50 * MS)
    assert [wrong for _, wrong in net.application.outcomes] == ["", ""], seed
    for value in (1, 2, 3):
        net.regular("p", pub(str(value), x=value))
    net.settle()
    return (net.payloads("c0"), net.payloads("c1")) != (["1"], ["2"])


def test_d6_commit_replays_the_log() -> None:
    assert count(lost_or_back, published.ReplacesItsTables) > 0
    with mock.patch.object(two_phase_commit, "replay", published.union_of_both_tables):
        assert count(lost_or_back, TransactionBroker) == SEEDS
    assert count(lost_or_back, TransactionBroker) == 0


def parked(seed: int, broker: type[TransactionBroker]) -> bool:
    """D7: return whether one of two concurrent transactions never ends."""
    net = net_of(broker, seed, {"c0": "b0", "c1": "b2", "p": "b1"})
    net.regular("p", adv("a", "x exists"))
    net.settle()
    net.start("c0", sub("a", "x = 1"), isolation="serializable")
    net.start("c1", sub("b", "x >= 1"), isolation="serializable")
    net.settle()
    for _ in range(6):
        net.elapse(25 * MS)
    return len(net.application.outcomes) < 2


def test_d7_every_parked_vote_is_cast() -> None:
    assert count(parked, published.ParkedForever) > 0
    assert count(parked, TransactionBroker) == 0


def moving(seed: int, broker: type[TransactionBroker]) -> bool:
    """D8: a subscription moves from b3 to b0; return whether an event reached none, or both."""
    net = net_of(broker, seed, {"c1": "b1", "old": "b3", "new": "b0"}, 4)
    net.regular("c1", adv("a", "x exists"))
    net.regular("old", sub("s", "x = 1"))
    net.settle()
    net.start("old", usub("s"), invite("new", sub("t", "x = 1")), isolation="serializable")
    number = 0
    while net.step():
        if number < 60 and net.random.random() < 0.3:
            net.regular("c1", pub(str(number), x=1))
            number += 1
    got = net.payloads("old") + net.payloads("new")
    return sorted(got, key=int) != [str(each) for each in range(number)]


def test_d8_a_publication_is_routed_by_one_version() -> None:
    assert count(moving, published.RoutedByLocalTables) > 0
    assert count(moving, TransactionBroker) == 0


def second_advertiser(seed: int, broker: type[TransactionBroker]) -> bool:
    """D9: return whether a subscription does not reach a second advertiser."""
    net = net_of(broker, seed, {"a": "b0", "b": "b1", "c": "b2"})
    net.regular("b", sub("s", "x = 1"))
    net.settle()
    net.regular("a", adv("a", "x exists"))
    net.settle()
    net.regular("c", adv("c", "x exists"))
    net.settle()
    net.regular("c", pub("second", x=1))
    net.settle()
    return net.payloads("b") != ["second"]


def test_d9_every_advertisement_attracts() -> None:
    with mock.patch.object(Tables, "_wanting", published.only_what_matched_nothing):
        assert count(second_advertiser, TransactionBroker, range(5)) == 5
    assert count(second_advertiser, TransactionBroker, range(5)) == 0


def overlapping(seed: int, broker: type[TransactionBroker]) -> tuple[int, list[str]]:
    """D10: filters share one of two attributes; return the number of entries, and deliveries."""
    net = net_of(broker, seed, {"p": "b0", "c": "b2", "d": "b2"})
    net.regular("p", adv("a", "x = 2 and y = 1"))
    net.regular("c", sub("c", "x = 1 and y = 1"))
    net.regular("d", sub("d", "x > 1 and y = 1"))
    net.settle()
    net.regular("p", pub("event", x=2, y=1))
    net.settle()
    entries = sum(len(net.broker(name).tables.subscriptions) for name in net.tree)
    return entries, net.payloads("c") + net.payloads("d")


def one_place_only(seed: int, broker: type[TransactionBroker]) -> bool:
    """D10: return whether a plan waits forever for a subscription that is not forwarded."""
    net = net_of(broker, seed, {"p": "b0", "c": "b2"})
    net.regular("p", adv("a", "x = 2 and y = 1"))
    net.settle()
    net.start("c", sub("c", "x = 1 and y = 1"), isolation="planned")
    net.settle()
    return bool(net.broker("b0").open_transactions)


class _OneAttributeInOnePlace(algorithm_four.Waiting):
    def _is_satisfiable(self, plan: Any, operation: Any) -> bool:
        with mock.patch.object(Filter, "overlaps", published.one_attribute_is_enough):
            return super()._is_satisfiable(plan, operation)


class OneAttributeInOnePlace(AlgorithmFour):
    """Definition 1 where operations are awaited, all attributes where they are forwarded."""

    plans_type = _OneAttributeInOnePlace


def test_d10_filters_overlap_if_all_attributes_do() -> None:
    ours = overlapping(0, TransactionBroker)
    with (
        mock.patch.object(Filter, "overlaps", published.one_attribute_is_enough),
        mock.patch.object(MatchIndex, "overlapping", published.all_that_overlap),
        mock.patch.object(MatchIndex, "overlaps", published.any_that_overlaps),
    ):
        theirs = overlapping(0, TransactionBroker)
        assert count(one_place_only, AlgorithmFour, range(5)) == 0, "everywhere the same"
    assert theirs[1] == ours[1] == ["event"]
    assert theirs[0] > ours[0], "tables hold unneeded entries"
    assert count(one_place_only, OneAttributeInOnePlace, range(5)) == 5
    assert count(one_place_only, TransactionBroker, range(5)) == 0


def regular_meanwhile(seed: int, broker: type[TransactionBroker]) -> bool:
    """D11: regular changes while a transaction commits; return whether tables differ."""
    net = net_of(broker, seed, {"c0": "b0", "c1": "b2", "c2": "b1"})
    net.regular("c2", adv("old", "x exists"))
    net.settle()
    net.start("c0", adv("a", "x exists"), sub("s", "x = 1"), isolation="serializable")
    acts = [("c1", sub("r", "x = 2")), ("c2", uadv("old"))]
    while net.step() or acts:
        if acts and net.random.random() < 0.02:
            net.regular(*acts.pop())
    if net.outcome():
        return False  # It was seen, and is a conflict.
    return bool(list(table_faults({name: net.broker(name) for name in net.tree})))


def test_d11_regular_changes_during_a_transaction_are_corrected() -> None:
    with mock.patch.object(two_phase_commit, "fixes", return_value={}):
        assert count(regular_meanwhile, TransactionBroker) > 0
    assert count(regular_meanwhile, TransactionBroker) == 0


def test_abort_without_isolation_is_compensated() -> None:
    def bad(seed: int, broker: type[TransactionBroker]) -> bool:
        return aborted(seed, broker, isolation="atomic")

    assert count(bad, published.NothingIsUndone, range(10)) == 10
    assert count(bad, TransactionBroker, range(10)) == 0
