"""Published events without a receipt when somebody stops waiting for it, and how people are told."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from ensue.errors import EventsInDoubt, PublishTimeout
from ensue.event import Event

__all__ = ["events_in_doubt", "log_in_doubt", "log_wait", "receipt_by", "room_by"]

SHOWN_MAX = 5
"""Events that a message names; the error has more of them."""
QUIET_S = 1.0
"""Closing that waits for longer is logged."""

_log = logging.getLogger("ensue")


def events_in_doubt(what: str, events: tuple[str, ...], count: int) -> EventsInDoubt:
    """Return the error that says which events are in doubt; `what` has happened."""
    named = ", ".join(events[:SHOWN_MAX])
    more = f" and {count - SHOWN_MAX:,} more" if count > SHOWN_MAX else ""
    they = "1 event is" if count == 1 else f"{count:,} events are"
    why = f"{what}; {they} in doubt, may be out or never be: {named}{more}"
    return EventsInDoubt(why, events=events[: EventsInDoubt.IDS_MAX], count=count)


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
            "there was no room within the timeout of publish: nothing was published"
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
    raise events_in_doubt("no receipt came within the timeout of publish", (event.id,), 1)


def log_in_doubt(error: EventsInDoubt) -> None:
    """Log which events are in doubt, where another exception is under way already."""
    _log.error("%s", error)


def log_wait(count: Callable[[], int], timeout_s: float) -> asyncio.TimerHandle:
    """Log in a moment that closing waits, unless the result is cancelled before."""

    def log() -> None:
        if waiting := count():
            _log.warning(
                "closing waits for receipts: unsettled=%d close_timeout=%gs", waiting, timeout_s
            )

    return asyncio.get_running_loop().call_later(QUIET_S, log)
