"""A broker that acknowledges nothing: other clients continue, and it catches up when it is back."""

from collections.abc import Mapping
from typing import Any

import pytest
from tests.protocols.transactions.harness import TransactionNet, line, pub

from ensue.protocols.content.client import Answered, Welcomed
from ensue.protocols.content.config import ContentConfig

AWAY_NS = 5 * 10**9
CONFIG = ContentConfig(lease_ns=10**15, beat_ns=10**14, journal_bytes_min=2000, away_ns=AWAY_NS)
HOMES = {"c0": "b0", "c1": "b1", "c2": "b2", "c3": "b3"}


class Tree(TransactionNet):
    """A line of four brokers, one of which may be stopped."""

    def __init__(self, homes: Mapping[str, str] = HOMES, *, seed: int = 0) -> None:
        self.stopped = ""
        super().__init__(line(4), homes, seed=seed, config=CONFIG)
        self.on_notified = None

    def step(self) -> bool:
        ready = [key for key, frames in self.flying.items() if frames and self.stopped not in key]
        if not ready:
            return False
        self.step_on(self.random.choice(ready))
        return True

    def elapse(self, duration_ns: int) -> None:
        self.now_ns += duration_ns
        for name in self.nodes:
            if name != self.stopped:
                self.timer(name)
        self.settle()

    def stop(self, broker: str) -> None:
        self.stopped = broker

    def resume(self) -> None:
        self.stopped = ""
        for name in self.nodes:
            self.resend(name)
        self.settle()

    def ask(self, client: str, call: Any) -> int:
        found = self.command(client, call)
        self.settle()
        return found if isinstance(found, int) else int(found[0])

    def subscribe(self, client: str, where: str) -> int:
        return self.ask(client, lambda node, now: node.subscribe(where, now_ns=now))

    def advertise(self, client: str, where: str) -> int:
        return self.ask(client, lambda node, now: node.advertise(where, now_ns=now))

    def publish(self, client: str, payload: str, **attributes: Any) -> int:
        return self.ask(
            client, lambda node, now: node.publish(attributes, payload.encode(), now_ns=now)
        )

    def answer(self, client: str, number: int) -> Answered | None:
        answers = [one for one in self.notified[client] if isinstance(one, Answered)]
        return next((one for one in answers if one.number == number), None)

    def subscribed(self, client: str) -> list[str]:
        return [
            row["topic"]
            for row in self.rows
            if row["node"] == client and row["action"] == "subscribed"
        ]


@pytest.mark.parametrize("restarts", ["", "b0", "b1"])
@pytest.mark.parametrize("seed", range(4))
def test_clients_subscribe_and_advertise_while_another_broker_is_stopped(
    seed: int, restarts: str
) -> None:
    net = Tree(seed=seed)
    net.advertise("c0", "n exists")
    net.advertise("c3", "n exists")
    net.stop("b2")
    first = net.subscribe("c1", "n > 0")
    assert net.answer("c1", first) is None, "b2 may just be slow"
    net.elapse(AWAY_NS)
    answer = net.answer("c1", first)
    assert answer is not None
    assert (answer.refused, answer.away) == ("", ("b2",))
    second, advertised = net.subscribe("c0", "n > 5"), net.advertise("c1", "m exists")
    for client, number in (("c0", second), ("c1", advertised)):
        later = net.answer(client, number)
        assert later is not None, "no client waits for b2 any more"
        assert later.away == ("b2",)
    net.publish("c0", "near", n=7)
    assert net.payloads("c1") == ["near"]
    assert net.payloads("c0") == ["near"]
    if restarts:
        net.crash(restarts)
        net.settle()
    assert not net.subscribed("c1"), "it has not reached b2"
    net.resume()
    assert net.subscribed("c1") == ["n > 0"]
    net.publish("c3", "far", n=7)
    assert net.payloads("c1") == ["near", "far"]
    assert net.payloads("c0") == ["near", "far"]
    net.at_rest()


