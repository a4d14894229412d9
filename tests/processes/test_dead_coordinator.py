"""A dead coordinator: its process is killed, with servers in processes of their own."""

import asyncio
from pathlib import Path

import pytest
from tests.processes.runs import Process
from tests.processes.test_content_killed import Run, command, line_of
from tests.server.helpers import within

import ensue

LONG_S = 600
"""A timeout that no test waits for."""


async def commit(bus: ensue.Bus, attributes: dict[str, object]) -> None:
    async with bus.transaction(timeout=LONG_S) as tx:
        await tx.subscribe("x = 1")
        await tx.publish(attributes)


async def play(run: Run) -> None:
    await run.start()
    async with (
        ensue.connect(run.urls["s0"], order=None, name="guest") as guest,
        ensue.connect(run.urls["s2"], order=None, name="other") as other,
    ):
        joined, left = asyncio.Event(), asyncio.Event()
        reasons: list[str] = []

        async def act(tx: ensue.InvitedTransaction) -> None:
            events = await tx.subscribe("x exists")
            joined.set()
            async for _ in events:  # Ends with the transaction.
                pass
            try:
                await tx.publish({"x": 3})
            except ensue.TransactionAborted as error:
                reasons.append(error.reason)
            left.set()

        await within(guest.on_invitation(act))
        await within(guest.advertise(where="x exists"))
        await within(other.advertise(where="x exists or k exists"))
        run.doomed = Process(
            "doomed",
            "client",
            lambda _start: command("client", run.urls["s1"], str(LONG_S), guest.name),
            run.directory,
        )
        run.doomed.start()
        await line_of(run.doomed, "open")
        await within(joined.wait())
        # Neither those that conflict with it nor others wait: it has not requested its commit.
        await within(commit(other, {"k": 1}))
        await within(commit(other, {"x": 1}))
        run.doomed.kill()
        # The client that it invited waits for its end, until its connection is known to be gone.
        await within(left.wait())
        assert reasons == ["doomed lost its connection"]
        await within(commit(guest, {"x": 2}))


@pytest.mark.timeout(300)
def test_dead_coordinator_blocks_only_its_participants_until_its_connection_is_gone(
    tmp_path: Path,
) -> None:
    run = Run(tmp_path, 1)
    try:
        asyncio.run(play(run))
    finally:
        run.end()
