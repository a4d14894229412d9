"""A simulated broker: a process that carries inboxes and topics, as NATS, Redis and others do.

It has the contract of real brokers, and what each of them loses (`KINDS`):

- What is not stored goes to the clients that are subscribed at that moment, in the sequence in
  which one connection sent it. It is lost with the connection of either side.
- `nats` stores topics for clients with `jetstream=1`. Its stream survives its process.
- `redis` stores inboxes and topics for clients with `streams=1`. A restart loses them, unless
  `keeps_streams` (an append-only file).
- `mqtt` with `qos=1` and `amqp` with `confirms=1` confirm what they have routed, and store nothing.
- A reader that is too far behind is disconnected (`nats`, `redis`), or misses the newest (`mqtt`)
  or oldest (`amqp`) messages.
- `mqtt` and `amqp` disconnect a client that is silent.

Processes connect with the URLs that they have in production, such as `nats://broker:4222`: see
`ensue.testing.broker_carrier`.
"""

import asyncio
from collections import deque
from typing import Any, cast

import msgspec

from ensue.core.errors import RemoteProtocolError
from ensue.testing.broker_messages import (
    KINDS,
    Answer,
    Delete,
    FromBroker,
    FromClient,
    Hello,
    Info,
    Message,
    Open,
    Ping,
    Pong,
    Publish,
    Splitter,
    Subscribe,
    Unsubscribe,
    decode_from_client,
    encode,
)
from ensue.testing.process import Process
from ensue.testing.world import World

__all__ = ["Broker"]

MILLISECOND_NS = 1_000_000
POSITIONS_PER_MS = 1_000_000
READY_S = 0.01
FOREIGN_S = 0.5
"""How soon a client of another protocol is disconnected."""
MQTT_CONNECT, MQTT_CONNACK = 0x10, b"\x20\x03\x00\x00\x00"


class _Stream:
    """Stored messages, each with its position."""

    def __init__(self, kept_max: int) -> None:
        self.last = 0
        self.entries: deque[tuple[int, Publish]] = deque(maxlen=kept_max)

    def append(self, position: int, message: Publish) -> None:
        self.last = position
        self.entries.append((position, message))


