"""`redis://`: inboxes and topics on a Redis server.

`redis://[[USER]:PASSWORD@]HOST:6379/DB`, with these options:
- `prefix`: what every channel or stream is below (ensue). Carriers with different prefixes don't
  meet.
- `streams`: 1 keeps messages in streams of the server, so that nothing is missed when the
  connection is lost (0).

An inbox or a topic is a channel or a stream, `PREFIX:i:NAME` or `PREFIX:t:NAME`, the name escaped.
Channels keep the order of what one carrier sends while the connection lasts, and lose what is under
way when it ends. Channels know no databases: DB parts streams only. The server throws out a reader
that is further behind than its `client-output-buffer-limit` for `pubsub`, 32 MiB unless configured.

A stream keeps about the last `STREAM_MESSAGES_MAX` messages. Opening writes an empty entry into it
and reads on from there; after a lost connection reading goes on behind what was handed over last. A
batch is written again unless the server has answered, so it may come twice. An inbox's stream is
deleted when it is shut; that of a process that died, after `STREAM_IDLE_S`, as is that of a topic
without writers.

HAZARD: who is away for longer than those limits misses what is beyond them. What survives a restart
of the server is what the server keeps: `durable` is claimed if it says that it writes its
appendonly file.
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
PROLONGED_MAX = 10_000
"""Topics of which it is remembered when that was done last."""
"""How often an open inbox says that it is not idle."""
READ_MESSAGES_MAX = 1_000
BLOCK_MS = 1_000
"""How long the server holds an unanswered read; a new inbox is read after so long at the latest."""
ANSWER_S = 10.0
BULK_BYTES_MAX = 512 * 1024 * 1024
BUFFER_BYTES_MAX = 32 * 1024 * 1024
"""What Redis takes as one message, and keeps for a slow subscriber, unless configured otherwise."""

DATA = b"d"
"""The field of a stream's entry that holds the message."""
OPENED = b"o"
"""The field of an entry that holds none: a reader opened the stream."""
_log = logging.getLogger("ensue")


class RedisOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a `redis://` URL."""

    address: Address
    database: int = 0
    prefix: str = "ensue"
    streams: bool = False

    @classmethod
    def parse(cls, url: str) -> "RedisOptions":
        """Read a URL; raise `BadInput` if it is wrong."""
        address = read_url(url, scheme="redis", port=6379, options=("streams",))
        if address.path and not (address.path.isascii() and address.path.isdigit()):
            raise BadInput(
                f"{address.url}: a database of Redis is a number, not {address.path!r}: "
                "redis://HOST:6379/0"
            )
        return cls(
            address=address,
            database=int(address.path or 0),
            prefix=address.prefix,
            streams=address.given.switch("streams"),
        )


class RedisCarrier(BrokerCarrier):
    """Takes bytes to channels or streams of a Redis server."""

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
        self._asking = self._connection()
        """What commands go through, one batch after the other."""
        self._reading = self._connection()
        """What is subscribed, or held in a read."""
        self._turn = asyncio.Lock()
        self._places: dict[bytes, Place] = {}
        """By key, what is to be read."""
        self._read_to: dict[bytes, bytes] = {}
        """By key, the entry that was handed over last."""
        self._agreed: dict[bytes, asyncio.Future[None]] = {}
        """By channel, the future that waits for the server to confirm a subscription."""
        self._prolong_at_s: dict[Place, float] = {}
        """By topic that was written to, when its stream is to be given another lease of life."""
        self._reading_id = 0
        self._heard_s = 0.0

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
            # Lost is lost: connecting again is ours, with everything that was open.
            retry=Retry(NoBackoff(), 0),
        )
        if isinstance(connection, SSLConnection):
            connection.ssl_context.context = address.tls.context()
        return connection

    def _key(self, place: Place) -> bytes:
        return f"{self.options.prefix}:{place[0]}:{escape(place[1])}".encode()

    async def _connect(self, session: Session) -> None:  # noqa: ARG002 - others lose it
        self._asking, self._reading = self._connection(), self._connection()
        self._turn = asyncio.Lock()
        self._prolong_at_s.clear()
        self._places.clear()
        try:
            for connection in (self._asking, self._reading):
                await connection.connect()  # type: ignore[no-untyped-call]
            # A server that is still loading its data says so here, not to everything that follows.
            await self._ask(("PING",))
        except AuthenticationError as error:
            raise HandshakeFailed(
                f"{self.url}: the Redis server refuses this user or password ({error}): check them"
            ) from None
        except ResponseError as error:
            raise TransportError(f"{self.url}: the Redis server says: {error}") from None
        self._limit_messages(await self._largest())
        if self.options.streams:
            (self._reading_id,) = await self._ask_on(self._reading, ("CLIENT", "ID"))
            self.capabilities = msgspec.structs.replace(
                self.capabilities, durable=await self._keeps_a_log()
            )
        else:
            await self._reading.send_command("SUBSCRIBE", f"{self.options.prefix}:alive")
        self._heard_s = asyncio.get_running_loop().time()

    async def _largest(self) -> int:
        """Read from the server how long a message may be; its defaults if it won't say."""
        bulk, buffers = await self._ask(
            ("CONFIG", "GET", "proto-max-bulk-len"),
            ("CONFIG", "GET", "client-output-buffer-limit"),
        )
        largest = int(bulk[1]) if isinstance(bulk, list) and bulk else BULK_BYTES_MAX
        if self.options.streams:
            return largest
        buffer = BUFFER_BYTES_MAX
        if isinstance(buffers, list) and buffers:
            # Four numbers a class of clients, as in `pubsub 33554432 8388608 60`.
            words = buffers[1].split()
            buffer = int(words[words.index(b"pubsub") + 1]) or largest
        # A reader for whom more is waiting is thrown out: several must fit.
        return min(largest, buffer // 4)

    async def _keeps_a_log(self) -> bool:
        (answer,) = await self._ask(("INFO", "persistence"))
        return isinstance(answer, bytes) and b"aof_enabled:1" in answer

    async def _ask(self, *commands: Sequence[bytes | str | int]) -> list[Any]:
        """Send commands at once and take the answers; an error is an answer too.

        HAZARD: cancelling this ends the session, too: answers not taken would go to the next call.
        """
        async with self._turn:
            async with asyncio.timeout(ANSWER_S):
                return await self._ask_on(self._asking, *commands)

    async def _ask_on(
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

    # Writing.

    async def _write(self, batch: Sequence[tuple[Place, bytes]]) -> None:
        commands: list[Sequence[bytes | str | int]] = []
        if self.options.streams:
            for place, data in batch:
                key = self._key(place)
                # An inbox that is not open has no stream, and must not get one.
                only = ("NOMKSTREAM",) if place[0] == INBOX else ()
                limit = ("MAXLEN", "~", STREAM_MESSAGES_MAX)
                commands.append(("XADD", key, *only, *limit, "*", DATA, data))
            commands.extend(self._prolonging({place for place, _ in batch if place[0] != INBOX}))
        else:
            commands.extend(("PUBLISH", self._key(place), data) for place, data in batch)
        answers = await self._ask(*commands)
        refused = [answer for answer in answers[: len(batch)] if isinstance(answer, RedisError)]
        if refused:
            self.dropped += len(refused)
            _log.warning("%s: the server refused messages: %s", self.url, refused[0])

    def _prolonging(self, topics: set[Place]) -> Iterator[Sequence[bytes | str | int]]:
        """Yield commands that keep the streams of topics from expiring, once in a while."""
        now_s = asyncio.get_running_loop().time()
        if len(self._prolong_at_s) > PROLONGED_MAX:
            self._prolong_at_s.clear()
        for place in topics:
            if now_s >= self._prolong_at_s.get(place, now_s):
                self._prolong_at_s[place] = now_s + REFRESH_S
                yield ("EXPIRE", self._key(place), STREAM_IDLE_S)

    # Reading.

    async def _read(self, session: Session) -> None:
        async with asyncio.TaskGroup() as group:
            if self.options.streams:
                group.create_task(self._read_streams())
                group.create_task(self._refresh())
            else:
                group.create_task(self._read_channels())
            group.create_task(self._listen_for_life(session))

    async def _read_channels(self) -> None:
        clock = asyncio.get_running_loop()
        read = self._reading.read_response
        while True:
            answer = await read(disconnect_on_error=False)
            self._heard_s = clock.time()
            kind, channel = answer[0], answer[1]
            if kind == b"message":
                place = self._places.get(channel)
                if place is not None:
                    self._hand(place, answer[2])
            elif kind == b"subscribe":
                agreed = self._agreed.pop(channel, None)
                if agreed is not None and not agreed.done():
                    agreed.set_result(None)

    async def _read_streams(self) -> None:
        clock = asyncio.get_running_loop()
        # Never written: a read is held though nothing is open, so a lost connection is noticed.
        alive = f"{self.options.prefix}:alive"
        while True:
            keys = list(self._places)
            await self._reading.send_command(
                *("XREAD", "COUNT", READ_MESSAGES_MAX, "BLOCK", BLOCK_MS, "STREAMS", alive, *keys),
                *("$", *(self._read_to[key] for key in keys)),
                check_health=False,
            )
            answer = await self._reading.read_response(disconnect_on_error=False)
            self._heard_s = clock.time()
            for key, entries in answer or ():
                self._hand_entries(key, entries)

    def _hand_entries(self, key: bytes, entries: Sequence[tuple[bytes, list[bytes]]]) -> None:
        for number, fields in entries:
            place = self._places.get(key)
            if place is None:
                return
            self._read_to[key] = number
            if fields[0] == DATA:
                self._hand(place, fields[1])

    async def _refresh(self) -> None:
        """Keep the streams of open inboxes from expiring."""
        while True:
            await asyncio.sleep(REFRESH_S)
            inboxes = [key for key, place in self._places.items() if place[0] == INBOX]
            if inboxes:
                await self._ask(*(("EXPIRE", key, STREAM_IDLE_S) for key in inboxes))

    async def _listen_for_life(self, session: Session) -> None:
        clock = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self.heartbeat_s)
            silent_s = clock.time() - self._heard_s
            allowed_s = 2 * self.heartbeat_s + (BLOCK_MS / 1000 if self.options.streams else 0)
            if silent_s > allowed_s:
                session.lose(f"silent for {silent_s:.1f} s")
            elif not self.options.streams:
                await self._reading.send_command("PING", check_health=False)

    async def _take(self, places: Collection[Place]) -> None:
        keys = {self._key(place): place for place in places}
        if self.options.streams:
            await self._take_streams(keys)
            return
        loop = asyncio.get_running_loop()
        agreed = {key: loop.create_future() for key in keys}
        self._agreed.update(agreed)
        self._places.update(keys)
        await self._reading.send_command("SUBSCRIBE", *keys, check_health=False)
        # Not gathered: lost and cancelled at once, a gather would fail unseen.
        _, open_ = await asyncio.wait(agreed.values(), timeout=ANSWER_S)
        if open_:
            raise TimeoutError(f"no answer to a subscription within {ANSWER_S:g} s")
        for each in agreed.values():
            each.result()

    async def _take_streams(self, keys: dict[bytes, Place]) -> None:
        """Create what is not there, and begin behind what is, unless reading had begun before."""
        commands: list[Sequence[bytes | str | int]] = []
        for key in keys:
            limit = ("MAXLEN", "~", STREAM_MESSAGES_MAX)
            commands.append(("XADD", key, *limit, "*", OPENED, b""))
            commands.append(("EXPIRE", key, STREAM_IDLE_S))
        answers = await self._ask(*commands)
        for number, (key, place) in enumerate(keys.items()):
            answer = answers[2 * number]
            if isinstance(answer, RedisError):
                raise TransportError(f"{self.url}: {place[1]!r} can't be opened: {answer}")
            self._read_to.setdefault(key, answer)
            self._places[key] = place
        await self._wake_reader()

    async def _wake_reader(self) -> None:
        """End the read that is held: what is to be read has changed."""
        await self._ask(("CLIENT", "UNBLOCK", self._reading_id))

    def _begin_anew(self, place: Place) -> None:
        self._read_to.pop(self._key(place), None)

    async def _drop(self, place: Place) -> None:
        key = self._key(place)
        self._places.pop(key, None)
        if not self.options.streams:
            await self._reading.send_command("UNSUBSCRIBE", key, check_health=False)
        elif place[0] == INBOX:
            await self._ask(("DEL", key))

    async def _say_goodbye(self) -> None:
        inboxes = [key for key, place in self._places.items() if place[0] == INBOX]
        if self.options.streams and inboxes:
            await self._ask(("DEL", *inboxes))

    async def _hang_up(self) -> None:
        for waiting in self._agreed.values():
            waiting.cancel()
        self._agreed.clear()
        for connection in (self._asking, self._reading):
            await connection.disconnect(nowait=True)
