"""Clients of a program on topics that make rare calls, and the judge of what these return.

- Headers arrive as they were sent, and no other event has any.
- `Subscription.counts` agrees with what the application got. It is None where an order drops
  nothing, and verdicts come only where the application asked for late events.
- A question is never delivered in order after its answer, if the bus that answered had observed the
  token of the bus that asked.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from random import Random

import msgspec

import ensue
from ensue.core.errors import EventsInDoubt, EventVoided, LocalProtocolError
from ensue.core.order import Order
from ensue.protocols.deadline.delivery import DeadlineCounts
from ensue.protocols.merged.counts import MergedCounts
from ensue.testing.faults import Faults
from ensue.testing.swarm.rare_calls import (
    COUNTS,
    HEADERS,
    HELD,
    TERMS,
    TOKENS,
    UNORDERED,
    Phase,
)
from ensue.testing.swarm.topic_draw import Draw
from ensue.testing.world import World

__all__ = ["ANSWER", "Collected", "TopicCalls", "clocks_jump", "header_problems"]

MARK = b"headers "
"""How the payload of an event with headers begins; it goes on with these."""
QUESTION, ANSWER = b"question", b"answer "
PAUSE_S = 0.005
"""How often a client looks for tokens: sooner than clocks differ."""
_COLLECTED = frozenset({HEADERS, COUNTS, TERMS, TOKENS, UNORDERED, HELD})
"""Calls whose outcomes a client collects and judges."""
_TEXTS = ("", "x", "ä\n", "1", "long " * 50)
_SHARE = 0.4
"""By how much of epsilon a clock is ahead of others, or behind them."""


def header_problems(event: ensue.ReceivedEvent) -> list[str]:
    """Return what is wrong with the headers of an event; nothing: it has those it was sent with."""
    sent: Mapping[str, str] = {}
    if event.payload.startswith(MARK):
        sent = msgspec.json.decode(event.payload.removeprefix(MARK), type=dict[str, str])
    if dict(event.headers) == sent:
        return []
    return [f"headers: {event.id} was sent with {sent}, and came with {dict(event.headers)}"]


class TopicCalls:
    """The clients of a run that make rare calls."""

    def __init__(
        self,
        world: World,
        drawn: Draw,
        problems: list[str],
        *,
        phase: Phase,
        url: Callable[[Random], str],
    ) -> None:
        self._world, self._drawn, self._problems = world, drawn, problems
        self._phase, self._url = phase, url
        self._random = world.generator("rare calls")
        self._tokens: list[tuple[str, dict[str, int]]] = []
        """Questions, and the token that was sent along with each."""

    def mains(self) -> Iterator[tuple[str, Callable[[], Awaitable[None]]]]:
        """Yield the processes that are to be started: their names and programs."""
        calls = self._drawn.calls
        if not _COLLECTED.isdisjoint(calls):
            yield "collector", self._collect
        if HEADERS in calls:
            yield "sender", self._send
        if TOKENS in calls:
            for name, sign, main in (("asker", 1, self._ask), ("expert", -1, self._answer)):
                if not self._drawn.faults.clock_steps:
                    self._world.host(name).step_clock(int(sign * self._apart_ns()))
                yield name, main

    def _apart_ns(self) -> float:
        order = self._drawn.order
        return _SHARE * order.epsilon * 1e9 if isinstance(order, ensue.Merged) else 0.0

    def _connect(self, name: str) -> ensue.Bus:
        return ensue.connect(self._url(self._random), order=self._drawn.order, name=name)

    def _topic(self) -> str:
        return self._random.choice(self._drawn.topics)

    async def _until_over(self) -> None:
        """Stay: a server that is away would not learn that this client leaves."""
        while not self._phase.over:  # noqa: ASYNC110 - set by another event loop
            await asyncio.sleep(0.5)

    # -- Publishing -------------------------------------------------------------------------------

    async def _send(self) -> None:
        random = self._random
        async with self._connect("sender") as bus:
            while not self._phase.calm:
                names = random.sample(
                    ("a", "b", "Content-Type", "ü", "x" * 50), random.randint(0, 4)
                )
                headers = {name: random.choice(_TEXTS) for name in names}
                payload = MARK + msgspec.json.encode(headers)
                with suppress(EventVoided, EventsInDoubt):
                    await bus.publish(
                        self._topic(),
                        payload,
                        key=random.choice((None, b"k")),
                        headers=headers,
                        receipt=random.random() < 0.5,
                        timeout=random.choice((None, 1.0)),
                    )
                headers["changed"] = "later"  # The event has a copy.
                await asyncio.sleep(random.uniform(0.05, 1.0))
            # Fails if its server has lost its log: then it connects again.
            with suppress(EventVoided, EventsInDoubt):
                await bus.flush(timeout=10.0)
            await self._until_over()

    async def _ask(self) -> None:
        random = self._random
        async with self._connect("asker") as bus:
            while not self._phase.calm:
                await asyncio.sleep(random.uniform(0.1, 1.0))
                event = await bus.publish(self._topic(), QUESTION, receipt=False)
                try:
                    self._tokens.append((event.id, bus.token()))
                except LocalProtocolError:
                    continue  # It has no stamp yet.
            await self._until_over()

    async def _answer(self) -> None:
        async with self._connect("expert") as bus:
            while not self._phase.calm:
                while self._tokens:
                    question, token = self._tokens.pop()
                    if bus.observe(token):
                        payload = ANSWER + question.encode()
                        await bus.publish(self._topic(), payload, receipt=False)
                    elif not clocks_jump(self._drawn.faults):
                        self._problems.append(f"tokens: {bus.name} ignored that of {question}")
                await asyncio.sleep(PAUSE_S)
            await self._until_over()

    # -- Reading ----------------------------------------------------------------------------------

    async def _collect(self) -> None:
        random = self._random
        async with (
            self._connect("collector") as bus,
            bus.subscribe(*self._drawn.topics, pending_max=random.choice((2, 1_000))) as events,
        ):
            slow_s = random.choice((0.0, 0.0, 0.3))
            got = Collected(events, self._drawn)
            try:
                while not self._phase.over:
                    try:
                        async with asyncio.timeout(random.choice((0.05, 1.0))):
                            async for event in events:
                                got.take(event)
                                if slow_s and not self._phase.calm:
                                    await asyncio.sleep(random.uniform(0.0, slow_s))
                    except TimeoutError:
                        got.compare_counts()
            finally:
                self._problems += got.problems


class Collected:
    """What one subscription got."""

    def __init__(self, events: ensue.Subscription, drawn: Draw) -> None:
        self._events, self._drawn = events, drawn
        self._verdicts: Counter[str] = Counter()
        self._answered: dict[str, None] = {}
        """Questions whose answers came."""
        self.problems: list[str] = []
        self._before = 0
        self._before = self._unsettled()
        """Events of merged order that came before it had joined their topics."""

    def _unsettled(self) -> int:
        """Return how many events were received and have no outcome, although none is held back."""
        counts = self._events.counts
        if isinstance(counts, MergedCounts) and not counts.mismatched:
            settled = counts.late + counts.skewed + counts.corrupt + counts.duplicate
        elif isinstance(counts, DeadlineCounts):
            settled = counts.late + counts.overtaken
        else:
            return self._before
        settled += counts.delivered + counts.overflow + self._events.held_back
        return counts.received - settled

    def take(self, event: ensue.ReceivedEvent) -> None:
        """Note an event, and judge it."""
        self._verdicts[event.verdict] += 1
        self._compare_held()
        self.problems += header_problems(event)
        if event.verdict:
            return
        if event.payload.startswith(ANSWER):
            self._answered[event.payload.removeprefix(ANSWER).decode()] = None
        elif event.id in self._answered and not clocks_jump(self._drawn.faults):
            self.problems.append(f"tokens: {self._events.name} got {event.id} after its answer")

    def compare_counts(self) -> None:
        """Compare the counts of the subscription with what was taken, unless some is unread."""
        counts, got = self._events.counts, self._verdicts
        self._compare_held()
        if self._events.waiting:
            return
        dropped = 0
        if isinstance(counts, MergedCounts):
            expected = {"": counts.delivered, "late": counts.late, "skewed": counts.skewed}
        elif isinstance(counts, DeadlineCounts):
            expected = {"": counts.delivered, "late": counts.late, "overtaken": counts.overtaken}
            # Late events that come when there is no room are dropped as such.
            dropped = counts.late + counts.overtaken - got["late"] - got["overtaken"]
        else:
            expected = {"": got[""]}
            if counts is not None or self._drawn.is_lossy:
                self._report(f"has {counts} in {self._drawn.order}")
        if self._unsettled() != self._before:
            self._report(f"received other events than it has: {counts}")
        if not _hands_out_late(self._drawn.order):
            expected = {"": expected[""]}
        differing = {
            verdict: (count, got[verdict])
            for verdict in {**expected, **got}
            if (count := expected.get(verdict, 0)) != got[verdict]
            and not (verdict and 0 < count - got[verdict] <= dropped)
        }
        if differing:
            self._report(f"has (counted, got) {differing}")

    def _compare_held(self) -> None:
        """Compare the events held back with the limit of the order."""
        order, held = self._drawn.order, self._events.held_back
        held_max = getattr(order, "held_max", held)
        if isinstance(order, ensue.Total):
            held_max += len(self._drawn.topics)  # The next one of each is held all the same.
        if held > held_max and not isinstance(order, ensue.Causal):
            self._report(f"holds {held} events back, and may hold {held_max}")

    def _report(self, what: str) -> None:
        """Note a problem with the counts, the first one alone."""
        if not any(each.startswith("counts: ") for each in self.problems):
            self.problems.append(f"counts: {self._events.name} {what}")


def clocks_jump(faults: Faults) -> bool:
    """Return whether clocks may be off by more than their bound."""
    return bool(
        faults.clock_steps
        or faults.clock_drifts
        or faults.client_suspends
        or faults.server_suspends
    )


def _hands_out_late(order: Order) -> bool:
    if isinstance(order, ensue.Merged):
        return order.late == "deliver"
    return isinstance(order, ensue.Deadline) and order.on_late == "tag"