class _Connection(asyncio.Protocol):
    """One connection, as the broker sees it."""

    def __init__(self, service: "_Service") -> None:
        self._service = service
        self._loop = asyncio.get_running_loop()
        self._splitter = Splitter()
        self._queue: deque[tuple[bool, bytes]] = deque()
        """What the network has not taken, each with whether it may be dropped."""
        self._queued_bytes = self._queued_messages = 0
        self._is_writable = True
        self._heartbeat_s = 0.0
        self._is_foreign = False
        self._silence: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the connection."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, _exc: Exception | None) -> None:
        """Forget what the client subscribed to, and what waits for it."""
        self._service.forget(self)
        self._queue.clear()
        if self._silence is not None:
            self._silence.cancel()

    def data_received(self, data: bytes) -> None:
        """Execute requests, after a while if the broker is slow."""
        delay_s = self._service.delay_s()
        if not delay_s:
            self._execute(data)
            return
        self._transport.pause_reading()
        self._loop.call_later(delay_s, self._execute_late, data)

    def _execute_late(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._execute(data)
            self._transport.resume_reading()

    def _execute(self, data: bytes) -> None:
        if self._is_foreign:
            return
        self._watch_silence()
        try:
            for body in self._splitter.feed(data):
                if self._transport.is_closing():
                    return
                self._service.execute(self, decode_from_client(body))
        except (RemoteProtocolError, msgspec.DecodeError):
            # A probe, or the client of another kind of broker.
            is_connect = self._service.kind.scheme == "mqtt" and data[:1] == bytes([MQTT_CONNECT])
            self._transport.write(MQTT_CONNACK if is_connect else self._service.kind.probe_answer)
            self._is_foreign = True
            # Later: a reset, because of what still arrives, would overtake the answer.
            self._loop.call_later(FOREIGN_S, self._transport.close)

    def greet(self, hello: Hello) -> None:
        """Accept a client."""
        self._heartbeat_s = hello.heartbeat_s
        self._watch_silence()

    def _watch_silence(self) -> None:
        """Disconnect the client unless it sends something."""
        if self._silence is not None:
            self._silence.cancel()
        allowed_s = self._heartbeat_s * self._service.kind.silent_heartbeats
        if allowed_s:
            self._silence = self._loop.call_later(allowed_s, self._transport.abort)

    # -- Writing --------------------------------------------------------------------------------

    def send(self, message: FromBroker) -> None:
        """Send a message that is never dropped."""
        self._put(encode(message), may_drop=False)

    def deliver(self, message: Message) -> None:
        """Send a message that is lost if its reader is too far behind, or by chance."""
        if self._service.loses():
            return
        self._put(encode(message), may_drop=True)
        kind = self._service.kind
        while (
            self._queued_messages > kind.queue_messages_max
            or self._queued_bytes > kind.queue_bytes_max
        ):
            if kind.overflow == "disconnect":
                self._transport.abort()
                return
            self._drop(newest=kind.overflow == "newest")

    def _put(self, data: bytes, *, may_drop: bool) -> None:
        if self._is_writable:
            self._transport.write(data)
            return
        self._queue.append((may_drop, data))
        if may_drop:
            self._queued_messages += 1
            self._queued_bytes += len(data)

    def _drop(self, *, newest: bool) -> None:
        places = range(len(self._queue))
        for place in reversed(places) if newest else places:
            if self._queue[place][0]:
                self._queued_messages -= 1
                self._queued_bytes -= len(self._queue[place][1])
                del self._queue[place]
                return

    def pause_writing(self) -> None:
        """Queue what comes: the reader is behind."""
        self._is_writable = False

    def resume_writing(self) -> None:
        """Send what is queued."""
        self._is_writable = True
        while self._queue and self._is_writable:
            may_drop, data = self._queue.popleft()
            if may_drop:
                self._queued_messages -= 1
                self._queued_bytes -= len(data)
            self._transport.write(data)


class _Service:
    """What one life of the broker's process has in memory."""

    def __init__(self, broker: "Broker") -> None:
        self._broker, self.kind = broker, broker.kind
        self._readers: dict[str, dict[_Connection, None]] = {}
        """By key: subscribed connections."""
        self._stream_readers: dict[str, dict[_Connection, dict[str, None]]] = {}
        """By stream: connections that read it, each with the keys that it reads."""

    def delay_s(self) -> float:
        """Return how long a request takes now."""
        return self._broker.delay_s()

    def loses(self) -> bool:
        """Return whether a message is lost now, on its way to one reader."""
        return self._broker.loses()

    def execute(self, connection: _Connection, request: FromClient) -> None:
        """Execute a request of a client."""
        match request:
            case Hello(scheme):
                if scheme != self.kind.scheme:
                    raise RemoteProtocolError(f"a client of {scheme}://")
                connection.greet(request)
                connection.send(Info(self.kind.message_bytes_max, self.kind.keeps_streams))
            case Ping():
                connection.send(Pong())
            case Publish():
                self._publish(request)
                if request.number:
                    connection.send(Answer(request.number))
            case Open(number, stream):
                connection.send(Answer(number, self._open(stream).last))
            case Subscribe():
                self._subscribe(connection, request)
                connection.send(Answer(request.number))
            case Unsubscribe(number, key):
                self._unsubscribe(connection, key)
                connection.send(Answer(number))
            case Delete(number, stream):
                self._broker.streams.pop(stream, None)
                connection.send(Answer(number))

    def forget(self, connection: _Connection) -> None:
        """Remove the subscriptions of a connection."""
        for readers in (*self._readers.values(), *self._stream_readers.values()):
            cast("dict[_Connection, Any]", readers).pop(connection, None)

    def _open(self, name: str) -> _Stream:
        streams = self._broker.streams
        if name not in streams:
            streams[name] = _Stream(self.kind.stored_max)
        return streams[name]

    def _publish(self, message: Publish) -> None:
        for reader in tuple(self._readers.get(message.key, ())):
            reader.deliver(Message(message.key, message.data))
        if not message.stream:
            return
        if not message.creates and message.stream not in self._broker.streams:
            return  # The inbox was closed.
        stream = self._open(message.stream)
        position = stream.last + 1
        if not self.kind.has_one_stream:
            wall_ms = self._broker.process.machine.wall_ns() // MILLISECOND_NS
            position = max(position, wall_ms * POSITIONS_PER_MS)
        stream.append(position, message)
        for reader, keys in tuple(self._stream_readers.get(message.stream, {}).items()):
            if message.key in keys:
                reader.send(Message(message.key, message.data, position))

    def _subscribe(self, connection: _Connection, request: Subscribe) -> None:
        if not request.stream:
            self._readers.setdefault(request.key, {})[connection] = None
            return
        readers = self._stream_readers.setdefault(request.stream, {})
        readers.setdefault(connection, {})[request.key] = None
        for position, message in self._open(request.stream).entries:
            if position > request.after and message.key == request.key:
                connection.send(Message(message.key, message.data, position))

    def _unsubscribe(self, connection: _Connection, key: str) -> None:
        self._readers.get(key, {}).pop(connection, None)
        for readers in self._stream_readers.values():
            readers.get(connection, {}).pop(key, None)


class Broker:
    """A simulated broker. Made by `Simulation.broker`.

    `kind` is the scheme of its URLs. `options` are fields of `BrokerKind`, such as
    `keeps_streams=True` for a Redis server with an append-only file, or smaller limits.
    """

    def __init__(self, world: World, kind: str, *, name: str = "broker", **options: Any) -> None:
        if kind not in KINDS:
            raise ValueError(f"no simulated broker {kind!r}; expected {', '.join(KINDS)}")
        self.kind = msgspec.structs.replace(KINDS[kind], **options)
        self.name = name
        self.process: Process
        self.streams: dict[str, _Stream] = {}
        self.slow_s = (0.0, 0.0)
        """Bounds of the time that it takes for what arrives together on a connection."""
        self.loss = 0.0
        """The share of messages that it loses, of those that it does not store: each for each of
        its readers, as full queues along the way do."""
        self._world = world
        self._losses = world.generator(f"losses of broker {name}")
        self._random = world.generator(f"broker {name}")
        self._is_listening = False

    @property
    def url(self) -> str:
        """Its URL; add options such as `?jetstream=1`."""
        return f"{self.kind.scheme}://{self.name}:{self.kind.port}"

    def delay_s(self) -> float:
        """Draw how long what arrived takes."""
        return self._random.uniform(*self.slow_s) if self.slow_s[1] else 0.0

    def loses(self) -> bool:
        """Draw whether a message is lost."""
        return self.loss > 0 and self._losses.random() < self.loss

    async def start(self) -> None:
        """Start its process; return when it listens."""
        self.process = self._world.start(self.name, self._serve)
        while not self._is_listening:  # noqa: ASYNC110 - set by another event loop
            await asyncio.sleep(READY_S)

    async def _serve(self) -> None:
        if not self.kind.keeps_streams:
            self.streams.clear()
        service = _Service(self)
        loop = asyncio.get_running_loop()
        await loop.create_server(lambda: _Connection(service), self.name, self.kind.port)
        self._is_listening = True
        await loop.create_future()
