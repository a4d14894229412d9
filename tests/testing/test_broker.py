"""Simulated brokers: each loses, repeats and keeps what the real one does."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import pytest

import ensue
from ensue.core.errors import ConfigurationError, HandshakeFailed
from ensue.runtime.status import chain_status
from ensue.server.brokered import BrokeredServer
from ensue.server.config import ServerConfig
from ensue.testing import Broker, Faults, Process, Simulation, simulate
from ensue.testing.network import Network, NetworkOptions
from ensue.transports.brokers.base import INBOX, TOPIC, BrokerCarrier
from ensue.transports.brokers.nats import NatsCarrier
from ensue.transports.schemes import BrokerOptions, parse_url

PLAIN = ("nats", "redis", "mqtt", "amqp")
SAFE = ("nats?jetstream=1", "redis?streams=1", "mqtt?qos=1", "amqp?confirms=1")
STORED = {(TOPIC, "nats?jetstream=1"), (TOPIC, "redis?streams=1"), (INBOX, "redis?streams=1")}
"""Kinds of places that a broker stores."""
CONFIRMED = {(kind, each) for kind in (INBOX, TOPIC) for each in SAFE} - {(INBOX, SAFE[0])}
"""Kinds of places whose messages are written again until the broker confirms them."""

USUAL = NetworkOptions()

each_profile = pytest.mark.parametrize("profile", PLAIN + SAFE)
each_kind = pytest.mark.parametrize("kind", [INBOX, TOPIC])


class Client:
    """A process with a carrier; the test calls its methods from the main process."""

    def __init__(self, simulation: Simulation, name: str, url: str) -> None:
        self.got: list[bytes] = []
        self.reconnects = 0
        self.carrier: BrokerCarrier
        self.process: Process = simulation.start(name, self._run, url)

    async def _run(self, url: str) -> None:
        options = parse_url(url)
        assert isinstance(options, BrokerOptions)
        carrier = options.make()
        assert isinstance(carrier, BrokerCarrier)
        await carrier.start()
        if self.process.name == "reader":
            await carrier.open("reader", self.got.append)
            await carrier.join("news", self.got.append)
        carrier.on_reconnect = self._count
        self.carrier = carrier
        await asyncio.get_running_loop().create_future()

    def _count(self) -> None:
        self.reconnects += 1

    def send(self, kind: str, *messages: bytes) -> None:
        """Send from the client's own event loop."""

        def send() -> None:
            for message in messages:
                if kind == INBOX:
                    self.carrier.send("reader", message)
                else:
                    self.carrier.multicast("news", message)

        self.process.loop.call_soon(send)


class Stage(NamedTuple):
    """What a program of a test acts on."""

    network: Network
    broker: Broker
    reader: Client
    writer: Client


def play(
    profile: str,
    program: Callable[["Stage"], Awaitable[None]],
    *,
    network: NetworkOptions = USUAL,
    **options: Any,
) -> None:
    """Run a program with a broker, a reader and a writer."""

    async def main(simulation: Simulation) -> None:
        kind, mark, option = profile.partition("?")
        broker = await simulation.broker(kind, **options)
        url = f"{broker.url}{mark}{option}"
        reader = Client(simulation, "reader", url)
        writer = Client(simulation, "writer", url)
        await asyncio.sleep(1)
        await program(Stage(simulation.world.network, broker, reader, writer))

    simulate(main, seed=1, network=network)


@each_profile
@each_kind
def test_messages_of_one_connection_arrive_once_and_in_sequence(profile: str, kind: str) -> None:
    sent = [b"%d" % number for number in range(200)]

    async def program(stage: Stage) -> None:
        stage.writer.send(kind, *sent)
        await asyncio.sleep(5)
        assert stage.reader.got == sent

    play(profile, program)


@each_profile
@each_kind
def test_disconnected_reader_misses_what_is_not_stored(profile: str, kind: str) -> None:
    async def program(stage: Stage) -> None:
        network = stage.network
        network.reset("reader")
        network.cut(["reader"], ["broker"])
        await asyncio.sleep(0.5)
        stage.writer.send(kind, b"meanwhile")
        await asyncio.sleep(0.5)
        network.heal()
        await asyncio.sleep(5)
        stage.writer.send(kind, b"later")
        await asyncio.sleep(5)
        assert stage.reader.reconnects == 1
        missed = [] if (kind, profile) not in STORED else [b"meanwhile"]
        assert stage.reader.got == [*missed, b"later"]

    play(profile, program)


