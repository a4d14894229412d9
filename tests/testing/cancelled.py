"""Operations of the public API, each cancelled wherever it suspends.

An operation is the program of one client process. `client.cuts()` has it begin the same call again
and again, cancelled at its 1st, 2nd, 3rd, … suspension until it ends by itself, in each of
`MANNERS`. After each call the program goes on with the same bus, or a new one, and notes what is
wrong.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import TypeVar

import ensue
from ensue.core.order import Order
from ensue.testing import Attempt, Cluster, Simulation, cancel_at

__all__ = ["CUT", "END", "MANNERS", "SOON_S", "Client", "Cut", "Operation", "refused", "take"]

T = TypeVar("T")
MANNERS: tuple[dict[str, bool], ...] = ({}, {"late": True}, {"again": True})
"""Ways to cancel: while it waits, when what it waits for is done, and twice in a row."""
SUSPENSIONS_MAX = 80
SOON_S = 8.0
"""How long a call that may be cancelled takes at most, and each one after it."""
END = b"end"


class Cut:
    """One point at which a call is cancelled."""

    def __init__(self, client: "Client", suspension: int, manner: dict[str, bool]) -> None:
        self.label = f"{suspension}{''.join(f' {each}' for each in manner)}"
        self.reached = True
        """Whether the call suspended so often."""
        self.over = False
        """Whether the call has ended."""
        self.twice = False
        """Whether the call was cancelled a second time."""
        self._client, self._suspension, self._manner = client, suspension, manner

    async def __call__(self, call: Awaitable[T]) -> Attempt[T]:
        within = CUT.set(self)
        try:
            attempt = await self._client.soon(
                "the call", cancel_at(call, self._suspension, **self._manner)
            )
        finally:
            CUT.reset(within)
            self.over = True
        self.reached = attempt.reached
        self.twice = bool(self._manner.get("again")) and attempt.suspensions > self._suspension
        if attempt.reached and not attempt.cancelled:
            self._client.wrong("it went on")
        return attempt


CUT: ContextVar[Cut | None] = ContextVar("cut", default=None)
"""The point at which a task's call is cancelled, or the call that created the task."""


class Client:
    """The process of an operation, and what its program found wrong."""

    def __init__(self, simulation: Simulation, cluster: Cluster, order: Order | None) -> None:
        self.simulation, self.cluster, self.order = simulation, cluster, order
        self.problems: list[str] = []
        self.closed: list[str] = []
        """Buses that were closed, of which servers keep nothing."""
        self._cut_off: dict[str, None] = {}
        """Those of them that were closed by a call that was cancelled twice."""
        self.suspensions: list[int] = []
        """By manner: at how many suspensions the call was cancelled."""
        self._label = ""

    @property
    def url(self) -> str:
        """The URL of the last server."""
        return self.cluster.url(self.cluster.names[-1])

    def connect(self, name: str | None = None) -> ensue.Bus:
        """Return a bus of the order, to be entered."""
        return ensue.connect(self.url, order=self.order, name=name)

    @asynccontextmanager
    async def bus(self, name: str | None = None) -> AsyncIterator[ensue.Bus]:
        """Enter a bus of the order."""
        async with self.connect(name) as bus:
            yield bus
        self.closes(bus)

    def closes(self, bus: ensue.Bus, cut: Cut | None = None) -> None:
        """Note that a bus was closed, by a call that was cut or by another one."""
        self.closed.append(bus.name)
        if cut is not None and cut.twice:
            self._cut_off[bus.name] = None

    def left_behind(self, leaks: Iterable[str], reset: Iterable[str]) -> list[str]:
        """Return the leaks without those that closing a bus may leave.

        Servers keep the session of a publisher that did not learn what became of its last event.
        They also keep it if its last frame does not reach them: a second cancellation drops that,
        and a reset of the connection (`reset` has the buses) may overtake it.
        """
        rows = self.cluster.world.rows
        received = {row.event for row in rows if row.action == "published"}
        doubtful = {
            row.node for row in rows if row.action == "submitted" and row.event not in received
        }
        allowed = {f"the publisher session {name}" for name in {*self._cut_off, *doubtful, *reset}}
        return [each for each in leaks if each.partition(" has ")[2] not in allowed]

    @property
    def relays(self) -> bool:
        """Whether clients order events themselves, and wait for each other."""
        return isinstance(self.order, ensue.Causal | ensue.Deadline)

    @property
    def leaving_manners(self) -> Sequence[dict[str, bool]]:
        """Ways to cancel calls that close a bus.

        The second cancellation cuts the connection, as `kill -9` does: members of a registry that
        order events themselves wait for the bus until it expires.
        """
        return MANNERS[:2] if self.relays else MANNERS

    def cuts(self, manners: Sequence[dict[str, bool]] = MANNERS) -> Iterator[Cut]:
        """Yield points to cancel a call at, in each manner until one is not reached."""
        for manner in manners:
            for suspension in range(1, SUSPENSIONS_MAX):
                cut = Cut(self, suspension, manner)
                self._label = cut.label
                yield cut
                if not cut.reached:
                    self.suspensions.append(suspension - 1)
                    break
            else:
                raise AssertionError(f"it suspends more than {SUSPENSIONS_MAX} times")

    def wrong(self, what: str) -> None:
        """Note what is wrong after the present cut."""
        self.problems.append(f"cancelled at {self._label}: {what}")

    def expect(self, what: str, got: object, *allowed: object) -> None:
        """Note it unless something is as allowed."""
        if got not in allowed:
            self.wrong(f"{what}: {got}, allowed {' or '.join(map(str, allowed))}")

    async def soon(self, what: str, call: Awaitable[T]) -> T:
        """Await what must not take long."""
        try:
            async with asyncio.timeout(SOON_S) as limit:
                return await call
        except TimeoutError:
            if not limit.expired():
                raise
            why = f"cancelled at {self._label}: {what} took more than {SOON_S:g} s"
            raise AssertionError(why) from None

    async def to_end(self, events: ensue.Subscription) -> list[bytes]:
        """Return the payloads up to `END`."""
        return await self.soon("reading to the end", take(events))


async def refused(call: Awaitable[object]) -> bool:
    """Return whether a call is refused."""
    try:
        await call
    except ensue.EnsueError:
        return True
    return False


async def take(events: ensue.Subscription) -> list[bytes]:
    """Return the payloads up to `END`."""
    found = []
    async for event in events:
        if event.payload == END:
            break
        found.append(event.payload)
    return found


Operation = Callable[[Client], Awaitable[None]]
