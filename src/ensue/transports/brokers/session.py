"""One connection with a broker, and the tasks that end with it."""

import asyncio
from collections.abc import Awaitable, Coroutine, Sequence
from typing import Any

__all__ = ["Place", "Session", "end", "finished"]

AGAIN_S = 0.05
"""A task that swallowed being cancelled is cancelled again after so long."""

Place = tuple[str, str]
"""Where messages go: an inbox or a topic, and its name."""


class Session:
    """One connection with a broker, from its making until it is lost."""

    def __init__(self) -> None:
        self.taken: set[Place] = set()
        """What the broker has agreed to give."""
        self.changing: dict[Place, asyncio.Task[None]] = {}
        """Requests to the broker to give a place, or to drop it. They end with the session."""
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

    def holds(self, place: Place) -> bool:
        """Tell whether the broker gives a place, or is being asked about it."""
        return place in self.taken or place in self.changing

    def change(self, place: Place, changing: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begin to ask the broker about a place; the task is removed when it ends."""
        task = self.changing[place] = asyncio.create_task(changing)
        task.add_done_callback(_look)
        return task

    async def during(self, call: Awaitable[None]) -> None:
        """Await something, but not beyond the session."""
        task = asyncio.ensure_future(call)
        task.add_done_callback(_look)
        try:
            ends: list[asyncio.Future[Any]] = [task, self.lost]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end([task])
        if task.cancelled():
            raise ConnectionError(self.lost.result() if self.lost.done() else "cancelled")
        task.result()

    def _end(self, reader: asyncio.Task[None]) -> None:
        ended = "cancelled" if reader.cancelled() else reader.exception()
        while isinstance(ended, BaseExceptionGroup):
            ended = ended.exceptions[0]
        self.lose(ended or "the connection was closed")


def _look(done: asyncio.Future[None]) -> None:
    """Mark a failure as seen: there may be no waiter."""
    if not done.cancelled():
        done.exception()


async def finished(task: asyncio.Task[None]) -> None:
    """Wait for a task; being cancelled here does not cancel it."""
    await asyncio.wait([task])
    if task.cancelled():
        raise ConnectionError("ended with the session")
    task.result()


async def end(tasks: Sequence[asyncio.Future[None]]) -> None:
    """Cancel tasks for good: clients are known to swallow it."""
    while any(not task.done() for task in tasks):
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=AGAIN_S)
    for task in tasks:
        _look(task)
