import asyncio
import gc
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest
from nats.aio.client import Client
from tests.brokers.bus_suite import BusSuite
from tests.brokers.carrier_suite import CarrierSuite, Taker, Watch, missing_extra
from tests.brokers.deadlines import until
from tests.brokers.servers import Nats, Server

from ensue.core.errors import BadInput, TransportError
from ensue.transports.brokers.base import BrokerCarrier
from ensue.transports.brokers.nats import STREAM_AGE_S, STREAM_BYTES_MAX, NatsCarrier, NatsOptions
from ensue.transports.brokers.session import Session


class NatsSuite(CarrierSuite):
    server_fixture = "nats_server"

    def carrier(self, url: str, **settings: Any) -> BrokerCarrier:
        return NatsCarrier(NatsOptions.parse(url), **settings)


class TestNats(NatsSuite):
    pass


class TestJetStream(NatsSuite):
    options = "jetstream=1"
    topic_resumes = True

    def test_messages_survive_a_restart_while_the_reader_is_disconnected(
        self, server: Server, prefix: str
    ) -> None:
        asyncio.run(self.outlive_a_restart(server, prefix))


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("nats://", "the host is missing; expected nats://HOST:4222"),
        ("nats://a:x", "could not be cast to integer"),
        ("nats://a:99999", "Port out of range"),
        ("nats://a/b", "a NATS URL has no path"),
        ("nats://a#b", "'#' is not allowed"),
        ("nats://a?jetstream=yes", "jetstream must be 0 or 1, got 'yes'"),
        ("nats://a?tls=", "tls must be 0 or 1, got ''"),
        ("nats://a?prefix=a.b", "prefix must be 1 to 32 letters, digits"),
        ("nats://a?prefix=", "prefix must be 1 to 32 letters, digits"),
        ("nats://a?prefix=a&prefix=b", "prefix is given more than once"),
        (
            "nats://a?stream=1",
            "no option 'stream'; expected jetstream, prefix, tls, ca, cert or key",
        ),
        ("redis://a", "starts with redis://; expected nats://HOST:4222"),
    ],
)
def test_a_bad_url_is_refused_in_words(url: str, complaint: str) -> None:
    with pytest.raises(BadInput, match=complaint):
        NatsOptions.parse(url)


@pytest.mark.parametrize("url", ["nats://me:hush@a:x", "nats://hush@a/b", "nats://me:hush@?x=1"])
def test_a_bad_url_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(BadInput) as caught:
        NatsOptions.parse(url)
    assert "hush" not in str(caught.value)
    assert "***" in str(caught.value)


def test_a_url_is_read() -> None:
    options = NatsOptions.parse("nats://me:h%40sh@[::1]:1?jetstream=1&prefix=shop&tls=1")
    address = options.address
    assert (address.host, address.port, address.user, address.password) == ("::1", 1, "me", "h@sh")
    assert (options.prefix, options.jetstream, options.address.tls.on) == ("shop", True, True)
    assert NatsOptions.parse("nats://a").address.port == 4222


def test_missing_client_library_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = missing_extra("ensue.transports.brokers.nats", "nats")(monkeypatch)
    assert said == "nats:// needs an extra: pip install 'ensue[nats]'"


class TestJetStreamAlone:
    """Failures that only streams have."""

    def test_deleted_stream_is_created_again_without_losing_pending_messages(
        self, nats_server: Server
    ) -> None:
        async def main() -> None:
            nats_server.ensure()
            url = nats_server.url(f"jetstream=1&prefix=t{token_hex(6)}")
            carrier = NatsCarrier(NatsOptions.parse(url))
            await carrier.start()
            try:
                manager = carrier._client.jsm()
                config = (await manager.stream_info(carrier.stream)).config
                assert (config.max_bytes, config.max_age) == (STREAM_BYTES_MAX, STREAM_AGE_S)
                watch, topic = Watch(carrier), Taker()
                await manager.delete_stream(carrier.stream)
                carrier.multicast("t", b"0")
                await watch.wait()
                await carrier.join("t", topic)
                await until(lambda: carrier.pending_bytes == 0, "what was pending is stored")
                stored = (await carrier._client.jsm().stream_info(carrier.stream)).state.messages
                assert stored == 1
                carrier.multicast("t", b"1")
                await topic.wait_for(b"1")
            finally:
                await carrier.close()

        asyncio.run(main())

    def test_server_without_jetstream_is_an_error_with_its_fix(self, tmp_path: Path) -> None:
        if Plain.found() is None:
            pytest.skip(f"{Plain.package} is not installed: `make brokers` installs it")
        server = Plain(tmp_path)
        server.start()

        async def main() -> None:
            carrier = NatsCarrier(NatsOptions.parse(server.url("jetstream=1")))
            with pytest.raises(TransportError, match=r"without JetStream .*nats-server -js"):
                await carrier.start()
            await carrier.close()
            carrier = NatsCarrier(NatsOptions.parse(f"nats://hush@127.0.0.1:{server.port}"))
            inbox = Taker()
            await carrier.start()
            try:
                await carrier.open("a", inbox)
                carrier.send("a", b"by token")
                await inbox.wait_for(b"by token")
                assert carrier.capabilities.message_bytes_max == 2_000_000
            finally:
                await carrier.close()

        try:
            asyncio.run(main())
        finally:
            server.kill()


