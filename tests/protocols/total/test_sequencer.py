"""A single sequencer: stamps, and their way up the chain."""

import pytest
from msgspec import msgpack
from msgspec.structs import replace
from tests.protocols.total.limits import too_many_publishers, too_many_topics
from tests.protocols.total.stages import (
    CHANGE,
    FILL,
    Disk,
    ask,
    change,
    handle,
    node,
    overdue,
    stamped,
)

from ensue.core.event import Event, Stamp
from ensue.protocols.interface import Send
from ensue.protocols.topic_log.frames import Accepted, Notify
from ensue.protocols.total.frames import (
    STAMPED_BYTES_MAX,
    Changed,
    ChangeFill,
    ChangeRequest,
    Confirm,
    Fill,
    Forget,
    Grant,
    OrderRequest,
    Refused,
    Repeat,
    Stamped,
    StampRequest,
)
from ensue.protocols.total.frames import stamped as parted
from ensue.protocols.total.placement import Placement
from ensue.protocols.total.publisher_sessions import (
    ALL_EARLY_BYTES_MAX,
    EARLY_BYTES_MAX,
    FORGET_TRIES,
)
from ensue.protocols.total.sequencer import Sequencer

# -- Stamps ----------------------------------------------------------------------------------------


def test_events_of_a_topic_are_counted() -> None:
    low = node()
    assert ask(low, 1, "a") == [stamped({"a": 1})]
    assert ask(low, 2, "a", "b", "a") == [stamped({"a": 2}, {"b": 1}, {"a": 3}, number=2)]


def test_a_run_of_requests_is_answered_in_one_frame() -> None:
    assert len(ask(node(), 1, *("a" * 100))) == 1


def test_stamps_beyond_one_frame_are_split_in_order() -> None:
    entries = {f"{number:0200}": 2**62 for number in range(100)}
    grants = [Grant(number, Stamp({**entries, "a": number})) for number in range(1, 101)]
    frames = list(parted("low", grants))
    assert [grant for frame in frames for grant in frame.grants] == grants
    sizes = [len(msgpack.encode(frame)) for frame in frames]
    assert max(sizes) <= STAMPED_BYTES_MAX + 64
    assert len(frames) <= 10
    # One that is too large alone goes alone.
    huge = Grant(1, Stamp({f"{number:0200}": 1 for number in range(2_000)}))
    assert [len(frame.grants) for frame in parted("low", [huge, *grants[:2]])] == [1, 2]


def test_node_splits_its_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ensue.protocols.total.frames.STAMPED_BYTES_MAX", 350)
    answers = ask(node(), 1, *("a" * 25))
    assert [len(each.grants) for each in answers if isinstance(each, Stamped)] == [10, 10, 5]


def test_publishers_are_numbered_independently() -> None:
    low = node()
    assert ask(low, 1, "a", publisher="p") == [stamped({"a": 1})]
    assert ask(low, 1, "a", publisher="q") == [stamped({"a": 2})]


def test_a_repeated_request_gets_the_same_stamp() -> None:
    low = node()
    first = ask(low, 1, "a", "a")
    assert ask(low, 1, "a", "a") == first
    assert ask(low, 2, "a", "a") == [
        Stamped(origin="low", grants=(Grant(2, Stamp({"a": 2})), Grant(3, Stamp({"a": 3}))))
    ]


def test_early_requests_are_stamped_in_order_once_the_gap_is_filled() -> None:
    low = node()
    assert ask(low, 4, "b") == []
    assert ask(low, 2, "a", "b") == []
    assert ask(low, 1, "a") == [stamped({"a": 1}, {"a": 2}, {"b": 1}, {"b": 2})]
    assert low.sessions.by_name["p"].early == {}
    assert ask(low, 5, "a") == [stamped({"a": 3}, number=5)]


