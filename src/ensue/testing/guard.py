"""The guard that keeps a simulated program inside the simulation.

While a simulation runs, the functions of the standard library that read a real clock, draw real
randomness, or make sockets and threads check who calls them. A simulated process gets
`EscapedSimulation`, with the stack of the caller; all other code gets what it always gets. Reading
the clock is allowed to `logging`: no run depends on the times of its records.
"""

import os
import random
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ensue.core import platform
from ensue.testing.errors import EscapedSimulation
from ensue.testing.process import Host

__all__ = ["guarded"]

CLOCKS = (
    "time",
    "time_ns",
    "monotonic",
    "monotonic_ns",
    "perf_counter",
    "perf_counter_ns",
    "sleep",
)
RANDOM = (
    "random",
    "randint",
    "randrange",
    "choice",
    "choices",
    "shuffle",
    "uniform",
    "getrandbits",
)
SECRETS = ("token_bytes", "token_hex", "token_urlsafe", "randbits", "choice")
EXCUSED = ("logging",)
"""Modules that may read the real clock."""

_GUARDED: tuple[tuple[Any, tuple[str, ...], str], ...] = (
    (time, CLOCKS, "asyncio.get_running_loop().time() and asyncio.sleep are simulated"),
    (random, RANDOM, "draw from a random.Random of your own, made from the seed"),
    (secrets, SECRETS, "draw from a random.Random of your own, made from the seed"),
    (os, ("urandom",), "draw from a random.Random of your own, made from the seed"),
    (socket, ("socket", "create_connection", "socketpair"), "use asyncio's streams or protocols"),
    (threading.Thread, ("start",), "use tasks"),
)


def _wrapped(real: Callable[..., Any], name: str, instead: str) -> Callable[..., Any]:
    def checked(*args: Any, **options: Any) -> Any:
        if isinstance(platform.current(), Host):
            caller = sys._getframe(1).f_globals.get("__name__", "")  # noqa: SLF001 - the caller
            if not caller.startswith(EXCUSED):
                raise EscapedSimulation(f"{caller} called {name} inside a simulation: {instead}")
        return real(*args, **options)

    return checked


@contextmanager
def guarded() -> Iterator[None]:
    """Refuse real clocks, randomness, sockets and threads to simulated processes."""
    before: list[tuple[Any, str, Any]] = []
    try:
        for owner, names, instead in _GUARDED:
            for name in names:
                real = getattr(owner, name)
                label = f"{getattr(owner, '__name__', owner)}.{name}"
                before.append((owner, name, real))
                if isinstance(real, type):
                    setattr(owner, name, _guarded_class(real, label, instead))
                else:
                    setattr(owner, name, _wrapped(real, label, instead))
        yield
    finally:
        for owner, name, real in reversed(before):
            setattr(owner, name, real)


def _guarded_class(real: type, label: str, instead: str) -> type:
    class Guarded(real):  # type: ignore[misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            if isinstance(platform.current(), Host):
                raise EscapedSimulation(f"{label} was made inside a simulation: {instead}")
            super().__init__(*args, **options)

    Guarded.__name__ = real.__name__
    return Guarded
