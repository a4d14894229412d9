"""Processes of the content test: a server that records its broker's rows, and a client.

The client is killed while its transaction is open.
"""

import asyncio
import os
import sys
from pathlib import Path

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


if __name__ == "__main__":
    kind, *words = sys.argv[1:]
    asyncio.run(serve(*words) if kind == "server" else hang(*words))
