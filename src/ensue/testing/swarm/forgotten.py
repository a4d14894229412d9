"""A durable subscription that is forgotten, and entered again.

Each time it is forgotten it begins anew: with position 1, with no event that it got before, and
none that had its receipt before. Between these times it is a durable subscription like any other.
At last no server has topics of its name.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress

import msgspec

import ensue
from ensue.core.trace import Row
from ensue.testing.swarm.call_context import CallContext, Main
from ensue.testing.swarm.durable_reader import DurableReader
from ensue.testing.swarm.rare_calls import FORGET

__all__ = ["FORGOTTEN", "ForgottenCalls"]

FORGOTTEN = "forgotten"
"""The durable subscription, and its process."""
LIMIT_S = 20.0
"""How long after healing forgetting takes at most."""


class ForgottenCalls:
    """The client of a run that forgets its subscription, and enters it again."""

    def __init__(self, context: CallContext) -> None:
        self._context = context
        self._random = context.world.generator("forgotten")
        self._times: list[tuple[int, int]] = []
        """When it began to forget the subscription, and when it was forgotten."""
        self._begun_ns: int | None = None
        """When it began to forget it, unless it was forgotten since; killed meanwhile, or out of
        time, it is forgotten or not."""
        self._readers: list[DurableReader] = []
        """One for each time that it began anew."""
        self._final_s = 0.0
        """When it began to forget it for the last time."""

    @property
    def is_drawn(self) -> bool:
        """Whether the run has this client."""
        drawn = self._context.drawn
        is_total = isinstance(drawn.order, ensue.Total)
        return FORGET in drawn.calls and is_total and not drawn.mishap

    @property
    def hands(self) -> dict[str, DurableReader]:
        """By name in the judged rows: what its application did."""
        return {_name(number): each for number, each in enumerate(self._readers)}

    @property
    def names(self) -> tuple[str, ...]:
        """The names that have no topics at any server any longer."""
        return (FORGOTTEN,) if self._final_s and self._begun_ns is None else ()

    def mains(self) -> Iterator[tuple[str, Main]]:
        """Yield the processes that are to be started: their names and programs."""
        if self.is_drawn:
            yield FORGOTTEN, self._keep

    # -- Its program ------------------------------------------------------------------------------

    async def _keep(self) -> None:
        context = self._context
        while not context.phase.over:
            if self._final_s and self._begun_ns is None:
                await context.until_over()
                return
            await self._keep_once()

    async def _keep_once(self) -> None:
        """Enter it, read it, and forget it at times."""
        random, context = self._random, self._context
        if self._begun_ns is None and len(self._readers) == len(self._times):
            self._readers.append(DurableReader(FORGOTTEN, context.problems, random))
        manual = random.random() < 0.5
        async with (
            context.connect(FORGOTTEN, random) as bus,
            bus.subscribe(
                *context.drawn.topics,
                name=FORGOTTEN,
                durable=True,
                acknowledge="manual" if manual else "auto",
                pending_max=random.choice((2, 100)),
            ) as events,
        ):
            if self._begun_ns is None:
                self._readers[-1].begin(None)
                context.taken.watch(events)
                await self._read(events, manual=manual)
            is_final = bool(context.phase.final_ns)
            if self._begun_ns is not None or is_final or random.random() < 0.5:
                await self._forget(events, is_final=is_final)

    async def _read(self, events: ensue.Subscription, *, manual: bool) -> None:
        random, context, reader = self._random, self._context, self._readers[-1]
        until_s = asyncio.get_running_loop().time() + random.choice((0.1, 2.0, 5.0, 20.0))
        while asyncio.get_running_loop().time() < until_s and not context.phase.final_ns:
            with suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    async for event in events:
                        context.taken.take(events, event)
                        reader.hand(event)
                        if not manual:
                            reader.done(event)
                        elif random.random() < 0.8:
                            safe = reader.done(event)
                            await event.ack()
                            reader.safe(safe)

    async def _forget(self, events: ensue.Subscription, *, is_final: bool) -> None:
        random, world = self._random, self._context.world
        now_s = asyncio.get_running_loop().time()
        if is_final and not self._final_s:
            self._final_s = now_s
        if self._begun_ns is None:
            self._begun_ns = world.now_ns
            for topic in self._context.drawn.topics:
                self._readers[-1].leave(topic, world.now_ns)
        try:
            async with asyncio.timeout(random.choice((0.005, 5.0, 30.0))):
                await events.forget()
        except TimeoutError:
            return
        finally:
            took_s = asyncio.get_running_loop().time() - now_s
            if is_final and took_s > LIMIT_S + self._context.late_s:
                self._context.problems.append(f"liveness: forgetting took {took_s:.1f} s")
        self._times.append((self._begun_ns, world.now_ns))
        self._begun_ns = None

    # -- Judging ----------------------------------------------------------------------------------

    def renamed(self, rows: Sequence[Row]) -> list[Row]:
        """Return rows in which it has another name each time that it began anew."""
        times = list(self._times)
        if self._begun_ns is not None:
            times.append((self._begun_ns, self._context.world.now_ns))
        found: list[Row] = []
        left: dict[tuple[int, str], None] = {}
        for row in rows:
            if row.subscription != FORGOTTEN:
                found.append(row)
                continue
            at_ns = row.true_ns or 0
            number = sum(forgotten_ns < at_ns for _, forgotten_ns in times)
            if number < len(times) and times[number][0] < at_ns:
                key = (number, row.topic or "")
                if row.action != "unsubscribed" or key in left:
                    continue  # It was entered to be forgotten.
                left[key] = None
            found.append(msgspec.structs.replace(row, subscription=_name(number)))
        return found

    def judge(self, rows: Sequence[Row]) -> list[str]:
        """Return what came again after it was forgotten; of rows with the new names."""
        confirmed = {row.event: row.true_ns or 0 for row in rows if row.action == "published"}
        names = {_name(number): number for number in range(len(self._readers))}
        got: dict[str, int] = {}
        begun: dict[str, None] = {}
        problems = []
        for row in rows:
            name, event = row.subscription or "", row.event or ""
            if name not in names or row.action != "delivered":
                continue
            number = names[name]
            if got.setdefault(event, number) != number:
                problems.append(f"forgotten: {row.node} got {event} again after it was forgotten")
            begun_ns = self._times[number - 1][0] if number else 0
            if confirmed.get(event, begun_ns) < begun_ns:
                problems.append(f"forgotten: {row.node} got {event}, published before it began")
            if name not in begun and row.position != 1:
                problems.append(f"forgotten: {row.node} began anew at position {row.position}")
            begun[name] = None
        return problems


def _name(number: int) -> str:
    return f"{FORGOTTEN} {number}"
