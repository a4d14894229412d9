"""Transactions that withdraw the same subscription or advertisement: at most one commits.

In any serial order the second would be refused. Two commits would move one subscription to two
clients, and the second client would miss events that were published between the commits.
"""

from collections import Counter

import pytest
from tests.protocols.transactions.harness import (
    MS,
    TransactionNet,
    adv,
    invite,
    line,
    random_tree,
    sub,
    uadv,
    usub,
)

from ensue.protocols.content.frames import SUBSCRIBE, UNSUBSCRIBE, Change
from ensue.protocols.transactions.client import Ceased, Concluded
from ensue.protocols.transactions.frames import Operation
from ensue.simulation.deployments.transaction_clients import Act

SEEDS = 25
KINDS = ("serializable", "atomic", "planned")


def net_of(brokers: int, seed: int) -> TransactionNet:
    """Return a tree on which `old` has a subscription and an advertisement."""
    random = TransactionNet(line(1), {}, seed=seed).random
    tree = random_tree(random, brokers)
    homes = {name: random.choice(sorted(tree)) for name in ("old", "b", "c", "publisher")}
    net = TransactionNet(tree, homes, seed=seed)
    net.regular("publisher", adv("a", "x exists"))
    net.settle()
    net.regular("old", sub("old", "x exists"))
    net.regular("old", adv("its", "y exists"))
    net.settle()
    return net


def both(net: TransactionNet, kinds: tuple[str, str], withdraw: Act, *, commit: bool) -> int:
    """Have two clients withdraw the same of `old` at once; return how many were committed.

    Without `commit`, the first changes its mind.
    """
    for client, kind in zip("bc", kinds, strict=True):
        acts = (sub(client, "x exists"), invite("old", withdraw))
        commits = commit or client == "c"
        net.start(client, *acts, isolation=kind, commit=commits, hold=not commits)
        for _ in range(net.random.randrange(40)):
            net.step()
    net.settle()
    for _ in range(20):
        net.elapse(50 * MS)  # Refused ones are opened again.
    net.at_rest()
    return sum(not refused for _, refused in net.application.outcomes)


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("withdraw", [usub("old"), uadv("its")], ids=["usub", "uadv"])
@pytest.mark.parametrize("brokers", [1, 3])
@pytest.mark.parametrize("one", KINDS)
@pytest.mark.parametrize("other", KINDS)
def test_one_of_two_withdrawals_takes_effect(
    one: str, other: str, brokers: int, withdraw: Act, *, commit: bool
) -> None:
    counts = Counter[int]()
    for seed in range(SEEDS):
        net = net_of(brokers, seed)
        committed = both(net, (one, other), withdraw, commit=commit)
        counts[committed] += 1
        tables, name = net.broker(net.homes["old"]).tables, net.application.names[withdraw.label]
        is_there = name in tables.subscriptions or name in tables.advertisements
        assert is_there == (not committed), seed
    assert set(counts) <= {0, 1}, counts
    assert counts[1], counts


@pytest.mark.parametrize("kind", KINDS[1:])
def test_planned_subscription_that_another_transaction_withdrew_has_ended(kind: str) -> None:
    """Its client hears of it at the commit of the plan: after that, it does not count its events.

    The swarm of transactions found it with seed 701.
    """
    net = TransactionNet(line(2), {"a": "b0", "c": "b1"})
    net.on_notified = None
    made = Operation(path="1", client="c", change=Change(SUBSCRIBE, "c.plan-1", "x = 1"))
    gone = Operation(path="1", client="c", change=Change(UNSUBSCRIBE, "c.plan-1"))
    net.command("a", lambda node, now: node.submit([made], 10**11, hold=True, now_ns=now))
    net.settle()
    name = net.notified["a"][-1].transaction
    if kind == "planned":
        net.command("a", lambda node, now: node.submit([gone], 10**11, now_ns=now))
    else:
        net.command("c", lambda node, now: node.begin(kind, 10**11, now_ns=now))
        net.settle()
        other = net.notified["c"][-1].transaction
        net.command("c", lambda node, now: node.act(other, "usub", name="c.plan-1", now_ns=now))
        net.settle()
        net.command("c", lambda node, now: node.end(other, commit=True, now_ns=now))
    net.settle()
    assert "c.plan-1" not in net.broker("b1").tables.subscriptions
    before = len(net.notified["c"])
    net.command("a", lambda node, now: node.end(name, commit=True, now_ns=now))
    net.settle()
    told = [one for one in net.notified["c"][before:] if isinstance(one, Concluded | Ceased)]
    assert [type(one) for one in told] == [Concluded, Ceased]
    assert net.client("c").subscriptions == ()
    net.at_rest()
