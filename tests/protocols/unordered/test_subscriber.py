"""A subscriber without order: events as they arrive, once each."""

import msgspec
import pytest

from ensue.core.event import Event, Stamp
from ensue.protocols.interface import (
    Attach,
    Deliver,
    Detach,
    Discard,
    Effect,
    Join,
    Leave,
    Node,
)
from ensue.protocols.topic_log.frames import Accepted, Attached, Notify
from ensue.protocols.unordered import subscriber as module
from ensue.protocols.unordered.subscriber import RETRY_NS, UnorderedCounts, UnorderedSubscriber


def drain(node: Node) -> list[Effect]:
    return list(node.take_effects())


def event(number: int, *, topic: str = "t", publisher: str = "p") -> Event:
    return Event(topic=topic, payload=b"", publisher=publisher, publisher_seq=number)


def joined(*topics: str) -> UnorderedSubscriber:
    subscriber = UnorderedSubscriber(name="s")
    subscriber.subscribe(topics, now_ns=0)
    for topic in topics:
        attached = Attached(topic=topic, first=1, next=1, sent=1)
        subscriber.receive(attached, source="ens", now_ns=0)
    drain(subscriber)
    return subscriber


def handle(subscriber: UnorderedSubscriber, what: Event) -> list[Effect]:
    subscriber.receive(Notify(event=what), source="ens", now_ns=0)
    return drain(subscriber)


def test_topic_is_joined_when_the_topic_log_attached_it() -> None:
    subscriber = UnorderedSubscriber(name="s")
    subscriber.subscribe(["t"], now_ns=0)
    assert drain(subscriber) == [Attach("t", 0)]
    assert not subscriber.topics
    subscriber.receive(Attached(topic="t", first=1, next=1, sent=1), source="ens", now_ns=0)
    assert drain(subscriber) == [Join("t")]
    assert subscriber.topics == ("t",)


def test_attach_request_is_repeated_until_answered() -> None:
    subscriber = UnorderedSubscriber(name="s")
    subscriber.subscribe(["t"], now_ns=0)
    drain(subscriber)
    assert subscriber.next_timer_ns() == RETRY_NS
    subscriber.handle_timer(now_ns=RETRY_NS)
    assert drain(subscriber) == [Attach("t", 0)]
    subscriber.receive(Attached(topic="t", first=1, next=1, sent=1), source="ens", now_ns=0)
    assert subscriber.next_timer_ns() is None


def test_subscribing_twice_changes_nothing() -> None:
    subscriber = joined("t")
    subscriber.subscribe(["t"], now_ns=0)
    subscriber.receive(Attached(topic="t", first=1, next=1, sent=1), source="ens", now_ns=0)
    assert drain(subscriber) == []


def test_events_are_delivered_as_they_arrive() -> None:
    subscriber = joined("t", "u")
    arrivals = [event(2), event(1, topic="u"), event(1)]
    effects = [handle(subscriber, each) for each in arrivals]
    assert effects == [[Deliver(each, place)] for place, each in enumerate(arrivals, 1)]
    assert subscriber.held_count == 0


def test_duplicates_are_dropped() -> None:
    subscriber = joined("t")
    for each in (event(2), event(1), event(1, publisher="q")):
        assert len(handle(subscriber, each)) == 1
        assert handle(subscriber, each) == [Discard(each, "duplicate")]


def test_events_without_room_are_dropped_and_counted() -> None:
    subscriber = joined("t")
    handle(subscriber, event(1))
    subscriber.pause()
    assert handle(subscriber, event(2)) == [Discard(event(2), "overflow")]
    assert handle(subscriber, event(1)) == [Discard(event(1), "duplicate")]
    subscriber.resume(now_ns=0)
    handle(subscriber, event(3))
    counts = UnorderedCounts(received=4, delivered=2, duplicate=1, overflow=1)
    assert subscriber.counts == counts


def test_a_void_is_discarded() -> None:
    subscriber = joined("t")
    void = msgspec.structs.replace(event(1, publisher="node"), stamp=Stamp({"t": 1}), void=True)
    assert handle(subscriber, void) == [Discard(void, "void")]


def test_a_topic_left_is_left_at_once() -> None:
    subscriber = joined("t", "u")
    subscriber.unsubscribe(["t", "never"], now_ns=0)
    assert drain(subscriber) == [Detach("t"), Leave("t")]
    assert handle(subscriber, event(1)) == [Discard(event(1), "not_subscribed")]
    assert subscriber.topics == ("u",)


def test_a_topic_left_before_it_was_attached_is_detached_and_not_joined() -> None:
    subscriber = UnorderedSubscriber(name="s")
    subscriber.subscribe(["t"], now_ns=0)
    subscriber.unsubscribe(["t"], now_ns=0)
    assert drain(subscriber) == [Attach("t", 0), Detach("t")]
    subscriber.receive(Attached(topic="t", first=1, next=1, sent=1), source="ens", now_ns=0)
    assert drain(subscriber) == []
    assert subscriber.topics == ()


def test_a_subscriber_ignores_stray_frames_and_acknowledgements() -> None:
    subscriber = joined("t")
    stray = Accepted(topic="t", event=event(1).id, slot=1)
    subscriber.receive(stray, source="ens", now_ns=0)
    subscriber.acknowledge(7)
    subscriber.handle_timer(now_ns=10**12)
    assert drain(subscriber) == []


def test_remembered_numbers_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SEEN_MAX", 4)
    subscriber = joined("t")
    handle(subscriber, event(1))
    for number in range(3, 8):  # Two never comes.
        assert len(handle(subscriber, event(number))) == 1
    assert subscriber._seen["t"]["p"].beyond == set()
    assert handle(subscriber, event(2)) == [Discard(event(2), "duplicate")]
    assert handle(subscriber, event(7)) == [Discard(event(7), "duplicate")]


def test_earlier_events_of_a_publisher_are_delivered_after_later_ones() -> None:
    subscriber = joined("t")
    late = module.SEEN_MAX
    handle(subscriber, event(late))
    earlier = event(late - 10)
    assert handle(subscriber, earlier) == [Deliver(earlier, 2)]
