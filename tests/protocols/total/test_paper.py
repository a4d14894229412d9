"""The claims of the paper on total notification order, one test each, with the section.

Baldoni, Bonomi, Platania, Querzoni: Efficient Notification Ordering for Geo-Distributed Pub/Sub
Systems. The rules under test are the corrected ones: a subscription counts nothing and sends no
dummy events, a request visits every stage on its way, and an entry of zero is not carried. Where a
figure of the paper shows numbers that follow from an increment on subscription, a comment notes it.

The paper's ranks T1 → T2 → T3 mean that requests climb from T3 to T1.
"""

from collections.abc import Mapping
from itertools import permutations
from random import Random
from typing import Any

import pytest
from tests.protocols.total.harness import Net

from ensue.core.event import Stamp
from ensue.protocols.interface import Deliver, Frame, Leave
from ensue.protocols.topic_log.frames import Attached, AttachRequest, Notify, Put
from ensue.protocols.total.config import SequencerConfig
from ensue.protocols.total.frames import (
    Changed,
    ChangeFill,
    ChangeRequest,
    Confirm,
    Fill,
    Stamped,
    StampRequest,
)

CHAIN = {"TM3": ["T3"], "TM2": ["T2"], "TM1": ["T1"]}
"""One topic manager a topic, in the order that requests climb."""
WHOLE = SequencerConfig(leave_out=False)
"""Stamps as the paper has them: every entry of the group."""
FIGURE_4 = {"i": ("T1", "T2", "T3"), "j": ("T1", "T2"), "k": ("T2",)}


def by_two(subscriptions: Mapping[str, tuple[str, ...]]) -> Net:
    """Groups as in Definition 1, which need subscriptions that never change."""
    config = SequencerConfig(groups=2, fixed=subscriptions, leave_out=False)
    net = Net(CHAIN, config=config)
    for name in subscriptions:
        net.subscriber(name)
    net.settle()
    return net


def by_one(subscriptions: Mapping[str, tuple[str, ...]], config: SequencerConfig = WHOLE) -> Net:
    """Groups as in section 4."""
    net = Net(CHAIN, config=config)
    for name, topics in subscriptions.items():
        net.subscribe(name, *topics)
    net.settle()
    return net


def lossy(**limits: Any) -> Net:
    """One topic on a lossy topic log, and its subscriber."""
    net = Net({"TM": ["T"]}, config=SequencerConfig(reliable=False, leave_out=False, **limits))
    net.subscribe("s", "T")
    net.settle()
    return net


def comparable(one: Stamp, other: Stamp) -> bool:
    """Definition 3."""
    return not one.entries.keys().isdisjoint(other.entries)


def smaller(one: Stamp, other: Stamp) -> bool:
    """Definition 4; an entry that is not carried is zero."""
    topics = one.entries | other.entries
    pairs = [(one.entries.get(topic, 0), other.entries.get(topic, 0)) for topic in topics]
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)


def arrive(net: Net, kind: type[Frame], *names: str, to: str) -> None:
    """Deliver only the frames of these events, in this order."""
    for name in names:
        (parcel,) = [p for p in net.find(kind, to=to) if name in net.about(p)]
        net.deliver(parcel)


# -- Section 3.4: definitions ----------------------------------------------------------------------


def test_definition_1_group_of_a_topic_is_what_two_subscriptions_share_with_it() -> None:
    net = by_two(FIGURE_4)
    assert net.group("T1") == {"T1", "T2"}
    assert net.group("T2") == {"T1", "T2"}
    assert net.group("T3") == {"T3"}


def test_definition_1_in_section_4_group_is_what_one_subscription_shares_with_it() -> None:
    net = by_one(FIGURE_4)
    for topic in ("T1", "T2", "T3"):
        assert net.group(topic) == {"T1", "T2", "T3"}


def test_definition_2_stamp_has_an_entry_for_each_topic_of_the_group_and_no_other() -> None:
    net = by_two(FIGURE_4)
    for topic in ("T1", "T2", "T3", "T1", "T2", "T3"):
        net.publish("p", topic, f"{topic} {len(net.stamps)}")
        net.settle()
    stamps = list(net.stamps.values())[3:]
    assert [stamp.entries for stamp in stamps] == [
        {"T1": 2, "T2": 1},
        {"T1": 2, "T2": 2},
        {"T3": 2},
    ]


