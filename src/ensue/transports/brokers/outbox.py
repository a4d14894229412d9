"""The queue of pending messages to a broker, and how many of them are written at once.

A broker has a few seconds to confirm a batch, and heartbeats wait behind it. A batch that the
network does not carry in that time ends the session, and is written again from its beginning. So
batches are as large as the network carries in about a second.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from itertools import islice

from ensue.transports.brokers.session import Place

__all__ = ["MESSAGE_BYTES_OVERHEAD", "Outbox"]

MESSAGE_BYTES_OVERHEAD = 128
"""Bytes counted for each message besides its data, so that empty ones can't fill the memory."""
BATCH_MESSAGES_MAX = 1_000
BATCH_BYTES_FIRST = 64 * 1024
BATCH_BYTES_MIN = 4 * 1024
BATCH_BYTES_MAX = 1024 * 1024
"""A batch ends with the message that reaches the limit of messages or of bytes.

That of bytes begins at the first of these and stays between the others. Overhead counts too.
"""
SLOW_S = 2.0
"""After a batch that takes longer the next is half as large; after a full one in half the time the
next is twice as large. Less than any broker's time for an answer, more than any round trip."""


class Outbox:
    """A queue of messages, up to a number of bytes."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        """Includes `MESSAGE_BYTES_OVERHEAD` for each message."""
        self.wake = asyncio.Event()
        """Set when there may be messages to write."""
        self.idle = asyncio.Event()
        """Set while all messages are written."""
        self.idle.set()
        self._messages: deque[tuple[Place, bytes]] = deque()
        self._batch_bytes = BATCH_BYTES_FIRST
        """The limit of the next batch."""

    def __len__(self) -> int:
        return len(self._messages)

    def put(self, place: Place, data: bytes) -> bool:
        """Add a message; return False if there is no room for it."""
        weight = len(data) + MESSAGE_BYTES_OVERHEAD
        if self.bytes + weight > self.bytes_max:
            return False
        self._messages.append((place, data))
        self.bytes += weight
        self.idle.clear()
        self.wake.set()
        return True

    async def drain(
        self, write: Callable[[list[tuple[Place, bytes]]], Awaitable[None]], *, repeats: bool
    ) -> None:
        """Write messages forever. If it `repeats`, an unfinished batch stays in the queue."""
        loop = asyncio.get_running_loop()
        while True:
            await self.wake.wait()
            self.wake.clear()
            while self._messages:
                batch, size = self._next_batch()
                written, begun_s = False, loop.time()
                try:
                    await write(batch)
                    written = True
                finally:
                    self._adapt(size, loop.time() - begun_s, written=written)
                    if written or not repeats:
                        self.forget(len(batch))
                await asyncio.sleep(0)
            self.idle.set()

    def forget(self, count: int) -> None:
        """Remove the first messages."""
        for _ in range(count):
            _, data = self._messages.popleft()
            self.bytes -= len(data) + MESSAGE_BYTES_OVERHEAD

    def _adapt(self, size: int, took_s: float, *, written: bool) -> None:
        """Limit the next batch by how long one of a size took, or whether it ended the session."""
        if not written or took_s > SLOW_S:
            self._batch_bytes = max(BATCH_BYTES_MIN, min(self._batch_bytes, size) // 2)
        elif size >= self._batch_bytes and took_s <= SLOW_S / 2:
            self._batch_bytes = min(BATCH_BYTES_MAX, self._batch_bytes * 2)

    def _next_batch(self) -> tuple[list[tuple[Place, bytes]], int]:
        """Return the first messages, up to the limits of a batch, and their bytes."""
        batch = []
        size = 0
        for message in islice(self._messages, BATCH_MESSAGES_MAX):
            batch.append(message)
            size += len(message[1]) + MESSAGE_BYTES_OVERHEAD
            if size >= self._batch_bytes:
                break
        return batch, size
