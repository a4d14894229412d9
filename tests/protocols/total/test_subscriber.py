"""A subscriber: one subscription, delivered in one order, across joins, losses and restarts."""

from typing import Any

import pytest
from tests.protocols.total.harness import Net
from tests.protocols.total.limits import too_many_subscribers, too_many_topics

from ensue.core.errors import ConfigurationError, SubscriptionRefused
from ensue.protocols.interface import Deliver, Join, Leave, Refuse
from ensue.protocols.topic_log.frames import AttachRequest, DetachRequest, Notify, Put
from ensue.protocols.topic_log.log import TopicLogConfig
from ensue.protocols.total.config import SequencerConfig
from ensue.protocols.total.frames import Changed, ChangeRequest, Forget, Refused
from ensue.protocols.total.records import CLOCK

CHAIN = {"low": ["a", "b"], "high": ["c"]}


def reading(*topics: str, ens: TopicLogConfig | None = None, **config: Any) -> Net:
    """A net with one subscriber that has joined the topics."""
    net = Net(CHAIN, config=SequencerConfig(**config), topic_log_config=ens)
    net.subscribe("s", *topics)
    net.settle()
    return net


def positions(net: Net) -> list[tuple[str, int]]:
    return [
        (each.event.payload.decode(), each.position)
        for each in net.outcomes["s"]
        if isinstance(each, Deliver)
    ]


def requests(net: Net, subscriber: str) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """The changes that arrived, old and new topics."""
    return [
        (parcel.frame.old, parcel.frame.new)
        for parcel in net.handled
        if isinstance(parcel.frame, ChangeRequest) and parcel.source == subscriber
    ]


def publish(net: Net, topic: str, *events: str) -> None:
    for event in events:
        net.publish("p", topic, event)
    net.settle()


# -- Delivery --------------------------------------------------------------------------------------


def test_positions_count_what_was_delivered() -> None:
    net = reading("a", "c")
    publish(net, "a", "e1")
    publish(net, "c", "e2")
    publish(net, "a", "e3")
    assert positions(net) == [("e1", 1), ("e2", 2), ("e3", 3)]


def test_delivery_reports_how_long_it_was_held_back() -> None:
    net = reading("a")
    net.publish("p", "a", "e1")
    net.publish("p", "a", "e2")
    with net.holding(Notify, about="e1"):
        net.settle()
        net.now_ns += 123
    net.settle()
    held = [each.held_ns for each in net.outcomes["s"] if isinstance(each, Deliver)]
    assert held == [0, 123]


def test_a_lost_notification_is_fetched_after_a_while() -> None:
    net = reading("a")
    net.publish("p", "a", "e1")
    with net.holding(Notify):
        net.settle()
    net.drop(Notify)
    publish(net, "a", "e2")
    assert net.delivered("s") == []
    net.pass_time(net.config.gap_ns)
    assert net.delivered("s") == ["e1", "e2"]


def test_lost_last_notification_is_found_by_polling() -> None:
    net = reading("a")
    net.pass_time(net.config.gap_ns)
    net.publish("p", "a", "e1")
    with net.holding(Notify):
        net.settle()
    net.drop(Notify)
    net.pass_time(net.config.poll_ns)
    assert net.delivered("s") == ["e1"]


def test_notifications_in_flight_are_not_requested() -> None:
    net = reading("a", ens=TopicLogConfig(batch_max=4))
    net.pass_time(net.config.poll_ns)
    with net.holding(Notify):
        for number in range(20):
            net.publish("p", "a", f"e{number}")
        net.settle()
        net.pass_time(net.config.poll_ns - 1)
        net.pass_time(2)  # It polls the log, which is ahead of the received events.
    net.settle()
    net.pass_time(net.config.poll_ns)
    assert net.delivered("s") == [f"e{number}" for number in range(20)]
    asked = [parcel.frame for parcel in net.handled if isinstance(parcel.frame, AttachRequest)]
    assert {each.from_slot for each in asked[1:]} == {0}
    assert net.discarded("s") == []