@each_profile
@each_kind
def test_lost_message_is_written_again_if_the_broker_confirms(profile: str, kind: str) -> None:
    async def program(stage: Stage) -> None:
        network = stage.network
        network.cut(["writer"], ["broker"])
        stage.writer.send(kind, b"in flight")
        await asyncio.sleep(0.5)
        network.reset("writer")
        await asyncio.sleep(0.5)
        network.heal()
        await asyncio.sleep(5)
        stage.writer.send(kind, b"later")
        await asyncio.sleep(5)
        lost = [] if (kind, profile) not in CONFIRMED else [b"in flight"]
        assert stage.reader.got == [*lost, b"later"]

    play(profile, program)


@each_profile
@each_kind
def test_message_is_repeated_if_its_confirmation_is_lost(profile: str, kind: str) -> None:
    async def program(stage: Stage) -> None:
        network = stage.network
        network.cut(["broker"], ["writer"], one_way=True)
        stage.writer.send(kind, b"again")
        await asyncio.sleep(0.5)
        network.reset("writer")
        await asyncio.sleep(0.5)
        network.heal()
        await asyncio.sleep(5)
        assert stage.reader.got == [b"again"] * (2 if (kind, profile) in CONFIRMED else 1)

    play(profile, program)


@pytest.mark.parametrize("profile", ["redis", *SAFE])
def test_messages_for_a_minute_of_a_slow_link_arrive_once_in_one_session(profile: str) -> None:
    sent = [b"%4d" % number + bytes(1_000) for number in range(1_200)]

    async def program(stage: Stage) -> None:
        stage.writer.send(TOPIC, *sent)
        await asyncio.sleep(120)
        assert stage.reader.got == sent
        assert stage.writer.reconnects == 0

    play(profile, program, network=NetworkOptions(bytes_per_s=20_000, queues=True))


@pytest.mark.parametrize(
    ("profile", "options", "survives"),
    [
        *((each, {}, False) for each in PLAIN),
        ("nats?jetstream=1", {}, True),
        ("redis?streams=1", {}, False),
        ("redis?streams=1", {"keeps_streams": True}, True),
        ("mqtt?qos=1", {}, False),
        ("amqp?confirms=1", {}, False),
    ],
)
def test_killed_broker_forgets_what_it_does_not_keep(
    profile: str, options: dict[str, Any], survives: bool
) -> None:
    async def program(stage: Stage) -> None:
        network = stage.network
        network.reset("reader")
        network.cut(["reader"], ["broker"])
        await asyncio.sleep(0.5)
        stage.writer.send(TOPIC, b"before")
        await asyncio.sleep(0.5)
        stage.broker.process.kill()
        await asyncio.sleep(0.5)
        stage.broker.process.restart()
        network.heal()
        await asyncio.sleep(10)
        stage.writer.send(TOPIC, b"after")
        await asyncio.sleep(5)
        assert stage.reader.got == ([b"before"] if survives else []) + [b"after"]

    play(profile, program, **options)


@pytest.mark.parametrize("profile", PLAIN)
def test_broker_bounds_what_it_queues_for_a_slow_reader(profile: str) -> None:
    sent = [b"%04d" % number + bytes(3_000) for number in range(400)]

    async def program(stage: Stage) -> None:
        stage.reader.process.pause()
        stage.writer.send(INBOX, *sent)
        await asyncio.sleep(1)
        stage.reader.process.resume()
        await asyncio.sleep(10)
        assert stage.reader.got[:50] == sent[:50], "what the network had taken"
        assert len(stage.reader.got) < len(sent)
        if profile in ("nats", "redis"):
            assert stage.reader.reconnects == 1
            assert stage.reader.got == sent[: len(stage.reader.got)]
        else:
            assert stage.reader.reconnects == 0
            assert (sent[-1] in stage.reader.got) == (profile == "amqp")

    play(profile, program, queue_bytes_max=100_000)


