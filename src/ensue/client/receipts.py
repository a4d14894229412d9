"""Receipts of published events, and events in doubt: those without a receipt."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from itertools import islice
from typing import cast

from ensue.client.failures import fail
from ensue.client.validation import check_seconds
from ensue.core.errors import (
    EnsueError,
    EventRefused,
    EventsInDoubt,
    EventVoided,
    PublishedInPart,
    PublishTimeout,
    refused_event,
)
from ensue.core.event import Event, event_id
from ensue.protocols.interface import Settle

__all__ = [
    "ManyReceipts",
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

NO_ROOM = "publish timed out before there was room: nothing was published; try again"

Key = tuple[str, int]
"""The topic of an event and its number there."""
Receipt = asyncio.Future[Event]


class ManyReceipts:
    """The receipts of the events of one call, awaited together."""

    __slots__ = ("_done", "_failed", "_results", "events")

    def __init__(self) -> None:
        self.events: list[Event] = []
        """As they were published, in that sequence."""
        self._results: dict[Key, Event | EnsueError] = {}
        """By event: stamped, or why it has no receipt."""
        self._failed = False
        self._done: asyncio.Future[None] | None = None
        """Made by the task that waits."""

    def settle(self, key: Key, stamped: Event) -> None:
        """Take the receipt of an event."""
        self._results[key] = stamped
        if self._done is not None:
            self._wake()

    def fail(self, key: Key, error: EnsueError) -> None:
        """Take the failure of an event."""
        self._results[key] = error
        self._failed = True
        if self._done is not None:
            self._wake()

    @property
    def stamped(self) -> list[Event]:
        """The events with a receipt."""
        return [each for each in self._results.values() if type(each) is Event]

    async def wait(self, by_s: float | None) -> None:
        """Wait for all events, up to a time of the event loop; None: as long as it takes."""
        if len(self._results) == len(self.events):
            return
        self._done = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout_at(by_s) as limit:
                await self._done
        except TimeoutError:
            if not limit.expired():
                raise

    def outcome(self, planned: int, stopped: EnsueError | None, *, wanted: bool) -> list[Event]:
        """Return the events, stamped if receipts are wanted; raise if one has none then.

        `stopped` is why not all of the `planned` events were published.
        """
        if not wanted:
            if stopped is not None:
                raise published_in_part(planned, len(self.events), {}, stopped)
            return self.events
        results = [self._results.get((each.topic, each.publisher_seq)) for each in self.events]
        if not self._failed and stopped is None and len(self._results) == planned:
            return cast("list[Event]", results)
        failures: dict[int, EnsueError] = {}
        doubtful: list[str] = []
        closed = False
        for index, result in enumerate(results):
            if result is None or isinstance(result, EventsInDoubt):
                doubtful.append(self.events[index].id)
                closed = closed or result is not None
            elif isinstance(result, EventVoided | EventRefused):
                failures[index] = result
            elif isinstance(result, EnsueError):
                raise result  # The bus can no longer be used.
        part = None
        if failures or stopped is not None:
            part = published_in_part(planned, len(results), failures, stopped)
        if doubtful:
            what = "the bus was closed" if closed else "publish_many timed out"
            ids = tuple(doubtful[: EventsInDoubt.IDS_MAX])
            raise events_in_doubt(
                f"{what} before all receipts arrived", ids, len(doubtful)
            ) from part
        assert part is not None
        raise part

    def _wake(self) -> None:
        done = self._done
        if done is not None and not done.done() and len(self._results) == len(self.events):
            done.set_result(None)


def published_in_part(
    planned: int, published: int, failures: Mapping[int, EnsueError], stopped: EnsueError | None
) -> PublishedInPart:
    """Return the error of a call that published some of its events and not others."""
    why = []
    if failures:
        index, error = next(iter(failures.items()))
        why.append(f"{len(failures):,} of {planned:,} events failed, first pairs[{index}]: {error}")
    if stopped is not None:
        why.append(f"only the first {published:,} of {planned:,} events were published: {stopped}")
    part = PublishedInPart("; ".join(why), published=published, failures=failures)
    part.__cause__ = stopped
    return part


class Receipts:
    """The events of one bus without a receipt."""

    __slots__ = ("_failure", "_flushes", "_loop", "_on_unwanted", "_room", "_room_at", "open")

    def __init__(self, on_unwanted: Callable[[Event], None] | None = None) -> None:
        self._on_unwanted = on_unwanted
        """Called with each settled event that was published with `receipt=False`."""
        self._loop = asyncio.get_running_loop()
        self.open: dict[Key, Receipt | ManyReceipts | None] = {}
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

    def expect_with(self, many: ManyReceipts, event: Event, *, wanted: bool) -> None:
        """Expect the receipt of an event of many; `wanted`: the call waits for it."""
        many.events.append(event)
        self.open[event.topic, event.publisher_seq] = many if wanted else None

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
                _fail(receipt, key, error)
        elif receipt is None:
            if self._on_unwanted is not None:
                self._on_unwanted(outcome.stamped)
        elif isinstance(receipt, ManyReceipts):
            receipt.settle(key, outcome.stamped)
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
                _fail(receipt, (topic, number), error(topic, number))
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


def _fail(receipt: Receipt | ManyReceipts, key: Key, error: EnsueError) -> None:
    if isinstance(receipt, ManyReceipts):
        receipt.fail(key, error)
    else:
        fail(receipt, error)


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
        raise PublishTimeout(NO_ROOM) from None


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
