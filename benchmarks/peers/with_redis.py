"""Redis streams and pub/sub through the blocking client, two thirds the cost of the asyncio one.

Publishers send a list of events as one pipeline; subscribers read in a thread. Many tasks that wait
for receipts use the asyncio client with a connection for each task, which is faster than a pool or
threads.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

import redis
from benchmarks.peers.clients import Lane
from benchmarks.peers.tally import Tally
from redis.asyncio import Redis as AsyncRedis

__all__ = [
    "OneRedisReceiver",
    "OneRedisSender",
    "PubSubReceiver",
    "PubSubSender",
    "RedisReceiver",
    "RedisSender",
]

READ_COUNT = 1_000
"""Maximum entries per stream in one XREAD."""
BLOCK_MS = 500
ONE = "everything"
"""The stream of all events."""
PAYLOAD, TOPIC = b"p", b"t"


def _connect(url: str) -> "redis.Redis":
    return redis.Redis.from_url(url, protocol=2, socket_timeout=60)


class RedisSender:
    """One stream per topic; a list of events is one pipeline."""

    def __init__(self, url: str, topics: Sequence[str]) -> None:
        del topics
        self._url = url
        self._client = _connect(url)
        self._more: list[AsyncRedis] = []

    async def open(self) -> None:
        """Connect."""
        self._client.ping()

    async def send(self, batch: Sequence[tuple[str, bytes]]) -> None:
        """Add all with one write, and read all answers."""
        pipeline = self._client.pipeline(transaction=False)
        for topic, payload in batch:
            self._add(pipeline, topic, payload)
        pipeline.execute()

    def _add(self, client: Any, topic: str, payload: bytes) -> Any:
        return client.xadd(topic, {PAYLOAD: payload})

    async def settle(self) -> None:
        """Do nothing: every command was answered."""

    async def lanes(self, count: int) -> Sequence[Lane]:
        """Return one lane on the blocking client, or several on connections of their own."""
        if count == 1:

            async def add(topic: str, payload: bytes) -> None:
                self._add(self._client, topic, payload)

            return [add]
        while len(self._more) < count:
            client = AsyncRedis.from_url(
                self._url, protocol=2, socket_timeout=60, single_connection_client=True
            )
            await client.ping()
            self._more.append(client)
        return [partial(self._add, client) for client in self._more[:count]]

    async def close(self) -> None:
        """Disconnect."""
        for client in self._more:
            await client.aclose()
        self._client.close()


class OneRedisSender(RedisSender):
    """All topics in one stream, with the topic in a field."""

    def _add(self, client: Any, topic: str, payload: bytes) -> Any:
        return client.xadd(ONE, {TOPIC: topic, PAYLOAD: payload})


class PubSubSender(RedisSender):
    """One channel per topic."""

    def _add(self, client: Any, topic: str, payload: bytes) -> Any:
        return client.publish(topic, payload)


class RedisReceiver:
    """One XREAD for all streams, in a thread."""

    one = False

    def __init__(self, url: str, topics: Sequence[str]) -> None:
        self._client = _connect(url)
        self._topics = (ONE,) if self.one else topics
        self._closed = False

    async def open(self, tally: Tally) -> None:
        """Connect, and read from the beginning."""
        self._client.ping()
        self._reading = asyncio.create_task(asyncio.to_thread(self._read, tally))

    def _read(self, tally: Tally) -> None:
        places: dict[Any, Any] = {topic.encode(): b"0-0" for topic in self._topics}
        while not self._closed:
            found: Any = self._client.xread(places, count=READ_COUNT, block=BLOCK_MS)
            for stream, entries in found:
                tally.take_all([fields[PAYLOAD] for _, fields in entries])
                places[stream] = entries[-1][0]

    async def close(self) -> None:
        """Disconnect, once the last read has ended."""
        self._closed = True
        await self._reading
        self._client.close()


class OneRedisReceiver(RedisReceiver):
    """All topics from one stream."""

    one = True


class PubSubReceiver:
    """Redis channels, read in a thread."""

    def __init__(self, url: str, topics: Sequence[str]) -> None:
        self._client = _connect(url)
        self._topics = topics
        self._closed = False

    async def open(self, tally: Tally) -> None:
        """Subscribe; return when Redis has confirmed."""
        reader = self._reader = self._client.pubsub()  # type: ignore[no-untyped-call]
        reader.subscribe(*self._topics)
        for _ in self._topics:
            reader.get_message(timeout=60)
        self._reading = asyncio.create_task(asyncio.to_thread(self._read, tally))

    def _read(self, tally: Tally) -> None:
        get_message, take = self._reader.get_message, tally.take
        while not self._closed:
            message = get_message(timeout=BLOCK_MS / 1000)
            if message is not None:
                take(message["data"])

    async def close(self) -> None:
        """Disconnect, once the last read has ended."""
        self._closed = True
        await self._reading
        self._reader.close()
        self._client.close()
