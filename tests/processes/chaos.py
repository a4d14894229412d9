"""What is done to processes and connections meanwhile, drawn from one seed."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random

from tests.brokers.proxy import DOWN, UP
from tests.processes.backends import CuttingProxy
from tests.processes.running import Process

__all__ = ["Chaos"]

DOWN_S_MAX = 1.0
"""How long a killed process stays down."""
PAUSE_S_MAX = 3.0
FAULT_S_MAX = 1.5
DELAY_S_MAX = 0.2
CALM_S_MAX = 1.0
"""Between two faults of the same sort."""
TICK_S = 0.02


class Chaos:
    """Kills, pauses and bad connections. `progress` goes from 0 to 1: kills are spread over it."""

    def __init__(
        self,
        seed: int,
        processes: Sequence[Process],
        proxies: Sequence[CuttingProxy],
        *,
        kills: int,
        progress: Callable[[], float],
    ) -> None:
        # One generator each: how long one sort takes must not change what another draws.
        self._random = {sort: Random(f"{seed}/{sort}") for sort in ("kill", "pause", "network")}
        self._processes = processes
        self._proxies = proxies
        self._kills = kills
        self._progress = progress
        self.counts: Counter[str] = Counter()
        self._tasks: list[asyncio.Task[None]] = []
        self._down: dict[Process, asyncio.Task[None]] = {}

    def begin(self) -> None:
        for work in (self._kill(), self._pause(), self._disturb()):
            self._tasks.append(asyncio.create_task(work))

    async def end(self) -> None:
        """Undo everything, and start again what is down."""
        for task in self._tasks:
            task.cancel()
        for outcome in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome
        await asyncio.gather(*self._down.values())
        for process in self._processes:
            process.go_on()
        for proxy in self._proxies:
            proxy.delay_s = 0.0
            proxy.release()
            proxy.accept()

    def is_down(self, process: Process) -> bool:
        """Whether it was killed and will be started again."""
        return process in self._down

    async def _kill(self) -> None:
        random = self._random["kill"]
        for number in range(1, self._kills + 1):
            while self._progress() < number / (self._kills + 1):  # noqa: ASYNC110
                await asyncio.sleep(TICK_S)
            up = [each for each in self._processes if each.running]
            kind = random.choice(sorted({each.kind for each in up}))
            process = random.choice([each for each in up if each.kind == kind])
            down_s = random.uniform(0.0, DOWN_S_MAX)
            process.kill()
            self.counts[f"{kind}s killed"] += 1
            self._down[process] = asyncio.create_task(self._start_again(process, down_s))

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
                self.counts["pauses"] += 1
                await asyncio.sleep(pause_s)
                process.go_on(pid)

    async def _disturb(self) -> None:
        random = self._random["network"]
        while True:
            await asyncio.sleep(random.uniform(0.0, CALM_S_MAX))
            proxy = random.choice(self._proxies)
            sort = random.choice(("cut", "cut one", "cut all", "hold", "delay", "refuse"))
            fault_s = random.uniform(0.0, FAULT_S_MAX)
            self.counts[{"hold": "one-way stops", "delay": "delays"}.get(sort, "cuts")] += 1
            match sort:
                case "cut":
                    proxy.cut()
                case "cut one":
                    proxy.cut_one(random)
                case "cut all":
                    for each in self._proxies:
                        each.cut()
                case "hold":
                    directions = random.choice(((UP,), (DOWN,), (UP, DOWN)))
                    proxy.hold(*directions)
                    await asyncio.sleep(fault_s)
                    if random.random() < 0.5:
                        proxy.cut()
                    proxy.release()
                case "delay":
                    proxy.delay_s = random.uniform(0.0, DELAY_S_MAX)
                    await asyncio.sleep(fault_s)
                    proxy.delay_s = 0.0
                case _:
                    self.counts["refusals"] += 1
                    proxy.refuse()
                    proxy.cut()
                    await asyncio.sleep(fault_s)
                    proxy.accept()
