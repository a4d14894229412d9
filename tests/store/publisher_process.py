"""Publish to a server, and return the events as a subscriber got them."""

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import ensue
from ensue.client import ReceivedEvent

DEADLINE_S = 120.0


def topics_at_random(seed: int, count: int, topics: Sequence[str]) -> list[str]:
    """Draw topics in bursts, so that stamps omit many entries or few."""
    draw = Random(seed)
    plan: list[str] = []
    while len(plan) < count:
        plan += [draw.choice(topics)] * draw.choice((1, 1, 2, 5, 40))
    return plan[:count]


async def published(
    url: str,
    plan: Sequence[str],
    subscribed: Sequence[str],
    *,
    size: int = 8,
    flush_every: int | None = None,
    halfway: Callable[[], None] | None = None,
) -> list[ReceivedEvent]:
    """Publish an event on each topic of a plan; return them as a subscriber got them.

    `flush_every` bounds the batches that the server commits, and so its segments.
    """
    seen: list[ReceivedEvent] = []
    wanted = sum(topic in subscribed for topic in plan)
    async with (
        asyncio.timeout(DEADLINE_S),
        ensue.connect(url) as bus,
        bus.subscribe(*subscribed) as subscription,
    ):

        async def read() -> None:
            async for event in subscription:
                seen.append(event)
                if len(seen) == wanted:
                    return

        reading = asyncio.create_task(read())
        for number, topic in enumerate(plan):
            if halfway is not None and number == len(plan) // 2:
                await bus.flush()
                await asyncio.to_thread(halfway)
            await bus.publish(
                topic,
                f"{number}".encode().ljust(size, b"."),
                key=b"k%d" % number if number % 3 == 0 else None,
                headers={"z": "1", "a": f"{number}"} if number % 7 == 0 else None,
                receipt=False,
            )
            if flush_every is not None and number % flush_every == 0:
                await bus.flush()
        await bus.flush()
        if wanted:
            await reading
        reading.cancel()
    return seen


def publish(
    url: str, plan: Sequence[str], subscribed: Sequence[str], **more: Any
) -> list[ReceivedEvent]:
    return asyncio.run(published(url, plan, subscribed, **more))
