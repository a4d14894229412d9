"""A hub on `memory://` that loses events, whose subscriptions wait for a time to live.

- Each subscription gets an event at most once, and in one order with the others, except those that
  came after their place was given up, which have the verdict `out_of_order`.
- Without loss it gets all of them; none is out of order if the time to live is longer than events
  can be apart. With loss it misses about as many as were lost.
- An event waits for lost ones for no longer than its time to live.
"""

import asyncio
from collections.abc import Sequence
from itertools import product
from random import Random

import ensue

__all__ = ["LossyHub"]

JITTER_MS = 5
SHORT_S, LONG_S = 0.001, 0.2
"""Times to live: shorter than the delays of two events may differ, and longer than that."""
NO_LOSS, LOSS = 1e-12, 0.2
"""Above 0, so that the hub keeps no log."""
LATE_S = 0.1
"""How much longer than its time to live an event may wait."""
COUNT = 40
"""Events of each of two publishers."""
OUT_OF_ORDER = "out_of_order"


class LossyHub:
    """Hubs with two buses each that publish and read."""

    def __init__(
        self, random: Random, topics: Sequence[str], problems: list[str], *, is_timed: bool
    ) -> None:
        self._random, self._topics, self._problems = random, topics, problems
        self._is_timed = is_timed
        """Whether its process is never paused."""
        self._published_s: dict[bytes, float] = {}
        """By payload: when it was published."""

    async def run(self) -> None:
        """Publish, read everything, and compare, with and without loss."""
        for live_s, loss in product((SHORT_S, LONG_S), (NO_LOSS, LOSS)):
            self._published_s.clear()
            await self._use(live_s, loss)

    async def _use(self, live_s: float, loss: float) -> None:
        url = f"memory://lossy?nodes=2&jitter_ms={JITTER_MS}&loss={loss}"
        url += f"&seed={self._random.randrange(1_000)}"
        order = ensue.Total(time_to_live=live_s)
        async with (
            ensue.connect(url, order=order, name="one") as one,
            ensue.connect(url, order=order, name="two") as two,
            one.subscribe(*self._topics) as first,
            two.subscribe(*self._topics) as second,
        ):
            reading = [asyncio.create_task(self._read(each, live_s)) for each in (first, second)]
            await self._publish((one, two))
            # Published, and no longer than that under way.
            await asyncio.sleep(live_s + 1.0)
            first.close()
            second.close()
            got = await asyncio.gather(*reading)
        self._compare(got, live_s, loss)

    async def _publish(self, buses: Sequence[ensue.Bus]) -> None:
        loop = asyncio.get_running_loop()
        for number in range(COUNT):
            for bus in buses:
                payload = f"{bus.name} {number}".encode()
                self._published_s[payload] = loop.time()
                await bus.publish(self._random.choice(self._topics), payload, receipt=False)
            await asyncio.sleep(self._random.choice((0.0, 0.0, 0.01)))
        for bus in buses:
            await bus.flush()

    async def _read(self, events: ensue.Subscription, live_s: float) -> list[tuple[bytes, str]]:
        loop = asyncio.get_running_loop()
        found = []
        async for event in events:
            took_s = loop.time() - self._published_s[event.payload]
            if self._is_timed and took_s > live_s + LATE_S:
                self._problems.append(
                    f"expiry: {event.id} waited {took_s:.3f} s with a time to live of {live_s:g} s"
                )
            found.append((event.payload, event.verdict))
        return found

    def _compare(self, got: Sequence[list[tuple[bytes, str]]], live_s: float, loss: float) -> None:
        problems, published = self._problems, len(self._published_s)
        for each in got:
            unique = {payload for payload, _ in each}
            if len(unique) != len(each):
                problems.append(f"expiry: a subscription got {len(each)} of {len(unique)} events")
            missing = published - len(unique)
            if missing > (published // 2 if loss == LOSS else 0):
                problems.append(f"expiry: {missing} of {published} events are missing")
            if live_s == LONG_S and any(verdict for _, verdict in each):
                problems.append("expiry: an event is out of order that no other one waited for")
            if any(verdict not in ("", OUT_OF_ORDER) for _, verdict in each):
                problems.append(f"expiry: there is another verdict in {each}")
        first, second = ([payload for payload, verdict in each if not verdict] for each in got)
        in_both = set(first).intersection(second)
        if [each for each in first if each in in_both] != [
            each for each in second if each in in_both
        ]:
            problems.append("expiry: two subscriptions got events in different orders")
