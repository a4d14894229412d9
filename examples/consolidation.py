"""Consolidation: under low load, one consolidator takes over the workflow instances of two agents.

Step by step, updates are lost or duplicated, and for a while the consolidator has only one of the
two instances. In one transaction, the invited agents unsubscribe and the consolidator subscribes at
the same point in the order; another gives the instances back when the load rises. Run it in memory,
or with clients at several servers: python examples/consolidation.py [URL ...]
"""

import asyncio
import sys
from collections.abc import Sequence
from itertools import cycle

import ensue

MEMORY = ("memory://workflow?brokers=3",)
INSTANCES = ("x1", "x2")
ROUNDS = 10
MOVES = 3


def where(instance: str) -> str:
    """Return the filter of an instance's updates."""
    return f"process = 'p1' and instance = '{instance}'"


class Workflow:
    """Publishes updates of both instances, and counts who receives them."""

    def __init__(self, environment: ensue.Bus) -> None:
        self._environment = environment
        self._got: list[str] = []
        self._sent: list[str] = []
        self._readers: list[asyncio.Task[None]] = []
        self._progress = asyncio.Event()
        self.held: dict[str, ensue.Subscription] = {}
        """By instance: the subscription that gets its updates."""
        self.moving = True

    def read(self, instance: str, events: ensue.Subscription) -> None:
        """Read the subscription to an instance in the background."""
        self.held[instance] = events
        self._readers.append(asyncio.create_task(self._read(events)))

    async def _read(self, events: ensue.Subscription) -> None:
        async for event in events:
            self._got.append(event.payload.decode())
            self._progress.set()

    async def updates(self, rounds: int) -> None:
        """Publish `rounds` updates of each instance."""
        for _ in range(rounds):
            for instance in INSTANCES:
                self._sent.append(f"{instance}/{len(self._sent)}")
                update = {"process": "p1", "instance": instance}
                await self._environment.publish(update, self._sent[-1].encode())
            await asyncio.sleep(0.001)

    async def flow(self) -> None:
        """Publish updates while instances move."""
        while self.moving:
            await self.updates(1)

    async def last(self) -> None:
        """Wait until the last update of each instance was received."""
        while not set(self._sent[-len(INSTANCES) :]).issubset(self._got):
            self._progress.clear()
            await self._progress.wait()

    async def received(self) -> list[int]:
        """Return how often each update was received, after all subscriptions ended."""
        await asyncio.gather(*self._readers)
        return [self._got.count(update) for update in self._sent]


async def move(consolidator: ensue.Bus, workflow: Workflow) -> None:
    """Take over both instances, and give them back, several times while updates continue."""
    flow = asyncio.create_task(workflow.flow())
    for number in range(MOVES):
        async with consolidator.transaction(timeout=60) as tx:
            for instance in INSTANCES:
                await tx.invite(f"agent-{instance}", {"instance": instance, "do": "give"})
                workflow.read(instance, await tx.subscribe(where(instance)))
        if number < MOVES - 1:
            async with consolidator.transaction(timeout=60) as tx:
                for instance in INSTANCES:
                    await tx.unsubscribe(workflow.held[instance])
                    await tx.invite(f"agent-{instance}", {"instance": instance, "do": "take"})
    workflow.moving = False
    await flow


async def consolidate(*, in_one_transaction: bool, urls: Sequence[str] = MEMORY) -> list[int]:
    """Return how often each update was received; clients connect to the URLs in turn."""
    url = cycle(urls)
    async with (
        ensue.connect(next(url), order=None, name="environment") as environment,
        ensue.connect(next(url), order=None, name="consolidator") as consolidator,
        ensue.connect(next(url), order=None, name="agent-x1") as one,
        ensue.connect(next(url), order=None, name="agent-x2") as two,
    ):
        workflow = Workflow(environment)
        await environment.advertise(where="process = 'p1'")

        async def take_part(tx: ensue.InvitedTransaction) -> None:  # an agent's part
            instance = str(tx.attributes["instance"])
            if tx.attributes["do"] == "take":
                workflow.read(instance, await tx.subscribe(where(instance)))
            else:
                await tx.unsubscribe(workflow.held[instance])

        for instance, agent in zip(INSTANCES, (one, two), strict=True):
            events = await agent.subscribe(where=where(instance)).__aenter__()
            workflow.read(instance, events)
            await agent.on_invitation(take_part)
        await workflow.updates(ROUNDS)
        if in_one_transaction:
            await move(consolidator, workflow)
        else:
            for instance in INSTANCES:
                await workflow.held[instance].unsubscribe("content")
                await workflow.updates(ROUNDS)
                events = await consolidator.subscribe(where=where(instance)).__aenter__()
                workflow.read(instance, events)
        await workflow.updates(ROUNDS)
        await workflow.last()
    return await workflow.received()


def main() -> None:
    """Take over step by step, then in one transaction."""
    urls = sys.argv[1:] or MEMORY
    for label, whole in (("step by step", False), ("in one transaction", True)):
        counts = asyncio.run(consolidate(in_one_transaction=whole, urls=urls))
        lost, twice = counts.count(0), len([count for count in counts if count > 1])
        print(f"{label}: of {len(counts)} updates {lost} lost, {twice} twice")


if __name__ == "__main__":
    main()
