"""The stderr of Spark's processes, without noise.

PySpark 4.3 writes lines that can't be switched off: a warning when Java starts, lines about each
worker of an ordered stream, and a traceback of `pyspark.daemon` for each task that ends before it
has read all of its input. Everything else is passed on.
"""

import os
import select
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

__all__ = ["Noise", "filtered"]

IDLE_S = 0.5
"""How long to wait for the rest of a traceback."""
LINES_MAX = 1_000
"""A longer traceback is passed on, whatever its last line."""

_DROPPED = (
    "WARNING: Using incubator modules",
    "Starting Streaming TransformWithStateInPandas Python worker",
    "Streaming TransformWithStateInPandas Python worker",
)
_TRACEBACK = "Traceback (most recent call last):"
_BROKEN_PIPE = "BrokenPipeError: "
_DAEMON = "daemon.py"


class Noise:
    """A filter that passes lines on to `write`, except noise."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self._held: list[str] = []
        """Lines of unfinished tracebacks, possibly of several processes."""
        self._dropped = False
        """Whether the previous line was dropped: an empty one belongs to it."""

    def add(self, line: str) -> None:
        """Add a line, without its newline."""
        if line.startswith(_DROPPED) or (self._dropped and not line.strip()):
            self._dropped = True
            return
        self._dropped = False
        inside = bool(self._held) and (line.startswith((" ", "\t", _BROKEN_PIPE)))
        if line.strip() != _TRACEBACK and not inside:
            self.flush()
            self._write(line)
            return
        self._held.append(line)
        if self._ended():
            self._held.clear()
        elif len(self._held) >= LINES_MAX:
            self.flush()

    def flush(self) -> None:
        """Pass on held lines: they are no broken-pipe traceback of a daemon."""
        held, self._held = self._held, []
        for line in held:
            self._write(line)

    def _ended(self) -> bool:
        """Return whether the held lines are complete broken-pipe tracebacks of daemons."""
        begun = sum(line.strip() == _TRACEBACK for line in self._held)
        ended = sum(line.startswith(_BROKEN_PIPE) for line in self._held)
        return begun == ended and any(_DAEMON in line for line in self._held)


@contextmanager
def filtered(write: Callable[[str], object] | None = None) -> Iterator[None]:
    """Filter the stderr of processes that start in this context, until they end.

    Other lines go to stderr, or to `write`, which must not use file descriptor 2. Within the
    context, the stderr of this process is filtered too.
    """
    reader, writer = os.pipe()
    sys.stderr.flush()
    original = os.dup(2)
    target = os.dup(2)
    os.dup2(writer, 2)
    os.close(writer)
    threading.Thread(
        target=_forward, args=(reader, target, write), name="ensue-stderr", daemon=True
    ).start()
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(original, 2)
        os.close(original)


def _forward(reader: int, target: int, write: Callable[[str], object] | None) -> None:
    """Forward lines to `target`, this process's stderr, until all processes have ended.

    It keeps reading if stderr is closed: otherwise the processes would block on a full pipe.
    """
    noise = Noise(write or (lambda line: os.write(target, f"{line}\n".encode())))
    rest, ended = b"", False
    while not ended:
        if not select.select((reader,), (), (), IDLE_S)[0]:
            with suppress(OSError):
                noise.flush()
            continue
        data = os.read(reader, 65_536)
        ended = not data
        *lines, rest = (rest + (data or b"\n" * bool(rest))).split(b"\n")
        with suppress(OSError):
            for line in lines:
                noise.add(line.decode(errors="replace"))
    with suppress(OSError):
        noise.flush()
    os.close(reader)
    os.close(target)
