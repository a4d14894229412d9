"""The guard that keeps a simulated program inside the simulation.

While a simulation runs, the functions of the standard library that read a real clock, draw real
randomness, or make sockets, threads and processes check who calls them. A simulated process gets
`EscapedSimulation`, with the stack of the caller; all other code gets what it always gets. Reading
the clock is allowed to `logging`: no run depends on the times of its records.

Functions are replaced in their modules, methods in their classes. So a name that was imported
before the run, as by `from time import monotonic`, escapes if it is a function written in C.
"""

import _thread
import os
import random
import secrets
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from ensue.core import platform
from ensue.testing.errors import EscapedSimulation
from ensue.testing.process import Host

__all__ = ["guarded"]

EXCUSED = ("logging",)
"""Modules that may read the real clock."""

_CLOCK = "asyncio.get_running_loop().time() and asyncio.sleep are simulated"
_RANDOM = "draw from a random.Random of your own, made from the seed"
_TASKS = "use tasks"
_PROCESSES = "start simulated ones"
_STREAMS = "use asyncio's streams or protocols"


def _always(*_args: Any, **_options: Any) -> bool:
    return True


def _without_first(*args: Any, **_options: Any) -> bool:
    """Return whether a function of a time gets none: it takes the present one."""
    return not args or args[0] is None


def _without_second(*args: Any, **_options: Any) -> bool:
    """Return whether a function of a format and a time gets no time."""
    return len(args) < 2


def _without_seed(_self: Any, a: Any = None, *_args: Any, **_options: Any) -> bool:
    """Return whether a generator is seeded by the operating system."""
    return a is None


class _Guard(msgspec.Struct, frozen=True):
    """Functions that simulated processes may not call."""

    owner: Any
    """A module, a class or an object."""
    names: tuple[str, ...]
    instead: str
    """What to do instead."""
    when: Callable[..., bool] = _always
    """Takes the arguments of a call; returns whether it leaves the simulation."""


_GUARDS = (
    _Guard(
        time,
        (
            *("time", "monotonic", "perf_counter", "process_time", "thread_time", "clock_gettime"),
            *("time_ns", "monotonic_ns", "perf_counter_ns", "process_time_ns", "thread_time_ns"),
            *("clock_gettime_ns", "sleep"),
        ),
        _CLOCK,
    ),
    _Guard(time, ("gmtime", "localtime", "ctime", "asctime"), _CLOCK, _without_first),
    _Guard(time, ("strftime",), _CLOCK, _without_second),
    _Guard(
        random,
        tuple(name for name in random.__all__ if name not in ("Random", "SystemRandom")),
        _RANDOM,
    ),
    # Below the functions of the module, for those that were imported by name.
    _Guard(random._inst, ("random", "getrandbits"), _RANDOM),  # noqa: SLF001 - no other name
    _Guard(random.SystemRandom, ("random", "getrandbits", "randbytes"), _RANDOM),
    _Guard(random.Random, ("seed",), _RANDOM, _without_seed),
    _Guard(
        secrets,
        ("token_bytes", "token_hex", "token_urlsafe", "randbelow", "randbits", "choice"),
        _RANDOM,
    ),
    _Guard(uuid, ("uuid1", "uuid4"), _RANDOM),
    _Guard(os, ("urandom", "getrandom"), _RANDOM),
    _Guard(os, ("fork", "forkpty", "posix_spawn", "posix_spawnp", "system"), _PROCESSES),
    _Guard(subprocess.Popen, ("__init__",), _PROCESSES),
    _Guard(socket, ("create_connection", "socketpair", "getaddrinfo", "gethostbyname"), _STREAMS),
    _Guard(socket.socket, ("__init__",), _STREAMS),
    _Guard(threading.Thread, ("start",), _TASKS),
    _Guard(_thread, ("start_new_thread", "start_new", "start_joinable_thread"), _TASKS),
)


def _label(owner: Any, name: str) -> str:
    """Return how a program calls a function."""
    if isinstance(owner, type):
        of = f"{owner.__module__}.{owner.__qualname__}"
        return of if name == "__init__" else f"{of}.{name}"
    return f"{getattr(owner, '__name__', type(owner).__module__)}.{name}"


def _caller(label: str) -> str:
    """Return the module that called a function of another one."""
    frame = sys._getframe(2)  # noqa: SLF001 - the caller of the guard
    own = label.partition(".")[0]
    while frame.f_back is not None and frame.f_globals.get("__name__") == own:
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", ""))


def _checked(real: Callable[..., Any], label: str, guard: _Guard) -> Callable[..., Any]:
    instead, when = guard.instead, guard.when

    def checked(*args: Any, **options: Any) -> Any:
        if isinstance(platform.current(), Host) and when(*args, **options):
            caller = _caller(label)
            if not caller.startswith(EXCUSED):
                raise EscapedSimulation(f"{caller} called {label} inside a simulation: {instead}")
        return real(*args, **options)

    return checked


@contextmanager
def guarded() -> Iterator[None]:
    """Refuse real clocks, randomness, sockets, threads and processes to simulated ones."""
    replaced: list[tuple[Any, str, Any]] = []
    try:
        for guard in _GUARDS:
            owner = guard.owner
            for name in guard.names:
                if not hasattr(owner, name):  # Not every system and version has all of them.
                    continue
                replaced.append((owner, name, vars(owner).get(name)))
                setattr(owner, name, _checked(getattr(owner, name), _label(owner, name), guard))
        yield
    finally:
        for owner, name, own in reversed(replaced):
            if own is None:  # It is that of its class.
                delattr(owner, name)
            else:
                setattr(owner, name, own)
