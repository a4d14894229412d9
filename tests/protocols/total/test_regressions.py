"""Regressions of whole chains."""

import pytest
from tests.protocols.total.harness import Net
from tests.protocols.total.limits import too_many_subscribers, too_many_topics

from ensue.protocols.interface import Join, Leave, Refuse
from ensue.protocols.topic_log.frames import Accepted, Notify
from ensue.protocols.topic_log.log import TopicLogConfig
from ensue.protocols.total.config import SequencerConfig
from ensue.protocols.total.frames import (
    Changed,
    ChangeRequest,
    Confirm,
    Refused,
    Stamped,
    StampRequest,
)

MS = 1_000_000
SECOND = 1_000_000_000
HOUR = 3600 * SECOND

TWO_STAGES = {"low": ["a"], "high": ["b", "c"]}


def chain(*, ens: TopicLogConfig | None = None, **limits: int) -> Net:
    """Two stages with limits."""
    config = SequencerConfig(**limits)  # type: ignore[arg-type]
    return Net(TWO_STAGES, config=config, topic_log_config=ens)


def one_node(**limits: int) -> Net:
    """One node, which hosts every topic."""
    return Net({"n": []}, config=SequencerConfig(**limits))  # type: ignore[arg-type]


def lossy(**limits: int) -> Net:
    """One node, and a lossy topic log."""
    config = SequencerConfig(reliable=False, leave_out=False, **limits)  # type: ignore[arg-type]
    return Net({"n": []}, config=config)


def subscribe(net: Net, subscriber: str, *topics: str) -> None:
    net.subscribe(subscriber, *topics)
    net.settle()


def unsubscribe(net: Net, subscriber: str, *topics: str) -> None:
    net.unsubscribe(subscriber, *topics)
    net.settle()


def publish(net: Net, publisher: str, topic: str, *events: str) -> None:
    for event in events:
        net.publish(publisher, topic, event)
    net.settle()


def publish_and_confirm(net: Net, publisher: str, topic: str, event: str) -> None:
    publish(net, publisher, topic, event)
    net.confirm(publisher)
    net.settle()


# -- Slots: each is filled, and each event has at most one ---------------------


def test_late_request_of_a_forgotten_publisher_leaves_no_hole() -> None:
    net = one_node(clients_max=1)
    subscribe(net, "s", "a")
    publish_and_confirm(net, "p", "a", "p1")
    request = next(each for each in net.handled if isinstance(each.frame, StampRequest))
    publish_and_confirm(net, "q", "a", "q1")
    net.repeat(request)
    net.settle()
    publish_and_confirm(net, "p", "a", "p2")
    publish(net, "p", "a", "p3")
    net.pass_time(2 * net.config.lease_ns)
    assert net.delivered("s") == ["p1", "q1", "p2", "p3"]
    assert net.settled("p") == [("p1", ""), ("p2", ""), ("p3", "")]
    assert net.waiting() == []
    assert net.stage("n").open_count == 0


def test_stamp_made_after_a_refusal_leaves_no_hole() -> None:
    net = one_node(clients_max=1)
    subscribe(net, "s", "a")
    publish(net, "q", "a", "q1")
    with net.holding(Refused):
        publish(net, "p", "a", "p1")
        net.confirm("q")
        net.settle()
        with net.holding(Stamped):
            net.pass_time(net.config.retry_ns)
            (refusal,) = net.find(Refused)
            net.deliver(refusal)
    publish_and_confirm(net, "p", "a", "p2")
    publish(net, "p", "a", "p3")
    net.pass_time(2 * net.config.lease_ns)
    assert net.settled("p") == [("p1", "void"), ("p2", ""), ("p3", "")]
    assert net.delivered("s") == ["q1", "p2", "p3"]
    assert net.waiting() == []
    assert net.stage("n").open_count == 0


