"""The bus on a broker: the behavior of every transport, and failures of the broker."""

import asyncio
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import ClassVar

import pytest
from tests.brokers.chain_suite import ChainSuite
from tests.brokers.deadlines import until
from tests.brokers.proxy import UP, Proxy
from tests.brokers.servers import Server
from tests.transports.noncausal_suite import chain_of_two
from tests.transports.remote_suite import RemoteSuite, fresh
from tests.transports.stations import StationThread, broker_station
from tests.transports.suite import take

import ensue
from ensue.core.order import order_name
from ensue.protocols.total.config import SequencerConfig
from ensue.server import ServerConfig
from ensue.server.brokered import BrokeredServer
from ensue.transports.brokers import base
from ensue.transports.framed import FramedTransport


class BusSuite(ChainSuite, RemoteSuite):
    server_fixture: ClassVar[str]
    options: ClassVar[str] = ""
    """Options of the URL that select the mode."""
    server: ClassVar[Server]
    asked: ClassVar[str]
    """What the URL asks for."""

    @classmethod
    def make_station(
        cls, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
    ) -> StationThread:
        cls.server = request.getfixturevalue(cls.server_fixture)
        cls.server.ensure()
        cls.asked = "&".join(filter(None, (cls.options, f"prefix=bus-{token_hex(4)}")))
        return broker_station(tmp_path_factory.mktemp("station"), cls.server.url(cls.asked))

    @classmethod
    def noncausal_chain(
        cls, request: pytest.FixtureRequest, data: Path
    ) -> tuple[list[StationThread], str]:
        del request
        url = cls.server.url("&".join(filter(None, (cls.options, f"prefix=n-{token_hex(4)}"))))
        configs = chain_of_two(data)
        return [StationThread(partial(BrokeredServer, config, url)) for config in configs], url

    def address(self) -> str:
        return self.server.url(self.asked)

    @pytest.mark.parametrize("gracefully", [True, False], ids=["stopped", "killed"])
    def test_a_restarted_broker_loses_nothing(self, gracefully: bool) -> None:
        async def main() -> None:
            topics = [fresh("t") for _ in range(2)]
            async with (
                ensue.connect(self.url()) as bus,
                ensue.connect(self.url()) as other,
                bus.subscribe(*topics) as events,
                other.subscribe(*topics) as same,
            ):
                for number in range(100):
                    await bus.publish(topics[number % 2], str(number).encode())
                restarting = asyncio.create_task(self.server.restart(gracefully=gracefully))
                for number in range(100, 300):
                    await bus.publish(topics[number % 2], str(number).encode(), receipt=False)
                await restarting
                async with asyncio.timeout(60):
                    await bus.flush()
                got = [int(event.payload) for event in await take(events, 300)]
                assert got == list(range(300))
                assert [int(event.payload) for event in await take(same, 300)] == got

        asyncio.run(main())

    def test_a_client_whose_connection_is_cut_loses_nothing(self) -> None:
        async def main() -> None:
            topic = fresh("t")
            async with Proxy(self.server.port) as proxy:
                behind = self.server.url(self.asked, port=proxy.port)
                async with (
                    ensue.connect(self.url()) as bus,
                    ensue.connect(behind) as away,
                    away.subscribe(topic) as events,
                ):
                    for number in range(50):
                        await bus.publish(topic, b"%d" % number)
                    await take(events, 10)
                    proxy.cut()
                    for number in range(50, 100):
                        await bus.publish(topic, b"%d" % number)
                        await away.publish(topic, b"from afar", receipt=False)
                    async with asyncio.timeout(60):
                        await away.flush()
                    got = [event.payload for event in await take(events, 140)]
                    assert [each for each in got if each != b"from afar"] == [
                        b"%d" % number for number in range(10, 100)
                    ]
                    assert got.count(b"from afar") == 50

        asyncio.run(main())

    def test_last_message_before_a_silence_is_made_up_for_if_the_broker_loses_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Without the station's probe nothing would show that it is missing: no client polls."""
        arrived, lost = FramedTransport._multicast_arrived, list[bytes]()

        def lose_one(transport: FramedTransport, data: bytes) -> None:
            if b"last words" in data and not lost:
                lost.append(data)
            else:
                arrived(transport, data)

        async def main() -> None:
            topic = fresh("t")
            async with ensue.connect(url) as bus, bus.subscribe(topic) as events:
                await bus.publish(topic, b"first words")
                assert [event.payload for event in await take(events, 1)] == [b"first words"]
                await bus.publish(topic, b"last words")
                assert [event.payload for event in await take(events, 1)] == [b"last words"]
            assert lost

        url = self.server.url(f"{self.asked.partition('prefix=')[0]}prefix=silent-{token_hex(4)}")
        sequencer = SequencerConfig(carries=True, poll_ns=3_600_000_000_000)
        config = ServerConfig(data=str(tmp_path), sequencer=sequencer)
        station = StationThread(lambda: BrokeredServer(config, url))
        station.start()
        monkeypatch.setattr(FramedTransport, "_multicast_arrived", lose_one)
        try:
            asyncio.run(main())
        finally:
            station.end()

    def test_in_causal_order_a_client_whose_connection_is_cut_loses_nothing(self) -> None:
        async def main() -> None:
            topic, order = fresh("t"), ensue.Causal()
            async with Proxy(self.server.port) as proxy:
                behind = self.server.url(self.asked, port=proxy.port)
                async with (
                    ensue.connect(self.url(), order=order) as bus,
                    ensue.connect(behind, order=order) as away,
                    bus.subscribe(topic) as here,
                    away.subscribe(topic) as events,
                ):
                    for number in range(60):
                        await bus.publish(topic, b"%d" % number, receipt=False)
                        await away.publish(topic, b"from afar", receipt=False)
                        if number in (20, 40):
                            proxy.cut()
                    async with asyncio.timeout(60):
                        await bus.flush()
                        await away.flush()
                    for each in (here, events):
                        got = [event.payload for event in await take(each, 120)]
                        numbers = [text for text in got if text != b"from afar"]
                        assert numbers == [b"%d" % number for number in range(60)]

        asyncio.run(main())

    @pytest.mark.parametrize("order", [ensue.Causal(), ensue.Deadline(ms=5_000)], ids=order_name)
    def test_client_cut_off_while_closing_leaves_the_registry(self, order: ensue.Order) -> None:
        """Its last frame is lost with the connection, so it retransmits it."""

        async def main() -> None:
            async with Proxy(self.server.port) as proxy:
                behind = self.server.url(self.asked, port=proxy.port)
                async with ensue.connect(behind, order=order) as bus:
                    proxy.drop(UP)
                    closing = asyncio.create_task(bus.close())
                    carried = proxy.swallowed
                    await until(lambda: proxy.swallowed > carried, "it has said goodbye")
                    proxy.stop_dropping()
                    await closing
                assert bus.name not in self.station.enrolled()

        asyncio.run(main())

    def test_merged_order_needs_no_station_and_continues_after_a_cut(self) -> None:
        async def main() -> None:
            topic, order = fresh("t"), ensue.Merged(epsilon=0.002, delta=1.0)
            async with Proxy(self.server.port) as proxy:
                asked = f"{self.asked.partition('prefix=')[0]}prefix=alone-{token_hex(4)}"
                async with (
                    ensue.connect(self.server.url(asked), order=order) as bus,
                    ensue.connect(self.server.url(asked, port=proxy.port), order=order) as away,
                    away.subscribe(topic) as events,
                ):
                    await bus.publish(topic, b"before")
                    assert [event.payload for event in await take(events, 1)] == [b"before"]
                    proxy.cut()
                    await until(lambda: proxy.connections, "it is connected again")
                    got: list[bytes] = []

                    async def publish() -> None:
                        number = 0
                        while not got:
                            await bus.publish(topic, b"%d" % number)
                            number += 1
                            await asyncio.sleep(0.05)

                    publishing = asyncio.create_task(publish())
                    got += [event.payload for event in await take(events, 1)]
                    await publishing
                    assert int(got[0]) >= 0

        asyncio.run(main())

    @pytest.mark.parametrize("durable", [True, False], ids=["durable", "passing"])
    def test_subscription_too_large_for_a_message_fails_with_its_reason(
        self, durable: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def main() -> None:
            topics = [fresh("t").ljust(200, "x") for _ in range(110)]
            async with ensue.connect(self.url()) as bus:
                kept = {"name": fresh("durable"), "durable": True} if durable else {}
                with pytest.raises(ensue.SubscriptionLost, match=r"a message of \d+ bytes exceeds"):
                    async with asyncio.timeout(30), bus.subscribe(*topics, **kept):  # type: ignore[arg-type]
                        pass
                await bus.publish(fresh("t"), b"the bus continues")

        monkeypatch.setattr(base, "MESSAGE_BYTES_MAX", 20_000)
        asyncio.run(main())
