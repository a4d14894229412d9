"""Clients and brokers that leave and return during transactions leave nothing behind."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from tests.protocols.transactions.harness import TransactionNet, adv, invite, line, pub, sub, uadv

from ensue.protocols.content.config import ContentConfig
from ensue.protocols.content.frames import Change
from ensue.protocols.shared.link import LinkConfig
from ensue.protocols.transactions.client import Concluded
from ensue.protocols.transactions.frames import Operation
from ensue.simulation.deployments.transaction_clients import Act

HOUR_NS = 3_600 * 10**9


def settle_but(net: TransactionNet, held: Callable[[tuple[str, str]], bool]) -> None:
    """Deliver all frames but those of blocked links."""
    while ready := [link for link, frames in net.flying.items() if frames and not held(link)]:
        net.step_on(net.random.choice(ready))


def away(broker: str) -> Callable[[tuple[str, str]], bool]:
    return lambda link: broker in link


def leave(net: TransactionNet, client: str) -> None:
    net.command(client, lambda node, now: node.leave(now_ns=now))


def begin(net: TransactionNet, client: str, kind: str = "atomic") -> str:
    """Begin a transaction that this test acts in; b2 may be away."""
    net.command(client, lambda node, now: node.begin(kind, 600 * 10**9, now_ns=now))
    settle_but(net, away("b2"))
    return str(net.notified[client][-1].transaction)


@pytest.mark.parametrize("act", [sub("v", "x = 1"), adv("v", "y exists")])
@pytest.mark.parametrize("seed", range(5))
def test_waiting_operations_of_a_departed_client_never_take_effect(act: Act, seed: int) -> None:
    """Its withdrawal, which is no part of the plan, overtakes it at the next broker (S7)."""
    net = TransactionNet(line(3), {"c": "b0", "d": "b1", "e": "b2"}, seed=seed)
    net.start("d", adv("a", "x exists"), invite("c", act), isolation="planned")
    settle_but(net, lambda link: link == ("b2", "b1"))
    leave(net, "c")
    settle_but(net, lambda link: link == ("b2", "b1"))
    net.settle()
    for name in net.tree:
        tables = net.broker(name).tables
        assert not [
            each for each in (*tables.subscriptions, *tables.advertisements) if each[0] == "c"
        ]
    assert not net.broker("b1").hold_of("b0")
    net.at_rest()


@pytest.mark.parametrize("restarts", [False, True])
def test_plan_for_a_client_of_an_abandoned_broker_is_aborted(*, restarts: bool) -> None:
    """The broker that abandoned it answers: no other broker knows that it has left."""
    net = TransactionNet(line(3), {f"c{number}": f"b{number}" for number in range(3)})
    leave(net, "c2")
    settle_but(net, lambda link: link == ("b1", "b0"))
    net.nodes["b1"].abandon("b2", now_ns=net.now_ns)
    net.drain("b1")
    tree: Any = net.tree
    del tree["b2"], net.nodes["b2"], net.nodes["c2"]
    tree["b1"] = ("b0",)
    if restarts:
        net.crash("b1")
    acts = (invite("c2", sub("u", "x = 7")), invite("c1", sub("v", "x = 8")))
    net.start("c0", *acts, isolation="planned")
    while not net.broker("b0").open_transactions:
        net.step_on(("c0", "b0"))
    net.settle()
    for _ in range(3):
        net.elapse(10**9)
    assert net.outcome() == "c2 is gone"
    net.at_rest()


def test_home_answers_for_a_departed_client_with_an_open_plan() -> None:
    net = TransactionNet(line(3), {"c0": "b0", "c1": "b1", "c2": "b2"})
    acts, net.on_notified = net.on_notified, None
    mine, other = begin(net, "c1"), begin(net, "c0")
    waiting = net.command("c0", lambda node, now: node.invite(other, "c1", now_ns=now))
    settle_but(net, away("b2"))
    net.on_notified = acts
    plan = (invite("c2", sub("u", "y = 1")), invite("c1", sub("v", "y = 1")))
    net.start("c0", *plan, isolation="planned")
    settle_but(net, away("b2"))
    assert net.broker("b1").plans.awaits("c1"), "its part waits for that of c2"
    net.on_notified = None
    leave(net, "c1")
    settle_but(net, away("b2"))
    later = net.command("c0", lambda node, now: node.invite(other, "c1", now_ns=now))
    settle_but(net, away("b2"))
    assert net.answers("c0")[waiting] == net.answers("c0")[later] == "c1 is gone"
    assert mine not in net.broker("b1").open_transactions
    assert mine not in net.broker("b0").open_transactions


def test_no_frames_are_kept_for_a_departed_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan keeps its name in use; its link would fill, and block new clients."""
    link = LinkConfig(retry_ns=10**14, retry_ns_max=10**14, unacknowledged_max=20)
    monkeypatch.setattr(TransactionNet, "link", link)
    net = TransactionNet(line(3), {"c0": "b0", "c1": "b1", "c2": "b2", "p": "b1"})
    net.regular("p", adv("a", "x exists"))
    net.settle()
    net.regular("c1", sub("s", "x exists"))
    net.settle()
    plan = (invite("c2", sub("u", "y = 1")), invite("c1", sub("v", "y = 1")))
    net.start("c0", *plan, isolation="planned")
    settle_but(net, away("b2"))
    leave(net, "c1")
    settle_but(net, away("b2"))
    del net.nodes["c1"]
    for number in range(50):
        net.regular("p", pub(str(number), x=number))
        settle_but(net, away("b2"))
    assert not net.nodes["b1"].links._out["c1"].unacknowledged
    net.homes["new"], net.disks["new"], net.notified["new"] = "b1", {}, []
    net.start("new")
    settle_but(net, away("b2"))
    assert "new" in net.broker("b1").clients


