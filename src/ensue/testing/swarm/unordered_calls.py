"""Clients without an order: buses of `order=None`, and such subscriptions on buses with an order.

- A bus without order delivers each event once. Its counts agree with what the application got, and
  what it has no room for counts as overflow. Events that are published long after the last fault
  arrive.
- On a bus with merged order, a subscription without order gets each event once, with the verdict
  `early`. What its bus publishes then comes after that event.
- On servers, a bus with total order refuses such a subscription.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress

import ensue
from ensue.core.errors import EventsInDoubt, PublishTimeout, UnsupportedOrder
from ensue.core.trace import Row
from ensue.protocols.unordered.subscriber import UnorderedCounts
from ensue.testing.swarm.call_context import CallContext, Main
from ensue.testing.swarm.judge import judge, judge_final
from ensue.testing.swarm.rare_calls import UNORDERED
from ensue.testing.swarm.topic_calls import ANSWER, clocks_jump

__all__ = ["SENDER", "UnorderedCalls"]

SENDER = "plain-sender"
"""The process that publishes without order."""

TOPICS = ("plain.a", "plain.b")
"""Topics of buses without order: all clients of a topic have the same order. They have no place."""
FLUSH_S = 20.0
MILD = frozenset({"slow_disks", "clock_steps", "clock_drifts"})
"""Faults that no connection notices."""


class UnorderedCalls:
    """The clients of a run that ask for no order."""

    def __init__(self, context: CallContext) -> None:
        self._context = context
        self._problems = context.problems
        self._random = context.world.generator("unordered calls")
        self._sender = ""
        """The bus that publishes without order."""
        self._overflow = 0
        """Events that found no room."""

    def mains(self) -> Iterator[tuple[str, Main]]:
        """Yield the processes that are to be started: their names and programs."""
        if UNORDERED in self._context.drawn.calls:
            yield "plain-reader", self._read
            yield SENDER, self._send
            yield "onlooker", self._look_on

    # -- A bus without order ----------------------------------------------------------------------

    async def _send(self) -> None:
        random, context = self._random, self._context
        async with context.connect_in(None, SENDER, random) as bus:
            self._sender = bus.name
            while not context.phase.calm:
                for _ in range(random.choice((1, 1, 5, 20))):
                    with suppress(EventsInDoubt, PublishTimeout):
                        await bus.publish(
                            random.choice(TOPICS),
                            random.randbytes(random.choice((0, 10, 3000))),
                            receipt=random.random() < 0.3,
                            timeout=random.choice((None, 0.05, 1.0)),
                        )
                await asyncio.sleep(random.uniform(0.05, 2.0))
            await context.until_final()
            for _ in range(3):
                for topic in TOPICS:
                    await bus.publish(topic, b"final", receipt=False)
                await asyncio.sleep(0.2)
            try:
                await bus.flush(timeout=FLUSH_S + context.late_s)
            except EventsInDoubt as error:
                if not context.phase.mishap.is_refused:
                    self._problems.append(f"liveness: no receipts long after healing: {error}")
            await context.until_over()

    async def _read(self) -> None:
        random, context = self._random, self._context
        async with (
            context.connect_in(None, "plain-reader", random) as bus,
            bus.subscribe(*TOPICS, pending_max=random.choice((4, 1_000))) as events,
        ):
            slow_s = random.choice((0.0, 0.3))
            got: dict[str, None] = {}
            while not context.phase.over:
                with suppress(TimeoutError):
                    async with asyncio.timeout(random.choice((0.05, 1.0))):
                        async for event in events:
                            self._take(events, event, got)
                            if slow_s and not context.phase.calm:
                                await asyncio.sleep(random.uniform(0.0, slow_s))
                self._compare_counts(events, len(got))

    def _take(
        self, events: ensue.Subscription, event: ensue.ReceivedEvent, got: dict[str, None]
    ) -> None:
        if event.id in got or event.verdict or event.position != len(got) + 1:
            self._report(events, f"got {event.id} at {event.position} as its {len(got) + 1}.")
        got[event.id] = None

    def _compare_counts(self, events: ensue.Subscription, got: int) -> None:
        counts = events.counts
        if events.waiting or not isinstance(counts, UnorderedCounts):
            return
        self._overflow = max(self._overflow, counts.overflow)
        settled = counts.delivered + counts.duplicate + counts.overflow
        if counts.delivered != got or counts.received != settled or counts.late:
            self._report(events, f"got {got} events, and has {counts}")

    # -- A bus with an order ----------------------------------------------------------------------

    async def _look_on(self) -> None:
        random, context = self._random, self._context
        order, topics = context.drawn.order, context.drawn.topics
        async with context.connect("onlooker", random) as bus:
            try:
                events = bus.subscribe(*topics, order=None)
            except UnsupportedOrder as error:
                if not isinstance(order, ensue.Total):
                    self._problems.append(f"unordered: {order} was refused: {error}")
                await context.until_over()
                return
            if isinstance(order, ensue.Total):
                self._problems.append(f"unordered: {order} was not refused")
            async with events:
                got: dict[str, None] = {}
                while not context.phase.over:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(1.0):
                            async for event in events:
                                await self._answer(bus, events, event, got)

    async def _answer(
        self,
        bus: ensue.Bus,
        events: ensue.Subscription,
        event: ensue.ReceivedEvent,
        got: dict[str, None],
    ) -> None:
        """Judge an event, and publish an answer now and then."""
        random, context = self._random, self._context
        is_merged = isinstance(context.drawn.order, ensue.Merged)
        if event.id in got or (is_merged and event.verdict != "early"):
            self._report(events, f"got {event.id} with the verdict {event.verdict!r} again or not")
        got[event.id] = None
        # With clocks that jump, an answer may precede its question.
        answers = is_merged and not event.payload.startswith(ANSWER) and not context.phase.calm
        if answers and not clocks_jump(context.drawn.faults) and random.random() < 0.3:
            payload = ANSWER + event.id.encode()
            await bus.publish(random.choice(context.drawn.topics), payload, receipt=False)

    def _report(self, events: ensue.Subscription, what: str) -> None:
        self._problems.append(f"unordered: {events.name} {what}")

    # -- Judging ----------------------------------------------------------------------------------

    def judge(self, rows: Sequence[Row], settle_s: float) -> tuple[list[Row], list[str]]:
        """Return the rows of buses with an order, and what is wrong with the others."""
        context = self._context
        if UNORDERED not in context.drawn.calls:
            return list(rows), []
        own = [row for row in rows if row.topic in TOPICS]
        ended = [row for row in rows if row.topic is None]
        others = [row for row in rows if row.topic not in TOPICS]
        mild = context.drawn.strikes(set(MILD)) and context.drawn.broker is None
        own = sorted([*own, *ended], key=lambda row: row.true_ns or 0)
        problems = judge(
            own,
            "none",
            settle_s=settle_s,
            lossy=not mild or bool(self._overflow),
        )
        if not context.phase.mishap.is_refused:
            problems += judge_final(own, context.phase.final_ns, [self._sender])
        return others, [f"unordered: {each}" for each in problems]
