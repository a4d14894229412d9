"""A single sequencer: subscription changes and departures."""

import pytest
from tests.protocols.total.limits import too_many_subscribers, too_many_topics
from tests.protocols.total.stages import CHANGE, Disk, ask, change, handle, node, stamped

from ensue.protocols.total.frames import (
    Changed,
    ChangeFill,
    ChangeRepeat,
    ChangeRequest,
    Confirm,
    Forget,
    Refused,
    StampRequest,
)
from ensue.protocols.total.placement import Placement
from ensue.protocols.total.sequencer import Sequencer

# -- Changes of subscription -----------------------------------------------------------------------


def test_a_change_reads_the_counters_and_raises_none() -> None:
    low = node()
    ask(low, 1, "a", "a", "b")
    assert change(low, 1, new="ab") == [Changed(number=1, cut={"a": 2, "b": 1})]
    assert ask(low, 4, "a") == [stamped({"a": 3, "b": 1}, number=4)]


def test_a_change_is_answered_with_the_cut_of_its_new_topics_only() -> None:
    low = node()
    change(low, 1, new="a")
    assert change(low, 2, old="a", new="b") == [Changed(number=2, cut={"b": 0})]


def test_a_repeated_change_is_answered_with_the_same_cut() -> None:
    low = node()
    first = change(low, 1, new="a")
    ask(low, 1, "a")
    assert change(low, 1, new="a") == first


def refusal(number: int, seen: int) -> Refused:
    """The refusal of a change after a later one was seen."""
    return Refused(number=number, reason=f"change {seen} was seen", seen=seen)


def test_old_change_is_refused_with_the_last_number() -> None:
    low = node()
    change(low, 1, new="a")
    change(low, 2, old="a", new="b")
    assert change(low, 1, new="a") == [refusal(1, seen=2)]
    assert low.groups.subscriptions == {"s": ("b",)}


def test_node_without_the_answered_change_refuses_the_subscriber() -> None:
    rolled_back = Refused(number=0, reason="rolled back", seen=1)
    again = ChangeRequest(number=1, old=("a",), new=("a",), known=1)
    further = ChangeRequest(number=2, old=("a",), new=("a", "b"), known=1)
    for request in (again, further):
        assert handle(node(), request, source="s") == [rolled_back]
    low = node()
    changed = change(low, 1, new="a")
    assert handle(low, again, source="s") == changed
    # Another node has no topic of the subscription, and need not know it.
    assert handle(node("high"), ChangeRequest(number=2, old=("a",), new=("a", "d"), known=1)) != [
        rolled_back
    ]


def test_a_change_goes_up_the_chain_from_its_lowest_topic() -> None:
    low, middle, high = node("low"), node("middle"), node("high")
    ask(low, 1, "a", "a")
    (first,) = change(low, 1, new="da")
    assert isinstance(first, ChangeFill)
    assert (first.entries, first.last) == ({"a": 2}, 2)
    (second,) = handle(middle, first, source="low")
    assert second == first
    assert handle(high, second, source="middle") == [Changed(number=1, cut={"d": 0, "a": 2})]
    assert change(low, 1, new="da") == [ChangeRepeat(subscriber="s", number=1)]
    repeat = ChangeRepeat(subscriber="s", number=1)
    assert handle(high, repeat, source="low") == [Changed(number=1, cut={"d": 0, "a": 2})]


def test_a_change_that_starts_at_the_wrong_node_is_refused() -> None:
    assert change(node("middle"), 1, new="ac") == [
        Refused(number=1, reason="this change does not start at middle")
    ]


def test_empty_change_is_not_answered() -> None:
    assert change(node(), 1) == []


def test_a_change_is_refused_while_subscriptions_are_fixed() -> None:
    low = node(fixed={"s": ("a",)})
    assert change(low, 1, new="ab") == [Refused(number=1, reason="subscriptions are fixed")]


def test_a_change_to_a_topic_without_a_place_is_refused() -> None:
    closed = Sequencer(name="low", placement=Placement(["low"], closed=True))
    assert change(closed, 1, new="z") == [
        Refused(number=1, reason="'z' has no place on this chain")
    ]


