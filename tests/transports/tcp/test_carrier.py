"""`ensue://`: the behavior of every transport, and names."""

import asyncio
import socket
from functools import partial
from pathlib import Path

import pytest
from tests.brokers.deadlines import until
from tests.transports.noncausal_suite import chain_of_two
from tests.transports.remote_suite import RemoteSuite, fresh
from tests.transports.stations import StationThread, tcp_station
from tests.transports.suite import take

import ensue
from ensue.server import Server, ServerConfig
from ensue.server.config import Retention
from ensue.transports.tcp.carrier import TcpCarrier
from ensue.transports.tcp.options import TcpOptions


def spare_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class TestTcp(RemoteSuite):
    @classmethod
    def make_station(
        cls, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
    ) -> StationThread:
        return tcp_station(tmp_path_factory.mktemp("station"), spare_port())

    @classmethod
    def noncausal_chain(
        cls, request: pytest.FixtureRequest, data: Path
    ) -> tuple[list[StationThread], str]:
        del request
        addresses = f"127.0.0.1:{spare_port()}", f"127.0.0.1:{spare_port()}"
        configs = chain_of_two(data, addresses)
        stations = [StationThread(partial(Server, config)) for config in configs]
        return stations, f"ensue://{addresses[0]}"

    def test_name_taken_over_is_not_reclaimed(self) -> None:
        async def main() -> None:
            name, topic = fresh("durable"), fresh("t")
            async with (
                ensue.connect(self.url()) as one,
                ensue.connect(self.url()) as other,
                one.subscribe(topic, name=name, durable=True) as first,
                one.subscribe(topic) as beside,
            ):
                reading = asyncio.create_task(anext(first))
                async with other.subscribe(topic, name=name, durable=True) as second:
                    with pytest.raises(ensue.SubscriptionLost, match="another process"):
                        await asyncio.wait_for(reading, 30)
                    for number in range(3):
                        await one.publish(topic, b"%d" % number)
                    got = [event.payload for event in await take(second, 3)]
                    assert got == [b"0", b"1", b"2"]
                    assert [event.payload for event in await take(beside, 3)] == got

        asyncio.run(main())


def test_subscription_behind_retention_gets_retained_events_and_reports_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ensue.server.station_builder.RETAIN_EVERY_S", 0.01)
    retention = Retention(bytes=40_000, segment_bytes=10_000)
    config = ServerConfig(data=str(tmp_path / "d"), listen="127.0.0.1:0", retention=retention)

    async def main() -> None:
        server = Server(config)
        await server.start()
        station = server.station
        assert station is not None
        async with ensue.connect(server.url) as bus:
            async with bus.subscribe("t", name="slow", durable=True) as events:
                await bus.publish("t", b"1")
                await take(events, 1)
            for number in range(2, 201):
                # One by one: together they would be in one segment, and dropped together.
                await bus.publish("t", b"%d" % number + bytes(1_000))
            await until(lambda: station.log.bounds()["t"][0] > 100, "old events are dropped")
            async with bus.subscribe("t", name="slow", durable=True) as events:
                await until(lambda: bool(events.missed), "it is told")
                await bus.publish("t", b"201" + bytes(1_000))
                (told,) = events.missed
                assert (told.topic, told.first) == ("t", 2)
                last = told.last
                assert 100 <= last < 200
                got = await take(events, 201 - last)
                assert [int(each.payload.rstrip(b"\0")) for each in got] == [*range(last + 1, 202)]
                assert [each.position for each in got] == [*range(2, 203 - last)]
        await server.stop()

    asyncio.run(main())


@pytest.mark.parametrize("way", ["closed", "shut"])
def test_enter_ended_by_another_caller_raises_and_cancels_no_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    config = ServerConfig(data=str(tmp_path / "d"), listen="127.0.0.1:0")

    async def main() -> None:
        server = Server(config)
        await server.start()
        # From now on the server does not answer.
        monkeypatch.setattr(server.listener, "enter_name", lambda *_: None)
        carrier = TcpCarrier(TcpOptions.parse(server.url), client="c")
        await carrier.start()

        async def enter() -> str:
            with pytest.raises(ensue.TransportError) as caught:
                await carrier.open("name", lambda _data: None)
            return str(caught.value)

        async with asyncio.TaskGroup() as group:
            entering = group.create_task(enter())
            await asyncio.sleep(0.05)
            assert not entering.done()
            await (carrier.close() if way == "closed" else carrier.shut("name"))
        said = "the bus was closed before" if way == "closed" else "'name' was closed before"
        assert entering.result().startswith(said)
        await carrier.close()
        await server.stop()

    asyncio.run(main())
