"""Ensue's client: publishers wait for all receipts at the end."""

import asyncio
import contextlib
from collections.abc import Sequence

from benchmarks.peers.clients import Lane
from benchmarks.peers.tally import Tally

import ensue

__all__ = ["EnsueReceiver", "EnsueSender"]


class EnsueSender:
    """Publishes without waiting, and waits for all receipts at the end."""

    def __init__(self, url: str, topics: Sequence[str]) -> None:
        del topics
        self._bus = ensue.connect(url)

    async def open(self) -> None:
        """Connect."""
        await self._bus.__aenter__()

    async def send(self, batch: Sequence[tuple[str, bytes]]) -> None:
        """Publish each event; the client writes them together."""
        publish = self._bus.publish
        for topic, payload in batch:
            await publish(topic, payload, receipt=False)

    async def settle(self) -> None:
        """Wait for all receipts."""
        await self._bus.flush()

    async def lanes(self, count: int) -> Sequence[Lane]:
        """Let all tasks share the bus."""
        return [self._bus.publish] * count

    async def close(self) -> None:
        """Disconnect."""
        await self._bus.close()


class EnsueReceiver:
    """Iterates over one subscription to all topics."""

    def __init__(self, url: str, topics: Sequence[str]) -> None:
        self._bus = ensue.connect(url)
        self._topics = topics

    async def open(self, tally: Tally) -> None:
        """Subscribe, and read in a task."""
        await self._bus.__aenter__()
        self._subscription = await self._bus.subscribe(*self._topics).__aenter__()
        self._reading = asyncio.create_task(self._read(tally))

    async def _read(self, tally: Tally) -> None:
        take = tally.take
        async for event in self._subscription:
            take(event.payload)

    async def close(self) -> None:
        """Unsubscribe and disconnect."""
        self._reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reading
        await self._bus.close()
