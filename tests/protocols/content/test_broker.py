"""Content brokers: deliveries against a model with one table, tables, joins and departures."""

from random import Random
from typing import Any

import msgspec
import pytest
from tests.protocols.content.harness import MS, Net, line, random_tree

from ensue.core.errors import ConfigurationError
from ensue.protocols.content.client import SessionEnded
from ensue.protocols.content.config import ContentConfig
from ensue.protocols.content.filters.filter import Filter
from ensue.protocols.content.filters.parser import parse
from ensue.protocols.content.frames import SUBSCRIBE, Change, Operate, Step
from ensue.protocols.content.topology import check_tree
from ensue.protocols.interface import Send
from ensue.protocols.shared.link import LinkConfig

FILTERS = (
    "x = 1",
    "x = 2",
    "x >= 1 and x <= 3",
    "x > 0",
    "x = 1 and y = 1",
    "y exists",
    "x = 3 or y = 2",
)


def subscribed(net: Net, client: str, where: str) -> str:
    _, name = net.command(client, lambda node, now: node.subscribe(where, now_ns=now))
    return str(name)


def advertised(net: Net, client: str, where: str) -> str:
    _, name = net.command(client, lambda node, now: node.advertise(where, now_ns=now))
    return str(name)


def published(net: Net, client: str, payload: str, **attributes: Any) -> None:
    net.command(client, lambda node, now: node.publish(attributes, payload.encode(), now_ns=now))


def withdraw(net: Net, client: str, name: str) -> None:
    if ".sub" in name:
        net.command(client, lambda node, now: node.unsubscribe(name, now_ns=now))
    else:
        net.command(client, lambda node, now: node.unadvertise(name, now_ns=now))


def three() -> Net:
    net = Net(line(3), {"a": "b0", "b": "b1", "c": "b2"})
    net.settle()
    return net


def test_advertisements_are_flooded_and_subscriptions_follow_them_back() -> None:
    net = three()
    advertised(net, "a", "x > 0")
    net.settle()
    assert [len(net.broker(f"b{at}").tables.advertisements) for at in range(3)] == [1, 1, 1]
    subscribed(net, "c", "x = 5")
    subscribed(net, "c", "y = 5")
    subscribed(net, "c", "x = -5")
    net.settle()
    held = [sorted(net.broker(f"b{at}").tables.subscriptions) for at in range(3)]
    assert held == [["c.sub1", "c.sub2"], ["c.sub1", "c.sub2"], ["c.sub1", "c.sub2", "c.sub3"]]
    published(net, "a", "one", x=5)
    net.settle()
    assert net.events("c") == [("c.sub1", "one")]


def test_advertisements_attract_buffered_subscriptions_until_the_last_is_withdrawn() -> None:
    """Section II and D9: also by a second advertiser, and withdrawn where no client needs it."""
    net = three()
    subscribed(net, "b", "x = 1")
    net.settle()
    assert not net.broker("b0").tables.subscriptions
    first = advertised(net, "a", "x > 0")
    net.settle()
    assert list(net.broker("b0").tables.subscriptions) == ["b.sub1"]
    second = advertised(net, "c", "x > 0")
    net.settle()
    assert list(net.broker("b2").tables.subscriptions) == ["b.sub1"]
    published(net, "c", "from c", x=1)
    net.settle()
    assert net.payloads("b") == ["from c"]
    net.command("a", lambda node, now: node.unadvertise(first, now_ns=now))
    net.settle()
    assert not net.broker("b0").tables.subscriptions
    assert list(net.broker("b2").tables.subscriptions) == ["b.sub1"]
    net.command("c", lambda node, now: node.unadvertise(second, now_ns=now))
    net.settle()
    assert not net.broker("b2").tables.subscriptions


def test_covered_subscription_is_passed_on_when_its_coverer_is_withdrawn() -> None:
    net = three()
    advertised(net, "a", "x exists")
    wide = subscribed(net, "c", "x > 0")
    net.settle()
    subscribed(net, "c", "x > 5")
    subscribed(net, "b", "x = 7")
    net.settle()
    assert list(net.broker("b0").tables.subscriptions) == [wide]
    published(net, "a", "seven", x=7)
    net.settle()
    assert sorted(net.payloads("c")) == ["seven", "seven"]
    assert net.payloads("b") == ["seven"]
    net.command("c", lambda node, now: node.unsubscribe(wide, now_ns=now))
    net.settle()
    assert sorted(net.broker("b0").tables.subscriptions) == ["b.sub1", "c.sub2"]
    published(net, "a", "again", x=7)
    published(net, "a", "one", x=1)
    net.settle()
    assert net.payloads("c") == ["seven", "seven", "again"]
    assert net.payloads("b") == ["seven", "again"]


