"""What readers got from `async for`, to compare with what the trace says was delivered."""

import asyncio
from collections.abc import Sequence
from random import Random

import ensue
from ensue.core.trace import Row

__all__ = ["Taken"]


class Taken:
    """The events that applications got, by subscription."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._events: dict[tuple[str, str], None] = {}
        self._watched: dict[str, None] = {}

    def watch(self, subscription: ensue.Subscription) -> None:
        """Compare a subscription: its application notes every event that it gets."""
        self._watched[subscription.name] = None

    def take(self, subscription: ensue.Subscription, event: ensue.ReceivedEvent) -> None:
        """Note that an application got an event."""
        self._events[subscription.name, event.id] = None

    async def snatch(self, subscription: ensue.Subscription) -> None:
        """Read an event, and be cancelled after a few turns of the event loop."""
        if self._random.random() < 0.8:
            return
        reading = asyncio.ensure_future(anext(subscription))
        for _ in range(self._random.randint(0, 3)):
            await asyncio.sleep(0)
        reading.cancel()
        try:
            self.take(subscription, await reading)
        except StopAsyncIteration:
            pass
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # The application itself was cancelled.

    def judge(self, rows: Sequence[Row]) -> list[str]:
        """Return which events count as delivered that no application got."""
        return [
            f"taken: {row.event} counts as delivered to {row.subscription}, which did not get it"
            for row in rows
            if row.action == "delivered"
            and row.subscription in self._watched
            and (row.subscription, row.event) not in self._events
        ]
