"""Brokers and subscribers as a driver sees them: groups, repair, views, crashes and limits."""

from typing import Any

import msgspec
import pytest
from tests.protocols.deadline.net import MS, Net

from ensue.core.errors import ConfigurationError, LimitReached
from ensue.protocols.deadline.broker import DeadlineBroker
from ensue.protocols.deadline.config import DeadlineConfig
from ensue.protocols.deadline.frames import Message, Peer, Request, Rumors, Summary
from ensue.protocols.deadline.partial_views import Picker, Views
from ensue.protocols.deadline.subscriber import DeadlineSubscriber
from ensue.protocols.interface import Arrive, Frame, Publish, Send, Settle

CONFIG = DeadlineConfig(
    period_ns=10 * MS,
    lifetime_ns=200 * MS,
    lifetime_ns_max=200 * MS,
    slack_ns=1,
    subscribers_max=8,
    fan_out=3,
)


def with_(**changes: Any) -> DeadlineConfig:
    return msgspec.structs.replace(CONFIG, **changes)


def net_of(config: DeadlineConfig, brokers: int, subscribers: int = 0, *topics: str) -> Net:
    """Return a net in which all nodes are subscribed."""
    net = Net(config, brokers, subscribers)
    for name in (*net.brokers, *net.subscribers):
        net.subscribe(name, *topics)
    net.wait(50)
    net.sent.clear()
    return net


# -- Brokers ---------------------------------------------------------------------------------------


def test_brokers_deliver_events_of_their_groups() -> None:
    net = Net(CONFIG, 3)
    net.subscribe("b0", "one")
    net.subscribe("b1", "one", "two")
    net.wait(1)
    assert net.changes("b1") == ["+one", "+two"]
    net.publish("b2", "one", "first")
    net.publish("b2", "two", "second")
    net.publish("b1", "two", "own")
    net.wait(1)
    assert net.got("b0") == ["first"]
    assert net.got("b1") == ["own", "first", "second"], "its own at once"
    assert net.got("b2") == []
    said = [type(effect) for effect in net.effects["b2"]]
    assert said == [Publish, Settle, Publish, Settle]
    net.unsubscribe("b1", "one")
    net.wait(1)
    net.publish("b2", "one", "third")
    net.wait(1)
    assert net.got("b0") == ["first", "third"]
    assert net.changes("b1") == ["+one", "+two", "-one"]
    assert "third" not in net.got("b1")


def test_an_answer_waits_for_its_question_and_no_longer_than_to_its_deadline() -> None:
    net = net_of(with_(fan_out=1), 3, 0, "t")
    net.loses = lambda source, target, frame: (source, target) == ("b0", "b2")
    net.publish("b0", "t", "question")
    net.settle()
    # No peer sends it either.
    net.loses = lambda _source, target, frame: (
        isinstance(frame, Summary)
        or (target == "b2" and isinstance(frame, Message) and frame.source == 0)
    )
    net.publish("b1", "t", "answer")
    net.settle()
    assert net.nodes["b2"].held_count == 1
    assert net.got("b2") == []
    net.wait(199)
    assert net.got("b2") == []
    net.wait(1)
    assert net.got("b2") == ["answer"]
    net.loses = lambda *_: False
    net.wait(50)
    assert net.got("b2") == ["answer"], "the question has expired"


def test_lost_message_is_repaired_by_any_broker_that_has_it() -> None:
    net = net_of(CONFIG, 4, 0, "t")
    net.loses = lambda source, target, _frame: "b0" in (source, target) and "b3" in (source, target)
    net.publish("b0", "t", "one")
    net.publish("b0", "t", "two")
    net.wait(60)
    assert net.got("b3") == ["one", "two"]
    summaries = [frame for _, target, frame in net.sent if isinstance(frame, Summary)]
    assert summaries
    assert all(list(frame.have) == [0] for frame in summaries)
    asked = [(source, frame) for source, _, frame in net.sent if isinstance(frame, Request)]
    assert {source for source, _ in asked} == {"b3"}, "only who lacks something asks"
    copies = [f for _, target, f in net.sent if isinstance(f, Message) and target == "b3"]
    assert {frame.base for frame in copies} == {0}, "copies are whole"
    net.wait(400)
    assert all(node.next_timer_ns() is None for node in net.nodes.values()), "then all is quiet"