def test_regular_events_do_not_wait_for_restored_advertisements() -> None:
    """A broker is away, so no broker knows when the advertisement is everywhere."""
    net = TransactionNet(line(3), {"c0": "b0", "c1": "b0", "c2": "b2"})
    net.regular("c0", adv("a", "x exists"))
    net.settle()
    net.regular("c1", sub("s", "x exists"))
    net.settle()
    net.start("c0", uadv("a"), isolation="atomic", commit=False, timeout_ns=10**9)
    settle_but(net, away("b2"))
    net.now_ns += HOUR_NS
    for name in ("b0", "b1"):
        net.timer(name)
    settle_but(net, away("b2"))
    assert net.broker("b0").tables.spreading
    net.regular("c0", pub("later", x=1))
    settle_but(net, away("b2"))
    assert net.payloads("c1") == ["later"]


def test_plans_that_withdraw_each_others_subscriptions_do_not_deadlock() -> None:
    """S7, "unless that sub itself waits for the usub".

    At its home a withdrawal comes after its subscription, or is refused.
    """
    net = TransactionNet(line(3), {"c0": "b0", "c1": "b1", "c2": "b2"})

    def plan(first: str, gone: str, made: str) -> tuple[Operation, ...]:
        return (
            Operation(path="1", client="c2", change=Change("sub", f"c2.{first}", "z = 1")),
            Operation(path="2", client="c1", after=("1",), change=Change("usub", f"c1.{gone}")),
            Operation(
                path="3", client="c1", after=("2",), change=Change("sub", f"c1.{made}", "x = 2")
            ),
        )

    def submit(operations: tuple[Operation, ...], node: Any, now_ns: int) -> int:
        return int(node.submit(operations, 10**9, now_ns=now_ns))

    for operations in (plan("r1", "X", "Y"), plan("r2", "Y", "X")):
        net.command("c0", partial(submit, operations))
    while len(net.broker("b1").open_transactions) < 2:
        net.step_on(
            next(link for link, frames in net.flying.items() if frames and "b2" not in link)
        )
    net.settle()
    assert "there is no 'c1.X'" in net.answers("c0").values()
    net.at_rest()


