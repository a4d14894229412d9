"""CPU time of a client per event: calls for each event, and calls for many at once.

Publishing: `publish` awaited event by event, `publish(…, receipt=False)` with one `flush`, and
`publish_many`. Reading events that have arrived: `async for`, and `batches`. On `memory://` the
sequencer runs in the same thread, and counts. On `ensue://` the server has a thread of its own,
and does not. A round runs all of them, every other round in reverse; medians are printed.

    python -m benchmarks.batches [--quick] [--rounds N] [--events N]

Run it from the root of the repository, on an idle machine.
"""

import argparse
import asyncio
import os
import platform
import statistics
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager

import ensue
from ensue.server import Server, ServerConfig

__all__: list[str] = []

GOAL_US = 5.0
"""The goal: CPU time of `publish_many` and of `batches`, per event."""
PAYLOAD = b"x" * 100
TOPICS = ("topic-0", "topic-1")


async def publish_each(bus: ensue.Bus, count: int) -> None:
    """Publish events, each when the last one has its receipt."""
    for number in range(count):
        await bus.publish(TOPICS[number % 2], PAYLOAD)


async def publish_unawaited(bus: ensue.Bus, count: int) -> None:
    """Publish events, and wait for all receipts at the end."""
    for number in range(count):
        await bus.publish(TOPICS[number % 2], PAYLOAD, receipt=False)
    await bus.flush()


async def publish_many(bus: ensue.Bus, count: int) -> None:
    """Publish events by one call."""
    await bus.publish_many((TOPICS[number % 2], PAYLOAD) for number in range(count))


async def read_each(events: ensue.Subscription, count: int) -> None:
    """Read events one by one."""
    async for event in events:
        if event.position == count:
            break


async def read_batches(events: ensue.Subscription, count: int) -> None:
    """Read events in batches."""
    async for batch in events.batches():
        if batch[-1].position == count:
            break


PUBLISHING: dict[str, Callable[[ensue.Bus, int], Awaitable[None]]] = {
    "publish": publish_each,
    "publish, receipt=False": publish_unawaited,
    "publish_many": publish_many,
}
READING: dict[str, Callable[[ensue.Subscription, int], Awaitable[None]]] = {
    "async for": read_each,
    "batches": read_batches,
}


async def time_publishing(url: str, name: str, count: int) -> float:
    """Return the CPU time of publishing, in seconds."""
    async with ensue.connect(url) as bus:
        await publish_unawaited(bus, 100)
        began_s = time.thread_time()
        await PUBLISHING[name](bus, count)
        return time.thread_time() - began_s


async def time_reading(url: str, name: str, count: int) -> float:
    """Return the CPU time of reading events that have arrived, in seconds."""
    async with (
        ensue.connect(url) as bus,
        bus.subscribe(*TOPICS, pending_max=2 * count) as events,
    ):
        await publish_many(bus, count)
        while events.waiting < count:  # noqa: ASYNC110 - a reader would take them
            await asyncio.sleep(0.01)
        began_s = time.thread_time()
        await READING[name](events, count)
        return time.thread_time() - began_s


@contextmanager
def serving() -> Iterator[str]:
    """Run a server in a thread; yield its URL."""
    started: Future[tuple[str, Callable[[], object]]] = Future()

    async def serve(data: str) -> None:
        server = Server(ServerConfig(data=data, listen="127.0.0.1:0", sync_s=0.2))
        await server.start()
        over, loop = asyncio.Event(), asyncio.get_running_loop()
        started.set_result((server.url, lambda: loop.call_soon_threadsafe(over.set)))
        await over.wait()
        await server.stop()

    with tempfile.TemporaryDirectory(prefix="ensue-batches-") as data:
        thread = threading.Thread(target=lambda: asyncio.run(serve(data)))
        thread.start()
        url, end = started.result(timeout=30)
        try:
            yield url
        finally:
            end()
            thread.join()


def measure(url: str, count: int, rounds: int) -> dict[str, float]:
    """Return the median CPU time of each way, per event in microseconds."""
    found: dict[str, list[float]] = {}
    runs = [(name, time_publishing) for name in PUBLISHING]
    runs += [(name, time_reading) for name in READING]
    for number in range(rounds):
        for name, timed in runs if number % 2 == 0 else reversed(runs):
            cpu_s = asyncio.run(timed(url, name, count))
            found.setdefault(name, []).append(cpu_s / count * 1e6)
    return {name: statistics.median(values) for name, values in found.items()}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round of few events")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--events", type=int, default=20_000)
    options = parser.parse_args()
    rounds, count = (1, 1_000) if options.quick else (options.rounds, options.events)
    print(f"{os.cpu_count()} cores, Python {platform.python_version()}, {count:,} events")
    print(f"{'transport':<10} {'way':<23} {'CPU µs/event':>12} {'ratio':>7}")
    best: dict[str, float] = {}
    with serving() as served:
        for label, url in (("memory://", "memory://"), ("ensue://", served)):
            found = measure(url, count, rounds)
            for many, ways in (("publish_many", PUBLISHING), ("batches", READING)):
                best[f"{label} {many}"] = found[many]
                for name in ways:
                    ratio = found[name] / found[many]
                    print(f"{label:<10} {name:<23} {found[name]:>12.1f} {ratio:>6.1f}x")
    worst = max(best, key=best.__getitem__)
    print(f"goal: {GOAL_US:g} µs per event; the worst is {worst} with {best[worst]:.1f} µs")


if __name__ == "__main__":
    main()
