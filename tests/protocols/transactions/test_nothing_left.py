"""Of what is over nothing is kept: not at brokers, not at clients, and not on their disks."""

import pytest

from .harness import TransactionNet, line

SECOND = 10**9
HOMES = {"c0": "b0", "c1": "b1"}


def net_of_two() -> TransactionNet:
    """Return two brokers, with a client each."""
    return TransactionNet(line(2), HOMES)


def begun(net: TransactionNet, isolation: str) -> str:
    """Have c0 begin a transaction; return its name."""
    net.command("c0", lambda node, now: node.begin(isolation, SECOND, now_ns=now))
    net.settle()
    name: str = net.told["c0"][-1].transaction
    return name


def invite_c1(net: TransactionNet, name: str) -> None:
    """Have c0 invite c1 into a transaction."""
    net.command("c0", lambda node, now: node.invite(name, "c1", now_ns=now))
    net.settle()


@pytest.mark.parametrize("isolation", ["serializable", "atomic"])
def test_an_invitation_that_is_open_at_the_end_is_forgotten(isolation: str) -> None:
    net = net_of_two()
    net.on_told = None  # Nobody does anything: c1 never finishes.
    for _ in range(3):
        invite_c1(net, begun(net, isolation))
        net.elapse(2 * SECOND)
    for broker in net.tree:
        assert not net.broker(broker)._causes, broker
    net.crash("b1")
    net.settle()
    assert not net.broker("b1")._causes
    net.at_rest()