def test_a_change_to_more_topics_than_topics_max_is_refused_and_changes_nothing() -> None:
    low = node(topics_max=1)
    assert change(low, 1, new="ab") == [Refused(number=1, reason=too_many_topics())]
    assert low.state.counters.by_topic == {}
    assert low.groups.subscriptions == {}
    assert change(low, 2, new="a") == [Changed(number=2, cut={"a": 0})]
    assert change(low, 3, old="a", new="ab") == [Refused(number=3, reason=too_many_topics())]


def test_topics_of_other_nodes_do_not_count_where_a_change_enters() -> None:
    low = node(topics_max=1)
    (fill,) = change(low, 1, new="acd")
    assert isinstance(fill, ChangeFill)


def test_new_subscriber_beyond_clients_max_is_refused_until_one_left() -> None:
    low = node(clients_max=1)
    change(low, 1, new="a", subscriber="s")
    assert change(low, 1, new="a", subscriber="t") == [
        Refused(number=1, reason=too_many_subscribers())
    ]
    assert change(low, 2, old="a", new="b", subscriber="s") == [Changed(number=2, cut={"b": 0})]


def test_departed_subscriber_is_remembered_until_it_confirms() -> None:
    low = node(clients_max=1)
    change(low, 1, new="a")
    answer = change(low, 2, old="a")
    assert change(low, 1, new="a", subscriber="t") == [
        Refused(number=1, reason=too_many_subscribers())
    ]
    assert change(low, 2, old="a") == answer
    handle(low, Forget(number=2, publisher=False), source="s")
    assert change(low, 1, new="a", subscriber="t") == [Changed(number=1, cut={"a": 0})]


@pytest.mark.parametrize("restarted", [False, True])
def test_departed_subscriber_leaves_no_state(restarted: bool) -> None:
    disk, low = Disk(), node()
    low.receive(ChangeRequest(number=1, old=(), new=("a",)), source="s", now_ns=0)
    low.receive(ChangeRequest(number=2, old=("a",), new=()), source="s", now_ns=0)
    disk.drain(low)
    if restarted:
        low = node(records=disk)
    low.receive(Forget(number=2, publisher=False), source="s", now_ns=0)
    disk.drain(low)
    assert {key for key in disk if key.endswith("/s")} == set()
    assert (low.changes.seen, low.changes.done) == ({}, {})


@pytest.mark.parametrize("number", [1, 2, 3])
def test_late_leave_does_not_forget_a_returned_subscriber(
    number: int,
) -> None:
    low = node()
    change(low, 1, new="a")
    change(low, 2, old="a")
    change(low, 3, new="a")
    handle(low, Forget(number=number, publisher=False), source="s")
    assert low.changes.seen == {"s": 3}
    assert low.groups.subscriptions == {"s": ("a",)}


def test_late_leave_does_not_forget_the_answer_to_a_newer_change() -> None:
    low = node()
    change(low, 1, new="a")
    change(low, 2, old="a")
    change(low, 3, new="a")
    answer = change(low, 4, old="a")
    handle(low, Forget(number=2, publisher=False), source="s")
    assert change(low, 4, old="a") == answer


def test_unknown_subscriber_may_leave_a_full_node() -> None:
    low = node(clients_max=1)
    change(low, 1, new="a")
    assert change(low, 2, old="a", subscriber="t") == [Changed(number=2, cut={})]


def test_change_that_leaves_a_topic_without_a_place_is_ignored() -> None:
    placement = Placement(["low"], topics={"low": ["a"]}, closed=True)
    low = Sequencer(name="low", placement=placement)
    assert change(low, 1, old="z", new="a") == []
    assert low.groups.subscriptions == {}


def test_repeated_change_is_sent_to_all_hosts_of_its_topics() -> None:
    low = node()
    change(low, 1, new="acd")
    assert change(low, 1, new="acd") == [ChangeRepeat(subscriber="s", number=1)] * 2
    middle = node("middle")
    change(middle, 5, new="c")
    assert handle(middle, ChangeRepeat(subscriber="s", number=1), source="low") == [
        refusal(1, seen=5)
    ]
    assert handle(middle, ChangeRepeat(subscriber="s", number=6), source="low") == []


