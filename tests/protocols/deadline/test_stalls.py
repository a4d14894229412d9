"""Outcomes of a broker's own events after a stall, and its memory of departed peers."""

from tests.protocols.deadline.net import MS, Net

from ensue.core.event import CLOCK, DEADLINE
from ensue.protocols.deadline.config import DeadlineConfig
from ensue.protocols.deadline.partial_views import Picker, Views
from ensue.protocols.interface import Discard

CONFIG = DeadlineConfig()


def test_events_a_stopped_broker_could_not_push_in_time_are_reported_dropped() -> None:
    net = Net(CONFIG, 1, 1)
    net.subscribe("s0", "t", "u")
    net.wait(3_000)
    names = [f"{topic} {number}" for number in range(4) for topic in "tu"]
    for name in names:
        net.publish("b0", name[0], name)
    first_round = CONFIG.round_of(net.now_ns)
    net.settle()
    net.now_ns += 3_000 * MS
    net.nodes["b0"].handle_timer(now_ns=net.now_ns)
    net.drain("b0")
    net.wait(1_000)
    assert net.got("s0") == names[:1], "it was pushed at once"
    assert net.dropped("b0") == dict.fromkeys(names[1:], "late")
    assert net.broker("b0").counts.late == 7
    dropped = [each.event for each in net.effects["b0"] if isinstance(each, Discard)]
    for number, event in enumerate(dropped, start=first_round + 1):
        assert event.stamp is not None
        over_ns = (number + CONFIG.lifetime_rounds) * CONFIG.period_ns
        assert event.stamp.entries == {CLOCK: number, DEADLINE: over_ns}


def test_events_pushed_late_but_in_time_are_not_dropped() -> None:
    net = Net(CONFIG, 1, 1)
    net.subscribe("s0", "t", "u")
    net.wait(3_000)
    for name in ("t", "u"):
        net.publish("b0", name, name)
    net.settle()
    net.now_ns += (CONFIG.lifetime_rounds - 1) * CONFIG.period_ns
    net.nodes["b0"].handle_timer(now_ns=net.now_ns)
    net.drain("b0")
    net.wait(1_000)
    assert net.got("s0") == ["t", "u"]
    assert net.dropped("b0") == {}
    assert net.broker("b0").counts.late == 0


def test_topics_without_members_are_forgotten() -> None:
    net = Net(CONFIG, 1, 2)
    for number in range(100):
        for name in net.subscribers:
            net.subscribe(name, f"topic {number}")
        net.wait(30)
        for name in net.subscribers:
            net.unsubscribe(name, f"topic {number}")
        net.wait(30)
    nodes = [net.broker("b0")._push.views, net.nodes["s0"]._views]  # type: ignore[union-attr]
    assert [each._of_topic for each in nodes] == [{}, {}]


def test_topics_of_long_silent_peers_are_forgotten() -> None:
    views = Views("me", "", CONFIG, Picker("me"))
    net = Net(CONFIG, 1, 1)
    net.subscribe("s0", "t")
    me = net.nodes["s0"]._me(net.now_ns)  # type: ignore[union-attr]
    views.learn(me)
    assert views.of("t") == ["s0"]
    views.expire(me.round + CONFIG.expire_rounds + 1)
    assert (views.peers, views._of_topic) == ({}, {})
