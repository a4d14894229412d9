"""The hold-back queues: which events wait, and when they are released."""

from collections.abc import Callable

import pytest

from ensue.core.event import Event, Stamp
from ensue.protocols.total.hold_back import HoldBack, PositionQueue, VectorQueue

Make = Callable[..., HoldBack]


def by_position(*, held_max: int = 100, missing_max: int = 100) -> PositionQueue:
    return PositionQueue(held_max=held_max, missing_max=missing_max, whole=False)


def by_position_whole(*, held_max: int = 100, missing_max: int = 100) -> PositionQueue:
    return PositionQueue(held_max=held_max, missing_max=missing_max, whole=True)


def by_vector(*, held_max: int = 100, missing_max: int = 100) -> VectorQueue:
    return VectorQueue(held_max=held_max, missing_max=missing_max)


every_queue = pytest.mark.parametrize("make", [by_position, by_position_whole, by_vector])
on_whole_stamps = pytest.mark.parametrize("make", [by_position_whole, by_vector])


def event(topic: str, **entries: int) -> Event:
    return Event(
        topic=topic,
        payload=f"{topic}{entries[topic]}".encode(),
        publisher="p",
        publisher_seq=entries[topic],
        stamp=Stamp(entries),
    )


def joined(queue: HoldBack, **cuts: int) -> HoldBack:
    for topic, cut in cuts.items():
        assert list(queue.join(topic, cut)) == []
    return queue


def offer(queue: HoldBack, topic: str, *, at: int = 0, **entries: int) -> str:
    """Offer an event; return its verdict and the released events: `next T2 U1`."""
    outcome: str = queue.offer(event(topic, **entries), entries[topic], at)
    return " ".join([outcome, *ready(queue)])


def ready(queue: HoldBack) -> list[str]:
    names = []
    while (held := queue.next()) is not None:
        names.append(held.event.payload.decode())
    return names


@every_queue
def test_events_in_order_are_never_held(make: Make) -> None:
    queue = joined(make(), T=0, U=0)
    assert offer(queue, "T", T=1) == "next"
    assert offer(queue, "U", U=1, T=1) == "next"
    assert offer(queue, "T", T=2, U=1) == "next"
    assert queue.held_count == 0
    assert queue.clock == {"T": 2, "U": 1}


@every_queue
def test_an_event_waits_for_the_previous_one_of_its_topic(make: Make) -> None:
    queue = joined(make(), T=0)
    assert offer(queue, "T", T=3) == "held"
    assert offer(queue, "T", T=2) == "held"
    assert offer(queue, "T", T=1) == "next T2 T3"
    assert queue.held_count == 0


@every_queue
def test_an_event_waits_for_what_its_stamp_names(make: Make) -> None:
    queue = joined(make(), T=0, U=0)
    assert offer(queue, "T", T=1, U=2) == "held"
    assert offer(queue, "U", U=1) == "next"
    assert offer(queue, "U", U=2) == "next T1"


@every_queue
def test_topics_that_are_not_subscribed_are_not_waited_for(make: Make) -> None:
    queue = joined(make(), T=0)
    assert offer(queue, "T", T=1, U=9) == "next"
    assert offer(queue, "U", U=1) == "not_subscribed"


def test_an_entry_left_out_stands_for_that_of_the_previous_event() -> None:
    queue = joined(by_position(), T=0, U=0)
    assert offer(queue, "T", T=2) == "held"  # With U at 1, like T1.
    assert offer(queue, "U", U=2, T=2) == "held"
    assert offer(queue, "T", T=1, U=1) == "held"
    assert offer(queue, "U", U=1) == "next T1 T2 U2"


@every_queue
def test_delivered_event_is_a_duplicate(make: Make) -> None:
    queue = joined(make(), T=0)
    assert offer(queue, "T", T=1) == "next"
    assert offer(queue, "T", T=1) == "duplicate"
    assert offer(queue, "T", T=3) == "held"
    assert offer(queue, "T", T=3) == "duplicate"


@every_queue
def test_event_before_the_cut_is_distinguished_from_a_duplicate(make: Make) -> None:
    queue = joined(make(), T=5)
    assert offer(queue, "T", T=5) == "before_join"
    assert offer(queue, "T", T=6) == "next"
    assert offer(queue, "T", T=6) == "duplicate"


@every_queue
def test_events_of_a_topic_wait_for_its_cut(make: Make) -> None:
    queue = make()
    queue.await_cut("T")
    for slot in (3, 1, 2, 4):
        assert offer(queue, "T", T=slot) == "held"
    assert [each.slot for each in queue.join("T", 2)] == [1, 2]
    assert ready(queue) == ["T3", "T4"]


@pytest.mark.parametrize("make", [by_position, by_position_whole])
def test_an_event_that_names_a_topic_being_joined_waits_for_the_cut(make: Make) -> None:
    queue = joined(make(), T=0)
    queue.await_cut("U")
    assert offer(queue, "T", T=1, U=2) == "held"
    assert offer(queue, "T", T=2, U=2) == "held"
    assert list(queue.join("U", 1)) == []
    assert ready(queue) == []  # U2 comes after the cut and before T1.
    assert offer(queue, "U", U=2) == "next T1 T2"


@every_queue
def test_leaving_a_topic_releases_events_that_waited_for_it(make: Make) -> None:
    queue = joined(make(), T=0, U=0)
    assert offer(queue, "T", T=1, U=1) == "held"
    assert offer(queue, "U", U=2) == "held"
    queue.leave("U")
    assert ready(queue) == ["T1"]
    assert queue.held_count == 0
    assert offer(queue, "U", U=3) == "not_subscribed"


