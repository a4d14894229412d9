"""A publisher: every event is stamped, published and settled."""

from random import Random

import msgspec
import pytest
from tests.protocols.total.harness import Net, Parcel
from tests.protocols.total.limits import too_many_publishers, too_many_topics

from ensue.core.errors import ConfigurationError, LimitReached
from ensue.protocols.interface import Frame, Publish, Refuse, Send, Settle
from ensue.protocols.topic_log.frames import Accepted, Put
from ensue.protocols.total.config import SequencerConfig
from ensue.protocols.total.frames import Confirm, Fill, Forget, Refused, Stamped, StampRequest
from ensue.protocols.total.pending_requests import RAISE_AFTER, TOGETHER
from ensue.protocols.total.publisher import CONFIRM_BATCH, Publisher

RUNS_MAX = SequencerConfig().runs_max
CHAIN = {"low": ["a", "b"], "high": ["c"]}


def requests(parcels: list[Parcel]) -> list[tuple[str, int, tuple[str, ...]]]:
    """Node, number and topics of each stamp request."""
    return [
        (parcel.target, parcel.frame.number, parcel.frame.topics)
        for parcel in parcels
        if isinstance(parcel.frame, StampRequest)
    ]


def test_event_is_requested_stamped_published_settled_and_confirmed() -> None:
    net = Net(CHAIN)
    event = net.publish("p", "a", "e")
    assert net.outcomes["p"] == [Publish(event)]
    net.settle()
    net.pass_time(net.config.lease_ns)
    kinds = [type(p.frame) for p in net.handled if "p" in (p.source, p.target)]
    assert kinds == [StampRequest, Stamped, Put, Accepted, Confirm]
    settled = net.outcomes["p"][-1]
    assert isinstance(settled, Settle)
    assert (settled.event.id, settled.verdict) == (event.id, "")
    assert net.publisher("p").unsettled_count == 0
    assert net.stage("low").open_count == 0


def test_event_has_the_fields_of_the_application() -> None:
    net = Net(CHAIN)
    net.now_ns = 77
    publisher = net.publisher("p")
    event = publisher.publish("a", b"x", now_ns=77, key=b"k", headers={"h": "v"})
    assert (event.key, event.headers, event.published_at_ns) == (b"k", {"h": "v"}, 77)
    assert event.id == "p/a/1"
    assert event.stamp is None


def test_events_are_numbered_per_topic_and_requests_per_node() -> None:
    net = Net(CHAIN)
    ids = [net.publish("p", topic, topic).id for topic in ("a", "b", "a")]
    assert ids == ["p/a/1", "p/b/1", "p/a/2"]
    net.settle()
    found = requests(net.handled)
    assert found == [("low", 1, ("a",)), ("low", 2, ("b",)), ("low", 3, ("a",))]


def test_requests_to_one_node_are_pipelined() -> None:
    net = Net(CHAIN)
    for number in range(RUNS_MAX + 3):
        net.publish("p", "a", f"e{number}")
    assert len(net.find(StampRequest)) == RUNS_MAX


def test_events_published_while_waiting_are_requested_together() -> None:
    net = Net(CHAIN)
    for number in range(RUNS_MAX + 3):
        net.publish("p", "a", f"e{number}")
    first, *_ = net.find(StampRequest)
    net.deliver(first)
    (stamped,) = net.find(Stamped)
    net.deliver(stamped)
    assert requests(net.under_way)[-1] == ("low", RUNS_MAX + 1, ("a",) * 3)
    net.settle()
    assert len(net.settled("p")) == RUNS_MAX + 3


def test_many_events_do_not_wait_for_an_answer() -> None:
    net = Net(CHAIN)
    for number in range(RUNS_MAX + TOGETHER):
        net.publish("p", "a", f"e{number}")
    assert requests(net.under_way)[RUNS_MAX:] == [("low", RUNS_MAX + 1, ("a",) * TOGETHER)]


def test_requests_for_later_nodes_are_pipelined_through_the_node_of_earlier_ones() -> None:
    net = Net(CHAIN)
    net.publish("p", "a", "e1")
    net.publish("p", "c", "e2")
    assert requests(net.under_way) == [("low", 1, ("a",)), ("low", 2, ("c",))]
    net.settle()
    assert [event for event, _ in net.settled("p")] == ["e1", "e2"]
    net.publish("p", "c", "e3")
    assert requests(net.under_way) == [("high", 1, ("c",))]


