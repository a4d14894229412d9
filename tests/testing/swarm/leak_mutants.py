"""Planted bugs that leave something behind: what clients held, in memory and at servers.

`mutants` merges them with all others, and runs them.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

from tests.testing.swarm.planted import Mutant, nothing, wait_for_nothing

from ensue.client.bus import Bus
from ensue.protocols.content.leases import Leases as ContentLeases
from ensue.protocols.topic_log.fanout import Fanout
from ensue.protocols.total.publisher_sessions import PublisherSessions
from ensue.protocols.total.station import Station
from ensue.transports.tcp.carrier import TcpCarrier

__all__ = ["LEAKS"]


async def close_with_a_timer(self: Bus, timeout_s: float | None = None) -> Any:
    """A closed bus leaves a timer."""
    asyncio.get_running_loop().call_later(1e6, nothing)
    return await real_bus_leave(self, timeout_s)


async def close_in_the_background(self: Bus, timeout_s: float | None = None) -> Any:
    """A closed bus leaves a task that never ends."""
    self._forgotten = asyncio.create_task(asyncio.sleep(1e6))  # type: ignore[attr-defined]
    return await real_bus_leave(self, timeout_s)


def keep_listening(self: Station, now_ns: int, expire_ns: int) -> None:
    """Subscribers that vanished are never removed."""
    del self, now_ns, expire_ns


def renew_expired_leases(self: ContentLeases, now_ns: int) -> Iterator[str]:
    """Brokers keep clients whose leases have expired."""
    for client in real_expired(self, now_ns):
        self.renew(client, now_ns)
    return iter(())


real_bus_leave, real_expired = Bus._leave, ContentLeases.expired

LEAKS = (
    Mutant("closed buses stay connected", "total", ((TcpCarrier, "close", wait_for_nothing),)),
    Mutant("closed buses keep timers", "total", ((Bus, "_leave", close_with_a_timer),)),
    Mutant("closed buses keep tasks", "total", ((Bus, "_leave", close_in_the_background),)),
    Mutant("vanished subscribers stay", "total", ((Station, "_sweep", keep_listening),)),
    Mutant(
        "gone parties stay",
        "merged",
        ((Fanout, "handle_timer", nothing), (Fanout, "next_timer_ns", nothing)),
    ),
    Mutant("gone listeners stay", "merged", ((Fanout, "forget", nothing),)),
    Mutant("gone publishers stay", "total", ((PublisherSessions, "forget", lambda *_: False),)),
    Mutant(
        "gone content sessions stay",
        "transactions",
        ((ContentLeases, "expired", renew_expired_leases),),
    ),
)
