"""Permanent connection failures: they raise at once with their cause, and are not retried."""

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.server.helpers import serving, until, within

import ensue
from ensue.cli import pub
from ensue.core import platform
from ensue.core.errors import HandshakeFailed, TransportError
from ensue.transports import peer_probe
from ensue.transports.brokers.address import read_url
from ensue.transports.brokers.base import BrokerCarrier, Place, Session
from ensue.transports.log_throttle import Throttle
from ensue.transports.peer_probe import identify, is_final

ANSWERS = {
    "an HTTP server": b"HTTP/1.0 400 Bad Request\r\n",
    "a Redis server": b"-ERR wrong number of arguments\r\n",
    "an AMQP broker": b"AMQP\x00\x00\x09\x01",
}


@asynccontextmanager
async def answering(answer: bytes, *, first: bytes = b"") -> AsyncIterator[int]:
    """Run a server that may send a banner and answers each line; yield its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(first)
        while await reader.readline():
            writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@asynccontextmanager
async def mqtt_broker(answer: bytes) -> AsyncIterator[int]:
    """Run a broker that answers only CONNECT and closes otherwise; yield its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = await reader.read(2)
        if first[:1] == b"\x10":
            packet = await reader.readexactly(first[1])
            assert packet[:7] == b"\x00\x04MQTT\x05"
            writer.write(answer)
            await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_probe, "SILENT_S", 0.01)
    monkeypatch.setattr(peer_probe, "BANNER_S", 0.01)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("kind", ANSWERS)
def test_wrong_port_fails_at_once_and_names_the_server(kind: str) -> None:
    async def main() -> None:
        async with answering(ANSWERS[kind]) as port:
            assert await identify("127.0.0.1", port) == kind
            with pytest.raises(
                HandshakeFailed, match=f"{kind} answers there, not an Ensue"
            ) as caught:
                await within(ensue.connect(f"ensue://127.0.0.1:{port}").__aenter__())
            assert not caught.value.retriable
            assert isinstance(caught.value, TransportError)

    asyncio.run(main())


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(
    ("banner", "kind"), [(b"INFO {}\r\n", "a NATS"), (b"SSH-2.0-x\r\n", "an SSH")]
)
def test_server_is_identified_by_its_banner(banner: bytes, kind: str) -> None:
    async def main() -> None:
        async with answering(b"", first=banner) as port:
            with pytest.raises(HandshakeFailed, match=f"{kind} server answers there"):
                await within(ensue.connect(f"ensue://127.0.0.1:{port}").__aenter__())

    asyncio.run(main())


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("code", [b"\x00", b"\x87"], ids=["accepted", "not authorized"])
def test_mqtt_broker_is_identified_by_its_connack(code: bytes) -> None:
    async def main() -> None:
        async with mqtt_broker(b"\x20\x03\x00" + code + b"\x00") as port:
            assert await identify("127.0.0.1", port) == "an MQTT broker"
            with pytest.raises(HandshakeFailed, match="an MQTT broker answers there, not an Ensue"):
                await within(ensue.connect(f"ensue://127.0.0.1:{port}").__aenter__())
        async with mqtt_broker(b"\x20") as port:
            assert await identify("127.0.0.1", port) == ""

    asyncio.run(main())


