"""Server processes to be killed, and their journals copied to a log directory."""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

import msgspec

from ensue.core.event import Event
from ensue.journal import Journal
from ensue.server import Server, ServerConfig
from ensue.store import DirectoryReader, LogSink

ROOT = Path(__file__).parents[2]


def spare_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
    return port


class Served:
    """A server process that can be killed and restarted on its data."""

    def __init__(self, data: Path, **options: Any) -> None:
        options.setdefault("listen", f"127.0.0.1:{spare_port()}")
        self.data = data
        self.config = ServerConfig(data=str(data), **options)
        self.url = f"ensue://{self.config.listen}"
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self, *, wait: bool = True) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.store.server_process", msgspec.json.encode(self.config)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        if wait:
            assert self._process.stdout.readline().startswith("ensue://")

    def kill(self) -> None:
        """Send SIGKILL: like a power cut, except for unsynced writes."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None


def mirrored(place: Path, *servers: Served) -> DirectoryReader:
    """Write the events of the servers' journals to a log directory; return its reader."""
    sink = LogSink(place / "mirror")
    for number, server in enumerate(servers):
        # The running server has the journal locked: open a copy.
        copy = place / f"journal{number}"
        shutil.copytree(server.data, copy)
        with contextlib.closing(Journal(copy)) as journal:
            for topic, (first, following) in journal.bounds().items():
                for slot in range(first, following):
                    encoded = journal.event(topic, slot)
                    if encoded is not None:
                        sink.accept(msgspec.msgpack.decode(encoded, type=Event), slot)
    sink.close()
    return DirectoryReader(place / "mirror")


async def main() -> None:
    server = Server(msgspec.json.decode(sys.argv[1], type=ServerConfig))
    await server.start()
    sys.stdout.write(f"{server.url}\n")
    sys.stdout.flush()
    await server.wait()


if __name__ == "__main__":
    asyncio.run(main())