def test_a_request_to_an_earlier_node_waits_until_all_before_are_stamped() -> None:
    net = Net(CHAIN)
    net.publish("p", "c", "e1")
    net.publish("p", "a", "e2")
    net.publish("p", "c", "e3")
    assert requests(net.under_way) == [("high", 1, ("c",))]
    net.roundtrip()
    assert requests(net.under_way) == [("low", 1, ("a", "c"))]
    net.settle()
    assert [event for event, _ in net.settled("p")] == ["e1", "e2", "e3"]


def test_a_busy_publisher_returns_to_the_node_of_its_topics() -> None:
    net = Net(CHAIN, config=SequencerConfig(runs_max=RAISE_AFTER + 2))
    net.publish("p", "a", "first")
    for number in range(RAISE_AFTER + 1):
        net.publish("p", "c", f"e{number}")
    asked = requests(net.under_way)
    assert {node for node, _, _ in asked} == {"low"}
    assert len(asked) == RAISE_AFTER
    net.roundtrip()
    net.settle()
    assert requests(net.handled)[-1][0] == "high"
    assert len(net.settled("p")) == RAISE_AFTER + 2


def test_an_effect_is_not_published_before_the_stamp_of_its_cause_is_complete() -> None:
    net = Net(CHAIN)
    net.subscribe("q", "a", "c")
    net.subscribe("s", "b")
    net.settle()
    with net.holding(Fill):
        net.publish("p", "a", "cause")
        net.publish("p", "b", "effect")
        net.settle()
        assert net.delivered("s") == []  # What s publishes now may be ordered before the cause.
    net.settle()
    assert net.delivered("s") == ["effect"]


def test_held_events_whose_leases_run_out_are_requested_again() -> None:
    net = Net(CHAIN)
    net.subscribe("q", "a", "c")
    net.subscribe("s", "b")
    net.settle()
    with net.holding(Fill):
        net.publish("p", "a", "e1")
        for number in range(2, 5):
            net.publish("p", "b", f"e{number}")
        net.settle()
        net.pass_time(2 * net.config.lease_ns)
        net.publish("r", "b", "other")
        net.settle()
        assert net.delivered("s") == ["other"]  # Void slots hold no other publisher up.
    net.come_to_rest()
    assert net.settled("p") == [(f"e{number}", "") for number in range(1, 5)]
    assert net.delivered("s") == ["other", "e2", "e3", "e4"]


def test_without_publisher_order_requests_to_different_nodes_are_pipelined() -> None:
    net = Net(CHAIN, config=SequencerConfig(publisher_order=False))
    for number, topic in enumerate("acac"):
        net.publish("p", topic, f"e{number}")
    assert requests(net.under_way) == [
        ("low", 1, ("a",)),
        ("high", 1, ("c",)),
        ("low", 2, ("a",)),
        ("high", 2, ("c",)),
    ]
    net.settle()
    assert sorted(net.settled("p")) == [(f"e{number}", "") for number in range(4)]


def test_without_publisher_order_a_lost_request_delays_no_other_node() -> None:
    net = Net(CHAIN, config=SequencerConfig(publisher_order=False))
    net.subscribe("s", "a", "c")
    net.settle()
    net.publish("p", "c", "e1")
    net.drop(StampRequest)
    net.publish("p", "a", "e2")
    net.settle()
    assert net.delivered("s") == ["e2"]
    net.come_to_rest()
    assert net.delivered("s") == ["e2", "e1"]


@pytest.mark.parametrize("seed", range(20))
def test_without_publisher_order_events_of_one_topic_keep_their_order(seed: int) -> None:
    random = Random(seed)
    net = Net(CHAIN, config=SequencerConfig(publisher_order=False))
    for subscriber, topics in (("s", "abc"), ("t", "cab"), ("u", "bc")):
        net.subscribe(subscriber, *topics)
    net.settle()
    published = [(topic, f"{topic}{number}") for number in range(8) for topic in "abc"]
    for topic, event in published:
        net.publish("p", topic, event)
    net.come_to_rest(random.choice)
    assert net.disagreements() == []
    for subscriber, topics in (("s", "abc"), ("t", "cab"), ("u", "bc")):
        delivered = net.delivered(subscriber)
        for each in topics:
            of_one_topic = [event for topic, event in published if topic == each]
            assert [event for event in delivered if event[0] == each] == of_one_topic


