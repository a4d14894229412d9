"""NATS and JetStream through nats-py, which batches publications of one event loop turn."""

from collections.abc import Sequence

import nats
from benchmarks.peers.clients import Lane
from benchmarks.peers.tally import Tally
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.client import JetStreamContext

__all__ = [
    "JetStreamReceiver",
    "JetStreamSender",
    "NatsReceiver",
    "NatsSender",
    "OneJetStreamReceiver",
]

IN_FLIGHT_MAX = 4_000
"""Unacknowledged events of a JetStream publisher."""
FLUSH_EVERY = 2_000
"""Events after which a NATS publisher lets the server catch up."""
UNREAD_MAX = 10_000_000
UNREAD_BYTES_MAX = 2**31
HEARTBEAT_S = 5.0
ONE = "everything"
"""The stream of all events, and the prefix of their subjects."""


class NatsSender:
    """Core NATS: the client batches the publications of one turn of the event loop."""

    def __init__(self, url: str, topics: Sequence[str]) -> None:
        del topics
        self._url = url
        self._unflushed = 0

    async def open(self) -> None:
        """Connect."""
        self._client: Client = await nats.connect(self._url, allow_reconnect=False)

    async def send(self, batch: Sequence[tuple[str, bytes]]) -> None:
        """Publish each event."""
        publish = self._client.publish
        for topic, payload in batch:
            await publish(topic, payload)
        self._unflushed += len(batch)
        if self._unflushed >= FLUSH_EVERY:
            await self.settle()

    async def settle(self) -> None:
        """Return when the server has read all events."""
        self._unflushed = 0
        await self._client.flush(timeout=60)

    async def close(self) -> None:
        """Disconnect."""
        await self._client.close()


class NatsReceiver:
    """One subscription per topic, with a callback."""

    def __init__(self, url: str, topics: Sequence[str]) -> None:
        self._url = url
        self._topics = topics

    async def open(self, tally: Tally) -> None:
        """Subscribe."""
        client = self._client = await nats.connect(self._url, allow_reconnect=False)

        async def receive(message: Msg) -> None:
            tally.take(message.data)

        for topic in self._topics:
            await client.subscribe(
                topic,
                cb=receive,
                pending_msgs_limit=UNREAD_MAX,
                pending_bytes_limit=UNREAD_BYTES_MAX,
            )
        await client.flush(timeout=60)

    async def close(self) -> None:
        """Disconnect."""
        await self._client.close()


class JetStreamSender:
    """Published without waiting for each, `IN_FLIGHT_MAX` in flight."""

    def __init__(self, url: str, topics: Sequence[str]) -> None:
        del topics
        self._url = url

    async def open(self) -> None:
        """Connect."""
        self._client: Client = await nats.connect(self._url, allow_reconnect=False)
        self._stream: JetStreamContext = self._client.jetstream(
            publish_async_max_pending=IN_FLIGHT_MAX
        )

    async def send(self, batch: Sequence[tuple[str, bytes]]) -> None:
        """Publish each event; waits while too many are in flight."""
        # With a timeout it would yield to the event loop for each event: twice as slow.
        publish = self._stream.publish_async
        for topic, payload in batch:
            await publish(f"{ONE}.{topic}", payload)

    async def settle(self) -> None:
        """Wait for all acknowledgements."""
        await self._stream.publish_async_completed()

    async def lanes(self, count: int) -> Sequence[Lane]:
        """Let all tasks share the connection."""

        async def publish(topic: str, payload: bytes) -> None:
            await self._stream.publish(f"{ONE}.{topic}", payload, timeout=60)

        return [publish] * count

    async def close(self) -> None:
        """Disconnect."""
        await self._client.close()


class JetStreamReceiver:
    """One file stream per topic, each read by an ordered consumer."""

    one = False

    def __init__(self, url: str, topics: Sequence[str]) -> None:
        self._url = url
        self._topics = topics

    async def open(self, tally: Tally) -> None:
        """Create the streams if missing, and read them."""
        client = self._client = await nats.connect(self._url, allow_reconnect=False)
        context = client.jetstream(timeout=60)

        async def receive(message: Msg) -> None:
            tally.take(message.data)

        for name, subject in self._streams():
            await context.add_stream(name=name, subjects=[subject])
            await context.subscribe(
                subject,
                stream=name,
                cb=receive,
                ordered_consumer=True,
                idle_heartbeat=HEARTBEAT_S,
                pending_msgs_limit=UNREAD_MAX,
                pending_bytes_limit=UNREAD_BYTES_MAX,
            )
        await client.flush(timeout=60)

    def _streams(self) -> list[tuple[str, str]]:
        if self.one:
            return [(ONE, f"{ONE}.>")]
        return [(f"stream-{topic}", f"{ONE}.{topic}") for topic in self._topics]

    async def close(self) -> None:
        """Disconnect."""
        await self._client.close()


class OneJetStreamReceiver(JetStreamReceiver):
    """All topics in one file stream, read by one ordered consumer."""

    one = True
