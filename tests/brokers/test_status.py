"""`ensue status` on a broker: stations answer the same frames as servers."""

import asyncio
from contextlib import ExitStack
from pathlib import Path
from secrets import token_hex

import pytest
from tests.brokers.servers import Server
from tests.transports.stations import StationThread

import ensue
from ensue.runtime.status import chain_status
from ensue.server import ServerConfig
from ensue.server.brokered import BrokeredServer
from ensue.transports.tcp.messages import Member


@pytest.mark.parametrize("fixture", ["nats_server", "redis_server", "mosquitto_server"])
def test_status_shows_stations_on_a_broker_and_which_is_away(
    fixture: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    broker: Server = request.getfixturevalue(fixture)
    broker.ensure()
    url = broker.url(f"prefix=status-{token_hex(4)}")
    members = (Member("a", "127.0.0.1:1", ("t0",)), Member("b", "127.0.0.1:2", ("t1",)))

    async def publish() -> None:
        async with (
            ensue.connect(url) as bus,
            bus.subscribe("t0", "t1", name="desk", durable=True, acknowledge="manual"),
        ):
            for topic in ("t0", "t1", "t1"):
                await bus.publish(topic, b"1")

    with pytest.raises(ensue.TransportError, match=r"no station answers on .* within 0\.5 s"):
        asyncio.run(chain_status(url, answer_s=0.5))
    with ExitStack() as stack:
        stations = []
        for member in members:
            config = ServerConfig(data=str(tmp_path / member.name), name=member.name, chain=members)
            station = StationThread(lambda config=config: BrokeredServer(config, url))  # type: ignore[misc]
            stack.callback(station.end)
            station.start()
            stations.append(station)
        asyncio.run(publish())
        found = asyncio.run(chain_status(url))
        assert found["complete"]
        assert [(each["server"], each["health"]) for each in found["servers"]] == [
            ("a", "ok"),
            ("b", "ok"),
        ]
        assert {each["topic"]: (each["server"], each["next"]) for each in found["topics"]} == {
            "t0": ("a", 2),
            "t1": ("b", 3),
        }
        (desk,) = found["subscriptions"]
        assert (desk["name"], desk["lag"], desk["lag_is_least"]) == ("desk", 3, False)
        stations[1].stop()
        found = asyncio.run(chain_status(url, answer_s=0.5))
        assert not found["complete"]
        assert found["servers"][0]["health"] == "ok"
        assert found["servers"][1]["error"] == "no answer within 0.5 s"
