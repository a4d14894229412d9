"""The event loop of simulated processes behaves as asyncio's does, on virtual time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from inspect import CORO_CLOSED, getcoroutinestate
from typing import Any

import pytest

from ensue.core.errors import BadInput
from ensue.testing import (
    Faults,
    Process,
    ProcessKilled,
    Simulation,
    SimulationFailed,
    Stuck,
    simulate,
)


def test_sleeping_costs_virtual_time_alone() -> None:
    async def main(simulation: Simulation) -> float:
        before = asyncio.get_running_loop().time()
        await asyncio.sleep(86_400)
        assert simulation.now_s == pytest.approx(86_400, abs=1)
        return asyncio.get_running_loop().time() - before

    assert simulate(main, until_s=100_000).result == pytest.approx(86_400, abs=1)


def test_callbacks_of_a_process_run_in_sequence_and_timers_when_due() -> None:
    async def main(_simulation: Simulation) -> list[str]:
        loop, seen = asyncio.get_running_loop(), list[str]()
        loop.call_later(0.2, seen.append, "later")
        loop.call_later(0.1, seen.append, "sooner")
        loop.call_later(0.05, seen.append, "cancelled").cancel()
        for number in range(5):
            loop.call_soon(seen.append, str(number))
        await asyncio.sleep(1)
        return seen

    assert simulate(main).result == ["0", "1", "2", "3", "4", "sooner", "later"]


def test_timeouts_cancellation_and_task_groups_work() -> None:
    async def main(_simulation: Simulation) -> list[str]:
        seen = []
        try:
            async with asyncio.timeout(5):
                await asyncio.sleep(10)
        except TimeoutError:
            seen.append("timeout")
        with suppress(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(1000))
                raise ValueError("ends the group")
        task = asyncio.create_task(asyncio.sleep(1))
        await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        seen.append("cancelled" if task.cancelled() else "not cancelled")
        return seen

    assert simulate(main).result == ["timeout", "cancelled"]


def test_abandoned_generator_is_closed_in_its_process() -> None:
    closed = []

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            await asyncio.sleep(0)
            closed.append("closed")

    async def main(_simulation: Simulation) -> None:
        async for _ in numbers():
            break
        await asyncio.sleep(1)

    simulate(main)
    assert closed == ["closed"]


def test_same_seed_gives_the_same_interleaving_and_others_differ() -> None:
    async def count(name: str, seen: list[str]) -> None:
        for _ in range(20):
            seen.append(name)
            await asyncio.sleep(0)

    async def main(simulation: Simulation) -> str:
        seen: list[str] = []
        for name in "abc":
            simulation.start(name, count, name, seen)
        await asyncio.sleep(1)
        return "".join(seen)

    first = simulate(main, seed=1).result
    assert first == simulate(main, seed=1).result
    assert len({simulate(main, seed=seed).result for seed in range(5)}) > 1


def test_killed_process_runs_no_finally_block() -> None:
    seen: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            seen.append("finally")

    async def main(simulation: Simulation) -> None:
        process: Process = simulation.start("worker", work)
        await asyncio.sleep(1)
        process.kill()
        with pytest.raises(ProcessKilled):
            await process
        await asyncio.sleep(5000)
        assert not seen

    simulate(main, until_s=10_000)


def test_paused_process_goes_on_later_and_suspended_clock_stands_still() -> None:
    async def work(seen: list[float]) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        await asyncio.sleep(10)
        seen.append(loop.time() - begun)

    async def main(simulation: Simulation) -> tuple[float, float]:
        measured: list[float] = []
        for stop in ("pause", "suspend"):
            process = simulation.start(stop, work, measured)
            await asyncio.sleep(1)
            getattr(process, stop)()
            await asyncio.sleep(60)
            process.resume()
            await process
        return measured[0], measured[1]

    paused, suspended = simulate(main).result
    assert paused == pytest.approx(61, abs=0.1)
    assert suspended == pytest.approx(10, abs=0.1)


def test_run_that_can_not_go_on_says_where_it_waits() -> None:
    async def waits_for_ever() -> None:
        await asyncio.get_running_loop().create_future()

    async def main(_simulation: Simulation) -> None:
        await waits_for_ever()

    with pytest.raises(Stuck, match="waits_for_ever"):
        simulate(main)


def test_run_that_takes_too_long_is_stuck() -> None:
    async def main(_simulation: Simulation) -> None:
        await asyncio.sleep(1000)

    with pytest.raises(Stuck, match="has not ended after 60 virtual seconds"):
        simulate(main, until_s=60)


def test_killed_process_starts_no_real_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its `finally` blocks run when the world is freed, and may start tasks."""
    started: list[str] = []

    async def waits() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            asyncio.ensure_future(asyncio.sleep(0))  # noqa: RUF006 - its process is gone

    async def main(simulation: Simulation) -> None:
        process = simulation.start("server", waits)
        await asyncio.sleep(1)
        process.kill()

    policy = type(asyncio.get_event_loop_policy())
    monkeypatch.setattr(policy, "new_event_loop", lambda _: started.append("a real loop"))
    simulate(main)
    assert started == []


def test_killed_process_leaves_no_block_for_a_later_collection() -> None:
    """A block that waits ignores the first end of its coroutine."""
    kept: list[Any] = []

    async def waits() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            await asyncio.sleep(1000)

    async def waits_below() -> None:
        kept.append(waits())
        await kept[-1]

    async def main(simulation: Simulation) -> None:
        for each in (waits, waits_below):
            process = simulation.start(each.__name__, each)
            await asyncio.sleep(1)
            kept.append(process.task.get_coro())
            process.kill()

    simulate(main)
    assert [getcoroutinestate(each) for each in kept] == [CORO_CLOSED] * 3


def test_unhandled_exception_of_a_callback_fails_the_run() -> None:
    async def main(_simulation: Simulation) -> None:
        asyncio.get_running_loop().call_soon(lambda: 1 // 0)
        await asyncio.sleep(1)

    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        simulate(main)


def test_exception_of_another_process_is_told_with_the_failure() -> None:
    async def breaks() -> None:
        raise ValueError("this broke first")

    async def main(simulation: Simulation) -> None:
        simulation.start("broken", breaks)
        await asyncio.sleep(1)
        raise RuntimeError("and then this")

    with pytest.raises(RuntimeError) as failed:
        simulate(main)
    assert "this broke first" in "".join(failed.value.__notes__)


def test_process_that_ends_with_an_exception_fails_the_run() -> None:
    async def broken() -> None:
        raise ValueError("out of teapots")

    async def main(simulation: Simulation) -> None:
        simulation.start("shop", broken)
        await asyncio.sleep(1)

    with pytest.raises(SimulationFailed, match="out of teapots"):
        simulate(main)


def test_exception_of_a_process_that_is_handled_does_not_fail_the_run() -> None:
    async def broken() -> None:
        raise ValueError("out of teapots")

    async def main(simulation: Simulation) -> None:
        with pytest.raises(ValueError, match="teapots"):
            await simulation.start("shop", broken)

    simulate(main)


@pytest.mark.parametrize("rate", [-1, float("nan"), float("inf"), "5"])
def test_faults_refuse_rates_that_are_none(rate: float) -> None:
    with pytest.raises(BadInput, match="server_kills must be a number"):
        Faults(server_kills=rate)
