"""A client by content that makes rare calls, and the judge of what these do.

It publishes by an attribute that no other client uses, to itself:

- an event is refused unless an advertisement covers it, whether `bus`, a transaction or a plan made
  or withdrew that; one that was aborted changes nothing;
- operations of a plan that are `together` come in any order, after all before them and before all
  after them;
- a subscription that a plan withdraws ends, and gets nothing that is published later;
- with manual acknowledgement, events are pending until they are acknowledged, in any order; one
  that comes when there is no room ends the subscription.
"""

from contextlib import suppress

import ensue
from ensue.core.errors import BadInput, SubscriptionLost, TransactionAborted
from ensue.testing.swarm.content_caller import ANSWER_S, ContentCaller, DoubtError, Round

__all__ = ["ContentCalls"]

WHERE = "z exists"


class ContentCalls(ContentCaller):
    """The client of a run that makes rare calls."""

    def rounds(self) -> list[Round]:
        """Return the rounds."""
        return [self._advertise, self._transact, self._plan, self._acknowledge]

    async def _advertise(self, bus: ensue.Bus) -> None:
        name = await bus.advertise(where=WHERE)
        await self._try(bus, {"z": 0}, allowed=True)
        await bus.unadvertise(name)
        await self._try(bus, {"z": 0}, allowed=False)
        try:
            await bus.unadvertise(name)
        except BadInput:
            pass
        else:
            self._problems.append(f"advertised: {bus.name} withdrew {name} twice")

    async def _transact(self, bus: ensue.Bus) -> None:
        """Advertise in a transaction, and withdraw that in another one."""
        random = self._random
        names: list[str] = []

        async def advertise(tx: ensue.Transaction) -> None:
            names.append(await tx.advertise(WHERE))
            await tx.publish({"z": 1}, b"within")

        if not await self._commit(bus, advertise, undone=random.random() < 0.3):
            await self._try(bus, {"z": 0}, allowed=False)
            return
        await self._try(bus, {"z": 0}, allowed=True)
        is_done = await self._commit(
            bus, lambda tx: tx.unadvertise(names[0]), undone=random.random() < 0.3
        )
        await self._try(bus, {"z": 0}, allowed=not is_done)
        if not is_done:
            await bus.unadvertise(names[0])

    async def _plan(self, bus: ensue.Bus) -> None:
        """Subscribe, advertise and publish in a plan, and withdraw all that in another one."""
        try:
            async with bus.transaction(isolation="planned", timeout=10.0) as plan:
                name = await plan.advertise(WHERE)
                mine = await plan.subscribe(WHERE)
                await plan.publish({"z": 2}, b"first")
                with plan.together():
                    await plan.publish({"z": 2}, b"one")
                    await plan.publish({"z": 2}, b"other")
                await plan.publish({"z": 2}, b"last")
        except TransactionAborted:
            await self._try(bus, {"z": 0}, allowed=False)
            return
        got = [(await self._next(mine)).payload for _ in range(4)]
        if (got[0], {*got[1:3]}, got[3]) != (b"first", {b"one", b"other"}, b"last"):
            self._problems.append(f"together: a plan was carried out as {got}")
        withdraws = self._random.random() < 0.5
        try:
            async with bus.transaction(isolation="planned", timeout=10.0) as plan:
                await plan.unsubscribe(mine)
                await plan.publish({"z": 2}, b"too late")
                if withdraws:
                    await plan.unadvertise(name)
        except TransactionAborted:
            raise DoubtError from None
        await self._try(bus, {"z": 0}, allowed=not withdraws)
        with suppress(DoubtError):
            await self._check_end(mine)
        if not withdraws:
            await bus.unadvertise(name)

    async def _acknowledge(self, bus: ensue.Bus) -> None:
        """Read as many events as are allowed, acknowledge some, and read one too many."""
        random = self._random
        limit = random.choice((2, 5))
        name = await bus.advertise(where=WHERE)
        async with bus.subscribe(where=WHERE, acknowledge="manual", pending_max=limit) as events:
            taken = []
            for number in range(limit):
                await bus.publish({"z": number}, timeout=ANSWER_S)
                taken.append(await self._next(events))
            if [event.attributes for event in taken] != [{"z": each} for each in range(limit)]:
                self._problems.append(f"content: {events.name} got {taken}")
            random.shuffle(taken)
            for _ in range(random.randint(0, limit - 1)):
                event = taken.pop()
                await event.ack()
                await event.ack()  # Harmless.
            if events.pending != len(taken):
                self._problems.append(
                    f"acknowledged: {events.name} has {events.pending} pending, expected "
                    f"{len(taken)} of {limit}"
                )
            for _ in range(limit - len(taken)):
                await bus.publish({"z": 0}, timeout=ANSWER_S)
                await self._next(events)
            await bus.publish({"z": 0}, b"too many", timeout=ANSWER_S)
            try:
                event = await self._next(events)
            except SubscriptionLost:
                pass
            else:
                self._problems.append(
                    f"acknowledged: {events.name} has no room for {event.payload!r}"
                )
        await bus.unadvertise(name)
