"""Child processes to kill, pause and restart."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Container, Mapping
from pathlib import Path

import ensue

__all__ = ["Process", "worker"]

END_S = 60.0
"""How long a process may take to end after SIGTERM."""
TAIL_BYTES = 3_000

PROJECT = Path(__file__).resolve().parents[2]
SOURCE = Path(ensue.__file__).resolve().parents[1]
"""The package under test: workers import the same one."""


def worker(kind: str, **options: object) -> list[str]:
    """Return the command of a worker."""
    command = [sys.executable, "-m", "tests.processes.worker", kind]
    for name, value in options.items():
        if value is not None:
            command += (f"--{name.replace('_', '-')}", str(value))
    return command


class Process:
    """One process, over all its incarnations. `command` is called at each start.

    It leads a process group: its children are paused and killed with it. `ends_with` are the exit
    codes of an orderly end; None if any code is one.
    """

    def __init__(
        self,
        name: str,
        kind: str,
        command: Callable[[int], list[str]],
        directory: Path,
        *,
        environment: Mapping[str, str] | None = None,
        ends_with: Container[int] | None = (0, -signal.SIGTERM),
    ) -> None:
        self.name = name
        self.kind = kind
        self._environment = environment
        self._ends_with = ends_with
        self.starts = 0
        self.log = directory / f"{name}.log"
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self._paused = False

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def paused(self) -> bool:
        return self._paused and self.running

    @property
    def code(self) -> int | None:
        """Exit code of the last incarnation, if it has ended."""
        return None if self._process is None else self._process.poll()

    @property
    def pid(self) -> int:
        return 0 if self._process is None else self._process.pid

    def start(self) -> None:
        assert not self.running
        self.starts += 1
        path = os.pathsep.join((str(SOURCE), str(PROJECT)))
        with self.log.open("ab") as log:
            log.write(f"-- start {self.starts}\n".encode())
            log.flush()
            self._process = subprocess.Popen(
                self._command(self.starts),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=PROJECT,
                env=self._environment
                or {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )
        self._paused = False

    def kill(self) -> None:
        """Kill it."""
        if self._process is not None and self.running:
            self.signal(signal.SIGKILL)
            self._process.wait(END_S)

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None and self.running:
            os.killpg(self._process.pid, number)

    def pause(self) -> None:
        self.signal(signal.SIGSTOP)
        self._paused = True

    def resume(self, pid: int | None = None) -> None:
        """Resume it after a pause, if it is still the process that was paused."""
        if self._paused and pid in (None, self.pid):
            self.signal(signal.SIGCONT)
            self._paused = False

    def end(self) -> int:
        """Stop it with SIGTERM; return its exit code."""
        assert self._process is not None
        self.resume()
        self.signal(signal.SIGTERM)
        deadline = time.monotonic() + END_S
        try:
            return self._process.wait(deadline - time.monotonic())
        except subprocess.TimeoutExpired:
            self.kill()
            return -signal.SIGKILL

    def ended_well(self, code: int) -> bool:
        """Return whether an exit code is that of an orderly end."""
        return self._ends_with is None or code in self._ends_with

    def tail(self) -> str:
        """Return the end of its standard output and error."""
        if not self.log.exists():
            return ""
        return self.log.read_text(errors="replace")[-TAIL_BYTES:]