def test_answered_subscription_has_reached_every_broker() -> None:
    for seed in range(30):
        net = Net(line(4), {"a": "b0", "c": "b3"}, seed=seed)
        net.settle()
        advertised(net, "a", "x exists")
        net.settle()
        number, _ = net.command("c", lambda node, now: node.subscribe("x = 1", now_ns=now))
        while number not in net.answers("c"):
            assert net.step()
        published(net, "a", "now", x=1)
        net.settle()
        assert net.payloads("c") == ["now"], seed


def test_departed_or_silent_client_leaves_nothing_behind() -> None:
    config = ContentConfig(lease_ns=100 * MS, beat_ns=10 * MS, hello_ns=10 * MS)
    net = Net(line(3), {"a": "b0", "b": "b1", "c": "b2"}, config=config)
    net.settle()
    for client in ("a", "b"):
        advertised(net, client, "x exists")
        subscribed(net, client, "x = 1")
    net.settle()
    subscribed(net, "c", "x = 1")
    net.command("a", lambda node, now: node.leave(now_ns=now))
    net.settle()
    silent = net.nodes.pop("b")
    for _ in range(15):
        net.elapse(10 * MS)
    for at in range(3):
        tables = net.broker(f"b{at}").tables
        assert not tables.advertisements
        assert [name for name in tables.subscriptions if not name.startswith("c")] == []
        assert list(net.broker(f"b{at}").state.members) == ["c"]
    assert "link/next/b" not in net.disks["b1"]
    net.nodes["b"] = silent
    net.elapse(10 * MS)
    assert SessionEnded() in net.notified["b"]


def test_clients_keep_their_leases_while_the_link_to_an_away_broker_is_full() -> None:
    """Otherwise a client that only reads would expire because of another."""
    config = ContentConfig(lease_ns=500 * MS, beat_ns=50 * MS)
    net = Net(line(2), {"a": "b0", "b": "b1"}, config=config)
    net.settle()
    subscribed(net, "b", "x exists")
    advertised(net, "a", "x exists")
    net.settle()
    node = net.nodes["b0"]
    node.links._config = LinkConfig(unacknowledged_max=5, retry_ns=10**14, retry_ns_max=10**14)

    def settle_at_home() -> None:
        while ready := [key for key in (("a", "b0"), ("b0", "a")) if net.flying.get(key)]:
            net.step_on(ready[0])

    for number in range(9):
        published(net, "a", "p", x=number)
        settle_at_home()
    assert len(node.links._out["b1"].unacknowledged) == 9
    for _ in range(30):
        net.now_ns += 50 * MS
        net.timer("a")
        settle_at_home()
        net.timer("b0")
    assert node.broker.clients == ("a",)


def test_subscription_of_another_client_cannot_be_withdrawn() -> None:
    net = three()
    advertised(net, "a", "x exists")
    name = subscribed(net, "c", "x = 1")
    net.settle()
    number = net.command("a", lambda node, now: node.unsubscribe(name, now_ns=now))
    net.settle()
    assert "belongs to another client" in net.answers("a")[number]
    assert name in net.broker("b0").tables.subscriptions


@pytest.mark.parametrize(
    "where",
    ["x = " + "9" * 5000, "x =", "(" * 10_000, "x = '\U0010ffff" + "y" * 2000, "inf = 3"],
    ids=["digits", "end", "brackets", "text", "name"],
)  # fmt: skip
def test_invalid_filter_is_refused_and_harms_no_client(where: str) -> None:
    """Sent by a client that does not validate it first."""
    net = three()
    asked = Operate(number=0, change=Change(SUBSCRIBE, "a.sub9", where))
    number = net.command("a", lambda node, now: node.request(asked, now))
    net.settle()
    assert " at character " in net.answers("a")[number]


def test_publication_without_advertisement_is_refused() -> None:
    net = three()
    advertised(net, "a", "x > 0")
    subscribed(net, "c", "x exists")
    net.settle()
    number = net.command("a", lambda node, now: node.publish({"x": 0}, now_ns=now))
    net.settle()
    assert net.answers("a")[number] == "no advertisement of a covers it"
    assert not net.payloads("c")


def test_brokers_must_form_a_tree() -> None:
    check_tree(line(4))
    for bad in (
        {"a": ("b",), "b": ("a", "c"), "c": ("b",), "d": ()},
        {"a": ("b", "c"), "b": ("a", "c"), "c": ("a", "b")},
        {"a": ("b",), "b": ()},
    ):
        with pytest.raises(ConfigurationError):
            check_tree(bad)


class Model:
    """One table: the subscriptions of each client."""

    def __init__(self) -> None:
        self.subscriptions: dict[str, tuple[str, Filter]] = {}
        self.advertisements: dict[str, tuple[str, Filter]] = {}

    def promised(self, publisher: str, attributes: dict[str, Any]) -> bool:
        promised = [where for client, where in self.advertisements.values() if client == publisher]
        return any(where.matches(attributes) for where in promised)

    def recipients(self, publisher: str, attributes: dict[str, Any]) -> list[tuple[str, str]]:
        return sorted(
            (client, name)
            for name, (client, where) in self.subscriptions.items()
            if where.matches(attributes)
        )


