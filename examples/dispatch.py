"""Dispatching: a running workflow instance moves between agents while updates continue.

The dispatcher unsubscribes and an agent subscribes. Done one after the other, an update in between
reaches neither or both. In one transaction, each update reaches exactly one of them, also when the
instance moves on from agent to agent. As in the paper, the dispatcher publishes assignments, which
the agents get by content: it knows what it asks for, and not which client does it. Run it in
memory, or with clients at several servers: python examples/dispatch.py [URL ...]
"""

import asyncio
import sys
from collections.abc import Sequence
from itertools import cycle

import ensue

MEMORY = ("memory://workflow?brokers=5",)
UPDATES = 20
MOVES = 6
WHERE = "process = 'p1' and instance = 'x1'"


def assignment(what: str, agent: str) -> dict[str, str]:
    """Return the invitation that tells an agent to take or to give the instance."""
    return {"assign": what, "agent": agent, "process": "p1", "instance": "x1"}


class Workflow:
    """Publishes updates, and counts who receives them."""

    def __init__(self, environment: ensue.Bus) -> None:
        self._environment = environment
        self.got: list[int] = []
        self.sent = 0
        self.moving = True
        self._readers: list[asyncio.Task[None]] = []
        self._progress = asyncio.Event()

    def read(self, events: ensue.Subscription) -> asyncio.Event:
        """Read a subscription in the background; the result is set by its first update."""
        began = asyncio.Event()
        self._readers.append(asyncio.create_task(self._read(events, began)))
        return began

    async def _read(self, events: ensue.Subscription, began: asyncio.Event) -> None:
        async for event in events:
            self.got.append(int(event.payload))
            self._progress.set()
            began.set()

    async def updates(self, count: int) -> None:
        """Publish `count` updates."""
        for _ in range(count):
            update = {"process": "p1", "instance": "x1", "step": self.sent}
            await self._environment.publish(update, str(self.sent).encode())
            self.sent += 1
            await asyncio.sleep(0.001)

    async def flow(self) -> None:
        """Publish updates while the instance moves."""
        while self.moving:
            await self.updates(1)

    async def last(self) -> None:
        """Wait until the last update was received."""
        while self.sent - 1 not in self.got:
            self._progress.clear()
            await self._progress.wait()

    async def received(self) -> list[int]:
        """Return how often each update was received, after all subscriptions ended."""
        await asyncio.gather(*self._readers)
        return [self.got.count(number) for number in range(self.sent)]


class Agent:
    """Takes the instance, or gives it away, as the dispatcher assigns it."""

    def __init__(self, workflow: Workflow) -> None:
        self._workflow = workflow
        self._held: ensue.Subscription | None = None
        self.began = asyncio.Event()
        """Set once the agent has an update of the instance."""

    async def move(self, tx: ensue.InvitedTransaction) -> None:
        """Do the agent's part of a move."""
        if tx.attributes["assign"] == "take":
            self._held = await tx.subscribe(WHERE)
            self.began = self._workflow.read(self._held)
        elif self._held is not None:
            await tx.unsubscribe(self._held)


async def move(
    dispatcher: ensue.Bus, old: ensue.Subscription, agents: dict[str, Agent], workflow: Workflow
) -> None:
    """Move the instance from the dispatcher to an agent, then from agent to agent."""
    flow = asyncio.create_task(workflow.flow())
    giver, taker = agents
    async with dispatcher.transaction(timeout=60) as tx:
        await tx.unsubscribe(old)
        await tx.invite(assignment("take", taker))
    await agents[taker].began.wait()
    for _ in range(MOVES):
        giver, taker = taker, giver
        async with dispatcher.transaction(timeout=60) as tx:
            await tx.invite(assignment("give", giver))
            await tx.invite(assignment("take", taker))
        await agents[taker].began.wait()
    workflow.moving = False
    await flow


async def dispatch(how: str, urls: Sequence[str] = MEMORY) -> list[int]:
    """Return how often each update was received; clients connect to the URLs in turn."""
    url = cycle(urls)
    async with (
        ensue.connect(next(url), order=None, name="environment") as environment,
        ensue.connect(next(url), order=None, name="dispatcher") as dispatcher,
        ensue.connect(next(url), order=None) as one,
        ensue.connect(next(url), order=None) as two,
    ):
        workflow = Workflow(environment)
        await environment.advertise(where="process = 'p1'")
        await dispatcher.advertise(where="assign exists and process = 'p1'")
        old = await dispatcher.subscribe(where=WHERE).__aenter__()
        workflow.read(old)
        agents = {name: Agent(workflow) for name in ("agent-1", "agent-2")}
        for bus, (name, agent) in zip((one, two), agents.items(), strict=True):
            await bus.on_invitation(agent.move, where=f"assign exists and agent = '{name}'")
        await workflow.updates(UPDATES)
        if how == "in one transaction":
            await move(dispatcher, old, agents, workflow)
        elif how == "subscribe, then unsubscribe":
            workflow.read(await one.subscribe(where=WHERE).__aenter__())
            await workflow.updates(UPDATES)
            await old.unsubscribe("content")
        else:
            await old.unsubscribe("content")
            await workflow.updates(UPDATES)
            workflow.read(await one.subscribe(where=WHERE).__aenter__())
        await workflow.updates(UPDATES)
        await workflow.last()
    return await workflow.received()


def main() -> None:
    """Hand over in three ways."""
    urls = sys.argv[1:] or MEMORY
    for how in ("unsubscribe, then subscribe", "subscribe, then unsubscribe", "in one transaction"):
        counts = asyncio.run(dispatch(how, urls))
        lost, twice = counts.count(0), len([count for count in counts if count > 1])
        print(f"{how}: of {len(counts)} updates {lost} lost, {twice} twice")


if __name__ == "__main__":
    main()