def test_plan_cannot_withdraw_entries_of_another_client() -> None:
    """Names begin with their client's, and clients may have names with dots."""
    net = TransactionNet(line(2), {"c1": "b0", "c1.x": "b1", "p": "b0"})
    net.regular("p", adv("a", "x exists"))
    net.settle()
    net.regular("c1.x", sub("s", "x = 1"))
    net.settle()
    theft = Operation(path="1", client="c1", change=Change("usub", net.application.names["s"]))
    number = net.command("c1", lambda node, now: node.submit((theft,), 10**9, now_ns=now))
    net.settle()
    assert "belongs to another client" in net.answers("c1")[number]
    net.regular("p", pub("after", x=1))
    net.settle()
    assert net.payloads("c1.x") == ["after"]
    net.at_rest()


@pytest.mark.parametrize("kind", ["atomic", "serializable"])
def test_client_that_reuses_a_name_has_no_part_in_earlier_transactions(
    kind: str,
) -> None:
    net = TransactionNet(line(2), {"c0": "b0", "c1": "b1", "p": "b0"})
    net.regular("p", adv("a", "x exists"))
    net.settle()
    net.on_notified = None
    name = begin(net, "c0", kind)
    net.command("c0", lambda node, now: node.invite(name, "c1", now_ns=now))
    net.settle()
    path = net.notified["c1"][-1].path
    act: dict[str, Any] = {"where": "x = 1", "within": path}
    net.command("c1", lambda node, now: node.act(name, "sub", **act, now_ns=now))
    net.settle()
    net.command("c1", lambda node, now: node.finish(name, path, now_ns=now))
    net.settle()
    net.nodes["b1"].broker.expire("c1", now_ns=net.now_ns)
    net.drain("b1")
    net.disks["c1"], net.notified["c1"] = {}, []
    net.start("c1")
    net.settle()
    assert "c1" not in net.broker("b1").clients, "it waits"
    number = net.command("c0", lambda node, now: node.end(name, commit=True, now_ns=now))
    net.settle()
    assert net.answers("c0")[number] == "c1 is gone"
    net.elapse(10**10)
    assert "c1" in net.broker("b1").clients, "and asks again"
    assert not net.broker("b1").tables.subscriptions


def test_departure_of_a_client_does_not_overtake_its_new_home() -> None:
    net = TransactionNet(line(3), {"c": "b0", "d": "b1"})
    net.nodes["b0"].broker.expire("c", now_ns=net.now_ns)
    net.drain("b0")
    net.homes["c"], net.disks["c"], net.notified["c"] = "b2", {}, []
    net.start("c")
    settle_but(net, lambda link: link == ("b0", "b1"))
    net.settle()
    assert {net.broker(name).home_of("c") for name in net.tree} == {"b2"}


GRACE_NS = 5 * 10**9


def with_grace(homes: dict[str, str], **options: Any) -> TransactionNet:
    config = ContentConfig(
        lease_ns=10**15, beat_ns=10**14, journal_bytes_min=2000, grace_ns=GRACE_NS
    )
    return TransactionNet(line(3), homes, config=config, **options)


def lose(net: TransactionNet, client: str) -> None:
    home = net.homes[client]
    net.nodes[home].lose_connection(client, now_ns=net.now_ns)
    net.drain(home)


