"""Brokers that join, leave, crash and restart; subscribers follow without manual updates."""

from random import Random

import pytest
from tests.protocols.deadline.net import MS, Net

from ensue.core.event import CLOCK
from ensue.protocols.deadline.broker import DeadlineBroker
from ensue.protocols.deadline.config import DeadlineConfig
from ensue.protocols.deadline.frames import Enter, Peer, Rumors, Welcome
from ensue.protocols.deadline.subscriber import DeadlineSubscriber
from ensue.protocols.interface import Deliver, Publish

CONFIG = DeadlineConfig()
ANNOUNCED_MS = (CONFIG.announce_rounds + 1) * CONFIG.period_ns // MS
"""Time within which each subscriber has announced itself to some broker."""


class Brokers(Net):
    """A net whose brokers join and leave; only brokers are notified."""

    def __init__(self, config: DeadlineConfig, brokers: int, subscribers: int) -> None:
        self.gone: list[str] = []
        super().__init__(config, brokers, subscribers)

    def present(self) -> list[str]:
        return [name for name in self.brokers if name not in self.gone]

    def start(self, name: str) -> None:
        if name not in self.brokers:
            super().start(name)
            return
        self.nodes[name] = DeadlineBroker(
            name=name,
            names=self.brokers,
            gone=[self.brokers.index(each) for each in self.gone],
            config=self.config,
            records=self.records.setdefault(name, {}),
            now_ns=self.now_ns,
        )
        self.drain(name)

    def come(self) -> str:
        name = f"b{len(self.brokers)}"
        self.brokers.append(name)
        self.start(name)
        for other in self.present():
            if other != name:
                self.broker(other).admit(name, now_ns=self.now_ns)
                self.drain(other)
        return name

    def go(self, name: str) -> None:
        self.gone.append(name)
        del self.nodes[name]
        for other in self.present():
            self.broker(other).dismiss(name, now_ns=self.now_ns)
            self.drain(other)

    def subscriber(self, name: str) -> DeadlineSubscriber:
        node = self.nodes[name]
        assert isinstance(node, DeadlineSubscriber)
        return node

    def welcomes(self) -> list[Welcome]:
        return [frame for _, _, frame in self.sent if isinstance(frame, Welcome)]


def listening(brokers: int, subscribers: int, config: DeadlineConfig = CONFIG) -> Brokers:
    net = Brokers(config, brokers, subscribers)
    for name in net.subscribers:
        net.subscribe(name, "t")
    net.wait(1_500)
    assert all(net.nodes[name].topics == ("t",) for name in net.subscribers)
    return net


def test_broker_that_joins_later_reaches_subscribers() -> None:
    net = listening(1, 3)
    net.publish("b0", "t", "old")
    net.wait(500)
    new = net.come()
    net.wait(ANNOUNCED_MS)
    net.publish(new, "t", "new")
    net.wait(500)
    net.publish("b0", "t", "old again")
    net.wait(500)
    for name in net.subscribers:
        assert net.got(name) == ["old", "new", "old again"]
        assert net.subscriber(name)._brokers == ("b0", "b1")


def test_broker_list_is_sent_to_a_subscriber_once() -> None:
    net = listening(2, 2)
    net.sent.clear()
    net.wait(5_000)
    assert any(isinstance(frame, Enter) for _, _, frame in net.sent)
    assert net.welcomes() == []
    net.come()
    net.wait(5_000)
    sent = [each for each in net.welcomes() if each.brokers]
    assert [each.brokers for each in sent] == [("b0", "b1", "b2")] * 2


def test_reply_of_a_new_broker_comes_after_its_request() -> None:
    net = listening(1, 2)
    new = net.come()
    net.subscribe(new, "t")
    net.wait(ANNOUNCED_MS)
    net.loses = lambda source, target, _frame: source == "b0" and target == "s0"
    net.publish("b0", "t", "question")
    net.settle()
    assert net.got(new) == ["question"]
    net.publish(new, "t", "answer")
    net.loses = lambda _source, target, _frame: target == "s0"
    until_ns = net.now_ns + 500 * MS
    while "answer" not in net.got("s1") and net.now_ns < until_ns:
        net.wait(1)
    answers = [f for source, _, f in net.sent if isinstance(f, Rumors) and source == new]
    net.nodes["s0"].receive(answers[0], source=new, now_ns=net.now_ns)
    assert net.subscriber("s0").held_count == 1, "it waits for the question"
    net.loses = lambda *_: False
    net.wait(500)
    for name in net.subscribers:
        assert net.got(name) == ["question", "answer"]


