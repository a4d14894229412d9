"""One measurement of a layout: all processes, a warm-up, and full load."""

import asyncio
import tempfile
import time
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.peers.cases import CASES, Site, serve
from benchmarks.peers.measurement import Crew
from benchmarks.peers.processes import Failed, Process, python, started
from benchmarks.scaling.layout import Layout

__all__ = ["Figures", "Settings", "measure"]

PROCESSES = 2
"""Processes of all subscribers together: more would only compete for two cores."""
LAYOUT_S = 300.0
"""Time limit of a layout, with the start of its processes."""
MEMORY_MAX = 4_000_000_000
"""Most memory of one process, in bytes."""
WATCH_S = 0.25
EVENTS_MIN = 100
DELIVERIES_MAX = 1_000_000
"""Most deliveries of a phase: subscribers retain all events until its end."""
CONFIGURATION = """\
sync = "1s"

[limits]
connections = 2_000
connections_per_address = 2_000
topics_per_subscription = 20_000

[[servers]]
name = "server"
listen = "127.0.0.1:0"
data = "data"
"""
"""The server syncs each second, and takes the largest layout."""

Result = TypeVar("Result")


@dataclass(frozen=True)
class Settings:
    """The extent of a measurement."""

    warm_up: int
    """Events of a warm-up over all topics, at most."""
    events: int | None
    """Events under full load; None: enough for `seconds`."""
    seconds: float


@dataclass(frozen=True)
class Figures:
    """The results of one measurement; CPU times are per event."""

    rate: float
    """Events per second that reached all their subscribers."""
    server_us: float
    publisher_us: float
    subscribers_us: float
    subscribed_s: float
    """Time to start all subscribers, until the last subscription is open."""
    memory_before: int
    """Resident memory of the server when all are subscribed, in bytes."""
    memory_peak: int
    """Its peak, under load too."""

    @property
    def cpu_us(self) -> float:
        """CPU time of all processes."""
        return self.server_us + self.publisher_us + self.subscribers_us


async def measure(layout: Layout, settings: Settings) -> Figures:
    """Start all processes, measure, and end them."""
    async with AsyncExitStack() as stack:
        name = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="ensue-scaling-", ignore_cleanup_errors=True)
        )
        site = Site(Path(name), None, stack, [])
        try:
            async with asyncio.timeout(LAYOUT_S):
                return await _measure(site, layout, settings)
        except TimeoutError:
            raise Failed(f"not finished within {LAYOUT_S:g} s") from None


async def _measure(site: Site, layout: Layout, settings: Settings) -> Figures:
    file = site.directory / "ensue.toml"
    file.write_text(CONFIGURATION, encoding="utf-8")
    url = await serve(site, "--config", str(file))
    (server,) = site.servers
    began_s = time.monotonic()
    count = min(PROCESSES, layout.subscribers)
    cuts = [layout.subscribers * number // count for number in range(count + 1)]
    subscribers = [
        await _start(site, url, layout, "subscribe", str(first), str(stop))
        for first, stop in pairwise(cuts)
    ]
    await _watched(_ready(subscribers), [server, *subscribers])
    subscribed_s = time.monotonic() - began_s
    memory_before = server.memory_bytes
    publisher = await _start(site, url, layout, "publish")
    await _ready([publisher])
    case = next(each for each in CASES if each.name == "ensue")
    crew = Crew(case, [server], [publisher], subscribers)
    workers = [publisher, *subscribers]
    rate, cpu_us = await _watched(_load(crew, layout, settings), [server, *workers])
    memory_peak = server.memory_peak_bytes
    await asyncio.gather(*(worker.end(gently=True) for worker in workers))
    return Figures(
        rate=rate,
        server_us=cpu_us["servers"],
        publisher_us=cpu_us["publishers"],
        subscribers_us=cpu_us["subscribers"],
        subscribed_s=subscribed_s,
        memory_before=memory_before,
        memory_peak=memory_peak,
    )


async def _start(site: Site, url: str, layout: Layout, *role: str) -> Process:
    command = python("benchmarks.scaling.worker", url, *layout.words, *role)
    process = started("-".join(role), command, site.directory)
    return await site.stack.enter_async_context(process)


async def _ready(processes: Sequence[Process]) -> None:
    for said in await asyncio.gather(*(each.reply(LAYOUT_S) for each in processes)):
        if "refused" in said:
            raise Failed(f"refused: {said['refused']}")


async def _load(crew: Crew, layout: Layout, settings: Settings) -> tuple[float, dict[str, float]]:
    """Return events per second, and CPU time per event by kind of process."""
    seconds = settings.seconds
    most = DELIVERIES_MAX // layout.copies
    warm_up = min(len(layout.round), settings.warm_up, most)
    warm = await crew.run(max(warm_up, EVENTS_MIN), seconds=seconds)
    events = settings.events
    if events is None:
        # A first estimate: short runs differ from long ones.
        guess = await crew.run(_within(warm.rate * seconds / 4, most), seconds=seconds)
        events = _within(guess.rate * seconds, most)
    phase = await crew.run(events, seconds=seconds)
    return phase.rate, {kind: taken / events * 1e6 for kind, taken in phase.cpu_s.items()}


def _within(events: float, most: int) -> int:
    return int(min(max(events, EVENTS_MIN), most))


async def _watched(work: Coroutine[Any, Any, Result], processes: Sequence[Process]) -> Result:
    """Do some work; raise `Failed` as soon as a process takes too much memory."""
    working = asyncio.create_task(work)
    watching = asyncio.create_task(_watch(processes))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            watching.result()
        return await working
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _watch(processes: Sequence[Process]) -> None:
    while True:
        for process in processes:
            used = process.memory_bytes
            if used > MEMORY_MAX:
                raise Failed(f"{process.name} takes {used / 1e9:.1f} GB of memory")
        await asyncio.sleep(WATCH_S)
