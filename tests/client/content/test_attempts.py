"""Transactions that are tried again after a conflict, in memory and on servers."""

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.client.content.test_plan import TRANSPORTS, read, three
from tests.server.helpers import within

import ensue
from ensue.core.errors import BadInput, LocalProtocolError, TransactionAborted
from ensue.testing import Simulation, simulate


@pytest.mark.parametrize("kind", TRANSPORTS)
def test_conflict_is_tried_again(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with three(kind, tmp_path) as (a, b, c):
            await within(a.advertise(where="x exists"))
            numbers: list[int] = []
            others: list[ensue.Subscription] = []
            async with b.subscribe(where="x exists") as events:
                async for attempt in a.transaction(retries=5, timeout=60):
                    async with attempt as tx:
                        numbers.append(attempt.number)
                        await tx.publish({"x": 1}, str(attempt.number).encode())
                        if attempt.number < 3:
                            other = c.subscribe(where="x exists")
                            others.append(await within(other.__aenter__()))
                assert numbers == [1, 2, 3]
                assert await read(events, 1) == [b"3"]
                assert not events.waiting

    asyncio.run(main())


def test_last_attempt_raises_and_pauses_grow() -> None:
    async def main(_: Simulation) -> None:
        loop = asyncio.get_running_loop()
        async with ensue.connect("memory://?brokers=2", order=None, name="a") as a:
            await a.advertise(where="x exists")
            begun: list[float] = []

            async def try_it() -> None:
                async for attempt in a.transaction(retries=3):
                    async with attempt as tx:
                        begun.append(loop.time())
                        await tx.publish({"x": 1})
                        await a.subscribe(where="x = 1").__aenter__()

            with pytest.raises(TransactionAborted, match="conflict: ") as found:
                await try_it()
            assert found.value.is_conflict
            pauses = [later - earlier for earlier, later in pairwise(begun)]
            assert len(pauses) == 3
            assert 0.02 < pauses[0] < pauses[1] < pauses[2]
            assert pauses[2] > 0.09

    simulate(main, seed=1)


@pytest.mark.parametrize("isolation", ["serializable", "atomic", "planned"])
def test_other_failures_are_raised_at_once(isolation: str) -> None:
    async def main() -> None:
        async with ensue.connect("memory://", order=None, name="a") as a:
            await within(a.advertise(where="x exists"))
            begun: list[int] = []

            async def attempt_with(failing: Any) -> None:
                async for attempt in a.transaction(isolation=isolation, retries=5):
                    async with attempt as tx:
                        begun.append(attempt.number)
                        await failing(tx)

            async def fail(_: Any) -> None:
                raise ZeroDivisionError

            async def publish_uncovered(tx: Any) -> None:
                await tx.publish({"y": 1})

            with pytest.raises(ZeroDivisionError):
                await attempt_with(fail)
            with pytest.raises(TransactionAborted, match="covers") as found:
                await attempt_with(publish_uncovered)
            assert not found.value.is_conflict
            assert begun == [1, 1]
            async with a.subscribe(where="x exists") as events:
                await attempt_with(lambda tx: tx.publish({"x": 1}, b"once"))
                await within(a.publish({"x": 2}, b"last"))
                assert await read(events, 2) == [b"once", b"last"]

    asyncio.run(main())


def test_mistakes_are_named() -> None:
    async def main() -> None:
        async with ensue.connect("memory://", order=None, name="a") as a:
            for retries in (-1, 1.5, True, 1_001):
                with pytest.raises(BadInput, match="retries must be a whole number"):
                    a.transaction(retries=retries)  # type: ignore[arg-type]
            with pytest.raises(LocalProtocolError, match="async for attempt in"):
                await a.transaction(retries=5).__aenter__()
            attempts = a.transaction(retries=5)
            await anext(attempts)
            with pytest.raises(LocalProtocolError, match="enter each attempt"):
                await anext(attempts)

    asyncio.run(main())
