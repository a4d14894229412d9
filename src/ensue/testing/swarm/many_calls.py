"""Clients of a program on topics that publish and read many events at once.

- `publish_many` returns the events of its pairs, in their sequence, and numbered in it.
- Readers of batches get the events of a publisher on a topic in the sequence of its pairs, and all
  that counts as delivered, however often they are cancelled.
- A batch that was handed over and not handled comes again.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from itertools import count
from random import Random

import ensue
from ensue.core.errors import EventsInDoubt, EventVoided, PublishedInPart, PublishTimeout
from ensue.testing.swarm.durable_reader import DurableReader
from ensue.testing.swarm.rare_calls import MANY, Phase
from ensue.testing.swarm.taken import Taken
from ensue.testing.swarm.topic_calls import Collected
from ensue.testing.swarm.topic_draw import Draw
from ensue.testing.world import World

__all__ = ["KEEPER", "ManyCalls", "one_by_one"]

KEEPER = "keeper"
"""The durable subscription that is read in batches, and its process."""
MANY_MAX = 200
"""Events that are published at once."""
SLOW_BYTES_PER_S = 50_000
"""Where links are slower, a server's link to its broker can't carry `MANY_MAX` events to each of
its subscribers every few seconds, …"""
SLOW_MANY_MAX = 20
"""… but so many."""
MARK = b"many "
"""How the payloads of these events begin; they go on with a number that rises."""


class Interrupted(Exception):
    """An application fails in the middle of a batch."""


class ManyCalls:
    """The clients of a run that publish and read many events at once."""

    def __init__(
        self,
        world: World,
        drawn: Draw,
        problems: list[str],
        *,
        phase: Phase,
        taken: Taken,
        url: Callable[[Random], str],
        lost_ns: Callable[[], int | None],
        broken: dict[str, int],
    ) -> None:
        self._drawn, self._problems = drawn, problems
        self._phase, self._taken, self._url = phase, taken, url
        self._lost_ns, self._broken = lost_ns, broken
        self._random = world.generator("many calls")
        self._numbers = count(1)
        slow = world.network.options.bytes_per_s < SLOW_BYTES_PER_S
        # Where few events are held back, the others are fetched again in small portions.
        small = isinstance(drawn.order, ensue.Total) and drawn.order.held_max < 20
        self._size_max = SLOW_MANY_MAX if slow or small else MANY_MAX
        self.hands: DurableReader | None = None
        """What the application of the durable subscription did, if there is one."""
        if MANY in drawn.calls and isinstance(drawn.order, ensue.Total):
            random = world.generator(f"durable reader {KEEPER}")
            self.hands = DurableReader(KEEPER, problems, random)

    def mains(self) -> Iterator[tuple[str, Callable[[], Awaitable[None]]]]:
        """Yield the processes that are to be started: their names and programs."""
        if MANY in self._drawn.calls:
            yield "loader", self._load
            yield "batcher", self._read
            if self.hands is not None:
                yield KEEPER, self._keep

    def _connect(self, name: str) -> ensue.Bus:
        return ensue.connect(self._url(self._random), order=self._drawn.order, name=name)

    # -- Publishing -------------------------------------------------------------------------------

    async def _load(self) -> None:
        random = self._random
        async with self._connect("loader") as bus:
            while not self._phase.calm:
                size = min(random.choice((1, 3, 20, MANY_MAX)), self._size_max)
                pairs = [
                    (random.choice(self._drawn.topics), MARK + b"%d" % next(self._numbers))
                    for _ in range(size)
                ]
                await self._publish(bus, pairs)
                await asyncio.sleep(random.uniform(0.1, 3.0))
            with suppress(EventVoided, EventsInDoubt):
                await bus.flush(timeout=10.0)
            while not self._phase.over:  # noqa: ASYNC110 - set by another event loop
                await asyncio.sleep(0.5)

    async def _publish(self, bus: ensue.Bus, pairs: list[tuple[str, bytes]]) -> None:
        random = self._random
        receipt = random.random() < 0.7
        timeout_s = random.choice((None, None, 0.05, 1.0))
        with suppress(EventVoided, EventsInDoubt, PublishTimeout, PublishedInPart, TimeoutError):
            # Cancelled at times: then a first part was published.
            async with asyncio.timeout(random.choice((None, None, 0.001, 0.5))):
                events = await bus.publish_many(pairs, receipt=receipt, timeout=timeout_s)
            if [(event.topic, event.payload) for event in events] != pairs:
                self._problems.append(f"many: {bus.name} published {len(pairs)} other events")
            if receipt and isinstance(bus.order, ensue.Total) and not all(e.slot for e in events):
                self._problems.append(f"many: {bus.name} got events back without their slots")
            numbers: dict[str, int] = {}
            for event in events:
                if event.publisher_seq <= numbers.get(event.topic, 0):
                    self._problems.append(f"many: {event.id} was published out of its sequence")
                numbers[event.topic] = event.publisher_seq

    # -- Reading ----------------------------------------------------------------------------------

    async def _read(self) -> None:
        """Read batches and single events in turns, and cancel waits."""
        random, drawn = self._random, self._drawn
        pending_max = random.choice((2, 16, 1_000))
        async with (
            self._connect("batcher") as bus,
            bus.subscribe(*drawn.topics, pending_max=pending_max) as events,
        ):
            self._taken.watch(events)
            got, rising = Collected(events, drawn), _Rising(events.name)
            slow_s = random.choice((0.0, 0.0, 0.3))
            try:
                while not self._phase.over:
                    batch = await self._next(events)
                    rising.take(batch)
                    for event in batch:
                        self._taken.take(events, event)
                        got.take(event)
                    if not batch:
                        got.compare_counts()
                    elif slow_s and not self._phase.calm:
                        await asyncio.sleep(random.uniform(0.0, slow_s))
            finally:
                self._problems += [*got.problems, *rising.problems]

    async def _next(self, events: ensue.Subscription) -> list[ensue.ReceivedEvent]:
        """Return the next batch; nothing if the wait for it was cancelled."""
        random = self._random
        if random.random() < 0.2:
            return await self._snatch(events)
        try:
            async with asyncio.timeout(random.choice((0.001, 0.1, 1.0))):
                if random.random() < 0.2:
                    return [await anext(events)]
                return await anext(events.batches(max=random.choice((1, 3, 1_000))))
        except TimeoutError:
            return []

    async def _snatch(self, events: ensue.Subscription) -> list[ensue.ReceivedEvent]:
        """Read a batch, and be cancelled after a few turns of the event loop."""
        reading = asyncio.ensure_future(anext(events.batches()))
        for _ in range(self._random.randint(0, 3)):
            await asyncio.sleep(0)
        reading.cancel()
        try:
            return await reading
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # The application itself was cancelled.
            return []

    async def _keep(self) -> None:
        """Read a durable subscription, and fail now and then."""
        while not self._phase.over:
            with suppress(Interrupted):
                await self._keep_once()

    async def _keep_once(self) -> None:
        random, hands = self._random, self.hands
        assert hands is not None
        manual = random.random() < 0.3
        async with (
            self._connect(KEEPER) as bus,
            bus.subscribe(
                *self._drawn.topics,
                name=KEEPER,
                durable=True,
                acknowledge="manual" if manual else "auto",
                pending_max=random.choice((2, 100)),
                accept_loss=KEEPER in self._broken,
            ) as events,
        ):
            hands.begin(self._lost_ns())
            self._taken.watch(events)
            rising = _Rising(events.name)
            last: Sequence[ensue.ReceivedEvent] = ()
            try:
                while not self._phase.over:
                    if not manual:
                        for event in last:  # Asking for more acknowledges them.
                            hands.done(event)
                    batch = await self._next(events)
                    rising.take(batch)
                    for event in batch:
                        self._taken.take(events, event)
                        hands.hand(event)
                    last = batch
                    if manual:
                        await self._acknowledge(batch)
                    if batch and not self._phase.calm and random.random() < 0.1:
                        raise Interrupted
            finally:
                self._problems += rising.problems

    async def _acknowledge(self, batch: Sequence[ensue.ReceivedEvent]) -> None:
        """Acknowledge a batch, in any sequence."""
        assert self.hands is not None
        for event in self._random.sample(batch, len(batch)):
            safe = self.hands.done(event)
            with suppress(TimeoutError):
                async with asyncio.timeout(5.0):
                    await event.ack()
                    self.hands.safe(safe)


class _Rising:
    """The numbers of one subscription, which rise for each publisher and topic."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._last: dict[tuple[str, str], int] = {}
        self.problems: list[str] = []

    def take(self, batch: Sequence[ensue.ReceivedEvent]) -> None:
        """Note the events of a batch."""
        for event in batch:
            if event.verdict or not event.payload.startswith(MARK):
                continue
            number, stream = int(event.payload.removeprefix(MARK)), (event.publisher, event.topic)
            if number <= self._last.get(stream, 0) and not self.problems:
                self.problems.append(
                    f"many: {self._name} got {event.id} after later events of its publisher"
                )
            self._last[stream] = number


async def one_by_one(
    events: ensue.Subscription, random: Random
) -> AsyncIterator[ensue.ReceivedEvent]:
    """Yield the events of batches of all sizes."""
    while True:
        try:
            batch = await anext(events.batches(max=random.choice((1, 3, 1_000))))
        except StopAsyncIteration:
            return
        for event in batch:
            yield event