def test_an_early_request_waits_for_every_gap_before_it() -> None:
    low = node()
    ask(low, 2, "a")
    ask(low, 4, "a")
    assert ask(low, 1, "a") == [stamped({"a": 1}, {"a": 2})]
    assert ask(low, 3, "a") == [stamped({"a": 3}, {"a": 4}, number=3)]


def test_an_early_request_that_is_repeated_is_stamped_once() -> None:
    low = node()
    ask(low, 2, "a")
    ask(low, 2, "a")
    assert ask(low, 1, "a") == [stamped({"a": 1}, {"a": 2})]
    assert ask(low, 3, "a") == [stamped({"a": 3}, number=3)]


def test_early_requests_of_publishers_are_independent() -> None:
    low = node()
    ask(low, 2, "a", publisher="p")
    assert ask(low, 1, "a", publisher="q") == [stamped({"a": 1})]
    assert ask(low, 1, "a", publisher="p") == [stamped({"a": 2}, {"a": 3})]


def test_early_requests_are_bounded_by_the_window() -> None:
    low = node(window=4)
    for number in range(9, 1, -1):
        assert ask(low, number, "a") == []
    assert set(low.sessions.by_name["p"].early) == {2, 3, 4}
    assert ask(low, 1, "a") == [stamped(*({"a": slot} for slot in range(1, 5)))]
    assert ask(low, 5, "a", settled=2) == [stamped({"a": 5}, number=5)]


def test_a_number_that_was_settled_without_a_stamp_is_not_waited_for() -> None:
    low = node(topics_max=1)
    ask(low, 1, "a")
    ask(low, 2, "b")
    assert ask(low, 3, "a", settled=2) == []
    assert ask(low, 4, "a", settled=3) == [stamped({"a": 2}, {"a": 3}, number=3)]


def early(number: int, size: int, *, publisher: str = "p") -> OrderRequest:
    event = Event(topic="a", payload=bytes(size), publisher=publisher, publisher_seq=number)
    return OrderRequest(number=number, events=(event,), settled=1)


def test_early_requests_of_a_publisher_are_bounded_by_bytes() -> None:
    low = node()
    third = EARLY_BYTES_MAX // 3
    for number in range(2, 9):
        low.receive(early(number, third - 1000), source="p", now_ns=0)
    assert set(low.sessions.by_name["p"].early) == {2, 3, 4}
    assert low.sessions.early.bytes <= EARLY_BYTES_MAX
    low.receive(early(1, 0), source="p", now_ns=0)
    assert low.count("a") == 4
    assert (low.early_count, low.sessions.early.bytes) == (0, 0)
    for number in range(5, 9):
        low.receive(early(number, third - 1000), source="p", now_ns=0)
    assert low.count("a") == 8


