"""The log monitor polls stations on a broker for their logs."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest
from tests.brokers.deadlines import until

from ensue.core.errors import LogLost
from ensue.core.lineage import Lineage
from ensue.protocols.interface import Frame
from ensue.protocols.topic_log.log_identity import Identified, Identify
from ensue.runtime import log_monitor
from ensue.runtime.log_monitor import LogMonitor
from ensue.transports.base import Receiver
from ensue.transports.framed import FramedTransport

FIRST = Lineage("a" * 16, ()).begin(token=1, begun=0)


class Wire:
    """A transport that records sent frames, and delivers those of the test."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.sent: list[tuple[str, Frame]] = []
        self.receive: Receiver = lambda _frames, _source: None

    async def enter(self, name: str) -> None:
        self.names.append(name)

    async def exit(self, name: str) -> None:
        self.names.remove(name)

    def open(self, _name: str, receive: Receiver) -> "Wire":
        self.receive = receive
        return self

    def send(self, peer: str, frame: Frame) -> None:
        self.sent.append((peer, frame))

    def flush(self) -> None: ...

    def close(self) -> None: ...


async def watching(
    wire: Any, stations: Sequence[str], lost: list[LogLost], *, refuses: str = ""
) -> LogMonitor:
    def learn(station: str, _log: Lineage, _number: int) -> None:
        if station == refuses:
            raise LogLost("not that one", server=station, reason="replaced")

    watch = LogMonitor(wire, stations, on_log=learn, on_lost=lost.append)
    await watch.start()
    await asyncio.sleep(0)
    return watch


def test_monitor_polls_each_station(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_monitor, "ASK_S", 0.0)

    async def main() -> None:
        wire = Wire()
        watch = await watching(wire, ("s0", "s1"), [])
        await until(lambda: len(wire.sent) >= 4, "asked twice")
        assert wire.sent[:4] == [
            (station, Identify(number=number)) for number in (1, 2) for station in ("s0", "s1")
        ]
        await watch.close()
        assert not wire.names

    asyncio.run(main())


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        (Lineage("b" * 16, FIRST.incarnations), "replaced"),
        (Lineage("a" * 16, ()).begin(token=2, begun=0), "rolled back"),
    ],
)
def test_first_contradicting_answer_is_reported_and_ends_polling(
    told: Lineage, reason: str
) -> None:
    async def main() -> None:
        wire, lost = Wire(), list[LogLost]()
        watch = await watching(wire, ("s0",), lost)
        wire.receive([Identified(number=1, log=FIRST)], "s0")
        wire.receive([Identified(number=1, log=told)], "stranger")
        wire.receive([Identified(number=1, log=FIRST.begin(token=3, begun=9))], "s0")
        assert not lost
        assert watch.logs["s0"].incarnations[-1].token == 3
        for _ in range(2):
            wire.receive([Identified(number=1, log=told)], "s0")
        assert [(error.server, error.reason) for error in lost] == [("s0", reason)]
        await watch.close()

    asyncio.run(main())


@pytest.mark.parametrize(("read", "lost"), [(4, []), (5, []), (6, ["rolled back"])])
def test_station_that_continues_from_before_a_read_event_is_reported(
    read: int, lost: list[str]
) -> None:
    async def main() -> None:
        wire, found = Wire(), list[LogLost]()
        place = 0
        watch = LogMonitor(
            cast("FramedTransport", wire),
            ("s0",),
            on_log=lambda _station, _log, _number: None,
            on_lost=found.append,
            place_of=lambda _station: place,
        )
        await watch.start()
        await asyncio.sleep(0)
        place = read
        watch.ask()
        wire.receive([Identified(number=1, log=FIRST)], "s0")
        wire.receive([Identified(number=2, log=FIRST)], "s0")
        place = 9  # Maybe of the next incarnation: no answer of this one proves it.
        watch.ask()
        wire.receive([Identified(number=3, log=FIRST.begin(token=2, begun=5))], "s0")
        assert [error.reason for error in found] == lost
        await watch.close()

    asyncio.run(main())


def test_damaged_and_refused_logs_are_reported() -> None:
    async def main() -> None:
        wire, lost = Wire(), list[LogLost]()
        watch = await watching(wire, ("s0", "s1"), lost, refuses="s1")
        wire.receive([Identified(number=1, log=FIRST)], "s1")
        assert [(error.server, error.reason) for error in lost] == [("s1", "replaced")]
        await watch.close()
        watch = await watching(wire, ("s0", "s1"), lost)
        wire.receive([Identified(number=0, log=FIRST, damage="1.log is damaged")], "s0")
        assert str(lost[-1]) == "server 's0' can't read its log: 1.log is damaged"
        assert lost[-1].reason == "damaged"
        await watch.close()

    asyncio.run(main())


def test_monitor_with_continues_reports_each_contradiction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_monitor, "ASK_S", 0.0)

    async def main() -> None:
        wire, lost, known = Wire(), list[LogLost](), list[Lineage]()

        def learn(station: str, log: Lineage, _number: int) -> None:
            if log.identity != FIRST.identity:
                raise LogLost("not that one", server=station, reason="replaced")
            known.append(log)

        watch = LogMonitor(
            wire,  # type: ignore[arg-type]
            ("s0",),
            on_log=learn,
            on_lost=lost.append,
            continues=True,
        )
        await watch.start()
        other = Lineage("b" * 16, FIRST.incarnations)
        for log in (FIRST, other, other, FIRST):
            wire.receive([Identified(number=1, log=log)], "s0")
        assert [str(error) for error in lost] == ["not that one"] * 2
        assert known == [FIRST, FIRST]
        before = len(wire.sent)
        await until(lambda: len(wire.sent) > before, "asked again")
        await watch.close()

    asyncio.run(main())
