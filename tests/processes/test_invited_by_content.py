"""Invitations by content between processes: servers and a recipient are killed.

Three servers and one of two recipients are processes of their own. The inviter knows neither.
"""

import asyncio
from pathlib import Path

import pytest
from tests.processes.content_worker import Guest
from tests.processes.runs import Process
from tests.processes.test_content_killed import Run, command, line_of
from tests.server.helpers import until, within

import ensue
from ensue.core.errors import TransactionAborted

LONG_S = 600
"""A timeout that no test waits for."""
WHERE = "region = 'eu' and load < 10"


class Inviting:
    """A client that invites all agents of a region."""

    def __init__(self, bus: ensue.Bus) -> None:
        self.bus = bus

    async def invite(self, what: bytes, event: bytes, *, at_least: int = 1) -> int:
        """Invite and publish in one transaction; return how many took part."""
        async with self.bus.transaction(timeout=LONG_S) as tx:
            invited = await tx.invite({"region": "eu", "load": 3}, at_least=at_least, payload=what)
            await tx.publish({"x": 1}, event)
        return invited

    async def invite_both(self, what: bytes, event: bytes) -> int:
        """Invite until both are connected again, after their server was killed."""
        while True:
            try:
                return await self.invite(what, event, at_least=2)
            except TransactionAborted as error:
                if "of at_least=2" not in error.reason:
                    raise


async def play(run: Run) -> None:
    await run.start()
    run.doomed = away = Process(
        "guest", "client", lambda _start: command("guest", run.urls["s2"], WHERE), run.directory
    )
    away.start()
    await line_of(away, "ready")
    async with (
        ensue.connect(run.urls["s0"], order=None, name="here") as here,
        ensue.connect(run.urls["s0"], order=None, name="elsewhere") as elsewhere,
        ensue.connect(run.urls["s1"], order=None, name="inviter") as bus,
    ):
        guest, unwanted = Guest(), Guest()
        await within(here.on_invitation(guest.act, where=WHERE))
        await within(elsewhere.on_invitation(unwanted.act, where="region = 'us' or load >= 10"))
        await within(bus.advertise(where="x exists or region exists"))
        inviting = Inviting(bus)

        assert await within(inviting.invite(b"take", b"1")) == 2
        await line_of(away, "got [b'1']")

        # What they take and what they hold outlives their servers.
        for name in ("s2", "s0"):
            run.servers[name].kill()
            run.servers[name].start()
            await run.ready(name)
        assert await within(inviting.invite_both(b"give", b"2")) == 2
        assert await within(inviting.invite_both(b"take", b"3")) == 2
        await line_of(away, "got [b'1', b'3']")

        # Killed after it has acted, a recipient aborts the transaction: no part of it remains.
        hanging = asyncio.create_task(inviting.invite(b"hang", b"never"))
        await line_of(away, "hangs")
        away.kill()
        with pytest.raises(TransactionAborted, match=r"guest.* lost its connection"):
            await within(hanging)
        with pytest.raises(TransactionAborted, match="found 1 client, of at_least=2"):
            await within(inviting.invite(b"give", b"never", at_least=2))
        assert await within(inviting.invite(b"give", b"never")) == 1
        assert await within(inviting.invite(b"take", b"4")) == 1
        await until(lambda: b"4" in guest.got, "the last event arrived")
        assert guest.got == [b"1", b"3", b"4"]
        assert not unwanted.got


@pytest.mark.timeout(300)
def test_invitations_by_content_reach_processes_at_servers_that_are_killed(tmp_path: Path) -> None:
    run = Run(tmp_path, 1)
    try:
        asyncio.run(play(run))
    finally:
        run.end()
