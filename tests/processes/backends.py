"""Servers and brokers of a run, and the proxies through which clients reach them.

`backend_for` starts what the URL of a run names on this machine:

    ensue://                    one Ensue server
    ensue://?servers=3          a chain of three, with topics placed on all of them
    nats://                     one station on a broker that is started for it
    redis://?servers=2&streams=1  two stations; other options are the transport's own
"""

import asyncio
import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec
from tests.brokers.proxy import Proxy
from tests.brokers.servers import BROKERS, RabbitMQ, Server, spare_port
from tests.processes.runs import Process, worker

__all__ = ["Backend", "backend_for"]

START_S = 60.0
BROKER_START_S = 180.0
"""RabbitMQ takes ten seconds on an idle machine."""
TOPICS: tuple[str, ...] = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta")


class Backend(Protocol):
    """Servers, proxies before them, and topics on all of them."""

    topics: tuple[str, ...]
    past: tuple[str, ...]
    """Topics that a subscription can read together from the beginning."""

    @property
    def servers(self) -> Sequence[Process]:
        """Processes that can be killed and restarted."""

    @property
    def proxies(self) -> Mapping[str, Proxy]:
        """Proxies for clients, by client or server."""

    def url(self, client: str) -> str:
        """Return the URL of a client, through a proxy."""

    async def start(self, clients: Sequence[str]) -> None:
        """Start all processes; `clients` are all names that `url` is called with."""

    async def stop(self) -> list[str]:
        """Stop all processes; return what went wrong."""

    async def close(self) -> None:
        """Close proxies and files, also after a failure."""


class EnsueServers:
    """Ensue servers.

    One server has a proxy for each client, so that one client's connection can be bad alone. In a
    chain the servers announce the addresses of the others, so each server has one proxy for all,
    including its neighbors.
    """

    def __init__(self, directory: Path, *, count: int, sync_s: float) -> None:
        self.topics = TOPICS
        self._placed = _placed("server", count)
        names = list(self._placed)
        self.past = self._placed[names[0]]
        self._ports = {name: spare_port() for name in names}
        self._directory = directory
        self._sync_s = sync_s
        self._addresses: dict[str, str] = {}
        self.proxies: dict[str, Proxy] = {}
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
        for server in self.servers:
            await _until_answers(server, self._ports[server.name], within_s=START_S)

    async def stop(self) -> list[str]:
        wrong: list[str] = []
        for server in self.servers:
            if server.running:
                code = await asyncio.to_thread(server.end)
                if code:
                    wrong.append(f"{server.name} ended with {code}:\n{server.tail()}")
        return wrong

    async def close(self) -> None:
        await self._stack.aclose()

    async def _proxy(self, name: str, port: int) -> None:
        self.proxies[name] = await self._stack.enter_async_context(Proxy(port))

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


class Stations:
    """Stations on a broker, which can be killed, too.

    Everybody, stations included, reaches the broker through a proxy of its own.
    """

    def __init__(
        self, kind: type[Server], directory: Path, *, options: str, count: int, sync_s: float
    ) -> None:
        self.topics = TOPICS
        self._placed = _placed("station", count)
        self.past = next(iter(self._placed.values()))
        self._directory = directory
        self._options = options
        self._sync_s = sync_s
        home = directory / "broker"
        home.mkdir()
        self._server = kind(home)
        self._server.prepare()
        # One object for all its incarnations, because its data directory stays.
        self._broker = Process(
            "broker",
            "broker",
            lambda _start: self._server.command(),
            directory,
            environment=self._server.environment,
            # Wrapper scripts of a server end with various exit codes.
            ends_with=None,
        )
        self._stations = [self._station(name) for name in self._placed]
        self.servers = [self._broker, *self._stations]
        self.proxies: dict[str, Proxy] = {}
        self._stack = contextlib.AsyncExitStack()

    def url(self, client: str) -> str:
        return self._server.url(self._options, port=self.proxies[client].port)

    async def start(self, clients: Sequence[str]) -> None:
        for client in (*self._placed, *clients):
            proxy = Proxy(self._server.port)
            self.proxies[client] = await self._stack.enter_async_context(proxy)
        self._broker.start()
        await _until_answers(self._broker, self._server.port, within_s=BROKER_START_S)
        for station in self._stations:
            station.start()

    async def stop(self) -> list[str]:
        wrong: list[str] = []
        for station in self._stations:
            code = await asyncio.to_thread(station.end)
            if code:
                wrong.append(f"{station.name} ended with {code}:\n{station.tail()}")
        return wrong

    async def close(self) -> None:
        await self._stack.aclose()
        if isinstance(self._server, RabbitMQ):
            self._server.end_mapper()

    def _station(self, name: str) -> Process:
        def command(_start: int) -> list[str]:
            # No client uses the address, but each member of a chain needs one.
            chain = [(each, "127.0.0.1:1", topics) for each, topics in self._placed.items()]
            return worker(
                "station",
                data=self._directory / f"{name}.data",
                url=self.url(name),
                name=name,
                sync=self._sync_s,
                chain=msgspec.json.encode(chain if len(chain) > 1 else []).decode(),
            )

        return Process(name, "server", command, self._directory)


def _placed(kind: str, count: int) -> dict[str, tuple[str, ...]]:
    """Return the topics of each of `count` servers."""
    return {f"{kind}-{number + 1}": TOPICS[number::count] for number in range(count)}


async def _until_answers(process: Process, port: int, *, within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while not await _answers(port):
        if time.monotonic() > deadline or not process.running:
            raise AssertionError(f"{process.name} did not start:\n{process.tail()}")
        await asyncio.sleep(0.05)


async def _answers(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


def backend_for(url: str, directory: Path, *, sync_s: float) -> Backend:
    """Return the backend of a run's URL."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    count = int(options.pop("servers", "1"))
    kinds = {kind.scheme: kind for kind in BROKERS}
    if not parts.netloc and parts.scheme == "ensue" and not options:
        return EnsueServers(directory, count=count, sync_s=sync_s)
    if not parts.netloc and parts.scheme in kinds:
        kind = kinds[parts.scheme]
        return Stations(kind, directory, options=urlencode(options), count=count, sync_s=sync_s)
    known = ", ".join(f"{scheme}://" for scheme in kinds)
    raise ValueError(f"{url}: expected ensue://, or {known}; servers=3 is for a chain of three")
