"""The cost of a slow subscriber: throughput of the others, and memory of the server.

One publisher at full speed, two good subscribers, and a third one that
- does not exist (`none`),
- keeps up too (`good`),
- is stopped, and never reads from its connection again (`stopped`), or
- runs for `AWAKE_S` out of every `PERIOD_S`, and requests missed events from the log (`slow`).

Each client has its own process. Signals stop and continue the third one, so it takes almost no CPU
time from the others. A round runs all four cases, every other round in reverse. The events and
their order at the good subscribers are checked.

    python -m benchmarks.slow_consumer [--quick] [--rounds N] [--events N]

Run it from the root of the repository, on an idle machine.
"""

import argparse
import asyncio
import contextlib
import os
import signal
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.cases import CASES, Site
from benchmarks.peers.measurement import Crew, start_workers
from benchmarks.peers.processes import Failed, Process

__all__: list[str] = []

KINDS = ("none", "good", "stopped", "slow")
TOPICS = ("topic-0", "topic-1")
AWAKE_S = 0.01
PERIOD_S = 0.2
LOSS_MAX = 0.05
"""The goal: the largest loss of the others."""
MEMORY_MAX = 64 * 1024 * 1024
"""The goal: the 8 MiB that may wait for a connection, and room to copy them."""


@dataclass(frozen=True)
class Figures:
    """The results of one run."""

    rate: float
    """Events per second that reached both good subscribers."""
    server_us: float
    """CPU time of the server, per event."""
    memory: int
    """Peak resident memory of the server, in bytes."""


async def measure(kind: str, events: int) -> Figures:
    """Start all processes, run at full load, and end them."""
    case = next(each for each in CASES if each.name == "ensue")
    async with AsyncExitStack() as stack:
        name = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="ensue-slow-", ignore_cleanup_errors=True)
        )
        site = Site(Path(name), None, stack, [])
        url = await case.start(site)
        topics = list(TOPICS)
        good = await start_workers(site, case, "subscribe", url, 2, topics)
        publishers = await start_workers(site, case, "publish", url, 1, topics)
        crew = Crew(case, site.servers, publishers, good)
        await crew.run(max(1_000, events // 10), seconds=1.0)
        if kind != "none":
            (third,) = await start_workers(site, case, "subscribe", url, 1, topics)
            if kind != "good":
                awake_s = AWAKE_S if kind == "slow" else 0.0
                await stack.enter_async_context(held_up(third, awake_s))
        phase = await crew.run(events, seconds=10.0)
        memory = site.servers[0].memory_peak_bytes
        await asyncio.gather(*(worker.end(gently=True) for worker in (*publishers, *good)))
        return Figures(phase.rate, phase.cpu_s["servers"] / events * 1e6, memory)


@contextlib.asynccontextmanager
async def held_up(process: Process, awake_s: float) -> AsyncIterator[None]:
    """Stop a process, let it run periodically, and continue it at the end."""
    os.kill(process.pid, signal.SIGSTOP)

    async def wake() -> None:
        while awake_s:
            await asyncio.sleep(PERIOD_S - awake_s)
            os.kill(process.pid, signal.SIGCONT)
            await asyncio.sleep(awake_s)
            os.kill(process.pid, signal.SIGSTOP)

    waking = asyncio.create_task(wake())
    try:
        yield
    finally:
        waking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waking
        os.kill(process.pid, signal.SIGCONT)


async def main(rounds: int, events: int) -> int:
    """Measure all cases, and print the results."""
    found: dict[str, list[Figures]] = {kind: [] for kind in KINDS}
    for number in range(rounds):
        for kind in KINDS if number % 2 == 0 else KINDS[::-1]:
            figures = await measure(kind, events)
            found[kind].append(figures)
            print(f"round {number + 1}, {kind}: {figures.rate:,.0f} events/s", flush=True)
    print("\n| the third subscriber | events/s of the others | server, µs an event | server, MB |")
    print("|---|---|---|---|")
    middle = {kind: _middle(each) for kind, each in found.items()}
    for kind, each in middle.items():
        print(f"| {kind} | {each.rate:,.0f} | {each.server_us:.1f} | {each.memory / 1e6:.0f} |")
    alone = middle["none"]
    for kind in ("stopped", "slow"):
        lost = 1 - middle[kind].rate / alone.rate
        more = middle[kind].memory - alone.memory
        met = lost <= LOSS_MAX and more <= MEMORY_MAX
        beside_good = 1 - middle[kind].rate / middle["good"].rate
        print(
            f"goal, {kind}: the others lose at most {LOSS_MAX:.0%}: {lost:.1%} of what they have "
            f"without a third one, {beside_good:.1%} of what they have beside a good one; the "
            f"server's memory grows by no more than {MEMORY_MAX / 1e6:.0f} MB: {more / 1e6:.0f} "
            f"MB; {'met' if met else 'not met'}"
        )
    return 0


def _middle(figures: list[Figures]) -> Figures:
    return Figures(
        statistics.median(each.rate for each in figures),
        statistics.median(each.server_us for each in figures),
        int(statistics.median(each.memory for each in figures)),
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one small round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--events", type=int, default=300_000)
    given = parser.parse_args()
    try:
        code = asyncio.run(
            main(1, 3_000) if given.quick else main(max(1, given.rounds), max(1_000, given.events))
        )
    except Failed as error:
        sys.exit(f"slow_consumer: {error}")
    sys.exit(code)