def test_published_event_is_not_stamped_again_after_its_group_shrank() -> None:
    """The publisher got no receipt, and others need its room at the origin."""
    net = chain(clients_max=2)
    subscribe(net, "s", "a")
    subscribe(net, "t", "a", "b")
    publish_and_confirm(net, "x", "a", "x1")
    with net.holding(Accepted, to="p"):
        publish(net, "p", "a", "e")
    net.drop(Accepted, to="p")
    net.crash("p")
    unsubscribe(net, "t", "b")
    for newcomer in ("q", "r"):
        publish(net, newcomer, "a", newcomer)
    for newcomer in ("q", "r"):
        net.confirm(newcomer)
    net.settle()
    net.restart("p")
    net.come_to_rest()
    net.pass_time(2 * net.config.lease_ns)
    assert net.delivered("s") == ["x1", "e", "q"]
    assert net.settled("p") == [("e", "")]
    assert net.settled("r") == [("r", "void")]
    assert net.waiting() == []


# -- Changes: late ones have no effect, and each one ends -----------------------------


def opposite_arrivals(net: Net) -> None:
    """Publish `B` and then `C`; `s` gets them in this order, `t` in the other."""
    with net.holding(Notify):
        publish(net, "p", "b", "B")
        publish(net, "q", "c", "C")
    for event, subscriber in (("B", "s"), ("C", "s"), ("C", "t"), ("B", "t")):
        for parcel in net.find(Notify, to=subscriber, about=event):
            net.deliver(parcel)


def test_late_copy_of_a_change_does_not_undo_newer_ones() -> None:
    net = chain(clients_max=2)
    for name in ("s", "t"):
        subscribe(net, name, "a", "b")
        unsubscribe(net, name, "a")
        subscribe(net, name, "c")
    late = [
        each
        for each in net.handled
        if isinstance(each.frame, ChangeRequest) and each.frame.number == 1
    ]
    for name in ("x", "y"):
        subscribe(net, name, "a")
        unsubscribe(net, name, "a")
    for parcel in late:
        net.repeat(parcel)
    net.settle()
    assert net.group("b") == {"b", "c"}
    opposite_arrivals(net)
    assert net.delivered("s") == net.delivered("t") == ["B", "C"]


def test_late_copy_of_a_refused_change_does_not_undo_newer_ones() -> None:
    net = chain(clients_max=3)
    for name in ("s", "t"):
        subscribe(net, name, "b")
    for name in ("x", "y", "z"):
        subscribe(net, name, "a")
    for name in ("s", "t"):
        subscribe(net, name, "a")
    late = [
        each
        for each in net.handled
        if isinstance(each.frame, ChangeRequest)
        and each.frame.number == 2
        and each.source in ("s", "t")
    ]
    assert len(late) == 2
    for name in ("s", "t"):
        subscribe(net, name, "c")
    for name in ("x", "y", "z"):
        unsubscribe(net, name, "a")
    net.come_to_rest()
    for parcel in late:
        net.repeat(parcel)
    net.settle()
    assert net.stage("high").groups.subscriptions == {"s": ("b", "c"), "t": ("b", "c")}
    opposite_arrivals(net)
    assert net.delivered("s") == net.delivered("t") == ["B", "C"]


def test_events_held_for_a_cut_are_released_when_the_change_is_refused() -> None:
    net = one_node(topics_max=2)
    subscribe(net, "other", "a", "j")
    subscribe(net, "s", "a")
    publish(net, "p", "j", "j1")
    with net.holding(Refused):
        subscribe(net, "s", "j", "k")
        publish(net, "p", "a", "a1")
        assert net.delivered("s") == []
    net.settle()
    assert net.outcomes["s"][1] == Refuse(("j", "k"), f"n: {too_many_topics(2)}")
    assert net.delivered("s") == ["a1"]
    assert net.subscriber("s").topics == ("a",)
    assert net.subscriber("s").held_count == 0


