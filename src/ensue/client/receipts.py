"""What became of published events: who waits for which, and what failed with nobody waiting."""

import asyncio
from collections.abc import Callable
from itertools import islice

from ensue.client.futures import fail
from ensue.errors import EnsueError, EventVoided, refused_event
from ensue.event import Event, event_id
from ensue.protocols.core import Settle

__all__ = ["Receipts"]

Key = tuple[str, int]
"""The topic of an event and its number there."""
Receipt = asyncio.Future[Event]


class Receipts:
    """The events of one bus that are not settled."""

    __slots__ = ("_failure", "_flushes", "_loop", "_room", "_room_at", "open")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.open: dict[Key, Receipt | None] = {}
        """None: nobody waits, and a failure is kept for `flush`."""
        self._failure: Exception | None = None
        self._flushes: dict[asyncio.Future[None], set[Key]] = {}
        """Those who wait for everything that was under way when they asked, and what is left of it."""
        self._room: asyncio.Future[None] | None = None
        """Made by whoever waits until fewer are open than `_room_at`."""
        self._room_at = 0

    def __len__(self) -> int:
        return len(self.open)

    def expect(self, event: Event, *, wanted: bool) -> Receipt | None:
        """Note that an event is under way; return what to wait for if its receipt is wanted."""
        receipt = self._loop.create_future() if wanted else None
        self.open[event.topic, event.publisher_seq] = receipt
        return receipt

    def settle(self, outcome: Settle) -> None:
        """Note the fate of an event."""
        event = outcome.event
        key = (event.topic, event.publisher_seq)
        try:
            receipt = self.open.pop(key)
        except KeyError:
            return  # Given up before.
        if outcome.verdict or outcome.reason:
            error = _failure(outcome)
            if receipt is None:
                self._failure = self._failure or error
            else:
                fail(receipt, error)
        elif receipt is not None and not receipt.done():
            receipt.set_result(outcome.stamped)
        if self._room is not None:
            self._tell_of_room()
        if self._flushes:
            self._tell_flushes(key)

    async def wait_for_room(self, limit: int) -> None:
        """Wait until fewer than `limit` events are under way."""
        while len(self.open) >= limit:
            if self._room is None:
                self._room, self._room_at = self._loop.create_future(), limit
            # Shared by all who wait: cancelling one of them must not wake the others.
            await asyncio.shield(self._room)

    def ids(self, publisher: str, most: int) -> tuple[str, ...]:
        """Return the ids of the events that are under way, the first ones of many."""
        return tuple(
            event_id(publisher, topic, number) for topic, number in islice(self.open, most)
        )

    async def wait_for_all(self) -> None:
        """Wait until everything that is under way now is settled."""
        if self.open:
            done: asyncio.Future[None] = self._loop.create_future()
            self._flushes[done] = set(self.open)
            try:
                await done
            finally:
                del self._flushes[done]

    def take_failure(self) -> Exception | None:
        """Return, once, the first failure that nobody waited for."""
        failure, self._failure = self._failure, None
        return failure

    def fail_all(self, error: Callable[[str, int], EnsueError]) -> None:
        """Give everything up."""
        for (topic, number), receipt in self.open.items():
            if receipt is not None:
                fail(receipt, error(topic, number))
            elif self._failure is None:
                self._failure = error(topic, number)
        self.open.clear()
        self._tell_of_room()
        for done in self._flushes:
            if not done.done():
                done.set_result(None)

    def _tell_of_room(self) -> None:
        room = self._room
        if room is not None and len(self.open) < self._room_at:
            self._room = None
            room.set_result(None)

    def _tell_flushes(self, key: Key) -> None:
        for done, waiting in self._flushes.items():
            waiting.discard(key)
            if not waiting and not done.done():
                done.set_result(None)


def _failure(outcome: Settle) -> EnsueError:
    event = outcome.event
    if outcome.reason:
        return refused_event(
            f"{event.id} was refused: {outcome.reason}", event=event.id, reason=outcome.reason
        )
    return EventVoided(
        f"{event.id} lost its place in the order and reached nobody; publish it again",
        event=event.id,
    )
