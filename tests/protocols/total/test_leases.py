"""A single sequencer: leases and restarts."""

import pytest
from tests.protocols.total.harness import Net
from tests.protocols.total.stages import (
    FILL,
    PLACEMENT,
    Disk,
    ask,
    change,
    handle,
    node,
    overdue,
    stamped,
)

from ensue.core.event import Stamp
from ensue.protocols.interface import Persist, Send
from ensue.protocols.topic_log.frames import Accepted, Taken
from ensue.protocols.total import sequencer
from ensue.protocols.total.config import SequencerConfig
from ensue.protocols.total.frames import (
    Changed,
    ChangeRequest,
    Confirm,
    Fill,
    PublisherLost,
    Repeat,
    StampRequest,
    Voided,
)
from ensue.protocols.total.leases import Lease
from ensue.protocols.total.sequencer import Sequencer

# -- Leases ----------------------------------------------------------------------------------------


def test_a_lease_runs_from_the_completion_of_the_stamp() -> None:
    low = node(lease_ns=100)
    assert low.next_timer_ns() is None
    ask(low, 1, "a")
    assert low.next_timer_ns() == 100
    assert low.open_count == 1
    assert overdue(low, 99) == []
    (void,) = overdue(low, 100)
    assert (void.topic, void.stamp, void.void) == ("a", Stamp({"a": 1}), True)


def test_a_confirmed_stamp_is_never_voided() -> None:
    low = node(lease_ns=100)
    ask(low, 1, "a", "a", "a")
    handle(low, Confirm(origin="low", slots=((1, 1), (3, 3)), settled=2))
    assert low.open_count == 1
    assert [event.slot for event in overdue(low, 100)] == [2]


def test_a_confirmation_of_another_slot_leaves_a_stamp_open() -> None:
    """A late confirmation may find another stamp under its number."""
    low = node(lease_ns=100)
    ask(low, 1, "a")
    handle(low, Confirm(origin="low", slots=((1, 7),), settled=2))
    assert [event.slot for event in overdue(low, 100)] == [1]


def test_settled_unconfirmed_stamp_is_resolved_before_it_is_forgotten() -> None:
    disk, low = Disk(), node(lease_ns=100)
    low.receive(StampRequest(number=1, topics=("a",), settled=1), source="p", now_ns=0)
    low.receive(Confirm(origin="low", slots=(), settled=2), source="p", now_ns=0)
    low.handle_timer(now_ns=100)
    disk.drain(low)
    assert any(key.startswith("lease/") for key in disk)
    low.receive(Taken(topic="a", event="low/a/1", slot=1), source="ens", now_ns=100)
    disk.drain(low)
    assert not any(key.startswith("lease/") for key in disk)


def test_void_that_took_the_slot_is_reported_to_the_publisher() -> None:
    low = node(lease_ns=100)
    ask(low, 1, "a")
    (void,) = overdue(low, 100)
    accepted = Accepted(topic="a", event=void.id, slot=1)
    voided = [Voided(origin="low", numbers=(1,))]
    assert handle(low, accepted, source="ens") == voided
    assert low.open_count == 0
    assert ask(low, 1, "a") == voided
    assert overdue(low, 10_000_000_000) == []


def test_late_void_leaves_the_original() -> None:
    low = node(lease_ns=100)
    first = ask(low, 1, "a")
    (void,) = overdue(low, 100)
    assert handle(low, Taken(topic="a", event=void.id, slot=1), source="ens") == []
    assert low.open_count == 0
    assert ask(low, 1, "a") == first


def test_unanswered_void_is_retransmitted() -> None:
    low = node(lease_ns=100, retry_ns=10)
    ask(low, 1, "a")
    first = overdue(low, 100)
    assert overdue(low, 109) == []
    assert overdue(low, 110) == first


# -- Restarts --------------------------------------------------------------------------------------


def test_a_lost_connection_shortens_the_lease() -> None:
    low = node(lease_ns=100, lease_lost_ns=10)
    ask(low, 1, "a")
    ask(low, 1, "b", publisher="other")
    low.lose("p", now_ns=20)
    assert low.open_count == 2
    assert low.next_timer_ns() == 30
    assert [event.topic for event in overdue(low, 30)] == ["a"]
    assert low.open_count == 2
    assert [event.topic for event in overdue(low, 100)] == ["b"]


