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

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random

import ensue
from ensue.core.errors import (
    BadInput,
    EventRefused,
    EventsInDoubt,
    SubscriptionLost,
    TransactionAborted,
    TransactionPending,
    TransportError,
)
from ensue.testing.swarm.rare_calls import Phase
from ensue.testing.world import World

__all__ = ["NAME", "ContentCalls"]

NAME = "caller"
WHERE = "z exists"
ANSWER_S = 20.0
"""How long an answer takes, if nothing is wrong."""
KINDS = ("serializable", "atomic")


class _UndoError(Exception):
    """A transaction is to be undone."""


class _DoubtError(Exception):
    """The outcome of a call is unknown, as faults may cause: the client begins anew."""


class ContentCalls:
    """The client of a run that makes rare calls."""

    def __init__(
        self,
        world: World,
        problems: list[str],
        *,
        phase: Phase,
        url: Callable[[Random], str],
        late_s: float,
        expired: tuple[type[Exception], ...],
    ) -> None:
        self._world, self._problems = world, problems
        self._phase, self._url = phase, url
        self._late_s = late_s
        """How long after healing all servers are back."""
        self._expired = expired
        self._random = world.generator("rare calls")

    async def run(self) -> None:
        """Connect again after errors that applications have to expect."""
        expected: tuple[type[Exception], ...] = (
            TransportError,
            SubscriptionLost,
            EventsInDoubt,
            TransactionPending,
            _DoubtError,
            *self._expired,
        )
        while not self._phase.over:
            try:
                await self._connected()
            except expected:
                await asyncio.sleep(0.5)
            finally:
                self._world.crashed(self._world.host(NAME))

    async def _connected(self) -> None:
        random = self._random
        rounds: list[Callable[[ensue.Bus], Awaitable[None]]] = [
            self._advertise,
            self._transact,
            self._plan,
            self._acknowledge,
        ]
        async with ensue.connect(self._url(random), order=None, name=NAME) as bus:
            while not self._phase.calm:
                await random.choice(rounds)(bus)
                await asyncio.sleep(random.uniform(0.1, 1.0))
            await asyncio.sleep(self._late_s)
            for each in rounds:
                await each(bus)
            while not self._phase.over:  # noqa: ASYNC110 - processes share no event
                await asyncio.sleep(0.5)

    async def _try(self, bus: ensue.Bus, *, allowed: bool) -> None:
        """Publish an event, which an advertisement covers or not."""
        try:
            await bus.publish({"z": 0}, b"tried", timeout=ANSWER_S)
        except EventRefused as error:
            if allowed:
                self._problems.append(f"advertised: {bus.name} was refused: {error}")
            elif "no advertisement of this bus covers" not in str(error):
                self._problems.append(f"advertised: the refusal does not say why: {error}")
        else:
            if not allowed:
                self._problems.append(f"advertised: {bus.name} published without advertisement")

    async def _next(self, events: ensue.Subscription) -> ensue.ReceivedEvent:
        """Return the next event, which is owed."""
        try:
            async with asyncio.timeout(ANSWER_S):
                return await anext(events)
        except (TimeoutError, StopAsyncIteration) as error:
            if self._phase.calm:
                self._problems.append(f"content: {events.name} got no event: {error!r}")
            raise _DoubtError from None

    # -- Rounds -----------------------------------------------------------------------------------

    async def _advertise(self, bus: ensue.Bus) -> None:
        name = await bus.advertise(where=WHERE)
        await self._try(bus, allowed=True)
        await bus.unadvertise(name)
        await self._try(bus, allowed=False)
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
            await self._try(bus, allowed=False)
            return
        await self._try(bus, allowed=True)
        is_done = await self._commit(
            bus, lambda tx: tx.unadvertise(names[0]), undone=random.random() < 0.3
        )
        await self._try(bus, allowed=not is_done)
        if not is_done:
            await bus.unadvertise(names[0])

    async def _commit(
        self,
        bus: ensue.Bus,
        act: Callable[[ensue.Transaction], Awaitable[None]],
        *,
        undone: bool,
    ) -> bool:
        """Act in a transaction; return whether it was committed."""
        try:
            async with bus.transaction(isolation=self._random.choice(KINDS), timeout=10.0) as tx:
                await act(tx)
                _undo_if(undone)
        except (TransactionAborted, _UndoError):
            return False
        return True

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
            await self._try(bus, allowed=False)
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
            raise _DoubtError from None
        await self._try(bus, allowed=not withdraws)
        with suppress(_DoubtError):
            await self._check_end(mine)
        if not withdraws:
            await bus.unadvertise(name)

    async def _check_end(self, events: ensue.Subscription) -> None:
        """Check that a subscription that a plan withdrew ends without an event."""
        try:
            async with asyncio.timeout(ANSWER_S):
                async for event in events:
                    self._problems.append(f"withdrawn: {events.name} got {event.payload!r}")
        except TimeoutError:
            if self._phase.calm:
                self._problems.append(f"liveness: {events.name} was withdrawn, and does not end")
            raise _DoubtError from None

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


def _undo_if(undone: bool) -> None:
    if undone:
        raise _UndoError