def test_requests_in_flight_never_exceed_the_window() -> None:
    net = Net(CHAIN, config=SequencerConfig(window=2))
    for number in range(5):
        net.publish("p", "a", f"e{number}")
    assert len(net.find(StampRequest)) == 2
    net.settle()
    assert len(net.settled("p")) == 5


def test_no_number_beyond_the_window_is_requested() -> None:
    net = Net(CHAIN, config=SequencerConfig(window=2))
    for number in range(4):
        net.publish("p", "a", f"e{number}")
    with net.holding(Accepted):
        net.settle()
        assert max(p.frame.number for p in net.handled if isinstance(p.frame, StampRequest)) == 2
    net.settle()
    assert len(net.settled("p")) == 4


def test_publishing_beyond_outgoing_max_is_refused_until_something_settles() -> None:
    net = Net(CHAIN, config=SequencerConfig(outgoing_max=2))
    net.publish("p", "a", "e1")
    net.publish("p", "a", "e2")
    with pytest.raises(LimitReached, match="outgoing_max") as caught:
        net.publish("p", "a", "e3")
    assert (caught.value.limit, caught.value.value) == ("outgoing_max", 2)
    assert caught.value.retriable
    net.settle()
    assert net.publish("p", "a", "e3").publisher_seq == 3


def test_a_topic_without_a_place_is_refused_at_once() -> None:
    net = Net(CHAIN, closed=True)
    with pytest.raises(ConfigurationError, match="'z' is not placed"):
        net.publish("p", "z", "e")
    assert net.publisher("p").unsettled_count == 0
    assert net.outcomes["p"] == []


@pytest.mark.parametrize("lost", [StampRequest, Stamped, Put, Accepted])
def test_lost_frames_are_repeated_and_the_event_settles_once(lost: type[Frame]) -> None:
    net = Net(CHAIN)
    net.subscribe("s", "a")
    net.settle()
    net.publish("p", "a", "e")
    with net.holding(lost):
        net.settle()
    net.drop(lost)
    net.pass_time(net.config.retry_ns)
    assert net.settled("p") == [("e", "")]
    assert net.delivered("s") == ["e"]
    assert net.log.ends()["a"] == 1


def test_repeated_requests_are_sent_as_runs_of_consecutive_numbers() -> None:
    net = Net(CHAIN)
    for topic in ("a", "b"):
        net.publish("p", topic, topic)
    net.drop(StampRequest)
    net.pass_time(net.config.retry_ns, settle=False)
    assert requests(net.under_way) == [("low", 1, ("a", "b"))]


def test_a_repeated_answer_changes_nothing() -> None:
    net = Net(CHAIN)
    net.publish("p", "a", "e")
    net.settle()
    before = list(net.outcomes["p"])
    for parcel in [p for p in net.handled if p.target == "p"]:
        net.repeat(parcel)
    net.settle()
    assert net.outcomes["p"] == before


def test_duplicate_stamp_publishes_the_event_once() -> None:
    net = Net(CHAIN)
    net.publish("p", "a", "e")
    net.roundtrip()
    assert len(net.find(Put)) == 1
    (answer,) = [p for p in net.handled if isinstance(p.frame, Stamped)]
    net.repeat(answer)
    net.deliver(net.find(Stamped)[0])
    assert len(net.find(Put)) == 1


def test_repeating_some_requests_keeps_the_others_due() -> None:
    net = Net(CHAIN, config=SequencerConfig(retry_ns=100))
    net.publish("p", "a", "e1")
    net.now_ns = 50
    net.publish("p", "a", "e2")
    net.drop(StampRequest)
    assert net.publisher("p").next_timer_ns() == 100
    net.pass_time(50, settle=False)
    assert requests(net.under_way) == [("low", 1, ("a",))]
    assert net.publisher("p").next_timer_ns() == 150
    net.pass_time(50, settle=False)
    assert requests(net.under_way) == [("low", 1, ("a",)), ("low", 2, ("a",))]
    assert net.publisher("p").next_timer_ns() == 300


def asked_at(net: Net, kind: type[Frame], until_ns: int) -> list[int]:
    """Lose all sent frames of one type up to a time; return when they were sent."""
    times: list[int] = []
    while net.now_ns < until_ns:
        times += [net.now_ns] * len(net.find(kind))
        net.drop(kind)
        net.pass_time(50, settle=False)
    return times