def test_ensue_server_is_identified(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as server:
            assert server.listener is not None
            assert await identify("127.0.0.1", server.listener.port) == peer_probe.ENSUE

    asyncio.run(main())


def test_refused_connection_is_not_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask(_host: str, _port: int) -> str:
        raise AssertionError("no probe is expected")

    monkeypatch.setattr(peer_probe, "identify", ask)

    async def main() -> None:
        with pytest.raises(TransportError, match="no server answers at") as caught:
            await within(ensue.connect("ensue://127.0.0.1:1").__aenter__())
        assert caught.value.retriable

    asyncio.run(main())


def test_command_line_does_not_wait_after_a_permanent_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tries: list[str] = []

    class Failing:
        async def __aenter__(self) -> None:
            tries.append("again")
            raise HandshakeFailed("its certificate can't be trusted")

    monkeypatch.setattr(pub, "connect", lambda *_, **__: Failing())

    async def main() -> None:
        url = "ensue://127.0.0.1:7400"
        await pub.connect_with_retry(url, order=None, name=None, wait_s=60)

    with pytest.raises(HandshakeFailed):
        asyncio.run(main())
    assert tries == ["again"]


# -- Brokers --------------------------------------------------------------------------------------


class Broken(BrokerCarrier):
    """A carrier whose client library fails with a given exception."""

    name = "broken://"
    how_to_start = "mend it"
    kind = "a broken broker"

    def __init__(self, failure: Exception | None, port: int = 1) -> None:
        super().__init__("broken://somewhere", repeats=False)
        if port != 1:
            self.address = read_url(f"broken://127.0.0.1:{port}", scheme="broken", port=1)
        self._failure = failure

    async def _connect(self, session: Session) -> None:
        if self._failure is not None:
            raise self._failure
        await asyncio.shield(session.lost)

    async def _read(self, session: Session) -> None: ...

    async def _write(self, batch: Sequence[tuple[Place, bytes]]) -> None: ...

    async def _subscribe(self, places: Collection[Place]) -> None: ...

    async def _unsubscribe(self, place: Place) -> None: ...

    async def _disconnect(self) -> None: ...


def test_tls_failure_behind_a_library_error_is_final() -> None:
    unknown = ssl.SSLCertVerificationError(1, "certificate verify failed")
    unknown.verify_code, unknown.verify_message = 19, "self-signed certificate"
    failure = RuntimeError("no connection")
    failure.__cause__ = unknown

    async def main() -> None:
        with pytest.raises(HandshakeFailed, match=r"self-signed certificate: .*ca=FILE"):
            await within(Broken(failure).start())
        with pytest.raises(TransportError, match=r"answers there \(away\)") as caught:
            await within(Broken(RuntimeError("away")).start())
        assert caught.value.retriable

    asyncio.run(main())


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("failure", [None, RuntimeError("can't be read")])
def test_server_of_another_kind_is_named(failure: Exception | None) -> None:
    async def main() -> None:
        async with answering(ANSWERS["an HTTP server"]) as port:
            with pytest.raises(HandshakeFailed, match="an HTTP server answers there, not a broken"):
                await within(Broken(failure, port).start())

    asyncio.run(main())


@pytest.mark.parametrize(
    ("error", "final"),
    [
        (ssl.SSLCertVerificationError(1, "no"), True),
        (ssl.SSLError(1, "wrong version number"), True),
        (ssl.SSLEOFError(8, "eof"), False),
        (ConnectionResetError(), False),
        (None, False),
    ],
)
def test_tls_error_of_a_closing_server_is_not_final(error: Exception | None, final: bool) -> None:
    assert is_final(error) == final


# -- Log lines ------------------------------------------------------------------------------------


def test_repeated_lines_are_logged_once_per_period_with_a_count(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now_s = [0.0]
    throttle = Throttle(logging.getLogger("ensue"), period_s=60, keys_max=2, clock=lambda: now_s[0])
    for at_s in (0, 1, 59, 60, 61):
        now_s[0] = at_s
        throttle.log("a", logging.WARNING, "no TLS", fault="tls")
    throttle.log("b", logging.WARNING, "other")
    assert caplog.messages == ["no TLS", "no TLS (and 2 more like it in 60 s)", "other"]
    assert vars(caplog.records[0])["fault"] == "tls"
    throttle.log("c", logging.WARNING, "third")
    throttle.log("a", logging.WARNING, "no TLS")  # Evicted: there were too many kinds.
    assert caplog.messages[3:] == ["third", "no TLS"]


def test_failing_client_does_not_flood_the_servers_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with serving(tmp_path) as server:
            listener = server.listener
            assert listener is not None
            for _ in range(30):
                _, writer = await asyncio.open_connection("127.0.0.1", listener.port)
                writer.write(b"GET / HTTP/1.0\r\n\r\n")
                await writer.drain()
                writer.close()
            await until(lambda: listener.errors["protocol"] == 30, "all of them are counted")

    asyncio.run(main())
    assert sum("fault" in vars(each) for each in caplog.records) == 1


def test_flapping_connection_backs_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    def shortest(_low: float, high: float) -> float:
        pauses.append(high)
        return 0.0

    monkeypatch.setattr(platform.current(), "uniform", shortest)

    async def main() -> None:
        async with serving(tmp_path) as server, ensue.connect(server.url) as bus:
            hub: Any = bus._hub
            (link,) = hub.transport.carrier._links.values()
            for _ in range(6):
                await until(lambda: link.connection is not None)
                lost = link.connection
                lost.abort()
                await until(lambda lost=lost: link.connection is not lost)  # type: ignore[misc]
            await within(bus.publish("t"))

    asyncio.run(main())
    assert pauses == sorted(pauses)
    assert len(set(pauses)) > 2