def test_definition_3_stamps_are_comparable_exactly_if_their_groups_intersect() -> None:
    net = by_two(FIGURE_4)
    for number, topic in enumerate(("T1", "T2", "T3", "T1", "T2", "T3")):
        # Once more each: an entry of zero is not carried.
        net.publish("p", topic, f"{topic} {number >= 3}")
    net.settle()
    for one, other in permutations(("T1", "T2", "T3"), 2):
        stamps = net.stamps[f"{one} True"], net.stamps[f"{other} True"]
        assert comparable(*stamps) == bool(net.group(one) & net.group(other))


def test_definition_4_stamps_of_one_group_are_ordered_by_smaller_than() -> None:
    net = by_one({"i": ("T1", "T2", "T3"), "j": ("T1", "T2", "T3")})
    random = Random(4)
    names = [f"e{number}" for number in range(30)]
    for name in names:
        net.publish(f"p{random.randrange(3)}", random.choice(("T1", "T2", "T3")), name)
    net.come_to_rest(random.choice)
    order = net.delivered("i")
    assert sorted(order) == sorted(names)
    for index, earlier in enumerate(order):
        for later in order[index + 1 :]:
            if comparable(net.stamps[earlier], net.stamps[later]):
                assert smaller(net.stamps[earlier], net.stamps[later])
                assert not smaller(net.stamps[later], net.stamps[earlier])


def test_section_3_4_stamp_size_is_one_without_common_subscribers() -> None:
    net = by_one({"i": ("T1",), "j": ("T2",), "k": ("T3",)})
    for number, topic in enumerate(("T1", "T2", "T3") * 3):
        net.publish("p", topic, f"e{number}")
        net.settle()
    assert {len(stamp.entries) for stamp in net.stamps.values()} == {1}


def test_section_3_4_stamp_size_is_the_number_of_topics_when_all_subscribe_all() -> None:
    net = by_one(dict.fromkeys("ij", ("T1", "T2", "T3")))
    for number, topic in enumerate(("T1", "T2", "T3") * 3):
        net.publish("p", topic, f"e{number}")
        net.settle()
    assert [len(stamp.entries) for stamp in net.stamps.values()] == [1, 2, 3, 3, 3, 3, 3, 3, 3]


def test_section_3_4_stamp_says_nothing_about_the_producer() -> None:
    stamps = []
    for publishers in (("p", "p"), ("p", "q")):
        net = by_one(FIGURE_4)
        for publisher, event in zip(publishers, ("e1", "e2"), strict=True):
            net.publish(publisher, "T2", event)
            net.settle()
        stamps.append(net.stamps)
    assert stamps[0] == stamps[1]


# -- Section 3.2: design principles ----------------------------------------------------------------


def test_section_3_2_requests_flow_one_way_from_the_lowest_rank_to_the_highest() -> None:
    net = by_one(FIGURE_4)
    net.publish("p", "T3", "e")
    net.subscribe("k", "T3")
    net.settle()
    stages = list(CHAIN)
    between = [p for p in net.handled if p.source in CHAIN and p.target in CHAIN]
    hops = [(stages.index(p.source), stages.index(p.target)) for p in between]
    assert len(hops) >= 4
    assert all(target == source + 1 for source, target in hops)


def test_section_3_2_no_acknowledgement_flows_back_between_stages() -> None:
    net = by_one(FIGURE_4)
    net.publish("p", "T3", "e")
    net.settle()
    between = [p for p in net.handled if p.source in CHAIN and p.target in CHAIN]
    assert {type(p.frame) for p in between} == {Fill, ChangeFill}


def test_section_3_2_publishers_and_subscribers_never_talk_to_each_other() -> None:
    net = by_one(FIGURE_4)
    net.publish("p", "T2", "e")
    net.settle()
    net.pass_time(net.config.poll_ns)
    clients = {"p", "i", "j", "k"}
    assert not [p for p in net.handled if p.source in clients and p.target in clients]


