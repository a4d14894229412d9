"""A name on a broker belongs to one station: a second one is refused."""

import asyncio
from contextlib import ExitStack
from pathlib import Path
from secrets import token_hex

import pytest
from tests.brokers.servers import Server
from tests.transports.stations import broker_station

import ensue
from ensue.core.errors import ConfigurationError
from ensue.server import ServerConfig
from ensue.server.brokered import BrokeredServer

BROKERS = ["nats_server", "redis_server", "mosquitto_server", "rabbitmq_server"]


@pytest.mark.parametrize("fixture", BROKERS)
def test_second_station_is_refused_until_the_first_is_gone(
    fixture: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    broker: Server = request.getfixturevalue(fixture)
    broker.ensure()
    url = broker.url(f"prefix=claim-{token_hex(4)}")

    async def publish() -> None:
        async with ensue.connect(url) as bus, bus.subscribe("t") as events:
            await bus.publish("t", b"1")
            assert (await anext(events)).payload == b"1"

    async def refused(config: ServerConfig, said: str) -> None:
        server = BrokeredServer(config, url)
        with pytest.raises(ConfigurationError, match=said) as caught:
            await server.start()
        assert "prefix=NAME" in str(caught.value)
        await server.stop()

    with ExitStack() as stack:
        first = broker_station(tmp_path / "first", url)
        stack.callback(first.end)
        first.start()
        same = ServerConfig(data=str(tmp_path / "second"))
        other = ServerConfig(data=str(tmp_path / "third"), name="zz")
        asyncio.run(refused(same, "a station 'node-1' already answers"))
        asyncio.run(refused(other, "the chain that answers is node-1, and this station's is zz"))
        asyncio.run(publish())
        first.stop()
        second = broker_station(tmp_path / "second", url)
        stack.callback(second.end)
        second.start()
        asyncio.run(publish())
