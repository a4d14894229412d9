"""Child processes of a benchmark, on free ports, always ended by process id."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

__all__ = ["ROOT", "Failed", "Process", "find_server", "python", "spare_port", "started"]

ROOT = Path(__file__).parents[2]
START_S = 120.0
STOP_S = 20.0
POLL_S = 0.02
LINE_BYTES_MAX = 16 * 1024 * 1024


class Failed(Exception):
    """A child process failed."""


def spare_port() -> int:
    """Return a free port on loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def find_server(name: str) -> str | None:
    """Return the path of an installed server."""
    # Debian installs servers in a directory that is only on root's PATH.
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def python(what: str, *arguments: str, profile: Path | None = None) -> list[str]:
    """Return the command that runs a module or script, with a sampler if profiling is on."""
    if profile is not None:
        return [sys.executable, "-m", "benchmarks.peers.sampled", str(profile), what, *arguments]
    return [sys.executable, *(() if "/" in what else ("-m",)), what, *arguments]


class Process:
    """One child in its own process group; use `started`."""

    def __init__(self, name: str, child: asyncio.subprocess.Process, log: Path) -> None:
        self.name = name
        self._child = child
        self._log = log

    @property
    def pid(self) -> int:
        """The process id."""
        return self._child.pid

    @property
    def cpu_s(self) -> float:
        """CPU time of all its threads."""
        # The clock of another process, with the id of clock_getcpuclockid(3) on Linux: exact to
        # the nanosecond, where /proc counts in hundredths of a second.
        return time.clock_gettime_ns(~self.pid << 3 | 2) / 1e9

    @property
    def memory_bytes(self) -> int:
        """Resident memory; 0 once it has ended."""
        return self._status_bytes("VmRSS:")

    @property
    def memory_peak_bytes(self) -> int:
        """Peak of its resident memory; 0 once it has ended."""
        return self._status_bytes("VmHWM:")

    def _status_bytes(self, name: str) -> int:
        try:
            status = Path(f"/proc/{self.pid}/status").read_text(encoding="utf-8")
        except OSError:
            return 0
        found = [line for line in status.splitlines() if line.startswith(name)]
        return int(found[0].split()[1]) * 1024 if found else 0

    async def answers(self, port: int) -> None:
        """Return when it accepts connections."""
        async with asyncio.timeout(START_S):
            while True:
                self.check()
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                except OSError:
                    await asyncio.sleep(POLL_S)
                    continue
                writer.close()
                # If another process answered, this one ends because the port is taken.
                await asyncio.sleep(POLL_S)
                self.check()
                return

    def command(self, **order: Any) -> None:
        """Send a command."""
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps(order).encode() + b"\n")

    async def reply(self, seconds: float = START_S) -> dict[str, Any]:
        """Return its next message."""
        assert self._child.stdout is not None
        try:
            line = await asyncio.wait_for(self._child.stdout.readline(), seconds)
        except TimeoutError:
            raise Failed(f"{self.name} said nothing for {seconds:g} s{self._tail()}") from None
        if not line:
            raise Failed(f"{self.name} ended{self._tail()}")
        message: dict[str, Any] = json.loads(line)
        return message

    def check(self) -> None:
        """Raise if it has ended."""
        if self._child.returncode is not None:
            raise Failed(f"{self.name} ended with {self._child.returncode}{self._tail()}")

    async def end(self, *, gently: bool = False) -> None:
        """End its process group; with `gently`, let a worker end by itself first."""
        child = self._child
        if child.returncode is not None:
            return  # Another process may have its id by now.
        if child.stdin is not None:
            child.stdin.close()
        if gently and await self._ended(STOP_S):
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, number)
            if await self._ended(STOP_S):
                return

    async def _ended(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._child.wait(), seconds)
        return self._child.returncode is not None

    def _tail(self) -> str:
        tail = self._log.read_text(encoding="utf-8", errors="replace")[-1500:].strip()
        return f":\n{tail}" if tail else ""


def _environment() -> dict[str, str]:
    given = os.environ.get("PYTHONPATH", "")
    paths = (str(ROOT / "src"), str(ROOT), *given.split(os.pathsep))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}


@contextlib.asynccontextmanager
async def started(name: str, command: Sequence[str], directory: Path) -> AsyncIterator[Process]:
    """Run a command; end it on leaving."""
    log = directory / f"{name}.log"
    # If this process is killed, the kernel kills the child.
    guard = ("setpriv", "--pdeathsig", "KILL") if shutil.which("setpriv") else ()
    with log.open("ab") as stderr:
        child = await asyncio.create_subprocess_exec(
            *(*guard, *command),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=stderr,
            cwd=directory,
            env=_environment(),
            start_new_session=True,
            limit=LINE_BYTES_MAX,
        )
    process = Process(name, child, log)
    try:
        yield process
    finally:
        await asyncio.shield(process.end())