def test_section_3_4_only_ids_travel_in_requests_and_no_payload() -> None:
    net = by_one(FIGURE_4)
    net.publish("p", "T3", "a payload that nobody but the ENS may see")
    net.settle()
    net.pass_time(net.config.lease_ns)
    to_stages = [p.frame for p in net.handled if p.target in CHAIN]
    assert {StampRequest, Fill, Confirm} <= {type(frame) for frame in to_stages}
    assert "payload that" not in repr(to_stages)
    assert net.delivered("i") == ["a payload that nobody but the ENS may see"]


def test_section_3_2_a_group_that_lives_on_one_node_never_leaves_it() -> None:
    net = Net({"south": ["s1", "s2", "s3"], "middle": ["m"], "north": ["n1", "n2"]})
    net.subscribe("i", "s1", "s2", "s3")
    net.subscribe("j", "n1", "n2")
    net.subscribe("k", "s1", "s3")
    net.settle()
    for number, topic in enumerate(("s1", "s2", "n1", "s3", "n2", "s1")):
        net.publish("p", topic, f"e{number}")
        net.settle()
    assert not [p for p in net.handled if isinstance(p.frame, Fill | ChangeFill)]
    assert net.delivered("i") == ["e0", "e1", "e3", "e5"]


def test_section_3_2_no_node_keeps_the_subscriptions_of_topics_it_does_not_host() -> None:
    net = by_one({"i": ("T1", "T2"), "j": ("T2", "T3"), "k": ("T1",), "far": ("T1", "T3")})
    known = {stage: set(net.stage(stage).groups.subscriptions) for stage in CHAIN}
    assert known == {"TM1": {"i", "k", "far"}, "TM2": {"i", "j"}, "TM3": {"j", "far"}}


# -- Section 3.4: Figures 4 and 5 step by step -----------------------------------------------------


def test_figure_4_first_phase_stamp_is_built_in_stages() -> None:
    """S_i = {T1,T2,T3}, S_j = {T1,T2}, S_k = {T2}: e on T2 visits TM2, then TM1, then P."""
    net = by_two(FIGURE_4)
    net.publish("P", "T2", "e")
    (request,) = net.arrivals()
    assert (request.target, request.frame) == (
        "TM2",
        StampRequest(number=1, topics=("T2",), settled=1),
    )
    net.deliver(request)
    (fill,) = net.arrivals()
    assert fill.target == "TM1"
    assert isinstance(fill.frame, Fill)
    assert fill.frame.stamp.entries == {"T2": 1}
    net.deliver(fill)
    (reply,) = net.arrivals()
    assert (reply.source, reply.target) == ("TM1", "P")
    assert isinstance(reply.frame, Stamped)
    assert "e" not in net.stamps  # The payload waits at the publisher for the stamp.
    net.deliver(reply)
    (put,) = net.find(Put)
    assert put.target == "ens"
    assert net.stamps["e"] == Stamp({"T2": 1})  # T1 stands at zero, which is not carried.


def test_figure_4_second_and_third_phase_diffuse_and_notify() -> None:
    net = by_two(FIGURE_4)
    net.publish("P", "T2", "e")
    with net.holding(Notify):
        net.settle()
        assert sorted(p.target for p in net.find(Notify)) == ["i", "j", "k"]
    net.settle()
    assert [net.delivered(name) for name in "ijk"] == [["e"], ["e"], ["e"]]
    assert net.clock("i") == {"T1": 0, "T2": 1, "T3": 0}


def test_figure_4_stamps_of_e_and_e_prime_are_not_comparable() -> None:
    """Figure 4: T3 belongs to i alone, so e' on T3 carries a single number."""
    net = by_two(FIGURE_4)
    net.publish("P", "T2", "e")
    net.publish("P", "T3", "e'")
    net.settle()
    assert net.stamps["e'"] == Stamp({"T3": 1})
    assert not comparable(net.stamps["e"], net.stamps["e'"])


