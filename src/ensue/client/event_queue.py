"""The received and unread events of a subscription."""

import asyncio
from collections import deque
from collections.abc import Collection

from ensue.protocols.interface import Deliver

__all__ = ["EventQueue"]


class EventQueue:
    """Unread events in the order of delivery, and the task that waits for the next one."""

    __slots__ = ("_waiter", "unread")

    def __init__(self) -> None:
        self.unread: deque[Deliver] = deque()
        self._waiter: asyncio.Future[None] | None = None

    @property
    def has_reader(self) -> bool:
        """Whether a task waits for the next event; a cancelled one does not."""
        return self._waiter is not None and not self._waiter.cancelled()

    def wake(self) -> None:
        """Wake the waiting task, if any."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def until_woken(self) -> None:
        """Wait for `wake`."""
        waiter = self._waiter = asyncio.get_running_loop().create_future()
        try:
            await waiter
        finally:
            # Another reader may have taken the place of a cancelled one.
            if self._waiter is waiter:
                self._waiter = None

    def of(self, topics: Collection[str]) -> list[Deliver]:
        """Return the unread events of topics."""
        return [each for each in self.unread if each.event.topic in topics]

    def drop(self, topics: Collection[str]) -> None:
        """Drop the unread events of topics."""
        self.unread = deque(each for each in self.unread if each.event.topic not in topics)
