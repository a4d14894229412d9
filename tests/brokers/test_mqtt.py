import asyncio
import gc
import socket
from typing import Any

import pytest
from paho.mqtt.client import DisconnectFlags
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.reasoncodes import ReasonCode
from tests.brokers.bus_suite import BusSuite
from tests.brokers.carrier_suite import CarrierSuite, missing_extra
from tests.brokers.servers import MQTT_PACKET_BYTES_MAX, Server
from tests.server.helpers import within

import ensue
from ensue.core.errors import BadInput, HandshakeFailed
from ensue.transports.brokers.base import BrokerCarrier
from ensue.transports.brokers.mqtt import PACKET_BYTES_OVERHEAD, MqttCarrier, MqttOptions, _Client


class MqttSuite(CarrierSuite):
    server_fixture = "mosquitto_server"

    def carrier(self, url: str, **settings: Any) -> BrokerCarrier:
        return MqttCarrier(MqttOptions.parse(url), **settings)

    def test_message_limit_is_the_brokers(self, server: Server, prefix: str) -> None:
        async def main() -> None:
            async with self.started(server, prefix) as a:
                largest = MQTT_PACKET_BYTES_MAX - PACKET_BYTES_OVERHEAD
                assert a.capabilities.message_bytes_max == largest

        asyncio.run(main())


@pytest.mark.parametrize(
    ("scheme", "wanted"),
    [
        ("ensue", "an Ensue server"),
        ("nats", "a NATS server"),
        ("redis", "a Redis server"),
        ("amqp", "an AMQP broker"),
    ],
)
def test_wrong_scheme_names_the_broker(mosquitto_server: Server, scheme: str, wanted: str) -> None:
    url = f"{scheme}://127.0.0.1:{mosquitto_server.port}"

    async def main() -> None:
        named = f"an MQTT broker answers there, not {wanted}: check the port"
        with pytest.raises(HandshakeFailed, match=named) as caught:
            await within(ensue.connect(url).__aenter__())
        assert not caught.value.retriable

    asyncio.run(main())


def test_socket_closed_before_registration_is_ignored() -> None:
    async def main() -> list[str]:
        wrong: list[str] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: wrong.append(str(context)))
        client = _Client("127.0.0.1")
        lost, other = socket.socketpair()
        client._on_socket_register_write(client._client, None, lost)
        lost.close()
        other.close()
        await asyncio.sleep(0)
        return wrong

    assert asyncio.run(main()) == []


def test_connection_lost_without_a_waiter_is_not_logged() -> None:
    async def main() -> list[str]:
        wrong: list[str] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: wrong.append(str(context)))
        client = _Client("127.0.0.1")
        client._connected.set_result(None)
        reason = ReasonCode(PacketTypes.DISCONNECT, "Unspecified error")
        client._on_disconnect(
            client._client, None, DisconnectFlags(is_disconnect_packet_from_server=False), reason
        )
        lost = client._disconnected
        assert lost.done()
        del client, lost
        gc.collect()
        await asyncio.sleep(0)
        return wrong

    assert asyncio.run(main()) == []


class TestMqttOnce(MqttSuite):
    options = "qos=0"


class TestMqttAcknowledged(MqttSuite):
    options = "qos=1"


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("mqtt://", "the host is missing; expected mqtt://HOST:1883"),
        ("mqtt://a:x", "could not be cast to integer"),
        ("mqtt://a/b", "an MQTT URL has no path"),
        ("mqtt://a?qos=2", "qos must be 0 or 1, got '2'"),
        ("mqtt://a?qos=", "qos must be 0 or 1, got ''"),
        ("mqtt://a?prefix=a/b", "prefix must be 1 to 32 letters, digits"),
        ("mqtt://a?streams=1", "no option 'streams'; expected qos, prefix, tls, ca, cert or key"),
    ],
)
def test_a_bad_url_is_refused_in_words(url: str, complaint: str) -> None:
    with pytest.raises(BadInput, match=complaint):
        MqttOptions.parse(url)


def test_a_url_is_read() -> None:
    options = MqttOptions.parse("mqtt://me:hush@a:1?qos=1&prefix=shop")
    address = options.address
    assert (address.host, address.port, address.user, address.password) == ("a", 1, "me", "hush")
    assert (options.prefix, options.qos) == ("shop", 1)
    assert MqttOptions.parse("mqtt://a").qos == 0


@pytest.mark.parametrize("client", ["aiomqtt", "paho"])
def test_missing_client_library_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, client: str
) -> None:
    said = missing_extra("ensue.transports.brokers.mqtt", client)(monkeypatch)
    assert said == "mqtt:// needs an extra: pip install 'ensue[mqtt]'"


class TestMqttBus(BusSuite):
    server_fixture = "mosquitto_server"


class TestMqttOnceBus(BusSuite):
    server_fixture = "mosquitto_server"
    options = "qos=1"
