"""Requests are retransmitted until an answer or a timeout."""

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest

from ensue.core.event import Count
from ensue.protocols.interface import Frame
from ensue.runtime.request import inbox, request
from ensue.transports.base import Receiver
from ensue.transports.framed import FramedPort, FramedTransport


class Question(Frame, frozen=True, tag=97):
    """A question."""

    number: Count


class Port:
    """Answers one of the bundles that are flushed."""

    def __init__(self, answer: "asyncio.Future[None]", *, answered: int) -> None:
        self.sent: list[tuple[str, Frame]] = []
        self._answer = answer
        self._left = answered

    def send(self, peer: str, frame: Frame) -> None:
        self.sent.append((peer, frame))

    def flush(self) -> None:
        self._left -= 1
        if not self._left:
            self._answer.set_result(None)


def ask(*, answered: int, within_s: float) -> tuple[bool, list[tuple[str, Frame]]]:
    async def main() -> tuple[bool, list[tuple[str, Frame]]]:
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        port = Port(answer, answered=answered)
        numbers = iter(range(1, 1_000))
        found = await request(
            cast("FramedPort", port),
            lambda: [("s", Question(number=next(numbers))), ("t", Question(number=0))],
            answer,
            every_s=0.001,
            within_s=within_s,
        )
        return found, port.sent

    return asyncio.run(main())


def test_request_is_retransmitted_until_it_is_answered() -> None:
    found, sent = ask(answered=3, within_s=60.0)
    assert found
    assert sent == [
        (peer, Question(number=number))
        for round_ in (1, 2, 3)
        for peer, number in (("s", round_), ("t", 0))
    ]


def test_request_without_an_answer_times_out() -> None:
    found, sent = ask(answered=0, within_s=0.0)
    assert not found
    assert len(sent) == 2


class Transport:
    """Records the names in use."""

    def __init__(self) -> None:
        self.entered: list[str] = []
        self.open_ports = 0

    async def enter(self, name: str) -> None:
        self.entered.append(name)

    async def exit(self, name: str) -> None:
        self.entered.remove(name)

    def open(self, name: str, _receiver: Receiver) -> "Transport":
        assert name in self.entered
        self.open_ports += 1
        return self

    def close(self) -> None:
        self.open_ports -= 1


def ignore(_frames: Sequence[Frame], _source: str) -> None:
    """Ignore it."""


def test_inbox_is_closed_however_its_block_ends() -> None:
    async def main() -> None:
        transport = Transport()

        async def fail() -> None:
            async with inbox(cast("FramedTransport", transport), "claim", ignore):
                (name,) = transport.entered
                assert name.startswith("claim~")
                assert transport.open_ports == 1
                raise ConnectionError

        with pytest.raises(ConnectionError):
            await fail()
        assert (transport.entered, transport.open_ports) == ([], 0)

    asyncio.run(main())