def test_a_lost_connection_makes_no_lease_longer() -> None:
    low = node(lease_ns=100, lease_lost_ns=50)
    ask(low, 1, "a")
    low.lose("p", now_ns=90)
    low.lose("p", now_ns=95)
    assert low.next_timer_ns() == 100


def test_publisher_that_reconnects_in_time_keeps_stamp_and_lease() -> None:
    low = node(lease_ns=100, lease_lost_ns=10)
    ask(low, 1, "a")
    low.lose("p", now_ns=20)
    low.regain("p")
    assert overdue(low, 99) == []
    assert low.open_count == 1
    assert [event.topic for event in overdue(low, 100)] == ["a"]


def test_publisher_that_reconnects_too_late_learns_that_its_slot_is_void() -> None:
    low = node(lease_ns=100, lease_lost_ns=10)
    ask(low, 1, "a")
    low.lose("p", now_ns=20)
    (void,) = overdue(low, 30)
    low.regain("p")
    handle(low, Accepted(topic="a", event=void.id, slot=1), source="ens")
    assert low.open_count == 0
    assert ask(low, 1, "a") == [Voided(origin="low", numbers=(1,))]


def test_stamp_completed_after_the_connection_was_lost_has_a_short_lease() -> None:
    high = node("high", lease_ns=100, lease_lost_ns=10)
    high.lose("p", now_ns=0)
    high.receive(FILL, source="middle", now_ns=5)
    assert high.next_timer_ns() == 15
    high.regain("p")
    assert high.next_timer_ns() == 105


def test_the_next_node_learns_that_a_publisher_is_lost() -> None:
    low = node(lease_ns=100, lease_lost_ns=10)
    change(low, 1, new="ad")
    low.receive(StampRequest(number=1, topics=("a",), settled=1), source="p", now_ns=0)
    low.receive(StampRequest(number=1, topics=("b",), settled=1), source="q", now_ns=0)
    low.lose("q", now_ns=1)
    low.take_effects()
    low.lose("p", now_ns=1)
    assert low.take_effects() == [Send("middle", PublisherLost(publisher="p"))]
    high = node("high", lease_ns=100, lease_lost_ns=10)
    high.receive(FILL, source="middle", now_ns=5)
    high.receive(PublisherLost(publisher="p"), source="p", now_ns=6)
    assert high.next_timer_ns() == 105, "only a node of the chain is believed"
    high.receive(PublisherLost(publisher="p"), source="middle", now_ns=6)
    assert high.next_timer_ns() == 16


def test_a_publisher_that_is_lost_elsewhere_keeps_its_lease_where_it_is_connected() -> None:
    high = node("high", lease_ns=100, lease_lost_ns=10)
    high.regain("p")
    high.receive(FILL, source="middle", now_ns=5)
    high.receive(PublisherLost(publisher="p"), source="middle", now_ns=6)
    assert high.next_timer_ns() == 105
    high.lose("p", now_ns=7)
    assert high.next_timer_ns() == 17


def test_a_confirmed_stamp_of_a_lost_publisher_is_not_voided() -> None:
    low = node(lease_ns=100, lease_lost_ns=10)
    ask(low, 1, "a")
    low.lose("p", now_ns=0)
    handle(low, Confirm(origin="low", slots=((1, 1),), settled=2))
    assert low.next_timer_ns() is None
    assert overdue(low, 100) == []


def test_remembered_lost_publishers_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequencer, "LOST_MAX", 2)
    low = node(lease_ns=100, lease_lost_ns=10)
    for publisher in ("p", "q", "p", "r", "s"):
        low.lose(publisher, now_ns=0)
    assert list(low.lost) == ["r", "s"]


def test_everything_is_persisted_before_it_is_sent() -> None:
    low = node()
    low.receive(StampRequest(number=1, topics=("a",), settled=1), source="p", now_ns=0)
    keys = {effect.key for effect in low.take_effects() if isinstance(effect, Persist)}
    assert keys == {"counter/a", "publisher/p", "lease/1/1/3/low/p"}