def test_stream_keeps_its_newest_messages() -> None:
    async def program(stage: Stage) -> None:
        network = stage.network
        network.reset("reader")
        network.cut(["reader"], ["broker"])
        await asyncio.sleep(0.5)
        stage.writer.send(TOPIC, *(b"%d" % number for number in range(10)))
        await asyncio.sleep(0.5)
        network.heal()
        await asyncio.sleep(5)
        assert stage.reader.got == [b"7", b"8", b"9"]

    play("nats?jetstream=1", program, stored_max=3)


@pytest.mark.parametrize("profile", PLAIN)
def test_broker_disconnects_silent_clients_of_mqtt_and_amqp(profile: str) -> None:
    async def program(stage: Stage) -> None:
        before = stage.network.connections("broker")
        stage.reader.process.pause()
        await asyncio.sleep(14)
        gone = before - stage.network.connections("broker")
        assert gone == (profile in ("mqtt", "amqp"))

    play(profile, program)


@pytest.mark.parametrize("profile", PLAIN)
def test_client_notices_a_paused_broker_and_reconnects(profile: str) -> None:
    async def program(stage: Stage) -> None:
        stage.broker.process.pause()
        await asyncio.sleep(20)
        assert not stage.reader.carrier._up.is_set()
        stage.broker.process.resume()
        await asyncio.sleep(20)
        stage.writer.send(TOPIC, b"later")
        await asyncio.sleep(5)
        assert stage.reader.got == [b"later"]
        assert stage.reader.reconnects == 1

    play(profile, program)


def test_wrong_kind_of_broker_is_named() -> None:
    async def connect(url: str) -> None:
        with pytest.raises(HandshakeFailed, match="a NATS server answers there, not a Redis"):
            async with ensue.connect(url):
                pass

    async def main(simulation: Simulation) -> None:
        broker = await simulation.broker("nats")
        await simulation.start("client", connect, broker.url.replace("nats://", "redis://"))

    simulate(main)


def test_unknown_kind_of_broker_is_refused() -> None:
    async def main(simulation: Simulation) -> None:
        with pytest.raises(ValueError, match="no simulated broker 'kafka'; expected nats, redis"):
            await simulation.broker("kafka")

    simulate(main)


def test_urls_lead_to_real_brokers_after_a_simulation() -> None:
    async def main(_simulation: Simulation) -> None: ...

    simulate(main)
    options = parse_url("nats://localhost")
    assert isinstance(options, BrokerOptions)
    assert options.carrier is NatsCarrier


@each_profile
def test_chain_on_a_broker_loses_no_event_to_its_faults(profile: str) -> None:
    seen: list[bytes] = []

    async def read(url: str) -> None:
        async with ensue.connect(url) as bus, bus.subscribe("a", "b") as events:
            async for event in events:
                seen.append(event.payload)  # noqa: PERF401 - the loop never ends

    async def write(url: str) -> None:
        async with ensue.connect(url) as bus:
            for number in range(20):
                await bus.publish("ab"[number % 2], b"%d" % number)

    async def main(simulation: Simulation) -> None:
        kind, mark, option = profile.partition("?")
        url = (await simulation.broker(kind)).url + mark + option
        servers = await simulation.serve("one", "two", broker=url, topics=("a", "b"))
        assert servers.url("one") == url
        simulation.start("reader", read, url)
        await asyncio.sleep(1)
        writer = simulation.start("writer", write, url)
        await asyncio.sleep(0.1)
        simulation.strike()
        await writer
        await simulation.heal()
        await asyncio.sleep(30)
        assert seen == [b"%d" % number for number in range(20)]

    faults = Faults(broker_kills=30, broker_pauses=10, slow_brokers=30, resets=30)
    simulate(main, seed=2, faults=faults)


def test_station_on_a_broker_reports_its_status_and_keeps_its_name() -> None:
    async def status(url: str) -> list[tuple[str, bool]]:
        found = await chain_status(url)
        return [(server["server"], "error" in server) for server in found["servers"]]

    async def claim(url: str) -> None:
        server = BrokeredServer(ServerConfig(data="/data", name="station"), url)
        with pytest.raises(ConfigurationError, match="a station 'station' already answers"):
            await server.start()

    async def main(simulation: Simulation) -> None:
        broker = await simulation.broker("mqtt")
        await simulation.serve("station", broker=broker.url)
        assert await simulation.start("operator", status, broker.url) == [("station", False)]
        await simulation.start("second", claim, broker.url)

    simulate(main)
