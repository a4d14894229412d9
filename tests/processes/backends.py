"""What stands behind a URL, and how clients reach it through proxies.

`backend_for` takes the URL of a run and knows how to start what it names on this machine:

    ensue://            one server of Ensue's own
    ensue://?servers=3  a chain of three, with topics placed on all of them
"""

import asyncio
import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Protocol
from urllib.parse import parse_qsl, urlsplit

import msgspec
from tests.brokers.proxy import Proxy, _reset
from tests.brokers.servers import spare_port
from tests.processes.running import Process, worker

__all__ = ["Backend", "CuttingProxy", "backend_for"]

START_S = 60.0


class CuttingProxy(Proxy):
    """A proxy that can also cut one of its connections."""

    def cut_one(self, random: Random) -> None:
        pairs = list(self._pairs.items())
        if pairs:
            task, writers = random.choice(pairs)
            for writer in writers:
                _reset(writer)
            task.cancel()


class Backend(Protocol):
    """Servers, proxies before them, and topics on all of them."""

    topics: tuple[str, ...]
    past: tuple[str, ...]
    """Topics that a subscription can have from their beginning, together."""

    @property
    def servers(self) -> Sequence[Process]:
        """What can be killed and started again."""

    @property
    def proxies(self) -> Mapping[str, CuttingProxy]:
        """What clients connect through, by whose it is."""

    def url(self, client: str) -> str:
        """Where a client connects, through a proxy."""

    async def start(self, clients: Sequence[str]) -> None:
        """Start everything; `clients` are all that will ever ask for a URL."""

    async def stop(self) -> list[str]:
        """Ask everything to end; return what went wrong."""


class EnsueServers:
    """Servers of Ensue's own.

    One server has a proxy for each client, so that one client's connection can be bad alone. In a
    chain the servers tell clients where the others are, so each server has one for everybody,
    its neighbours included.
    """

    def __init__(self, directory: Path, *, count: int, sync_s: float) -> None:
        names = [f"server-{number}" for number in range(1, count + 1)]
        self.topics: tuple[str, ...] = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta")
        self._placed = {name: self.topics[index::count] for index, name in enumerate(names)}
        self.past = self._placed[names[0]]
        self._ports = {name: spare_port() for name in names}
        self._directory = directory
        self._sync_s = sync_s
        self._addresses: dict[str, str] = {}
        self.proxies: dict[str, CuttingProxy] = {}
        """By client or, in a chain, by server."""
        self._stack = contextlib.AsyncExitStack()
        self.servers = [self._server(name) for name in names]

    def url(self, client: str) -> str:
        if len(self.servers) == 1:
            return f"ensue://127.0.0.1:{self.proxies[client].port}"
        names = list(self._ports)
        at = sum(client.encode()) % len(names)
        return f"ensue://127.0.0.1:{self.proxies[names[at]].port}"

    async def start(self, clients: Sequence[str]) -> None:
        if len(self.servers) == 1:
            (port,) = self._ports.values()
            for client in clients:
                await self._proxy(client, port)
        else:
            for name, port in self._ports.items():
                await self._proxy(name, port)
        for server in self.servers:
            server.start()
        deadline = time.monotonic() + START_S
        for name, port in self._ports.items():
            while not await _answers(port):
                server = next(each for each in self.servers if each.name == name)
                if time.monotonic() > deadline or not server.running:
                    raise AssertionError(f"{name} did not start:\n{server.tail()}")
                await asyncio.sleep(0.05)

    async def stop(self) -> list[str]:
        wrong: list[str] = []
        for server in self.servers:
            if server.running:
                code = await asyncio.to_thread(server.end)
                if code:
                    wrong.append(f"{server.name} ended with {code}:\n{server.tail()}")
        await self._stack.aclose()
        return wrong

    async def _proxy(self, name: str, port: int) -> None:
        self.proxies[name] = await self._stack.enter_async_context(CuttingProxy(port))

    def _server(self, name: str) -> Process:
        def command(_start: int) -> list[str]:
            return worker(
                "server",
                data=self._directory / f"{name}.data",
                listen=f"127.0.0.1:{self._ports[name]}",
                name=name,
                sync=self._sync_s,
                chain=msgspec.json.encode(list(self._chain())).decode(),
            )

        return Process(name, "server", command, self._directory)

    def _chain(self) -> Iterator[tuple[str, str, tuple[str, ...]]]:
        if len(self._ports) > 1:
            for name in self._ports:
                yield name, f"127.0.0.1:{self.proxies[name].port}", self._placed[name]


async def _answers(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


def backend_for(url: str, directory: Path, *, sync_s: float) -> Backend:
    """What a run's URL names."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    if parts.scheme != "ensue" or parts.netloc or set(options) - {"servers"}:
        raise ValueError(f"{url}: expected ensue:// or ensue://?servers=3")
    return EnsueServers(directory, count=int(options.get("servers", "1")), sync_s=sync_s)
