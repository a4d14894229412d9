"""Every broker over mutual TLS: untrusted certificates are refused."""

import asyncio
import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.brokers.carrier_suite import Taker
from tests.brokers.servers import Mosquitto, Nats, RabbitMQ, Redis, Server
from tests.server import certificates

from ensue.core.errors import BadInput, TransportError
from ensue.transports.schemes import BrokerOptions, parse_url


class Files:
    """The certificate files of a server."""

    def __init__(self, folder: Path) -> None:
        self.ca = folder / "ca.pem"
        self.cert = folder / "server.pem"
        self.key = folder / "server.key"


class SecureNats(Nats):
    def command(self) -> list[str]:
        files = Files(self.directory / "tls")
        tls = ("--tlsverify", "--tlscacert", str(files.ca))
        own = ("--tlscert", str(files.cert), "--tlskey", str(files.key))
        return [*super().command(), *tls, *own]


class SecureRedis(Redis):
    def command(self) -> list[str]:
        files = Files(self.directory / "tls")
        words = super().command()
        words[words.index("--port")] = "--tls-port"
        own = ("--tls-cert-file", str(files.cert), "--tls-key-file", str(files.key))
        return [*words, "--port", "0", *own, "--tls-ca-cert-file", str(files.ca)]

    def _answers(self) -> bool:
        # It has no data to load, and does not answer without TLS.
        return Server._answers(self)


class SecureMosquitto(Mosquitto):
    def prepare(self) -> None:
        super().prepare()
        files = Files(self.directory / "tls")
        with (self.directory / "mosquitto.conf").open("a", encoding="utf-8") as file:
            file.write(f"cafile {files.ca}\ncertfile {files.cert}\nkeyfile {files.key}\n")
            file.write("require_certificate true\n")


class SecureRabbitMQ(RabbitMQ):
    def prepare(self) -> None:
        super().prepare()
        files = Files(self.directory / "tls")
        configuration = self.directory / "rabbitmq.conf"
        plain = configuration.read_text(encoding="utf-8")
        secure = plain.replace("listeners.tcp.1", "listeners.ssl.1")
        configuration.write_text(
            f"listeners.tcp = none\n{secure}"
            f"ssl_options.cacertfile = {files.ca}\n"
            f"ssl_options.certfile = {files.cert}\n"
            f"ssl_options.keyfile = {files.key}\n"
            "ssl_options.verify = verify_peer\n"
            "ssl_options.fail_if_no_peer_cert = true\n",
            encoding="utf-8",
        )


KINDS: tuple[type[Server], ...] = (SecureNats, SecureRedis, SecureMosquitto, SecureRabbitMQ)


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind.scheme)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    kind: type[Server] = request.param
    if kind.found() is None:
        pytest.skip(f"{kind.package} is not installed: `make brokers` installs it")
    server = kind(tmp_path_factory.mktemp(kind.scheme))
    folder = certificates.make(server.directory / "tls")
    for key in folder.glob("*.key"):
        key.chmod(0o644)
    server.prepare()
    try:
        server.start()
        yield server
    finally:
        server.kill()
        if isinstance(server, RabbitMQ):
            server.end_mapper()


def options_of(server: Server, ca: str, client: str) -> BrokerOptions:
    folder = server.directory / "tls"
    asked = f"ca={folder}/{ca}.pem&cert={folder}/{client}.pem&key={folder}/{client}.key"
    options = parse_url(server.url(asked))
    assert isinstance(options, BrokerOptions)
    return options


def test_messages_pass_with_mutual_tls(server: Server) -> None:
    async def main() -> None:
        carrier, inbox, topic = options_of(server, "ca", "auditor").make(), Taker(), Taker()
        await carrier.start()
        try:
            await carrier.open("a", inbox)
            await carrier.join("t", topic)
            carrier.send("a", b"to one")
            carrier.multicast("t", b"to all")
            await inbox.wait_for(b"to one")
            await topic.wait_for(b"to all")
        finally:
            await carrier.close()

    asyncio.run(main())


# paho-mqtt leaves the socket of a failed handshake to the garbage collector: collect it here.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("ca", "client"), [("stranger", "auditor"), ("ca", "mallory")], ids=["server", "client"]
)
def test_untrusted_certificate_is_refused(server: Server, ca: str, client: str) -> None:
    async def main() -> None:
        carrier = options_of(server, ca, client).make()
        try:
            with pytest.raises(TransportError) as refused:
                await carrier.start()
        finally:
            await carrier.close()
        assert server.scheme in str(refused.value)

    asyncio.run(main())
    gc.collect()


@pytest.mark.parametrize("scheme", ["rediss", "mqtts", "amqps", "natss", "ensues"])
def test_tls_scheme_of_other_clients_names_tls_option(scheme: str) -> None:
    with pytest.raises(BadInput, match=rf"for TLS write {scheme[:-1]}://HOST\?tls=1"):
        parse_url(f"{scheme}://me:hush@a")


def test_default_port_with_tls() -> None:
    ports = {}
    for scheme in ("nats", "redis", "mqtt", "amqp"):
        options = parse_url(f"{scheme}://h?tls=1")
        assert isinstance(options, BrokerOptions)
        ports[scheme] = options.make().options.address.port  # type: ignore[attr-defined]
    assert ports == {"nats": 4222, "redis": 6379, "mqtt": 8883, "amqp": 5671}
