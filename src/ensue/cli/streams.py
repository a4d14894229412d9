"""Standard input and output as pub and sub use them: unbuffered lines in, patient bytes out."""

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import AsyncIterator

__all__ = ["Output", "lines_of"]

CHUNK_BYTES = 256 * 1024
LINE_BYTES_MAX = 16 * 1024 * 1024


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
            raise ValueError(f"a line is longer than {LINE_BYTES_MAX} bytes")
    if rest:
        yield [rest]


async def _read(descriptor: int) -> bytes:
    """Read in a thread of its own, which keeps nobody from ending while there is nothing to read."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[bytes] = loop.create_future()

    def settle(chunk: bytes | OSError) -> None:
        if result.cancelled():
            return
        if isinstance(chunk, OSError):
            result.set_exception(chunk)
        else:
            result.set_result(chunk)

    def read() -> None:
        chunk: bytes | OSError
        try:
            chunk = os.read(descriptor, CHUNK_BYTES)
        except OSError as error:
            chunk = error
        with contextlib.suppress(RuntimeError):  # The event loop may have ended meanwhile.
            loop.call_soon_threadsafe(settle, chunk)

    threading.Thread(target=read, name="ensue-input", daemon=True).start()
    return await result


class Output:
    """Standard output for bytes. When whoever reads stops reading, it says so and is silent."""

    def __init__(self) -> None:
        self.broken = False
        self._buffer = sys.stdout.buffer

    def write(self, data: bytes) -> None:
        """Write, to be flushed later."""
        if not self.broken:
            try:
                self._buffer.write(data)
            except BrokenPipeError:
                self._break()

    def flush(self) -> None:
        """Let go of everything written."""
        if not self.broken:
            try:
                self._buffer.flush()
            except BrokenPipeError:
                self._break()

    def _break(self) -> None:
        self.broken = True
        # Python flushes standard output once more at its end, and would complain.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