def test_leave_of_a_full_node_is_answered_again_if_the_answer_was_lost() -> None:
    net = chain(clients_max=1)
    subscribe(net, "s", "a", "b")
    with net.holding(Changed, to="s"):
        unsubscribe(net, "s", "b")
    net.drop(Changed, to="s")
    subscribe(net, "t", "b")
    net.pass_time(net.config.retry_ns)
    assert net.subscriber("s")._change is None
    subscribe(net, "s", "c")
    assert net.subscriber("s").topics == ("a", "c")


def test_leaving_a_full_node_is_never_refused() -> None:
    net = chain(clients_max=1)
    subscribe(net, "s", "a", "b")
    with net.holding(Changed, to="s"):
        unsubscribe(net, "s", "a")
    net.drop(Changed, to="s")
    subscribe(net, "t", "a")
    net.pass_time(HOUR)
    assert net.subscriber("s")._change is None
    assert {each.target for each in net.handled if isinstance(each.frame, Refused)} == {"t"}
    subscribe(net, "s", "c")
    assert net.subscriber("s").topics == ("b", "c")


def test_leave_is_answered_whatever_topics_a_restarted_node_has_learned() -> None:
    net = one_node(topics_max=2)
    subscribe(net, "s", "a")
    net.restart("n")
    publish(net, "p", "b", "e1")
    publish(net, "p", "c", "e2")
    unsubscribe(net, "s", "a")
    assert len([each for each in net.handled if isinstance(each.frame, ChangeRequest)]) == 2
    assert net.waiting() == []
    assert net.stage("n").groups.subscriptions == {}


def test_refused_topic_that_fell_behind_is_reported_with_the_others() -> None:
    net = Net(
        {"n": []},
        config=SequencerConfig(topics_max=2),
        topic_log_config=TopicLogConfig(retained_max=2),
    )
    subscribe(net, "s", "a")
    net.subscribe("s", "j")
    with net.holding(Changed):
        net.settle()
        with net.holding(Notify):
            publish(net, "p", "a", *(f"e{number}" for number in range(9)))
        net.drop(Notify)
        net.pass_time(net.config.poll_ns)
        assert Leave("a", rejoins=True) in net.outcomes["s"]
        net.subscribe("s", "k")
    net.settle()
    assert net.outcomes["s"][-2:] == [Join("j"), Refuse(("a", "k"), f"n: {too_many_topics(2)}")]
    assert net.subscriber("s").progress.fallen == {}


def test_topic_that_falls_behind_during_a_refused_change_is_rejoined() -> None:
    net = chain(clients_max=1, ens=TopicLogConfig(retained_max=2))
    subscribe(net, "other", "a")
    subscribe(net, "s", "b")
    subscribe(net, "s", "a")
    assert net.outcomes["s"] == [Join("b"), Refuse(("a",), f"low: {too_many_subscribers()}")]
    with net.holding(Notify):
        publish(net, "p", "b", *(f"e{number}" for number in range(1, 10)))
    net.drop(Notify)
    net.pass_time(net.config.poll_ns)
    assert Leave("b", rejoins=True) in net.outcomes["s"]
    unsubscribe(net, "other", "a")
    net.come_to_rest()
    assert net.outcomes["s"][-1:] == [Join("b", (1, 9))]
    assert net.waiting() == []


# -- Forgetting: departed clients use no room --------------------------------------------------


def leases(net: Net, node: str) -> list[str]:
    """The stamps that a node has persisted."""
    return [key for key in net.disks[node] if key.startswith("lease/")]


@pytest.mark.parametrize("topic", ["a", "b"])
def test_publisher_with_events_voided_before_their_stamps_arrived_can_leave(
    topic: str,
) -> None:
    net = chain(clients_max=2)
    subscribe(net, "s", "a", "b")
    for publisher in ("p", "q"):
        with net.holding(Stamped):
            publish(net, publisher, topic, "e")
            net.pass_time(net.config.lease_ns + SECOND)
            net.drop(Stamped)
        net.pass_time(net.config.lease_ns)
        assert net.settled(publisher) == [("e", "void")]
        net.say_goodbye(publisher)
        net.settle()
        for node in ("low", "high"):
            assert (list(net.stage(node).sessions.by_name), leases(net, node)) == ([], [])
    for publisher in ("new", "newer"):
        publish(net, publisher, topic, publisher)
        assert net.settled(publisher) == [(publisher, "")]


