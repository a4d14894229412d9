"""`nats://`: inboxes and topics on a NATS server.

`nats://[USER:PASSWORD@|TOKEN@]HOST:4222`, with these options:
- `prefix`: first token of every subject (ensue). Carriers with different prefixes are separate.
- `jetstream`: 1 stores multicast messages in a stream of the server, so that readers of topics
  miss nothing when the connection is lost (0).
- `tls`: 1 encrypts, and trusts the system's certificate authorities (0).

An inbox or a topic is a subject, `PREFIX.i.NAME` or `PREFIX.t.NAME`, the name escaped. Core NATS
keeps the order of one carrier's messages while the connection lasts, and loses messages in flight
when it ends.

With JetStream one stream, `PREFIX-topics`, stores every topic for `STREAM_AGE_S`, up to
`STREAM_BYTES_MAX`, on the server's disk. A batch is retransmitted unless the server confirms that
it is stored, so messages may arrive twice. A new reader starts with the next message; after a
reconnect it resumes after the last delivered one. Inboxes use core NATS, because peers retransmit.

HAZARD: a reader that is disconnected for longer than the stream's limits loses messages.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Any

import msgspec

from ensue.core.errors import BadInput, HandshakeFailed, MissingExtra, TransportError
from ensue.transports.brokers.address import Address, escape, read_url
from ensue.transports.brokers.base import (
    CLOSE_S,
    CONNECT_S,
    PENDING_BYTES_MAX,
    TOPIC,
    BrokerCarrier,
    Place,
    Session,
)

try:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription
    from nats.errors import Error, NoServersError, SlowConsumerError
    from nats.js.api import ConsumerConfig, DeliverPolicy, StreamConfig
    from nats.js.errors import (
        APIError,
        NoStreamResponseError,
        NotFoundError,
        ServiceUnavailableError,
    )
except ImportError as error:
    raise MissingExtra(extra="nats", needed_for="nats://") from error

__all__ = ["NatsCarrier", "NatsOptions"]

STREAM_BYTES_MAX = 256 * 1024 * 1024
STREAM_AGE_S = 3600.0
STORED_S = 5.0
"""How long the server may take to confirm that a batch is stored."""
UNREAD_BYTES_MAX = 256 * 1024 * 1024
UNREAD_MESSAGES_MAX = 1_000_000
"""Limits of received messages that wait in this process; beyond, the client drops."""

_log = logging.getLogger("ensue")


class NatsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a `nats://` URL."""

    address: Address
    prefix: str = "ensue"
    jetstream: bool = False

    @classmethod
    def parse(cls, url: str) -> "NatsOptions":
        """Parse a URL; raise `BadInput` if it is wrong."""
        address = read_url(url, scheme="nats", port=4222, options=("jetstream",))
        if address.path:
            raise BadInput(f"{address.url}: a NATS URL has no path; expected nats://HOST:4222")
        return cls(
            address=address,
            prefix=address.prefix,
            jetstream=address.given.switch("jetstream"),
        )


