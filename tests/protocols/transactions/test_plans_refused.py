"""Plans with an operation that a home cannot issue any more have no effect anywhere."""

from collections.abc import Callable

import pytest
from tests.protocols.transactions.harness import (
    TransactionNet,
    adv,
    invite,
    line,
    pub,
    sub,
    uadv,
    usub,
)

from ensue.protocols.content.client import Answered
from ensue.protocols.content.config import ContentConfig
from ensue.protocols.content.frames import Change
from ensue.protocols.transactions import frames as t
from ensue.simulation.deployments.transaction_clients import Act

HOMES = {"c1": "b0", "c2": "b1", "c3": "b3"}


def net_of(seed: int) -> TransactionNet:
    """Return a line of brokers; c3, at its end, advertises x."""
    net = TransactionNet(line(4), HOMES, seed=seed)
    net.regular("c3", adv("a", "x exists"))
    net.settle()
    return net


def is_expelled(net: TransactionNet) -> None:
    """Expire c3 at its home; no other broker knows yet."""
    net.nodes["b3"].broker.expire("c3", now_ns=net.now_ns)
    net.drain("b3")


def withdraws(net: TransactionNet) -> None:
    """Withdraw at c3's home; no other broker knows yet."""
    net.regular("c3", uadv("a"))
    while net.broker("b3").tables.advertisements:
        net.step_on(("c3", "b3"))


def hand_in(net: TransactionNet, *acts: Act) -> None:
    """Submit a plan to c1's home before any other frame arrives there."""
    net.start("c1", *acts, isolation="planned")
    while not net.broker("b0").open_transactions:
        net.step_on(("c1", "b0"))
    net.settle()


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(
    ("happens", "why"),
    [(is_expelled, "c3 is gone"), (withdraws, "no advertisement of c3 covers it")],
)
def test_plan_is_aborted_if_a_client_cannot_do_its_part(
    happens: Callable[[TransactionNet], None], why: str, seed: int
) -> None:
    """Seed 11453 of the swarm: a plan committed although its publishing client was gone."""
    net = net_of(seed)
    happens(net)
    assert net.broker("b0").tables.advertisements, "where plans are handed in"
    hand_in(
        net,
        sub("s", "x = 1"),
        invite("c3", pub("one", x=1), sub("t", "x = 2")),
        invite("c2", sub("u", "x = 1")),
    )
    assert net.outcome() == why
    decided = [row for row in net.rows if row["action"] in ("committed", "aborted")]
    assert {row["node"] for row in decided if row["node"] in net.tree} == set(net.tree)
    assert {row["action"] for row in decided} == {"aborted"}
    assert not [row for row in net.rows if row["action"] == "published"], (
        "no publication is recorded"
    )
    assert net.payloads("c1") == net.payloads("c2") == []
    for name in net.tree:
        assert not net.broker(name).tables.subscriptions, name
    net.at_rest()


@pytest.mark.parametrize("seed", range(10))
def test_other_operations_of_an_aborted_plan_are_undone(seed: int) -> None:
    """Operations of others before and after the refused one are undone in all tables."""
    net = net_of(seed)
    is_expelled(net)
    hand_in(
        net,
        adv("b", "y exists"),
        invite("c2", sub("u", "y = 1")),
        pub("before", y=1),
        invite("c3", pub("one", x=1)),
        pub("after", y=1),
    )
    assert net.outcome() == "c3 is gone"
    assert net.payloads("c2") == []
    for name in net.tree:
        assert not net.broker(name).tables.subscriptions, name
        assert not net.broker(name).tables.advertisements, name
    net.at_rest()
    net.regular("c1", adv("b", "y exists"))
    net.regular("c2", sub("u", "y = 1"))
    net.settle()
    assert net.run("c1", pub("again", y=1), isolation="planned") == ""
    assert net.payloads("c2") == ["again"]


@pytest.mark.parametrize("isolation", ["atomic", "planned"])
def test_restored_advertisement_is_usable_once_it_is_at_all_brokers(
    isolation: str,
) -> None:
    """Seed 13397 of the swarm: a publication under a restored advertisement reached only some.

    One transaction withdrew the advertisement and was aborted; another published meanwhile.
    """
    refused = 0
    for seed in range(300):
        net = net_of(seed)
        net.regular("c1", sub("s", "x = 1"))
        net.regular("c2", sub("s", "x = 1"))
        net.settle()
        net.start("c3", uadv("a"), isolation="atomic", commit=False)
        for _ in range(seed % 70):
            net.step()
        net.start("c3", sub("t", "x = 2"), pub("one", x=1), isolation=isolation)
        net.settle()
        (why,) = (wrong for spec, wrong in net.application.outcomes if spec.commit)
        assert net.payloads("c1") == net.payloads("c2") == ["one"] * (not why), seed
        refused += any("has not reached all brokers" in each for each in net.answers("c3").values())
        net.at_rest()
        assert not net.broker("b3").tables.spreading
        assert net.run("c3", pub("two", x=1), isolation=isolation) == ""
        assert net.payloads("c1")[-1:] == net.payloads("c2")[-1:] == ["two"]
    assert refused


