"""A user who may read some topics, and tries to read the others too.

The documented error is `SubscriptionRefused`, with the topic. It concerns only what was asked for:
the outsider's other subscription goes on, and is judged like any other. No event of a topic that it
may not read may reach it, not even its protocol nodes (`judge_outsider`).
"""

import asyncio
from collections.abc import Callable, Collection, Iterator, Sequence
from random import Random
from typing import Any

import msgspec

import ensue
from ensue.core.errors import SubscriptionRefused
from ensue.core.event import Event
from ensue.core.trace import Row
from ensue.protocols.topic_log.frames import AttachRequest
from ensue.testing.swarm.rare_faults import rarely

__all__ = ["Outsider", "draw_outsider", "judge_outsider"]

NUMBER = 749
"""Of the generator: with it, seeds that tests note have no outsider."""
ASK_S = 5.0
"""How long it waits for an answer: a server may be away."""
STAY_S = (1.0, 8.0)
_GOT = frozenset({"received", "node_delivered", "delivered"})


def draw_outsider(seed: int, order: str, topics: Sequence[str]) -> tuple[str, ...]:
    """Draw what an outsider may read; empty: there is none.

    `a.*` permits topics below `a`, and not `a`. It stands for each topic that it may not read.
    """
    random = rarely("outsider", NUMBER, seed, order)
    if random is None:
        return ()
    readable = random.sample(topics, random.randint(0, len(topics) - 1))
    return tuple(each if each in readable else f"{each}.*" for each in topics)


class Outsider:
    """The program of the user; `readable` is what was drawn."""

    def __init__(
        self, topics: Collection[str], readable: Collection[str], problems: list[str]
    ) -> None:
        self.readable = tuple(each for each in topics if each in readable)
        self.denied = tuple(each for each in topics if each not in readable)
        self.buses: dict[str, None] = {}
        self._problems = problems

    async def visit(
        self, bus: ensue.Bus, servers: Sequence[str], random: Random, is_over: Callable[[], bool]
    ) -> None:
        """Try to read everything, and read what it may for a while, or to the end."""
        self.buses[bus.name] = None
        self._tap(bus)
        await self._ask(bus, random)
        self._attach(bus, servers, random.choice(self.denied))
        if not self.readable:
            await self._stay(random, is_over)
            return
        async with bus.subscribe(*self.readable) as events:
            topic = random.choice(self.denied)
            await self._expect_refusal(lambda: events.subscribe(topic), topic)
            if set(events.topics) != set(self.readable):
                self._problems.append(f"permission: {events.topics} after a refused change")
            reading = asyncio.create_task(_read(events))
            try:
                await self._stay(random, is_over)
            finally:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)

    async def _stay(self, random: Random, is_over: Callable[[], bool]) -> None:
        stays = random.random() < 0.5
        await asyncio.sleep(random.uniform(*STAY_S))
        while stays and not is_over():  # noqa: ASYNC110 - set by another event loop
            await asyncio.sleep(0.5)

    async def _ask(self, bus: ensue.Bus, random: Random) -> None:
        """Subscribe to a topic without permission, alone or beside others, old events or new."""
        topic, options = random.choice(self.denied), dict[str, Any]()
        topics = [topic]
        if isinstance(bus.order, ensue.Total) and random.random() < 0.5:
            options = {"start": "earliest"}
        elif isinstance(bus.order, ensue.Total) and random.random() < 0.3:
            options = {"durable": True, "name": "outsider-durable"}
        elif self.readable and random.random() < 0.5:
            topics.append(random.choice(self.readable))

        async def subscribe() -> None:
            async with bus.subscribe(*topics, **options):
                pass

        await self._expect_refusal(subscribe, topic)

    async def _expect_refusal(self, ask: Callable[[], Any], topic: str) -> None:
        try:
            async with asyncio.timeout(ASK_S):
                await ask()
        except TimeoutError:
            pass
        except SubscriptionRefused as error:
            if f"'outsider' may not subscribe to {topic!r}" not in error.reason:
                self._problems.append(f"permission: refused with another reason: {error!r}")
        else:
            self._problems.append(f"permission: an outsider subscribed to {topic}")

    def _tap(self, bus: ensue.Bus) -> None:
        """Look at all frames that the bus gets, whether its node delivers their events or not."""
        driver = bus._driver  # noqa: SLF001 - no API shows frames
        if driver is None:
            return
        receive = driver.node.receive

        def look(frame: Any, *, source: str, now_ns: int) -> None:
            for event in _events_in(frame):
                if event.topic in self.denied:
                    name = type(frame).__name__
                    self._problems.append(f"permission: {bus.name} got {event.id} in a {name}")
            receive(frame, source=source, now_ns=now_ns)

        driver.node.receive = look  # type: ignore[method-assign]

    def _attach(self, bus: ensue.Bus, servers: Sequence[str], topic: str) -> None:
        """Ask servers for the events of a topic, by a frame that the API would not send."""
        driver = bus._driver  # noqa: SLF001 - an adversary does not keep to the API
        order = bus.order
        if driver is None or driver.closed or not isinstance(order, ensue.Total | ensue.Merged):
            return
        for server in servers:
            place = server if isinstance(order, ensue.Total) else f"{server}/{order.name}"
            driver._port.send(place, AttachRequest(topic=topic, from_slot=0))  # noqa: SLF001
        driver._port.flush()  # noqa: SLF001 - as above


async def _read(events: ensue.Subscription) -> None:
    async for _ in events:
        pass


def _events_in(value: Any) -> Iterator[Event]:
    """Yield all events within a frame."""
    if isinstance(value, Event):
        yield value
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from _events_in(getattr(value, name))
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _events_in(each)


def judge_outsider(
    rows: Sequence[Row], buses: Collection[str], readable: Collection[str]
) -> list[str]:
    """Return which events reached an outsider who may not read them."""
    return [
        f"permission: {row.node} got {row.event} on {row.topic}: {row.action}"
        for row in rows
        if row.node in buses and row.action in _GOT and row.topic not in readable
    ]