@every_queue
def test_a_full_queue_refuses_all_but_the_next_of_a_topic(make: Make) -> None:
    queue = joined(make(held_max=2), T=0, U=0)
    assert offer(queue, "T", T=2, U=1) == "held"
    assert offer(queue, "T", T=3, U=1) == "held"
    assert queue.full
    assert offer(queue, "T", T=4, U=1) == "overflow"
    assert offer(queue, "T", T=1, U=1) == "held"  # Beyond the limit: all may wait for it.
    assert queue.held_count == 3
    assert offer(queue, "U", U=1) == "next T1 T2 T3"
    assert offer(queue, "T", T=4, U=1) == "next"


@every_queue
def test_a_full_queue_refuses_events_that_wait_for_a_cut(make: Make) -> None:
    queue = make(held_max=1)
    queue.await_cut("T")
    assert offer(queue, "T", T=1) == "held"
    assert offer(queue, "T", T=2) == "overflow"


@on_whole_stamps
def test_force_releases_the_first_event_and_remembers_skipped_slots(make: Make) -> None:
    queue = joined(make(), T=0, U=0)
    assert offer(queue, "T", T=4, U=1) == "held"
    assert offer(queue, "T", T=3, U=1) == "held"
    forced = queue.force()
    assert forced is not None
    assert forced.slot == 3
    assert queue.clock == {"T": 3, "U": 1}
    assert ready(queue) == ["T4"]
    assert offer(queue, "T", T=1) == "late"
    assert offer(queue, "T", T=1) == "duplicate"
    assert offer(queue, "U", U=1) == "late"


@on_whole_stamps
def test_force_finds_nothing_in_an_empty_queue(make: Make) -> None:
    assert joined(make(), T=0).force() is None


@on_whole_stamps
def test_remembered_skipped_slots_have_a_limit(make: Make) -> None:
    queue = joined(make(missing_max=2), T=0)
    assert offer(queue, "T", T=5) == "held"
    assert queue.force() is not None
    outcomes = [offer(queue, "T", T=slot) for slot in (1, 2, 3, 4)]
    assert outcomes == ["duplicate", "duplicate", "late", "late"]


@on_whole_stamps
def test_leaving_a_topic_forgets_its_skipped_slots(make: Make) -> None:
    queue = joined(make(), T=0)
    assert offer(queue, "T", T=2) == "held"
    assert queue.force() is not None
    queue.leave("T")
    assert list(queue.join("T", 2)) == []
    assert offer(queue, "T", T=1) == "before_join"


def test_event_that_waits_for_a_cut_is_never_overtaken() -> None:
    """It would be delivered after its successors, and untagged."""
    queue = joined(by_position_whole(), T=0, U=0)
    queue.await_cut("V")
    assert offer(queue, "T", T=1, V=1) == "held"
    assert offer(queue, "U", U=1, T=1) == "held"
    assert queue.force() is None
    assert list(queue.join("V", 1)) == []
    assert ready(queue) == ["T1", "U1"]


@every_queue
def test_oldest_is_the_event_held_longest(make: Make) -> None:
    queue = joined(make(), T=0)
    assert queue.oldest_ns() is None
    offer(queue, "T", at=7, T=3)
    offer(queue, "T", at=8, T=2)
    assert queue.oldest_ns() == 7
    offer(queue, "T", at=9, T=1)
    assert queue.oldest_ns() is None


@every_queue
def test_events_that_wait_for_a_cut_do_not_age(make: Make) -> None:
    queue = joined(make(), T=0)
    queue.await_cut("U")
    offer(queue, "U", at=7, U=1)
    assert queue.oldest_ns() is None
    offer(queue, "T", at=9, T=2)
    assert queue.oldest_ns() == 9
    assert list(queue.join("U", 0)) == []
    assert queue.oldest_ns() == 7


@every_queue
def test_first_missing_slot_is_neither_delivered_nor_held(make: Make) -> None:
    queue = joined(make(), T=4, U=0)
    offer(queue, "T", T=5, U=1)
    offer(queue, "T", T=6, U=1)
    offer(queue, "T", T=8, U=1)
    assert queue.first_missing("T") == 7
    assert queue.first_missing("U") == 1


@every_queue
def test_restarted_queue_resumes_from_its_clock(make: Make) -> None:
    queue = make()
    queue.resume("T", 3, 1)
    queue.resume("U", 1, 0)
    assert offer(queue, "T", T=1) == "before_join"
    assert offer(queue, "T", T=3) == "duplicate"
    assert offer(queue, "T", T=4, U=2) == "held"
    assert offer(queue, "U", U=2, T=3) == "next T4"


def test_by_vector_topics_that_do_not_name_each_other_do_not_wait() -> None:
    queue = joined(by_vector(), T=0, U=0)
    assert offer(queue, "T", T=1) == "next"
    assert offer(queue, "U", U=2) == "held"
    assert offer(queue, "T", T=2) == "next"
    assert offer(queue, "U", U=1) == "next U2"


def test_by_vector_a_chain_of_waits_is_released_at_once() -> None:
    queue = joined(by_vector(), T=0, U=0, V=0)
    assert offer(queue, "V", V=1, U=1) == "held"
    assert offer(queue, "U", U=1, T=1) == "held"
    assert offer(queue, "T", T=1) == "next U1 V1"


def test_by_vector_nothing_piles_up_while_nothing_is_held() -> None:
    queue = joined(by_vector(), T=0)
    for slot in range(1, 1001):
        assert queue.offer(event("T", T=slot), slot, 0) == "next"
    assert isinstance(queue, VectorQueue)
    assert len(queue._to_check) <= 1