class NatsCarrier(BrokerCarrier):
    """A carrier on the subjects of a NATS server."""

    name = "nats://"
    how_to_start = "nats-server -p 4222 (Debian: apt-get install nats-server)"
    kind = "a NATS server"

    def __init__(self, options: NatsOptions, *, pending_bytes_max: int = PENDING_BYTES_MAX) -> None:
        super().__init__(
            options.address.url,
            repeats=options.jetstream,
            pending_bytes_max=pending_bytes_max,
        )
        self.options = options
        self.address = options.address
        self.stream = f"{options.prefix}-topics"
        self._client = Client()
        self._subscriptions: dict[Place, Subscription] = {}
        self._delivered: dict[str, int] = {}
        """By topic: the stream sequence of the last delivered message."""

    async def _connect(self, session: Session) -> None:
        options, address = self.options, self.options.address
        self._client = client = Client()
        self._subscriptions = {}

        async def closed() -> None:
            session.lose(client.last_error or "the server closed the connection")

        errors: deque[Exception] = deque(maxlen=1)

        async def failed(error: Exception) -> None:
            errors.append(error)
            level = logging.WARNING if isinstance(error, SlowConsumerError) else logging.DEBUG
            _log.log(level, "client error url=%s: %s", self.url, error)
            if options.jetstream and isinstance(error, SlowConsumerError | APIError):
                # Messages are missing: the next session resumes after the last delivered one.
                session.lose(error)

        try:
            await client.connect(
                f"nats://{_host(address)}:{address.port}",
                name="ensue",
                user=address.user if address.password else None,
                password=address.password or None,
                token=address.user if address.user and not address.password else None,
                tls=address.tls.context(),
                allow_reconnect=False,
                # The client would retry the first connection forever; 1 is its smallest limit.
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                connect_timeout=int(CONNECT_S),
                ping_interval=self.heartbeat_s,  # type: ignore[arg-type]
                closed_cb=closed,
                error_cb=failed,
            )
        except NoServersError:
            raise ConnectionError(str(errors[-1])) from None
        except Error as error:
            if "authorization violation" not in str(error).lower():
                raise
            raise HandshakeFailed(
                f"{self.url}: the NATS server refuses this user, password or token: "
                "check them, or ask for an account"
            ) from None
        # A client that fails while it closes does not report it, but its tasks end. Watch them
        # from now on: the connection may be lost before `_read` is called.
        for task in _tasks(client):
            task.add_done_callback(partial(_lost, session, client))
        self._limit_messages(client.max_payload)
        if options.jetstream:
            await self._create_stream()

    async def _create_stream(self) -> None:
        """Create the stream of all topics unless it exists."""
        config = StreamConfig(
            name=self.stream,
            subjects=[f"{self.options.prefix}.{TOPIC}.>"],
            max_bytes=STREAM_BYTES_MAX,
            max_age=STREAM_AGE_S,
        )
        manager = self._client.jsm()
        try:
            try:
                await manager.stream_info(self.stream)
            except NotFoundError:
                # Another client may have made the same stream first: no error.
                await manager.add_stream(config)
        except ServiceUnavailableError as error:
            raise TransportError(
                f"{self.url}: this NATS server runs without JetStream ({error}): "
                "start it with `nats-server -js`, or leave out jetstream=1"
            ) from error
        except APIError as error:
            raise TransportError(
                f"{self.url}: can't create the stream {self.stream!r}: {error.description}"
            ) from error

    async def _read(self, session: Session) -> None:
        # The client calls the receivers: only wait for the end of the connection.
        await asyncio.shield(session.lost)

    async def _write(self, batch: Sequence[tuple[Place, bytes]]) -> None:
        client, prefix = self._client, self.options.prefix
        last: tuple[str, bytes] | None = None
        for (kind, name), data in batch:
            subject = f"{prefix}.{kind}.{escape(name)}"
            if kind == TOPIC and self.options.jetstream:
                if last is not None:
                    await client.publish(*last)
                last = (subject, data)
            else:
                await client.publish(subject, data)
        if last is None:
            return
        try:
            # The server stores in the order it receives: the last one stored means all stored.
            await client.jetstream().publish(*last, timeout=STORED_S)
        except NoStreamResponseError:
            # The stream was deleted: the next session creates it and retransmits this batch.
            raise
        except APIError as error:
            self.dropped += 1
            _log.warning("batch refused url=%s: %s", self.url, error.description)

    def _reset_position(self, place: Place) -> None:
        if place[0] == TOPIC:
            self._delivered.pop(place[1], None)

    async def _subscribe(self, places: Collection[Place]) -> None:
        for place in places:
            if self.options.jetstream and place[0] == TOPIC:
                await self._subscribe_to_stream(place)
            else:
                self._subscriptions[place] = await self._client.subscribe(
                    f"{self.options.prefix}.{place[0]}.{escape(place[1])}",
                    cb=self._receiver(place),
                    pending_msgs_limit=UNREAD_MESSAGES_MAX,
                    pending_bytes_limit=UNREAD_BYTES_MAX,
                )
        await self._sync()

    async def _sync(self) -> None:
        """Return when the server has processed all earlier commands."""
        # The client writes the PING of a flush before buffered commands: only the second PING is
        # sure to follow them.
        for _ in range(2):
            await self._flush(self._client)

    def _receiver(self, place: Place) -> Callable[[Msg], Awaitable[None]]:
        async def receive(message: Msg) -> None:
            self._deliver(place, message.data)

        return receive

    async def _subscribe_to_stream(self, place: Place) -> None:
        topic = place[1]
        if topic not in self._delivered:
            information = await self._client.jsm().stream_info(self.stream)
            self._delivered[topic] = information.state.last_seq
        handed = self._delivered

        async def receive(message: Msg) -> None:
            number = message.metadata.sequence.stream
            if number > handed.get(topic, number):
                handed[topic] = number
                self._deliver(place, message.data)

        try:
            self._subscriptions[place] = await self._client.jetstream().subscribe(
                f"{self.options.prefix}.{TOPIC}.{escape(topic)}",
                stream=self.stream,
                cb=receive,
                ordered_consumer=True,
                idle_heartbeat=self.heartbeat_s,
                config=ConsumerConfig(
                    deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
                    opt_start_seq=self._delivered[topic] + 1,
                ),
                pending_msgs_limit=UNREAD_MESSAGES_MAX,
                pending_bytes_limit=UNREAD_BYTES_MAX,
            )
        except APIError as error:
            raise TransportError(
                f"{self.url}: can't read {topic!r} from the stream: {error.description}"
            ) from error

    @staticmethod
    async def _flush(client: Client) -> None:
        """Flush; cancelling the wait does not cancel the flush.

        A cancelled flush would make the client fail when the PONG arrives, and stop reading.
        """
        flushing = asyncio.ensure_future(client.flush(timeout=int(CONNECT_S)))
        flushing.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.shield(flushing)

    async def _unsubscribe(self, place: Place) -> None:
        subscription = self._subscriptions.pop(place, None)
        if subscription is not None:
            await subscription.unsubscribe()
            await self._sync()

    async def _disconnect(self) -> None:
        client = self._client
        if client.is_connected:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S / 2):
                    await self._sync()
        await client.close()
        _abandon(client)


def _host(address: Address) -> str:
    return f"[{address.host}]" if ":" in address.host else address.host


def _tasks(client: Client) -> list[asyncio.Task[Any]]:
    """Return the tasks of a connection."""
    tasks = (client._reading_task, client._flusher_task)  # noqa: SLF001 - not public
    return [task for task in tasks if task is not None]


def _lost(session: Session, client: Client, task: asyncio.Task[Any]) -> None:
    error = None if task.cancelled() else task.exception()
    session.lose(error or client.last_error or "the connection was closed")


def _abandon(client: Client) -> None:
    """Clean up after a client that failed while it closed."""
    for subscription in client._subs.values():  # noqa: SLF001 - as above
        task = subscription._wait_for_msgs_task  # noqa: SLF001 - as above
        if task is not None:
            task.cancel()
    if client._transport is not None:  # noqa: SLF001 - as above
        client._transport.close()  # type: ignore[no-untyped-call]  # noqa: SLF001 - as above
