"""The paper: one test for each definition, rule, algorithm and scenario."""

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

from ensue.protocols.content.frames import Change, Operate
from ensue.protocols.transactions.frames import sequence_of

KINDS = ("serializable", "atomic", "planned")


def dispatching(seed: int = 0) -> TransactionNet:
    """Figure 1: environment E, dispatcher D, agent A, on three brokers; E advertises instances."""
    net = TransactionNet(line(3), {"E": "b0", "D": "b1", "A": "b2"}, seed=seed)
    net.regular("E", adv("instances", "process = 'p1'"))
    net.settle()
    net.regular("D", sub("D", "process = 'p1' and instance = 'x1'"))
    net.settle()
    return net


DISPATCH = (
    invite(
        "D",
        invite("A", sub("A", "process = 'p1' and instance = 'x1'")),
        usub("D"),
    ),
    pub("update", process="p1", instance="x1", step=1),
)


@pytest.mark.parametrize("isolation", KINDS)
@pytest.mark.parametrize("seed", range(15))
def test_figure_1_update_goes_to_the_agent_only(isolation: str, seed: int) -> None:
    net = dispatching(seed)
    assert net.run("E", *DISPATCH, isolation=isolation) == ""
    assert net.payloads("A") == ["update"]
    assert net.payloads("D") == []
    net.at_rest()
    net.regular("E", pub("later", process="p1", instance="x1", step=2))
    net.settle()
    assert net.payloads("A") == ["update", "later"]
    assert net.payloads("D") == []


@pytest.mark.parametrize("isolation", KINDS)
@pytest.mark.parametrize("seed", range(10))
def test_figure_2_operations_come_in_sequential_order(isolation: str, seed: int) -> None:
    """a1 attracts s1, t1 triggers s2, then p1: all brokers process them so; s1 and s2 get p1."""
    net = TransactionNet(line(3), {"c1": "b0", "c2": "b1", "c3": "b2"}, seed=seed)
    net.regular("c2", sub("s1", "x exists"))
    net.settle()
    assert not net.broker("b0").tables.subscriptions
    assert (
        net.run(
            "c1",
            adv("a1", "x exists or y exists"),
            invite("c3", sub("s2", "y = 1")),
            pub("p1", x=1, y=1),
            isolation=isolation,
        )
        == ""
    )
    assert net.payloads("c2") == ["p1"]
    assert net.payloads("c3") == ["p1"]
    assert_sequential(net)
    net.at_rest()


def assert_sequential(net: TransactionNet) -> None:
    """Definition 6: each broker processes all of an operation before any of a later one."""
    seen: dict[tuple[str, str], list[tuple[int, ...]]] = {}
    for row in net.rows:
        if row["action"] == "received":
            name, _, path = row["event"].partition("#")
            seen.setdefault((row["node"], name), []).append(sequence_of(path))
    for where, paths in seen.items():
        assert paths == sorted(paths), where


@pytest.mark.parametrize("isolation", KINDS)
def test_definition_3_atomicity_an_abort_leaves_nothing(isolation: str) -> None:
    net = dispatching()
    before = [net.broker(name).tables.record() for name in net.tree]
    options = {"hold": True} if isolation == "planned" else {}
    wrong = net.run("E", *DISPATCH, isolation=isolation, commit=False, **options)
    assert wrong == "aborted"
    assert net.payloads("A") == net.payloads("D") == []
    assert [net.broker(name).tables.record() for name in net.tree] == before
    net.at_rest()
    net.regular("E", pub("later", process="p1", instance="x1"))
    net.settle()
    assert net.payloads("D") == ["later"]


@pytest.mark.parametrize("isolation", KINDS)
def test_definition_3_durability_commit_survives_crashes_of_all_nodes(isolation: str) -> None:
    net = dispatching()
    assert net.run("E", *DISPATCH, isolation=isolation) == ""
    before = [net.broker(name).tables.record() for name in net.tree]
    for name in list(net.nodes):
        net.crash(name)
    net.settle()
    assert [net.broker(name).tables.record() for name in net.tree] == before
    net.regular("E", pub("later", process="p1", instance="x1"))
    net.settle()
    assert net.payloads("A") == ["update", "later"]


def test_definition_4_a_step_is_applied_completely_before_it_is_answered() -> None:
    """Algorithm 2: an operation is acknowledged when all that it caused is acknowledged."""
    for seed in range(20):
        net = dispatching(seed)
        net.start(
            "E", sub("mine", "process = 'p1'"), pub("x", process="p1"), isolation="serializable"
        )
        while not any(row["action"] == "received" for row in net.rows):
            assert net.step()
        net.settle()
        assert net.outcome() == ""
        assert net.payloads("E") == ["x"]


