"""Standard input and output as pub and sub use them: unbuffered lines in, patient bytes out."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator

__all__ = ["Output", "lines_of"]

CHUNK_BYTES = 256 * 1024
LINE_BYTES_MAX = 16 * 1024 * 1024


async def lines_of(descriptor: int) -> AsyncIterator[list[bytes]]:
    """Yield the lines of a file, a pipe or a terminal as they come, without their ends.

    A thread does the reading, so that it works for everything that can be read.
    """
    loop = asyncio.get_running_loop()
    rest = b""
    while True:
        chunk = await loop.run_in_executor(None, os.read, descriptor, CHUNK_BYTES)
        if not chunk:
            break
        *whole, rest = (rest + chunk).split(b"\n")
        if whole:
            yield [line.removesuffix(b"\r") if line.endswith(b"\r") else line for line in whole]
        if len(rest) > LINE_BYTES_MAX:
            raise ValueError(f"a line is longer than {LINE_BYTES_MAX} bytes")
    if rest:
        yield [rest]


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
