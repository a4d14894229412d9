"""One connection with a broker, and the tasks that end with it."""

import asyncio
from collections.abc import Awaitable, Coroutine, Sequence
from typing import Any

__all__ = ["Place", "Session", "end", "wait_for_task"]

AGAIN_S = 0.05
"""How long to wait before a task that swallowed a cancellation is cancelled again."""

Place = tuple[str, str]
"""The target of a message: inbox or topic, and its name."""


class Session:
    """One connection with a broker, until it is lost."""

    def __init__(self) -> None:
        self.subscribed: set[Place] = set()
        """Places that the broker has confirmed."""
        self.changing: dict[Place, asyncio.Task[None]] = {}
        """Tasks that subscribe or unsubscribe. They end with the session."""
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """The reason, once the session is lost."""
        self.reader: asyncio.Task[None] | None = None

    def lose(self, reason: object) -> None:
        """Mark the session as lost; the first reason counts."""
        if not self.lost.done():
            self.lost.set_result(str(reason) or type(reason).__name__)

    def read(self, reading: Coroutine[Any, Any, None]) -> None:
        """Start the reader; the session is lost when it ends."""
        self.reader = asyncio.create_task(reading)
        self.reader.add_done_callback(self._end)

    def holds(self, place: Place) -> bool:
        """Return whether a place is subscribed, or about to change."""
        return place in self.subscribed or place in self.changing

    def change(self, place: Place, changing: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task that subscribes or unsubscribes a place."""
        task = self.changing[place] = asyncio.create_task(changing)
        task.add_done_callback(_mark_seen)
        return task

    async def during(self, call: Awaitable[None]) -> None:
        """Await a call; raise `ConnectionError` if the session is lost first."""
        task = asyncio.ensure_future(call)
        task.add_done_callback(_mark_seen)
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


def _mark_seen(done: asyncio.Future[None]) -> None:
    """Retrieve the exception: there may be no waiter."""
    if not done.cancelled():
        done.exception()


async def wait_for_task(task: asyncio.Task[None]) -> None:
    """Wait for a task; cancelling the wait does not cancel the task."""
    await asyncio.wait([task])
    if task.cancelled():
        raise ConnectionError("ended with the session")
    task.result()


async def end(tasks: Sequence[asyncio.Future[None]]) -> None:
    """Cancel tasks until they end: client libraries swallow cancellations."""
    while any(not task.done() for task in tasks):
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=AGAIN_S)
    for task in tasks:
        _mark_seen(task)
