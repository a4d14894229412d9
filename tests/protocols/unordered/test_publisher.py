"""A publisher without order."""

from ensue.core.event import Event
from ensue.protocols.interface import (
    Broadcast,
    Effect,
    Node,
    Publish,
    Settle,
)
from ensue.protocols.topic_log.frames import Accepted, Taken
from ensue.protocols.unordered.publisher import RETRY_NS, UnorderedPublisher


def drain(node: Node) -> list[Effect]:
    return list(node.take_effects())


def accepted(what: Event) -> Accepted:
    return Accepted(topic=what.topic, event=what.id, slot=1)


def test_event_is_sent_at_once_without_a_stamp() -> None:
    publisher = UnorderedPublisher(name="p")
    e = publisher.publish("t", b"x", now_ns=5, key=b"k", headers={"h": "v"})
    assert drain(publisher) == [Publish(e), Broadcast(e)]
    assert (e.id, e.stamp, e.key, e.headers, e.published_at_ns) == (
        "p/t/1",
        None,
        b"k",
        {"h": "v"},
        5,
    )


def test_events_are_numbered_per_topic() -> None:
    publisher = UnorderedPublisher(name="p")
    ids = [publisher.publish(topic, b"", now_ns=0).id for topic in "tut"]
    assert ids == ["p/t/1", "p/u/1", "p/t/2"]


def test_event_is_repeated_until_the_topic_log_has_it() -> None:
    publisher = UnorderedPublisher(name="p")
    assert publisher.next_timer_ns() is None
    e = publisher.publish("t", b"", now_ns=0)
    drain(publisher)
    assert publisher.next_timer_ns() == RETRY_NS
    publisher.handle_timer(now_ns=RETRY_NS - 1)
    assert drain(publisher) == []
    publisher.handle_timer(now_ns=RETRY_NS)
    assert drain(publisher) == [Broadcast(e)]
    assert publisher.next_timer_ns() == 2 * RETRY_NS
    publisher.receive(accepted(e), source="ens", now_ns=0)
    assert drain(publisher) == [Settle(e, "")]
    assert publisher.next_timer_ns() is None


def test_only_due_events_are_repeated() -> None:
    publisher = UnorderedPublisher(name="p")
    first = publisher.publish("t", b"", now_ns=0)
    second = publisher.publish("t", b"", now_ns=10)
    drain(publisher)
    publisher.handle_timer(now_ns=RETRY_NS)
    assert drain(publisher) == [Broadcast(first)]
    publisher.handle_timer(now_ns=RETRY_NS + 10)
    assert drain(publisher) == [Broadcast(second)]


def test_an_event_settles_once() -> None:
    publisher = UnorderedPublisher(name="p")
    e = publisher.publish("t", b"", now_ns=0)
    assert publisher.unsettled_count == 1
    drain(publisher)
    for _ in range(2):
        publisher.receive(accepted(e), source="ens", now_ns=0)
    assert drain(publisher) == [Settle(e, "")]
    assert publisher.unsettled_count == 0


def test_publisher_sends_nothing_when_it_leaves() -> None:
    publisher = UnorderedPublisher(name="p")
    publisher.publish("t", b"", now_ns=0)
    drain(publisher)
    publisher.say_goodbye()
    assert drain(publisher) == []
    assert publisher.unsettled_count == 1


def test_a_publisher_ignores_stray_frames() -> None:
    publisher = UnorderedPublisher(name="p")
    publisher.receive(Taken(topic="t", event="p/t/1", slot=1), source="ens", now_ns=0)
    assert drain(publisher) == []
