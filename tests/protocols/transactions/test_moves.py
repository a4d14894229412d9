"""Moving a subscription from one client to another: each event reaches one of the two.

A client reads a subscription until `Ceased`. So no event may come after that, and no event that
comes before it may be lost.
"""

from collections import Counter

import pytest
from tests.protocols.transactions.harness import (
    TransactionNet,
    adv,
    invite,
    line,
    pub,
    random_tree,
    sub,
    usub,
)

from ensue.protocols.content.client import Notified
from ensue.protocols.transactions.client import Ceased, Concluded
from ensue.simulation.deployments.transaction_clients import Act

EVENTS = 60
BROKERS = 4
SUBSCRIBE_FIRST = (invite("new", sub("new", "x exists")), usub("old"))
UNSUBSCRIBE_FIRST = (usub("old"), invite("new", sub("new", "x exists")))


def read(net: TransactionNet, client: str) -> list[str]:
    """Return the events read by a client until each subscription ceases; none may come later."""
    ceased: set[str] = set()
    found: list[str] = []
    for one in net.notified[client]:
        if isinstance(one, Ceased):
            ceased.update(one.subscriptions)
        elif isinstance(one, Notified):
            assert one.subscription not in ceased, "an event came behind the end"
            assert one.position, "an event came that its client does not count"
            found.append(one.publication.payload.decode())
    return found


def moved(
    net: TransactionNet, isolation: str, acts: tuple[Act, ...], *, crashes: bool = False
) -> Counter[str]:
    """Move a subscription while events are published; return how often each was read."""
    net.regular("publisher", adv("a", "x exists"))
    net.regular("old", sub("old", "x exists"))
    net.settle()
    for number in range(EVENTS):
        if number == EVENTS // 4:
            net.start("old", *acts, isolation=isolation)
        net.regular("publisher", pub(str(number), x=number))
        for _ in range(net.random.randrange(6)):
            net.step()
        if crashes and number % 7 == 0:
            net.crash(net.random.choice(sorted(net.tree)))
    net.settle()
    assert net.outcome() == ""
    net.at_rest()
    assert net.client("old").subscriptions == ()
    return Counter(read(net, "old") + read(net, "new"))


def net_of(seed: int) -> TransactionNet:
    net = TransactionNet(line(1), {}, seed=seed)  # For its random numbers.
    tree = random_tree(net.random, BROKERS)
    homes = {name: net.random.choice(sorted(tree)) for name in ("publisher", "old", "new")}
    return TransactionNet(tree, homes, seed=seed)


EACH_ONCE = {str(number): 1 for number in range(EVENTS)}


@pytest.mark.parametrize("crashes", [False, True])
@pytest.mark.parametrize("acts", [SUBSCRIBE_FIRST, UNSUBSCRIBE_FIRST], ids=["sub", "usub"])
@pytest.mark.parametrize("seed", range(12))
def test_serializable_move_neither_loses_nor_duplicates_events(
    seed: int, acts: tuple[Act, ...], *, crashes: bool
) -> None:
    assert moved(net_of(seed), "serializable", acts, crashes=crashes) == EACH_ONCE


@pytest.mark.parametrize("crashes", [False, True])
@pytest.mark.parametrize("isolation", ["atomic", "planned"])
@pytest.mark.parametrize("seed", range(12))
def test_move_without_isolation_that_subscribes_first_loses_no_event(
    isolation: str, seed: int, *, crashes: bool
) -> None:
    counts = moved(net_of(seed), isolation, SUBSCRIBE_FIRST, crashes=crashes)
    assert counts.keys() == EACH_ONCE.keys()


@pytest.mark.parametrize("isolation", ["serializable", "atomic", "planned"])
def test_single_broker_ends_a_withdrawn_subscription_with_the_transaction(
    isolation: str,
) -> None:
    net = TransactionNet(line(1), dict.fromkeys(("old", "new", "publisher"), "b0"))
    net.regular("old", sub("old", "x exists"))
    net.settle()
    assert net.run("old", *SUBSCRIBE_FIRST, isolation=isolation) == ""
    outcomes = [type(one) for one in net.notified["old"] if isinstance(one, Concluded | Ceased)]
    assert outcomes == [Concluded, Ceased]


def test_subscription_made_and_withdrawn_by_a_plan_ends_after_its_last_event() -> None:
    net = TransactionNet(line(2), {"publisher": "b0", "old": "b1", "new": "b1"})
    net.regular("publisher", adv("a", "x exists"))
    net.settle()
    held = {"isolation": "planned", "commit": False, "hold": True}
    net.start("old", invite("new", sub("new", "x exists")), **held)
    while not net.payloads("new"):
        net.regular("publisher", pub("early", x=1))
        net.step()
    net.settle()
    assert net.outcome() == "aborted"
    assert read(net, "new")
    assert [one.subscriptions for one in net.notified["new"] if isinstance(one, Ceased)] == [
        (net.application.names["new"],)
    ]
    assert net.client("new").subscriptions == ()
