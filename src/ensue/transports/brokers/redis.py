"""`redis://`: inboxes and topics on a Redis server.

`redis://[[USER]:PASSWORD@]HOST:6379/DB`, with these options:
- `prefix`: first part of every channel or stream (ensue). Carriers with different prefixes are
  separate.
- `streams`: 1 stores messages in streams of the server, so that readers miss nothing when the
  connection is lost (0).

An inbox or a topic is a channel or a stream, `PREFIX:i:NAME` or `PREFIX:t:NAME`, the name escaped.
Channels keep the order of one carrier's messages while the connection lasts, and lose messages in
flight when it ends. Channels are shared by all databases: DB separates streams only. The server
disconnects a reader that is further behind than its `client-output-buffer-limit` for `pubsub`,
32 MiB by default.

A stream holds about the last `STREAM_MESSAGES_MAX` messages. Opening writes an empty entry and
reads from there; after a reconnect, reading resumes after the last delivered message. A batch is
retransmitted unless the server has answered, so messages may arrive twice. Closing an inbox deletes
its stream. The stream of an inbox whose process died, or of a topic without writers, expires after
`STREAM_IDLE_S`.

HAZARD: a reader that is disconnected for longer than these limits loses messages. Streams survive a
restart of the server only if it persists them: the carrier claims `durable` if the server reports
that its append-only file is on.
"""

import asyncio
import logging
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import msgspec

from ensue.core.errors import BadInput, HandshakeFailed, MissingExtra, TransportError
from ensue.transports.brokers.address import Address, escape, read_url
from ensue.transports.brokers.base import (
    CONNECT_S,
    INBOX,
    PENDING_BYTES_MAX,
    BrokerCarrier,
    Place,
    Session,
)

try:
    from redis.asyncio import Connection, SSLConnection
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff
    from redis.exceptions import AuthenticationError, RedisError, ResponseError
except ImportError as error:
    raise MissingExtra(extra="redis", needed_for="redis://") from error

__all__ = ["RedisCarrier", "RedisOptions"]

STREAM_MESSAGES_MAX = 100_000
STREAM_IDLE_S = 24 * 3600
REFRESH_S = 600.0
"""How often the expiry of a stream in use is reset."""
REFRESHED_MAX = 10_000
"""Topics whose last refresh is remembered."""
READ_MESSAGES_MAX = 1_000
BLOCK_MS = 1_000
"""How long the server blocks a read without messages; a new inbox is read after at most that."""
ANSWER_S = 10.0
BULK_BYTES_MAX = 512 * 1024 * 1024
"""Default limit of a message in Redis."""
BUFFER_BYTES_MAX = 32 * 1024 * 1024
"""Default limit of the messages that Redis buffers for a slow subscriber."""

DATA = b"d"
"""The field of a stream entry with a message."""
OPENED = b"o"
"""The field of a stream entry without a message: a reader opened the stream."""
_log = logging.getLogger("ensue")


class RedisOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a `redis://` URL."""

    address: Address
    database: int = 0
    prefix: str = "ensue"
    streams: bool = False

    @classmethod
    def parse(cls, url: str) -> "RedisOptions":
        """Parse a URL; raise `BadInput` if it is wrong."""
        address = read_url(url, scheme="redis", port=6379, options=("streams",))
        if address.path and not (address.path.isascii() and address.path.isdigit()):
            raise BadInput(
                f"{address.url}: the database must be a number, got {address.path!r}; "
                "expected redis://HOST:6379/0"
            )
        return cls(
            address=address,
            database=int(address.path or 0),
            prefix=address.prefix,
            streams=address.given.switch("streams"),
        )


class RedisCarrier(BrokerCarrier):
    """A carrier on the channels or streams of a Redis server."""

    name = "redis://"
    how_to_start = "redis-server --port 6379 (Debian: apt-get install redis-server)"
    kind = "a Redis server"

    def __init__(
        self, options: RedisOptions, *, pending_bytes_max: int = PENDING_BYTES_MAX
    ) -> None:
        super().__init__(
            options.address.url,
            repeats=options.streams,
            pending_bytes_max=pending_bytes_max,
        )
        self.options = options
        self.address = options.address
        self._commands = self._connection()
        """The connection for commands, one batch after the other."""
        self._subscriber = self._connection()
        """The connection that subscribes, or blocks in a read."""
        self._turn = asyncio.Lock()
        self._places: dict[bytes, Place] = {}
        """By key: subscribed places."""
        self._read_to: dict[bytes, bytes] = {}
        """By key: the last delivered entry."""
        self._confirmations: dict[bytes, asyncio.Future[None]] = {}
        """By channel: done when the server has confirmed the subscription."""
        self._refresh_at_s: dict[Place, float] = {}
        """By topic that this carrier writes: when to reset its expiry."""
        self._subscriber_id = 0
        self._received_s = 0.0

    def _connection(self) -> Connection:
        address = self.options.address
        kind = SSLConnection if address.tls.on else Connection
        connection = kind(
            host=address.host,
            port=address.port,
            db=self.options.database,
            username=address.user or None,
            password=address.password or None,
            protocol=2,
            socket_timeout=None,
            socket_connect_timeout=CONNECT_S,
            # `BrokerCarrier` reconnects.
            retry=Retry(NoBackoff(), 0),
        )
        if isinstance(connection, SSLConnection):
            connection.ssl_context.context = address.tls.context()
        return connection

    def _key(self, place: Place) -> bytes:
        return f"{self.options.prefix}:{place[0]}:{escape(place[1])}".encode()

    async def _connect(self, session: Session) -> None:  # noqa: ARG002 - others use it
        self._commands, self._subscriber = self._connection(), self._connection()
        self._turn = asyncio.Lock()
        self._refresh_at_s.clear()
        self._places.clear()
        try:
            for connection in (self._commands, self._subscriber):
                await connection.connect()  # type: ignore[no-untyped-call]
            self._listen()
            # A server that is still loading its data answers this with an error.
            await self._execute(("PING",))
        except AuthenticationError as error:
            raise HandshakeFailed(
                f"{self.url}: the Redis server refuses this user or password ({error}): check them"
            ) from None
        except ResponseError as error:
            raise TransportError(
                f"{self.url}: the Redis server refuses to serve: {error}"
            ) from None
        self._limit_messages(await self._message_bytes_max())
        if self.options.streams:
            (self._subscriber_id,) = await self._execute_on(self._subscriber, ("CLIENT", "ID"))
            self.capabilities = msgspec.structs.replace(
                self.capabilities, durable=await self._has_append_only_file()
            )
        else:
            await self._subscriber.send_command("SUBSCRIBE", f"{self.options.prefix}:alive")
        # Nothing arrives there while the other connection waits for its answers.
        self._received_s = asyncio.get_running_loop().time()

    def _listen(self) -> None:
        """Note when bytes arrive at the subscriber's connection.

        A slow network may take minutes for one answer with many messages. A session that was lost
        meanwhile would have to read it from its beginning.
        """
        clock, reader = asyncio.get_running_loop(), self._subscriber._reader  # noqa: SLF001 - not public
        assert reader is not None
        feed, self._received_s = reader.feed_data, clock.time()

        def hear(data: bytes) -> None:
            self._received_s = clock.time()
            feed(data)

        reader.feed_data = hear  # type: ignore[method-assign, assignment]

    async def _message_bytes_max(self) -> int:
        """Return the server's message limit; its default if CONFIG is not allowed."""
        bulk, buffers = await self._execute(
            ("CONFIG", "GET", "proto-max-bulk-len"),
            ("CONFIG", "GET", "client-output-buffer-limit"),
        )
        largest = int(bulk[1]) if isinstance(bulk, list) and bulk else BULK_BYTES_MAX
        if self.options.streams:
            return largest
        buffer = BUFFER_BYTES_MAX
        if isinstance(buffers, list) and buffers:
            # Three numbers for each class of clients, such as `pubsub 33554432 8388608 60`.
            words = buffers[1].split()
            buffer = int(words[words.index(b"pubsub") + 1]) or largest
        # The server disconnects a reader with more in its buffer: several messages must fit.
        return min(largest, buffer // 4)

    async def _has_append_only_file(self) -> bool:
        (answer,) = await self._execute(("INFO", "persistence"))
        return isinstance(answer, bytes) and b"aof_enabled:1" in answer

    async def _execute(self, *commands: Sequence[bytes | str | int]) -> list[Any]:
        """Send commands in one batch and return the answers, errors included.

        HAZARD: cancelling this must end the session: the next call would read the answers.
        """
        async with self._turn:
            async with asyncio.timeout(ANSWER_S):
                return await self._execute_on(self._commands, *commands)

    async def _execute_on(
        self, connection: Connection, *commands: Sequence[bytes | str | int]
    ) -> list[Any]:
        await connection.send_packed_command(connection.pack_commands(commands), check_health=False)
        answers: list[Any] = []
        for _ in commands:
            try:
                answers.append(await connection.read_response(disconnect_on_error=False))
            except ResponseError as error:
                answers.append(error)
        return answers

    # -- Writing --------------------------------------------------------------------------------
    async def _write(self, batch: Sequence[tuple[Place, bytes]]) -> None:
        commands: list[Sequence[bytes | str | int]] = []
        if self.options.streams:
            for place, data in batch:
                key = self._key(place)
                # A closed inbox has no stream; do not create one.
                only = ("NOMKSTREAM",) if place[0] == INBOX else ()
                limit = ("MAXLEN", "~", STREAM_MESSAGES_MAX)
                commands.append(("XADD", key, *only, *limit, "*", DATA, data))
            commands.extend(
                self._expire_commands({place for place, _ in batch if place[0] != INBOX})
            )
        else:
            commands.extend(("PUBLISH", self._key(place), data) for place, data in batch)
        answers = await self._execute(*commands)
        refused = [answer for answer in answers[: len(batch)] if isinstance(answer, RedisError)]
        if refused:
            self.dropped += len(refused)
            _log.warning(
                "messages refused url=%s messages=%d: %s", self.url, len(refused), refused[0]
            )

    def _expire_commands(self, topics: set[Place]) -> Iterator[Sequence[bytes | str | int]]:
        """Yield commands that reset the expiry of topics, each once in `REFRESH_S`."""
        now_s = asyncio.get_running_loop().time()
        if len(self._refresh_at_s) > REFRESHED_MAX:
            self._refresh_at_s.clear()
        for place in topics:
            if now_s >= self._refresh_at_s.get(place, now_s):
                self._refresh_at_s[place] = now_s + REFRESH_S
                yield ("EXPIRE", self._key(place), STREAM_IDLE_S)

    # -- Reading --------------------------------------------------------------------------------
    async def _read(self, session: Session) -> None:
        async with asyncio.TaskGroup() as group:
            if self.options.streams:
                group.create_task(self._read_streams())
                group.create_task(self._refresh())
            else:
                group.create_task(self._read_channels())
            group.create_task(self._watch_heartbeat(session))

    async def _read_channels(self) -> None:
        read = self._subscriber.read_response
        while True:
            answer = await read(disconnect_on_error=False)
            kind, channel = answer[0], answer[1]
            if kind == b"message":
                place = self._places.get(channel)
                if place is not None:
                    self._deliver(place, answer[2])
            elif kind == b"subscribe":
                agreed = self._confirmations.pop(channel, None)
                if agreed is not None and not agreed.done():
                    agreed.set_result(None)

    async def _read_streams(self) -> None:
        # Never written: a read blocks on it even if nothing is open, to detect a lost connection.
        alive = f"{self.options.prefix}:alive"
        while True:
            keys = list(self._places)
            await self._subscriber.send_command(
                *("XREAD", "COUNT", READ_MESSAGES_MAX, "BLOCK", BLOCK_MS, "STREAMS", alive, *keys),
                *("$", *(self._read_to[key] for key in keys)),
                check_health=False,
            )
            answer = await self._subscriber.read_response(disconnect_on_error=False)
            for key, entries in answer or ():
                self._deliver_entries(key, entries)

    def _deliver_entries(self, key: bytes, entries: Sequence[tuple[bytes, list[bytes]]]) -> None:
        for number, fields in entries:
            place = self._places.get(key)
            if place is None:
                return
            self._read_to[key] = number
            if fields[0] == DATA:
                self._deliver(place, fields[1])

    async def _refresh(self) -> None:
        """Reset the expiry of open inboxes, forever."""
        while True:
            await asyncio.sleep(REFRESH_S)
            inboxes = [key for key, place in self._places.items() if place[0] == INBOX]
            if inboxes:
                await self._execute(*(("EXPIRE", key, STREAM_IDLE_S) for key in inboxes))

    async def _watch_heartbeat(self, session: Session) -> None:
        clock = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self.heartbeat_s)
            silent_s = clock.time() - self._received_s
            allowed_s = 2 * self.heartbeat_s + (BLOCK_MS / 1000 if self.options.streams else 0)
            if silent_s > allowed_s:
                session.lose(f"silent for {silent_s:.1f} s")
            elif not self.options.streams:
                await self._subscriber.send_command("PING", check_health=False)

    async def _subscribe(self, places: Collection[Place]) -> None:
        keys = {self._key(place): place for place in places}
        if self.options.streams:
            await self._subscribe_to_streams(keys)
            return
        loop = asyncio.get_running_loop()
        agreed = {key: loop.create_future() for key in keys}
        self._confirmations.update(agreed)
        self._places.update(keys)
        await self._subscriber.send_command("SUBSCRIBE", *keys, check_health=False)
        # `gather` would leave exceptions unretrieved if this is cancelled and the session lost.
        _, open_ = await asyncio.wait(agreed.values(), timeout=ANSWER_S)
        if open_:
            raise TimeoutError(f"no answer to SUBSCRIBE within {ANSWER_S:g} s")
        for each in agreed.values():
            each.result()

    async def _subscribe_to_streams(self, keys: dict[bytes, Place]) -> None:
        """Create missing streams; start after the last entry, or resume."""
        commands: list[Sequence[bytes | str | int]] = []
        for key in keys:
            limit = ("MAXLEN", "~", STREAM_MESSAGES_MAX)
            commands.append(("XADD", key, *limit, "*", OPENED, b""))
            commands.append(("EXPIRE", key, STREAM_IDLE_S))
        answers = await self._execute(*commands)
        for number, (key, place) in enumerate(keys.items()):
            answer = answers[2 * number]
            if isinstance(answer, RedisError):
                raise TransportError(
                    f"{self.url}: the Redis server refuses to open {place[1]!r}: {answer}"
                )
            self._read_to.setdefault(key, answer)
            self._places[key] = place
        await self._unblock_reader()

    async def _unblock_reader(self) -> None:
        """End the blocked read: the streams to read have changed."""
        await self._execute(("CLIENT", "UNBLOCK", self._subscriber_id))

    def _reset_position(self, place: Place) -> None:
        self._read_to.pop(self._key(place), None)

    async def _unsubscribe(self, place: Place) -> None:
        key = self._key(place)
        self._places.pop(key, None)
        if not self.options.streams:
            await self._subscriber.send_command("UNSUBSCRIBE", key, check_health=False)
        elif place[0] == INBOX:
            await self._execute(("DEL", key))

    async def _clean_up(self) -> None:
        inboxes = [key for key, place in self._places.items() if place[0] == INBOX]
        if self.options.streams and inboxes:
            await self._execute(("DEL", *inboxes))

    async def _disconnect(self) -> None:
        for waiting in self._confirmations.values():
            waiting.cancel()
        self._confirmations.clear()
        for connection in (self._commands, self._subscriber):
            await connection.disconnect(nowait=True)
