"""What Spark's processes write to stderr, without the lines that say nothing.

PySpark 4.3 writes some that can't be switched off: a warning when Java starts, lines about each worker of
an ordered stream, and a traceback of `pyspark.daemon` for each task that ends before it has read all it was
given. Everything else is passed on.
"""

import os
import select
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

__all__ = ["Noise", "filtered"]

IDLE_S = 0.5
"""So long a traceback that has not ended is waited for."""
LINES_MAX = 1_000
"""A traceback of more lines is passed on, whatever it ends with."""

_DROPPED = (
    "WARNING: Using incubator modules",
    "Starting Streaming TransformWithStateInPandas Python worker",
    "Streaming TransformWithStateInPandas Python worker",
)
_TRACEBACK = "Traceback (most recent call last):"
_BROKEN_PIPE = "BrokenPipeError: "
_DAEMON = "daemon.py"


class Noise:
    """Passes lines on to `write` that are worth it."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self._held: list[str] = []
        """Lines of tracebacks that have not ended; those of several processes may be mixed."""
        self._dropped = False
        """Whether the line before was dropped: an empty one belongs to it."""

    def add(self, line: str) -> None:
        """Take a line, without its end."""
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
        """Pass on what is held: it did not end as a broken pipe of a daemon does."""
        held, self._held = self._held, []
        for line in held:
            self._write(line)

    def _ended(self) -> bool:
        """Tell whether all that is held are tracebacks of daemons that end with a broken pipe."""
        begun = sum(line.strip() == _TRACEBACK for line in self._held)
        ended = sum(line.startswith(_BROKEN_PIPE) for line in self._held)
        return begun == ended and any(_DAEMON in line for line in self._held)


@contextmanager
def filtered(write: Callable[[str], object] | None = None) -> Iterator[None]:
    """Have what processes started meanwhile write to stderr, for as long as they live, filtered.

    What is worth it goes to stderr, or to `write`, which must not use file descriptor 2. What this
    process itself writes there meanwhile goes the same way.
    """
    reader, writer = os.pipe()
    sys.stderr.flush()
    kept = os.dup(2)
    mine = os.dup(2)
    os.dup2(writer, 2)
    os.close(writer)
    threading.Thread(
        target=_pass_on, args=(reader, mine, write), name="ensue-stderr", daemon=True
    ).start()
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)


def _pass_on(reader: int, mine: int, write: Callable[[str], object] | None) -> None:
    """Pass on what processes write until the last of them has ended; `mine` is this process's stderr.

    A stderr that is closed does not end it: the processes would block on a full pipe.
    """
    noise = Noise(write or (lambda line: os.write(mine, f"{line}\n".encode())))
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
    os.close(mine)
