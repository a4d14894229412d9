"""The fan-out: events to current listeners, without log or order."""

from ensue.core.event import Event, Stamp
from ensue.protocols.interface import Effect, Multicast, Send
from ensue.protocols.topic_log.fanout import ABSENCE_NS, Agree, Agreed, Declined, Fanout
from ensue.protocols.topic_log.frames import (
    Accepted,
    Attached,
    AttachRequest,
    DetachRequest,
    Notify,
    Put,
)
from ensue.protocols.total.discovery import Discover


def event(number: int = 1, topic: str = "t") -> Event:
    return Event(
        topic=topic, payload=b"x", publisher="p", publisher_seq=number, stamp=Stamp({"@r": 7})
    )


def attached(topic: str = "t") -> Attached:
    return Attached(topic=topic, first=1, next=1, sent=1)


class Bench:
    def __init__(self, **options: int) -> None:
        self.node = Fanout(name="s/merged", **options)

    def handle(self, frame: object, source: str = "p") -> list[Effect]:
        self.node.receive(frame, source=source, now_ns=0)  # type: ignore[arg-type]
        return list(self.node.take_effects())


def test_event_is_sent_unchanged_to_all_listeners_and_accepted() -> None:
    bench = Bench()
    for name in ("a", "b"):
        assert bench.handle(AttachRequest(topic="t", from_slot=0), name) == [Send(name, attached())]
    bench.handle(AttachRequest(topic="u", from_slot=0), "c")
    sent = event()
    assert bench.handle(Put(event=sent)) == [
        Send("p", Accepted(topic="t", event=sent.id, slot=0)),
        Multicast("t", ("a", "b"), Notify(event=sent)),
    ]
    assert bench.node.passed_on == 1


def test_later_listeners_get_no_earlier_events_and_none_gets_duplicates() -> None:
    bench = Bench()
    assert bench.handle(Put(event=event())) == [
        Send("p", Accepted(topic="t", event=event().id, slot=0))
    ]
    for _ in range(2):
        assert bench.handle(AttachRequest(topic="t", from_slot=1), "a") == [Send("a", attached())]
    assert bench.node.attachments == 1
    assert bench.handle(Put(event=event(2)))[1] == Multicast("t", ("a",), Notify(event=event(2)))


def test_detached_or_forgotten_listener_gets_nothing() -> None:
    bench = Bench()
    for name in ("a", "b"):
        for topic in ("t", "u"):
            bench.handle(AttachRequest(topic=topic, from_slot=0), name)
    bench.handle(DetachRequest(topic="t"), "a")
    bench.handle(DetachRequest(topic="never"), "a")
    assert bench.node.listeners("t") == ("b",)
    assert bench.node.listeners("u") == ("a", "b")
    bench.node.forget("b", now_ns=0)
    bench.node.forget("stranger", now_ns=0)
    assert len(bench.handle(Put(event=event()))) == 1
    assert bench.node.listeners("u") == ("a",)
    bench.node.forget("a", now_ns=0)
    assert bench.node.attachments == 0


def test_listeners_beyond_the_limit_are_declined_with_a_reason() -> None:
    bench = Bench(attachments_max=1)
    bench.handle(AttachRequest(topic="t", from_slot=0), "a")
    (answer,) = bench.handle(AttachRequest(topic="t", from_slot=0), "b")
    assert isinstance(answer, Send)
    assert isinstance(answer.frame, Declined)
    assert "attachments_max" in answer.frame.reason
    assert bench.handle(AttachRequest(topic="t", from_slot=0), "a") == [Send("a", attached())]
    bench.handle(DetachRequest(topic="t"), "a")
    assert bench.handle(AttachRequest(topic="t", from_slot=0), "b") == [Send("b", attached())]


def test_stray_frames_change_nothing() -> None:
    assert Bench().handle(Discover(number=1)) == []


# -- Terms --------------------------------------------------------------------------------------


def agreed(bench: Bench, terms: str, source: str, now_ns: int = 0) -> str:
    """Return the terms that a peer gets as the answer to its own."""
    bench.node.receive(Agree(terms=terms), source=source, now_ns=now_ns)
    (effect,) = bench.node.take_effects()
    assert isinstance(effect, Send)
    assert effect.peer == source
    assert isinstance(effect.frame, Agreed)
    return effect.frame.terms


def test_the_first_client_decides_on_the_terms_until_all_have_left() -> None:
    bench = Bench()
    assert agreed(bench, "one", "a") == "one"
    assert agreed(bench, "one", "b") == "one"
    assert agreed(bench, "two", "c") == "one"
    assert bench.handle(Agree(terms=""), "a") == []
    assert bench.handle(Agree(terms=""), "stranger") == []
    bench.node.forget("a", now_ns=0)
    assert agreed(bench, "two", "c") == "one"
    bench.handle(Agree(terms=""), "b")
    assert agreed(bench, "two", "c") == "two"
    assert agreed(bench, "one", "a") == "two"


def test_a_client_that_is_alone_may_change_its_terms() -> None:
    bench = Bench()
    agreed(bench, "one", "a")
    assert agreed(bench, "two", "a") == "two"


def test_terms_of_a_disconnected_client_count_for_a_while() -> None:
    bench = Bench()
    agreed(bench, "one", "a", 5)
    bench.node.forget("a", now_ns=5)
    assert agreed(bench, "two", "b", 4 + ABSENCE_NS) == "one"
    assert agreed(bench, "one", "a", 4 + ABSENCE_NS) == "one"
    bench.node.forget("a", now_ns=5 + ABSENCE_NS)
    assert agreed(bench, "two", "b", 5 + 2 * ABSENCE_NS) == "two"
    assert agreed(bench, "one", "a", 5 + 2 * ABSENCE_NS) == "two"


def test_disconnected_clients_are_forgotten_when_their_terms_no_longer_count() -> None:
    bench = Bench()
    for number in range(3):
        agreed(bench, "one", f"client-{number}")
    for number in range(2):
        bench.node.forget(f"client-{number}", now_ns=number)
    assert bench.node.next_timer_ns() == ABSENCE_NS
    bench.node.handle_timer(now_ns=1 + ABSENCE_NS)
    assert list(bench.node._parties) == ["client-2"]
    assert bench.node.next_timer_ns() is None


def test_backward_clock_does_not_prolong_old_terms() -> None:
    bench = Bench()
    agreed(bench, "one", "a", 10 * ABSENCE_NS)
    bench.node.forget("a", now_ns=10 * ABSENCE_NS)
    assert agreed(bench, "two", "b", ABSENCE_NS) == "two"
