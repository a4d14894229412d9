"""Real servers for tests, on spare ports of this machine."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import ensue
from ensue.server import Server, ServerConfig
from ensue.server.permissions import Access, User, new_token

DEADLINE_S = 60.0
"""Timeout of a test's waits; the machine may be busy."""

T = TypeVar("T")


async def within(awaitable: Awaitable[T], seconds: float = DEADLINE_S) -> T:
    """Await something with a timeout."""
    return await asyncio.wait_for(awaitable, seconds)


async def until(condition: Callable[[], object], what: str = "") -> None:
    """Wait for a condition, with a timeout."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"never came true: {what or condition}"
        await asyncio.sleep(0.005)


@asynccontextmanager
async def serving(data: Path, **options: Any) -> AsyncIterator[Server]:
    """Run a server in this context."""
    options.setdefault("listen", "127.0.0.1:0")
    server = Server(ServerConfig(data=str(data), **options))
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def read(subscription: "ensue.Subscription", count: int) -> list[bytes]:
    """Return the next payloads of a subscription."""
    payloads: list[bytes] = []
    while len(payloads) < count:
        event = await within(anext(subscription))
        payloads.append(event.payload)
    return payloads


class People:
    """Users with tokens: `People(alice=(["orders"], ["*"]))` has publish and subscribe patterns."""

    def __init__(self, **rights: tuple[list[str], list[str]]) -> None:
        self.tokens: dict[str, str] = {}
        users: dict[str, User] = {}
        for name, (publish, subscribe) in rights.items():
            self.tokens[name], stored = new_token()
            users[name] = User(token=stored, publish=tuple(publish), subscribe=tuple(subscribe))
        self.access = Access(users=users)

    def url(self, server: Server, name: str) -> str:
        """Return the URL of a user, with its token."""
        return f"{server.url}?token={self.tokens[name]}"
