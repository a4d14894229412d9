import asyncio
from typing import Any

import pytest
from tests.brokers.carrier_suite import CarrierSuite, missing_extra
from tests.brokers.servers import Server

from ensue.errors import BadInput
from ensue.transports.broker import BrokerCarrier
from ensue.transports.nats import NatsCarrier, NatsOptions


class NatsSuite(CarrierSuite):
    server_fixture = "nats_server"

    def carrier(self, url: str, **settings: Any) -> BrokerCarrier:
        return NatsCarrier(NatsOptions.parse(url), **settings)


class TestNats(NatsSuite):
    pass


class TestJetStream(NatsSuite):
    options = "jetstream=1"
    topic_resumes = True

    def test_what_was_written_survives_a_restart_while_the_reader_is_away(
        self, server: Server, prefix: str
    ) -> None:
        asyncio.run(self.outlive_a_restart(server, prefix))


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("nats://", "names no host; expected nats://HOST:4222"),
        ("nats://a:x", "could not be cast to integer"),
        ("nats://a:99999", "Port out of range"),
        ("nats://a/b", "a NATS server has no path"),
        ("nats://a#b", "'#' starts nothing here"),
        ("nats://a?jetstream=yes", "jetstream must be 0 or 1, not 'yes'"),
        ("nats://a?tls=", "tls must be 0 or 1, not ''"),
        ("nats://a?prefix=a.b", "prefix must be 1 to 32 letters, digits"),
        ("nats://a?prefix=", "prefix must be 1 to 32 letters, digits"),
        ("nats://a?prefix=a&prefix=b", "prefix is given more than once"),
        ("nats://a?stream=1", "no option 'stream'; expected jetstream, prefix or tls"),
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
    assert (options.prefix, options.jetstream, options.tls) == ("shop", True, True)
    assert NatsOptions.parse("nats://a").address.port == 4222


def test_a_missing_client_is_said_with_the_line_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = missing_extra("ensue.transports.nats", "nats")(monkeypatch)
    assert said == "nats:// needs an extra: pip install 'ensue[nats]'"
