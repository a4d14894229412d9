"""Simulated processes cannot reach the real world by the standard library."""

import _thread
import asyncio
import logging
import os
import random
import secrets
import socket
import subprocess
import threading
import time
import traceback
import uuid
from collections.abc import Callable
from random import gauss, sample
from subprocess import Popen
from typing import Any

import pytest

from ensue.testing import EscapedSimulation, Simulation, simulate

ODDS = random.SystemRandom()


def refusal(escape: Callable[[], Any]) -> str:
    """Return the stack of the error that a simulated process gets."""

    async def main(_simulation: Simulation) -> None:
        escape()

    with pytest.raises(EscapedSimulation) as refused:
        simulate(main, seed=7)
    assert "seed=7" in "".join(refused.value.__notes__)
    assert time.monotonic() > 0  # Outside of a simulation nothing has changed.
    return "".join(traceback.format_exception(refused.value))


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        *((time, name) for name in ("time", "monotonic_ns", "process_time", "thread_time_ns")),
        (time, "localtime"),
        (secrets, "token_bytes"),
        (uuid, "uuid1"),
        (uuid, "uuid4"),
        (socket, "socket"),
        (socket, "socketpair"),
    ],
)
def test_real_clock_randomness_or_socket_is_refused(owner: Any, name: str) -> None:
    # Looked up when the simulation runs, as programs do.
    def call() -> None:
        getattr(owner, name)()

    told = refusal(call)
    assert f"{__name__} called {owner.__name__}.{name} " in told


@pytest.mark.parametrize(
    ("label", "escape"),
    [
        ("time.clock_gettime", lambda: time.clock_gettime(time.CLOCK_REALTIME)),
        ("time.gmtime", lambda: time.gmtime(None)),
        ("time.strftime", lambda: time.strftime("%H")),
        ("time.sleep", lambda: time.sleep(0)),
        ("random.SystemRandom.random", lambda: random.SystemRandom().random()),
        ("random.SystemRandom.getrandbits", lambda: ODDS.randint(1, 6)),
        ("random.Random.seed", lambda: random.Random(None)),
        ("random.getrandbits", lambda: sample([1, 2, 3], 2)),
        ("random.random", lambda: gauss(0, 1)),
        ("secrets.randbelow", lambda: secrets.randbelow(5)),
        ("os.urandom", lambda: os.urandom(1)),
        ("os.getrandom", lambda: os.getrandom(1)),
        ("os.system", lambda: os.system("true")),
        ("subprocess.Popen", lambda: subprocess.run(["true"], check=True)),
        ("subprocess.Popen", lambda: Popen(["true"]).wait()),
        ("socket.socket", lambda: socket.socket().close()),
        ("socket.create_connection", lambda: socket.create_connection(("localhost", 1))),
        ("threading.Thread.start", lambda: threading.Thread(target=print).start()),
        ("_thread.start_new_thread", lambda: _thread.start_new_thread(print, ())),
    ],
)
def test_real_world_is_refused_with_the_stack(label: str, escape: Callable[[], Any]) -> None:
    if not hasattr(os, "getrandom") and label == "os.getrandom":
        pytest.skip("this system has none")
    told = refusal(escape)
    assert f"EscapedSimulation: {__name__} called {label} inside a simulation: " in told
    assert f'"{__file__}"' in told


ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "betavariate": (1, 1),
    "choice": ([1],),
    "choices": ([1],),
    "expovariate": (1,),
    "gammavariate": (1, 1),
    "getrandbits": (1,),
    "lognormvariate": (0, 1),
    "paretovariate": (1,),
    "randbytes": (1,),
    "randint": (1, 2),
    "randrange": (2,),
    "sample": ([1], 1),
    "shuffle": ([1],),
    "uniform": (0, 1),
    "vonmisesvariate": (0, 1),
    "weibullvariate": (1, 1),
}


@pytest.mark.parametrize("name", [each for each in random.__all__ if each[0].islower()])
def test_every_function_of_the_shared_generator_is_refused(name: str) -> None:
    state = random.getstate()
    arguments = (state,) if name == "setstate" else ARGUMENTS.get(name, ())
    try:
        assert f"called random.{name} " in refusal(lambda: getattr(random, name)(*arguments))
        assert random.getstate() == state
    finally:
        random.setstate(state)


def test_thread_of_an_executor_is_refused() -> None:
    async def main(_simulation: Simulation) -> None:
        await asyncio.get_running_loop().run_in_executor(None, print)

    with pytest.raises(EscapedSimulation):
        simulate(main)


def test_what_stays_inside_is_allowed() -> None:
    async def main(_simulation: Simulation) -> list[Any]:
        logging.getLogger("a program").warning("logging reads the clock")
        return [
            time.gmtime(0).tm_year,
            time.strftime("%Y", time.gmtime(0)),
            random.Random(7).random(),
            uuid.uuid5(uuid.NAMESPACE_DNS, "ensue").version,
        ]

    assert simulate(main).result == [1970, "1970", random.Random(7).random(), 5]


def test_afterwards_everything_is_as_before() -> None:
    async def main(_simulation: Simulation) -> None:
        pass

    def seen() -> list[Any]:
        modules = (time, random, secrets, uuid, os, socket, subprocess, threading, _thread)
        classes = (random.SystemRandom, random.Random, subprocess.Popen, socket.socket)
        owners = (*modules, *classes, threading.Thread, random._inst)
        return [dict(vars(owner)) for owner in owners]

    before = seen()
    simulate(main)
    assert seen() == before