@pytest.mark.parametrize("tags", [False, True])
def test_late_event_is_dropped_or_delivered_with_a_verdict_once(tags: bool) -> None:
    net = net_of(with_(deliver_late=tags), 2, 0, "t")
    net.loses = lambda _source, _target, frame: not isinstance(frame, Message)
    net.publish("b0", "t", "slow")
    net.publish("b0", "t", "other", lifetime_ns=CONFIG.lifetime_ns_max)
    late = [entry for entry in net.under_way if isinstance(entry[2], Message)]
    net.under_way.clear()
    net.wait(201)
    net.under_way += late + late
    net.settle()
    assert net.got("b1") == (["slow (late)", "other (late)"] if tags else [])
    assert net.dropped("b1") == ({} if tags else {"slow": "late", "other": "late"})
    counts = net.broker("b1").counts
    assert (counts.received, counts.late, counts.duplicate, counts.delivered) == (2, 2, 2, 0)
    assert counts.on_time_share() == 0


def test_reply_to_a_late_event_comes_after_it() -> None:
    """It has expired between brokers, but not yet for subscribers."""
    net = net_of(with_(deliver_late=True, alpha=30), 2, 1, "t")
    net.loses = lambda *_: True
    net.publish("b0", "t", "question")
    (late,) = [entry for entry in net.sent if isinstance(entry[2], Message)]
    net.now_ns += 201 * MS
    net.under_way.append(late)
    net.settle()
    assert net.got("b1") == ["question (late)"]
    net.loses = lambda source, target, frame: source == "b0" and target == "s0"
    net.publish("b1", "t", "answer")
    net.settle()
    assert net.nodes["s0"].held_count == 1, "it waits for the question"
    net.wait(200)
    assert net.got("s0") == ["answer"]


def test_matrices_travel_as_differences_once_the_other_is_known_to_have_a_base() -> None:
    net = net_of(CONFIG, 4, 0, "t")
    sizes: list[tuple[int, int]] = []
    for number in range(6):
        for name in net.brokers:
            net.publish(name, "t", f"{name} {number}")
            net.settle()
    for _, _, frame in net.sent:
        if isinstance(frame, Message):
            sizes.append((frame.base, sum(map(len, frame.after.values()))))
    whole = [size for base, size in sizes if not base]
    parts = [size for base, size in sizes if base]
    assert len(parts) > 3 * len(whole)
    assert max(parts) <= 4, "one set for each sender, since all of them send to all"
    for name in net.brokers:
        assert net.got(name) == [f"{x} {number}" for number in range(6) for x in net.brokers]


def test_undecodable_difference_is_requested_in_full() -> None:
    net = net_of(CONFIG, 3, 0, "t")
    for number in range(3):
        net.publish("b0", "t", f"from b0 {number}")
        net.settle()
        net.publish("b1", "t", f"from b1 {number}")
        net.settle()
    net.crash("b1")
    net.start("b1")
    net.publish("b0", "t", "new")
    (first,) = [f for _, t, f in net.under_way if isinstance(f, Message) and t == "b1"]
    assert first.base, "b0 does not know yet that b1 was restarted"
    net.settle()
    assert net.broker("b1").counts.unreadable == 1
    assert net.got("b1")[-1] == "new"


def test_restarted_broker_is_silent_until_all_it_knew_has_expired() -> None:
    net = net_of(with_(spreads=False), 2, 0, "t")
    net.publish("b0", "t", "before")
    net.settle()
    net.crash("b1")
    net.start("b1")
    net.settle()
    net.publish("b1", "t", "after")
    net.settle()
    assert net.got("b0") == ["before"]
    assert net.broker("b1").unsettled_count == 1
    net.wait(200)
    assert net.got("b0") == ["before"]
    net.wait(1)
    assert net.got("b0") == ["before", "after"]
    net.crash("b1")
    net.start("b1")
    net.wait(250)
    net.publish("b1", "t", "numbered on")
    net.settle()
    published = [e.event for e in net.effects["b1"] if isinstance(e, Publish)]
    assert [event.publisher_seq for event in published] == [1, 2]


