"""A station for tests, in a thread with its own event loop; restarts keep its data."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from ensue.core.errors import LogDamaged
from ensue.journal import Journal
from ensue.protocols.membership.registry import Registry
from ensue.runtime.driver import Driver
from ensue.server.brokered import BrokeredServer
from ensue.server.config import ServerConfig
from ensue.server.server import Server


class Startable(Protocol):
    _registries: list[Driver[Registry]]
    journal: Journal | None

    @property
    def url(self) -> str: ...

    async def start(self) -> None: ...

    async def wait(self) -> None: ...

    async def stop(self) -> None: ...


class StationThread:
    """A thread that runs a server; `make` creates it at each start."""

    def __init__(self, make: Callable[[], Startable]) -> None:
        self._make = make
        self.data = Path()
        """The data directory of the next start, if `make` uses it."""
        self._server: Startable | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.url = ""

    def start(self) -> None:
        assert self._server is None

        async def begin() -> Startable:
            server = self._make()
            await server.start()
            return server

        self._server = asyncio.run_coroutine_threadsafe(begin(), self._loop).result(60)
        self.url = self._server.url

    def enrolled(self) -> set[str]:
        """Return the current members of a registry."""
        assert self._server is not None
        return {name for each in self._server._registries for name in each.node.present}

    def find_damage(self, error: LogDamaged) -> None:
        """Report a damaged log to the server, which ends it."""
        server = self._server
        assert server is not None

        async def find() -> None:
            assert server.journal is not None
            assert server.journal.on_damage is not None
            server.journal.on_damage(error)
            with contextlib.suppress(LogDamaged):
                await server.wait()

        asyncio.run_coroutine_threadsafe(find(), self._loop).result(60)
        self.stop()

    def stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            asyncio.run_coroutine_threadsafe(server.stop(), self._loop).result(60)

    def restart(self) -> None:
        self.stop()
        self.start()

    def end(self) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()


def tcp_station(data: Path, port: int) -> StationThread:
    """Return a server on a local port."""
    listen = f"127.0.0.1:{port}"
    station = StationThread(
        lambda: Server(ServerConfig(data=str(station.data), listen=listen, sync_s=1.0))
    )
    station.data = data
    return station


def broker_station(data: Path, url: str) -> StationThread:
    """Return a station on a broker."""
    station = StationThread(
        lambda: BrokeredServer(ServerConfig(data=str(station.data), sync_s=1.0), url)
    )
    station.data = data
    return station


@contextlib.contextmanager
def running(stations: Sequence[StationThread]) -> Iterator[None]:
    """Start the stations of a chain, which wait for each other, and end them."""
    try:
        with ThreadPoolExecutor() as pool:
            list(pool.map(StationThread.start, stations))
        yield
    finally:
        for station in stations:
            station.end()