def test_overdue_events_are_requested() -> None:
    net = reading("a")
    net.pass_time(net.config.poll_ns)
    with net.holding(Notify):
        net.publish("p", "a", "e1")
        net.settle()
        net.drop(Notify)
        net.pass_time(net.config.poll_ns)
        assert not net.find(Notify)
        net.pass_time(net.config.gap_ns)
        assert net.find(Notify)
    net.settle()
    assert net.delivered("s") == ["e1"]


def test_overflowed_events_are_fetched_again() -> None:
    net = reading("a", held_max=2)
    for number in range(6):
        net.publish("p", "a", f"e{number}")
    with net.holding(Notify, about="e0"):
        net.settle()
        assert net.subscriber("s").held_count == 2
        assert [why for _, why in net.discarded("s")] == ["overflow"] * 3
    net.settle()
    net.pass_time(net.config.poll_ns)
    assert net.delivered("s") == [f"e{number}" for number in range(6)]


def test_slow_log_gets_no_repeated_requests() -> None:
    net = reading("a", ens=TopicLogConfig(batch_max=4))
    net.pass_time(net.config.poll_ns)
    with net.holding(Notify):
        for number in range(40):
            net.publish("p", "a", f"e{number}")
        net.settle()
        net.drop(Notify)
    net.publish("p", "a", "e40")
    net.settle()
    net.handled.clear()
    # It holds the last event back and requests the rest; for a while no answer comes.
    with net.holding(AttachRequest):
        for _ in range(20):
            net.pass_time(net.config.gap_ns)
    net.settle()
    assert net.delivered("s") == [f"e{number}" for number in range(41)]
    asked = [parcel for parcel in net.handled if isinstance(parcel.frame, AttachRequest)]
    answers = [parcel for parcel in net.handled if isinstance(parcel.frame, Notify)]
    # Ten answers have it all; each of the few times that it lost patience costs one more.
    assert len(asked) <= 10 + 5
    assert len(answers) <= 4 * len(asked)


def test_silent_log_is_requested_with_backoff() -> None:
    net = reading("a")
    net.pass_time(net.config.poll_ns)
    net.publish("p", "a", "e1")
    with net.holding(Notify):
        net.settle()
    net.drop(Notify)
    publish(net, "a", "e2")
    for _ in range(4):
        with net.holding(AttachRequest):
            net.pass_time(net.config.poll_ns)
            net.drop(AttachRequest)
    assert net.delivered("s") == []
    net.pass_time(4 * net.config.poll_ns)
    assert net.delivered("s") == ["e1", "e2"]


def test_lossy_log_with_a_full_buffer_releases_its_head() -> None:
    net = reading("a", held_max=2, reliable=False, leave_out=False)
    for number in range(4):
        net.publish("p", "a", f"e{number}")
    with net.holding(Notify, about="e0"), net.holding(Notify, about="e2"):
        net.settle()
        assert net.delivered("s") == []
        net.publish("p", "a", "e4")
        net.settle()
        assert net.delivered("s") == ["e1"]
        assert net.subscriber("s").held_count == 2
    net.settle()
    assert net.delivered("s") == ["e1", "e0!", "e2", "e3", "e4"]


def test_late_event_beyond_the_remembered_slots_is_dropped() -> None:
    net = reading("a", reliable=False, leave_out=False, missing_max=1)
    for number in range(3):
        net.publish("p", "a", f"e{number}")
    with net.holding(Notify, about="e0"), net.holding(Notify, about="e1"):
        net.settle()
        net.pass_time(net.config.time_to_live_ns)
    net.settle()
    assert net.delivered("s") == ["e2", "e1!"]
    assert net.discarded("s") == [("e0", "duplicate")]


def test_stray_frames_do_not_change_a_subscriber() -> None:
    net = reading("a")
    before = list(net.outcomes["s"])
    net.nodes["s"].receive(AttachRequest(topic="a", from_slot=1), source="ens", now_ns=0)
    assert list(net.nodes["s"].take_effects()) == []
    assert net.outcomes["s"] == before


# -- Changes ---------------------------------------------------------------------------------------