def test_early_requests_of_all_publishers_evict_the_longest_silent() -> None:
    low = node()
    many = ALL_EARLY_BYTES_MAX // (EARLY_BYTES_MAX // 2)
    for each in range(many):
        for number in (2, 3):
            request = early(number, EARLY_BYTES_MAX // 4, publisher=f"p{each}")
            low.receive(request, source=f"p{each}", now_ns=0)
        # The first one is active all the time.
        low.receive(early(4 + each, 0, publisher="p0"), source="p0", now_ns=0)
    assert low.sessions.early.bytes <= ALL_EARLY_BYTES_MAX
    held = [name for name, known in low.sessions.by_name.items() if known.early]
    assert "p0" in held
    assert "p1" not in held
    assert f"p{many - 1}" in held
    assert low.early_count == sum(len(known.early) for known in low.sessions.by_name.values())


def test_early_requests_of_a_departed_publisher_are_dropped() -> None:
    low = node()
    low.receive(early(3, 1000), source="p", now_ns=0)
    low.receive(Forget(number=2, publisher=True), source="p", now_ns=0)
    assert (low.sessions.by_name, low.early_count, low.sessions.early.bytes) == ({}, 0, 0)


def test_early_requests_below_the_settled_number_are_dropped() -> None:
    low = node(window=4)
    for number in range(1, 500, 10):
        ask(low, number + 2, "a", settled=number)
    assert set(low.sessions.by_name["p"].early) == {493}


def test_early_request_is_checked_against_topics_max_when_it_is_stamped() -> None:
    low = node(topics_max=1)
    ask(low, 2, "a")
    ask(low, 3, "b")
    assert ask(low, 1, "a") == [
        Refused(number=3, reason=too_many_topics()),
        stamped({"a": 1}, {"a": 2}),
    ]
    assert set(low.state.counters.by_topic) == {"a"}


def test_requests_beyond_the_window_are_not_answered() -> None:
    low = node(window=2)
    assert ask(low, 1, "a", "a", "a") == [stamped({"a": 1}, {"a": 2})]
    assert ask(low, 3, "a", settled=2) == [stamped({"a": 3}, number=3)]


def test_a_request_for_a_topic_of_an_earlier_node_is_refused() -> None:
    placement = Placement(["low", "high"], topics={"low": ["a"], "high": ["b"]})
    (refusal,) = ask(Sequencer(name="high", placement=placement), 1, "a")
    assert refusal == Refused(number=1, reason="'a' is not hosted by high")


def test_without_publisher_order_a_request_for_a_topic_hosted_elsewhere_is_refused() -> None:
    (refusal,) = ask(node(publisher_order=False), 1, "d")
    assert refusal == Refused(number=1, reason="'d' is not hosted by low")


def test_a_request_for_a_topic_of_a_later_node_is_counted_there() -> None:
    placement = Placement(["one", "two", "three"], topics={"three": ["c"]})
    one, two, three = (Sequencer(name=name, placement=placement) for name in placement.nodes)
    (frame,) = ask(one, 1, "c")
    for source, stage in (("one", two), ("two", three)):
        (frame,) = handle(stage, frame, source=source)
    assert frame == Stamped(origin="one", grants=(Grant(1, Stamp({"c": 1})),))
    assert (one.count("c"), two.count("c"), three.count("c")) == (0, 0, 1)


def test_a_repeated_request_for_a_topic_of_a_later_node_is_answered_where_it_was_completed() -> (
    None
):
    placement = Placement(["one", "two", "three"], topics={"two": ["b"]})
    one = Sequencer(name="one", placement=placement)
    ask(one, 1, "b")
    one.receive(StampRequest(number=1, topics=("b",), settled=1), source="p", now_ns=0)
    repeat = Repeat(publisher="p", number=1)
    sends = [each for each in one.take_effects() if isinstance(each, Send)]
    assert sends == [Send("two", repeat), Send("three", repeat)]


def test_a_request_for_a_topic_without_a_place_is_refused() -> None:
    closed = Sequencer(name="low", placement=Placement(["low"], closed=True))
    assert ask(closed, 1, "z") == [Refused(number=1, reason="'z' has no place on this chain")]


def test_requests_after_a_refused_one_in_its_frame_are_not_answered() -> None:
    low = node(topics_max=1)
    assert ask(low, 1, "a", "b", "a") == [
        Refused(number=2, reason=too_many_topics()),
        stamped({"a": 1}),
    ]


def test_a_new_publisher_beyond_clients_max_is_refused_while_all_others_are_busy() -> None:
    low = node(clients_max=1)
    ask(low, 1, "a", publisher="p")
    assert ask(low, 1, "a", publisher="q") == [Refused(number=1, reason=too_many_publishers())]
    assert ask(low, 2, "a", publisher="p") == [stamped({"a": 2}, number=2)]


def test_idle_publisher_makes_room_for_a_new_one() -> None:
    disk, low = Disk(), node(clients_max=2)
    request = StampRequest(number=1, topics=("a",), settled=1)
    for name in ("busy", "idle"):
        low.receive(request, source=name, now_ns=0)
    low.receive(Confirm(origin="low", slots=((1, 2),), settled=2), source="idle", now_ns=0)
    disk.drain(low)
    assert "publisher/idle" in disk
    low.receive(request, source="new", now_ns=0)
    assert disk.drain(low) == [stamped({"a": 3})]
    assert set(low.sessions.by_name) == {"busy", "new"}
    assert "publisher/idle" not in disk


def test_a_publisher_whose_stamps_are_completed_elsewhere_is_kept_until_it_confirms() -> None:
    """Otherwise a repeated request would get a second slot after the group has moved."""
    disk, low = Disk(), node(clients_max=1)
    low.receive(ChangeRequest(number=1, old=(), new=("a", "d")), source="s", now_ns=0)
    low.receive(StampRequest(number=1, topics=("a",), settled=1), source="p", now_ns=0)
    disk.drain(low)
    assert ask(low, 1, "a", publisher="q") == [Refused(number=1, reason=too_many_publishers())]
    low.receive(Confirm(origin="low", slots=(), settled=2), source="p", now_ns=0)
    low.receive(StampRequest(number=1, topics=("a",), settled=1), source="q", now_ns=0)
    disk.drain(low)
    assert set(low.sessions.by_name) == {"q"}
    assert {key for key in disk if key.endswith("/p")} == set()


def test_second_stamp_for_one_request_is_never_sent_and_voided_at_once() -> None:
    """Its origin had forgotten the publisher, which repeated the request."""
    high = node("high", lease_ns=1000)
    fill = Fill(publisher="p", origin="middle", number=1, topic="c", stamp=Stamp({"c": 1}), last=2)
    again = replace(fill, stamp=Stamp({"c": 2}))
    first = stamped({"c": 1}, origin="middle")
    assert handle(high, fill, source="middle") == [first]
    assert handle(high, again, source="middle", at=5) == [first]
    assert [event.slot for event in overdue(high, 5)] == [2]
    handle(high, Confirm(origin="middle", slots=((1, 1),), settled=2))
    assert high.open_count == 1
    handle(high, Accepted(topic="c", event="high/c/2", slot=2), source="ens")
    assert high.open_count == 0


def test_a_ghost_stays_a_ghost_after_a_restart() -> None:
    disk, high = Disk(), node("high", lease_ns=1000)
    for slot in (1, 2):
        stamp = Stamp({"c": slot})
        fill = Fill(publisher="p", origin="middle", number=1, topic="c", stamp=stamp, last=2)
        high.receive(fill, source="middle", now_ns=0)
    disk.drain(high)
    again = node("high", records=disk, lease_ns=1000)
    asked = Repeat(publisher="p", number=1)
    assert handle(again, asked, source="middle") == [stamped({"c": 1}, origin="middle")]
    assert [event.slot for event in overdue(again, 0)] == [2]


def test_returning_forgotten_publisher_resumes_at_its_own_number() -> None:
    low = node(clients_max=1)
    ask(low, 1, "a", "a", publisher="p")
    handle(low, Confirm(origin="low", slots=((1, 1), (2, 2)), settled=3), source="p")
    ask(low, 1, "a", publisher="q")
    handle(low, Confirm(origin="low", slots=((1, 3),), settled=2), source="q")
    assert ask(low, 3, "a", publisher="p", settled=3) == [stamped({"a": 4}, number=3)]
    assert set(low.sessions.by_name) == {"p"}


def test_busy_publishers_do_not_hide_an_idle_one_forever() -> None:
    """Each new publisher checks only some of them, and the next one checks others."""
    busy = [f"busy-{number}" for number in range(FORGET_TRIES)]
    low = node(clients_max=len(busy) + 1)
    for name in (*busy, "idle"):
        ask(low, 1, "a", publisher=name)
    handle(low, Confirm(origin="low", slots=((1, len(busy) + 1),), settled=2), source="idle")
    assert ask(low, 1, "a", publisher="new") == [Refused(number=1, reason=too_many_publishers(17))]
    assert ask(low, 1, "a", publisher="new") == [stamped({"a": len(busy) + 2})]


def test_a_new_topic_beyond_topics_max_is_refused() -> None:
    low = node(topics_max=1)
    ask(low, 1, "a")
    assert ask(low, 2, "b") == [Refused(number=2, reason=too_many_topics())]
    assert ask(low, 2, "a") == [stamped({"a": 2}, number=2)]


def test_a_stray_frame_changes_nothing() -> None:
    low = node()
    event = Event(topic="a", payload=b"", publisher="p", publisher_seq=1)
    low.receive(Notify(event=event), source="ens", now_ns=0)
    assert list(low.take_effects()) == []


# -- The way up the chain --------------------------------------------------------------------------


def test_a_request_goes_to_the_next_node_and_skips_none() -> None:
    low = node()
    change(low, 1, new="ad")
    low.receive(StampRequest(number=1, topics=("a",), settled=1), source="p", now_ns=0)
    (send,) = [each for each in low.take_effects() if isinstance(each, Send)]
    assert send.peer == "middle"
    assert send.frame == Fill(
        publisher="p", origin="low", number=1, topic="a", stamp=Stamp({"a": 1}), last=2
    )


def test_node_without_entries_passes_a_stamp_on_in_order() -> None:
    middle = node("middle")
    fills = [
        Fill(publisher="p", origin="low", number=n, topic="a", stamp=Stamp({"a": n}), last=2)
        for n in (1, 2)
    ]
    for fill in fills:
        assert handle(middle, fill, source="low") == [fill]


def test_the_last_node_adds_its_counters_and_answers_the_publisher() -> None:
    high = node("high")
    joined = ChangeFill(subscriber="s", number=1, old=(), new=("a", "d"), entries={"a": 0}, last=2)
    handle(high, joined, source="middle")
    ask(high, 1, "d", "d", publisher="q")
    fill = Fill(publisher="p", origin="low", number=7, topic="a", stamp=Stamp({"a": 1}), last=2)
    assert handle(high, fill, source="middle") == [stamped({"a": 1, "d": 2}, number=7)]


def test_node_learns_lower_counters_from_passing_stamps() -> None:
    high = node("high")
    joined = ChangeFill(subscriber="s", number=1, old=(), new=("a", "d"), entries={"a": 0}, last=2)
    handle(high, joined, source="middle")
    fill = Fill(publisher="p", origin="low", number=1, topic="a", stamp=Stamp({"a": 5}), last=2)
    handle(high, fill, source="middle")
    assert ask(high, 1, "d") == [stamped({"d": 1, "a": 5}, origin="high")]


def test_node_learns_lower_counters_from_changes() -> None:
    """Otherwise the next stamp would be before the cut of the new subscriber."""
    high = node("high")
    fill = ChangeFill(subscriber="s", number=1, old=(), new=("a", "d"), entries={"a": 4}, last=2)
    assert handle(high, fill, source="middle") == [Changed(number=1, cut={"a": 4, "d": 0})]
    assert ask(high, 1, "d") == [stamped({"d": 1, "a": 4}, origin="high")]


def test_a_repeated_request_is_answered_by_the_node_that_completed_it() -> None:
    low, high = node("low"), node("high")
    change(low, 1, new="ad")
    (fill,) = ask(low, 1, "a")
    answer = handle(high, fill, source="middle")
    low.receive(StampRequest(number=1, topics=("a",), settled=1), source="p", now_ns=0)
    (send,) = [each for each in low.take_effects() if isinstance(each, Send)]
    assert (send.peer, send.frame) == ("high", Repeat(publisher="p", number=1))
    assert handle(high, send.frame, source="low") == answer


ODD_FILLS = {
    "from a client": ("client", FILL),
    "from a node that is no neighbour": ("low", FILL),
    "from itself": ("high", FILL),
    "without its own entry": ("middle", replace(FILL, stamp=Stamp({"d": 1}))),
    "that should have ended below": ("middle", replace(FILL, last=1)),
    "that goes beyond the chain": ("middle", replace(FILL, last=3)),
}


@pytest.mark.parametrize(("source", "fill"), ODD_FILLS.values(), ids=ODD_FILLS)
def test_stamp_that_is_impossible_for_the_lower_neighbor_is_ignored(
    source: str, fill: Fill
) -> None:
    high = node("high")
    high.receive(fill, source=source, now_ns=0)
    assert list(high.take_effects()) == []
    assert high.open_count == 0
    assert high.state.counters.get("a")[0] == 0


ODD_CHANGES = {
    "from a client": ("client", CHANGE),
    "from a node that is no neighbour": ("low", CHANGE),
    "from itself": ("high", CHANGE),
    "that should have ended below": ("middle", replace(CHANGE, last=1)),
    "that goes beyond the chain": ("middle", replace(CHANGE, last=3)),
}


@pytest.mark.parametrize(("source", "fill"), ODD_CHANGES.values(), ids=ODD_CHANGES)
def test_change_that_is_impossible_for_the_lower_neighbor_is_ignored(
    source: str, fill: ChangeFill
) -> None:
    high = node("high")
    high.receive(fill, source=source, now_ns=0)
    assert list(high.take_effects()) == []
    assert high.groups.subscriptions == {}
    assert high.state.counters.get("a")[0] == 0


def test_a_change_without_the_counts_of_lower_topics_is_ignored() -> None:
    high = node("high")
    assert handle(high, replace(CHANGE, entries={}), source="middle") == []
    assert high.groups.subscriptions == {}


def test_a_stamp_of_a_topic_without_a_place_is_ignored() -> None:
    placement = Placement(["low", "high"], topics={"low": ["a"], "high": ["d"]}, closed=True)
    high = Sequencer(name="high", placement=placement)
    odd = replace(FILL, topic="z", stamp=Stamp({"z": 1}), last=1)
    assert handle(high, odd, source="low") == []
    assert high.open_count == 0


def test_a_node_that_passed_a_stamp_on_still_refuses_requests_for_its_topic() -> None:
    high = node("high")
    handle(high, CHANGE, source="middle")
    handle(high, FILL, source="middle")
    (refusal,) = ask(high, 1, "a", publisher="q")
    assert refusal == Refused(number=1, reason="'a' is not hosted by high")


def test_first_node_of_a_chain_has_no_lower_neighbor() -> None:
    low = node("low")
    assert handle(low, FILL, source="high") == []
    assert handle(low, CHANGE, source="high") == []


def test_repeat_that_overtook_its_stamp_is_not_answered() -> None:
    assert handle(node("high"), Repeat(publisher="p", number=1), source="low") == []


def test_unchanged_entries_are_left_out() -> None:
    low = node(leave_out=True)
    change(low, 1, new="ab")
    ask(low, 1, "b")
    assert ask(low, 2, "a") == [stamped({"a": 1, "b": 1}, number=2)]
    (answer,) = ask(low, 3, "a")
    assert answer == Stamped(origin="low", grants=(Grant(3, Stamp({"a": 2}, whole=False)),))


def test_the_first_stamp_after_a_change_is_whole() -> None:
    low = node(leave_out=True)
    change(low, 1, new="ab")
    ask(low, 1, "b", "a", "a")
    change(low, 1, new="ab", subscriber="t")
    assert ask(low, 4, "a") == [stamped({"a": 3, "b": 1}, number=4)]


def test_every_stamp_is_whole_unless_entries_may_be_left_out() -> None:
    low = node()
    change(low, 1, new="ab")
    ask(low, 1, "b", "a")
    assert ask(low, 3, "a") == [stamped({"a": 2, "b": 1}, number=3)]
