"""Stations on a broker that differ in whether order is causal refuse each other."""

import asyncio
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest
from msgspec.structs import replace
from tests.brokers.deadlines import DEADLINE_S, until
from tests.brokers.servers import Server
from tests.transports.noncausal_suite import EAST, NONCAUSAL, WEST, chain_of_two

import ensue
from ensue.core.errors import AccessDenied, ConfigurationError
from ensue.server.brokered import BrokeredServer
from ensue.server.config import sequenced

BROKERS = ["nats_server", "redis_server", "mosquitto_server", "rabbitmq_server"]
DIFFER = (
    "server 'station-{}' has causal = {}, and server 'station-{}' of the same chain has causal = {}"
)


def url_of(fixture: str, request: pytest.FixtureRequest) -> str:
    broker: Server = request.getfixturevalue(fixture)
    broker.ensure()
    return broker.url(f"prefix=agree-{token_hex(4)}")


async def publish_forever(bus: ensue.Bus) -> None:
    while True:
        await bus.publish(EAST, b"1")


@pytest.mark.parametrize("fixture", BROKERS)
def test_station_that_starts_with_another_choice_than_its_chain_stops(
    fixture: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = url_of(fixture, request)

    async def main() -> None:
        configs = chain_of_two(tmp_path)
        first = BrokeredServer(configs[0], url)
        wrong = BrokeredServer(replace(configs[1], sequencer=sequenced(causal=True)), url)
        second = BrokeredServer(configs[1], url)
        try:
            await first.start()
            await wrong.start()
            with pytest.raises(ConfigurationError, match=DIFFER.format(2, "true", 1, "false")):
                await asyncio.wait_for(wrong.wait(), DEADLINE_S)
            await wrong.stop()
            await second.start()
            async with (
                ensue.connect(url, order=NONCAUSAL) as bus,
                bus.subscribe(EAST, WEST) as events,
                asyncio.timeout(DEADLINE_S),
            ):
                for topic in (EAST, WEST):
                    await bus.publish(topic, topic.encode())
                    assert (await anext(events)).payload == topic.encode()
        finally:
            for station in (wrong, second, first):
                await station.stop()

    asyncio.run(main())


@pytest.mark.parametrize("fixture", BROKERS[:1])
def test_stations_that_differ_drop_frames_of_each_other_and_clients_end(
    fixture: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Neither has just started when it learns of the other.
    real: Any = BrokeredServer._compare_settings
    monkeypatch.setattr(
        BrokeredServer, "_compare_settings", lambda self, *given: real(self, *given[:-1], 2)
    )
    url = url_of(fixture, request)

    async def main() -> None:
        first, second = chain_of_two(tmp_path)
        stations = [
            BrokeredServer(first, url),
            BrokeredServer(replace(second, sequencer=sequenced(causal=True)), url),
        ]
        try:
            for station in stations:
                await station.start()
            for number, said in ((0, (1, "false", 2, "true")), (1, (2, "true", 1, "false"))):
                await until(lambda said=said: DIFFER.format(*said) in caplog.text, f"{number}")  # type: ignore[misc]
                status = stations[number].status
                assert status is not None
                assert status.broker_admission is not None
                assert status.broker_admission.differing == {f"station-{2 - number}"}
            async with ensue.connect(url, order=NONCAUSAL) as bus:
                with pytest.raises(AccessDenied, match=DIFFER.format(1, "false", 2, "true")):
                    await asyncio.wait_for(publish_forever(bus), DEADLINE_S)
        finally:
            for station in stations:
                await station.stop()

    asyncio.run(main())
