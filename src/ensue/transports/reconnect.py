"""Reconnection with exponential backoff.

Pauses are random, so that a thousand clients do not connect at once when a server is back, and
grow up to `BACKOFF_S_MAX`. A connection that is lost within `STABLE_S` counts as flapping.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ensue.core import platform

__all__ = ["BACKOFF_S_MAX", "BACKOFF_S_MIN", "STABLE_S", "keep_connected", "pause"]

BACKOFF_S_MIN = 0.05
BACKOFF_S_MAX = 2.0
STABLE_S = 5.0

C = TypeVar("C")


async def pause(attempt: int) -> None:
    """Wait before another attempt; each failed attempt doubles the pause."""
    pause_s = min(BACKOFF_S_MIN * 2 ** min(attempt, 10), BACKOFF_S_MAX)
    await asyncio.sleep(platform.current().uniform(pause_s / 2, pause_s))


async def keep_connected(
    connection: C | None,
    *,
    use: Callable[[C], Awaitable[None]],
    connect: Callable[[], Awaitable[C]],
    failed: Callable[[Exception], None],
    resumed: Callable[[C], None],
    eager: bool,
) -> None:
    """Use a connection, and reconnect when it is lost, until `failed` raises.

    `use` returns when the connection is lost. `connect` is one attempt to reconnect; `failed` is
    called with its exception, `resumed` with the new connection. If `eager`, the first attempt
    follows at once, unless connections flap; else it waits, too.
    """
    loop = asyncio.get_running_loop()
    flaps = 0
    while True:
        if connection is not None:
            begun_s = loop.time()
            await use(connection)
            flaps = flaps + 1 if loop.time() - begun_s < STABLE_S else 0
            if eager and flaps > 1:
                await pause(flaps)
        connection = await _connect(connect, failed, eager=eager)
        resumed(connection)


async def _connect(
    connect: Callable[[], Awaitable[C]], failed: Callable[[Exception], None], *, eager: bool
) -> C:
    attempt = 0
    if not eager:
        await pause(attempt)
        attempt += 1
    while True:
        try:
            return await connect()
        except Exception as error:  # noqa: BLE001 - `failed` raises to end the attempts
            failed(error)
        await pause(attempt)
        attempt += 1
