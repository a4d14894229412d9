"""A client whose plans say what another client does, and the judge of what both get.

- What a plan has another client advertise, publish and subscribe to happens as if that client did
  it: its events have it as publisher, and both subscriptions get them.
- Subscriptions that plans make have the options that `plan.subscribe` and `on_subscription` got.
- `plan.commit()` without `hold` decides at once, `plan.abort()` drops the plan; afterwards the plan
  takes no operation, and of a dropped one nothing has happened.
- With `retries` events of one attempt are delivered, once.
"""

import asyncio
from random import Random

import ensue
from ensue.client.validation import Acknowledge
from ensue.core.errors import LocalProtocolError, TransactionAborted
from ensue.testing.swarm.content_caller import ANSWER_S, ContentCaller, DoubtError, Round

__all__ = ["PlanCalls"]


class PlanCalls(ContentCaller):
    """Two buses of one process: one plans, the other has a part in it."""

    process = "planner"
    names = ("planner", "partner")
    generator = "plan calls"

    def rounds(self) -> list[Round]:
        """Return the rounds."""
        return [self._plan_for, self._decide_early, self._repeat]

    def _where(self) -> tuple[str, dict[str, object]]:
        """Return a filter that no other round uses, and the attributes that match it."""
        number = next(self._numbers)
        return f"p = {number}", {"p": number}

    async def _plan_for(self, planner: ensue.Bus, partner: ensue.Bus) -> None:
        """Have the partner do everything that a plan can have it do, and undo it."""
        random, (where, attributes) = self._random, self._where()
        given: asyncio.Future[ensue.Subscription] = asyncio.get_running_loop().create_future()

        async def take(events: ensue.Subscription) -> None:
            given.set_result(events)

        theirs, mine = _Options(random), _Options(random)
        await partner.on_subscription(take, pending_max=theirs.limit, acknowledge=theirs.how)
        try:
            async with planner.transaction(isolation="planned", timeout=10.0) as plan:
                other, name = plan.client(partner.name), f"planned {attributes['p']}"
                advertised = await other.advertise(where)
                subscribed = await other.subscribe(where)
                own = await plan.subscribe(
                    where, name=name, pending_max=mine.limit, acknowledge=mine.how
                )
                await other.publish(attributes, b"planned")
        except TransactionAborted as error:
            self._aborted(error)
            await self._try(partner, attributes, allowed=False)
            return
        events = await self._given(given, partner)
        if partner.content_name(events) != subscribed:
            self._problems.append(f"planned: {subscribed} is {partner.content_name(events)}")
        self._check_options(events, pending_max=theirs.limit)
        self._check_options(own, pending_max=mine.limit, name=name)
        await self._try(partner, attributes, allowed=True)
        for reader, options in ((own, mine), (events, theirs)):
            await self._read_both(reader, partner, options)
        try:
            async with planner.transaction(isolation="planned", timeout=10.0) as plan:
                other = plan.client(partner.name)
                await other.unsubscribe(subscribed)
                await plan.unsubscribe(own)
                await other.publish(attributes, b"too late")
                await other.unadvertise(advertised)
        except TransactionAborted as error:
            self._aborted(error)
            raise DoubtError from None
        await self._try(partner, attributes, allowed=False)
        await self._check_end(own)
        await self._check_end(events)

    async def _given(
        self, given: "asyncio.Future[ensue.Subscription]", bus: ensue.Bus
    ) -> ensue.Subscription:
        """Return the subscription that a committed plan has made for a bus."""
        try:
            async with asyncio.timeout(ANSWER_S):
                return await given
        except TimeoutError:
            if self._settled:
                self._problems.append(f"planned: {bus.name} was given no subscription")
            raise DoubtError from None

    async def _read_both(
        self, events: ensue.Subscription, publisher: ensue.Bus, options: "_Options"
    ) -> None:
        got = [await self._next(events), await self._next(events)]
        found = [(event.payload, event.publisher) for event in got]
        if found != [(b"planned", publisher.name), (b"tried", publisher.name)]:
            self._problems.append(f"planned: {events.name} got {found}")
        self._check_pending(events, manual=options.how == "manual", read=2)

    async def _decide_early(self, planner: ensue.Bus, partner: ensue.Bus) -> None:
        """Commit or drop a plan within its block, and add an operation too late."""
        where, attributes = self._where()
        commits = self._random.random() < 0.5
        name = await planner.advertise(where=where)
        async with partner.subscribe(where=where) as watch:
            try:
                async with planner.transaction(isolation="planned", timeout=10.0) as plan:
                    made = await plan.subscribe(where)
                    await plan.publish(attributes, b"decided")
                    await (plan.commit() if commits else plan.abort())
                    self._refuse_more(plan, attributes)
            except TransactionAborted as error:
                self._aborted(error)
                commits = False
            await planner.publish(attributes, b"after", timeout=ANSWER_S)
            if commits:
                await self._expect(made, b"decided", b"after")
                await self._expect(watch, b"decided", b"after")
                made.close()
            else:
                await self._expect(watch, b"after")
                await self._check_end(made)
        await self._withdraw(planner, name)

    def _refuse_more(self, plan: ensue.PlannedTransaction, attributes: dict[str, object]) -> None:
        try:
            plan.publish(attributes, b"more").close()
        except LocalProtocolError:
            return
        self._problems.append("planned: a plan that was decided about takes another operation")

    async def _repeat(self, planner: ensue.Bus, partner: ensue.Bus) -> None:
        """Allow a plan to be repeated: its events are those of one attempt."""
        where, attributes = self._where()
        name, number, commits = await planner.advertise(where=where), 0, True
        async with partner.subscribe(where=where) as watch:
            try:
                async for attempt in planner.transaction(
                    isolation="planned", timeout=10.0, retries=2
                ):
                    async with attempt as plan:
                        number = attempt.number
                        await plan.publish(attributes, b"attempt %d" % number)
            except TransactionAborted as error:
                self._aborted(error)
                commits = False
            if number > (1 if self._settled else 3) or not number:
                self._problems.append(f"planned: there were {number} attempts at a plan")
            await planner.publish(attributes, b"after", timeout=ANSWER_S)
            done = [b"attempt %d" % number] if commits else []
            await self._expect(watch, *done, b"after")
        await self._withdraw(planner, name)


class _Options:
    """How a subscription is to be read."""

    def __init__(self, random: Random) -> None:
        self.limit = random.choice((3, 50))
        self.how: Acknowledge = random.choice(("auto", "manual"))