def test_a_topic_is_in_effect_from_its_join_to_its_leave() -> None:
    net = reading()
    net.subscribe("s", "a")
    assert net.subscriber("s").topics == ()
    net.settle()
    assert net.subscriber("s").topics == ("a",)
    net.unsubscribe("s", "a")
    assert net.subscriber("s").topics == ()
    assert net.outcomes["s"] == [Join("a"), Leave("a")]


def test_change_requested_meanwhile_waits_for_the_next() -> None:
    net = reading()
    net.subscribe("s", "a")
    net.subscribe("s", "b")
    net.subscribe("s", "c")
    with net.holding(Changed):
        net.settle()
        assert len([p for p in net.handled if isinstance(p.frame, ChangeRequest)]) == 1
    net.settle()
    assert net.joined("s") == ["a", "b", "c"]
    asked = [p.frame.new for p in net.handled if isinstance(p.frame, ChangeRequest)]
    assert asked == [("a",), ("a", "b", "c")]


def test_subscribing_twice_changes_nothing() -> None:
    net = reading("a")
    net.subscribe("s", "a", "a")
    assert net.under_way == []
    net.unsubscribe("s", "never subscribed")
    assert net.under_way == []


def test_topic_left_before_its_cut_is_never_joined() -> None:
    net = reading("b")
    net.subscribe("s", "a")
    net.unsubscribe("s", "a")
    net.settle()
    net.pass_time(net.config.retry_ns)
    publish(net, "a", "e")
    assert net.joined("s") == ["b"]
    assert net.delivered("s") == []
    assert net.waiting() == []
    assert net.stage("low").groups.subscriptions == {"s": ("b",)}


def test_topic_left_and_rejoined_starts_at_a_new_cut() -> None:
    net = reading("a", "b")
    publish(net, "a", "e1")
    net.unsubscribe("s", "a")
    publish(net, "a", "e2")
    net.subscribe("s", "a")
    net.come_to_rest()
    publish(net, "a", "e3")
    assert net.delivered("s") == ["e1", "e3"]
    assert net.outcomes["s"].count(Join("a")) == 2


@pytest.mark.parametrize("restarted", [False, True])
def test_a_topic_left_and_wanted_again_during_its_change_needs_another_cut(restarted: bool) -> None:
    """Events before the second cut may have been missed."""
    net = reading("a")
    net.subscribe("s", "b")
    with net.holding(Changed):
        net.settle()
        net.unsubscribe("s", "b")
        net.settle()
        publish(net, "b", "between")
        net.subscribe("s", "b")
        net.settle()
        if restarted:
            net.restart("s")
            net.settle()
    net.come_to_rest()
    publish(net, "b", "after")
    assert net.delivered("s") == ["after"]
    assert net.outcomes["s"].count(Join("b")) == 1
    assert net.clock("s") == {"a": 0, "b": 2}
    assert net.waiting() == []


def test_subscriber_without_topics_leaves_every_visited_stage() -> None:
    net = reading("a", "c")
    net.unsubscribe("s", "c")
    net.settle()
    net.unsubscribe("s", "a")
    assert net.find(Forget) == []
    with net.holding(Forget):
        net.settle()
        departures = [(each.target, each.frame) for each in net.find(Forget)]
        assert departures == [
            ("low", Forget(number=3, publisher=False)),
            ("high", Forget(number=3, publisher=False)),
        ]
    net.settle()
    assert net.stage("low").changes.seen == net.stage("high").changes.seen == {}


def test_subscriber_with_new_topics_does_not_leave() -> None:
    net = reading("a")
    net.unsubscribe("s", "a")
    net.subscribe("s", "b")
    net.come_to_rest()
    assert not any(isinstance(each.frame, Forget) for each in net.handled)
    assert net.subscriber("s").topics == ("b",)


def test_departed_subscriber_may_return() -> None:
    net = reading("a", "c")
    net.unsubscribe("s", "a", "c")
    net.settle()
    net.subscribe("s", "a", "c")
    net.settle()
    publish(net, "c", "e")
    assert net.delivered("s") == ["e"]