def test_plan_with_an_unknown_action_is_refused() -> None:
    """If accepted it could not be undone: its broker failed at the abort and at every restart."""
    net = net_of(1)
    net.regular("c1", sub("s", "x = 1"))
    net.settle()
    change = Change("bogus", net.application.names["s"])
    operation = t.Operation(path="1", client="c1", change=change)
    net.command("c1", lambda node, now: node.submit([operation], 10**9, now_ns=now, hold=True))
    net.settle()
    assert net.notified["c1"][-1].refused == "operation 1: there is no action 'bogus'"
    net.crash("b0")
    net.settle()
    net.at_rest()


@pytest.mark.parametrize("isolation", ["serializable", "atomic"])
def test_operation_with_an_unknown_action_is_refused(isolation: str) -> None:
    net = net_of(1)
    net.regular("c1", sub("s", "x = 1"))
    net.settle()
    name = net.application.names["s"]
    net.command("c1", lambda node, now: node.begin(isolation, 10**9, now_ns=now))
    net.settle()
    begun = net.notified["c1"][-1].transaction
    net.command("c1", lambda node, now: node.act(begun, "bogus", name=name, now_ns=now))
    net.settle()
    net.command("c1", lambda node, now: node.end(begun, commit=False, now_ns=now))
    net.settle()
    refused = [one.refused for one in net.notified["c1"] if isinstance(one, Answered)]
    assert "there is no action 'bogus'" in refused
    net.crash("b0")
    net.settle()
    net.at_rest()


def limited(subscriptions_max: int) -> TransactionNet:
    """Return the same line of brokers, with room for a few subscriptions each."""
    config = ContentConfig(lease_ns=10**15, beat_ns=10**14, subscriptions_max=subscriptions_max)
    return TransactionNet(line(4), HOMES, config=config)


def test_plan_is_aborted_if_a_broker_has_no_room_for_its_subscriptions() -> None:
    net = limited(2)
    net.regular("c3", sub("s", "x = 1"))
    net.settle()
    why = "the broker of c3 has too many subscriptions (limit subscriptions_max=2): withdraw some"
    acts = (sub("t", "x = 1"), invite("c3", sub("u", "x = 1"), sub("v", "x = 1")))
    assert net.run("c1", *acts, isolation="planned") == why
    held = {name: list(net.broker(name).tables.subscriptions) for name in net.tree}
    assert held == {"b0": [], "b1": [], "b2": [], "b3": [net.application.names["s"]]}
    net.at_rest()


def test_earlier_withdrawals_of_a_plan_make_room() -> None:
    net = limited(2)
    net.regular("c1", sub("s", "x = 1"))
    net.regular("c1", sub("t", "x = 1"))
    net.settle()
    assert net.run("c1", usub("s"), sub("u", "x = 1"), isolation="planned") == ""
    assert len(net.broker("b0").tables.subscriptions) == 2
    net.at_rest()


@pytest.mark.parametrize("isolation", ["planned", "atomic", ""])
def test_advertisements_have_a_limit(isolation: str) -> None:
    config = ContentConfig(lease_ns=10**15, beat_ns=10**14, advertisements_max=2)
    net = TransactionNet(line(4), HOMES, config=config)
    net.regular("c3", adv("a", "x = 1"))
    net.regular("c3", adv("b", "x = 2"))
    net.settle()
    why = "the broker of c1 has too many advertisements (limit advertisements_max=2): withdraw some"
    if isolation:
        result = net.run("c1", adv("c", "x = 3"), isolation=isolation)
        assert result == (why if isolation == "planned" else "aborted")
    else:
        net.regular("c1", adv("c", "x = 3"))
        net.settle()
        assert why in [one.refused for one in net.notified["c1"] if isinstance(one, Answered)]
    for name in net.tree:
        assert len(net.broker(name).tables.advertisements) == 2
    net.regular("c3", uadv("a"))
    net.settle()
    net.regular("c1", adv("d", "x = 3"))
    net.settle()
    assert len(net.broker("b3").tables.advertisements) == 2
    net.at_rest()
