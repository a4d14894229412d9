"""Repair names lost messages, sends no expired ones, and bounds rounds ahead and memory."""

import msgspec
import pytest
from tests.protocols.deadline.brokers import A, B, Broker, event_of
from tests.protocols.deadline.net import MS, Net

from ensue.protocols.deadline.config import DeadlineConfig
from ensue.protocols.deadline.frames import Message, Peer, Request, Rumor, Rumors, Summary, Wanted
from ensue.protocols.deadline.gossip_push import GossipPush
from ensue.protocols.deadline.partial_views import Picker, Views
from ensue.protocols.deadline.subscriber import DeadlineSubscriber
from ensue.protocols.interface import Deliver, Discard, Send

CONFIG = DeadlineConfig(
    period_ns=10 * MS,
    lifetime_ns=200 * MS,
    lifetime_ns_max=200 * MS,
    slack_ns=1,
    subscribers_max=8,
    fan_out=2,
    spreads=False,
)


@pytest.mark.parametrize("colors", [None, 20])
def test_expired_message_is_not_sent_on_request(colors: int | None) -> None:
    """A stopped process has expired messages; with colors they have the ids of new ones."""
    age = None if colors is None else 10
    config = msgspec.structs.replace(CONFIG, colors=colors, copy_age_rounds=age, spreads=True)
    gossip = GossipPush(config, Views("s0", "", config, Picker("s0")))
    sent_round = 7
    old = Rumor("t", 0, config.to_wire(sent_round), {}, ())
    gossip.add(old, sent_round)
    alive = sent_round + config.lifetime_rounds - 1
    assert gossip.answer(Wanted(ids=(old.id,)), "s1", alive)
    assert gossip.answer(Wanted(ids=(old.id,)), "s1", alive + 1) == []
    # A new one with the same id replaces it.
    later = sent_round + (colors or 0)
    new = Rumor("t", 0, config.to_wire(later), {"t": {1: 3}}, ())
    gossip.add(new, later)
    if colors:
        (sent,) = gossip.answer(Wanted(ids=(new.id,)), "s1", later)
        assert sent.frame == Rumors(rumors=(new,), have=(), peers=())  # type: ignore[union-attr]


def test_rounds_ahead_are_limited_after_a_restart_too() -> None:
    config = msgspec.structs.replace(CONFIG, spreads=True, rounds_ahead_max=3)
    net = Net(config, 1, 1)
    for name in ("b0", "s0"):
        net.subscribe(name, "t", "u")
    net.wait(50)
    net.publish("b0", "t", "before")
    net.crash("b0")
    net.start("b0")
    texts = [str(number) for number in range(12)]
    for number, text in enumerate(texts):
        net.publish("b0", "tu"[number % 2], text)
    broker = net.broker("b0")
    ahead: list[int] = []
    for _ in range(60):
        net.wait(10)
        ahead.append(broker._push.vector.own - config.round_of(net.now_ns))
    assert max(ahead) <= config.rounds_ahead_max
    assert broker.unsettled_count == 0
    assert net.got("s0")[-12:] == texts


def test_stamps_stay_above_dropped_messages_when_a_clock_goes_back() -> None:
    """Stamps travel as differences from the message's own, and none of those may be negative."""
    net = Net(CONFIG, 2)
    for name in ("b0", "b1"):
        net.subscribe(name, "t")
    net.wait(50)
    net.loses = lambda _source, target, frame: target == "b1" and isinstance(frame, Message)
    net.publish("b0", "t", "missing")
    net.settle()
    net.loses = lambda _source, _target, frame: isinstance(frame, Summary)
    net.publish("b0", "t", "waits")
    net.settle()
    broker, before_ns = net.broker("b1"), net.now_ns
    net.now_ns += 201 * MS
    broker.handle_timer(now_ns=net.now_ns)
    net.drain("b1")
    assert net.dropped("b1") == {"waits": "late"}, "it was stopped"
    net.now_ns = before_ns - 5 * MS
    net.publish("b1", "t", "after")
    net.settle()
    assert net.got("b0")[-1] == "after"


def test_broker_that_only_receives_forgets_departed_brokers() -> None:
    listener, horizon = Broker(A), Broker(A).rules.config.horizon_ns
    for number in range(B, 200):
        now = number * horizon
        sender = Broker(number)
        sender.send("to others", (*range(B, number), number + 1), now)
        listener.receive(sender.send(str(number), (A,), now), now)
    assert listener.got == [str(number) for number in range(B, 200)]
    rules = listener.rules
    assert len(rules.settled) < 6
    assert sum(map(len, rules.matrix.values())) < 2_000, "of twenty thousand"
    listener.receive(Broker(B).send("late", (A,), B * horizon), 200 * horizon)
    assert listener.refused == {"late": "late"}, "forgotten messages have expired"


