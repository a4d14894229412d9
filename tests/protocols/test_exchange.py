"""An exchange: topics and nothing more."""

from ensue.event import Event, Stamp
from ensue.protocols.core import Effect, Multicast, Send
from ensue.protocols.ens import Accepted, Attached, AttachRequest, DetachRequest, Notify, Put
from ensue.protocols.exchange import Declined, Exchange
from ensue.protocols.guide import Discover


def event(number: int = 1, topic: str = "t") -> Event:
    return Event(
        topic=topic, payload=b"x", publisher="p", publisher_seq=number, stamp=Stamp({"@r": 7})
    )


def attached(topic: str = "t") -> Attached:
    return Attached(topic=topic, first=1, next=1, sent=1)


class Bench:
    def __init__(self, **options: int) -> None:
        self.node = Exchange(name="s/merged", **options)

    def hear(self, frame: object, source: str = "p") -> list[Effect]:
        self.node.receive(frame, source=source, now_ns=0)  # type: ignore[arg-type]
        return list(self.node.take_effects())


def test_an_event_goes_to_whoever_listens_as_it_is_and_is_answered() -> None:
    bench = Bench()
    for name in ("a", "b"):
        assert bench.hear(AttachRequest(topic="t", from_slot=0), name) == [Send(name, attached())]
    bench.hear(AttachRequest(topic="u", from_slot=0), "c")
    sent = event()
    assert bench.hear(Put(event=sent)) == [
        Send("p", Accepted(topic="t", event=sent.id, slot=0)),
        Multicast("t", ("a", "b"), Notify(event=sent)),
    ]
    assert bench.node.passed_on == 1


def test_nothing_is_kept_for_who_comes_later_and_nobody_is_sent_to_twice() -> None:
    bench = Bench()
    assert bench.hear(Put(event=event())) == [
        Send("p", Accepted(topic="t", event=event().id, slot=0))
    ]
    for _ in range(2):
        assert bench.hear(AttachRequest(topic="t", from_slot=1), "a") == [Send("a", attached())]
    assert bench.node.attachments == 1
    assert bench.hear(Put(event=event(2)))[1] == Multicast("t", ("a",), Notify(event=event(2)))


def test_who_detaches_or_is_gone_gets_nothing_more() -> None:
    bench = Bench()
    for name in ("a", "b"):
        for topic in ("t", "u"):
            bench.hear(AttachRequest(topic=topic, from_slot=0), name)
    bench.hear(DetachRequest(topic="t"), "a")
    bench.hear(DetachRequest(topic="never"), "a")
    assert bench.node.listeners("t") == ("b",)
    assert bench.node.listeners("u") == ("a", "b")
    bench.node.forget("b")
    bench.node.forget("stranger")
    assert len(bench.hear(Put(event=event()))) == 1
    assert bench.node.listeners("u") == ("a",)
    bench.node.forget("a")
    assert bench.node.attachments == 0


def test_more_listeners_than_the_limit_are_declined_in_words() -> None:
    bench = Bench(attachments_max=1)
    bench.hear(AttachRequest(topic="t", from_slot=0), "a")
    (answer,) = bench.hear(AttachRequest(topic="t", from_slot=0), "b")
    assert isinstance(answer, Send)
    assert isinstance(answer.frame, Declined)
    assert "attachments_max" in answer.frame.reason
    assert bench.hear(AttachRequest(topic="t", from_slot=0), "a") == [Send("a", attached())]
    bench.hear(DetachRequest(topic="t"), "a")
    assert bench.hear(AttachRequest(topic="t", from_slot=0), "b") == [Send("b", attached())]


def test_stray_frames_change_nothing() -> None:
    assert Bench().hear(Discover(number=1)) == []
