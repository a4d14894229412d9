"""The upper bound of a Python server: an asyncio hub that numbers events and fans them out.

Memory only: no log, no receipts, no retransmissions. Publishers send lists of events; the events of
one read are numbered, encoded once and written once to each subscriber. While a subscriber is
behind, the hub reads from no publisher.

Messages are msgpack with a length prefix of four bytes. The first message of a client is the list
of its topics; then it sends lists of `[topic, payload]` and receives lists of
`[number, topic, payload]`.

    python -m benchmarks.peers.hub PORT
"""

import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable, Sequence

import msgspec
from benchmarks.peers.tally import Tally

__all__ = ["HubReceiver", "HubSender"]

PENDING_BYTES_MAX = 4 * 1024 * 1024

_encode = msgspec.msgpack.Encoder().encode
_decode_topics = msgspec.msgpack.Decoder(list[str]).decode
_decode_in = msgspec.msgpack.Decoder(list[tuple[str, bytes]]).decode
_decode_out = msgspec.msgpack.Decoder(list[tuple[int, str, bytes]]).decode


def framed(data: bytes) -> bytes:
    """Prefix a message with its length."""
    return len(data).to_bytes(4, "big") + data


class Framed(asyncio.Protocol):
    """A connection that splits its input into messages."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.room = asyncio.Event()
        self.room.set()
        self._waiting: list[bytes] = []
        self._missing = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.set_write_buffer_limits(high=PENDING_BYTES_MAX)

    def pause_writing(self) -> None:
        """Block writers."""
        self.room.clear()

    def resume_writing(self) -> None:
        """Unblock writers."""
        self.room.set()

    def cut(self, data: bytes) -> list[bytes]:
        """Return the complete messages."""
        if self._waiting:
            self._waiting.append(data)
            self._missing -= len(data)
            if self._missing > 0:
                return []
            data = b"".join(self._waiting)
        at, end, messages, after = 0, len(data), [], 4
        while end - at >= 4:
            after = at + 4 + int.from_bytes(data[at : at + 4], "big")
            if after > end:
                break
            messages.append(data[at + 4 : after])
            at = after
            after = at + 4
        self._waiting = [data[at:]] if at < end else []
        self._missing = after - end
        return messages


class Hub:
    """All connections, and the number of the last event."""

    def __init__(self) -> None:
        self.number = 0
        self.publishers: dict[HubConnection, None] = {}
        self.subscribers: dict[HubConnection, frozenset[str]] = {}
        self.full: set[HubConnection] = set()

    def fan_out(self, events: Sequence[tuple[str, bytes]]) -> None:
        """Assign numbers to the events of one read, and write them to every subscriber."""
        first = self.number + 1
        self.number += len(events)
        numbered = [(first + at, *event) for at, event in enumerate(events)]
        encoded: dict[frozenset[str], bytes] = {}
        for connection, topics in self.subscribers.items():
            data = encoded.get(topics)
            if data is None:
                chosen = [event for event in numbered if event[1] in topics]
                data = encoded[topics] = framed(_encode(chosen))
            if connection.transport is not None:
                connection.transport.write(data)

    def hold(self) -> None:
        """Pause or resume reading from publishers, if a subscriber is full or none is."""
        for connection in self.publishers:
            if connection.transport is None or connection.transport.is_closing():
                continue
            if self.full:
                connection.transport.pause_reading()
            else:
                connection.transport.resume_reading()


class HubConnection(Framed):
    """The hub's side of a connection."""

    def __init__(self, hub: Hub) -> None:
        super().__init__()
        self.hub = hub
        self.greeted = False

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection."""
        del exc
        self.hub.publishers.pop(self, None)
        self.hub.subscribers.pop(self, None)
        self.hub.full.discard(self)
        self.hub.hold()

    def pause_writing(self) -> None:
        """Pause the publishers."""
        self.hub.full.add(self)
        self.hub.hold()

    def resume_writing(self) -> None:
        """Resume, if no other subscriber is behind."""
        self.hub.full.discard(self)
        self.hub.hold()

    def data_received(self, data: bytes) -> None:
        """Handle all messages of one read together."""
        messages = self.cut(data)
        if messages and not self.greeted:
            self.greeted = True
            topics = frozenset(_decode_topics(messages.pop(0)))
            if topics:
                self.hub.subscribers[self] = topics
                assert self.transport is not None
                self.transport.write(framed(_encode([])))
            else:
                self.hub.publishers[self] = None
        if messages:
            events = [event for message in messages for event in _decode_in(message)]
            self.hub.fan_out(events)


class Client(Framed):
    """The client's side of a connection."""

    def __init__(self, take_all: Callable[[Sequence[bytes]], None] | None = None) -> None:
        super().__init__()
        self._take_all = take_all
        self.answered = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        """Pass on all messages of one read together."""
        self.answered.set()
        for message in self.cut(data):
            if self._take_all is not None:
                self._take_all([payload for _, _, payload in _decode_out(message)])


async def _connect(url: str, topics: Sequence[str], client: Client) -> asyncio.Transport:
    host, _, port = url.removeprefix("hub://").rpartition(":")
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_connection(lambda: client, host, int(port))
    transport.write(framed(_encode(list(topics))))
    return transport


class HubSender:
    """Publishes lists of events."""

    def __init__(self, url: str, topics: Sequence[str]) -> None:
        del topics
        self._url = url

    async def open(self) -> None:
        """Connect."""
        self._client = Client()
        self._transport = await _connect(self._url, (), self._client)

    async def send(self, batch: Sequence[tuple[str, bytes]]) -> None:
        """Write a list of events when there is room."""
        await self._client.room.wait()
        self._transport.write(framed(_encode(batch)))

    async def settle(self) -> None:
        """Do nothing: the hub acknowledges nothing."""

    async def close(self) -> None:
        """Disconnect."""
        self._transport.close()


class HubReceiver:
    """Gets lists of events."""

    def __init__(self, url: str, topics: Sequence[str]) -> None:
        self._url = url
        self._topics = topics

    async def open(self, tally: Tally) -> None:
        """Connect; return when the hub has answered."""
        client = Client(tally.take_all)
        self._transport = await _connect(self._url, self._topics, client)
        await client.answered.wait()

    async def close(self) -> None:
        """Disconnect."""
        self._transport.close()


async def main(port: int) -> None:
    """Serve until a signal arrives."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    hub = Hub()
    server = await loop.create_server(lambda: HubConnection(hub), "127.0.0.1", port)
    with contextlib.closing(server):
        await stopped.wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