def test_figure_4_subscriber_k_adds_t3_and_stamps_of_t3_grow() -> None:
    """Corrected: the subscription raises no number and sends no dummy event.

    The paper's e'' is stamped {T2:2, T3:3} because k's subscription counted at T2 and T3.
    Groups are by one here, so j is omitted and i has no T1 and T2 in common with it.
    """
    net = by_one({"i": ("T3",), "k": ("T2",)})
    net.publish("P", "T2", "e")
    net.publish("P", "T3", "e'")
    net.settle()
    assert net.stamps["e'"] == Stamp({"T3": 1})
    stages = {"TM2": "T2", "TM3": "T3"}
    counters = {
        name: net.stage(name).state.counters.get(topic)[0] for name, topic in stages.items()
    }
    net.subscribe("k", "T3")
    (attach,) = net.arrivals()
    assert attach.frame == AttachRequest(topic="T3", from_slot=0)  # First ENSsubscribe(T3) …
    net.deliver(attach)
    (attached,) = net.arrivals()
    assert isinstance(attached.frame, Attached)
    net.deliver(attached)
    (request,) = net.arrivals()  # … then the request, to the manager of the lowest rank …
    assert request.target == "TM3"
    assert request.frame == ChangeRequest(number=2, old=("T2",), new=("T2", "T3"), known=1)
    net.deliver(request)
    (fill,) = net.arrivals()  # … which hands it on to the next …
    assert fill.target == "TM2"
    net.deliver(fill)
    (changed,) = net.arrivals()
    assert changed.frame == Changed(number=2, cut={"T2": 1, "T3": 1})
    net.deliver(changed)  # … and k starts its clock for T3 at the cut.
    assert net.clock("k") == {"T2": 1, "T3": 1}
    assert net.arrivals() == []  # No dummy events.
    after = {name: net.stage(name).state.counters.get(topic)[0] for name, topic in stages.items()}
    assert after == counters
    net.publish("P", "T3", "e''")
    net.settle()
    assert net.stamps["e''"] == Stamp({"T3": 2, "T2": 1})
    assert net.delivered("k") == ["e", "e''"]
    assert net.delivered("i") == ["e'", "e''"]


def test_figure_5_an_early_event_is_buffered() -> None:
    net = by_two(FIGURE_4)
    for event in ("e1", "e2"):
        net.publish("P", "T2", event)
    with net.holding(Notify, to="k", about="e1"):
        net.settle()
        assert net.delivered("i") == net.delivered("j") == ["e1", "e2"]
        assert net.delivered("k") == []
        assert net.subscriber("k").held_count == 1
    net.settle()
    assert net.delivered("k") == ["e1", "e2"]
    assert net.subscriber("k").held_count == 0


# -- Section 3.4: subscription management ----------------------------------------------------------


def test_section_3_4_events_before_the_cut_are_dropped_and_events_after_it_notified() -> None:
    net = by_one({"i": ("T1", "T2"), "k": ("T1",)})
    net.subscribe("k", "T2")
    with net.holding(Notify, to="k"), net.holding(Changed):
        net.roundtrip()  # k is attached: what is published from here on reaches it.
        net.drop(ChangeRequest)
        net.publish("P", "T2", "before")
        net.settle()
        net.pass_time(net.config.retry_ns)
        net.publish("P", "T2", "after")
        net.settle()
        assert net.find(Changed)
    arrive(net, Notify, "after", "before", to="k")
    assert net.delivered("k") == []  # Both are buffered until the cut is known.
    net.settle()
    assert net.delivered("k") == ["after"]
    assert net.discarded("k") == [("before", "before_join")]
    assert net.delivered("i") == ["before", "after"]


def test_section_3_4_subscriber_attaches_to_the_log_before_it_requests_the_cut() -> None:
    net = by_one({"k": ("T1",)})
    start = len(net.handled)
    net.subscribe("k", "T2")
    net.settle()
    kinds = [type(p.frame) for p in net.handled[start:]]
    assert kinds.index(AttachRequest) < kinds.index(Attached) < kinds.index(ChangeRequest)


def test_section_3_4_unsubscribing_takes_effect_at_once() -> None:
    net = by_one({"i": ("T1", "T2"), "j": ("T1", "T2")})
    net.publish("P", "T2", "e")
    with net.holding(Notify, to="j"):
        net.settle()
        net.unsubscribe("j", "T2")
        assert isinstance(net.outcomes["j"][-1], Leave)
        assert net.clock("j") == {"T1": 0}
    net.settle()
    assert net.delivered("j") == []
    assert net.discarded("j") == [("e", "not_subscribed")]


