"""Dispatching: a dispatcher hands a running workflow instance to an agent while updates continue.

The dispatcher unsubscribes and the agent subscribes. Done one after the other, an update in between
reaches neither or both. In one transaction, each update reaches exactly one of them. Run it:
python examples/dispatch.py
"""

import asyncio

import ensue

UPDATES = 20
WHERE = "process = 'p1' and instance = 'x1'"


class Workflow:
    """Publishes updates, and counts who receives them."""

    def __init__(self, environment: ensue.Bus) -> None:
        self._environment = environment
        self.got: list[int] = []
        self.sent = 0
        self._readers: list[asyncio.Task[None]] = []

    def read(self, events: ensue.Subscription) -> None:
        """Read a subscription in the background."""
        self._readers.append(asyncio.create_task(self._read(events)))

    async def _read(self, events: ensue.Subscription) -> None:
        async for event in events:
            self.got.append(int(event.payload))

    async def updates(self, count: int) -> None:
        """Publish `count` updates."""
        for _ in range(count):
            update = {"process": "p1", "instance": "x1", "step": self.sent}
            await self._environment.publish(update, str(self.sent).encode())
            self.sent += 1
            await asyncio.sleep(0.001)

    async def received(self) -> list[int]:
        """Return how often each update was received, after all subscriptions ended."""
        await asyncio.gather(*self._readers)
        return [self.got.count(number) for number in range(self.sent)]


async def dispatch(how: str) -> list[int]:
    """Return how often each update was received."""
    url = "memory://workflow?brokers=5"
    async with (
        ensue.connect(url, order=None, name="environment") as environment,
        ensue.connect(url, order=None, name="dispatcher") as dispatcher,
        ensue.connect(url, order=None, name="agent") as agent,
    ):
        workflow = Workflow(environment)
        await environment.advertise(where="process = 'p1'")
        old = await dispatcher.subscribe(where=WHERE).__aenter__()
        workflow.read(old)

        async def take_over(tx: ensue.InvitedTransaction) -> None:
            workflow.read(await tx.subscribe(WHERE))

        async def subscribe() -> None:
            workflow.read(await agent.subscribe(where=WHERE).__aenter__())

        agent.on_invitation(take_over)
        await workflow.updates(UPDATES)
        if how == "in one transaction":
            meanwhile = asyncio.create_task(workflow.updates(UPDATES))
            async with dispatcher.transaction(timeout=60) as tx:
                await tx.unsubscribe(old)
                await tx.invite("agent")
            await meanwhile
        elif how == "subscribe, then unsubscribe":
            await subscribe()
            await workflow.updates(UPDATES)
            await old.unsubscribe("content")
        else:
            await old.unsubscribe("content")
            await workflow.updates(UPDATES)
            await subscribe()
        await workflow.updates(UPDATES)
        await asyncio.sleep(0.1)
    return await workflow.received()


def main() -> None:
    """Hand over in three ways."""
    for how in ("unsubscribe, then subscribe", "subscribe, then unsubscribe", "in one transaction"):
        counts = asyncio.run(dispatch(how))
        lost, twice = counts.count(0), counts.count(2)
        print(
            f"{how}: {'some' if lost else 'no'} updates lost, {'some' if twice else 'none'} twice"
        )


if __name__ == "__main__":
    main()
