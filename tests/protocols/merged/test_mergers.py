"""A merger after faults: false entries are dropped within the span, and none is released twice."""

from heapq import heappush

import pytest
from tests.protocols.merged.test_nodes import (
    TICK,
    at,
    config,
    delivered,
    discarded,
    event,
    give,
    subscriber,
)

from ensue.protocols.interface import Attach, Broadcast, Deliver, Discard
from ensue.protocols.merged.merger import Held
from ensue.protocols.merged.publisher import MergedPublisher
from ensue.protocols.merged.subscriber import MergedSubscriber
from ensue.protocols.merged.timestamps import CounterTimestamp
from ensue.protocols.topic_log.frames import Notify

# -- Once each -------------------------------------------------------------------------------------


def test_late_copy_of_a_held_event_is_a_duplicate() -> None:
    node = subscriber(deliver_late=True)
    one = event(10, c=2)
    assert delivered(give(node, 12, one)) == []
    assert discarded(give(node, 18, one)) == ["duplicate"], "its r is too old, its turn is not over"
    assert delivered(at(node, 20)) == [("p/t/1", "")]
    assert (node.counts.late, node.counts.duplicate, node.counts.delivered) == (0, 1, 1)


def test_event_delivered_as_skewed_is_not_delivered_again_in_order() -> None:
    node = subscriber(deliver_late=True)
    assert delivered(give(node, 10, event(13))) == [("p/t/1", "skewed")]
    assert discarded(give(node, 12, event(13))) == ["duplicate"]
    assert delivered(at(node, 60)) == []


def test_copy_of_a_held_event_is_a_duplicate_after_a_clock_goes_back_slightly() -> None:
    node = subscriber(deliver_late=True)
    give(node, 14, event(14))
    assert delivered(at(node, 11)) == []
    assert discarded(give(node, 11, event(14))) == ["duplicate"]
    assert delivered(at(node, 60)) == [("p/t/1", "")]


def test_retransmission_over_a_new_connection_is_delivered_once() -> None:
    sender = MergedPublisher(name="p", config=config(), answered=True, now_ns=0)
    assert sender.observe({"@r": 12}, now_ns=10 * TICK)
    sender.publish("t", b"", now_ns=10 * TICK)
    sender.repeat(now_ns=17 * TICK)
    first, again = [each.event for each in sender.take_effects() if isinstance(each, Broadcast)]
    node = subscriber(deliver_late=True)
    effects = [*give(node, 12, first), *give(node, 18, again), *at(node, 20)]
    assert delivered(effects) == [("p/t/1", "")]


# -- A clock that goes back ------------------------------------------------------------------------


@pytest.mark.parametrize("deliver_late", [False, True])
def test_held_events_become_skewed_when_a_clock_goes_back(deliver_late: bool) -> None:
    node = subscriber(deliver_late=deliver_late)
    give(node, 20, event(20))
    effects = at(node, 10)
    if deliver_late:
        assert delivered(effects) == [("p/t/1", "skewed")]
        assert discarded(give(node, 20, event(20))) == ["duplicate"]
    else:
        assert discarded(effects) == ["skewed"]
    assert node.counts.skewed == 1
    assert delivered(at(node, 60)) == []


@pytest.mark.parametrize("back", range(1, 20))
def test_order_holds_when_a_clock_goes_back_by_at_most_the_span(back: int) -> None:
    """Further back, the last released key can't be distinguished from a fault, and is forgotten."""
    node = subscriber()
    give(node, 100, event(100))
    assert delivered(at(node, 108)) == [("p/t/1", "")]
    tick = 108 - back
    give(node, tick, event(tick, by="a"))
    behind = delivered(at(node, tick + 8))
    assert behind == ([] if 8 <= back <= node.config.span_ticks else [("a/t/1", "")])


# -- False entries ---------------------------------------------------------------------------------


@pytest.mark.parametrize("age", range(12))
@pytest.mark.parametrize("place", [-3, 0, 4, 5, 12, 16, 40])
@pytest.mark.parametrize("off", [0, 1, 12, 10**6])
def test_corrupt_entry_has_no_effect_beyond_the_span(age: int, place: int, off: int) -> None:
    """Plant an entry `age` ticks after the last check, ahead of the clock, its key further."""
    node = subscriber()
    span, began = node.config.span_ticks, 100
    fault = 0
    for tick in range(began, began + 120):
        effects = at(node, tick)
        if fault and tick > fault + span + 1:
            for each in effects:
                assert not isinstance(each, Deliver | Discard) or each.event.publisher == "p"
            assert discarded(effects) == []
        node.receive(Notify(event=event(tick, number=tick)), source="ens", now_ns=tick * TICK)
        assert not fault or tick <= fault + span or discarded(node.take_effects()) == []
        if not fault and tick > began + 30 and node.merger._audit_tick == tick + span - age:
            fault = tick
            plant(node, fault + place, fault + place + off)
    assert fault
    assert node.held_count == node.config.wait_ticks + 1


def plant(node: MergedSubscriber, reach: int, key_reach: int) -> None:
    merger = node.merger
    key = ((key_reach, 10**6), "ghost", 0)
    held = Held(key, event(0, by="ghost"), CounterTimestamp(reach - 1, 1, 0), 0)
    merger._held.setdefault(reach, {})[key] = held
    heappush(merger._reaches, reach)
    merger._count += 1


@pytest.mark.parametrize("wrong", [10**6, -(10**6)])
def test_wrong_count_of_held_events_loses_none(wrong: int) -> None:
    node = subscriber(held_max=3)
    at(node, 10)
    node.merger._count = wrong
    assert discarded(give(node, 10, event(10), event(10, k=1, number=2))) == []
    assert len(delivered(at(node, 30))) == 2


# -- Timers ----------------------------------------------------------------------------------------


def test_timers_are_bounded_after_a_clock_goes_back() -> None:
    """A clock that went back, or a wrong memory: timers must still fire."""
    node = subscriber(poll_ns=1_000, retry_ns=100)
    node.subscribe(("u",), now_ns=5_000)
    node.receive(Notify(event=event(40)), source="ens", now_ns=400)
    node.merger.drop(lambda _event: True)
    assert node.next_timer_ns() == 500
    node.unsubscribe(("u",), now_ns=400)
    node._poll_due_ns = 10**15
    assert node.next_timer_ns() == 1_400
    node.take_effects()
    node.handle_timer(now_ns=1_400)
    assert node.take_effects() == [Attach("t", 0)]
    assert node.next_timer_ns() == 2_400
