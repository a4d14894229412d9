"""Handlers of a subscription, run with every policy, and the order that they may not break.

Within a key events are handled one after the other. A later one is not handled before an earlier
one is done with: handled, parked or, with `Stop`, left for the next run. Behind a parked event the
rest of its key is parked too, unless the policy says otherwise.
"""

import asyncio
from collections.abc import Callable
from random import Random

import ensue
from ensue.client.policies import Handler
from ensue.testing.swarm.rare_calls import Phase

__all__ = ["HandlerRun"]

FAILURE_RATE = 0.02
SLOW_S = 0.5


class HandlerRun:
    """One application that handles events; `problems` gets what it must not see.

    It is slow only while faults strike: then it catches up.
    """

    def __init__(self, name: str, random: Random, problems: list[str], *, phase: Phase) -> None:
        self._name, self._random, self._problems = name, random, problems
        self._phase = phase
        keyed = random.random() < 0.5
        workers = random.choice((1, 4))
        by_topic = random.random() < 0.5
        self.concurrency: ensue.Sequential | ensue.PerKey = ensue.Sequential()
        self._key_of: Callable[[ensue.ReceivedEvent], object] = _all_alike
        if keyed:
            self._key_of = _topic_of if by_topic else _own_key
            self.concurrency = ensue.PerKey(workers, key=_topic_of if by_topic else None)
        self.rest_of_key = random.random() < 0.3
        to = self._park if random.random() < 0.5 else None
        park = ensue.Park(to=to, rest_of_key=self.rest_of_key, collected_max=100_000)
        self.policy: ensue.Stop | ensue.Park | ensue.Retry = random.choice(
            (
                park,
                ensue.Stop(),
                ensue.Retry(attempts=2, backoff_s=0.05, then=park),
                ensue.Retry(2, backoff_s=0.0, factor=3.0, backoff_s_max=0.0, then=ensue.Stop()),
            )
        )
        self._slow = random.random() < 0.4
        last = self.policy.then if isinstance(self.policy, ensue.Retry) else self.policy
        self.parks = isinstance(last, ensue.Park)
        """Whether an event whose handler failed is acknowledged all the same."""
        self._busy: dict[object, int] = {}
        """By key: the position whose handler runs."""
        self._reached: dict[object, int] = {}
        """By key: the highest position whose handler has begun."""
        self._parked: dict[object, int] = {}

    async def run(self, events: ensue.Subscription, handler: Handler) -> None:
        """Run a handler until the subscription ends; after `Stop`, what was left comes again."""
        while True:
            self._busy.clear()
            self._reached.clear()
            self._parked.clear()
            try:
                await events.run(handler, concurrency=self.concurrency, on_failure=self.policy)
            except ensue.HandlerFailed:
                continue
            return

    async def handle(self, event: ensue.ReceivedEvent) -> None:
        """Take some time for an event, and fail now and then."""
        key, position = self._key_of(event), event.position
        if key in self._busy:
            self._fault(f"{position} is handled beside {self._busy[key]} of the same key")
        if position < self._reached.get(key, 0):
            self._fault(f"{position} is handled after {self._reached[key]} of the same key")
        if self.rest_of_key and position > self._parked.get(key, position):
            self._fault(f"{position} is handled, and {self._parked[key]} of its key was parked")
        self._busy[key] = position
        self._reached[key] = max(position, self._reached.get(key, 0))
        try:
            if self._slow and not self._phase.calm and self._random.random() < 0.3:
                await asyncio.sleep(SLOW_S * self._random.random())
            if self._random.random() < FAILURE_RATE:
                raise ValueError("a handler fails now and then")
        finally:
            self._busy.pop(key, None)

    async def _park(self, parked: ensue.Parked) -> None:
        await asyncio.sleep(self._random.choice((0.0, 0.0, 0.01)))
        self._parked.setdefault(self._key_of(parked.event), parked.event.position)

    def _fault(self, what: str) -> None:
        self._problems.append(f"handlers: {self._name}: position {what}")


def _all_alike(_event: ensue.ReceivedEvent) -> object:
    return None


def _topic_of(event: ensue.ReceivedEvent) -> str:
    return event.topic


def _own_key(event: ensue.ReceivedEvent) -> object:
    return event.key
