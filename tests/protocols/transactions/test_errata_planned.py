"""Each published fault of S-TX, shown as published and fixed in ours.

Each runs on the schedules of one scenario.
"""

import pytest
from tests.protocols.transactions import published
from tests.protocols.transactions.algorithm_four import (
    AlgorithmFour,
    Endless,
    EveryDependency,
    TheSameHop,
    TheWholeMap,
)
from tests.protocols.transactions.harness import adv, invite, pub, sub, usub
from tests.protocols.transactions.schedules import SEEDS, aborted, count, figure_1, net_of

from ensue.protocols.transactions.broker import TransactionBroker
from ensue.simulation.deployments.transactions import table_faults


def dispatched(seed: int, broker: type[TransactionBroker]) -> bool:
    """S1 and S2: return whether the plan of Figure 1 is blocked, or its update lost."""
    return figure_1(seed, broker, isolation="planned")


def test_s1_dependency_comes_from_another_hop() -> None:
    assert count(dispatched, TheSameHop) == SEEDS
    assert count(dispatched, AlgorithmFour) == 0
    assert count(dispatched, TransactionBroker) == 0


def test_s2_only_satisfiable_dependencies_are_awaited() -> None:
    assert count(dispatched, EveryDependency) == SEEDS
    assert count(dispatched, AlgorithmFour) == 0


def test_s2_processed_operations_are_not_processed_again() -> None:
    """Two operations are enough."""
    net = net_of(TheWholeMap, 0, {"a": "b0"}, 1)
    with pytest.raises(Endless):
        net.run("a", adv("a", "x exists"), sub("s", "x = 1"), isolation="planned")
    net = net_of(TransactionBroker, 0, {"a": "b0"}, 1)
    assert net.run("a", adv("a", "x exists"), sub("s", "x = 1"), isolation="planned") == ""


def overtaken(seed: int, broker: type[TransactionBroker]) -> bool:
    """S3: return whether an unsubscription overtakes the publication before it."""
    net = net_of(broker, seed, {"a": "b0", "c": "b2"})
    net.regular("a", adv("a", "x exists"))
    net.regular("c", sub("s", "x = 1"))
    net.settle()
    net.run("a", pub("first", x=1), invite("c", usub("s")), isolation="planned")
    return net.payloads("c") != ["first"]


def test_s3_all_dependencies_are_awaited() -> None:
    assert count(overtaken, published.OnlySubscriptionsAreAwaited) > 0
    assert count(overtaken, TransactionBroker) == 0


def overlapping_plans(seed: int, broker: type[TransactionBroker]) -> bool:
    """S4: one plan advertises what another subscribes to; return if it hangs or tables differ."""
    net = net_of(broker, seed, {"a": "b0", "c": "b2"})
    net.start("a", adv("a", "x exists"), isolation="planned")
    net.start("c", sub("s", "x = 1"), isolation="planned")
    net.settle()
    brokers = {name: net.broker(name) for name in net.tree}
    blocked = any(broker.open_transactions for broker in brokers.values())
    return blocked or bool(list(table_faults(brokers)))


def test_s4_markers_replace_operations_that_are_not_forwarded() -> None:
    assert count(overlapping_plans, AlgorithmFour) > 0
    assert count(overlapping_plans, TransactionBroker) == 0


def figure_2(seed: int, broker: type[TransactionBroker]) -> bool:
    """S5: return whether a publication misses subscriptions that its advertisement attracts."""
    net = net_of(broker, seed, {"c1": "b0", "c2": "b2"})
    net.regular("c2", sub("s1", "x exists"))
    net.settle()
    net.run("c1", adv("a1", "x exists"), pub("p1", x=1), isolation="planned")
    return net.payloads("c2") != ["p1"]


def test_s5_advertisement_waits_for_attracted_subscriptions() -> None:
    assert count(figure_2, published.EchoesAreNotAwaited) > 0
    assert count(figure_2, TransactionBroker) == 0


def test_s6_compensation_runs_backwards() -> None:
    def bad(seed: int, broker: type[TransactionBroker]) -> bool:
        return aborted(seed, broker, isolation="planned", hold=True)

    assert count(bad, published.CompensatedInTheSameOrder, range(10)) == 10
    assert count(bad, TransactionBroker, range(10)) == 0


def withdrawn_too_early(seed: int, broker: type[TransactionBroker]) -> bool:
    """S7: one plan subscribes after a slow operation, another withdraws it; return if it stays."""
    net = net_of(broker, seed, {"a": "b0", "c": "b2"})
    net.regular("a", adv("a", "x exists"))
    net.settle()
    net.start("c", invite("a", pub("slow", x=5)), sub("u", "x = 1"), isolation="planned")
    net.start("c", usub("u"), isolation="planned")
    net.settle()
    assert [wrong for _, wrong in net.application.outcomes] == ["", ""]
    net.at_rest()
    return any(net.broker(name).tables.subscriptions for name in net.tree)


def test_s7_unsubscription_waits_for_a_waiting_subscription() -> None:
    assert count(withdrawn_too_early, published.WaitsForNoOtherPlan) > 0
    assert count(withdrawn_too_early, TransactionBroker) == 0


def test_s7_waits_for_another_plan_survive_a_crash() -> None:
    """A broker restored from its snapshot, not its inputs, knows which plans wait."""
    crashes = 0
    for seed in range(SEEDS):
        net = net_of(TransactionBroker, seed, {"a": "b0", "c": "b2"})
        net.regular("a", adv("a", "x exists"))
        net.settle()
        net.start("c", invite("a", pub("slow", x=5)), sub("u", "x = 1"), isolation="planned")
        net.start("c", usub("u"), isolation="planned")
        crashed: set[str] = set()
        while net.step():
            for name in net.tree:
                broker = net.broker(name)
                if name not in crashed and len(broker.plans.blocked) > 1:
                    broker.log.write_snapshot()
                    net.drain(name)
                    net.crash(name)
                    assert net.broker(name).plans.blocked == broker.plans.blocked
                    crashed.add(name)
        crashes += len(crashed)
        assert [wrong for _, wrong in net.application.outcomes] == ["", ""], seed
        net.at_rest()
        assert not any(net.broker(name).tables.subscriptions for name in net.tree), seed
    assert crashes