def test_section_3_4_unsubscribing_shrinks_groups_and_raises_no_number() -> None:
    net = by_one({"i": ("T1", "T2", "T3"), "j": ("T1",)})
    assert net.group("T1") == {"T1", "T2", "T3"}
    net.unsubscribe("i", "T2")
    net.settle()
    assert net.group("T1") == {"T1", "T3"}
    assert net.group("T2") == {"T2"}
    for topic in ("T2", "T1"):
        net.publish("P", topic, topic)
    net.settle()
    assert net.stamps["T2"] == Stamp({"T2": 1})
    assert net.stamps["T1"] == Stamp({"T1": 1})


# -- Appendix: lemmas ------------------------------------------------------------------------------


@pytest.mark.parametrize("order", list(permutations(("e1", "e2", "e3"))))
def test_lemma_1_two_events_of_one_topic_are_notified_in_one_order(order: tuple[str, ...]) -> None:
    net = by_two(FIGURE_4)
    for number, event in enumerate(("e1", "e2", "e3")):
        net.publish(f"p{number}", "T2", event)
    with net.holding(Notify):
        net.settle()
    arrive(net, Notify, "e1", "e2", "e3", to="i")
    arrive(net, Notify, *order, to="j")
    arrive(net, Notify, *reversed(order), to="k")
    assert net.delivered("i") == net.delivered("j") == net.delivered("k") == ["e1", "e2", "e3"]


@pytest.mark.parametrize("first_at_tm1", ["CREATE_PUB_TS of e1", "FILL_IN_PUB_TS of e2"])
@pytest.mark.parametrize("groups", [1, 2])
def test_lemma_2_two_events_of_two_topics_are_notified_in_one_order(
    first_at_tm1: str, groups: int
) -> None:
    """The two cases of the proof: which of the two requests TM1 handles first."""
    subscriptions = {"i": ("T1", "T2"), "j": ("T1", "T2")}
    net = by_two(subscriptions) if groups == 2 else by_one(subscriptions)
    net.publish("q", "T2", "e2")
    arrive(net, StampRequest, "e2", to="TM2")
    net.publish("p", "T1", "e1")
    if first_at_tm1.endswith("e1"):
        arrive(net, StampRequest, "e1", to="TM1")
        arrive(net, Fill, "e2", to="TM1")
    else:
        arrive(net, Fill, "e2", to="TM1")
        arrive(net, StampRequest, "e1", to="TM1")
    with net.holding(Notify):
        net.settle()
    arrive(net, Notify, "e1", "e2", to="i")
    arrive(net, Notify, "e2", "e1", to="j")
    expected = ["e1", "e2"] if first_at_tm1.endswith("e1") else ["e2", "e1"]
    assert net.delivered("i") == net.delivered("j") == expected


@pytest.mark.parametrize("lost", [AttachRequest, Attached, ChangeRequest, Changed])
def test_lemma_3_a_subscription_returns(lost: type[Frame]) -> None:
    """With a reliable log; and section 4: whichever message is lost is requested again."""
    net = by_one({"i": ("T1", "T3")})
    net.subscribe("k", "T1", "T2")
    with net.holding(lost):
        net.settle()
    assert net.joined("k") == []
    net.drop(lost)
    net.settle()
    assert net.joined("k") == []
    net.pass_time(net.config.retry_ns)
    assert net.joined("k") == ["T1", "T2"]


def test_lemma_4_everything_published_after_the_subscription_returned_is_notified() -> None:
    random = Random(41)
    net = by_one({"i": ("T1", "T2", "T3")}, SequencerConfig())
    net.subscribe("k", "T1")
    net.settle()
    expected: list[str] = []
    for number in range(60):
        topic = random.choice(("T1", "T2", "T3"))
        if number == 20:
            net.come_to_rest(random.choice)
            net.subscribe("k", "T3")
            net.come_to_rest(random.choice)
            assert net.joined("k") == ["T1", "T3"]
        net.publish("P", topic, f"e{number}")
        if topic == "T1" or (topic == "T3" and number >= 20):
            expected.append(f"e{number}")
    net.come_to_rest(random.choice)
    assert net.delivered("k") == expected


def test_lemma_5_a_subscription_never_shrinks_a_group() -> None:
    random = Random(5)
    net = by_one({"i": ("T1",)})
    topics = ("T1", "T2", "T3")
    groups = {topic: net.group(topic) for topic in topics}
    for number in range(24):
        net.subscribe(f"s{number % 4}", random.choice(topics))
        net.settle(random.choice)
        for topic in topics:
            assert groups[topic] <= net.group(topic)
            groups[topic] = net.group(topic)
    assert groups["T1"] == {"T1", "T2", "T3"}


