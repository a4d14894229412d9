"""`amqp://`: inboxes and topics on an AMQP 0-9-1 broker, such as RabbitMQ.

`amqp://[USER:PASSWORD@]HOST:5672[/VHOST]`, with these options:
- `prefix`: first part of every exchange's name (ensue). Carriers with different prefixes are
  separate.
- `confirms`: 1 waits for the broker to confirm each batch, and retransmits batches that were not
  confirmed before the connection was lost, so messages may arrive twice (0).

A prefix has two durable direct exchanges, `PREFIX.i` for inboxes and `PREFIX.t` for topics. Each
carrier has one exclusive queue, which ends with its connection. An inbox or topic is a binding of
that queue with the name as the routing key: a direct exchange compares whole keys and has no
wildcards. Messages of one carrier keep their order while the connection lasts. Messages to a
disconnected reader are lost, as are messages in flight when the connection ends.

HAZARD: the queue of a slow reader holds up to `QUEUE_BYTES_MAX`; beyond that the broker silently
drops the oldest messages.
"""

import asyncio
import math
from collections.abc import Collection, Sequence

import msgspec

from ensue.core.errors import HandshakeFailed, MissingExtra, TransportError
from ensue.transports.brokers.address import Address, read_url
from ensue.transports.brokers.base import (
    CONNECT_S,
    INBOX,
    PENDING_BYTES_MAX,
    TOPIC,
    BrokerCarrier,
    Place,
    Session,
)

try:
    import aio_pika
    from aio_pika.abc import AbstractConnection
    from aiormq import Channel
    from aiormq.abc import DeliveredMessage
    from aiormq.exceptions import (
        AuthenticationError,
        ChannelClosed,
        ConnectionClosed,
        ProbableAuthenticationError,
    )
    from pamqp.commands import Basic
except ImportError as error:
    raise MissingExtra(extra="amqp", needed_for="amqp://") from error

__all__ = ["AmqpCarrier", "AmqpOptions"]

QUEUE_BYTES_MAX = 256 * 1024 * 1024


class AmqpOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of an `amqp://` URL."""

    address: Address
    vhost: str = "/"
    prefix: str = "ensue"
    confirms: bool = False

    @classmethod
    def parse(cls, url: str) -> "AmqpOptions":
        """Parse a URL; raise `BadInput` if it is wrong."""
        address = read_url(url, scheme="amqp", port=5672, tls_port=5671, options=("confirms",))
        return cls(
            address=address,
            vhost=address.path or "/",
            prefix=address.prefix,
            confirms=address.given.switch("confirms"),
        )


class AmqpCarrier(BrokerCarrier):
    """A carrier on the exchanges and queues of an AMQP broker."""

    name = "amqp://"
    how_to_start = "rabbitmq-server (Debian: apt-get install rabbitmq-server)"
    kind = "an AMQP broker"

    def __init__(self, options: AmqpOptions, *, pending_bytes_max: int = PENDING_BYTES_MAX) -> None:
        super().__init__(
            options.address.url,
            repeats=options.confirms,
            pending_bytes_max=pending_bytes_max,
        )
        self.options = options
        self.address = options.address
        self._exchanges = {kind: f"{options.prefix}.{kind}" for kind in (INBOX, TOPIC)}
        self._kinds = {exchange: kind for kind, exchange in self._exchanges.items()}
        self._connection: AbstractConnection | None = None
        self._channel: Channel | None = None
        self._queue = ""

    async def _connect(self, session: Session) -> None:
        address = self.options.address
        context = address.tls.context()

        def lost(_: object, error: BaseException | None) -> None:
            session.lose(error or "the broker closed the connection")

        try:
            self._connection = connection = await aio_pika.connect(
                host=address.host,
                port=address.port,
                login=address.user or "guest",
                password=address.password or "guest",
                virtualhost=self.options.vhost,
                ssl=context is not None,
                ssl_context=context,
                timeout=CONNECT_S,
                client_properties={"connection_name": "ensue"},
                heartbeat=max(1, math.ceil(self.heartbeat_s)),
            )
        except (AuthenticationError, ProbableAuthenticationError) as error:
            raise HandshakeFailed(
                f"{self.url}: the AMQP broker refuses this user or password ({error}): check them"
            ) from None
        except ConnectionClosed as error:
            raise TransportError(
                f"{self.url}: the AMQP broker closed the connection: {error}"
            ) from None
        connection.close_callbacks.add(lost)
        channel = connection.channel(publisher_confirms=self.options.confirms)
        await channel.initialize()
        channel.close_callbacks.add(lost)
        underlay = await channel.get_underlay_channel()
        assert isinstance(underlay, Channel)
        self._channel = underlay
        try:
            for exchange in self._exchanges.values():
                await underlay.exchange_declare(exchange, exchange_type="direct", durable=True)
            declared = await underlay.queue_declare(
                exclusive=True,
                auto_delete=True,
                arguments={"x-max-length-bytes": QUEUE_BYTES_MAX},
            )
        except ChannelClosed as error:
            raise TransportError(
                f"{self.url}: the AMQP broker refuses exchanges or queue: {error}"
            ) from None
        self._queue = declared.queue or ""
        await underlay.basic_consume(self._queue, self._receive, no_ack=True)

    async def _receive(self, message: DeliveredMessage) -> None:
        kind = self._kinds.get(message.exchange or "")
        if kind is not None:
            self._deliver((kind, message.routing_key or ""), message.body)

    async def _read(self, session: Session) -> None:
        # The client calls `_receive`: only wait for the end of the connection.
        await asyncio.shield(session.lost)

    async def _write(self, batch: Sequence[tuple[Place, bytes]]) -> None:
        assert self._channel is not None
        publish, exchanges = self._channel.basic_publish, self._exchanges
        if self.options.confirms:
            # Tasks start in this order, and a lock in the client library keeps it.
            async with asyncio.TaskGroup() as group:
                for (kind, name), data in batch:
                    group.create_task(publish(data, exchange=exchanges[kind], routing_key=name))
            return
        # Shared: the client library would draw a random message id for each message.
        properties = Basic.Properties(delivery_mode=1, message_id="-")
        last = len(batch) - 1
        for number, ((kind, name), data) in enumerate(batch):
            await publish(
                data,
                exchange=exchanges[kind],
                routing_key=name,
                properties=properties,
                # Wait until the socket has accepted all of them.
                wait=number == last,
            )

    async def _subscribe(self, places: Collection[Place]) -> None:
        assert self._channel is not None
        bind, queue = self._channel.queue_bind, self._queue
        *others, (kind, name) = places
        try:
            for other_kind, other in others:
                await bind(queue, self._exchanges[other_kind], other, nowait=True)
            # The broker confirms the last binding after all others.
            await bind(queue, self._exchanges[kind], name)
        except ChannelClosed as error:
            raise TransportError(
                f"{self.url}: the AMQP broker refuses a binding: {error}"
            ) from None

    async def _unsubscribe(self, place: Place) -> None:
        assert self._channel is not None
        kind, name = place
        await self._channel.queue_unbind(self._queue, self._exchanges[kind], name)

    async def _disconnect(self) -> None:
        connection, self._connection, self._channel = self._connection, None, None
        if connection is not None:
            await connection.close()
