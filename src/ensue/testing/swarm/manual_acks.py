"""A plain subscription with manual acknowledgements, which only drive back-pressure.

What was handed out and is not acknowledged is pending, as is what is unread. Without room nothing
more comes. Acknowledged in any sequence, all that is owed comes in the end.
"""

import asyncio
from collections.abc import Iterator
from contextlib import suppress

import ensue
from ensue.testing.swarm.call_context import CallContext, Main
from ensue.testing.swarm.rare_calls import MANUAL

__all__ = ["ManualAcks"]


class ManualAcks:
    """The client of a run that acknowledges the events of a plain subscription itself."""

    def __init__(self, context: CallContext) -> None:
        self._context = context
        self._random = context.world.generator("manual acknowledgements")

    def mains(self) -> Iterator[tuple[str, Main]]:
        """Yield the processes that are to be started: their names and programs."""
        if MANUAL in self._context.drawn.calls:
            yield "hoarder", self._hoard

    async def _hoard(self) -> None:
        random, context = self._random, self._context
        pending_max = random.choice((1, 3, 16))
        async with (
            context.connect("hoarder", random) as bus,
            bus.subscribe(
                *context.drawn.topics, acknowledge="manual", pending_max=pending_max
            ) as events,
        ):
            context.taken.watch(events)
            unacknowledged: list[ensue.ReceivedEvent] = []
            while not context.phase.over:
                with suppress(TimeoutError):
                    async with asyncio.timeout(random.choice((0.01, 0.5))):
                        async for event in events:
                            context.taken.take(events, event)
                            unacknowledged.append(event)
                            is_last = len(unacknowledged) >= pending_max or not events.waiting
                            if context.phase.calm and is_last:
                                break  # It catches up: what it holds takes room for the next.
                self._count(events, len(unacknowledged))
                if len(unacknowledged) >= pending_max and not context.phase.calm:
                    await self._wait_without_room(events)
                await self._acknowledge(events, unacknowledged)

    def _count(self, events: ensue.Subscription, unacknowledged: int) -> None:
        if events.pending != events.waiting + unacknowledged:
            self._report(
                f"{events.name} has {events.pending} pending events, {events.waiting} unread "
                f"and {unacknowledged} not acknowledged"
            )

    async def _wait_without_room(self, events: ensue.Subscription) -> None:
        """Judge that nothing comes: not even after a while."""
        before = events.pending
        await asyncio.sleep(self._random.choice((0.0, 0.1, 2.0)))
        if events.pending > before:
            self._report(
                f"{events.name} has {events.pending} pending events after {before}, and room for "
                f"{events.pending_max}"
            )

    async def _acknowledge(
        self, events: ensue.Subscription, unacknowledged: list[ensue.ReceivedEvent]
    ) -> None:
        """Acknowledge some events, in any sequence; all of them once faults are over."""
        random = self._random
        random.shuffle(unacknowledged)
        keeps = 0 if self._context.phase.calm else random.choice((0, 0, 1, 3))
        while len(unacknowledged) > keeps:
            await unacknowledged.pop().ack()
        self._count(events, len(unacknowledged))

    def _report(self, what: str) -> None:
        self._context.problems.append(f"manual: {what}")
