"""Chains of stations on a broker: total order by content, and moves while events flow."""

import asyncio
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from pathlib import Path
from secrets import token_hex
from typing import ClassVar

import pytest
from tests.brokers.deadlines import until
from tests.brokers.servers import Server
from tests.server.test_command import ENSUE
from tests.transports.stations import StationThread, running
from tests.transports.suite import take

import ensue
from ensue.checkers import Verdict, check
from ensue.core import trace
from ensue.core.order import order_name
from ensue.protocols.content.cells import Cells
from ensue.protocols.total.placement import Placement
from ensue.runtime.topic_move import move_topic
from ensue.server.brokered import BrokeredServer
from ensue.server.config import ServerConfig, sequenced
from ensue.transports.tcp.messages import Member

TOTAL = ensue.Total()
CELLS = "symbol='ACME','BETA'; price<10"
STATIONS = ("east", "north", "west")
SYMBOLS = ("ACME", "BETA", "ZINC")
PRICES = (1, 20)
EVENTS = 60
"""Events of each of two publishers."""
FROM, *TO = "north", "east", "west"
"""Where a topic moves: against the chain, then along it. It never returns to a station."""
_names = count(1)


def at_north(stem: str) -> str:
    """Return a new topic that is placed at the station in the middle."""
    names = (f"{stem}-{next(_names)}" for _ in count())
    return next(name for name in names if Placement(STATIONS).node(name) == FROM)


def configured(data: Path) -> list[ServerConfig]:
    """Return the configurations of three stations, which place topics by hash."""
    members = tuple(Member(name, f"127.0.0.1:{number}") for number, name in enumerate(STATIONS, 1))
    return [
        ServerConfig(
            data=str(data / member.name),
            name=member.name,
            listen=member.address,
            chain=members,
            sequencer=sequenced(causal=True, cells=CELLS),
        )
        for member in members
    ]


