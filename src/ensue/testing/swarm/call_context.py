"""What the clients of rare calls share: their world, their program, and where problems go."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Protocol

import msgspec

import ensue
from ensue.core.order import Order
from ensue.testing.swarm.mishaps import Mishap
from ensue.testing.swarm.rare_calls import Phase
from ensue.testing.swarm.taken import Taken
from ensue.testing.swarm.topic_draw import Draw
from ensue.testing.world import World

__all__ = ["CallContext", "LongPhase", "Main"]

Main = Callable[[], Awaitable[None]]
"""The program of a process."""


class LongPhase(Phase, Protocol):
    """How far a program is whose publishers publish once more at the end."""

    final_ns: int
    """When they publish for the last time; 0: not yet."""
    mishap: Mishap


class CallContext(msgspec.Struct, frozen=True, kw_only=True):
    """The run that a client belongs to."""

    world: World
    drawn: Draw
    problems: list[str]
    """What applications met that they must not meet."""
    phase: LongPhase
    taken: Taken
    url: Callable[[Random], str]
    """Draws a server."""
    late_s: float
    """How much later than usual all clients are connected again after healing."""

    def connect(self, name: str, random: Random) -> ensue.Bus:
        """Return a bus in the order of the program."""
        return self.connect_in(self.drawn.order, name, random)

    def connect_in(
        self, order: Order | None, name: str, random: Random, *, close_timeout: float = 5.0
    ) -> ensue.Bus:
        """Return a bus in an order."""
        url = self.url(random)
        return ensue.connect(url, order=order, name=name, close_timeout=close_timeout)

    async def until_over(self) -> None:
        """Stay: a server that is away would not learn that this client leaves."""
        while not self.phase.over:  # noqa: ASYNC110 - set by another event loop
            await asyncio.sleep(0.5)

    async def until_final(self) -> None:
        """Wait until publishers publish for the last time."""
        while not self.phase.final_ns:  # noqa: ASYNC110 - set by another event loop
            await asyncio.sleep(0.5)
