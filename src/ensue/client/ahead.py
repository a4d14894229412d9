"""What lasts from one run of a subscription to the next, and whether one is going on."""

import asyncio

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

    @property
    def running(self) -> bool:
        """Whether a run is going on."""
        return not self._over.is_set()

    def begin(self, tasks: set[Task]) -> None:
        """Note that a run has begun, and what its tasks are, which change."""
        self._over.clear()
        self._tasks = tasks

    def end(self) -> None:
        """Note that it is over."""
        self._over.set()

    async def until_over(self) -> None:
        """Wait until no run is going on; a handler does not wait for its own."""
        if asyncio.current_task() not in self._tasks:
            await self._over.wait()
