"""The queue of pending messages to a broker."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from itertools import islice

from ensue.transports.brokers.session import Place

__all__ = ["MESSAGE_BYTES_OVERHEAD", "Outbox"]

MESSAGE_BYTES_OVERHEAD = 128
"""Bytes counted for each message besides its data, so that empty ones can't fill the memory."""
BATCH_MESSAGES_MAX = 1_000
BATCH_BYTES_MAX = 1024 * 1024
"""A batch ends with the message that reaches one of these."""


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
        """Remove the first messages."""
        for _ in range(count):
            _, data = self._messages.popleft()
            self.bytes -= len(data) + MESSAGE_BYTES_OVERHEAD

    def _next_batch(self) -> list[tuple[Place, bytes]]:
        """Return the first messages, up to the limits of a batch."""
        batch = []
        size = 0
        for message in islice(self._messages, BATCH_MESSAGES_MAX):
            batch.append(message)
            size += len(message[1])
            if size >= BATCH_BYTES_MAX:
                break
        return batch
