"""Topics that a subscription joins or leaves, and the tasks that wait for that.

Outcomes of a node lag behind commands, while a durable subscription waits for its state store.
Everything about a topic that was left is ignored until its `Leave`: it belongs to the subscription
that was ended.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from ensue.client.failures import fail
from ensue.protocols.interface import Leave

__all__ = ["Missed", "TopicChanges"]

MISSED_MAX = 1_000
"""Gaps that are remembered."""

_log = logging.getLogger("ensue")


class Missed(NamedTuple):
    """Events of a topic that a subscription missed: no log has them any longer."""

    topic: str
    first: int
    """Its slot in the topic; in causal order, its number among its publisher's events there."""
    last: int


class TopicChanges:
    """The topics that a subscription joins and leaves."""

    __slots__ = ("_all_left", "_futures", "asked", "leaving", "missed")

    def __init__(self) -> None:
        self.asked: dict[str, None] = {}
        """Topics asked for and not left: in effect, or joining."""
        self.missed: deque[Missed] = deque(maxlen=MISSED_MAX)
        self.leaving: dict[str, int] = {}
        """Topics that were left, to the number of outstanding `Leave` outcomes."""
        self._futures: dict[str, asyncio.Future[None]] = {}
        self._all_left = asyncio.Event()
        """Set while no `Leave` is outstanding."""
        self._all_left.set()

    def miss(self, subscription: str, topic: str, first: int, last: int) -> None:
        """Note that events can't be recovered."""
        self.missed.append(Missed(topic, first, last))
        _log.warning(
            "events missed subscription=%s topic=%s first=%d last=%d: no log has them any longer",
            subscription,
            topic,
            first,
            last,
        )

    def ask(
        self, topics: Iterable[str], *, joined: tuple[str, ...]
    ) -> "list[asyncio.Future[None]]":
        """Note that topics were asked for; return what to wait for."""
        loop = asyncio.get_running_loop()
        waiting: dict[str, asyncio.Future[None]] = {}
        for topic in topics:
            self.asked[topic] = None
            if topic not in joined:
                if topic not in self._futures:
                    self._futures[topic] = loop.create_future()
                waiting[topic] = self._futures[topic]
        return list(waiting.values())

    def joined(self, topic: str) -> None:
        """Note that a topic is in effect."""
        future = self._futures.pop(topic, None)
        if future is not None and not future.done():
            future.set_result(None)

    def give_up(self, topic: str, error: Exception) -> None:
        """Fail tasks that wait for a topic: it will not be joined."""
        self.asked.pop(topic, None)
        future = self._futures.pop(topic, None)
        if future is not None:
            fail(future, error)

    def leave(self, topics: Iterable[str]) -> None:
        """Note that topics in effect were left: ignore their outcomes until `Leave`."""
        for topic in topics:
            self.leaving[topic] = self.leaving.get(topic, 0) + 1
            self._all_left.clear()

    def left(self, outcome: Leave) -> None:
        """Count a `Leave`, unless the node rejoins the topic itself."""
        count = self.leaving.pop(outcome.topic, 0) - (not outcome.rejoins)
        if count > 0:
            self.leaving[outcome.topic] = count
        if not self.leaving:
            self._all_left.set()

    def stop_leaving(self) -> None:
        """Expect no more `Leave` outcomes: the subscription has ended."""
        self.leaving.clear()
        self._all_left.set()

    async def until_left(self) -> None:
        """Wait until the server knows of every topic that was left."""
        await self._all_left.wait()

    def waiting(self) -> list[str]:
        """Return the topics that a task waits to join."""
        return list(self._futures)
