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
