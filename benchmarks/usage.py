"""Memory and CPU time of a benchmark: this process and its descendants."""

import os
import threading
from pathlib import Path
from typing import NamedTuple, Self

__all__ = ["Watch"]


class Watch:
    """Peak memory of the descendants of this process, and their CPU time."""

    def __init__(self) -> None:
        self.most: dict[str, int] = {}
        self.cpu_s = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self.cpu_s = -sum(usage.cpu_s for usage in descendants())
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()
        self.cpu_s += sum(usage.cpu_s for usage in descendants())

    def _watch(self) -> None:
        while not self._over.wait(0.2):
            found = descendants()
            for kind in ("java", "python"):
                size = sum(usage.resident for usage in found if usage.name.startswith(kind))
                self.most[kind] = max(size, self.most.get(kind, 0))


class Usage(NamedTuple):
    """Memory and CPU time of a process."""

    name: str
    resident: int
    cpu_s: float
    """Including children that have ended."""


def descendants() -> list[Usage]:
    """Return this process and its descendants."""
    parents: dict[int, int] = {}
    found: dict[int, Usage] = {}
    ticks, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            head, _, tail = stat.read_text(encoding="utf-8").rpartition(")")
        except (FileNotFoundError, ProcessLookupError):
            continue  # It ended meanwhile.
        number, fields = int(stat.parent.name), tail.split()
        parents[number] = int(fields[1])
        cpu_s = sum(int(field) for field in fields[11:15]) / ticks
        found[number] = Usage(head.partition("(")[2], int(fields[21]) * page, cpu_s)
    mine = []
    for number, usage in found.items():
        above = number
        while above not in (0, os.getpid()):
            above = parents.get(above, 0)
        if above:
            mine.append(usage)
    return mine