def test_backoff_doubles_up_to_a_bound_without_answers() -> None:
    net = Net(CHAIN, config=SequencerConfig(retry_ns=100, lease_ns=10**9))
    net.publish("p", "a", "e")
    times = asked_at(net, StampRequest, 4_000)
    assert times == [0, 100, 300, 700, 1500, 2300, 3100, 3900]


def test_backoff_ends_well_within_a_lease() -> None:
    net = Net(CHAIN, config=SequencerConfig(retry_ns=100, lease_ns=1_200))
    net.publish("p", "a", "e")
    assert asked_at(net, StampRequest, 1_500) == [0, 100, 300, 600, 900, 1_200]


def test_requests_over_connections_are_repeated_late_and_within_a_lease() -> None:
    connected = SequencerConfig(retry_ns=100, publish_retry_ns=400, lease_ns=10**9)
    net = Net(CHAIN, config=connected)
    net.publish("p", "a", "e")
    assert asked_at(net, StampRequest, 4_000) == [0, 400, 1_200, 2_800]
    short = Net(CHAIN, config=msgspec.structs.replace(connected, lease_ns=1_200))
    short.publish("p", "a", "e")
    assert asked_at(short, StampRequest, 1_000) == [0, 300, 600, 900]


def test_requests_over_connections_are_repeated_at_once_on_a_new_one() -> None:
    net = Net(CHAIN, config=SequencerConfig(retry_ns=100, publish_retry_ns=400))
    net.publish("p", "a", "e")
    net.drop(StampRequest)
    publisher = net.publisher("p")
    publisher.repeat(now_ns=net.now_ns)
    (again,) = publisher.take_effects()
    assert again == Send("low", StampRequest(number=1, topics=("a",), settled=1))


def test_any_answer_resets_the_backoff() -> None:
    net = Net(CHAIN, config=SequencerConfig(retry_ns=100, lease_ns=10**9))
    net.publish("p", "a", "e1")
    net.publish("p", "a", "e2")
    for parcel in net.find(StampRequest):
        net.deliver(parcel)
    lost, heard = net.find(Stamped)
    net.under_way.remove(lost)
    net.now_ns = 50
    net.deliver(heard)
    # Repeated soon, as it was lost; then with backoff, as no answer came since.
    assert asked_at(net, StampRequest, 1_000) == [100, 200, 400, 800]


def test_unanswered_broadcast_is_repeated_with_backoff() -> None:
    net = Net(CHAIN, config=SequencerConfig(retry_ns=100, lease_ns=10**9))
    net.publish("p", "a", "e")
    net.roundtrip()
    assert asked_at(net, Put, 2_500) == [0, 100, 300, 700, 1500, 2300]


# -- Refusals --------------------------------------------------------------------------------------


def refusals(net: Net, publisher: str) -> list[Refuse]:
    return [each for each in net.outcomes[publisher] if isinstance(each, Refuse)]


def test_refused_event_is_reported_and_settled() -> None:
    net = Net(CHAIN, config=SequencerConfig(clients_max=1))
    net.publish("p", "a", "e")
    net.settle()
    event = net.publish("q", "a", "f")
    net.settle()
    assert net.outcomes["q"] == [
        Publish(event),
        Refuse(("a",), too_many_publishers()),
        Settle(event, "void", too_many_publishers()),
    ]
    assert net.publisher("q").unsettled_count == 0
    assert net.publisher("q").next_timer_ns() is None
    assert "event/1" not in net.disks["q"]


def test_events_after_a_refused_one_continue() -> None:
    net = Net(CHAIN, config=SequencerConfig(topics_max=1))
    net.subscribe("s", "a")
    net.settle()
    for event, topic in (("e1", "a"), ("e2", "b"), ("e3", "a"), ("e4", "c"), ("e5", "a")):
        net.publish("p", topic, event)
    net.come_to_rest()
    assert dict(net.settled("p")) == {"e1": "", "e2": "void", "e3": "", "e4": "", "e5": ""}
    assert net.delivered("s") == ["e1", "e3", "e5"]
    assert refusals(net, "p") == [Refuse(("b",), too_many_topics())]


