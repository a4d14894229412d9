"""`cancel_at`: cancel an operation where it waits for the n-th time.

A task can be cancelled wherever it suspends: at each `await` that gives control to the event loop.
Code that is correct when it is cancelled at one of these points may be wrong at the next. So a test
tries them all: 1, 2, 3, … until the operation ends before that point.
"""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from types import coroutine
from typing import Any, Generic, TypeVar

import msgspec

__all__ = ["Attempt", "cancel_at"]

T = TypeVar("T")


class Attempt(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """What became of an operation that was to be cancelled."""

    suspensions: int
    """How often it suspended, also while it handled the cancellation."""
    reached: bool
    """Whether it suspended often enough; if not, it was not cancelled."""
    cancelled: bool
    """Whether it ended as cancelled."""
    result: T | None = None
    """What it returned, if it did."""


async def cancel_at(
    operation: Awaitable[T], suspension: int, *, late: bool = False, again: bool = False
) -> Attempt[T]:
    """Run an operation in a task; cancel it at its n-th suspension, from 1 on.

    It is cancelled while it waits, or with `late` when what it waits for is done and before it goes
    on: a result that it was about to get is lost unless it takes care. With `again` it is cancelled
    a second time at its next suspension. Raises what the operation raises, unless it was cancelled.
    If this call itself is cancelled, so is the operation.
    """
    loop = asyncio.get_running_loop()
    count, reached = 0, False

    def suspended(waits_for: Any) -> None:
        nonlocal count, reached
        count += 1
        if count != suspension and not (again and count == suspension + 1):
            return
        reached = True
        if late and asyncio.isfuture(waits_for):
            # Before its task is woken: the task adds its own callback afterwards.
            waits_for.add_done_callback(lambda _done: task.cancel())
        else:
            loop.call_soon(task.cancel)

    async def run() -> T:
        return await _observed(operation, suspended)

    task: asyncio.Task[T] = loop.create_task(run())
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait([task])
        raise
    done = None if task.cancelled() else task.result()
    return Attempt(suspensions=count, reached=reached, cancelled=task.cancelled(), result=done)


@coroutine
def _observed(operation: Awaitable[T], suspended: Callable[[Any], None]) -> Generator[Any, Any, T]:
    """Run an awaitable; call `suspended` with what it waits for each time it suspends."""
    steps = operation.__await__()
    try:
        waits_for = next(steps)
        while True:
            suspended(waits_for)
            try:
                sent = yield waits_for
            except BaseException as error:  # noqa: BLE001 - thrown into the operation
                waits_for = steps.throw(error)
            else:
                waits_for = steps.send(sent)
    except StopIteration as end:
        result: T = end.value
        return result
