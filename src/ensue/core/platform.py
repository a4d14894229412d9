"""What a process gets from its machine: clocks, randomness, files and a worker thread.

Code above the protocols asks `current()` for these and never the standard library. In production
they are the machine's own (`Machine`). In a simulation each process has a platform of its own, in
its context: clocks that step, randomness from the seed, a disk that tears writes.
"""

import asyncio
import os
import random
import secrets
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextvars import ContextVar
from functools import cached_property
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ensue.core.clock import Clock, SystemClock

if TYPE_CHECKING:
    from ensue.core.trace import Row

__all__ = ["FileSystem", "Machine", "Platform", "Usage", "Worker", "current", "use"]


class FileSystem(Protocol):
    """The file operations of a journal. Errors are those of `os`."""

    def open(self, path: Path, flags: int) -> int:
        """Open a file; return its descriptor."""

    def close(self, descriptor: int) -> None:
        """Close a descriptor."""

    def read_at(self, descriptor: int, size: int, offset: int) -> bytes:
        """Read up to `size` bytes at an offset."""

    def write(self, descriptor: int, data: bytes | memoryview) -> int:
        """Write at the end; return how many bytes the system took."""

    def write_at(self, descriptor: int, data: bytes, offset: int) -> int:
        """Write at an offset; return how many bytes the system took."""

    def size(self, descriptor: int) -> int:
        """Return the size of an open file."""

    def sync(self, descriptor: int) -> None:
        """Make the content of a file survive a power cut."""

    def lock(self, descriptor: int) -> None:
        """Lock a file for this process; raise BlockingIOError if another has it."""

    def truncate(self, path: Path, size: int) -> None:
        """Cut a file to a size."""

    def read(self, path: Path) -> bytes:
        """Return the content of a file; raise FileNotFoundError if there is none."""

    def exists(self, path: Path) -> bool:
        """Return whether there is a file or folder at a path."""

    def size_of(self, path: Path) -> int:
        """Return the size of a file."""

    def names(self, folder: Path) -> list[str]:
        """Return the names in a folder, sorted."""

    def make_folder(self, path: Path) -> None:
        """Create a folder and its parents; an existing one is fine."""

    def rename(self, path: Path, target: Path) -> None:
        """Rename a file, replacing the target."""

    def remove(self, path: Path) -> None:
        """Remove a file; raise FileNotFoundError if there is none."""

    def sync_folder(self, folder: Path) -> None:
        """Make the names in a folder survive a power cut."""


class RowSink(Protocol):
    """Takes trace rows."""

    def append(self, row: "Row", /) -> None:
        """Take one row."""


class Worker(Protocol):
    """Runs one function in the background, again for each request."""

    def request(self) -> None:
        """Run the function once more."""

    def close(self) -> None:
        """Wait for the run under way, and end."""


class Usage(NamedTuple):
    """What a process uses of its machine."""

    pid: int
    cpu_s: float
    """User and system time."""
    resident_bytes: int
    """Memory that is not swapped."""