def test_broker_that_crashes_twice_waits_for_what_its_first_run_knew() -> None:
    net = net_of(with_(spreads=False), 3, 0, "t")
    net.loses = lambda _source, target, _frame: target == "b2"
    net.publish("b0", "t", "long")
    net.settle()
    net.crash("b1")
    net.start("b1")
    net.settle()
    net.loses = lambda _source, target, _frame: target == "b0"
    net.publish("b2", "t", "short", lifetime_ns=20 * MS)
    net.wait(1)
    net.crash("b1")
    net.start("b1")
    net.loses = lambda *_: False
    net.publish("b1", "t", "after")
    net.wait(190)
    assert net.broker("b1").unsettled_count == 1, "a broker may still deliver the first one"
    net.wait(20)
    assert net.broker("b1").unsettled_count == 0


def test_a_broker_that_was_down_delivers_nothing_twice() -> None:
    net = net_of(CONFIG, 3, 0, "t")
    net.publish("b0", "t", "once")
    net.settle()
    net.crash("b2")
    net.start("b2")
    net.wait(100)
    assert net.got("b2") == ["once"], "the summaries of the others bring no second one"


def test_brokers_come_and_go() -> None:
    net = net_of(CONFIG, 2, 0, "t")
    rows = [row for name in net.brokers for row in net.broker(name).rows]
    net.brokers.append("b2")
    net.records["b2"] = {}
    net.nodes["b2"] = DeadlineBroker(
        name="b2", names=net.brokers, config=CONFIG, rows=rows, now_ns=net.now_ns
    )
    for name in ("b0", "b1"):
        net.broker(name).admit("b2", now_ns=net.now_ns)
        net.drain(name)
    net.subscribe("b2", "t")
    net.settle()
    net.publish("b2", "t", "hello")
    net.publish("b0", "t", "welcome")
    net.settle()
    assert net.got("b1") == ["hello", "welcome"]
    assert net.got("b2") == ["hello", "welcome"]
    del net.nodes["b2"]
    for name in ("b0", "b1"):
        net.broker(name).dismiss("b2", now_ns=net.now_ns)
    net.sent.clear()
    net.publish("b0", "t", "alone")
    net.wait(250)
    assert "b2" not in {target for _, target, _ in net.sent}
    assert net.nodes["b0"].next_timer_ns() is None


def test_broker_joins_even_if_another_does_not_answer() -> None:
    net = Net(with_(join_ns=300 * MS), 2)
    net.crash("b1")
    net.subscribe("b0", "t")
    net.wait(299)
    assert net.changes("b0") == []
    net.wait(2)
    assert net.changes("b0") == ["+t"]


def test_invalid_messages_change_nothing() -> None:
    net = net_of(CONFIG, 2, 0, "t")
    net.publish("b0", "t", "good")
    (good,) = [frame for _, _, frame in net.under_way if isinstance(frame, Message)]
    net.under_way.clear()
    broker = net.broker("b1")
    bare = msgspec.structs.replace(good.event, stamp=None)
    for bad in (
        msgspec.structs.replace(good, event=bare),
        msgspec.structs.replace(good, source=9),
        msgspec.structs.replace(good, dest=b""),
    ):
        broker.receive(bad, source="b0", now_ns=net.now_ns)
    assert broker.held_count == 0
    assert not [e for e in broker.take_effects() if not isinstance(e, Send)]
    broker.receive(good, source="b0", now_ns=net.now_ns - 10**10)
    assert broker.counts.unreadable == 3, "its deadline is further away than any can be"


def test_limits_of_brokers() -> None:
    net = net_of(with_(held_max=1, rounds_ahead_max=8, outgoing_max=1), 3, 0, "t", "u")
    net.loses = lambda _source, target, _frame: target == "b2"
    net.publish("b0", "t", "missing")
    net.settle()
    net.loses = lambda _source, _target, frame: isinstance(frame, Summary)
    for text in ("held", "too much"):
        net.publish("b0", "t", text)
    net.settle()
    assert net.dropped("b2") == {"too much": "overflow"}
    assert net.broker("b2").counts.overflow == 1


def test_publishing_is_refused_beyond_rounds_ahead_max() -> None:
    net = net_of(with_(rounds_ahead_max=2), 1, 0, "t", "u")
    for topic in ("t", "u", "t"):
        net.publish("b0", topic, "ahead")
    with pytest.raises(LimitReached, match="rounds_ahead_max"):
        net.publish("b0", "u", "too far ahead")
    net.wait(10)
    net.publish("b0", "u", "a round later")


