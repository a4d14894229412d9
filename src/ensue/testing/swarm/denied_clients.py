"""Users who lack a permission for `content`, and try to do by content what they may not.

| user | may not | gets |
|---|---|---|
| reader | publish | `BadInput` from `advertise`, `EventRefused` from `publish` |
| writer | subscribe | `SubscriptionRefused` |
| idler | publish or subscribe | both, and no transaction of its own |

Within a transaction each gets `TransactionAborted`, and so does one who plans for clients of other
users. Everything else that they do works. No event may reach a writer or an idler, and none of a
reader or an idler may reach any client (`judge`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random

import ensue
from ensue.client.content.session import CONTENT
from ensue.core.errors import (
    BadInput,
    EventRefused,
    EventsInDoubt,
    LocalProtocolError,
    SubscriptionRefused,
    TransactionPending,
)
from ensue.core.trace import Row
from ensue.testing.swarm.rare_faults import rarely
from ensue.testing.swarm.users import IDLER, READER, WRITER

__all__ = ["TOKENS", "DeniedClients", "draw_users"]

NUMBER = 2
"""Of the generator: with it, seeds that tests note have no users."""
TOKENS = {"reader": READER, "writer": WRITER, "idler": IDLER}
"""By user: its token."""
WHERE = "x exists"
FORBIDDEN = b"forbidden"
PAUSE_S = (0.2, 3.0)
TIMEOUT_S = 10.0
_GOT = frozenset({"received", "node_delivered", "delivered"})
Ask = Callable[[], Awaitable[object]]


def draw_users(seed: int) -> bool:
    """Draw whether clients have to log in, and some of them lack permissions."""
    return rarely("users", NUMBER, seed, "transactions") is not None


class DeniedClients:
    """What these users try, and what they must not succeed in."""

    def __init__(self, problems: list[str], expired: tuple[type[Exception], ...]) -> None:
        self._problems = problems
        self._expired = expired
        """What a client gets that servers have given up, where faults allow that."""
        self._buses: dict[str, str] = {}
        """By bus: its user."""

    async def visit(
        self, bus: ensue.Bus, user: str, members: Sequence[str], random: Random
    ) -> ensue.Event | None:
        """Try one thing without permission, and do one that is permitted; return its event."""
        self._buses[bus.name] = user
        publishes, reads = user == "writer", user == "reader"
        kind = random.choice(("serializable", "atomic", "planned"))
        attempts: list[tuple[str, type[Exception], Ask]] = [
            ("planned for others", ensue.TransactionAborted, _plan(bus, each)) for each in members
        ]
        if not publishes:
            attempts += [
                ("advertised", BadInput, lambda: bus.advertise(where=WHERE)),
                ("published", EventRefused, lambda: bus.publish({"x": 1}, FORBIDDEN, timeout=20.0)),
                ("published in a transaction", ensue.TransactionAborted, _publish(bus, kind)),
            ]
        if not reads:
            attempts += [
                ("subscribed", SubscriptionRefused, lambda: _enter(bus)),
                ("subscribed in a transaction", ensue.TransactionAborted, _subscribe(bus, kind)),
            ]
        if attempts:
            await self._expect(user, *random.choice(attempts))
        await asyncio.sleep(random.uniform(*PAUSE_S))
        if publishes:
            await bus.advertise(where=WHERE)
            return await bus.publish({"x": random.randint(0, 4)}, b"permitted", timeout=20.0)
        if reads:
            async with bus.subscribe(where=WHERE) as events:
                reading = asyncio.create_task(_read(events))
                await asyncio.sleep(random.uniform(*PAUSE_S))
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
        return None

    async def _expect(self, user: str, what: str, error: type[Exception], ask: Ask) -> None:
        try:
            await ask()
        except (error, TransactionPending, EventsInDoubt):
            pass  # What is pending was not committed by the time it had.
        except self._expired:
            raise
        except (BadInput, EventRefused, SubscriptionRefused, LocalProtocolError) as other:
            self._problems.append(f"permission: {user} that {what} got {other!r}")
        else:
            self._problems.append(f"permission: {user} {what}")

    def judge(self, rows: Sequence[Row]) -> list[str]:
        """Return what reached users, or came from them, without permission."""
        deaf = {bus for bus, user in self._buses.items() if user != "reader"}
        mute = {bus for bus, user in self._buses.items() if user != "writer"}
        got = [row for row in rows if row.action in _GOT]
        return [
            *(
                f"permission: {row.node} got {row.event} without permission"
                for row in got
                if row.node.removesuffix(f".{CONTENT}") in deaf
            ),
            *(
                f"permission: {row.event} was published without permission"
                for row in got
                if (row.publisher or "").removesuffix(f".{CONTENT}") in mute
            ),
        ]


def _plan(bus: ensue.Bus, member: str) -> Ask:
    async def ask() -> None:
        async with bus.transaction(isolation="planned", timeout=TIMEOUT_S) as plan:
            await plan.client(member).subscribe(WHERE)

    return ask


def _publish(bus: ensue.Bus, kind: str) -> Ask:
    async def ask() -> None:
        async with bus.transaction(isolation=kind, timeout=TIMEOUT_S) as tx:
            await tx.publish({"x": 1}, FORBIDDEN)

    return ask


def _subscribe(bus: ensue.Bus, kind: str) -> Ask:
    async def ask() -> None:
        async with bus.transaction(isolation=kind, timeout=TIMEOUT_S) as tx:
            await tx.subscribe(WHERE)

    return ask


async def _enter(bus: ensue.Bus) -> None:
    async with bus.subscribe(where=WHERE):
        pass


async def _read(events: ensue.Subscription) -> None:
    async for _ in events:
        pass
