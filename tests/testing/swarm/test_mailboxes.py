"""Readers of durable subscriptions may lack an answer once closed, and while faults strike."""

import asyncio
from unittest import mock

import pytest

from ensue.client.received_event import ReceivedEvent
from ensue.core.errors import LocalProtocolError
from ensue.core.event import Event
from ensue.runtime.hub_memory import CLOSE_TIMEOUT_S
from ensue.testing import Simulation, simulate
from ensue.testing.process import SECOND_NS
from ensue.testing.swarm.client_watch import CONNECT_S, ClientWatch
from ensue.testing.swarm.mailboxes import Mailboxes

NOT_STORED = "ended before its acknowledgement was stored"
CLOSES_S = 2.0


class Unanswered:
    """A subscription whose acknowledgements fail at some time, without an answer."""

    def __init__(self, fails_s: float) -> None:
        self._fails_s = fails_s

    def acknowledge(self, position: int) -> None:
        """Take an acknowledgement."""

    async def until_safe(self, position: int) -> None:
        """Wait, and fail."""
        await asyncio.sleep(self._fails_s - asyncio.get_running_loop().time())
        raise LocalProtocolError(NOT_STORED)


def acknowledge_unanswered(*, asked_s: float, fails_s: float, healed: bool = False) -> list[str]:
    """Close at `CLOSES_S`, acknowledge from `asked_s` on; return the problems that are reported."""
    problems: list[str] = []
    over: list[bool] = []

    async def close(began_s: float) -> float:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(began_s + CLOSES_S - loop.time())
        return loop.time()

    async def connected(self: Mailboxes, process: str) -> None:
        began_s = asyncio.get_running_loop().time()
        event = Event(topic="mail", payload=b"", publisher="mailer", publisher_seq=1)
        received = ReceivedEvent(event, 1, "", Unanswered(began_s + fails_s))
        closing = asyncio.create_task(close(began_s))
        await asyncio.sleep(asked_s)
        await self._acknowledge(process, received, closing)

    async def main(simulation: Simulation) -> None:
        watch = ClientWatch(simulation.world, problems, 0.0)
        if healed:
            watch.healed([])
            await asyncio.sleep(CONNECT_S)
        mailboxes = Mailboxes(
            simulation.world,
            1,
            problems,
            watch=watch,
            expired=(),
            url=lambda _: "",
            is_calm=lambda: healed,
            is_over=lambda: bool(over),
        )
        simulation.world.at(simulation.world.now_ns + SECOND_NS, over.append, True)
        try:
            await simulation.start("reader-1", mailboxes._read, "reader-1")
        finally:
            watch.over()
        assert mailboxes._safe == 0

    with mock.patch.object(Mailboxes, "_connected", connected):
        simulate(main, seed=1)
    return problems


@pytest.mark.parametrize("asked_s", [CLOSES_S - 1.0, CLOSES_S + 1.0], ids=["before", "after"])
def test_a_closed_reader_may_lack_an_answer(asked_s: float) -> None:
    fails_s = max(asked_s, CLOSES_S) + CLOSE_TIMEOUT_S
    assert acknowledge_unanswered(asked_s=asked_s, fails_s=fails_s) == []


@pytest.mark.parametrize("asked_s", [CLOSES_S - 1.0, CLOSES_S + 1.0], ids=["before", "after"])
def test_a_closed_reader_that_gives_up_early_is_reported(asked_s: float) -> None:
    fails_s = max(asked_s, CLOSES_S) + CLOSE_TIMEOUT_S - 1.0
    assert acknowledge_unanswered(asked_s=asked_s, fails_s=fails_s) == [
        "acknowledged: reader-1 closed mail, and gave up after 4.0 s"
    ]


def test_an_open_reader_may_not_lack_an_answer() -> None:
    with pytest.raises(LocalProtocolError, match=NOT_STORED):
        acknowledge_unanswered(asked_s=0.0, fails_s=CLOSES_S - 1.0)


def test_no_reader_may_lack_an_answer_long_after_healing() -> None:
    (problem,) = acknowledge_unanswered(
        asked_s=CLOSES_S, fails_s=CLOSES_S + CLOSE_TIMEOUT_S, healed=True
    )
    assert problem.startswith("liveness: 20 s after healing reader-1 got UnansweredError(")