def test_lost_or_repeated_refusal_settles_its_event_once() -> None:
    net = Net(CHAIN, config=SequencerConfig(topics_max=1))
    net.publish("p", "a", "e1")
    net.settle()
    net.publish("p", "b", "e2")
    with net.holding(Refused):
        net.settle()
    net.drop(Refused)
    net.come_to_rest()
    (refusal,) = [each for each in net.handled if isinstance(each.frame, Refused)]
    net.repeat(refusal)
    net.come_to_rest()
    assert net.settled("p") == [("e1", ""), ("e2", "void")]
    assert refusals(net, "p") == [Refuse(("b",), too_many_topics())]


def test_refusal_of_a_stamped_event_changes_nothing() -> None:
    net = Net(CHAIN)
    net.publish("p", "a", "e")
    net.roundtrip()
    net.publisher("p").receive(Refused(number=1, reason="late"), source="low", now_ns=0)
    net.settle()
    assert net.settled("p") == [("e", "")]
    assert refusals(net, "p") == []


def test_a_publisher_that_was_refused_is_served_once_there_is_room() -> None:
    net = Net(CHAIN, config=SequencerConfig(clients_max=1))
    net.publish("p", "a", "e")
    net.settle()
    net.publish("q", "a", "f1")
    net.settle()
    net.pass_time(net.config.lease_ns)
    net.publish("q", "a", "f2")
    net.come_to_rest()
    assert net.settled("q") == [("f1", "void"), ("f2", "")]


# -- Confirmations ---------------------------------------------------------------------------------


def confirmed(parcels: list[Parcel]) -> list[tuple[str, int]]:
    """Node and number of requests of each confirmation."""
    return [
        (parcel.target, len(parcel.frame.slots))
        for parcel in parcels
        if isinstance(parcel.frame, Confirm)
    ]


def test_settled_events_are_confirmed_in_batches() -> None:
    net = Net(CHAIN)
    for number in range(2 * CONFIRM_BATCH + 1):
        net.publish("p", "a", f"e{number}")
    net.settle()
    assert confirmed(net.handled) == [("low", CONFIRM_BATCH)] * 2
    assert net.stage("low").open_count == 1


