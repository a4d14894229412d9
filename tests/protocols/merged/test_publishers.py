"""A publisher with a wrong memory or clock publishes and retransmits at its next call."""

import pytest
from tests.protocols.merged.test_nodes import TICK, config, publisher, sent

from ensue.core.errors import ConfigurationError, LimitReached
from ensue.protocols.merged.publisher import MergedPublisher

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