class Platform(ABC):
    """The machine, as one process sees it."""

    files: FileSystem
    trace_sink: "RowSink | None" = None
    """Takes the trace rows of buses that write no trace of their own; None: there are none."""

    @property
    @abstractmethod
    def clock(self) -> Clock:
        """Wall time that never goes back, shared by all buses and servers of the process."""

    @abstractmethod
    def monotonic_s(self) -> float:
        """Return a time in seconds that never steps, for durations."""

    @abstractmethod
    def token_bytes(self, count: int) -> bytes:
        """Return bytes that can't be guessed."""

    @abstractmethod
    def uniform(self, low: float, high: float) -> float:
        """Return a random number between two bounds."""

    @abstractmethod
    def worker(self, work: Callable[[], Any], done: Callable[[Any], None]) -> Worker:
        """Return a worker that runs `work`, and calls `done` in the event loop with its result.

        The result is what `work` returned or the exception that it raised.
        """

    @abstractmethod
    def usage(self) -> Usage:
        """Return what this process uses."""

    def wall_s(self) -> float:
        """Return the wall time in seconds since the epoch."""
        return self.clock.now_ns() / 1_000_000_000

    def token_hex(self, count: int) -> str:
        """Return `count` random bytes in hexadecimal."""
        return self.token_bytes(count).hex()

    def random_bits(self, count: int) -> int:
        """Return a random number of so many bits."""
        data = self.token_bytes((count + 7) // 8)
        return int.from_bytes(data, "big") >> (-count % 8)


class _Files:
    """The machine's files."""

    def open(self, path: Path, flags: int) -> int:
        return os.open(path, flags | os.O_CLOEXEC, 0o644)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def read_at(self, descriptor: int, size: int, offset: int) -> bytes:
        return os.pread(descriptor, size, offset)

    def write(self, descriptor: int, data: bytes | memoryview) -> int:
        return os.write(descriptor, data)

    def write_at(self, descriptor: int, data: bytes, offset: int) -> int:
        return os.pwrite(descriptor, data, offset)

    def size(self, descriptor: int) -> int:
        return os.fstat(descriptor).st_size

    def sync(self, descriptor: int) -> None:
        os.fsync(descriptor)

    def lock(self, descriptor: int) -> None:
        import fcntl  # noqa: PLC0415 - clients run where there is none

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def truncate(self, path: Path, size: int) -> None:
        os.truncate(path, size)

    def read(self, path: Path) -> bytes:
        return path.read_bytes()

    def exists(self, path: Path) -> bool:
        return path.exists()

    def size_of(self, path: Path) -> int:
        return path.stat().st_size

    def names(self, folder: Path) -> list[str]:
        return sorted(path.name for path in folder.iterdir())

    def make_folder(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)

    def rename(self, path: Path, target: Path) -> None:
        path.replace(target)

    def remove(self, path: Path) -> None:
        path.unlink()

    def sync_folder(self, folder: Path) -> None:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class _Thread:
    """A worker in a thread.

    An executor and its futures would cost as much as a sync.
    """

    def __init__(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self._work, self._done = work, done
        self._loop = asyncio.get_running_loop()
        self._wanted: SimpleQueue[bool] = SimpleQueue()
        """True requests a run; False ends the thread."""
        # A daemon: a process that ends without `close` need not wait for the disk, as no callback
        # of an unfinished run was called.
        self._thread = threading.Thread(target=self._run, name="ensue-worker", daemon=True)
        self._thread.start()  # At once: a server that can't start the thread must not start.

    def request(self) -> None:
        self._wanted.put(True)

    def close(self) -> None:
        self._wanted.put(False)
        self._thread.join()

    def _run(self) -> None:
        while self._wanted.get():
            try:
                outcome = self._work()
            except BaseException as error:  # noqa: BLE001 - handled in the event loop
                outcome = error
            try:
                self._loop.call_soon_threadsafe(self._done, outcome)
            except RuntimeError:  # The event loop is closed.
                return


class Machine(Platform):
    """The real machine."""

    files = _Files()

    @cached_property
    def clock(self) -> Clock:
        """Wall time that never goes back."""
        return SystemClock()

    def monotonic_s(self) -> float:
        """Return the machine's monotonic time."""
        return time.monotonic()

    def token_bytes(self, count: int) -> bytes:
        """Return bytes from the system's generator."""
        return secrets.token_bytes(count)

    def uniform(self, low: float, high: float) -> float:
        """Return a random number; it is no secret."""
        return random.uniform(low, high)  # noqa: S311 - spreads retries

    def worker(self, work: Callable[[], Any], done: Callable[[Any], None]) -> Worker:
        """Return a worker in a thread of its own."""
        return _Thread(work, done)

    def usage(self) -> Usage:
        """Return what the process uses, by the operating system."""
        times = os.times()
        return Usage(os.getpid(), round(times.user + times.system, 3), _resident_bytes())


def _resident_bytes() -> int:
    """Return the resident memory of the process; without /proc, its peak."""
    try:
        with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 - read often
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        import resource  # noqa: PLC0415 - clients run where there is none

        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024


_MACHINE = Machine()
_current: ContextVar[Platform] = ContextVar("platform", default=_MACHINE)


def current() -> Platform:
    """Return the platform of this process."""
    return _current.get()


def use(platform: Platform) -> None:
    """Use a platform in this context, and in the tasks and callbacks that it starts."""
    _current.set(platform)
