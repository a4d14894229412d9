"""Requests that are retransmitted until they are answered, and inboxes for answers.

Carriers lose messages, so a request is retransmitted. The receiver of the answer resolves a future.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from ensue.core import platform
from ensue.protocols.interface import Frame
from ensue.protocols.total.station import EPHEMERAL
from ensue.transports.base import Receiver
from ensue.transports.framed import FramedPort, FramedTransport

__all__ = ["inbox", "request"]


async def request(
    port: FramedPort,
    questions: Callable[[], Iterable[tuple[str, Frame]]],
    answer: "asyncio.Future[Any]",
    *,
    every_s: float,
    within_s: float,
) -> bool:
    """Send questions to peers until `answer` is done; return False on a timeout."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + within_s
    while not answer.done():
        for peer, question in questions():
            port.send(peer, question)
        port.flush()
        await asyncio.wait((answer,), timeout=min(every_s, within_s))
        if loop.time() >= deadline_s:
            break
    return answer.done()


@asynccontextmanager
async def inbox(
    transport: FramedTransport, stem: str, receive: Receiver
) -> AsyncIterator[FramedPort]:
    """Open a port under a unique name, while the block runs."""
    name = f"{stem}{EPHEMERAL}{platform.current().token_hex(6)}"
    await transport.enter(name)
    port = transport.open(name, receive)
    try:
        yield port
    finally:
        port.close()
        await transport.exit(name)
