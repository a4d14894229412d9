"""One connection with a broker, and the end of whatever belongs to it."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

__all__ = ["Place", "Session", "end"]

AGAIN_S = 0.05
"""A task that swallowed being cancelled is cancelled again after so long."""

Place = tuple[str, str]
"""Where messages go: an inbox or a topic, and its name."""


class Session:
    """One connection with a broker, from its making until it is lost."""

    def __init__(self) -> None:
        self.taken: set[Place] = set()
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Why, once it is."""
        self.reader: asyncio.Task[None] | None = None

    def lose(self, reason: object) -> None:
        """Give the connection up; the first reason counts."""
        if not self.lost.done():
            self.lost.set_result(str(reason) or type(reason).__name__)

    def read(self, reading: Coroutine[Any, Any, None]) -> None:
        """Begin to read; its end is the session's."""
        self.reader = asyncio.create_task(reading)
        self.reader.add_done_callback(self._end)

    def _end(self, reader: asyncio.Task[None]) -> None:
        ended = "cancelled" if reader.cancelled() else reader.exception()
        while isinstance(ended, BaseExceptionGroup):
            ended = ended.exceptions[0]
        self.lose(ended or "the connection was closed")


async def end(tasks: Sequence[asyncio.Future[None]]) -> None:
    """Cancel tasks for good: clients are known to swallow it."""
    while any(not task.done() for task in tasks):
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=AGAIN_S)
    for task in tasks:
        if not task.cancelled():
            # What it failed of is looked at now: whoever ended it may not come to ask.
            task.exception()