def test_leaving_a_topic_detaches_and_releases_waiting_events() -> None:
    net = reading("a", "b")
    net.publish("p", "a", "e1")
    net.publish("p", "b", "e2")
    with net.holding(Notify, about="e1"):
        net.settle()
        assert net.delivered("s") == []
        net.unsubscribe("s", "a")
        assert net.delivered("s") == ["e2"]
        assert len(net.find(DetachRequest)) == 1


def test_a_topic_without_a_place_is_refused_and_nothing_changes() -> None:
    net = Net(CHAIN, closed=True)
    with pytest.raises(ConfigurationError, match="'z' is not placed"):
        net.subscribe("s", "a", "z")
    assert net.under_way == []
    assert net.waiting() == []


def test_refused_change_is_reported_and_abandoned() -> None:
    net = reading("a", clients_max=1)
    net.subscribe("t", "b")
    net.settle()
    net.pass_time(3 * net.config.retry_ns)
    assert [p.frame.number for p in net.handled if isinstance(p.frame, Refused)] == [1]
    assert net.outcomes["t"] == [Refuse(("b",), f"low: {too_many_subscribers()}")]
    assert net.subscriber("t").topics == ()
    assert net.waiting() == []
    publish(net, "b", "e")
    assert net.delivered("t") == []


def test_refused_change_accepted_late_changes_nothing() -> None:
    net = reading("a", clients_max=1)
    net.subscribe("t", "b")
    net.settle()
    net.unsubscribe("s", "a")
    net.come_to_rest()
    # There is room now, and a repetition of the refused request was only slow.
    late = ChangeRequest(number=1, old=(), new=("b",))
    net.stage("low").receive(late, source="t", now_ns=net.now_ns)
    net.come_to_rest()
    assert "t" in net.stage("low").groups.subscriptions
    assert net.outcomes["t"] == [Refuse(("b",), f"low: {too_many_subscribers()}")]
    assert net.subscriber("t").topics == ()
    assert net.waiting() == []
    publish(net, "b", "e")
    assert net.delivered("t") == []


def test_topics_requested_after_a_refused_change_are_joined() -> None:
    net = reading("a", clients_max=1)
    net.subscribe("t", "b")
    net.subscribe("t", "d")
    net.settle()
    assert net.outcomes["t"] == [Refuse(("b",), f"low: {too_many_subscribers()}"), Join("d")]
    assert net.waiting() == []
    publish(net, "d", "e")
    assert net.delivered("t") == ["e"]


def test_refused_topic_can_be_requested_again() -> None:
    net = reading("a", clients_max=1)
    net.subscribe("t", "b")
    net.settle()
    publish(net, "b", "before")
    net.unsubscribe("s", "a")
    net.come_to_rest()
    net.subscribe("t", "b")
    net.come_to_rest()
    publish(net, "b", "after")
    assert net.outcomes["t"][:2] == [Refuse(("b",), f"low: {too_many_subscribers()}"), Join("b")]
    assert net.delivered("t") == ["after"]


def test_topics_beyond_topics_max_are_refused_and_the_old_ones_stay() -> None:
    net = reading("a", topics_max=1)
    net.subscribe("s", "b", "c")
    net.come_to_rest()
    assert net.outcomes["s"] == [Join("a"), Refuse(("b", "c"), f"low: {too_many_topics()}")]
    assert net.subscriber("s").topics == ("a",)
    assert set(net.stage("low").state.counters.by_topic) == {"a"}
    publish(net, "a", "e")
    assert net.delivered("s") == ["e"]


def test_topics_left_in_a_refused_change_stay_left() -> None:
    net = reading("a", topics_max=1)
    net.subscribe("s", "c")
    with net.holding(Changed):
        net.settle()
        net.unsubscribe("s", "a")
        net.subscribe("s", "b")
    net.settle()
    assert requests(net, "s")[2:] == [(("a", "c"), ("c", "b")), (("a", "c"), ("c",))]
    assert net.outcomes["s"][-1] == Refuse(("b",), f"low: {too_many_topics()}")
    assert net.subscriber("s").topics == ("c",)
    publish(net, "a", "e1")
    publish(net, "c", "e2")
    assert net.delivered("s") == ["e2"]