def test_new_client_is_welcomed_while_another_broker_is_stopped() -> None:
    net = Tree()
    net.stop("b2")
    net.homes["new"] = "b0"
    net.disks["new"], net.notified["new"] = {}, []
    TransactionNet.start(net, "new")
    net.settle()
    assert Welcomed() not in net.notified["new"]
    net.elapse(AWAY_NS)
    assert net.notified["new"].count(Welcomed()) == 1
    number = net.subscribe("new", "x = 1")
    assert net.answer("new", number) is not None
    net.resume()
    assert net.notified["new"].count(Welcomed()) == 1
    assert net.broker("b3").home_of("new") == "b0"
    net.at_rest()


@pytest.mark.parametrize("seed", range(4))
def test_events_published_meanwhile_reach_subscribers_of_a_stopped_broker(seed: int) -> None:
    """The advertisement attracts subscriptions, needed nowhere before, when the broker is back."""
    net = Tree(seed=seed)
    net.subscribe("c2", "n exists")
    net.subscribe("c3", "n > 5")
    net.stop("b2")
    advertised = net.advertise("c0", "n exists")
    net.elapse(AWAY_NS)
    assert net.answer("c0", advertised) is not None
    net.publish("c0", "one", n=1)
    net.publish("c0", "nine", n=9)
    net.crash("b1")
    net.settle()
    net.publish("c0", "ten", n=10)
    net.resume()
    assert net.payloads("c2") == ["one", "nine", "ten"]
    assert net.payloads("c3") == ["nine", "ten"]
    net.publish("c0", "last", n=11)
    assert net.payloads("c2")[-1] == net.payloads("c3")[-1] == "last"
    net.at_rest()


def test_subscription_answered_ahead_of_an_away_broker_covers_nothing() -> None:
    net = Tree()
    net.advertise("c3", "n exists")
    net.stop("b3")
    wide = net.subscribe("c0", "n exists")
    net.elapse(AWAY_NS)
    assert net.answer("c0", wide) is not None
    net.stopped = ""  # It is back, and does not know the subscription yet.
    net.nodes["b2"].receive(net.wire.decode(_beat(net)), source="b3", now_ns=net.now_ns)
    net.drain("b2")
    net.stopped = "b3"
    narrow = net.subscribe("c0", "n > 5")
    assert net.answer("c0", narrow) is None, "publishers at b3 do not know of it yet"
    net.resume()
    assert net.answer("c0", narrow) == Answered(narrow)
    net.at_rest()


def _beat(net: Tree) -> bytes:
    from ensue.protocols.shared.link import LinkAck  # noqa: PLC0415 - a sign of life

    return net.wire.encode(LinkAck(number=0))


def test_transaction_publishes_only_under_advertisements_at_all_brokers() -> None:
    net = Tree()
    net.subscribe("c3", "n exists")
    net.stop("b3")
    net.advertise("c0", "n exists")
    net.elapse(AWAY_NS)
    net.on_notified = net.application.take
    net.start("c0", pub("torn", n=1), isolation="atomic")
    net.settle()
    assert "'c0.adv1' has not reached all brokers: try again" in net.answers("c0").values()
    net.resume()
    net.elapse(10**9)
    assert net.run("c0", pub("whole", n=1), isolation="atomic") == ""
    assert net.payloads("c3") == ["whole"]
    net.at_rest()


def test_clients_wait_for_a_neighbor_that_never_answered() -> None:
    """It may not know this broker yet: a joining broker starts with the state of the tree."""
    net = Tree({})
    net.stop("b1")
    net.homes["c0"] = "b0"
    net.disks["c0"], net.notified["c0"] = {}, []
    TransactionNet.start(net, "c0")
    net.settle()
    net.elapse(10 * AWAY_NS)
    assert not net.notified["c0"]
    net.resume()
    assert net.notified["c0"] == [Welcomed()]
