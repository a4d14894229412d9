"""Events under an advertisement that has not reached all brokers reach all subscribers, or none.

It attracts subscriptions from everywhere. Events of transactions are refused before, and others are
sent to brokers that have not answered it.
"""

from collections.abc import Callable

import pytest
from tests.protocols.transactions.harness import TransactionNet, adv, line, pub, sub, uadv

HOMES = {"c1": "b0", "c2": "b1", "c3": "b3"}
Spread = Callable[[TransactionNet], None]


def by_itself(net: TransactionNet) -> None:
    net.regular("c3", adv("a", "x exists"))


def within_an_atomic_transaction(net: TransactionNet) -> None:
    net.start("c3", adv("a", "x exists"), isolation="atomic")


def after_an_abort(net: TransactionNet) -> None:
    net.regular("c3", adv("a", "x exists"))
    net.settle()
    net.start("c3", uadv("a"), isolation="atomic", commit=False)
    while not net.application.outcomes:
        net.step()


def in_a_plan(net: TransactionNet) -> None:
    net.start("c3", adv("a", "x exists"), isolation="planned")


@pytest.mark.parametrize("isolation", ["atomic", "serializable", "planned"])
@pytest.mark.parametrize("advertise", [by_itself, within_an_atomic_transaction, in_a_plan])
def test_event_under_an_advertisement_on_its_way_reaches_all_or_none(
    advertise: Spread, isolation: str
) -> None:
    refused = 0
    for seed in range(120):
        net = TransactionNet(line(4), HOMES, seed=seed)
        for client in HOMES:
            net.regular(client, sub("s", "x = 1"))
        net.settle()
        advertise(net)
        for _ in range(seed % 40):
            net.step()
        if seed % 3 == 0:
            net.crash("b3")
        net.start("c3", sub("t", "x = 2"), pub("one", x=1), isolation=isolation)
        net.settle()
        (why,) = (wrong for spec, wrong in net.application.outcomes if len(spec.acts) == 2)
        for client in HOMES:
            assert net.payloads(client) == ["one"] * (not why), (seed, client)
        wrong = (*net.answers("c3").values(), why)
        refused += any("has not reached all brokers" in each for each in wrong)
        net.at_rest()
        assert not net.broker("b3").tables.spreading
        assert net.run("c3", pub("two", x=1), isolation=isolation) == ""
        for client in HOMES:
            assert net.payloads(client)[-1] == "two", (seed, client)
    assert refused


@pytest.mark.parametrize("advertise", [by_itself, within_an_atomic_transaction, after_an_abort])
def test_event_outside_transactions_does_not_wait_for_an_advertisement(advertise: Spread) -> None:
    sent = 0
    for seed in range(120):
        net = TransactionNet(line(4), HOMES, seed=seed)
        for client in HOMES:
            net.regular(client, sub("s", "x = 1"))
        net.settle()
        advertise(net)
        for _ in range(seed % 20):
            net.step()
        if seed % 3 == 0:
            net.crash("b3")
        published = bool(net.broker("b3").tables.advertisements)
        waits = bool(net.broker("b3").tables.spreading)
        net.regular("c3", pub("one", x=1))
        if net.flying["c3", "b3"]:
            net.step_on(("c3", "b3"))
        net.settle()
        got = [net.payloads(client) for client in HOMES]
        assert got in ([["one"]] * 3, [[]] * 3), seed
        assert got[0] or not published, seed
        sent += waits and bool(got[0])
        net.at_rest()
    assert sent
