"""Topics that a subscription asked for or left, and the tasks that wait until that is in effect.

Outcomes of a node may lag behind commands, by as long as a durable subscription waits for its
state store. A topic that was left is ignored until its `Leave` comes: everything before that
belongs to a membership that has ended.
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
    """Events of a topic that a subscription did not get, because no log has them any more."""

    topic: str
    first: int
    """The number of the first in its topic; in causal order, among those of its publisher there."""
    last: int


class TopicChanges:
    """Topics on their way into a subscription, or out of it."""

    __slots__ = ("_all_left", "_futures", "asked", "leaving", "missed")

    def __init__(self) -> None:
        self.asked: dict[str, None] = {}
        """Topics asked for and not left: in effect, joining, or joining anew."""
        self.missed: deque[Missed] = deque(maxlen=MISSED_MAX)
        self.leaving: dict[str, int] = {}
        """Topics that were left, and how many times `Leave` is still to come."""
        self._futures: dict[str, asyncio.Future[None]] = {}
        self._all_left = asyncio.Event()
        """Set while no `Leave` is to come."""
        self._all_left.set()

    def miss(self, subscription: str, topic: str, first: int, last: int) -> None:
        """Note that events can't be recovered."""
        self.missed.append(Missed(topic, first, last))
        _log.warning(
            "events_missed subscription=%s topic=%s first=%d last=%d: no log has them any more",
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
        """Note that topics in effect were left: nothing counts until `Leave` comes."""
        for topic in topics:
            self.leaving[topic] = self.leaving.get(topic, 0) + 1
            self._all_left.clear()

    def left(self, outcome: Leave) -> None:
        """Note a `Leave`, unless the node joins the topic anew by itself."""
        count = self.leaving.pop(outcome.topic, 0) - (not outcome.rejoins)
        if count > 0:
            self.leaving[outcome.topic] = count
        if not self.leaving:
            self._all_left.set()

    def stop_leaving(self) -> None:
        """Wait for no `Leave` any more: the subscription is over."""
        self.leaving.clear()
        self._all_left.set()

    async def until_left(self) -> None:
        """Wait until every topic that was left is left at the server."""
        await self._all_left.wait()

    def waiting(self) -> list[str]:
        """Return the topics that a task waits to join."""
        return list(self._futures)
