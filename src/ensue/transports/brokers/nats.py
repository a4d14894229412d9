"""`nats://`: inboxes and topics on a NATS server.

`nats://[USER:PASSWORD@|TOKEN@]HOST:4222`, with these options:
- `prefix`: what every subject is below (ensue). Carriers with different prefixes don't meet.
- `jetstream`: 1 keeps what is multicast in a stream of the server, so that a topic misses nothing
  when the connection is lost (0).
- `tls`: 1 encrypts, and believes the certificates that the system believes (0).

An inbox or a topic is a subject, `PREFIX.i.NAME` or `PREFIX.t.NAME`, the name escaped. Core NATS
keeps the order of what one carrier sends while the connection lasts, and loses what is under way
when it ends.

With JetStream one stream, `PREFIX-topics`, holds every topic for `STREAM_AGE_S`, up to
`STREAM_BYTES_MAX`, on the server's disk. A batch is written again unless the server says that it is
stored, so it may come twice. Joining begins with what comes next; after a lost connection it goes
on behind what was handed over last. Inboxes stay core, because peers repeat what matters to them.

HAZARD: a topic that was away longer than the stream's limits misses what is beyond them.
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
"""How long the server may take to say that a batch is stored."""
UNREAD_BYTES_MAX = 256 * 1024 * 1024
UNREAD_MESSAGES_MAX = 1_000_000
"""What may wait in this process for its inbox; beyond, the client drops."""

_log = logging.getLogger("ensue")


class NatsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a `nats://` URL."""

    address: Address
    prefix: str = "ensue"
    jetstream: bool = False

    @classmethod
    def parse(cls, url: str) -> "NatsOptions":
        """Read a URL; raise `BadInput` if it is wrong."""
        address = read_url(url, scheme="nats", port=4222, options=("jetstream",))
        if address.path:
            raise BadInput(f"{address.url}: a NATS server has no path: nats://HOST:4222")
        return cls(
            address=address,
            prefix=address.prefix,
            jetstream=address.given.switch("jetstream"),
        )