def test_events_held_back_after_a_restart_have_a_limit() -> None:
    net = net_of(with_(outgoing_max=1), 2, 0, "t")
    net.publish("b0", "t", "before")
    net.crash("b0")
    net.start("b0")
    net.publish("b0", "t", "waits")
    with pytest.raises(LimitReached, match="outgoing_max"):
        net.publish("b0", "t", "has no room")


# -- Subscribers -----------------------------------------------------------------------------------


def test_subscribers_get_their_topics_and_gossip_them() -> None:
    net = Net(with_(fan_out=1, alpha=5), 2, 4)
    net.subscribe("s0", "one")
    net.subscribe("s1", "one", "two")
    net.subscribe("s2", "two")
    net.subscribe("s3", "one")
    net.wait(50)
    assert net.changes("s1") == ["+one", "+two"]
    net.sent.clear()
    net.publish("b0", "one", "1")
    net.publish("b1", "two", "2")
    net.wait(120)
    assert [net.got(name) for name in net.subscribers] == [["1"], ["1", "2"], ["2"], ["1"]]
    for _, target, frame in net.sent:
        if isinstance(frame, Rumors) and target in ("s0", "s3"):
            assert all(rumor.topic == "one" for rumor in frame.rumors)
    passed = {source for source, _, f in net.sent if isinstance(f, Rumors) and f.rumors}
    assert passed & set(net.subscribers), "not only brokers push it"


def test_a_broker_has_a_round_for_each_message_and_puts_events_of_a_topic_together() -> None:
    net = net_of(CONFIG, 1, 1, "t", "u")
    for topic, text in (("t", "1"), ("t", "2"), ("t", "3"), ("u", "4"), ("t", "5")):
        net.publish("b0", topic, text)
    net.wait(60)
    assert net.got("s0") == ["1", "2", "3", "4", "5"]
    pushed = [
        (rumor.round, len(rumor.events))
        for source, target, frame in net.sent
        if isinstance(frame, Rumors) and (source, target) == ("b0", "s0")
        for rumor in frame.rumors
    ]
    first = pushed[0][0]
    assert dict(pushed) == {first: 1, first + 1: 2, first + 2: 1, first + 3: 1}


def test_order_across_brokers_reaches_subscribers_with_the_message_between_brokers() -> None:
    net = net_of(with_(alpha=3), 2, 1, "t")
    net.loses = lambda source, target, _frame: (source, target) == ("b0", "s0")
    net.publish("b0", "t", "question")
    net.settle()
    net.publish("b1", "t", "answer")
    net.wait(15)
    assert net.got("b1") == ["question", "answer"]
    assert net.got("s0") == []
    assert net.nodes["s0"].held_count == 1
    net.wait(60)
    assert net.got("s0") == ["answer"], "the question has expired"


def test_subscriber_requests_missing_messages_by_id() -> None:
    net = net_of(with_(push_rounds=1, alpha=6), 1, 2, "t")
    net.loses = lambda _source, target, frame: (
        target == "s1" and isinstance(frame, Rumors) and bool(frame.rumors)
    )
    net.publish("b0", "t", "m")
    net.wait(25)
    assert net.got("s1") == []
    net.loses = lambda *_: False
    net.wait(30)
    assert net.got("s1") == ["m"]
    assert any(type(frame).__name__ == "Wanted" for _, _, frame in net.sent)


def test_late_message_is_dropped_and_reported() -> None:
    net = net_of(CONFIG, 1, 1, "t")
    net.publish("b0", "t", "slow")
    late = list(net.under_way)
    net.under_way.clear()
    net.loses = lambda *_: True
    net.wait(CONFIG.lifetime_rounds * 10)
    net.under_way += late
    net.settle()
    assert net.dropped("s0") == {"slow": "late"}
    assert [type(e) for e in net.effects["s0"] if isinstance(e, Arrive)] == [Arrive]