@pytest.mark.parametrize("leave_out", [False, True])
def test_lemma_6_what_a_new_subscriber_is_notified_of_is_stamped_by_the_new_group(
    leave_out: bool,
) -> None:
    net = by_one({"i": ("T3",)}, SequencerConfig(leave_out=leave_out))
    for number in range(3):
        net.publish("P", "T1", f"a{number}")
        net.publish("P", "T3", f"b{number}")
    net.settle()
    assert net.stamps["b2"].entries == {"T3": 3}
    net.subscribe("k", "T1", "T3")
    net.settle()
    net.publish("P", "T3", "c")
    net.settle()
    assert net.stamps["c"] == Stamp({"T3": 4, "T1": 3})
    assert net.delivered("k") == ["c"]


@pytest.mark.parametrize("seed", range(20))
def test_theorem_1_any_two_events_are_notified_in_one_order(seed: int) -> None:
    """Changing subscriptions, three publishers, and reordering on all paths but the links."""
    random, network = Random(seed), Random(f"network/{seed}")
    net = by_one({"i": ("T1", "T2", "T3"), "j": ("T1", "T2"), "k": ("T2", "T3")})
    for number in range(80):
        who, topic = random.choice("ijk"), random.choice(("T1", "T2", "T3"))
        if random.random() < 0.15:
            change = net.unsubscribe if topic in net.subscriber(who)._wanted else net.subscribe
            change(who, topic)
        net.publish(f"p{random.randrange(3)}", topic, f"e{number}")
        for _ in range(network.randrange(8)):
            if choices := net.arrivals():
                net.deliver(network.choice(choices))
    net.come_to_rest(network.choice)
    assert net.disagreements() == []
    assert net.waiting() == []
    assert sum(len(net.delivered(name)) for name in "ijk") > 40


# -- Section 4: lossy topic log --------------------------------------------------------------------


def lose(net: Net, *events: str) -> None:
    """Publish events whose notifications are lost."""
    for event in events:
        net.publish("P", "T", event)
        with net.holding(Notify, about=event):
            net.settle()
        net.drop(Notify, about=event)


def test_section_4_condition_i_all_smaller_events_have_been_notified() -> None:
    net = lossy()
    net.publish("P", "T", "e1")
    net.publish("P", "T", "e2")
    with net.holding(Notify, about="e1"):
        net.settle()
        assert net.delivered("s") == []
    net.settle()
    assert net.delivered("s") == ["e1", "e2"]


def test_section_4_condition_ii_the_time_to_live_of_the_event_runs_out() -> None:
    net = lossy(time_to_live_ns=1000)
    lose(net, "e1")
    net.publish("P", "T", "e2")
    net.settle()
    net.pass_time(999)
    assert net.delivered("s") == []
    net.pass_time(1)
    assert net.delivered("s") == ["e2"]


def test_section_4_condition_iii_the_buffer_is_full_and_the_event_is_its_head() -> None:
    net = lossy(held_max=2)
    lose(net, "e1")
    for event in ("e2", "e3"):
        net.publish("P", "T", event)
    net.settle()
    assert net.delivered("s") == []
    lose(net, "e4")
    net.publish("P", "T", "e5")
    net.settle()
    assert net.delivered("s") == ["e2", "e3"]  # e3 follows e2 by condition (i).
    assert net.subscriber("s").held_count == 1


def test_section_4_a_late_event_is_tagged_out_of_order_and_notified_at_once() -> None:
    net = lossy(time_to_live_ns=1000)
    net.publish("P", "T", "e1")
    net.publish("P", "T", "e2")
    with net.holding(Notify, about="e1"):
        net.settle()
        net.pass_time(1000)
        assert net.delivered("s") == ["e2"]
    net.settle()
    assert net.delivered("s") == ["e2", "e1!"]
    tagged = net.outcomes["s"][-1]
    assert isinstance(tagged, Deliver)
    assert tagged.verdict == "out_of_order"


