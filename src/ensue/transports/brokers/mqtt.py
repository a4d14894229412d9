"""`mqtt://`: inboxes and topics on an MQTT 5 broker, such as Mosquitto.

`mqtt://[USER:PASSWORD@]HOST:1883`, with these options:
- `prefix`: first level of every topic (ensue). Carriers with different prefixes are separate.
- `qos`: 0 sends each message once; 1 retransmits messages that were not acknowledged before the
  connection was lost, so they may arrive twice (0).

An inbox or a topic is a topic of the broker, `PREFIX/i/NAME` or `PREFIX/t/NAME`, the name escaped.
Messages of one carrier keep their order while the connection lasts. Sessions are clean: messages
to a disconnected reader are lost, also with `qos=1`.

HAZARD: Mosquitto queues 1,000 messages with QoS 1 for a client that acknowledges slowly, and
silently drops the rest: of 10,000 sent at once, about 3,000. `max_queued_messages 0` in its
configuration removes the limit; the tests run with it.
"""

import asyncio
import math
import socket
from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from ensue.core import platform
from ensue.core.errors import BadInput, HandshakeFailed, MissingExtra, TransportError
from ensue.transports.brokers.address import Address, escape, read_url
from ensue.transports.brokers.base import PENDING_BYTES_MAX, BrokerCarrier, Place, Session

try:
    from aiomqtt import Client, Message, MqttCodeError, MqttError, ProtocolVersion
    from paho.mqtt.client import Client as PahoClient
    from paho.mqtt.client import ConnectFlags, DisconnectFlags
    from paho.mqtt.properties import Properties
    from paho.mqtt.reasoncodes import ReasonCode
    from paho.mqtt.subscribeoptions import SubscribeOptions
except ImportError as error:
    raise MissingExtra(extra="mqtt", needed_for="mqtt://") from error

__all__ = ["MqttCarrier", "MqttOptions"]

PACKET_BYTES_MAX = 256 * 1024 * 1024 - 1
"""The protocol's limit, if the broker states none."""
PACKET_BYTES_OVERHEAD = 1024
"""More than the longest topic and the headers around a message."""
SUBSCRIPTIONS_MAX = 100
"""Topics subscribed to in one packet."""
ANSWER_S = 10.0
IN_FLIGHT_MAX = 20
"""Messages that wait for the broker's acknowledgement; Mosquitto accepts no more."""


class MqttOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of an `mqtt://` URL."""

    address: Address
    prefix: str = "ensue"
    qos: int = 0

    @classmethod
    def parse(cls, url: str) -> "MqttOptions":
        """Parse a URL; raise `BadInput` if it is wrong."""
        address = read_url(url, scheme="mqtt", port=1883, tls_port=8883, options=("qos",))
        if address.path:
            raise BadInput(f"{address.url}: an MQTT URL has no path; expected mqtt://HOST:1883")
        qos = int(address.given.switch("qos"))
        return cls(address=address, prefix=address.prefix, qos=qos)


class _Client(Client):
    """A client that reads the broker's packet limit, which aiomqtt ignores."""

    packet_bytes_max = PACKET_BYTES_MAX

    def _on_connect(
        self,
        client: PahoClient,
        userdata: Any,
        flags: ConnectFlags,
        reason_code: ReasonCode,
        properties: Properties | None = None,
    ) -> None:
        stated = getattr(properties, "MaximumPacketSize", None)
        if stated is not None:
            self.packet_bytes_max = int(stated)
        super()._on_connect(client, userdata, flags, reason_code, properties)

    def _on_disconnect(
        self,
        client: PahoClient,
        userdata: Any,
        flags: DisconnectFlags,
        reason_code: ReasonCode,
        properties: Properties | None = None,
    ) -> None:
        if not self._connected.done():
            # aiomqtt would wait until its timeout.
            self._connected.set_exception(MqttError("connection closed before CONNACK"))
        super()._on_disconnect(client, userdata, flags, reason_code, properties)
        # Retrieve the exception: nothing awaits it while connecting or disconnecting.
        if self._disconnected.done() and not self._disconnected.cancelled():
            self._disconnected.exception()

    def _on_socket_register_write(
        self,
        client: PahoClient,
        userdata: Any,  # noqa: ARG002 - the signature of aiomqtt
        sock: Any,
    ) -> None:
        def write() -> None:
            try:
                client.loop_write()
            except Exception as error:  # noqa: BLE001 - any failure ends the connection
                if not self._disconnected.done():
                    self._disconnected.set_exception(error)

        def register() -> None:
            # aiomqtt would pass the file descriptor. If the connection is lost before the loop
            # uses it, the descriptor is closed by then, or belongs to another socket.
            if sock.fileno() > -1:
                self._loop.add_writer(sock, write)

        # The thread that connects may call this.
        self._loop.call_soon_threadsafe(register)