def regain(net: TransactionNet, client: str) -> None:
    home = net.homes[client]
    net.nodes[home].regain_connection(client, now_ns=net.now_ns)
    net.drain(home)
    net.settle()


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("kind", ["serializable", "atomic"])
def test_transactions_of_a_disconnected_coordinator_are_aborted_after_its_grace(
    kind: str, *, restarts: bool
) -> None:
    net = with_grace({"c0": "b0", "c2": "b2"})
    net.on_notified = None
    name = begin_anywhere(net, "c0", kind)
    other = begin_anywhere(net, "c2", "serializable")
    ending = net.command("c2", lambda node, now: node.end(other, commit=True, now_ns=now))
    net.settle()
    lose(net, "c0")
    net.elapse(GRACE_NS - 1)
    assert name in net.broker("b0").open_transactions, "it has not had its grace"
    net.elapse(10**6)
    if restarts:
        net.crash("b0")
        net.settle()
    assert name not in net.broker("b0").open_transactions
    assert net.answers("c2")[ending] == "", "nothing holds up others any more"
    regain(net, "c0")
    ended = [one for one in net.notified["c0"] if isinstance(one, Concluded)]
    assert [(one.transaction, one.committed) for one in ended] == [(name, False)]
    assert ended[0].reason == "c0 lost its connection"
    net.at_rest()


@pytest.mark.parametrize("kind", ["serializable", "atomic"])
def test_a_coordinator_that_reconnects_within_its_grace_keeps_its_transaction(kind: str) -> None:
    net = with_grace({"c0": "b0", "c2": "b2"})
    net.on_notified = None
    name = begin_anywhere(net, "c0", kind)
    for _ in range(3):
        lose(net, "c0")
        net.elapse(GRACE_NS - 10**6)
        regain(net, "c0")
    net.elapse(GRACE_NS)
    ending = net.command("c0", lambda node, now: node.end(name, commit=True, now_ns=now))
    net.settle()
    assert net.answers("c0")[ending] == ""
    net.at_rest()


def test_commit_requested_before_a_disconnect_is_committed() -> None:
    net = with_grace({"c0": "b0", "c2": "b2"})
    net.on_notified = None
    name = begin_anywhere(net, "c0", "serializable")
    ending = net.command("c0", lambda node, now: node.end(name, commit=True, now_ns=now))
    settle_but(net, away("b2"))
    lose(net, "c0")
    net.now_ns += GRACE_NS
    net.timer("b0")
    net.settle()
    assert net.answers("c0")[ending] == ""
    net.at_rest()


def test_a_held_plan_of_a_disconnected_client_is_aborted_after_its_grace() -> None:
    net = with_grace({"c0": "b0", "c2": "b2"})
    net.on_notified = None
    operation = Operation(
        path="1", client="c0", change=Change("sub", "c0.held", "x = 1"), publication=None
    )
    net.command(
        "c0", lambda node, now: node.submit((operation,), 600 * 10**9, hold=True, now_ns=now)
    )
    net.settle()
    assert net.broker("b2").open_transactions
    lose(net, "c0")
    net.elapse(GRACE_NS)
    net.at_rest()


def test_transactions_do_not_wait_for_a_disconnected_invited_client() -> None:
    net = with_grace({"c0": "b0", "c2": "b2"})
    net.on_notified = None
    name = begin_anywhere(net, "c0", "serializable")
    first = net.command("c0", lambda node, now: node.invite(name, "c2", now_ns=now))
    net.settle()
    lose(net, "c2")
    net.elapse(GRACE_NS)
    assert net.answers("c0")[first] == "c2 lost its connection"
    second = net.command("c0", lambda node, now: node.invite(name, "c2", now_ns=now))
    net.settle()
    assert net.answers("c0")[second] == "c2 lost its connection"
    regain(net, "c2")
    third = net.command("c0", lambda node, now: node.invite(name, "c2", now_ns=now))
    net.settle()
    assert third not in net.answers("c0"), "it can act again"


def begin_anywhere(net: TransactionNet, client: str, kind: str) -> str:
    net.command(client, lambda node, now: node.begin(kind, 600 * 10**9, now_ns=now))
    net.settle()
    return str(net.notified[client][-1].transaction)
