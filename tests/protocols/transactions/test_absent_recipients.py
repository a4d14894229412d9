"""Invitations by content count live recipients: those that lost their connection or left do not."""

from typing import Any

import pytest
from tests.protocols.transactions.harness import TransactionNet, adv
from tests.protocols.transactions.test_departures import (
    GRACE_NS,
    begin_anywhere,
    leave,
    lose,
    regain,
    with_grace,
)

from ensue.protocols.content.client import Answered
from ensue.protocols.transactions.client import Invitation
from ensue.protocols.transactions.frames import ANYONE, ATOMIC, SERIALIZABLE

KINDS = [SERIALIZABLE, ATOMIC]


def inviting(seed: int = 0, *, d: str = "b1", e: str = "b2") -> TransactionNet:
    """Three clients at three brokers; two of them take invitations."""
    net = with_grace({"c": "b0", "d": d, "e": e}, seed=seed)
    net.on_notified = None
    net.regular("c", adv("a", "x exists"))
    net.settle()
    for client in ("d", "e"):
        net.command(client, lambda node, now: node.take_invitations("x = 1", now_ns=now))
    net.settle()
    return net


def begin_inviting(net: TransactionNet, kind: str) -> tuple[str, int]:
    """Begin a transaction and invite by content; return its name and the request."""
    name = begin_anywhere(net, "c", kind)
    number = net.command("c", lambda node, now: node.invite(name, ANYONE, {"x": 1}, now_ns=now))
    net.settle()
    return name, number


def answer(net: TransactionNet, number: int) -> list[tuple[str, int]]:
    """Return the answers of a request of the inviter: the refusal, and how many were reached."""
    found = [one for one in net.notified["c"] if isinstance(one, Answered)]
    return [(one.refused, one.reached) for one in found if one.number == number]


def invitations(net: TransactionNet, client: str) -> list[Invitation]:
    return [one for one in net.notified[client] if isinstance(one, Invitation)]


def finish(net: TransactionNet, client: str, name: str) -> str:
    path = invitations(net, client)[-1].path
    number = net.command(client, lambda node, now: node.finish(name, path, now_ns=now))
    net.settle()
    return net.answers(client)[number]


def act(net: TransactionNet, client: str, name: str) -> str:
    path = invitations(net, client)[-1].path

    def subscribe(node: Any, now_ns: int) -> int:
        number, _ = node.act(name, "sub", within=path, where="x exists", now_ns=now_ns)
        return int(number)

    number = net.command(client, subscribe)
    net.settle()
    return net.answers(client)[number]


def end(net: TransactionNet, name: str) -> str:
    number = net.command("c", lambda node, now: node.end(name, commit=True, now_ns=now))
    net.settle()
    return net.answers("c")[number]


@pytest.mark.parametrize("kind", KINDS)
def test_client_without_a_connection_is_not_invited(kind: str) -> None:
    net = inviting()
    lose(net, "e")
    net.elapse(GRACE_NS)
    name, number = begin_inviting(net, kind)
    assert not invitations(net, "e")
    assert finish(net, "d", name) == ""
    assert answer(net, number) == [("", 1)]
    assert end(net, name) == ""
    regain(net, "e")
    name, number = begin_inviting(net, kind)
    assert (finish(net, "d", name), finish(net, "e", name)) == ("", "")
    assert answer(net, number) == [("", 2)]
    assert end(net, name) == ""
    net.at_rest()


@pytest.mark.parametrize("kind", KINDS)
def test_invitation_that_only_absent_clients_match_reaches_none(kind: str) -> None:
    net = inviting()
    for client in ("d", "e"):
        lose(net, client)
    net.elapse(GRACE_NS)
    name, number = begin_inviting(net, kind)
    assert answer(net, number) == [("", 0)]
    assert end(net, name) == ""
    net.at_rest()


@pytest.mark.parametrize("e", ["b0", "b1", "b2"])
@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("leaves", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_recipient_that_vanishes_before_it_acts_does_not_count(
    kind: str, e: str, *, leaves: bool, restarts: bool
) -> None:
    net = inviting(e=e)
    name, number = begin_inviting(net, kind)
    assert finish(net, "d", name) == ""
    assert answer(net, number) == []
    for broker in net.tree if restarts else ():
        net.broker(broker).log.write_snapshot()
        net.drain(broker)
        net.crash(broker)
        net.settle()
    if leaves:
        leave(net, "e")
        net.settle()
    else:
        lose(net, "e")
        net.elapse(GRACE_NS)
    assert answer(net, number) == [("", 1)]
    if not leaves:
        regain(net, "e")
        assert act(net, "e", name) == "the transaction is over", "it goes on without this client"
    assert end(net, name) == "", "whether it is still there makes no difference"
    net.at_rest()


@pytest.mark.parametrize("kind", KINDS)
def test_client_without_a_connection_may_leave(kind: str) -> None:
    net = inviting()
    lose(net, "e")
    net.elapse(GRACE_NS)
    name, number = begin_inviting(net, kind)
    assert finish(net, "d", name) == ""
    assert answer(net, number) == [("", 1)]
    leave(net, "e")
    net.settle()
    assert end(net, name) == ""
    net.at_rest()


@pytest.mark.parametrize("e", ["b0", "b1", "b2"])
@pytest.mark.parametrize("kind", KINDS)
def test_recipient_that_counts_and_leaves_is_a_conflict(kind: str, e: str) -> None:
    """A serializable transaction has read that the client takes invitations."""
    net = inviting(e=e)
    name, number = begin_inviting(net, kind)
    assert (finish(net, "d", name), finish(net, "e", name)) == ("", "")
    assert answer(net, number) == [("", 2)]
    leave(net, "e")
    net.settle()
    assert end(net, name).startswith("conflict") == (kind == SERIALIZABLE)
    net.at_rest()


@pytest.mark.parametrize("d", ["b0", "b1", "b2"])
@pytest.mark.parametrize("kind", KINDS)
def test_recipient_that_comes_for_one_that_left_is_a_conflict(kind: str, d: str) -> None:
    net = inviting(d=d)
    leave(net, "d")
    net.settle()
    name, number = begin_inviting(net, kind)
    leave(net, "e")
    net.settle()
    assert answer(net, number) == [("", 0)]
    net.homes["f"] = "b2"
    net.disks["f"], net.notified["f"] = {}, []
    net.start("f")
    net.settle()
    net.command("f", lambda node, now: node.take_invitations("x = 1", now_ns=now))
    net.settle()
    assert end(net, name).startswith("conflict") == (kind == SERIALIZABLE)
    net.at_rest()


@pytest.mark.parametrize("kind", KINDS)
def test_recipient_that_vanishes_after_it_acted_aborts(kind: str) -> None:
    net = inviting()
    name, number = begin_inviting(net, kind)
    assert act(net, "e", name) == ""
    lose(net, "e")
    net.elapse(GRACE_NS)
    assert finish(net, "d", name) == ""
    assert answer(net, number) == [("e lost its connection", 2)]