class Plain(Nats):
    """NATS without JetStream, with a token and its own message limit."""

    def credentials(self) -> str:
        return "hush@"

    def command(self) -> list[str]:
        configuration = self.directory / "nats.conf"
        configuration.write_text(
            "max_payload: 2000000\nauthorization { token: hush }\n", encoding="utf-8"
        )
        address = ("--addr", "127.0.0.1", "--port", str(self.port))
        return [self.found() or self.binary, "-c", str(configuration), *address]


def test_open_returns_when_the_server_has_the_subscription() -> None:
    """The client writes the PING of a flush before a buffered SUB."""
    read: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"x","version":"2.9.0","max_payload":1048576}\r\n')
        while line := await reader.readline():
            read.append(line.split()[0])
            if read[-1] == b"PING":
                writer.write(b"PONG\r\n")
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        carrier = NatsCarrier(NatsOptions.parse(f"nats://127.0.0.1:{port}"))
        await carrier.start()
        try:
            await carrier.open("a", Taker())
            assert b"SUB" in read
            assert b"PING" in read[read.index(b"SUB") :]
        finally:
            await carrier.close()
            server.close()

    asyncio.run(main())


def break_off(client: Client) -> None:
    """Make the next write fail, while more is buffered."""

    async def fail() -> None:
        client._pending.append(b"PING\r\n")
        client._pending_data_size += 6
        raise ConnectionResetError

    client._transport.drain = fail  # type: ignore[union-attr, method-assign]


def test_a_client_that_fails_while_it_closes_is_replaced(nats_server: Server) -> None:
    """Its last write fails: it closes, flushes its buffer, and that fails, too."""

    async def main() -> list[str]:
        wrong: list[str] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: wrong.append(str(context)))
        nats_server.ensure()
        carrier = NatsCarrier(NatsOptions.parse(nats_server.url(f"prefix=t{token_hex(6)}")))
        inbox = Taker()
        await carrier.start()
        try:
            await carrier.open("a", inbox)
            watch = Watch(carrier)
            break_off(carrier._client)
            carrier.send("a", b"lost")
            await watch.wait()
            carrier.send("a", b"comes")
            await inbox.wait_for(b"comes")
        finally:
            await carrier.close()
        # Unretrieved exceptions are reported when they are collected.
        gc.collect()
        await asyncio.sleep(0)
        return wrong

    assert asyncio.run(main()) == []


class TestNatsBus(BusSuite):
    server_fixture = "nats_server"


class TestJetStreamBus(BusSuite):
    server_fixture = "nats_server"
    options = "jetstream=1"


def test_connection_lost_while_connecting_loses_the_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def connect(client: Client, *_: Any, **__: Any) -> None:
        async def fail() -> None:
            raise ConnectionResetError(104, "reset")

        client._reading_task = asyncio.create_task(fail())

    async def create_stream(_: NatsCarrier) -> None:
        await asyncio.sleep(0.01)
        raise TimeoutError

    monkeypatch.setattr(Client, "connect", connect)
    monkeypatch.setattr(Client, "max_payload", 1 << 20)
    monkeypatch.setattr(NatsCarrier, "_create_stream", create_stream)

    async def main() -> tuple[list[str], str]:
        wrong: list[str] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: wrong.append(str(context))
        )
        carrier, session = NatsCarrier(NatsOptions.parse("nats://a?jetstream=1")), Session()
        with pytest.raises(TimeoutError):
            await carrier._connect(session)
        del carrier
        gc.collect()
        await asyncio.sleep(0)
        return wrong, await session.lost

    assert asyncio.run(main()) == ([], "[Errno 104] reset")
