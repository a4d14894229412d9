"""A request to move a topic, repeated until it is answered for good."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest

from ensue.core.errors import BadInput, TransportError
from ensue.protocols.interface import Frame
from ensue.protocols.total.frames import MoveReply, MoveRequest
from ensue.runtime import topic_move
from ensue.runtime.topic_move import move_topic


class Station:
    """Answers requests with the given replies, and then with the last one."""

    def __init__(self, *replies: MoveReply) -> None:
        self.replies = list(replies)
        self.requests = 0
        self.receive: Callable[[Sequence[Frame], str], None] = lambda *_: None

    def send(self, _station: str, request: MoveRequest) -> None:
        reply = self.replies[min(self.requests, len(self.replies) - 1)]
        self.requests += 1
        self.receive([reply], "s0")

    def flush(self) -> None:
        pass


def move(monkeypatch: pytest.MonkeyPatch, *replies: MoveReply) -> Station:
    """Move a topic at a station with these replies."""
    station = Station(*replies)

    @asynccontextmanager
    async def first_station(_url: str, _within_s: float) -> AsyncIterator[tuple[None, str]]:
        yield None, "s0"

    @asynccontextmanager
    async def inbox(
        _transport: None, _name: str, receive: Callable[[Sequence[Frame], str], None]
    ) -> AsyncIterator[Station]:
        station.receive = receive
        yield station

    monkeypatch.setattr(topic_move, "_first_station", first_station)
    monkeypatch.setattr(topic_move, "inbox", inbox)
    asyncio.run(move_topic("ensue://host:1", "t", "s2", within_s=0.4))
    return station


def reply(
    refusal: str = "", waits: str = "", *, moved: bool = False, again: bool = False
) -> MoveReply:
    return MoveReply(number=1, moved=moved, refusal=refusal, waits=waits, again=again)


def test_refusal_is_final_unless_the_reply_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match="'t' is not moved to 's2': no, don't try again"):
        move(monkeypatch, reply("no, don't try again"), reply(moved=True))
    station = move(monkeypatch, reply("not now", again=True), reply(moved=True))
    assert station.requests == 2


def test_reason_is_that_of_the_last_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    other = reply("the move of 'x' to s2 is at the step 'freeze'", again=True)
    with pytest.raises(TransportError, match=r"it waits for s1$"):
        move(monkeypatch, other, reply(waits="it waits for s1"))