@pytest.mark.parametrize("groups", [1, 2])
def test_fixed_subscriptions_are_joined_at_the_start_and_cannot_change(groups: int) -> None:
    net = Net(CHAIN, config=SequencerConfig(groups=groups, fixed={"s": ("a", "c")}))
    net.subscriber("s")
    assert net.joined("s") == ["a", "c"]
    net.settle()
    publish(net, "a", "e")
    assert net.delivered("s") == ["e"]
    for change in (net.subscribe, net.unsubscribe):
        with pytest.raises(SubscriptionRefused, match="fixed") as caught:
            change("s", "b")
        assert caught.value.reason == "fixed"


def test_a_subscriber_that_is_not_among_the_fixed_ones_has_no_topics() -> None:
    net = Net(CHAIN, config=SequencerConfig(fixed={"s": ("a",)}))
    assert net.subscriber("stranger").topics == ()


def test_subscriber_that_fell_behind_starts_anew_and_reports_missed_slots() -> None:
    net = reading("a", "b", ens=TopicLogConfig(retained_max=2))
    publish(net, "a", "e1")
    for number in range(2, 7):
        net.publish("p", "a", f"e{number}")
    with net.holding(Notify):
        net.settle()
    net.drop(Notify)
    net.pass_time(net.config.poll_ns)
    changes = [each for each in net.outcomes["s"] if isinstance(each, Join | Leave)]
    assert changes == [Join("a"), Join("b"), Leave("a", rejoins=True), Join("a", (2, 6))]
    publish(net, "a", "e7")
    publish(net, "b", "f")
    assert net.delivered("s") == ["e1", "e7", "f"]


def test_falling_behind_during_a_log_restart_does_not_hang() -> None:
    net = reading("a", ens=TopicLogConfig(retained_max=2))
    for number in range(1, 7):
        net.publish("p", "a", f"e{number}")
    with net.holding(Notify):
        net.settle()
    net.drop(Notify)
    net.restart("ens")
    net.come_to_rest()
    assert net.waiting() == []
    assert net.outcomes["s"][-1] == Join("a", (1, 6))


# -- Restarts --------------------------------------------------------------------------------------


def test_restarted_subscriber_resumes_after_its_last_delivery() -> None:
    net = reading("a", "c")
    publish(net, "a", "e1")
    net.crash("s")
    publish(net, "c", "e2")
    publish(net, "a", "e3")
    net.restart("s")
    net.come_to_rest()
    assert positions(net) == [("e1", 1), ("e2", 2), ("e3", 3)]


def acknowledging() -> Net:
    net = Net(CHAIN)
    net.subscriber("s", acknowledge_each=True)
    net.subscribe("s", "a", "c")
    net.settle()
    for number, topic in enumerate("aacca", 1):
        publish(net, topic, f"e{number}")
    return net


def test_unacknowledged_events_are_redelivered_at_the_same_positions() -> None:
    net = acknowledging()
    net.acknowledge("s", 2)
    first = positions(net)
    assert first == [(f"e{number}", number) for number in range(1, 6)]
    net.restart("s")
    net.come_to_rest()
    assert positions(net)[5:] == first[2:]


@pytest.mark.parametrize("restarts", [1, 2])
def test_positions_of_a_left_topic_are_not_given_to_other_events(restarts: int) -> None:
    net = acknowledging()
    net.acknowledge("s", 1)
    net.unsubscribe("s", "a")  # e2 and e5 have positions 2 and 5, and are not acknowledged.
    net.come_to_rest()
    for _ in range(restarts):
        net.restart("s")
        net.come_to_rest()
    publish(net, "c", "e6")
    assert positions(net)[5:] == [*[("e3", 3), ("e4", 4)] * restarts, ("e6", 6)]


def test_acknowledged_events_are_never_redelivered() -> None:
    net = acknowledging()
    net.acknowledge("s", 5)
    net.restart("s")
    net.come_to_rest()
    publish(net, "a", "e6")
    assert positions(net)[5:] == [("e6", 6)]