def test_late_change_passes_nodes_without_its_topics_unchanged() -> None:
    middle = node("middle")
    change(middle, 3, new="c")
    change(middle, 4, old="c")
    late = ChangeFill(subscriber="s", number=1, old=(), new=("a", "d"), entries={"a": 4}, last=2)
    assert handle(middle, late, source="low") == [late]
    assert middle.changes.seen == {"s": 4}


def test_late_change_ends_at_a_host_that_has_seen_a_newer_one() -> None:
    """A lower node that had forgotten the subscriber treated a copy as new."""
    middle = node("middle")
    ask(middle, 1, "c")
    newer = ChangeFill(subscriber="s", number=3, old=(), new=("c", "d"), entries={}, last=2)
    handle(middle, newer, source="low")
    late = ChangeFill(
        subscriber="s", number=1, old=(), new=("a", "c", "d"), entries={"a": 4}, last=2
    )
    assert handle(middle, late, source="low") == [refusal(1, seen=3)]
    assert middle.groups.subscriptions == {"s": ("c", "d")}
    assert middle.changes.seen == {"s": 3}
    assert middle.state.counters.get("a")[0] == 4


def test_a_late_change_gets_no_cut_at_its_last_stage() -> None:
    high = node("high")
    newer = ChangeFill(subscriber="s", number=3, old=(), new=("d",), entries={}, last=2)
    answer = handle(high, newer, source="middle")
    assert handle(high, CHANGE, source="middle") == [refusal(1, seen=3)]
    assert high.groups.subscriptions == {"s": ("d",)}
    assert handle(high, ChangeRepeat(subscriber="s", number=3), source="low") == answer


def test_departed_publisher_is_forgotten_and_may_return() -> None:
    disk, low = Disk(), node()
    low.receive(StampRequest(number=1, topics=("a",), settled=1), source="p", now_ns=0)
    low.receive(Confirm(origin="low", slots=((1, 1),), settled=2), source="p", now_ns=0)
    low.receive(Forget(number=2, publisher=True), source="p", now_ns=0)
    disk.drain(low)
    assert set(disk) == {"counter/a"}
    assert low.sessions.by_name == {}
    assert ask(low, 2, "a", settled=2) == [stamped({"a": 2}, number=2)]


def test_leave_that_overtook_the_confirmation_keeps_the_publisher() -> None:
    low = node()
    ask(low, 1, "a")
    handle(low, Forget(number=2, publisher=True))
    assert set(low.sessions.by_name) == {"p"}
    assert low.open_count == 1


def test_late_leave_does_not_forget_a_returned_publisher() -> None:
    low = node()
    ask(low, 1, "a", "a")
    handle(low, Confirm(origin="low", slots=((1, 1), (2, 2)), settled=3))
    handle(low, Forget(number=2, publisher=True))
    assert set(low.sessions.by_name) == {"p"}


def test_leave_settles_stamps_completed_by_another_node() -> None:
    disk, low = Disk(), node()
    low.receive(ChangeRequest(number=1, old=(), new=("a", "d")), source="s", now_ns=0)
    low.receive(StampRequest(number=1, topics=("a",), settled=1), source="p", now_ns=0)
    low.receive(Forget(number=2, publisher=True), source="p", now_ns=0)
    disk.drain(low)
    assert {key for key in disk if key.endswith("/p")} == set()


def test_leave_of_an_unknown_client_changes_nothing() -> None:
    low = node()
    low.receive(Forget(number=1, publisher=True), source="nobody", now_ns=0)
    assert list(low.take_effects()) == []


def test_limits_are_checked_only_where_a_request_enters() -> None:
    """Changes from a neighbor are applied: the lower stages have applied them already."""
    high = node("high", clients_max=1, topics_max=1)
    change(high, 1, new="d", subscriber="other")
    assert handle(high, CHANGE, source="middle") == [Changed(number=1, cut={"a": 1, "d": 0})]
    assert set(high.changes.seen) == {"other", "s"}
