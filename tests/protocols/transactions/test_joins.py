"""Brokers that join and leave a tree in use; clients that join during transactions."""

from random import Random
from typing import Any

import msgspec
import pytest
from tests.protocols.transactions.harness import (
    MS,
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
from ensue.protocols.shared.link import CONNECTED

KINDS = ("serializable", "atomic", "planned")


@pytest.fixture(autouse=True, params=[1, CONNECTED.group_bytes], ids=["single", "grouped"])
def _grouping(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run with frames sent one by one, and with frames to a peer grouped, as on servers."""
    link = msgspec.structs.replace(TransactionNet.link, group_bytes=request.param)
    monkeypatch.setattr(TransactionNet, "link", link)


def net_of(brokers: int = 3, seed: int = 0) -> TransactionNet:
    """Return a line of brokers with a client each; c0 advertises x, the last subscribes to it."""
    homes = {f"c{number}": f"b{number}" for number in range(brokers)}
    net = TransactionNet(line(brokers), homes, seed=seed)
    net.regular("c0", adv("a0", "x exists"))
    net.settle()
    net.regular(f"c{brokers - 1}", sub("s", "x = 1"))
    net.settle()
    return net


def grow(net: TransactionNet, parent: str, joiner: str) -> None:
    """Start a new broker, and have its neighbor adopt it."""
    tree: Any = net.tree
    tree[joiner] = (parent,)
    join(net, joiner)
    net.nodes[parent].adopt(joiner, now_ns=net.now_ns)
    net.drain(parent)
    tree[parent] = (*tree[parent], joiner)


def join(net: TransactionNet, name: str) -> None:
    """Start a broker or a client without records."""
    net.disks[name], net.notified[name] = {}, []
    net.start(name)


def client_of(net: TransactionNet, name: str, home: str) -> str:
    """Start a client."""
    net.homes[name] = home
    join(net, name)
    return name


def works(net: TransactionNet, joiner: str, reader: str = "c2") -> None:
    """Check that a client of the new broker reads, publishes, invites and is invited."""
    client_of(net, "new", joiner)
    net.settle()
    net.regular("new", adv("new-a", "x exists"))
    net.regular("new", sub("new-s", "x = 5"))
    net.settle()
    for kind in KINDS:
        assert net.run("c0", pub(f"to {kind}", x=5), isolation=kind, attempts=4) == ""
        assert net.run("new", pub(f"from {kind}", x=1), isolation=kind, attempts=4) == ""
    net.regular("c0", pub("regular to", x=5))
    net.regular("new", pub("regular from", x=1))
    net.settle()
    own = [*(f"to {kind}" for kind in KINDS), "regular to"]
    assert net.payloads("new") == own
    theirs = [*(f"from {kind}" for kind in KINDS), "regular from"]
    assert [one for one in net.payloads(reader) if "from" in one] == theirs
    within = invite("new", invite("c1", sub("nested", "x = 9")), usub("new-s"))
    assert net.run("c0", within, attempts=4) == ""
    net.at_rest()


@pytest.mark.parametrize("parent", ["b0", "b1", "b2"])
def test_joined_broker_works_like_all_others(parent: str) -> None:
    net = net_of()
    for number in range(3):
        assert net.run("c0", pub(f"p{number}", x=1)) == ""
    grow(net, parent, "b9")
    net.settle()
    assert net.broker("b9").version == 3
    works(net, "b9")


def test_broker_and_its_clients_wait_until_it_is_adopted() -> None:
    net = net_of()
    assert net.run("c0", pub("p", x=1)) == ""
    tree: Any = net.tree
    tree["b8"], tree["b9"] = ("b2", "b9"), ("b8",)
    for name in ("b8", "b9"):
        join(net, name)
    client_of(net, "early", "b9")
    net.settle()
    assert not net.client("early").content.welcomed
    net.nodes["b2"].adopt("b8", now_ns=net.now_ns)
    net.drain("b2")
    tree["b2"] = (*tree["b2"], "b8")
    for name in net.nodes:
        net.resend(name)
    net.settle()
    assert net.client("early").content.welcomed
    assert {net.broker(name).version for name in net.tree} == {1}
    works(net, "b9")


@pytest.mark.parametrize("given", ["old", "new"])
def test_broker_recovers_its_adopted_neighbors(given: str) -> None:
    """Even if it restarts with its original list of neighbors."""
    net = net_of()
    tree: Any = net.tree
    at_first = tree["b2"]
    grow(net, "b2", "b9")
    after = tree["b2"]
    if given == "old":
        tree["b2"] = at_first
    net.crash("b2")
    assert net.broker("b2").neighbors == ("b1", "b9")
    tree["b2"] = after
    net.settle()
    works(net, "b9")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("promise", [False, True])
def test_broker_may_join_at_any_moment_of_a_transaction(
    kind: str, crash: bool, promise: bool
) -> None:
    """A broker joins after each frame in turn: tables converge, and no transaction is torn.

    The new broker does not know what an open transaction advertises: a serializable one is aborted
    then, and commits otherwise.
    """
    outcomes = set()
    for moment in range(0, 70, 5):
        net = net_of(seed=moment)
        first = adv("a1", "y exists") if promise else sub("s3", "y = 3")
        acts = [first, pub("one", x=1), sub("s1", "y = 1"), pub("two", x=1)]
        if kind != "planned":
            acts.append(invite("c2", sub("s2", "y = 2"), pub("within", z=1)))
        net.regular("c2", adv("a2", "z exists"))
        net.settle()
        net.start("c0", *acts, isolation=kind, timeout_ns=10**11)
        for _ in range(moment):
            net.step()
        grow(net, "b1", "b9")
        if crash:
            net.crash("b1")
            net.crash("b9")
        net.settle()
        for _ in range(20):
            net.elapse(50 * MS)
        outcomes.add(net.outcome())
        came = [one for one in net.payloads("c2") if one in ("one", "two")]
        assert came == (["one", "two"] if net.outcome() == "" else []), (moment, net.outcome())
        works(net, "b9")
    assert "" in outcomes
    if not (promise and kind == "serializable"):
        assert outcomes == {""}


def test_event_routed_by_an_old_version_may_reach_a_new_broker() -> None:
    """The event is published before its broker knows of a commit.

    Its neighbor knows of it, and has adopted the new broker since.
    """
    net = net_of()
    net.start("c2", sub("t", "x = 2"), isolation="serializable", timeout_ns=10**11)
    while not net.broker("b1").version:
        net.step()
    assert not net.broker("b0").version, "it does not know of it yet"
    cut = {("b0", "b1"), ("b1", "b0")}

    def settle_apart() -> None:
        while ready := [key for key, frames in net.flying.items() if frames and key not in cut]:
            net.step_on(net.random.choice(ready))

    net.regular("c0", pub("old", x=1))
    settle_apart()
    grow(net, "b1", "b9")
    client_of(net, "early", "b9")
    net.command("early", lambda node, now: node.subscribe("x exists", now_ns=now))
    settle_apart()
    assert net.broker("b1").versions_kept
    net.settle()
    assert b"old" in [
        one.publication.payload for one in net.notified["early"] if isinstance(one, Notified)
    ]
    works(net, "b9")


@pytest.mark.parametrize("seed", range(15))
def test_tables_converge_while_brokers_join_under_load(seed: int) -> None:
    """Trees that grow by two at random moments, with all kinds of changes and transactions."""
    random = Random(seed)
    tree = random_tree(random, 3)
    homes = {f"c{number}": random.choice(list(tree)) for number in range(4)}
    net = TransactionNet(tree, homes, seed=seed)
    clients = list(homes)
    for client in clients:
        net.regular(client, adv(f"a-{client}", "x exists"))
    net.settle()
    for joiner in ("b8", "b9"):
        for number in range(4):
            client, other = random.sample(clients, 2)
            label = f"{joiner}-{number}"
            net.regular(client, sub(f"r-{label}", f"x = {number}"))
            net.regular(other, pub(f"p-{label}", x=number))
            kind = random.choice(KINDS)
            acts = [sub(f"t-{label}", "x > 1"), adv(f"u-{label}", f"y = {number}")]
            net.start(client, *acts, pub(f"q-{label}", x=2), isolation=kind, attempts=6)
            for _ in range(random.randrange(25)):
                net.step()
        grow(net, random.choice(list(net.tree)), joiner)
        clients.append(client_of(net, f"of-{joiner}", joiner))
        for _ in range(random.randrange(40)):
            net.step()
    net.settle()
    for _ in range(40):
        net.elapse(50 * MS)
    net.at_rest()
    for client in clients:
        assert net.client(client).content.welcomed
    expected = {name: entry.where for name, entry in net.broker("b0").tables.advertisements.items()}
    for name in net.tree:
        mine = net.broker(name).tables.advertisements
        assert {one: entry.where for one, entry in mine.items()} == expected, name
        assert set(net.broker(name).state.members) == set(clients)


def test_broker_leaves_when_nothing_of_it_is_left() -> None:
    net = net_of()
    broker = net.broker("b1")
    assert broker.hold_of("b2") == "its client c2"
    net.command("c2", lambda node, now: node.leave(now_ns=now))
    net.settle()
    assert not broker.hold_of("b2")
    net.start("c0", adv("a", "y = 1"), isolation="serializable", timeout_ns=10**11)
    while not broker.open_transactions:
        net.step()
    assert "which is open" in broker.hold_of("b2")
    net.settle()
    assert not broker.hold_of("b2")
    net.nodes["b1"].abandon("b2", now_ns=net.now_ns)
    net.drain("b1")
    tree: Any = net.tree
    del tree["b2"], net.nodes["b2"], net.nodes["c2"], net.homes["c2"]
    tree["b1"] = ("b0",)
    net.crash("b1")
    assert net.broker("b1").neighbors == ("b0",)
    net.regular("c1", sub("s", "x = 1"))
    net.settle()
    for kind in KINDS:
        assert net.run("c0", pub(kind, x=1), isolation=kind) == ""
    assert net.payloads("c1") == list(KINDS)
    net.at_rest()
    grow(net, "b1", "b2")
    net.settle()
    works(net, "b2", "c1")


@pytest.mark.parametrize("kind", KINDS)
def test_client_may_join_at_any_moment_of_a_transaction(kind: str) -> None:
    """The client gets all events published after its answer; of a transaction, all or nothing."""
    for moment in range(0, 60, 2):
        net = net_of(seed=moment)
        acts = (pub("one", x=1), sub("s0", "x = 7"), pub("two", x=1))
        net.start("c0", *acts, isolation=kind, timeout_ns=10**11, attempts=6)
        for _ in range(moment):
            net.step()
        client_of(net, "late", "b1")
        net.command("late", lambda node, now: node.subscribe("x exists", now_ns=now))
        net.settle()
        for _ in range(10):
            net.elapse(50 * MS)
        net.regular("c0", pub("after", x=2))
        net.settle()
        assert net.outcome() == "", moment
        came = [
            one.publication.payload for one in net.notified["late"] if isinstance(one, Notified)
        ]
        assert came[-1] == b"after"
        if kind == "serializable":
            assert came[:-1] in ([], [b"one", b"two"]), moment
        assert net.run("c0", invite("late", sub("l", "x = 3"))) == ""
        net.at_rest()