def test_partial_batch_is_confirmed_well_within_the_lease() -> None:
    net = Net(CHAIN)
    net.publish("p", "a", "e1")
    net.settle()
    assert net.publisher("p").next_timer_ns() == net.config.lease_ns // 4
    net.pass_time(net.config.lease_ns // 8)
    net.publish("p", "c", "e2")
    net.settle()
    net.pass_time(net.config.lease_ns // 8)
    assert confirmed(net.handled) == [("low", 1), ("high", 1)]
    assert net.publisher("p").next_timer_ns() is None


def test_all_settled_events_can_be_confirmed_at_once() -> None:
    net = Net(CHAIN)
    for topic in "abc":
        net.publish("p", topic, topic)
        net.settle()
    publisher = net.publisher("p")
    publisher.confirm_all()
    frames = [each.frame for each in publisher.take_effects() if isinstance(each, Send)]
    assert frames == [
        Confirm(origin="low", slots=((1, 1), (2, 1)), settled=3),
        Confirm(origin="high", slots=((1, 1),), settled=2),
    ]
    assert publisher.next_timer_ns() is None
    publisher.confirm_all()
    assert list(publisher.take_effects()) == []


def test_origin_is_confirmed_too_if_another_node_completed_the_stamps() -> None:
    net = Net(CHAIN)
    net.subscribe("s", "a", "c")
    net.settle()
    net.publish("p", "a", "e")
    net.settle()
    assert set(net.stage("low").sessions.by_name["p"].elsewhere) == {1}
    net.confirm("p")
    frames = [(each.target, each.frame) for each in net.find(Confirm)]
    assert frames == [
        ("high", Confirm(origin="low", slots=((1, 1),), settled=2)),
        ("low", Confirm(origin="low", slots=(), settled=2)),
    ]
    net.settle()
    assert net.stage("low").sessions.by_name["p"].elsewhere == {}
    assert net.stage("high").open_count == 0


def test_leave_confirms_settled_events_and_is_sent_to_every_origin() -> None:
    net = Net(CHAIN)
    net.publish("p", "a", "e1")
    net.settle()
    net.publish("p", "c", "e2")
    net.settle()
    net.say_goodbye("p")
    frames = [(each.target, type(each.frame)) for each in net.under_way]
    assert frames == [("low", Confirm), ("high", Confirm), ("low", Forget), ("high", Forget)]
    assert [each.frame for each in net.find(Forget)] == [
        Forget(number=2, publisher=True),
        Forget(number=2, publisher=True),
    ]


def test_leave_names_the_first_unsettled_number() -> None:
    net = Net(CHAIN)
    net.publish("p", "a", "e1")
    net.settle()
    net.publish("p", "a", "e2")
    net.say_goodbye("p")
    assert [each.frame for each in net.find(Forget)] == [Forget(number=2, publisher=True)]
    net.come_to_rest()
    assert net.settled("p") == [("e1", ""), ("e2", "")]


# -- Timers ----------------------------------------------------------------------------------------


def test_idle_publisher_has_nothing_due() -> None:
    net = Net(CHAIN)
    assert net.publisher("p").next_timer_ns() is None
    net.publish("p", "a", "e")
    assert net.publisher("p").next_timer_ns() == net.config.retry_ns
    net.settle()
    net.pass_time(net.config.lease_ns)
    assert net.publisher("p").next_timer_ns() is None


# -- Restarts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("reached", [StampRequest, Stamped, Put, Accepted])
def test_restarted_publisher_continues_with_the_same_stamp(reached: type[Frame]) -> None:
    """In every state of the event when the publisher crashes."""
    net = Net(CHAIN)
    net.subscribe("s", "a")
    net.settle()
    net.publish("p", "a", "e1")
    net.publish("p", "a", "e2")
    with net.holding(reached):
        net.settle()
    net.crash("p")
    net.settle()
    net.restart("p")
    net.come_to_rest()
    assert net.delivered("s") == ["e1", "e2"]
    assert net.log.ends()["a"] == 2
    assert {event for event, _ in net.settled("p")} == {"e1", "e2"}


def test_restarted_publisher_reports_accepted_events_again() -> None:
    net = Net(CHAIN)
    event = net.publish("p", "a", "e")
    net.restart("p")
    assert net.outcomes["p"] == [Publish(event), Publish(event)]
    assert net.publisher("p").unsettled_count == 1


def test_restarted_publisher_continues_its_numbers() -> None:
    net = Net(CHAIN)
    net.publish("p", "a", "e1")
    net.settle()
    net.restart("p")
    assert net.publish("p", "a", "e2").id == "p/a/2"
    net.settle()
    assert [event for event, _ in net.settled("p")] == ["e1", "e2"]


def test_a_settled_event_leaves_no_record() -> None:
    net = Net(CHAIN)
    net.publish("p", "a", "e")
    assert "event/1" in net.disks["p"]
    net.settle()
    assert set(net.disks["p"]) == {"sequence/a", "number/low"}


def test_publisher_needs_no_configuration() -> None:
    net = Net(CHAIN)
    publisher = Publisher(name="p", placement=net.placement)
    assert publisher.config == SequencerConfig()


# -- Round trips -----------------------------------------------------------------------------------

MS = 1_000_000


def test_lost_request_is_repeated_after_the_measured_round_trip() -> None:
    net = Net(CHAIN, config=SequencerConfig(retry_ns_min=10 * MS))
    net.publish("p", "a", "e1")
    net.settle()
    net.publish("p", "a", "e2")
    net.drop(StampRequest)
    assert net.publisher("p").next_timer_ns() == net.now_ns + 10 * MS
    net.pass_time(10 * MS)
    assert net.publisher("p").unsettled_count == 0


def test_lost_broadcast_is_repeated_after_the_measured_round_trip() -> None:
    net = Net(CHAIN, config=SequencerConfig(retry_ns_min=10 * MS))
    net.publish("p", "a", "e1")
    net.settle()
    net.publish("p", "a", "e2")
    with net.holding(Put):
        net.settle()
    net.drop(Put)
    net.pass_time(10 * MS)
    assert net.publisher("p").unsettled_count == 0


def test_answer_to_a_repeated_request_is_no_sample() -> None:
    net = Net(CHAIN, config=SequencerConfig(retry_ns_min=10 * MS))
    net.publish("p", "a", "e1")
    net.drop(StampRequest)
    net.pass_time(50 * MS)
    net.publish("p", "a", "e2")
    assert net.publisher("p").next_timer_ns() == net.now_ns + 100 * MS


@pytest.mark.parametrize("retry_ns_min", [-1, 501 * MS])
def test_shortest_wait_beyond_the_first_is_refused(retry_ns_min: int) -> None:
    with pytest.raises(ConfigurationError, match="retry_ns_min must be between 0 and retry_ns"):
        SequencerConfig(retry_ns_min=retry_ns_min)
