"""Messages that a restarted broker can decode, and outcomes of the others."""

from tests.protocols.deadline.net import MS, Net

from ensue.protocols.deadline.config import DeadlineConfig
from ensue.protocols.deadline.frames import Groups, Message, Noted, Request, Summary
from ensue.protocols.interface import Frame

CONFIG = DeadlineConfig(spreads=False)


def talking(config: DeadlineConfig = CONFIG) -> Net:
    """Return two brokers of one group that send each other differences."""
    net = Net(config, 2)
    for name in net.brokers:
        net.subscribe(name, "t")
    net.wait(2_000)
    for number in range(3):
        for name in net.brokers:
            net.publish(name, "t", f"{name} {number}")
            net.wait(20)
    net.publish("b0", "t", "last")
    assert last_message(net).base
    net.wait(20)
    return net


def last_message(net: Net, target: str = "b1") -> Message:
    return [f for _, to, f in net.sent if isinstance(f, Message) and to == target][-1]


def restart(net: Net, name: str = "b1") -> None:
    net.crash(name)
    net.start(name)


def test_messages_after_a_restart_are_decodable_even_if_no_request_arrives() -> None:
    net = talking()
    restart(net)
    net.settle()
    net.loses = lambda _source, _target, frame: isinstance(frame, Request)
    before = len(net.got("b1"))
    for number in range(20):
        net.publish("b0", "t", f"new {number}")
        net.settle()
        assert net.got("b1")[before:] == [f"new {each}" for each in range(number + 1)]
        net.wait(100)
    assert net.broker("b1").counts.unreadable == 0
    assert last_message(net).base == 0, "b1 has not said what it has"
    net.publish("b1", "t", "what I have")
    net.settle()
    net.publish("b0", "t", "less")
    assert last_message(net).base
    net.settle()
    assert net.got("b1")[-1] == "less"


def test_confirmations_of_an_earlier_run_are_ignored() -> None:
    net = talking()
    net.publish("b0", "t", "known to the first self alone")
    net.settle()
    net.now_ns += 20 * MS
    net.broker("b1").handle_timer(now_ns=net.now_ns)
    old = [frame for _, _, frame in held_back(net, "b1") if isinstance(frame, Summary)]
    assert old, "on a long way"
    assert all(frame.heard for frame in old)
    restart(net)
    net.settle()
    for frame in old:
        net.broker("b0").receive(frame, source="b1", now_ns=net.now_ns)
    net.publish("b0", "t", "new")
    assert last_message(net).base == 0
    net.settle()
    assert net.got("b1")[-1] == "new"


def held_back(net: Net, name: str) -> list[tuple[str, str, Frame]]:
    """Return the frames that a node sends, and drop them."""
    net.loses = lambda source, _target, _frame: source == name
    before = len(net.sent)
    net.drain(name)
    net.loses = lambda *_: False
    return net.sent[before:]


def test_stale_groups_frame_only_makes_messages_complete() -> None:
    net = talking()
    groups = [f for source, _, f in net.sent if isinstance(f, Groups) and source == "b1"][-1]
    net.broker("b0").receive(groups, source="b1", now_ns=net.now_ns)
    net.publish("b0", "t", "new")
    assert last_message(net).base, "it was known already"
    net.broker("b0").receive(Request(wanted={}, baseless=True), source="b1", now_ns=net.now_ns)
    net.publish("b0", "t", "newer")
    assert last_message(net).base == 0
    net.settle()
    net.publish("b1", "t", "what I have")
    net.settle()
    net.publish("b0", "t", "newest")
    assert last_message(net).base, "b1 has said again what it has"
    net.settle()
    assert net.got("b1")[-3:] == ["newer", "what I have", "newest"]


def test_request_for_a_complete_message_makes_later_ones_complete() -> None:
    net = talking(DeadlineConfig(spreads=False, join_ns=100 * MS))
    net.loses = lambda _source, _target, frame: isinstance(frame, Groups | Noted)
    restart(net)
    net.wait(100)
    assert net.broker("b1").topics == ("t",), "it waits no longer"
    for number in range(3):
        net.publish("b0", "t", f"new {number}")
        net.settle()
    assert net.got("b1")[-3:] == ["new 0", "new 1", "new 2"]
    assert net.broker("b1").counts.unreadable == 1


def test_undecodable_message_is_reported_dropped_at_its_deadline() -> None:
    net = talking(DeadlineConfig(spreads=False, join_ns=100 * MS))
    net.loses = lambda _source, _target, frame: isinstance(frame, Groups | Noted | Request)
    restart(net)
    net.wait(100)
    net.publish("b0", "t", "new")
    net.settle()
    net.under_way.append(("b0", "b1", last_message(net)))  # A copy changes nothing.
    net.wait(200)
    assert net.dropped("b1") == {}, "it may still come whole"
    net.wait(1)
    assert net.dropped("b1") == {"new": "late"}
    assert net.broker("b1").counts.late == 1


def test_undecodable_message_that_comes_complete_in_time_is_delivered() -> None:
    net = talking()
    restart(net)
    net.publish("b0", "t", "under way")
    difference = last_message(net)
    assert difference.base
    net.settle()
    assert net.broker("b1").counts.unreadable == 1
    net.under_way.append(("b0", "b1", difference))
    net.wait(1_000)
    assert net.got("b1")[-1] == "under way"
    assert net.dropped("b1") == {}


def test_copy_of_an_event_delivered_by_an_earlier_run_is_not_reported_dropped() -> None:
    net = talking()
    net.publish("b0", "t", "delivered")
    delivered = last_message(net)
    assert delivered.base
    net.settle()
    restart(net)
    net.settle()
    net.loses = lambda _source, _target, frame: isinstance(frame, Request)
    net.under_way.append(("b0", "b1", delivered))
    net.wait(1_000)
    assert net.got("b1")[-1] == "delivered"
    assert net.dropped("b1") == {}