class MqttCarrier(BrokerCarrier):
    """A carrier on the topics of an MQTT broker."""

    name = "mqtt://"
    how_to_start = "mosquitto -p 1883 (Debian: apt-get install mosquitto)"
    kind = "an MQTT broker"

    def __init__(self, options: MqttOptions, *, pending_bytes_max: int = PENDING_BYTES_MAX) -> None:
        super().__init__(
            options.address.url,
            repeats=options.qos > 0,
            pending_bytes_max=pending_bytes_max,
        )
        self.options = options
        self.address = options.address
        self._client: _Client | None = None
        self._places: dict[str, Place] = {}
        """By topic of the broker: subscribed places."""

    def _topic(self, place: Place) -> str:
        return f"{self.options.prefix}/{place[0]}/{escape(place[1])}"

    async def _connect(self, session: Session) -> None:  # noqa: ARG002 - others use it
        address = self.options.address
        hand, places = self._deliver, self._places

        class DeliveryQueue(asyncio.Queue[Message]):
            """Delivers messages at once; aiomqtt would need a task for each."""

            def put_nowait(self, item: Message) -> None:
                place = places.get(item.topic.value)
                if place is not None and isinstance(item.payload, bytes | bytearray):
                    hand(place, bytes(item.payload))

        places.clear()
        self._client = client = _Client(
            address.host,
            address.port,
            username=address.user or None,
            password=address.password or None,
            identifier=f"ensue-{platform.current().token_hex(8)}",
            protocol=ProtocolVersion.V5,
            tls_context=address.tls.context(),
            clean_start=True,
            timeout=ANSWER_S,
            keepalive=max(1, math.ceil(self.heartbeat_s)),
            max_inflight_messages=IN_FLIGHT_MAX,
            queue_type=DeliveryQueue,
            socket_options=[(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)],
        )
        # aiomqtt would warn of a batch of pending messages.
        client.pending_calls_threshold = 1_000_000
        # It connects in a thread, which can't be cancelled: clean up later if this task is.
        entering = asyncio.ensure_future(client.__aenter__())
        try:
            await asyncio.shield(entering)
        except asyncio.CancelledError:
            entering.add_done_callback(lambda done: _abandon(client, done))
            raise
        except MqttCodeError as error:
            code = error.rc.value if isinstance(error.rc, ReasonCode) else error.rc
            if code not in (134, 135):
                raise
            raise HandshakeFailed(
                f"{self.url}: the MQTT broker refuses this user or password ({error.rc}): "
                "check them"
            ) from None
        self._limit_messages(client.packet_bytes_max - PACKET_BYTES_OVERHEAD)

    async def _read(self, session: Session) -> None:  # noqa: ARG002 - others use it
        assert self._client is not None
        async for _ in self._client.messages:
            """Never runs: `DeliveryQueue` delivers. The loop ends with the connection."""

    async def _write(self, batch: Sequence[tuple[Place, bytes]]) -> None:
        assert self._client is not None
        publish, qos = self._client.publish, self.options.qos
        if qos == 0:
            for place, data in batch:
                # Waits only when the socket is full.
                await publish(self._topic(place), data, 0, timeout=math.inf)
        else:
            # Tasks start in this order, and pass their message to the client library at once.
            async with asyncio.TaskGroup() as group:
                for place, data in batch:
                    group.create_task(publish(self._topic(place), data, qos, timeout=math.inf))

    async def _subscribe(self, places: Collection[Place]) -> None:
        assert self._client is not None
        topics = {self._topic(place): place for place in places}
        self._places.update(topics)
        options = SubscribeOptions(qos=self.options.qos)
        asked = list(topics)
        for start in range(0, len(asked), SUBSCRIPTIONS_MAX):
            part = asked[start : start + SUBSCRIPTIONS_MAX]
            codes = await self._client.subscribe([(topic, options) for topic in part])
            for topic, code in zip(part, codes, strict=True):
                if isinstance(code, ReasonCode) and code.is_failure:
                    raise TransportError(
                        f"{self.url}: the MQTT broker refuses to open {topics[topic][1]!r}: {code}"
                    )

    async def _unsubscribe(self, place: Place) -> None:
        assert self._client is not None
        topic = self._topic(place)
        self._places.pop(topic, None)
        await self._client.unsubscribe(topic)

    async def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is None:
            return
        try:
            await client.__aexit__(None, None, None)
        finally:
            _close_socket(client)


def _abandon(client: Client, entering: asyncio.Future[Any]) -> None:
    if not entering.cancelled():
        entering.exception()
    _close_socket(client)


def _close_socket(client: Client) -> None:
    """Close the socket that aiomqtt leaves open when a broker stops answering."""
    client._client._sock_close()  # noqa: SLF001 - not public
