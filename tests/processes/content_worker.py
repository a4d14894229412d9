"""Processes of the content tests: a server that records its broker's rows, and clients.

The clients are killed while a transaction is open: one coordinates it, the other was invited.
"""

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec

import ensue
from ensue.core.trace import Row
from ensue.protocols.recorder import Recorder
from ensue.server import Server
from ensue.server.config_file import load


class Lines:
    """A file of rows, one per line: an appended row survives a kill right after."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def append(self, row: Row, /) -> None:
        os.write(self._file, msgspec.json.encode(row) + b"\n")


async def serve(config: str, name: str, rows: str) -> None:
    recorder = Recorder("ensue", "none", sink=Lines(Path(rows)))
    server = Server(load(config, name=name), recorder=recorder)
    await server.start()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await server.wait()


async def hang(url: str, timeout_s: str = "5", invited: str = "") -> None:
    """Publish within a transaction, print a line, and never end it."""
    async with ensue.connect(url, order=None, name="doomed") as bus:
        await bus.advertise(where="x exists")
        async with bus.transaction(timeout=float(timeout_s)) as tx:
            await tx.publish({"x": 1}, b"never")
            await tx.subscribe("x exists")
            sys.stdout.write(f"open {bus.name}.content\n")
            sys.stdout.flush()
            if invited:
                await tx.invite(invited)
            await asyncio.Event().wait()


class Guest:
    """Takes invitations, and prints what it gets.

    An invitation's payload says what to do: `take` and `give` a subscription, or anything else that
    it only attends.
    """

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self._held: ensue.Subscription | None = None
        self._readers: list[asyncio.Task[None]] = []

    async def act(self, tx: ensue.InvitedTransaction) -> None:
        """Do what an invitation says."""
        if tx.payload == b"take":
            self._held = await tx.subscribe("x exists")
            self._readers.append(asyncio.create_task(self._read(self._held)))
        elif tx.payload == b"give":
            assert self._held is not None
            await tx.unsubscribe(self._held)

    async def _read(self, events: ensue.Subscription) -> None:
        async for event in events:
            self.got.append(event.payload)
            sys.stdout.write(f"got {self.got}\n")
            sys.stdout.flush()


class HangingGuest(Guest):
    """A guest that subscribes and never finishes, if it shall `hang`."""

    async def act(self, tx: ensue.InvitedTransaction) -> None:
        """Do what an invitation says."""
        await super().act(tx)
        if tx.payload == b"hang":
            await tx.subscribe("x = 1")
            sys.stdout.write("hangs\n")
            sys.stdout.flush()
            await asyncio.Event().wait()


async def be_invited(url: str, where: str) -> None:
    """Take part in transactions, until it is killed."""
    guest = HangingGuest()
    async with ensue.connect(url, order=None, name="guest") as bus:
        await bus.on_invitation(guest.act, where=where)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    kind, *words = sys.argv[1:]
    kinds: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {
        "server": serve,
        "client": hang,
        "guest": be_invited,
    }
    asyncio.run(kinds[kind](*words))
