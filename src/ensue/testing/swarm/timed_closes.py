"""Clients that close their bus with a limit of its own: `bus.close(timeout=…)`.

It takes no longer than the limit, and a margin. Without an error all events have receipts, or have
lost their place; else the error names events of this bus. Closing again does nothing.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress

import ensue
from ensue.core.errors import EventsInDoubt, EventVoided, LocalProtocolError
from ensue.core.trace import Row
from ensue.testing.swarm.call_context import CallContext, Main
from ensue.testing.swarm.rare_calls import CLOSES

__all__ = ["TimedCloses"]

MARGIN_S = 3.0
"""How much longer than its limit closing may take."""


class TimedCloses:
    """The client of a run that closes buses within limits."""

    def __init__(self, context: CallContext) -> None:
        self._context = context
        self._random = context.world.generator("timed closes")
        self._settled: dict[str, None] = {}
        """Events of buses that closed without an error."""

    def mains(self) -> Iterator[tuple[str, Main]]:
        """Yield the processes that are to be started: their names and programs."""
        if CLOSES in self._context.drawn.calls:
            yield "leaver", self._leave

    async def _leave(self) -> None:
        while not self._context.phase.calm:
            await self._leave_once()
            await asyncio.sleep(self._random.uniform(0.5, 4.0))
        await self._context.until_over()

    async def _leave_once(self) -> None:
        random, context = self._random, self._context
        close_s, limit_s = random.choice((0.0, 30.0)), random.choice((0.0, 0.3, 2.0, 10.0))
        bus = context.connect_in(context.drawn.order, "leaver", random, close_timeout=close_s)
        await bus.__aenter__()
        published: dict[str, None] = {}
        try:
            with suppress(EventVoided, EventsInDoubt):
                for _ in range(random.randint(0, 5)):
                    topic = random.choice(context.drawn.topics)
                    event = await bus.publish(topic, b"", receipt=False)
                    published[event.id] = None
                    await asyncio.sleep(random.choice((0.0, 0.0, 0.5)))
        finally:
            await self._close(bus, limit_s, published)
        with suppress(LocalProtocolError):
            await bus.publish(context.drawn.topics[0], b"")
            self._report(f"{bus.name} published after it was closed")

    async def _close(self, bus: ensue.Bus, limit_s: float, published: dict[str, None]) -> None:
        loop, faults = asyncio.get_running_loop(), self._context.drawn.faults
        began_s = loop.time()
        try:
            await bus.close(timeout=limit_s)
        except EventsInDoubt as error:
            strange = [each for each in error.events if each not in published]
            if strange or not 0 < error.count <= len(published):
                self._report(f"{bus.name} is in doubt of {error.count} events, {strange}")
            if limit_s and loop.time() - began_s < limit_s - 0.1:
                self._report(f"{bus.name} gave up after {loop.time() - began_s:.1f} s")
        else:
            self._settled.update(published)
        took_s = loop.time() - began_s
        if took_s > limit_s + MARGIN_S and not faults.client_pauses:
            self._report(f"{bus.name} took {took_s:.1f} s, allowed {limit_s:g} s")
        again_s = loop.time()
        await bus.close(timeout=limit_s)
        if loop.time() > again_s + 0.01 and not faults.client_pauses:
            self._report(f"{bus.name} took {loop.time() - again_s:.1f} s to close again")

    def judge(self, rows: Sequence[Row]) -> list[str]:
        """Return the events that have no receipt, although their bus closed without an error."""
        receipts = {row.event for row in rows if row.action in ("published", "discarded")}
        return [
            f"close: {each} has no receipt, and its bus closed without an error"
            for each in self._settled
            if each not in receipts
        ]

    def _report(self, what: str) -> None:
        self._context.problems.append(f"close: {what}")
