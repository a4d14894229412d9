"""Standard input and output as pub and sub use them: unbuffered lines in, patient bytes out."""

import asyncio
import contextlib
import fcntl
import os
import select
import stat
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TypeVar, cast

__all__ = ["LineTooLong", "Output", "as_bytes", "lines_of"]

CHUNK_BYTES = 256 * 1024
LINE_BYTES_MAX = 16 * 1024 * 1024

T = TypeVar("T")


class LineTooLong(Exception):
    """A line that nobody would take, behind those that were yielded."""


async def lines_of(descriptor: int) -> AsyncIterator[list[bytes]]:
    """Yield the lines of a file, a pipe or a terminal as they come, without their ends.

    A thread does the reading, so that it works for everything that can be read.
    """
    rest = b""
    while True:
        chunk = await _read(descriptor)
        if not chunk:
            break
        *whole, rest = (rest + chunk).split(b"\n")
        if whole:
            yield [line.removesuffix(b"\r") if line.endswith(b"\r") else line for line in whole]
        if len(rest) > LINE_BYTES_MAX:
            raise LineTooLong(f"has more than {LINE_BYTES_MAX} bytes")
    if rest:
        yield [rest]


def as_bytes(text: str) -> bytes:
    """Return what was given as an option as bytes, also if it is no text."""
    return text.encode("utf-8", "surrogateescape")


@contextlib.contextmanager
def _called(name: str) -> Iterator[None]:
    """Have what the system says of a stream say of which."""
    try:
        yield
    except OSError as error:
        error.filename = name
        raise


async def _read(descriptor: int) -> bytes:
    with _called("standard input"):
        return await _in_thread(lambda: os.read(descriptor, CHUNK_BYTES))


async def _in_thread(call: Callable[[], T]) -> T:
    """Call in a thread of its own, which keeps nobody from ending while the call blocks."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()

    def settle(value: T | None, error: OSError | None) -> None:
        if result.cancelled():
            return
        if error is not None:
            result.set_exception(error)
        else:
            result.set_result(cast("T", value))

    def run() -> None:
        value, failure = None, None
        try:
            value = call()
        except OSError as error:
            failure = error
        with contextlib.suppress(RuntimeError):  # The event loop may have ended meanwhile.
            loop.call_soon_threadsafe(settle, value, failure)

    threading.Thread(target=run, name="ensue-stream", daemon=True).start()
    return await result


class Output:
    """Standard output for bytes.

    A reader that is slow makes `flush` wait, and the event loop goes on: a pager that shows its first page
    for an hour must not cost a subscription. When whoever reads stops reading, it says so and is
    silent.
    """

    def __init__(self) -> None:
        self.broken = False
        self._data = bytearray()

    @property
    def full(self) -> bool:
        """Whether so much is written that it should be flushed."""
        return len(self._data) >= CHUNK_BYTES

    def write(self, data: bytes) -> None:
        """Write, to be flushed later."""
        self._data += data

    def when_gone(self, tell: Callable[[], object]) -> None:
        """Have somebody told when whoever reads goes away, though there may be nothing to write.

        Only of a pipe can that be seen: the system then says that its writing end can be read.
        """
        try:
            descriptor = sys.stdout.fileno()
        except OSError:
            return  # Captured by a program.
        writes_only = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode) or not writes_only:
            return
        loop = asyncio.get_running_loop()

        def gone() -> None:
            loop.remove_reader(descriptor)
            self.broken = True
            tell()

        loop.add_reader(descriptor, gone)

    async def flush(self) -> None:
        """Let go of everything written."""
        data = bytes(self._data)
        self._data.clear()
        if not data or self.broken:
            return
        try:
            descriptor = sys.stdout.fileno()
        except OSError:
            # Captured by a program: there is nobody to wait for.
            sys.stdout.buffer.write(data)
            return
        try:
            with _called("standard output"):
                if len(data) <= select.PIPE_BUF and _takes(descriptor):
                    os.write(descriptor, data)
                else:
                    await _in_thread(lambda: _write(descriptor, data))
        except BrokenPipeError:
            self.broken = True


def _takes(descriptor: int) -> bool:
    """Tell whether a few bytes can be written without waiting."""
    return bool(select.select((), (descriptor,), (), 0)[1])


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