class Numbers:
    """Publishes numbers until it is stopped, so that events flow while something else happens."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self._stopped = False

    async def by_topic(self, bus: ensue.Bus, topics: Sequence[str]) -> None:
        while not self._stopped:
            await bus.publish(topics[len(self.sent) % len(topics)], self._next(), receipt=False)
            await bus.publish(topics[0], self._next())

    async def by_content(self, bus: ensue.Bus, attributes: dict[str, str | int]) -> None:
        while not self._stopped:
            await bus.publish(attributes, self._next(), order=TOTAL)

    def _next(self) -> bytes:
        self.sent.append(b"%d" % len(self.sent))
        return self.sent[-1]

    @asynccontextmanager
    async def flowing(self, *publishing: asyncio.Task[None]) -> AsyncIterator[None]:
        """Let events flow before, within and after this context."""
        try:
            await self._more()
            yield
            await self._more()
        finally:
            self._stopped = True
            await asyncio.gather(*publishing)

    async def _more(self) -> None:
        wanted = len(self.sent) + 20
        await until(lambda: len(self.sent) >= wanted, "events flow")


async def move(url: str, topic: str, to: str) -> None:
    """Move a topic as an operator does."""
    words = [*ENSUE, "topics", "move", topic, "--to", to, "--url", url, "--timeout", "60"]
    done = await asyncio.to_thread(
        subprocess.run, words, capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, f"{topic} is on {to}\n"), done.stderr


class ChainSuite:
    """What a chain of three stations with cells does on every broker."""

    server: ClassVar[Server]
    options: ClassVar[str]

    @pytest.fixture(scope="class")
    @classmethod
    def chain_url(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
        """Run such a chain for the tests of a class that use it."""
        url = cls.server.url("&".join(filter(None, (cls.options, f"prefix=c-{token_hex(4)}"))))
        configs = configured(tmp_path_factory.mktemp("chain"))
        stations = [StationThread(partial(BrokeredServer, config, url)) for config in configs]
        with running(stations):
            yield url

    def test_filters_that_overlap_agree_on_the_cells_of_several_stations(
        self, chain_url: str, tmp_path: Path
    ) -> None:
        async def main() -> None:
            name = f"by-content-{next(_names)}"
            async with (
                ensue.connect(chain_url, trace=str(tmp_path / "one")) as one,
                ensue.connect(chain_url, trace=str(tmp_path / "other")) as other,
                one.subscribe(where="symbol = 'ACME'", order=TOTAL) as acme,
                other.subscribe(where="price >= 10", order=TOTAL) as dear,
                one.subscribe(where="true", order=TOTAL) as everything,
            ):

                async def publish(bus: ensue.Bus, first: int) -> None:
                    for number in range(first, first + EVENTS):
                        event = {
                            "symbol": SYMBOLS[number % len(SYMBOLS)],
                            "price": PRICES[number // len(SYMBOLS) % len(PRICES)],
                        }
                        await bus.publish(event, b"%d" % number, order=TOTAL, receipt=False)

                async def resumed(wanted: int) -> list[int]:
                    """Enter a durable subscription with a bus of its own, as a new process does."""
                    where = "symbol in ('ACME', 'BETA')"
                    async with (
                        ensue.connect(chain_url) as bus,
                        bus.subscribe(
                            where=where, order=TOTAL, name=name, durable=True, acknowledge="manual"
                        ) as events,
                    ):
                        got = await take(events, wanted)
                        for event in got[: wanted // 2]:
                            await event.ack()
                        return [int(event.payload) for event in got]

                assert await resumed(0) == []
                await asyncio.gather(publish(one, 0), publish(other, 1_000))
                whole = await take(everything, 2 * EVENTS)
                numbers = [int(event.payload) for event in whole]
                assert sorted(numbers) == [*range(EVENTS), *range(1_000, 1_000 + EVENTS)]
                for events, attribute, value in ((acme, "symbol", "ACME"), (dear, "price", 20)):
                    wanted = [each.id for each in whole if each.attributes[attribute] == value]
                    assert [each.id for each in await take(events, len(wanted))] == wanted
                assert acme.counts is not None
                assert acme.counts.received < 2 * EVENTS
                kept = [int(each.payload) for each in whole if each.attributes["symbol"] != "ZINC"]
                assert await resumed(len(kept)) == kept
                assert await resumed(len(kept) - len(kept) // 2) == kept[len(kept) // 2 :]

        asyncio.run(main())
        rows = [row for folder in ("one", "other") for row in trace.read(tmp_path / folder)]
        report = check(rows, order_name(TOTAL))
        assert report.verdict is Verdict.VALID, report.sentences()

    def test_topic_moves_from_station_to_station_while_events_flow(self, chain_url: str) -> None:
        async def main() -> None:
            topics = [at_north("moving"), *(f"still-{next(_names)}" for _ in range(3))]
            numbers = Numbers()
            async with (
                ensue.connect(chain_url) as bus,
                ensue.connect(chain_url) as other,
                bus.subscribe(*topics) as first,
                other.subscribe(*reversed(topics)) as second,
                other.subscribe(topics[0]) as third,
            ):
                publishing = [
                    asyncio.create_task(numbers.by_topic(each, topics)) for each in (bus, other)
                ]
                async with numbers.flowing(*publishing):
                    for station in TO:
                        await move(chain_url, topics[0], station)
                seen = await take(first, len(numbers.sent))
                assert sorted(int(event.payload) for event in seen) == list(
                    range(len(numbers.sent))
                )
                got = [event.id for event in await take(second, len(seen))]
                assert got == [event.id for event in seen]
                moved = [event.id for event in seen if event.topic == topics[0]]
                assert [event.id for event in await take(third, len(moved))] == moved
                async with bus.subscribe(topics[0], start="earliest") as past:
                    assert [event.id for event in await take(past, len(moved))] == moved

        asyncio.run(main())

    def test_topic_moves_while_the_broker_restarts(self, chain_url: str) -> None:
        async def main() -> None:
            topics = [at_north("moving"), f"still-{next(_names)}"]
            numbers = Numbers()

            async def moved(station: str) -> None:
                while True:
                    try:
                        return await move_topic(chain_url, topics[0], station, within_s=60)
                    except ensue.TransportError:  # It could not connect.
                        await asyncio.sleep(0.01)

            async with (
                ensue.connect(chain_url) as bus,
                ensue.connect(chain_url) as other,
                bus.subscribe(*topics) as first,
                other.subscribe(*topics) as second,
            ):
                publishing = asyncio.create_task(numbers.by_topic(bus, topics))
                async with numbers.flowing(publishing):
                    for station in TO:
                        await asyncio.gather(moved(station), self.server.restart(gracefully=False))
                seen = await take(first, len(numbers.sent))
                assert [event.payload for event in seen] == numbers.sent
                got = [event.id for event in await take(second, len(seen))]
                assert got == [event.id for event in seen]

        asyncio.run(main())

    def test_cell_moves_while_events_flow(self, chain_url: str) -> None:
        async def main() -> None:
            attributes: dict[str, str | int] = {"symbol": "ZINC", "price": 20}
            cell = Cells.parse(CELLS).topic_of(attributes)
            assert Placement(STATIONS).node(cell) == FROM
            numbers = Numbers()
            async with (
                ensue.connect(chain_url) as bus,
                ensue.connect(chain_url) as other,
                bus.subscribe(where="price > 10", order=TOTAL) as first,
                other.subscribe(where="symbol = 'ZINC'", order=TOTAL) as second,
            ):
                publishing = [
                    asyncio.create_task(numbers.by_content(each, attributes))
                    for each in (bus, other)
                ]
                async with numbers.flowing(*publishing):
                    for station in TO:
                        await move(chain_url, cell, station)
                seen = await take(first, len(numbers.sent))
                assert sorted(int(event.payload) for event in seen) == list(
                    range(len(numbers.sent))
                )
                got = [event.id for event in await take(second, len(seen))]
                assert got == [event.id for event in seen]

        asyncio.run(main())
