"""Count the schedules of one scenario that fail with some broker, for the tests of the errata."""

from collections.abc import Callable, Iterable
from typing import Any

from tests.protocols.transactions.harness import TransactionNet, adv, line, sub, usub
from tests.protocols.transactions.test_paper import DISPATCH

from ensue.protocols.transactions.broker import TransactionBroker

SEEDS = 40
Bad = Callable[[int, type[TransactionBroker]], bool]


def count(bad: Bad, broker: type[TransactionBroker], seeds: Iterable[int] = range(SEEDS)) -> int:
    """Return how many schedules fail."""
    return sum(bad(seed, broker) for seed in seeds)


def net_of(
    broker: type[TransactionBroker], seed: int, homes: dict[str, str], brokers: int = 3
) -> TransactionNet:
    net = TransactionNet(line(brokers), homes, seed=seed, broker_type=broker)
    net.settle()
    return net


def figure_1(seed: int, broker: type[TransactionBroker], **options: Any) -> bool:
    """Return whether the paper's own example fails."""
    net = net_of(broker, seed, {"E": "b0", "D": "b1", "A": "b2"})
    net.regular("E", adv("instances", "process = 'p1'"))
    net.settle()
    net.regular("D", sub("D", "process = 'p1' and instance = 'x1'"))
    net.settle()
    net.start("E", *DISPATCH, **{"isolation": "serializable", **options})
    net.settle()
    return (
        not net.application.outcomes
        or net.outcome() != ""
        or net.payloads("A") != ["update"]
        or any(net.broker(name).open_transactions for name in net.tree)
    )


def aborted(seed: int, broker: type[TransactionBroker], **options: Any) -> bool:
    """D-TX_NI and S6: return whether an aborted {sub u, usub u, usub s} leaves anything behind."""
    net = net_of(broker, seed, {"a": "b0", "c": "b2"})
    net.regular("a", adv("a", "x exists"))
    net.regular("c", sub("s", "x = 1"))
    net.settle()
    before = [sorted(net.broker(name).tables.subscriptions) for name in net.tree]
    net.run("c", sub("u", "x = 2"), usub("u"), usub("s"), commit=False, **options)
    return [sorted(net.broker(name).tables.subscriptions) for name in net.tree] != before