def test_acknowledgement_beyond_the_last_delivery_counts_up_to_it() -> None:
    net = acknowledging()
    net.acknowledge("s", 100)
    publish(net, "a", "e6")
    net.restart("s")
    net.come_to_rest()
    assert positions(net)[5:] == [("e6", 6), ("e6", 6)]


def test_without_acknowledgements_all_events_are_redelivered() -> None:
    net = acknowledging()
    first = positions(net)
    net.restart("s")
    net.come_to_rest()
    assert positions(net) == first + first


def test_void_is_acknowledged_with_the_event_before_it() -> None:
    net = acknowledging()
    net.publish("doomed", "a", "lost")
    net.roundtrip()
    net.crash("doomed")
    net.under_way.clear()
    publish(net, "a", "e6")
    net.pass_time(net.config.lease_ns)
    net.come_to_rest()
    assert positions(net)[-1] == ("e6", 6)
    net.acknowledge("s", 6)
    net.restart("s")
    net.come_to_rest()
    publish(net, "c", "e7")
    assert positions(net)[-1] == ("e7", 7)


def test_void_after_the_last_acknowledged_event_is_not_asked_for_again() -> None:
    net = acknowledging()
    net.acknowledge("s", 5)
    net.publish("doomed", "a", "lost")
    net.roundtrip()
    net.crash("doomed")
    net.under_way.clear()
    net.pass_time(net.config.lease_ns)
    net.come_to_rest()
    record = CLOCK.decode(net.disks["s"]["clock/a"])
    assert record.slot == 4


@pytest.mark.parametrize("reached", [AttachRequest, ChangeRequest, Changed])
def test_pending_change_survives_a_restart(
    reached: type[AttachRequest | ChangeRequest | Changed],
) -> None:
    net = reading("a")
    net.subscribe("s", "c")
    with net.holding(reached):
        net.settle()
    net.crash("s")
    net.drop(reached)
    net.settle()
    net.restart("s")
    net.come_to_rest()
    assert net.joined("s") == ["a", "c"]
    publish(net, "c", "e")
    assert net.delivered("s") == ["e"]


def test_a_topic_left_before_a_restart_stays_left() -> None:
    net = reading("a", "c")
    net.unsubscribe("s", "a")
    net.restart("s")
    net.come_to_rest()
    publish(net, "a", "e1")
    publish(net, "c", "e2")
    assert net.delivered("s") == ["e2"]
    assert net.subscriber("s").topics == ("c",)


# -- Waiting -----------------------------------------------------------------------------


def test_subscriber_reports_what_it_waits_for() -> None:
    net = reading("a")
    net.publish("p", "a", "e1")
    net.publish("p", "a", "e2")
    net.subscribe("s", "b")
    with net.holding(Notify, about="e1"), net.holding(ChangeRequest):
        net.settle()
        assert list(net.subscriber("s").waits(net.log.ends())) == [
            "waits for change 2",
            "holds 1 events back",
            "is at 0 of 2 of a",
        ]
    net.settle()
    assert list(net.subscriber("s").waits(net.log.ends())) == []


# -- Round trips -----------------------------------------------------------------------------------

MS = 1_000_000


def test_lost_notification_is_fetched_after_the_measured_round_trip() -> None:
    net = reading("a", retry_ns_min=10 * MS)
    net.publish("p", "a", "e1")
    with net.holding(Notify):
        net.settle()
    net.drop(Notify)
    publish(net, "a", "e2")
    assert net.delivered("s") == []
    net.pass_time(10 * MS)
    assert net.delivered("s") == ["e1", "e2"]


def test_requests_in_vain_get_rarer_down_to_the_longest_wait() -> None:
    net = reading("a", retry_ns_min=10 * MS)
    net.publish("p", "a", "e1")
    with net.holding(Put):
        net.settle()
    net.publish("q", "a", "e2")
    with net.holding(Put, about="e1"):
        net.settle()
        dues = []
        for _ in range(8):
            due_ns = net.subscriber("s").next_timer_ns()
            assert due_ns is not None
            dues.append((due_ns - net.now_ns) // MS)
            net.pass_time(due_ns - net.now_ns)
    assert dues == [0, 10, 20, 40, 80, 160, 200, 200]  # The first is the poll after the join.
