"""What lasts from one run of a subscription to the next, and whether one is going on."""

import asyncio
from collections.abc import Callable, Collection

from ensue.client.received import ReceivedEvent

__all__ = ["ReadAhead"]

Task = asyncio.Task[None]


class ReadAhead:
    """What a subscription remembers from one run to the next."""

    def __init__(self) -> None:
        self.left: list[ReceivedEvent] = []
        """What the last run read and did not finish."""
        self._over = asyncio.Event()
        self._over.set()
        self._tasks: set[Task] = set()
        self._pass_over: Callable[[Collection[str]], None] | None = None

    @property
    def running(self) -> bool:
        """Whether a run is going on."""
        return not self._over.is_set()

    def begin(self, tasks: set[Task], pass_over: Callable[[Collection[str]], None]) -> None:
        """Note that a run has begun, what its tasks are, which change, and how it is told that topics are left."""
        self._over.clear()
        self._tasks = tasks
        self._pass_over = pass_over

    def end(self) -> None:
        """Note that it is over."""
        self._over.set()
        self._pass_over = None

    def leave(self, topics: Collection[str]) -> list[int]:
        """Have no handler called with what was read of topics; return the positions of what no run knows of any more."""
        if self._pass_over is not None:
            self._pass_over(topics)
            return []
        gone = [event.position for event in self.left if event.topic in topics]
        self.left = [event for event in self.left if event.topic not in topics]
        return gone

    async def until_over(self) -> None:
        """Wait until no run is going on; a handler does not wait for its own."""
        if asyncio.current_task() not in self._tasks:
            await self._over.wait()
