"""`cancel_at` cancels an operation where it is told to, and nowhere else."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from ensue.testing import Attempt, cancel_at


async def steps(done: list[str]) -> str:
    for number in range(3):
        done.append(f"step {number}")
        await asyncio.sleep(0)
    return "result"


def play(work: Coroutine[Any, Any, Attempt[Any]]) -> Attempt[Any]:
    return asyncio.run(work)


@pytest.mark.parametrize("suspension", [1, 2, 3])
def test_operation_is_cancelled_at_a_suspension(suspension: int) -> None:
    done: list[str] = []
    attempt = play(cancel_at(steps(done), suspension))
    assert (attempt.reached, attempt.cancelled, attempt.result) == (True, True, None)
    assert attempt.suspensions == suspension
    assert len(done) == suspension


def test_operation_that_ends_before_is_not_cancelled() -> None:
    attempt = play(cancel_at(steps([]), 4))
    assert attempt == Attempt(suspensions=3, reached=False, cancelled=False, result="result")


@pytest.mark.parametrize("late", [False, True])
def test_late_cancellation_comes_when_the_result_is_there(*, late: bool) -> None:
    async def main() -> tuple[Attempt[str], bool]:
        waits_for: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(0.01, _set, waits_for)

        async def operation() -> str:
            return await asyncio.shield(waits_for)

        return await cancel_at(operation(), 1, late=late), waits_for.done()

    attempt, was_done = asyncio.run(main())
    assert (attempt.cancelled, was_done) == (True, late)


def _set(future: "asyncio.Future[str]") -> None:
    future.set_result("lost")


def test_second_cancellation_strikes_the_cleanup() -> None:
    done: list[str] = []

    async def operation() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            await asyncio.sleep(0)
            done.append("clean")

    assert play(cancel_at(operation(), 1)).cancelled
    assert done == ["clean"]
    assert play(cancel_at(operation(), 1, again=True)).cancelled
    assert done == ["clean"]


def test_operation_that_swallows_the_cancellation_was_reached() -> None:
    async def operation() -> str:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            return "swallowed"
        return "ended"

    attempt = play(cancel_at(operation(), 1))
    assert (attempt.reached, attempt.cancelled, attempt.result) == (True, False, "swallowed")


def test_errors_of_the_operation_are_raised() -> None:
    async def operation() -> None:
        await asyncio.sleep(0)
        raise ValueError("its own")

    with pytest.raises(ValueError, match="its own"):
        play(cancel_at(operation(), 5))


def test_operation_ends_with_the_caller() -> None:
    async def main() -> bool:
        ended = asyncio.Event()

        async def operation() -> None:
            try:
                await asyncio.sleep(10)
            finally:
                ended.set()

        calling = asyncio.create_task(cancel_at(operation(), 5))
        await asyncio.sleep(0.01)
        calling.cancel()
        await asyncio.wait([calling])
        return ended.is_set() and calling.cancelled()

    assert asyncio.run(main())
