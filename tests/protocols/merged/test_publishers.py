"""A publisher with a wrong memory or clock publishes and retransmits at its next call."""

import msgspec
import pytest
from tests.protocols.merged.test_nodes import TICK, config, publisher, sent

from ensue.core.errors import ConfigurationError, LimitReached
from ensue.protocols.merged.publisher import MergedPublisher
from ensue.protocols.topic_log.frames import Accepted

POLL = 1_000
HOUR = 3_600 * POLL


def answered(**others: int) -> MergedPublisher:
    settings = config(poll_ns=POLL, **others)
    return MergedPublisher(name="p", config=settings, answered=True, now_ns=0)


def test_retransmitting_publisher_refuses_a_modulus() -> None:
    """A copy that is late by a turn of the modulus would be delivered once more, in its turn."""
    with pytest.raises(ConfigurationError, match="give modulus=None"):
        answered(modulus=100)


@pytest.mark.parametrize("wrong", [10**6, -(10**6)])
def test_wrong_count_of_waiting_events_is_corrected(wrong: int) -> None:
    node = publisher(at=100, outgoing_max=2)
    node._waiting_count = wrong
    node.publish("t", b"", now_ns=100 * TICK)
    assert node.unsettled_count == 1
    node.handle_timer(now_ns=110 * TICK)
    assert len(sent(node)) == 1
    back = publisher(at=100, outgoing_max=2)
    back.publish("t", b"", now_ns=100 * TICK)
    back.publish("t", b"", now_ns=100 * TICK)
    with pytest.raises(LimitReached, match="p has 2 events"):
        back.publish("t", b"", now_ns=100 * TICK)


def test_unanswered_events_are_retransmitted_after_a_clock_goes_back() -> None:
    node = answered()
    node.publish("t", b"old", now_ns=HOUR)
    node.publish("t", b"new", now_ns=2 * POLL)
    assert len(sent(node)) == 2
    assert node.next_timer_ns() == 3 * POLL
    node.handle_timer(now_ns=3 * POLL)
    assert len(sent(node)) == 2
    assert node.next_timer_ns() == 4 * POLL
    node.handle_timer(now_ns=4 * POLL - 1)
    assert sent(node) == []


def test_wrong_busy_tick_delays_events_no_longer_than_a_restart() -> None:
    node = publisher(events_per_tick_max=1)
    for _ in range(2):
        node.publish("t", b"", now_ns=100 * TICK)
    node._busy_tick = 10**12
    assert node.next_timer_ns() == (100 + 2 + 1) * TICK
    node.handle_timer(now_ns=103 * TICK)
    assert [each["@r"] for each in sent(node)] == [100, 103]


# -- Round trips -----------------------------------------------------------------------------------

MS = 1_000_000


def measured(*round_trips_ms: int) -> MergedPublisher:
    """Return a publisher whose events were answered after so long, one by one from an hour on."""
    settings = msgspec.structs.replace(config(poll_ns=2000 * MS, retry_ns_min=10 * MS), tick_ns=MS)
    node = MergedPublisher(name="p", config=settings, answered=True, now_ns=0)
    for number, round_trip_ms in enumerate(round_trips_ms):
        now_ns = HOUR * MS + 100 * MS * number
        answer(node, node.publish("t", b"", now_ns=now_ns).id, now_ns + round_trip_ms * MS)
    sent(node)
    return node


def answer(node: MergedPublisher, event: str, now_ns: int) -> None:
    node.receive(Accepted(topic="t", event=event, slot=0), source="fan-out", now_ns=now_ns)


def test_lost_event_is_retransmitted_after_the_measured_round_trip() -> None:
    node = measured(*[6] * 50)
    now_ns = 2 * HOUR * MS
    node.publish("t", b"", now_ns=now_ns)
    (event,) = sent(node)
    assert node.next_timer_ns() == now_ns + 10 * MS
    node.handle_timer(now_ns=now_ns + 10 * MS)
    assert sent(node) == [event]
    assert node.next_timer_ns() == now_ns + 30 * MS
    node.handle_timer(now_ns=now_ns + 30 * MS)
    assert sent(node) == [event]
    assert node.next_timer_ns() == now_ns + 70 * MS


def test_each_event_is_retransmitted_when_it_is_due() -> None:
    node = measured(*[6] * 50)
    now_ns = 2 * HOUR * MS
    first = node.publish("t", b"", now_ns=now_ns).id
    node.publish("t", b"", now_ns=now_ns + 5 * MS)
    assert len(sent(node)) == 2
    answer(node, first, now_ns + 6 * MS)
    node.handle_timer(now_ns=now_ns + 10 * MS)
    assert sent(node) == []
    assert node.next_timer_ns() == now_ns + 15 * MS
    node.handle_timer(now_ns=now_ns + 15 * MS)
    assert len(sent(node)) == 1


def test_answer_to_a_retransmitted_event_is_no_sample() -> None:
    node = measured(*[6] * 50)
    now_ns = 2 * HOUR * MS
    event = node.publish("t", b"", now_ns=now_ns).id
    node.handle_timer(now_ns=now_ns + 10 * MS)
    answer(node, event, now_ns + 11 * MS)
    node.publish("t", b"", now_ns=now_ns + 20 * MS)
    assert node.next_timer_ns() == now_ns + 40 * MS  # Still doubled.


def test_slow_answers_make_the_wait_longer() -> None:
    node = measured(*[400] * 50)
    now_ns = 2 * HOUR * MS
    node.publish("t", b"", now_ns=now_ns)
    due_ns = node.next_timer_ns()
    assert due_ns is not None
    assert 400 * MS < due_ns - now_ns < 500 * MS


def test_new_connection_repeats_events_and_starts_with_the_measured_wait() -> None:
    node = measured(*[6] * 50)
    now_ns = 2 * HOUR * MS
    node.publish("t", b"", now_ns=now_ns)
    for wait_ms in (10, 30, 70):
        node.handle_timer(now_ns=now_ns + wait_ms * MS)
    sent(node)
    node.repeat(now_ns=now_ns + 100 * MS)
    assert len(sent(node)) == 1
    assert node.next_timer_ns() == now_ns + 110 * MS


@pytest.mark.parametrize("retry_ns_min", [-1, POLL + 1])
def test_shortest_wait_beyond_the_longest_is_refused(retry_ns_min: int) -> None:
    with pytest.raises(ConfigurationError, match="retry_ns_min must be between 0 and poll_ns"):
        answered(retry_ns_min=retry_ns_min)