@pytest.mark.parametrize("topic", ["a", "b"])
def test_a_publisher_whose_confirmation_was_lost_can_leave(topic: str) -> None:
    net = chain(clients_max=1)
    subscribe(net, "s", "a", "b")
    publish(net, "p", topic, "e")
    with net.holding(Confirm):
        net.confirm("p")
        net.settle()
        net.drop(Confirm)
    net.say_goodbye("p")
    net.settle()
    net.pass_time(HOUR)
    for node in ("low", "high"):
        assert leases(net, node) == []
    publish(net, "new", topic, "f")
    assert net.settled("new") == [("f", "")]
    assert net.delivered("s") == ["e", "f"]


@pytest.mark.parametrize("confirmed", ["at once", "in time"])
def test_a_publisher_whose_stamps_were_completed_elsewhere_makes_room_once_idle(
    confirmed: str,
) -> None:
    net = chain(clients_max=1)
    subscribe(net, "s", "a", "b")
    publish(net, "p", "a", "e")
    if confirmed == "at once":
        net.confirm("p")
        net.settle()
    else:
        net.pass_time(10 * net.config.lease_ns)
    assert net.stage("low").sessions.by_name["p"].elsewhere == {}
    publish(net, "q", "a", "f")
    net.come_to_rest()
    assert net.settled("q") == [("f", "")]


def test_departed_subscribers_leave_no_state_at_any_stage() -> None:
    net = chain(clients_max=5)
    for number in range(20):
        subscribe(net, f"s{number}", "a", "b")
        unsubscribe(net, f"s{number}", "a", "b")
    for name in ("low", "high"):
        assert net.stage(name).changes.seen == {}
        assert net.stage(name).changes.done == {}
        assert net.disks[name] == {}


def test_departed_publishers_leave_only_counters() -> None:
    net = chain()
    subscribe(net, "s", "a", "b")
    for number in range(20):
        publish(net, f"p{number}", "a", f"e{number}")
        net.say_goodbye(f"p{number}")
        net.settle()
    for name in ("low", "high"):
        assert net.stage(name).sessions.by_name == {}
        assert {key.partition("/")[0] for key in net.disks[name]} <= {
            "counter",
            "subscription",
            "change",
        }


# -- Delivery --------------------------------------------------------------------------------------


def test_event_made_next_by_a_full_buffer_is_delivered() -> None:
    net = lossy(held_max=1)
    subscribe(net, "s", "a")
    with net.holding(Notify):
        publish(net, "p", "a", "e1", "e2", "e3", "e4")
    net.drop(Notify, about="e1")
    net.settle()
    assert net.delivered("s") == ["e2", "e3", "e4"]
    assert net.discarded("s") == []


def test_old_events_of_a_topic_being_joined_do_not_shorten_other_ttls() -> None:
    net = lossy()
    subscribe(net, "s", "a")
    with net.holding(Notify, about="a1"), net.holding(Changed), net.holding(Notify, about="a2"):
        publish(net, "p", "a", "a1", "a2")
        subscribe(net, "s", "j")
        publish(net, "p", "j", "j1")
        net.pass_time(net.config.time_to_live_ns - 10 * MS)
        (a2,) = net.find(Notify, about="a2")
        net.deliver(a2)
        net.pass_time(20 * MS)
        assert net.delivered("s") == []
    net.settle()
    assert net.delivered("s")[:2] == ["a1", "a2"]


def test_catching_up_takes_one_request_per_batch_without_waiting() -> None:
    net = Net({"n": []}, topic_log_config=TopicLogConfig(batch_max=16))
    subscribe(net, "s", "a")
    net.crash("s")
    events = [f"e{number}" for number in range(100)]
    publish(net, "p", "a", *events)
    net.restart("s")
    net.settle()
    assert net.delivered("s") == events
