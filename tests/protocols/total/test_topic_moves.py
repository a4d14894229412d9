"""One node of a chain whose topics move."""

import pytest

from ensue.core.event import Event
from ensue.protocols.interface import Frame, Send
from ensue.protocols.topic_log.frames import AttachRequest, Put
from ensue.protocols.total import topic_moves
from ensue.protocols.total.config import SequencerConfig
from ensue.protocols.total.frames import (
    ChangeRequest,
    Confirm,
    Forget,
    Move,
    Moved,
    MoveReply,
    MoveRequest,
    MoveStep,
    OrderRequest,
    Out,
    StampRequest,
)
from ensue.protocols.total.placement import Placement, moved
from ensue.protocols.total.station import Station
from ensue.protocols.total.topic_moves import ASK, FREEZE, FROZEN, READY, SWITCH

PARTS = (("b", 0), ("a", 0))


def event(topic: str, number: int, payload: bytes = b"x") -> Event:
    return Event(topic=topic, payload=payload, publisher="p", publisher_seq=number)


def station(name: str) -> Station:
    placement = Placement(["a", "b"], topics={"a": ("t", "w"), "b": ("u", "v")})
    return Station(name=name, placement=placement, config=SequencerConfig(carries=True))


def sent(node: Station, kind: type[Frame]) -> list[Frame]:
    effects = node.take_effects()
    return [each.frame for each in effects if isinstance(each, Send) and type(each.frame) is kind]


def move(node: Station, topic: str, to: str, phase: int, source: str = "a") -> None:
    step = Move(topic=topic, to=to, phase=phase, number=1, parts=(("b", 0),))
    node.receive(step, source=source, now_ns=0)


def moved_away() -> Station:
    """Return the old node of a topic that has moved down the chain."""
    node = station("b")
    move(node, "u", "a", FREEZE)
    move(node, "u", "a", SWITCH)
    node.take_effects()
    return node


def test_requests_that_come_while_a_topic_moves_are_held() -> None:
    node = station("b")
    move(node, "u", "a", FREEZE)
    request = OrderRequest(number=1, events=(event("v", 1),), settled=1)
    node.receive(request, source="p", now_ns=0)
    assert sent(node, Out) == []
    move(node, "u", "a", SWITCH)
    assert sent(node, Out) == [Out(origin="b", slots=((1, 1),))]


def test_request_for_a_moved_topic_and_those_behind_it_are_not_taken() -> None:
    node = moved_away()
    request = OrderRequest(number=1, events=(event("u", 1), event("v", 1)), settled=1)
    for _ in range(2):  # A copy may arrive when the publisher requests both again already.
        node.receive(request, source="p", now_ns=0)
        assert sent(node, Moved) == [Moved(topic="u", parts=PARTS, number=1)]
        assert node.node.count("v") == 0
    again = OrderRequest(number=3, events=(event("v", 1),), settled=3)
    node.receive(Confirm(origin="b", slots=(), settled=3), source="p", now_ns=0)
    node.receive(again, source="p", now_ns=0)
    assert sent(node, Out) == [Out(origin="b", slots=((3, 1),))]


def test_log_of_a_moved_topic_is_looked_for_elsewhere() -> None:
    node = moved_away()
    node.receive(AttachRequest(topic="u", from_slot=0), source="s", now_ns=0)
    node.receive(Put(event=event("u", 1)), source="p", now_ns=0)
    assert sent(node, Moved) == 2 * [Moved(topic="u", parts=PARTS)]
    assert node.log.listeners().get("u", ()) == ()


def test_event_without_payload_is_not_published_at_the_new_node() -> None:
    node = station("a")
    node.receive(MoveRequest(number=1, topic="u", to="a"), source="m", now_ns=0)
    move(node, "u", "a", READY, source="b")
    move(node, "u", "a", FROZEN, source="b")
    node.receive(MoveStep(number=1, topic="u", phase=SWITCH), source="b", now_ns=0)
    (reply,) = sent(node, MoveReply)
    assert isinstance(reply, MoveReply)
    assert not reply.moved
    assert reply.waits == "the move of 'u' to a is at the step 'ask', and waits for b"
    node.receive(OrderRequest(number=1, events=(event("u", 1),), settled=1), source="p", now_ns=0)
    assert sent(node, Out) == [Out(origin="a", slots=((1, 1),))]
    # Its publisher had sent it to a node before that of its topic, which now is the same.
    request = OrderRequest(number=2, events=(event("u", 2, b""),), settled=2)
    node.receive(request, source="p", now_ns=0)
    assert sent(node, Out) == []
    assert node.log.bounds_of("u") == (1, 2)
    node.receive(MoveRequest(number=2, topic="u", to="a"), source="m", now_ns=0)
    assert sent(node, MoveReply) == [MoveReply(number=2, moved=True)]


def test_placement_knows_the_keeper_of_each_slot() -> None:
    placement = Placement(["a", "b", "c"], topics={"a": ("t",)})
    assert placement.keeper("t", 1) == ""
    assert placement.learn("t", moved(placement.parts_of("t"), "b", 5))
    parts = moved(placement.parts_of("t"), "c", 9)
    assert placement.learn("t", parts)
    assert not placement.learn("t", parts)
    assert [placement.keeper("t", slot) for slot in (1, 5, 6, 9, 10, 0)] == [*"aabbcc"]
    assert placement.keepers("t") == ["a", "b", "c"]
    assert placement.node("t") == "c"
    assert placement.copy().parts == {"t": parts}


def test_held_requests_are_bounded_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_moves, "HELD_BYTES_MAX", 1_000)
    long = "u" * 700
    requests: list[Frame] = [
        OrderRequest(number=1, events=(event("u", 1, b"x" * 700),), settled=1),
        StampRequest(number=1, topics=(long,), settled=1),
        ChangeRequest(number=1, old=(), new=(long,)),
        ChangeRequest(number=1, old=(long,), new=()),
        Forget(number=1, publisher=True),
    ]
    for request in requests:
        node = station("b")
        move(node, "u", "a", FREEZE)
        for publisher in ("p", "q"):
            node.receive(request, source=publisher, now_ns=0)
        assert len(node.node.moves._held) == (2 if isinstance(request, Forget) else 1)


def test_question_collects_the_bytes_of_the_state_and_counts_nothing() -> None:
    node = station("b")
    request = OrderRequest(number=1, events=(event("u", 1),), settled=1)
    node.receive(request, source="p", now_ns=0)
    node.receive(ChangeRequest(number=1, old=(), new=("u", "v")), source="s", now_ns=0)
    move(node, "u", "a", ASK)
    (ready,) = sent(node, Move)
    assert isinstance(ready, Move)
    assert (ready.phase, ready.count) == (READY, 0)
    assert ready.size > len("suv")
