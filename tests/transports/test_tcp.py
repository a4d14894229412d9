"""`ensue://` does what every transport does."""

import asyncio
import socket

import pytest
from tests.transports.remote_suite import RemoteSuite, fresh
from tests.transports.stations import StationThread, tcp_station
from tests.transports.suite import take

import ensue


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

    def test_a_name_that_was_taken_over_is_not_taken_back(self) -> None:
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