class NatsCarrier(BrokerCarrier):
    """Takes bytes to subjects of a NATS server."""

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
        self._handed: dict[str, int] = {}
        """By topic: the place in the stream of what was handed over last."""

    async def _connect(self, session: Session) -> None:
        options, address = self.options, self.options.address
        self._client = client = Client()
        self._subscriptions = {}

        async def closed() -> None:
            session.lose(client.last_error or "the server closed the connection")

        said: deque[Exception] = deque(maxlen=1)

        async def failed(error: Exception) -> None:
            said.append(error)
            dropping = isinstance(error, SlowConsumerError)
            _log.log(logging.WARNING if dropping else logging.DEBUG, "%s: %s", self.url, error)
            if options.jetstream and isinstance(error, SlowConsumerError | APIError):
                # A gap: the next session goes on behind what was handed over.
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
                # It would try forever before the first connection: one more attempt is the least.
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                connect_timeout=int(CONNECT_S),
                ping_interval=self.heartbeat_s,  # type: ignore[arg-type]
                closed_cb=closed,
                error_cb=failed,
            )
        except NoServersError:
            raise ConnectionError(str(said[-1])) from None
        except Error as error:
            if "authorization violation" not in str(error).lower():
                raise
            raise HandshakeFailed(
                f"{self.url}: the NATS server refuses this user, password or token: "
                "check them, or ask for an account"
            ) from None
        # A client that fails while it closes does not report it, but its tasks end.
        # From here on, not only once there is something to read: the connection may go before that.
        for task in _tasks(client):
            task.add_done_callback(partial(_lost, session, client))
        self._limit_messages(client.max_payload)
        if options.jetstream:
            await self._keep_stream()

    async def _keep_stream(self) -> None:
        """Create the stream of all topics unless it is there."""
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
                f"{self.url}: the stream {self.stream!r} can't be had: {error.description}"
            ) from error

    async def _read(self, session: Session) -> None:
        # The client calls for every message; what is left is to see the connection end.
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
            # The stream was deleted: the next session makes it anew, and writes this again.
            raise
        except APIError as error:
            self.dropped += 1
            _log.warning("%s: the server stores nothing: %s", self.url, error.description)

    def _begin_anew(self, place: Place) -> None:
        if place[0] == TOPIC:
            self._handed.pop(place[1], None)

    async def _take(self, places: Collection[Place]) -> None:
        for place in places:
            if self.options.jetstream and place[0] == TOPIC:
                await self._take_from_stream(place)
            else:
                self._subscriptions[place] = await self._client.subscribe(
                    f"{self.options.prefix}.{place[0]}.{escape(place[1])}",
                    cb=self._receiver(place),
                    pending_msgs_limit=UNREAD_MESSAGES_MAX,
                    pending_bytes_limit=UNREAD_BYTES_MAX,
                )
        await self._sync()

    async def _sync(self) -> None:
        """Return when the server has read everything."""
        # The client writes the PING of a flush at once, past what it has not written yet: only the
        # second one is sure to come behind.
        for _ in range(2):
            await self._flush(self._client)

    def _receiver(self, place: Place) -> Callable[[Msg], Awaitable[None]]:
        async def receive(message: Msg) -> None:
            self._hand(place, message.data)

        return receive

    async def _take_from_stream(self, place: Place) -> None:
        topic = place[1]
        if topic not in self._handed:
            information = await self._client.jsm().stream_info(self.stream)
            self._handed[topic] = information.state.last_seq
        handed = self._handed

        async def receive(message: Msg) -> None:
            number = message.metadata.sequence.stream
            if number > handed.get(topic, number):
                handed[topic] = number
                self._hand(place, message.data)

        try:
            self._subscriptions[place] = await self._client.jetstream().subscribe(
                f"{self.options.prefix}.{TOPIC}.{escape(topic)}",
                stream=self.stream,
                cb=receive,
                ordered_consumer=True,
                idle_heartbeat=self.heartbeat_s,
                config=ConsumerConfig(
                    deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
                    opt_start_seq=self._handed[topic] + 1,
                ),
                pending_msgs_limit=UNREAD_MESSAGES_MAX,
                pending_bytes_limit=UNREAD_BYTES_MAX,
            )
        except APIError as error:
            raise TransportError(
                f"{self.url}: {topic!r} can't be read from the stream: {error.description}"
            ) from error

    @staticmethod
    async def _flush(client: Client) -> None:
        """Wait until the server has read everything; cancelling this does not cancel that.

        The client answers a flush that was cancelled with an error, and stops reading.
        """
        flushing = asyncio.ensure_future(client.flush(timeout=int(CONNECT_S)))
        flushing.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.shield(flushing)

    async def _drop(self, place: Place) -> None:
        subscription = self._subscriptions.pop(place, None)
        if subscription is not None:
            await subscription.unsubscribe()
            await self._sync()

    async def _hang_up(self) -> None:
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
    """Return what a connection lives by."""
    tasks = (client._reading_task, client._flusher_task)  # noqa: SLF001 - there is no other way
    return [task for task in tasks if task is not None]


def _lost(session: Session, client: Client, task: asyncio.Task[Any]) -> None:
    error = None if task.cancelled() else task.exception()
    session.lose(error or client.last_error or "the connection was closed")


def _abandon(client: Client) -> None:
    """End what a client that failed while it closed has left behind."""
    for subscription in client._subs.values():  # noqa: SLF001 - as above
        task = subscription._wait_for_msgs_task  # noqa: SLF001 - as above
        if task is not None:
            task.cancel()
    if client._transport is not None:  # noqa: SLF001 - as above
        client._transport.close()  # type: ignore[no-untyped-call]  # noqa: SLF001 - as above
