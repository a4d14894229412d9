"""Consolidation: under low load, one consolidator takes over the workflow instances of two agents.

Step by step, updates are lost or duplicated, and for a while the consolidator has only one of the
two instances. In one transaction, the invited agents unsubscribe and the consolidator subscribes at
the same point in the order. Run it: python examples/consolidation.py
"""

import asyncio

import ensue

INSTANCES = ("x1", "x2")
ROUNDS = 10


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

    def read(self, events: ensue.Subscription) -> None:
        """Read a subscription in the background."""
        self._readers.append(asyncio.create_task(self._read(events)))

    async def _read(self, events: ensue.Subscription) -> None:
        async for event in events:
            self._got.append(event.payload.decode())

    async def updates(self, rounds: int) -> None:
        """Publish `rounds` updates of each instance."""
        for _ in range(rounds):
            for instance in INSTANCES:
                self._sent.append(f"{instance}/{len(self._sent)}")
                update = {"process": "p1", "instance": instance}
                await self._environment.publish(update, self._sent[-1].encode())
            await asyncio.sleep(0.001)

    async def received(self) -> list[int]:
        """Return how often each update was received, after all subscriptions ended."""
        await asyncio.gather(*self._readers)
        return [self._got.count(update) for update in self._sent]


async def consolidate(*, in_one_transaction: bool) -> list[int]:
    """Return how often each update was received."""
    url = "memory://workflow?brokers=3"
    async with (
        ensue.connect(url, order=None, name="environment") as environment,
        ensue.connect(url, order=None, name="consolidator") as consolidator,
        ensue.connect(url, order=None, name="agent-x1") as one,
        ensue.connect(url, order=None, name="agent-x2") as two,
    ):
        workflow = Workflow(environment)
        await environment.advertise(where="process = 'p1'")
        held: dict[str, ensue.Subscription] = {}

        async def unsubscribe(tx: ensue.InvitedTransaction) -> None:
            await tx.unsubscribe(held[str(tx.attributes["instance"])])

        for instance, agent in zip(INSTANCES, (one, two), strict=True):
            held[instance] = await agent.subscribe(where=where(instance)).__aenter__()
            workflow.read(held[instance])
            agent.on_invitation(unsubscribe)
        await workflow.updates(ROUNDS)
        if in_one_transaction:
            meanwhile = asyncio.create_task(workflow.updates(ROUNDS))
            async with consolidator.transaction(timeout=60) as tx:
                for instance in INSTANCES:
                    await tx.invite(f"agent-{instance}", {"instance": instance})
                    workflow.read(await tx.subscribe(where(instance)))
            await meanwhile
        else:
            for instance in INSTANCES:
                await held[instance].unsubscribe("content")
                await workflow.updates(ROUNDS)
                workflow.read(await consolidator.subscribe(where=where(instance)).__aenter__())
        await workflow.updates(ROUNDS)
        await asyncio.sleep(0.1)
    return await workflow.received()


def main() -> None:
    """Take over step by step, then in one transaction."""
    for label, whole in (("step by step", False), ("in one transaction", True)):
        counts = asyncio.run(consolidate(in_one_transaction=whole))
        right = all(count == 1 for count in counts)
        print(f"{label}: every update once: {right}")


if __name__ == "__main__":
    main()