def test_definition_5_who_may_act() -> None:
    """A client that was not invited, or has finished, cannot act in the transaction."""
    net = dispatching()
    net.start("E", invite("D", invite("A")), isolation="serializable", timeout_ns=10**11)
    net.settle()
    (name,) = net.application.names_of
    number, _ = net.command(
        "A",
        lambda node, now: node.act(name, "sub", within="1", where="x = 1", now_ns=now),
    )
    net.settle()
    assert net.answers("A")[number] == "the transaction is over"
    assert net.outcome() == ""


def test_definition_6_paths_are_in_sequential_order() -> None:
    paths = ["1", "2", "2.1", "2.1.1", "2.2", "3", "10"]
    assert sorted(paths, key=sequence_of) == paths


def test_a_client_sends_the_next_operation_when_the_last_was_answered() -> None:
    """Rule thread, however fast the application is."""
    net = dispatching()
    number = net.command("E", lambda node, now: node.begin("serializable", 10**9, now_ns=now))
    net.settle()
    assert net.answers("E")[number] == ""
    name = f"{1:010d}-b0"
    for at in range(3):
        net.command(
            "E",
            lambda node, now, where=f"x = {at}": node.act(  # type: ignore[misc]
                name, "sub", where=where, now_ns=now
            ),
        )
    client = net.client("E")
    assert [frame.path for frame in client.content.asked.values()] == ["1", "2", "3"]
    assert client.threads.open[f"{name}|"].queue, "two wait"
    net.settle()
    assert not client.threads.open[f"{name}|"].queue
    assert_sequential(net)


@pytest.mark.parametrize("seed", range(40))
def test_isolation_the_second_schedule_never_happens(seed: int) -> None:
    """Section III.C: while a subscription moves from c3 to c2, an event reaches exactly one."""
    net = TransactionNet(line(3), {"c1": "b0", "c2": "b1", "c3": "b2"}, seed=seed)
    net.regular("c1", adv("a", "x exists"))
    net.regular("c3", sub("s", "x = 1"))
    net.settle()
    net.start("c2", sub("new", "x = 1"), invite("c3", usub("s")), isolation="serializable")
    published = 0
    while net.step():
        if published < 40 and net.random.random() < 0.3:
            net.regular("c1", pub(f"r{published}", x=1))
            published += 1
    assert net.outcome() == ""
    got = net.payloads("c2") + net.payloads("c3")
    assert sorted(got) == sorted(f"r{number}" for number in range(published)), seed
    net.at_rest()


def test_isolation_uncommitted_changes_are_invisible() -> None:
    net = dispatching()
    net.start(
        "E", sub("mine", "process = 'p1'"), invite("A"), pub("secret", process="p1", instance="x1"),
        isolation="serializable",
    )  # fmt: skip
    while not net.application.outcomes:
        for name in net.tree:
            assert net.broker(name).version in (0, 1)
        if not any(net.broker(name).version for name in net.tree):
            assert not net.payloads("E")
            assert not net.payloads("D")
        if not net.step():
            break
    net.settle()
    assert net.payloads("E") == ["secret"]


@pytest.mark.parametrize("isolation", KINDS)
def test_all_operations_within_one_transaction(isolation: str) -> None:
    net = TransactionNet(line(4), {"a": "b0", "b": "b2", "c": "b3"})
    net.regular("a", adv("old", "x exists"))
    net.regular("b", sub("s", "x = 1"))
    net.settle()
    acts = (
        uadv("old"),
        adv("new", "y exists"),
        invite("b", usub("s"), sub("t", "y = 1"), invite("c", sub("u", "y >= 1"))),
        pub("y", y=1),
    )
    assert net.run("a", *acts, isolation=isolation) == ""
    assert net.payloads("b") == ["y"]
    assert net.payloads("c") == ["y"]
    assert len(net.broker("b3").tables.advertisements) == 1
    assert_sequential(net)
    net.at_rest()


def test_operation_of_an_unknown_client_is_ignored() -> None:
    net = dispatching()
    net.nodes["b0"].broker.receive(
        Operate(number=1, change=Change("sub", "z", "x = 1")), source="z", now_ns=1
    )
    assert not net.nodes["b0"].broker.take_effects()
