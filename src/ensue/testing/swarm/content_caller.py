"""A process whose buses use content, and go through rounds of rare calls until the run is over.

Rounds begin anew, with new buses, after errors that applications have to expect. Once faults are
over and all servers are back, each round runs once more: then nothing that is owed may be missing.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from itertools import count
from random import Random
from typing import Protocol

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
from ensue.testing.swarm.client_watch import ClientWatch
from ensue.testing.swarm.mishaps import Mishap
from ensue.testing.swarm.rare_calls import Phase
from ensue.testing.world import World

__all__ = [
    "ANSWER_S",
    "KINDS",
    "ContentCaller",
    "ContentPhase",
    "DoubtError",
    "UndoError",
    "undo_if",
]

ANSWER_S = 20.0
"""How long an answer takes, if nothing is wrong."""
KINDS = ("serializable", "atomic")
PAUSE_S = 0.1
Round = Callable[..., Awaitable[None]]


class ContentPhase(Phase, Protocol):
    """How far a program is, a disk of whose servers may have a mishap."""

    mishap: Mishap


class UndoError(Exception):
    """A transaction is to be undone."""


class DoubtError(Exception):
    """The outcome of a call is unknown, as faults may cause: the client begins anew."""


class ContentCaller:
    """One process of a run that makes rare calls. Subclasses say which."""

    process = "caller"
    names: tuple[str, ...] = ("caller",)
    """Names of its buses."""
    generator = "rare calls"

    def __init__(
        self,
        world: World,
        problems: list[str],
        *,
        phase: ContentPhase,
        url: Callable[[Random], str],
        late_s: float,
        watch: ClientWatch,
        expired: tuple[type[Exception], ...],
    ) -> None:
        self._world, self._problems = world, problems
        self._phase, self._url = phase, url
        self._late_s = late_s
        """How long after healing all servers are back."""
        self._watch, self._expired = watch, expired
        self._random = world.generator(self.generator)
        self._numbers = count(1)
        self._isolation = ""
        """Of the last transaction."""
        self._settled = False
        """Whether all servers are back, so that nothing may be missing."""

    def rounds(self) -> list[Round]:
        """Return the rounds: functions that take the buses."""
        raise NotImplementedError

    async def run(self) -> None:
        """Connect again after errors that applications have to expect."""
        expected: tuple[type[Exception], ...] = (
            TransportError,
            SubscriptionLost,
            EventsInDoubt,
            TransactionPending,
            DoubtError,
            *self._expired,
        )
        while not self._phase.over:
            try:
                await self._connected()
            except expected as error:
                if not isinstance(error, DoubtError):  # Its cause is reported where it is raised.
                    self._watch.failed(self.process, error)
                await asyncio.sleep(0.5)
            finally:
                self._world.crashed(self._world.host(self.process))

    async def _connected(self) -> None:
        random, rounds, self._settled = self._random, self.rounds(), False
        async with AsyncExitStack() as stack:
            buses = [
                await stack.enter_async_context(
                    ensue.connect(self._url(random), order=None, name=name)
                )
                for name in self.names
            ]
            await self._begin(*buses)
            while not self._phase.calm:
                await random.choice(rounds)(*buses)
                await asyncio.sleep(random.uniform(0.1, 1.0))
            await asyncio.sleep(self._late_s)
            self._settled = not self._phase.mishap.is_refused
            for each in rounds if self._settled else ():  # Transactions need all brokers.
                await each(*buses)
            while not self._phase.over:  # noqa: ASYNC110 - processes share no event
                await asyncio.sleep(0.5)

    async def _begin(self, *buses: ensue.Bus) -> None:
        """Prepare new buses for all rounds."""

    # -- What rounds do -------------------------------------------------------------------------

    async def _try(self, bus: ensue.Bus, attributes: dict[str, object], *, allowed: bool) -> None:
        """Publish an event, which an advertisement covers or not."""
        try:
            await bus.publish(attributes, b"tried", timeout=ANSWER_S)
        except EventRefused as error:
            if allowed:
                self._problems.append(f"advertised: {bus.name} was refused: {error}")
            elif "no advertisement of this bus covers" not in str(error):
                self._problems.append(f"advertised: the refusal does not say why: {error}")
        else:
            if not allowed:
                self._problems.append(f"advertised: {bus.name} published without advertisement")

    async def _await_advertisement(self, bus: ensue.Bus, attributes: dict[str, object]) -> None:
        """Publish an event as soon as the advertisement of a committed transaction is in effect."""
        for _ in range(int(ANSWER_S / PAUSE_S)):
            with suppress(EventRefused):
                await bus.publish(attributes, b"tried", timeout=ANSWER_S)
                return
            # The commit reaches the server of an invited client later than its coordinator.
            await asyncio.sleep(PAUSE_S)
        if self._settled:
            self._problems.append(f"advertised: {bus.name} is refused after the commit")
        raise DoubtError

    async def _next(self, events: ensue.Subscription) -> ensue.ReceivedEvent:
        """Return the next event, which is owed."""
        try:
            async with asyncio.timeout(ANSWER_S):
                return await anext(events)
        except (TimeoutError, StopAsyncIteration) as error:
            if self._settled:
                self._problems.append(f"content: {events.name} got no event: {error!r}")
            raise DoubtError from None

    async def _expect(self, events: ensue.Subscription, *payloads: bytes) -> None:
        """Check which events come next, all of which are owed."""
        got = [(await self._next(events)).payload for _ in payloads]
        if got != [*payloads]:
            self._problems.append(f"content: {events.name} got {got}, expected {[*payloads]}")

    async def _check_end(self, events: ensue.Subscription) -> None:
        """Check that a subscription that is withdrawn ends without an event."""
        try:
            async with asyncio.timeout(ANSWER_S):
                async for event in events:
                    self._problems.append(f"withdrawn: {events.name} got {event.payload!r}")
        except TimeoutError:
            if self._settled:
                self._problems.append(f"liveness: {events.name} was withdrawn, and does not end")
            raise DoubtError from None

    async def _commit(
        self, bus: ensue.Bus, act: Callable[[ensue.Transaction], Awaitable[object]], *, undone: bool
    ) -> bool:
        """Act in a transaction; return whether it was committed."""
        self._isolation = self._random.choice(KINDS)
        try:
            async with bus.transaction(isolation=self._isolation, timeout=10.0) as tx:
                await act(tx)
                undo_if(undone)
        except TransactionAborted as error:
            self._aborted(error)
            return False
        except UndoError:
            return False
        return True

    def _aborted(self, error: TransactionAborted) -> None:
        """Note that a transaction was aborted, which takes a reason once faults are over."""
        if self._settled and not error.is_conflict:
            self._problems.append(f"aborted: {error}")

    def _check_options(
        self, events: ensue.Subscription, *, pending_max: int, name: str = ""
    ) -> None:
        if events.pending_max != pending_max or name not in ("", events.name):
            self._problems.append(
                f"options: {events.name} allows {events.pending_max} events, asked for {name!r} "
                f"and {pending_max}"
            )

    def _check_pending(self, events: ensue.Subscription, *, manual: bool, read: int) -> None:
        """Check what is pending after events were read, and none was acknowledged by a call."""
        expected = read if manual else 1
        pending = events.pending - events.waiting
        if pending != expected:
            self._problems.append(
                f"acknowledged: {events.name} has {pending} unacknowledged, expected {expected}"
            )

    async def _withdraw(self, bus: ensue.Bus, name: str) -> None:
        try:
            await bus.unadvertise(name)
        except BadInput as error:
            self._problems.append(f"advertised: {name} of {bus.name} is unknown: {error}")


def undo_if(undone: bool) -> None:
    """Raise in a transaction, so that it is undone."""
    if undone:
        raise UndoError
