"""What is to go out to a broker, and is kept while it can't."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from itertools import islice

from ensue.transports.brokers.session import Place

__all__ = ["MESSAGE_BYTES_OVERHEAD", "Outbox"]

MESSAGE_BYTES_OVERHEAD = 128
"""What a pending message weighs beyond its data, so that empty ones can't fill the memory."""
BATCH_MESSAGES_MAX = 1_000
BATCH_BYTES_MAX = 1024 * 1024
"""A batch ends with the message that reaches one of these."""


class Outbox:
    """Messages in the order they were sent, up to a number of bytes."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        """`MESSAGE_BYTES_OVERHEAD` a message included."""
        self.wake = asyncio.Event()
        """Set when there may be something to write."""
        self.idle = asyncio.Event()
        """Set while everything is written."""
        self.idle.set()
        self._messages: deque[tuple[Place, bytes]] = deque()

    def __len__(self) -> int:
        return len(self._messages)

    def put(self, place: Place, data: bytes) -> bool:
        """Keep a message; False: there is no room for it."""
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
        """Write messages as they come, forever; unfinished batches again if it `repeats`."""
        while True:
            await self.wake.wait()
            self.wake.clear()
            while self._messages:
                batch = self._next_batch()
                written = False
                try:
                    await write(batch)
                    written = True
                finally:
                    if written or not repeats:
                        self.forget(len(batch))
                await asyncio.sleep(0)
            self.idle.set()

    def forget(self, count: int) -> None:
        """Keep the first messages no longer."""
        for _ in range(count):
            _, data = self._messages.popleft()
            self.bytes -= len(data) + MESSAGE_BYTES_OVERHEAD

    def _next_batch(self) -> list[tuple[Place, bytes]]:
        """Return the first messages, as many as are written at once."""
        batch = []
        size = 0
        for message in islice(self._messages, BATCH_MESSAGES_MAX):
            batch.append(message)
            size += len(message[1])
            if size >= BATCH_BYTES_MAX:
                break
        return batch