def test_subscriber_leaves_crashes_and_restarts() -> None:
    net = net_of(CONFIG, 1, 2, "t")
    net.publish("b0", "t", "1")
    net.wait(30)
    net.crash("s1")
    net.start("s1")
    net.publish("b0", "t", "2")
    net.wait(100)
    assert net.got("s1") == ["1"], "what is of the round it came back in is not for it"
    assert net.changes("s1") == ["+t", "+t"]
    net.publish("b0", "t", "3")
    net.wait(30)
    assert net.got("s1") == ["1", "3"]
    net.unsubscribe("s1", "t")
    net.wait(5)
    net.sent.clear()
    net.publish("b0", "t", "4")
    net.wait(100)
    assert net.got("s1") == ["1", "3"]
    assert "s1" not in {t for _, t, f in net.sent if isinstance(f, Rumors) and f.rumors}
    assert net.got("s0") == ["1", "2", "3", "4"]


def test_departed_peers_are_forgotten() -> None:
    net = net_of(with_(announce_rounds=2, expire_rounds=10), 1, 3, "t")
    net.crash("s2")
    net.wait(200)
    net.sent.clear()
    net.publish("b0", "t", "m")
    net.wait(100)
    assert "s2" not in {target for _, target, _ in net.sent}


# -- Views -----------------------------------------------------------------------------------------


def peer(name: str, site: str = "", *topics: str, round_: int = 1) -> Peer:
    return Peer(name, site, topics or ("t",), round_)


def test_views_are_partial_and_mostly_near() -> None:
    config = with_(view_max=8, near_percent=75)
    views = Views("me", "here", config, Picker("me"))
    for number in range(100):
        views.learn(peer(f"near{number}", "here"))
        views.learn(peer(f"far{number}", "there"))
    known = views.of("t")
    assert len(known) == 8
    assert sum(name.startswith("near") for name in known) == 6
    assert len(views.peers) == 8
    chosen = [one.site for _ in range(400) for one in views.choose(("t",), 2)]
    assert 0.65 < chosen.count("here") / len(chosen) < 0.85


def test_view_uses_the_latest_entry_of_a_peer() -> None:
    views = Views("me", "", CONFIG, Picker("me"))
    views.learn(peer("p", "", "t", "u", round_=5))
    views.learn(peer("p", "", "t", round_=6))
    views.learn(peer("p", "", "u", round_=4))
    assert (views.of("t"), views.of("u")) == (["p"], [])
    views.learn(peer("p", "", "v", round_=7), ("t", "u"))
    assert views.peers == {}
    views.learn(peer("me"))
    assert views.peers == {}, "no process is a peer of itself"


def test_choices_are_deterministic_and_uniform() -> None:
    one, two = Picker("a"), Picker("a")
    drawn = [one.below(10) for _ in range(2_000)]
    assert drawn == [two.below(10) for _ in range(2_000)]
    assert all(120 < drawn.count(number) < 280 for number in range(10))
    assert sorted(one.sample(range(5), 9)) == [0, 1, 2, 3, 4]


# -- Configuration ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"fan_out": 0},
        {"fan_out": 1_001},
        {"period_ns": 0},
        {"alpha": -1},
        {"alpha": 65},
        {"held_max": 0},
        {"near_percent": 101},
        {"slack_ns": 0},
        {"lifetime_ns": 300 * MS},
        {"slack_ns": 200 * MS},
        {"subscribers_max": 0},
    ],
)
def test_bounds_of_the_configuration(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        with_(**wrong)


@pytest.mark.parametrize(
    ("subscribers", "alpha", "rounds"),
    [(1, 0, 1), (2, 0, 1), (3, 1, 3), (4, 1, 3), (5, 0, 3), (200, 2, 10)],
)
def test_lifetimes_grow_with_the_logarithm(subscribers: int, alpha: int, rounds: int) -> None:
    assert DeadlineConfig(subscribers_max=subscribers, alpha=alpha).lifetime_rounds == rounds


def test_unexpected_frames_change_nothing() -> None:
    class Stray(Frame, frozen=True, tag=1):
        pass

    for node in (
        DeadlineBroker(name="b", names=["b", "c"], config=CONFIG),
        DeadlineSubscriber(name="s", brokers=["b"], config=CONFIG),
    ):
        node.take_effects()
        for source in ("b", "c", "nobody"):
            node.receive(Stray(), source=source, now_ns=1)
        assert not [effect for effect in node.take_effects() if not isinstance(effect, Send)]
