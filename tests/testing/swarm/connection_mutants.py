"""Planted bugs of connecting, for the swarm of the whole stack to find.

A client that never connects is owed no event: only the bounds of liveness show these.
`tests.testing.swarm.mutants` runs them with its own.
"""

import asyncio
from typing import Any

from ensue.client.bus import Bus
from ensue.client.content.client import ContentClient
from ensue.client.content.plan import PlannedClient
from ensue.client.subscription import Subscription
from ensue.core.errors import LocalProtocolError, TransportError

__all__ = ["CONNECTIONS"]

SOUND_S = 11.0
"""So long processes work as they should: the clock of a host begins at one second."""
LATE_S = 45.0

real_enter, real_subscribe = Bus.__aenter__, Subscription.__aenter__
real_publish = ContentClient.publish


def is_sound() -> bool:
    """Return whether the bug does not show yet."""
    return asyncio.get_running_loop().time() < SOUND_S


async def refuse_all(self: Bus) -> Bus:
    """After a while no client can connect any more."""
    if not is_sound():
        raise TransportError("no server takes this client")
    return await real_enter(self)


async def connect_late(self: Bus) -> Bus:
    """After a while clients connect late."""
    if not is_sound():
        await asyncio.sleep(LATE_S)
    return await real_enter(self)


async def subscribe_late(self: Subscription) -> Subscription:
    """After a while clients subscribe late."""
    if not is_sound():
        await asyncio.sleep(LATE_S)
    return await real_subscribe(self)


async def publish_on_closed(self: ContentClient, *arguments: Any, **options: Any) -> Any:
    """After a while an open bus takes no event by content: it says that it is closed."""
    if not is_sound():
        raise LocalProtocolError("the bus was closed")
    return await real_publish(self, *arguments, **options)


async def plan_on_closed(_self: PlannedClient, _name: str) -> None:
    """Plans withdraw no subscription of another client: they say that the bus is closed."""
    raise LocalProtocolError("the bus was closed")


_REFUSE = ((Bus, "__aenter__", refuse_all),)
CONNECTIONS = (
    ("no client can connect any more", "total", _REFUSE, 2),
    ("no client can connect any more, causal", "causal", _REFUSE, 9),
    ("no client can connect any more, merged", "merged", _REFUSE, 1),
    ("content clients cannot connect again", "transactions", _REFUSE, 19),
    ("clients of cells cannot connect again", "total-content", _REFUSE, 5),
    ("clients of operators cannot connect again", "operations", _REFUSE, 2),
    ("clients connect late", "total", ((Bus, "__aenter__", connect_late),), 2),
    ("clients subscribe late", "total", ((Subscription, "__aenter__", subscribe_late),), 2),
    (
        "open buses say that they are closed",
        "transactions",
        ((ContentClient, "publish", publish_on_closed),),
        0,
    ),
    (
        "plans say that open buses are closed",
        "transactions",
        ((PlannedClient, "unsubscribe", plan_on_closed),),
        1,
    ),
)
"""Name, order, what is replaced by what, and a seed that finds it and finds nothing without it."""
