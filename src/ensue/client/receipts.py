"""Receipts of published events, and events in doubt: those without a receipt."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import islice

from ensue.client.failures import fail
from ensue.client.validation import check_seconds
from ensue.core.errors import (
    EnsueError,
    EventsInDoubt,
    EventVoided,
    PublishTimeout,
    refused_event,
)
from ensue.core.event import Event, event_id
from ensue.protocols.interface import Settle

__all__ = [
    "Receipts",
    "events_in_doubt",
    "log_in_doubt",
    "log_wait",
    "receipt_by",
    "room_by",
    "time_after",
]

SHOWN_MAX = 5
"""Events that a message names; the error has more of them."""
QUIET_S = 1.0
"""A longer wait while closing is logged."""

_log = logging.getLogger("ensue")

Key = tuple[str, int]
"""The topic of an event and its number there."""
Receipt = asyncio.Future[Event]


class Receipts:
    """The events of one bus without a receipt."""

    __slots__ = ("_failure", "_flushes", "_loop", "_on_unwanted", "_room", "_room_at", "open")

    def __init__(self, on_unwanted: Callable[[Event], None] | None = None) -> None:
        self._on_unwanted = on_unwanted
        """Called with each settled event that was published with `receipt=False`."""
        self._loop = asyncio.get_running_loop()
        self.open: dict[Key, Receipt | None] = {}
        """None: published with `receipt=False`; `flush` raises its failure."""
        self._failure: Exception | None = None
        self._flushes: dict[asyncio.Future[None], set[Key]] = {}
        """By task that waits in `flush`: the events that it waits for."""
        self._room: asyncio.Future[None] | None = None
        """Made by a task that waits until fewer than `_room_at` are open."""
        self._room_at = 0

    def __len__(self) -> int:
        return len(self.open)

    def expect(self, event: Event, *, wanted: bool) -> Receipt | None:
        """Expect a receipt; return what to wait for if it is wanted."""
        receipt = self._loop.create_future() if wanted else None
        self.open[event.topic, event.publisher_seq] = receipt
        return receipt

    def settle(self, outcome: Settle) -> None:
        """Take a receipt, or the failure of an event."""
        event = outcome.event
        key = (event.topic, event.publisher_seq)
        try:
            receipt = self.open.pop(key)
        except KeyError:
            return  # It has failed already.
        if outcome.verdict or outcome.reason:
            error = _failure(outcome)
            if receipt is None:
                self._failure = self._failure or error
            else:
                fail(receipt, error)
        elif receipt is None:
            if self._on_unwanted is not None:
                self._on_unwanted(outcome.stamped)
        elif not receipt.done():
            receipt.set_result(outcome.stamped)
        if self._room is not None:
            self._wake_for_room()
        if self._flushes:
            self._wake_flushes(key)

    async def wait_for_room(self, limit: int) -> None:
        """Wait until fewer than `limit` events lack a receipt."""
        while len(self.open) >= limit:
            if self._room is None:
                self._room, self._room_at = self._loop.create_future(), limit
            # Shared by all tasks that wait: cancelling one must not wake the others.
            await asyncio.shield(self._room)

    def ids(self, publisher: str, most: int) -> tuple[str, ...]:
        """Return the ids of the first `most` events without a receipt."""
        return tuple(
            event_id(publisher, topic, number) for topic, number in islice(self.open, most)
        )

    async def wait_for_all(self) -> None:
        """Wait for the receipts of everything published so far."""
        if self.open:
            done: asyncio.Future[None] = self._loop.create_future()
            self._flushes[done] = set(self.open)
            try:
                await done
            finally:
                del self._flushes[done]

    def take_failure(self) -> Exception | None:
        """Return, once, the first failure of an event published with `receipt=False`."""
        failure, self._failure = self._failure, None
        return failure

    def fail_all(self, error: Callable[[str, int], EnsueError]) -> None:
        """Fail all events without a receipt."""
        for (topic, number), receipt in self.open.items():
            if receipt is not None:
                fail(receipt, error(topic, number))
            elif self._failure is None:
                self._failure = error(topic, number)
        self.open.clear()
        self._wake_for_room()
        for done in self._flushes:
            if not done.done():
                done.set_result(None)

    def _wake_for_room(self) -> None:
        room = self._room
        if room is not None and len(self.open) < self._room_at:
            self._room = None
            room.set_result(None)

    def _wake_flushes(self, key: Key) -> None:
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
        f"{event.id} lost its place in the order and reached no subscriber: publish it again",
        event=event.id,
    )


def events_in_doubt(what: str, events: tuple[str, ...], count: int) -> EventsInDoubt:
    """Return the error that names events in doubt; `what` is the cause."""
    named = ", ".join(events[:SHOWN_MAX])
    more = f" and {count - SHOWN_MAX:,} more" if count > SHOWN_MAX else ""
    they = "1 event is" if count == 1 else f"{count:,} events are"
    why = f"{what}; {they} in doubt, may be delivered or not: {named}{more}"
    return EventsInDoubt(why, events=events[: EventsInDoubt.IDS_MAX], count=count)


def time_after(timeout_s: float | None) -> float | None:
    """Return the time of the event loop when a timeout expires; None: never."""
    if timeout_s is None:
        return None
    check_seconds(timeout_s, "timeout")
    return asyncio.get_running_loop().time() + timeout_s


@asynccontextmanager
async def room_by(by_s: float | None) -> AsyncIterator[None]:
    """Wait for room up to a time of the event loop; None: as long as it takes."""
    try:
        async with asyncio.timeout_at(by_s) as limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise PublishTimeout(
            "publish timed out before there was room: nothing was published; try again"
        ) from None


async def receipt_by(by_s: float | None, event: Event, receipt: Awaitable[Event]) -> Event:
    """Wait for a receipt up to a time of the event loop; None: as long as it takes."""
    if by_s is None:
        return await receipt
    try:
        async with asyncio.timeout_at(by_s) as limit:
            return await receipt
    except TimeoutError:
        if not limit.expired():
            raise
    raise events_in_doubt("publish timed out without a receipt", (event.id,), 1)


def log_in_doubt(error: EventsInDoubt) -> None:
    """Log events in doubt while another exception is being raised."""
    _log.error("%s", error)


def log_wait(count: Callable[[], int], timeout_s: float) -> asyncio.TimerHandle:
    """Log after `QUIET_S` that closing waits; cancel the result to prevent it."""

    def log() -> None:
        if waiting := count():
            _log.warning(
                "close waits for receipts unsettled=%d close_timeout_s=%g", waiting, timeout_s
            )

    return asyncio.get_running_loop().call_later(QUIET_S, log)
