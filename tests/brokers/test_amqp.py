from typing import Any

import pytest
from tests.brokers.bus_suite import BusSuite
from tests.brokers.carrier_suite import CarrierSuite, missing_extra

from ensue.core.errors import BadInput
from ensue.transports.brokers.amqp import AmqpCarrier, AmqpOptions
from ensue.transports.brokers.base import BrokerCarrier


class AmqpSuite(CarrierSuite):
    server_fixture = "rabbitmq_server"

    def carrier(self, url: str, **settings: Any) -> BrokerCarrier:
        return AmqpCarrier(AmqpOptions.parse(url), **settings)


class TestAmqp(AmqpSuite):
    pass


class TestAmqpConfirmed(AmqpSuite):
    options = "confirms=1"


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("amqp://", "the host is missing; expected amqp://HOST:5672"),
        ("amqp://a:x", "could not be cast to integer"),
        ("amqp://a?confirms=2", "confirms must be 0 or 1, got '2'"),
        ("amqp://a?prefix=a.b", "prefix must be 1 to 32 letters, digits"),
        ("amqp://a?qos=1", "no option 'qos'; expected confirms, prefix, tls, ca, cert or key"),
        ("amqps://a", "starts with amqps://; expected amqp://HOST:5672"),
    ],
)
def test_a_bad_url_is_refused_in_words(url: str, complaint: str) -> None:
    with pytest.raises(BadInput, match=complaint):
        AmqpOptions.parse(url)


def test_a_url_is_read() -> None:
    options = AmqpOptions.parse("amqp://me:hush@a:1/%2Fshop?confirms=1&prefix=p")
    address = options.address
    assert (address.host, address.port, address.user, address.password) == ("a", 1, "me", "hush")
    assert (options.vhost, options.prefix, options.confirms) == ("/shop", "p", True)
    for url in ("amqp://a", "amqp://a/", "amqp://a/%2F"):
        assert AmqpOptions.parse(url).vhost == "/"


@pytest.mark.parametrize("client", ["aio_pika", "aiormq", "pamqp"])
def test_missing_client_library_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, client: str
) -> None:
    said = missing_extra("ensue.transports.brokers.amqp", client)(monkeypatch)
    assert said == "amqp:// needs an extra: pip install 'ensue[amqp]'"


class TestAmqpBus(BusSuite):
    server_fixture = "rabbitmq_server"


class TestAmqpConfirmedBus(BusSuite):
    server_fixture = "rabbitmq_server"
    options = "confirms=1"
