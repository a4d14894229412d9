"""Events per second through `memory://`, in total order and without order.

4 publishers and 4 subscribers of all 8 topics, 100-byte payloads, all in one process. Times are CPU
time, which other load disturbs little; the ratio is the result. Each round runs both orders, in
alternating sequence.

    python benchmarks/memory.py [--quick]
"""

import argparse
import asyncio
import os
import platform
import statistics
import time
from contextlib import AsyncExitStack

import ensue

TOPICS = [f"topic-{number}" for number in range(8)]
PUBLISHERS = SUBSCRIBERS = 4


async def run(order: ensue.Order | None, events_each: int, nodes: int) -> float:
    """Publish and read all events once; return the CPU seconds."""
    url = f"memory://benchmark?nodes={nodes}"
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        publishers = [await enter(ensue.connect(url, order=order)) for _ in range(PUBLISHERS)]
        readers = [await enter(ensue.connect(url, order=order)) for _ in range(SUBSCRIBERS)]
        subscriptions = [await enter(bus.subscribe(*TOPICS)) for bus in readers]

        async def publish(bus: ensue.Bus, offset: int) -> None:
            payload = bytes(100)
            for number in range(events_each):
                await bus.publish(TOPICS[(number + offset) % len(TOPICS)], payload)

        async def read(events: ensue.Subscription) -> None:
            for _ in range(PUBLISHERS * events_each):
                await anext(events)

        start = time.process_time()
        async with asyncio.TaskGroup() as group:
            for events in subscriptions:
                group.create_task(read(events))
            for offset, bus in enumerate(publishers):
                group.create_task(publish(bus, offset))
        return time.process_time() - start


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the events, one round")
    quick = parser.parse_args().quick
    events_each, rounds = (1_000, 1) if quick else (10_000, 5)
    published = PUBLISHERS * events_each
    note = "; quick: figures are rough" if quick else f", median of {rounds}"
    print(
        f"memory://, {PUBLISHERS} publishers, {SUBSCRIBERS} subscribers, {len(TOPICS)} topics, "
        f"{published:,} events; {os.cpu_count()} cores, one used; "
        f"Python {platform.python_version()}; CPU time{note}"
    )
    kinds = {
        "no order": (None, 1),
        "total, 1 node": (ensue.Total(), 1),
        "total, 3 nodes": (ensue.Total(), 3),
    }
    seconds: dict[str, list[float]] = {name: [] for name in kinds}
    for turn in range(rounds):
        for name in sorted(kinds, reverse=turn % 2 == 1):
            order, nodes = kinds[name]
            seconds[name].append(asyncio.run(run(order, events_each, nodes)))
    base = statistics.median(seconds["no order"])
    print(f"{'order':16}{'events/s':>10}{'deliveries/s':>14}{'µs/event':>10}{'x no order':>12}")
    for name, taken in seconds.items():
        middle = statistics.median(taken)
        print(
            f"{name:16}{published / middle:>10,.0f}{SUBSCRIBERS * published / middle:>14,.0f}"
            f"{middle / published * 1e6:>10.1f}{middle / base:>12.2f}"
        )
    print("goal: total order costs at most 2 x the CPU of no order")


if __name__ == "__main__":
    main()