def test_a_restarted_node_answers_as_before() -> None:
    disk, low = Disk(), node()
    for frame, source in (
        (StampRequest(number=1, topics=("a", "b"), settled=1), "p"),
        (ChangeRequest(number=1, old=(), new=("a", "b")), "s"),
        (ChangeRequest(number=1, old=(), new=("a", "d")), "t"),
        (StampRequest(number=3, topics=("a",), settled=1), "p"),
    ):
        low.receive(frame, source=source, now_ns=0)
    disk.drain(low)
    again = node(records=disk)
    assert ask(again, 1, "a", "b") == [stamped({"a": 1}, {"b": 1})]
    assert change(again, 1, new="ab") == [Changed(number=1, cut={"a": 1, "b": 1})]
    assert ask(again, 3, "a") == [Repeat(publisher="p", number=3)]
    (fill,) = ask(again, 4, "a")
    assert isinstance(fill, Fill)
    assert fill.stamp == Stamp({"a": 3, "b": 1})
    assert again.open_count == 2


def test_a_restarted_node_starts_leases_anew() -> None:
    disk, low = Disk(), node(lease_ns=100)
    low.receive(StampRequest(number=1, topics=("a",), settled=1), source="p", now_ns=0)
    disk.drain(low)
    again = Sequencer(
        name="low",
        placement=PLACEMENT,
        config=SequencerConfig(lease_ns=100),
        records=disk,
        now_ns=1000,
    )
    assert again.next_timer_ns() == 1100


def test_a_restarted_node_repeats_a_void_at_once() -> None:
    disk, low = Disk(), node(lease_ns=100)
    low.receive(StampRequest(number=1, topics=("a",), settled=1), source="p", now_ns=0)
    low.handle_timer(now_ns=100)
    disk.drain(low)
    again = Sequencer(
        name="low",
        placement=PLACEMENT,
        config=SequencerConfig(lease_ns=100),
        records=disk,
        now_ns=1000,
    )
    assert [event.slot for event in overdue(again, 1000)] == [1]


def test_publishers_with_open_stamps_are_known() -> None:
    low = node(lease_ns=100)
    ask(low, 1, "a")
    ask(low, 1, "b", publisher="q")
    assert low.leases.publishers() == ("p", "q")
    overdue(low, 100)
    assert low.leases.publishers() == ()


def test_leases_of_names_with_slashes_have_separate_records() -> None:
    keys = {
        Lease(publisher, origin, 1, "t", Stamp({"t": 1}), 0).key
        for publisher, origin in (("b/c", "a"), ("c", "a/b"))
    }
    assert len(keys) == 2


def test_settled_request_leaves_only_counter_records() -> None:
    disk, low = Disk(), node()
    low.receive(StampRequest(number=1, topics=("a",), settled=1), source="p", now_ns=0)
    low.receive(Confirm(origin="low", slots=((1, 1),), settled=2), source="p", now_ns=0)
    disk.drain(low)
    assert set(disk) == {"counter/a", "publisher/p"}


def test_requests_completed_elsewhere_are_forgotten_once_settled() -> None:
    disk, low = Disk(), node()
    low.receive(ChangeRequest(number=1, old=(), new=("a", "d")), source="s", now_ns=0)
    low.receive(StampRequest(number=1, topics=("a",), settled=1), source="p", now_ns=0)
    disk.drain(low)
    assert "elsewhere/1/p" in disk
    low.receive(StampRequest(number=2, topics=("a",), settled=2), source="p", now_ns=0)
    disk.drain(low)
    assert "elsewhere/1/p" not in disk


def test_non_durable_node_persists_nothing() -> None:
    net = Net({"low": ["a"], "high": ["b"]}, config=SequencerConfig(durable=False))
    net.subscribe("s", "a", "b")
    net.settle()
    net.publish("p", "a", "e")
    net.settle()
    assert net.delivered("s") == ["e"]
    assert net.disks["low"] == net.disks["high"] == net.disks["p"] == net.disks["s"] == {}


@pytest.mark.parametrize("groups", [1, 2])
def test_fixed_subscriptions_are_known_from_the_start(groups: int) -> None:
    fixed = {"s": ("a", "b"), "t": ("a", "b"), "u": ("a", "d")}
    low = node(groups=groups, fixed=fixed)
    partners = set(low.groups.partners("a"))
    assert partners == ({"b", "d"} if groups == 1 else {"b"})