def test_section_4_an_event_in_order_is_never_tagged() -> None:
    net = lossy(time_to_live_ns=1000)
    lose(net, "e1")
    for event in ("e2", "e3", "e4"):
        net.publish("P", "T", event)
        net.settle()
        net.pass_time(1000)
    assert net.delivered("s") == ["e2", "e3", "e4"]


# -- Section 4: reliability ------------------------------------------------------------------------


@pytest.mark.parametrize("lost", [StampRequest, Stamped])
def test_section_4_a_lost_request_is_repeated_until_the_stamp_arrives(lost: type[Frame]) -> None:
    net = by_one(FIGURE_4)
    net.publish("P", "T2", "e")
    for _ in range(3):
        with net.holding(lost):
            net.settle()
        net.drop(lost)
        with net.holding(lost):
            net.pass_time(net.config.retry_ns)
        assert net.delivered("k") == []
    net.settle()
    assert net.delivered("k") == ["e"]


def test_section_4_a_retransmitted_request_gets_the_same_stamp() -> None:
    """The paper leaves out how; errata, section 5: requests carry an id."""
    net = by_one(FIGURE_4)
    net.publish("P", "T3", "e")
    (request,) = net.find(StampRequest)
    net.repeat(request)
    net.settle()
    net.repeat(request)
    net.settle()
    grants = [p.frame.grants for p in net.handled if isinstance(p.frame, Stamped)]
    assert len({repr(each) for each in grants}) == 1
    net.publish("P", "T3", "next")
    net.settle()
    assert net.stamps["next"].entries["T3"] == 2
    assert net.delivered("i") == ["e", "next"]


@pytest.mark.parametrize("victim", ["TM1", "TM2", "TM3"])
def test_section_4_the_state_of_a_manager_survives_its_failure(victim: str) -> None:
    net = by_one(FIGURE_4)
    random = Random(7)
    for number in range(30):
        net.publish("P", random.choice(("T1", "T2", "T3")), f"e{number}")
        for _ in range(4):
            if choices := net.arrivals():
                net.deliver(random.choice(choices))
        if number % 5 == 0:
            net.restart(victim)
    net.come_to_rest(random.choice)
    assert net.delivered("i") == [f"e{number}" for number in range(30)]
    assert net.disagreements() == []
    assert net.waiting() == []


# -- Section 4: ordering features ------------------------------------------------------------------


def test_section_4_events_of_one_publisher_on_one_topic_are_fifo() -> None:
    net = by_two(FIGURE_4)
    names = [f"e{number}" for number in range(20)]
    for name in names:
        net.publish("P", "T2", name)
    net.come_to_rest(Random(1).choice)
    for subscriber in "ijk":
        assert net.delivered(subscriber) == names


def test_section_4_a_reply_on_the_same_topic_has_a_greater_stamp() -> None:
    net = by_two(FIGURE_4)
    net.publish("P", "T2", "cause")
    with net.holding(Notify, to="j"):
        net.settle()
        assert net.delivered("k") == ["cause"]
        net.publish("k's application", "T2", "effect")
        net.settle()
    arrive(net, Notify, "effect", "cause", to="j")
    assert net.delivered("j") == ["cause", "effect"]


@pytest.mark.parametrize(("cause", "effect"), list(permutations(("T1", "T2", "T3"), 2)))
def test_section_4_groups_by_one_keep_cause_before_effect_across_topics(
    cause: str, effect: str
) -> None:
    """One subscriber of both topics, another of one of them that publishes on the other."""
    net = by_one({"both": (cause, effect), "replier": (cause,)})
    net.publish("P", cause, "cause")
    with net.holding(Notify, to="both"):
        net.settle()
        assert net.delivered("replier") == ["cause"]
        net.publish("replier's application", effect, "effect")
        net.settle()
    arrive(net, Notify, "effect", "cause", to="both")
    assert net.delivered("both") == ["cause", "effect"]


def test_section_4_groups_by_two_do_not_keep_cause_before_effect_across_topics() -> None:
    """The limit that the paper states: without this the test above would prove nothing."""
    net = by_two({"both": ("T1", "T2"), "replier": ("T1",)})
    net.publish("P", "T1", "cause")
    with net.holding(Notify, to="both"):
        net.settle()
        net.publish("replier's application", "T2", "effect")
        net.settle()
    arrive(net, Notify, "effect", "cause", to="both")
    assert net.delivered("both") == ["effect", "cause"]
