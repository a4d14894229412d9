"""Standard input and output of `pub` and `sub`: unbuffered lines in, bytes out."""

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
    """Raised for a line beyond `LINE_BYTES_MAX`."""


async def lines_of(descriptor: int) -> AsyncIterator[list[bytes]]:
    """Yield the lines of a file, pipe or terminal as they arrive, without newlines.

    A thread reads, because the event loop can't wait for every kind of file.
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
            raise LineTooLong(f"has more than {LINE_BYTES_MAX} bytes: split it")
    if rest:
        yield [rest]


def as_bytes(text: str) -> bytes:
    """Return the value of an option as bytes, even if it is not valid text."""
    return text.encode("utf-8", "surrogateescape")


@contextlib.contextmanager
def _named_in_errors(name: str) -> Iterator[None]:
    """Set the stream's name in system errors."""
    try:
        yield
    except OSError as error:
        error.filename = name
        raise


async def _read(descriptor: int) -> bytes:
    with _named_in_errors("standard input"):
        return await _in_thread(lambda: os.read(descriptor, CHUNK_BYTES))


async def _in_thread(call: Callable[[], T]) -> T:
    """Call a function in a daemon thread, which may block while the program exits."""
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

    If the reader is slow, `flush` waits without blocking the event loop: a pager that shows its
    first page for an hour must not lose the subscription. When the reader closes the pipe, `broken`
    is set and output is discarded.
    """

    def __init__(self) -> None:
        self.broken = False
        self._data = bytearray()

    @property
    def full(self) -> bool:
        """Whether the buffer should be flushed."""
        return len(self._data) >= CHUNK_BYTES

    def write(self, data: bytes) -> None:
        """Buffer data for the next flush."""
        self._data += data

    def on_closed(self, callback: Callable[[], object]) -> None:
        """Call back when the reader of a pipe closes it, even without output.

        Works only for pipes: the system then reports the writing end as readable.
        """
        try:
            descriptor = sys.stdout.fileno()
        except OSError:
            return  # Captured by a program.
        writes_only = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode) or not writes_only:
            return
        loop = asyncio.get_running_loop()

        def closed() -> None:
            loop.remove_reader(descriptor)
            self.broken = True
            callback()

        loop.add_reader(descriptor, closed)

    async def flush(self) -> None:
        """Write all buffered data."""
        data = bytes(self._data)
        self._data.clear()
        if not data or self.broken:
            return
        try:
            descriptor = sys.stdout.fileno()
        except OSError:
            # Captured by a program: writing does not block.
            sys.stdout.buffer.write(data)
            return
        try:
            with _named_in_errors("standard output"):
                if len(data) <= select.PIPE_BUF and _is_writable(descriptor):
                    os.write(descriptor, data)
                else:
                    await _in_thread(lambda: _write(descriptor, data))
        except BrokenPipeError:
            self.broken = True


def _is_writable(descriptor: int) -> bool:
    """Return whether a few bytes can be written without waiting."""
    return bool(select.select((), (descriptor,), (), 0)[1])


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
