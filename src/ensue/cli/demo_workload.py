"""The workload of the demo: services of a shop that publish and subscribe.

Every publisher and every subscriber is a separate client of one in-process hub. Each notification
takes a random time up to `jitter_ms`, so notifications overtake each other. The same workload runs
with no order and with total order. Both runs are recorded, and all figures come from their traces.
"""

import asyncio
import contextlib
from collections.abc import Callable
from contextlib import AsyncExitStack
from random import Random

import msgspec

import ensue

__all__ = ["TOPICS", "Workload", "run"]

TOPICS = ("orders", "payments", "stock", "shipping", "refunds", "prices", "reviews", "alerts")
PUBLISHERS = ("web", "app", "till", "phone", "kiosk", "market", "partner", "office")
SUBSCRIBERS = (
    "warehouse",
    "billing",
    "dispatch",
    "support",
    "search",
    "mailer",
    "fraud",
    "accounts",
)
POLL_S = 0.05
DELIVERY_TIMEOUT_S = 60.0
"""How long deliveries may take after the last event."""


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of the workload."""

    seconds: float = 12.0
    publishers: int = 8
    subscribers: int = 8
    topics_each: int = 4
    """Topics per subscriber."""
    per_second: float = 25.0
    """Events per publisher."""
    jitter_ms: float = 60.0
    nodes: int = 3
    seed: int = 1


def run(
    workload: Workload,
    order: ensue.Order | None,
    record: str,
    progress: Callable[[float, int, int], None],
) -> None:
    """Run the workload once.

    `progress` is called with the share done, and the events and deliveries so far.
    """
    asyncio.run(_Demo(workload, order, record, progress).run())


def _services(names: tuple[str, ...], count: int) -> list[str]:
    """Return `count` names of services: first `names`, then `web-2` and so on."""
    rounds = ((index // len(names), names[index % len(names)]) for index in range(count))
    return [f"{name}-{number + 1}" if number else name for number, name in rounds]


class _Demo:
    def __init__(
        self,
        workload: Workload,
        order: ensue.Order | None,
        record: str,
        progress: Callable[[float, int, int], None],
    ) -> None:
        self._workload = workload
        self._order = order
        self._record = record
        self._progress = progress
        self._published: dict[str, int] = dict.fromkeys(TOPICS, 0)
        self._delivered = 0
        self._expected: int | None = None
        """Number of deliveries; known once everything is published."""
        self._all_delivered = asyncio.Event()

    def _connect(self, name: str, *, record: str | None = None) -> ensue.Bus:
        load = self._workload
        url = f"memory://demo?nodes={load.nodes}&jitter_ms={load.jitter_ms}&seed={load.seed}"
        return ensue.connect(url, order=self._order, name=name, record=record)

    async def run(self) -> None:
        load = self._workload
        random = Random(load.seed)  # noqa: S311 - a workload is no secret
        async with AsyncExitStack() as stack:
            enter = stack.enter_async_context
            await enter(self._connect("demo", record=self._record))
            subscriptions = []
            for name in _services(SUBSCRIBERS, load.subscribers):
                bus = await enter(self._connect(name))
                topics = random.sample(TOPICS, load.topics_each)
                subscriptions.append(await enter(bus.subscribe(*topics, name=name)))
            publishers = [
                await enter(self._connect(name)) for name in _services(PUBLISHERS, load.publishers)
            ]
            readers = [asyncio.create_task(self._read(each)) for each in subscriptions]
            watcher = asyncio.create_task(self._watch())
            async with asyncio.TaskGroup() as group:
                for bus in publishers:
                    group.create_task(self._publish(bus, Random(random.random())))  # noqa: S311
            await self._settle(subscriptions)
            for task in (*readers, watcher):
                task.cancel()
            await asyncio.gather(*readers, watcher, return_exceptions=True)

    async def _publish(self, bus: ensue.Bus, random: Random) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + self._workload.seconds
        while True:
            await asyncio.sleep(random.expovariate(self._workload.per_second))
            if loop.time() >= end:
                return
            topic = random.choice(TOPICS)
            await bus.publish(topic, random.randbytes(24))
            self._published[topic] += 1

    async def _read(self, events: ensue.Subscription) -> None:
        async for _event in events:
            self._delivered += 1
            if self._delivered == self._expected:
                self._all_delivered.set()

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        start = loop.time()
        while True:
            share = min(1.0, (loop.time() - start) / self._workload.seconds)
            self._progress(share, sum(self._published.values()), self._delivered)
            await asyncio.sleep(POLL_S)

    async def _settle(self, subscriptions: list[ensue.Subscription]) -> None:
        """Wait for all deliveries, up to a timeout: the checkers report missing ones."""
        expected = sum(self._published[topic] for each in subscriptions for topic in each.topics)
        self._expected = expected
        if self._delivered < expected:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DELIVERY_TIMEOUT_S):
                    await self._all_delivered.wait()
        self._progress(1.0, sum(self._published.values()), self._delivered)
