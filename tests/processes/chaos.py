"""Faults of processes and connections, drawn from one seed."""

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random

from tests.brokers.proxy import DOWN, UP, Proxy
from tests.processes.runs import Process
from tests.processes.worker import EXIT_LOST

__all__ = ["Chaos"]

DOWN_S_MAX = 1.0
"""How long a killed process stays down."""
PAUSE_S_MAX = 3.0
FAULT_S_MAX = 1.5
DELAY_S_MAX = 0.2
CALM_S_MAX = 1.0
"""Pause between two faults of one kind."""
KILLS_UNTIL = 0.9
"""Progress at which the last process is killed."""
POLITE = 0.3
"""Probability that a kill also stops and restarts another process."""
TICK_S = 0.02
FAULTS = ("cut", "cut one", "cut all", "hold", "hold one", "drop", "delay", "refuse")


class Chaos:
    """Kills, pauses and connection faults. Kills are spread over `progress`, from 0 to 1."""

    def __init__(
        self,
        seed: int,
        processes: Sequence[Process],
        proxies: Mapping[str, Proxy],
        *,
        kills: int,
        progress: Callable[[], float],
        log: Path,
    ) -> None:
        # One generator for each kind: the duration of one must not change the draws of another.
        self._random = {sort: Random(f"{seed}/{sort}") for sort in ("kill", "pause", "network")}
        self._processes = processes
        self._proxies = proxies
        self._kills = kills
        self._progress = progress
        self.counts: Counter[str] = Counter()
        self._log = log
        self._began_s = time.monotonic()
        self._tasks: list[asyncio.Task[None]] = []
        self._kill_task: asyncio.Task[None] | None = None
        self._down: dict[Process, asyncio.Task[None]] = {}
        self.failures: list[str] = []
        """Processes that did not end after SIGTERM."""

    def begin(self) -> None:
        self._kill_task = asyncio.create_task(self._kill())
        self._tasks.append(self._kill_task)
        for work in (self._pause(), self._disturb()):
            self._tasks.append(asyncio.create_task(work))

    async def end(self) -> None:
        """End all faults, and restart stopped processes."""
        for task in self._tasks:
            task.cancel()
        for outcome in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome
        await asyncio.gather(*self._down.values())
        for process in self._processes:
            process.resume()
        for proxy in self._proxies.values():
            proxy.delay_s = 0.0
            proxy.release()
            proxy.stop_dropping()
            proxy.accept()

    def _did(self, what: str, whom: str, seconds: float = 0.0) -> None:
        """Count a fault, and log it for diagnosis."""
        self.counts[what] += 1
        with self._log.open("a", encoding="utf-8") as log:
            at_s = time.monotonic() - self._began_s
            log.write(f"{at_s:8.2f} {what}: {whom}{f' for {seconds:.2f} s' if seconds else ''}\n")

    def is_down(self, process: Process) -> bool:
        """Return whether a process was killed and will be restarted."""
        return process in self._down

    @property
    def has_killed_all(self) -> bool:
        """Whether all planned kills are done."""
        return self._kill_task is not None and self._kill_task.done()

    def _up(self) -> list[Process]:
        return [each for each in self._processes if each.running and each not in self._down]

    async def _kill(self) -> None:
        random = self._random["kill"]
        for number in range(1, self._kills + 1):
            while self._progress() < KILLS_UNTIL * number / (self._kills + 1):  # noqa: ASYNC110
                await asyncio.sleep(TICK_S)
            while not (up := self._up()):  # noqa: ASYNC110
                await asyncio.sleep(TICK_S)
            kind = random.choice(sorted({each.kind for each in up}))
            process = random.choice([each for each in up if each.kind == kind])
            down_s = random.uniform(0.0, DOWN_S_MAX)
            politely = random.random() < POLITE
            process.kill()
            self._did(f"{kind}s killed", process.name, down_s)
            self._down[process] = asyncio.create_task(self._start_again(process, down_s))
            if politely:
                up.remove(process)
                others = [each for each in up if each.kind != "publisher"]
                if others:
                    self._restart(random.choice(others))

    def _restart(self, process: Process) -> None:
        """Stop a process with SIGTERM, and restart it."""
        self._did(f"{process.kind}s restarted", process.name)
        self._down[process] = asyncio.create_task(self._end_and_start(process))

    async def _end_and_start(self, process: Process) -> None:
        code = await asyncio.to_thread(process.end)
        if code != EXIT_LOST and not process.ended_well(code):
            self.failures.append(f"{process.name} ended with {code}:\n{process.tail()}")
        process.start()
        del self._down[process]

    async def _start_again(self, process: Process, down_s: float) -> None:
        await asyncio.sleep(down_s)
        process.start()
        del self._down[process]

    async def _pause(self) -> None:
        random = self._random["pause"]
        while True:
            await asyncio.sleep(random.uniform(0.0, 2 * CALM_S_MAX))
            process = random.choice(self._processes)
            pause_s = random.uniform(0.0, PAUSE_S_MAX) ** 2 / PAUSE_S_MAX
            if process.running:
                pid = process.pid
                process.pause()
                self._did("pauses", process.name, pause_s)
                await asyncio.sleep(pause_s)
                process.resume(pid)

    async def _disturb(self) -> None:
        random = self._random["network"]
        faults = itertools.chain(["cut all"], iter(lambda: random.choice(FAULTS), None))
        while True:  # The first fault is a cut: a short run has time for few.
            await asyncio.sleep(random.uniform(0.0, CALM_S_MAX))
            name = random.choice(list(self._proxies))
            proxy = self._proxies[name]
            sort = next(faults)
            fault_s = random.uniform(0.0, FAULT_S_MAX)
            match sort:
                case "cut":
                    self._did("cuts", name)
                    proxy.cut()
                case "cut one":
                    self._did("cuts", f"one of {name}")
                    proxy.cut_one(random)
                case "cut all":
                    self._did("cuts", "all")
                    for each in self._proxies.values():
                        each.cut()
                case "hold":
                    directions = random.choice(((UP,), (DOWN,), (UP, DOWN)))
                    self._did("stops", f"{name} {' and '.join(directions)}", fault_s)
                    proxy.hold(*directions)
                    await asyncio.sleep(fault_s)
                    if random.random() < 0.5:
                        self._did("cuts", name)
                        proxy.cut()
                    proxy.release()
                case "hold one":
                    self._did("overtakings", f"one of {name}", fault_s)
                    proxy.hold_one(random)
                    await asyncio.sleep(fault_s)
                    proxy.release()
                case "drop":
                    direction = random.choice((UP, DOWN))
                    self._did("drops", f"{name} {direction}", fault_s)
                    proxy.drop(direction)
                    await asyncio.sleep(fault_s)
                    proxy.stop_dropping()
                case "delay":
                    proxy.delay_s = random.uniform(0.0, DELAY_S_MAX)
                    self._did("delays", f"{name} by {proxy.delay_s:.3f} s", fault_s)
                    await asyncio.sleep(fault_s)
                    proxy.delay_s = 0.0
                case _:
                    self._did("refusals", name, fault_s)
                    proxy.refuse()
                    proxy.cut()
                    await asyncio.sleep(fault_s)
                    proxy.accept()
