"""Operators that move topics between servers while a program runs."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Protocol

from ensue.core.errors import BadInput, TransportError
from ensue.runtime.topic_move import move_topic
from ensue.testing.cluster import Cluster
from ensue.testing.swarm.judge import SECOND_NS
from ensue.testing.swarm.topic_draw import Draw
from ensue.testing.world import World

__all__ = ["move_topics"]


class Phase(Protocol):
    """The program, as far as it says when faults are over."""

    busy_s: float
    calm: bool


async def move_topics(
    world: World,
    drawn: Draw,
    cluster: Cluster,
    random: Random,
    *,
    phase: Phase,
    url: Callable[[Random], str],
) -> None:
    """Move as many topics as were drawn, until faults are over."""
    for _ in range(drawn.moves):
        at_ns = world.now_ns + random.uniform(0.0, phase.busy_s / drawn.moves) * SECOND_NS
        while world.now_ns < at_ns and not phase.calm:  # noqa: ASYNC110 - also ends early
            await asyncio.sleep(1.0)
        if phase.calm:
            return
        topic, to = random.choice(drawn.topics), random.choice(cluster.names)
        with suppress(TransportError, BadInput):  # A server is down, or had the topic before.
            await move_topic(url(random), topic, to, within_s=random.choice((0.2, 5.0)))