def lossy(net: Net, *, until_ns: int) -> None:
    """Lose all messages up to some time, but neither summaries nor copies."""
    net.loses = lambda _source, _target, frame: (
        isinstance(frame, Message) and net.now_ns <= until_ns
    )


def test_group_of_two_is_repaired_as_fast_as_a_large_group() -> None:
    """A member of many small groups sends summaries to a few of each, not of all."""
    net = Net(CONFIG, 40)
    for number in range(1, 40):
        net.subscribe("b0", f"t{number}")
        net.subscribe(f"b{number}", f"t{number}")
    net.wait(50)
    lossy(net, until_ns=net.now_ns)
    for number in range(1, 40):
        net.publish("b0", f"t{number}", str(number))
    net.wait(10)
    assert {name: net.got(name) for name in net.brokers[1:]} == {
        f"b{number}": [str(number)] for number in range(1, 40)
    }
    targets = [target for _, target, frame in net.sent if isinstance(frame, Summary)]
    assert len(targets) == 39, "one frame each, and no others"


def test_large_group_sends_summaries_to_few_brokers_each() -> None:
    net = Net(CONFIG, 20)
    for name in net.brokers:
        net.subscribe(name, "t")
    net.wait(50)
    for name in net.brokers:
        net.publish(name, "t", "one")
    net.wait(10)
    targets = [target for source, target, frame in net.sent if isinstance(frame, Summary)]
    assert len(targets) <= 20 * CONFIG.fan_out, "however many publish in it"


def test_summary_names_all_new_messages_then_the_latest() -> None:
    config = msgspec.structs.replace(CONFIG, batch_max=4)
    net = Net(config, 2)
    for name in net.brokers:
        net.subscribe(name, "t")
    net.wait(50)
    lossy(net, until_ns=net.now_ns)
    texts = [str(number) for number in range(10)]
    for text in texts:
        net.publish("b0", "t", text)
    net.wait(10)
    assert net.got("b1") == texts
    frames = [frame for _, _, frame in net.sent if isinstance(frame, Summary)]
    assert [sum(map(len, frame.have.values())) for frame in frames] == [4, 4, 2]
    # They are kept until their deadline, beside a new one that is requested twice.
    net.loses = lambda _source, _target, frame: isinstance(frame, Message | Request)
    net.publish("b0", "t", "last")
    net.wait(10)
    net.loses = lambda *_: False
    net.wait(10)
    assert net.got("b1") == [*texts, "last"]


def test_subscribers_get_all_messages_of_a_round() -> None:
    config = msgspec.structs.replace(CONFIG, spreads=True, batch_max=2, push_rounds=1)
    views = Views("s0", "", config, Picker("s0"))
    views.learn(Peer("s1", "", ("t",), 7, {}), ("t",))
    gossip = GossipPush(config, views)
    for source in range(5):
        gossip.add(Rumor("t", source, 7, {}, ()), 7)

    def pushed(now_round: int) -> tuple[list[int], list[int], int]:
        frames = [
            effect.frame
            for effect in gossip.push(now_round, None)
            if isinstance(effect, Send) and isinstance(effect.frame, Rumors)
        ]
        whole = [each.source for frame in frames for each in frame.rumors]
        named = [each[1] for frame in frames for each in frame.have]
        return whole, named, len(frames)

    assert pushed(7) == ([0, 1, 2, 3, 4], [], 3)
    assert pushed(8) == ([], [0, 1, 2, 3, 4], 3)


def test_overflowed_message_is_taken_from_a_later_copy() -> None:
    config = msgspec.structs.replace(CONFIG, spreads=True, held_max=1)
    subscriber = DeadlineSubscriber(name="s0", brokers=(), config=config, now_ns=0)
    subscriber.subscribe(("t",), now_ns=0)
    now_ns = 10 * config.period_ns
    subscriber.handle_timer(now_ns=now_ns)
    waits = Rumor("t", 0, 10, {"t": {1: 9}}, (event_of("waits"),))
    other = Rumor("t", 2, 10, {"t": {1: 9}}, (event_of("other"),))
    dropped: list[str] = []
    got: list[str] = []

    def receive(*rumors: Rumor, round_: int) -> None:
        frame = Rumors(rumors=rumors, have=(), peers=())
        subscriber.receive(frame, source="s1", now_ns=round_ * config.period_ns)
        for effect in subscriber.take_effects():
            if isinstance(effect, Deliver):
                got.append(effect.event.publisher)
            if isinstance(effect, Discard):
                dropped.append(f"{effect.event.publisher} {effect.verdict}")

    receive(waits, other, round_=10)
    assert (got, dropped) == ([], ["other overflow"])
    missing = Rumor("t", 1, 9, {}, (event_of("missing"),))
    receive(missing, round_=10)
    assert got == [], "no room for what it waits for either"
    receive(other, round_=9 + config.lifetime_rounds)
    assert got == ["waits", "other"]