def test_join_waits_for_new_brokers_and_not_for_departed_ones() -> None:
    net = listening(2, 1)
    net.come()
    net.go("b1")
    net.subscribe("s0", "u")
    net.settle()
    attaching = net.subscriber("s0")._pending["u"]
    assert (net.subscriber("s0")._brokers, attaching.missing) == (("b0", "b2"), {})
    net.wait(2 * CONFIG.period_ns // MS)
    assert net.nodes["s0"].topics == ("t", "u"), "long before it would give up"
    net.sent.clear()
    net.wait(5_000)
    assert {to for source, to, _ in net.sent if source == "s0"} == {"b0", "b2"}


def test_restarted_subscriber_finds_new_and_old_brokers() -> None:
    net = listening(1, 1)
    net.come()
    net.wait(ANNOUNCED_MS)
    net.go("b0")
    net.wait(2 * ANNOUNCED_MS)
    net.crash("s0")
    records = net.records["s0"]
    net.nodes["s0"] = DeadlineSubscriber(
        name="s0", brokers=["b0"], config=CONFIG, records=records, now_ns=net.now_ns
    )
    net.drain("s0")
    net.wait(500)
    assert net.subscriber("s0")._brokers == ("b1",)
    net.publish("b1", "t", "new")
    net.wait(500)
    assert net.got("s0") == ["new"]


def test_broker_list_from_a_peer_or_an_older_one_is_ignored() -> None:
    net = listening(1, 1)
    for source, edition in (("s1", 99), ("b0", 1), ("b0", 0)):
        frame = Welcome(topics=(), peers=(), edition=edition, brokers=("evil",))
        net.nodes["s0"].receive(frame, source=source, now_ns=net.now_ns)
    assert net.subscriber("s0")._brokers == ("b0",)
    enter = Enter(peer=Peer("s0", "", ("t",), 1), asks=False, edition=99)
    net.sent.clear()
    net.nodes["b0"].receive(enter, source="s0", now_ns=net.now_ns)
    net.drain("b0")
    assert net.sent == []


def step(net: Brokers, random: Random) -> None:
    """Deliver most frames in random order, lose some, and advance the time."""
    frames, net.under_way = net.under_way, []
    random.shuffle(frames)
    for source, target, frame in frames:
        chance = random.random()
        if chance < 0.2:
            net.under_way.append((source, target, frame))
        elif chance < 0.97 and target in net.nodes:
            net.nodes[target].receive(frame, source=source, now_ns=net.now_ns)
            net.drain(target)
    net.now_ns += random.randrange(12) * MS
    for name, node in net.nodes.items():
        due_ns = node.next_timer_ns()
        if due_ns is not None and due_ns <= net.now_ns:
            node.handle_timer(now_ns=net.now_ns)
            net.drain(name)


def causes(net: Brokers) -> dict[str, set[str]]:
    """Return the predecessors of each event, by deliveries and publications of brokers."""
    direct: dict[str, tuple[int, set[str]]] = {}
    for name in net.brokers:
        known: set[str] = set()
        for effect in net.effects.get(name, []):
            if isinstance(effect, Publish):
                assert effect.event.stamp is not None
                direct[effect.event.id] = (effect.event.stamp.entries[CLOCK], set(known))
            if isinstance(effect, Publish | Deliver):
                known.add(effect.event.id)
    found: dict[str, set[str]] = {}
    for event, (_, before) in sorted(direct.items(), key=lambda each: each[1][0]):
        found[event] = before.union(*(found[each] for each in before))
    return found


@pytest.mark.parametrize("seed", range(8))
def test_order_holds_while_brokers_join_leave_crash_and_restart(seed: int) -> None:
    random = Random(seed)
    net = listening(2, 4, DeadlineConfig(subscribers_max=16, alpha=2))
    for name in net.brokers:
        net.subscribe(name, "t")
    net.wait(500)
    for number in range(500):
        name = random.choice(net.present())
        if number % 100 == 40:
            net.subscribe(net.come(), "t")
        elif number % 200 == 110:
            net.go(random.choice(net.present()[:-1]))
        elif number % 90 == 60:
            net.crash(name)
            net.start(name)
        elif random.random() < 0.2:
            net.publish(name, "t", f"{name} {number}")
        step(net, random)
    net.wait(3_000)
    before, newcomers = causes(net), net.brokers[2:]
    for name in (*net.brokers, *net.subscribers):
        got = [each.event for each in net.effects.get(name, []) if isinstance(each, Deliver)]
        ids = [event.id for event in got]
        assert len(set(ids)) == len(ids)
        for at, event in enumerate(ids):
            late = before[event].intersection(ids[at + 1 :])
            assert not late, f"{name}: {late} after {event}"
        if name in net.subscribers:
            assert sum(event.publisher in newcomers for event in got) > 5
            assert any(before[event.id] for event in got if event.publisher in newcomers)
