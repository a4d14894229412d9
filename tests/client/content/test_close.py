"""Closing a bus while another task begins to use content."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import ensue
from ensue.testing import Simulation, simulate


async def take_part(_tx: ensue.InvitedTransaction) -> None:
    """Do nothing."""


CALLS: dict[str, Callable[[ensue.Bus], Awaitable[Any]]] = {
    "advertise": lambda bus: bus.advertise(where="x = 1"),
    "publish": lambda bus: bus.publish({"x": 1}),
    "subscribe": lambda bus: bus.subscribe(where="x = 1").__aenter__(),
    "transaction": lambda bus: bus.transaction().__aenter__(),
    "plan": lambda bus: bus.transaction(isolation="planned").__aenter__(),
    "on_invitation": lambda bus: bus.on_invitation(take_part),
    "on_invitation by content": lambda bus: bus.on_invitation(take_part, where="x = 1"),
}


@pytest.mark.parametrize("first", [True, False], ids=["first", "later"])
@pytest.mark.parametrize("milliseconds", [0, 0.5, 2, 5])
@pytest.mark.parametrize("call", CALLS)
def test_waiting_calls_fail_and_are_not_cancelled(
    call: str, milliseconds: float, *, first: bool
) -> None:
    async def client(url: str) -> None:
        async with ensue.connect(url) as bus:
            if not first:
                await bus.advertise(where="y = 1")

            async def work() -> Any:
                return await CALLS[call](bus)

            task = asyncio.create_task(work())
            await asyncio.sleep(milliseconds / 1000)
            await bus.close()
            await asyncio.wait([task])
            assert not task.cancelled()
            if (error := task.exception()) is not None:
                assert isinstance(error, ensue.EnsueError)

    async def main(simulation: Simulation) -> None:
        servers = await simulation.serve("server")
        await simulation.start("client", client, servers.url("server"))

    simulate(main)