@pytest.mark.parametrize("seed", range(25))
def test_random_tree_matches_the_model_with_one_table(seed: int) -> None:
    """Sequential operations with crashes of any node: same recipients, same tables at the end."""
    random = Random(seed)
    tree = random_tree(random, random.randint(1, 6))
    clients = [f"c{number}" for number in range(random.randint(2, 5))]
    net = Net(tree, {client: random.choice(list(tree)) for client in clients}, seed=seed)
    net.settle()
    model = Model()
    for turn in range(40):
        client = random.choice(clients)
        own = [name for name, (owner, _) in model.subscriptions.items() if owner == client]
        promised = [name for name, (owner, _) in model.advertisements.items() if owner == client]
        roll = random.random()
        if roll < 0.25:
            where = random.choice(FILTERS)
            model.subscriptions[subscribed(net, client, where)] = (client, parse(where))
        elif roll < 0.45:
            where = random.choice(FILTERS)
            model.advertisements[advertised(net, client, where)] = (client, parse(where))
        elif roll < 0.55 and own:
            name = random.choice(own)
            withdraw(net, client, name)
            del model.subscriptions[name]
        elif roll < 0.65 and promised:
            name = random.choice(promised)
            withdraw(net, client, name)
            del model.advertisements[name]
        else:
            attributes = {"x": random.randint(0, 4), "y": random.randint(0, 2)}
            expected = model.recipients(client, attributes)
            if model.promised(client, attributes):
                published(net, client, str(turn), **attributes)
                for _ in range(random.randint(0, 6)):
                    net.step()
                if random.random() < 0.3:
                    net.crash(random.choice(list(net.nodes)))
                net.settle()
                found = sorted(
                    (name, subscription)
                    for name in clients
                    for subscription, payload in net.events(name)
                    if payload == str(turn)
                )
                assert found == expected, (seed, turn, attributes)
        if random.random() < 0.2:
            for _ in range(random.randint(0, 6)):
                net.step()
            net.crash(random.choice(list(net.nodes)))
        net.settle()
        assert all(not net.broker(broker).waiting_count for broker in tree), (seed, turn)
    assert_tables_are_right(net, model)


def assert_tables_are_right(net: Net, model: Model) -> None:
    """Every broker has all advertisements, needed subscriptions or their coverers, and no more."""
    for name in net.tree:
        tables = net.broker(name).tables
        assert sorted(tables.advertisements) == sorted(model.advertisements)
        for neighbor in net.tree[name]:
            promised = [
                parse(entry.where)
                for entry in tables.advertisements.values()
                if entry.hop == neighbor
            ]
            sent = tables.sent(neighbor)
            theirs = net.broker(neighbor).tables.subscriptions
            assert sent == sorted(each for each, entry in theirs.items() if entry.hop == name)
            for each, entry in tables.subscriptions.items():
                where = parse(entry.where)
                needed = entry.hop != neighbor and any(one.overlaps(where) for one in promised)
                covered = any(
                    parse(tables.subscriptions[other].where).covers(where) for other in sent
                )
                assert not needed or each in sent or covered
                assert needed or each not in sent
    homes = {name: client for name, (client, _) in model.subscriptions.items()}
    for name, client in homes.items():
        assert name in net.broker(net.homes[client]).tables.subscriptions


def test_restarted_broker_recovers_its_tables_from_log_or_snapshot() -> None:
    for journal_bytes_min in (1, 10**9):
        config = ContentConfig(lease_ns=10**15, beat_ns=10**14, journal_bytes_min=journal_bytes_min)
        net = Net(line(3), {"a": "b0", "c": "b2"}, config=config)
        net.settle()
        advertised(net, "a", "x exists")
        subscribed(net, "c", "x = 1")
        net.settle()
        assert ("state" in net.disks["b1"]) == (journal_bytes_min == 1)
        before = net.broker("b1").tables.record()
        net.crash("b1")
        net.settle()
        assert net.broker("b1").tables.record() == before
        published(net, "a", "after", x=1)
        net.settle()
        assert net.payloads("c") == ["after"]


def test_the_same_input_gives_the_same_effects() -> None:
    seen = []
    for _ in range(2):
        net = three()
        advertised(net, "a", "x exists")
        for where in FILTERS:
            subscribed(net, "c", where)
        net.settle()
        broker = net.nodes["b2"]
        broker.broker.receive(Step(number=0), source="b1", now_ns=1)
        seen.append((net.disks["b2"], [e for e in broker.take_effects() if isinstance(e, Send)]))
    assert seen[0] == seen[1]


@pytest.mark.parametrize(
    ("field", "value", "least"), [("window", 0, 1), ("mailbox_expire_ns", -1, 0)]
)
def test_limits_out_of_range_are_refused(field: str, value: int, least: int) -> None:
    with pytest.raises(ConfigurationError, match=f"{field} must be at least {least}"):
        msgspec.structs.replace(ContentConfig(), **{field: value})
