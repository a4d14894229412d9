"""Programs on topics: publishers, and subscriptions of every kind, drawn from a seed."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random

import msgspec

import ensue
from ensue.core.errors import (
    EnsueError,
    EventsInDoubt,
    EventVoided,
    LocalProtocolError,
    PublishTimeout,
    SubscriptionLost,
    TransportError,
)
from ensue.core.order import Order
from ensue.testing.cluster import Cluster
from ensue.testing.faults import Faults, Striker, draw_faults
from ensue.testing.process import Process
from ensue.testing.world import World

__all__ = ["SETTLE_S", "Draw", "Program", "draw_topics"]

BUSY_S = 20.0
"""How long faults strike, in virtual seconds."""
SETTLE_S = 40.0
"""How long after healing everything that is owed has arrived."""


class Draw(msgspec.Struct, frozen=True, kw_only=True):
    """What a seed stands for."""

    seed: int
    order: Order
    servers: int
    sync_s: float
    topics: tuple[str, ...]
    publishers: int
    readers: int
    durable: int
    handlers: int
    events: int
    """Events that each publisher publishes, about."""
    faults: Faults

    @property
    def is_lossy(self) -> bool:
        """Whether events may be missing: by clocks and deadlines, what is late is dropped."""
        return isinstance(self.order, ensue.Merged | ensue.Deadline)


def draw_topics(seed: int, order: str, *, faults: list[str] | None = None) -> Draw:
    """Draw a program and its faults."""
    random = Random(f"{seed}/draw/{order}")  # noqa: S311 - replays a seed
    value = _VALUES[order](random)
    return Draw(
        seed=seed,
        order=value,
        servers=random.choice((1, 1, 2, 3)),
        sync_s=random.choice((0.0, 0.0, 0.2)),
        topics=tuple("abcd"[: random.randint(1, 4)]),
        publishers=random.randint(1, 3),
        readers=random.randint(1, 3),
        durable=random.choice((0, 1, 2)) if isinstance(value, ensue.Total) else 0,
        handlers=random.choice((0, 0, 1)),
        events=random.choice((5, 20, 60)),
        faults=draw_faults(random, allowed=faults),
    )


_VALUES: dict[str, Callable[[Random], Order]] = {
    "total": lambda _random: ensue.Total(),
    "causal": lambda random: ensue.Causal(across_topics=random.random() < 0.7),
    "merged": lambda random: ensue.Merged(
        epsilon=random.choice((0.002, 0.05)), delta=random.choice((0.3, 1.0))
    ),
    "deadline": lambda random: ensue.Deadline(ms=random.choice((200, 1000, 5000))),
}


class Program:
    """One run of a draw."""

    def __init__(self, world: World, drawn: Draw) -> None:
        self.world, self.drawn = world, drawn
        self.random = world.random
        self.cluster = Cluster(
            world,
            names=[f"server-{number}" for number in range(1, drawn.servers + 1)],
            sync_s=drawn.sync_s,
            topics=drawn.topics if drawn.servers > 1 else (),
        )
        self.clients: list[Process] = []
        self.faults: list[str] = []
        """What struck, and when."""
        self.problems: list[str] = []
        """What applications met that they must not meet."""
        self.durable: list[str] = []
        """Names of durable subscriptions."""
        self.calm = False
        """Whether faults are over: publishers stop."""
        self.over = False
        """Whether readers stop."""

    async def run(self) -> None:
        """Start servers and clients, let faults strike, heal, and let everything arrive."""
        drawn, world = self.drawn, self.world
        await self.cluster.start()
        kinds = [self._read] * drawn.readers + [self._handle] * drawn.handlers
        for number, kind in enumerate(kinds):
            self._start(f"reader-{number}", kind, self._topics(), self._generator())
        for number in range(drawn.durable):
            name = f"durable-{number}"
            self.durable.append(name)
            topics = self._topics()
            self._start(name, self._read_durable, name, topics, self._generator())
        await asyncio.sleep(world.random.choice((0.0, 0.5, 2.0)))
        for number in range(drawn.publishers):
            self._start(f"publisher-{number}", self._publish, self._generator())
        striker = Striker(world, [self.cluster], drawn.faults)
        striker.start()
        await asyncio.sleep(BUSY_S)
        await striker.stop()
        self.calm = True
        await asyncio.sleep(SETTLE_S)
        self.over = True
        await self._end()
        self.cluster.close()
        self.faults = striker.log
        self.problems += [
            f"{name} refused to start: {why}" for name, why in self.cluster.damaged.items()
        ]

    async def _end(self) -> None:
        """Wait for all clients: none may hang."""
        for client in self.clients:
            with suppress(TimeoutError):
                async with asyncio.timeout(30.0):
                    await client.ended()
            if client.alive:
                waits = "; ".join(client.waits())
                self.problems.append(f"liveness: {client.name} did not end within 30 s: {waits}")
            elif (error := client.error()) is not None:
                self.problems.append(f"{client.name} failed: {error}")

    def _generator(self) -> Random:
        """Return a generator for the choices of one client."""
        return Random(self.random.random())  # noqa: S311 - replays a seed

    def _topics(self) -> tuple[str, ...]:
        topics = self.drawn.topics
        return tuple(sorted(self.random.sample(topics, self.random.randint(1, len(topics)))))

    def _url(self, random: Random) -> str:
        return self.cluster.url(random.choice(self.cluster.names))

    def _start(self, name: str, main: Callable[..., Awaitable[None]], *args: object) -> None:
        self.clients.append(self.world.start(name, self._client, name, main, args))

    async def _client(
        self, name: str, main: Callable[..., Awaitable[None]], args: tuple[object, ...]
    ) -> None:
        """Run a client's program again after errors that applications have to expect."""
        while not self.over:
            try:
                await main(*args)
            except (TransportError, SubscriptionLost, EventsInDoubt) as error:
                if isinstance(error, SubscriptionLost) and error.reason != "superseded":
                    self.problems.append(f"{name}: {error!r}")
                    return
                await asyncio.sleep(0.5)
            else:
                # A durable subscription that closes while faults end is entered once more.
                if self.calm and main == self._publish:
                    return

    async def _publish(self, random: Random) -> None:
        drawn = self.drawn
        async with ensue.connect(self._url(random), order=drawn.order, name="publisher") as bus:
            gap_s = BUSY_S / drawn.events
            while not self.calm:
                burst = random.choice((1, 1, 1, 5, 20))
                for _ in range(burst):
                    await self._publish_one(bus, random)
                await asyncio.sleep(min(5.0, random.expovariate(1.0 / (gap_s * burst))))
            try:
                await bus.flush(timeout=SETTLE_S / 2)
            except EventsInDoubt as error:
                self.problems.append(f"liveness: no receipts long after healing: {error}")
            except EventVoided:
                pass

    async def _publish_one(self, bus: ensue.Bus, random: Random) -> None:
        topic = random.choice(self.drawn.topics)
        how = random.random()
        payload = random.randbytes(random.choice((0, 10, 100, 3000)))
        with suppress(EventVoided, EventsInDoubt, PublishTimeout):
            if how < 0.4:
                await bus.publish(topic, payload, receipt=False)
            elif how < 0.8:
                await bus.publish(topic, payload)
            elif how < 0.9:
                await bus.publish(topic, payload, timeout=random.choice((0.001, 0.05, 1.0)))
            else:
                with suppress(TimeoutError):
                    async with asyncio.timeout(random.choice((0.0001, 0.01, 0.5))):
                        await bus.publish(topic, payload)

    async def _read(self, topics: tuple[str, ...], random: Random) -> None:
        """Read a plain subscription, joining and leaving topics, cancelling waits."""
        order = self.drawn.order
        async with ensue.connect(self._url(random), order=order, name="reader") as bus:
            while not self.over:
                async with bus.subscribe(
                    *topics, pending_max=random.choice((2, 16, 1000))
                ) as events:
                    await self._read_some(events, topics, random)

    async def _read_some(
        self, events: ensue.Subscription, topics: tuple[str, ...], random: Random
    ) -> None:
        slow_s = random.choice((0.0, 0.0, 0.001, 0.05))
        while not self.over:
            with suppress(TimeoutError):
                # Cancelled again and again: no event may be lost by that.
                async with asyncio.timeout(random.choice((0.001, 0.1, 1.0))):
                    async for _ in events:
                        if slow_s:
                            break
            if slow_s:
                await asyncio.sleep(slow_s)
            if not self.calm and random.random() < 0.02:
                if random.random() < 0.3:
                    return  # Leave, and subscribe anew.
                topic = random.choice(topics)
                if topic in events.topics and len(events.topics) > 1:
                    await events.unsubscribe(topic)
                elif topic not in events.topics:
                    with suppress(LocalProtocolError):
                        await events.subscribe(topic)

    async def _read_durable(self, name: str, topics: tuple[str, ...], random: Random) -> None:
        order = self.drawn.order
        manual = random.random() < 0.5
        async with (
            ensue.connect(self._url(random), order=order, name=name) as bus,
            bus.subscribe(
                *topics,
                name=name,
                durable=True,
                acknowledge="manual" if manual else "auto",
                pending_max=random.choice((2, 100)),
            ) as events,
        ):
            while not self.over:
                with suppress(TimeoutError):
                    async with asyncio.timeout(random.choice((0.01, 1.0))):
                        async for event in events:
                            if manual:
                                await event.ack()
                if not self.calm and random.random() < 0.02:
                    return

    async def _handle(self, topics: tuple[str, ...], random: Random) -> None:
        order = self.drawn.order

        async def handle(_event: ensue.ReceivedEvent) -> None:
            if random.random() < 0.1:
                await asyncio.sleep(random.choice((0.0, 0.01, 0.2)))
            if random.random() < 0.02:
                raise ValueError("a handler fails now and then")

        async with (
            ensue.connect(self._url(random), order=order, name="handler") as bus,
            bus.subscribe(*topics) as events,
        ):
            closing = asyncio.create_task(self._close_at_end(events))
            try:
                await events.run(handle, on_failure=ensue.Park())
            except EnsueError as error:
                self.problems.append(f"handler: {error!r}")
            finally:
                closing.cancel()

    async def _close_at_end(self, events: ensue.Subscription) -> None:
        while not self.over:  # noqa: ASYNC110 - processes share no event
            await asyncio.sleep(0.5)
        events.close()
