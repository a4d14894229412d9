"""Servers of a chain in a simulated world, started again when they end."""

import asyncio
from pathlib import Path
from random import Random

import msgspec

from ensue.core.errors import LogDamaged
from ensue.core.trace import Row
from ensue.protocols.recorder import Recorder
from ensue.server import Server, ServerConfig
from ensue.server.config import Access
from ensue.testing.process import Process
from ensue.testing.world import RUN, World
from ensue.transports.tcp.messages import Member

__all__ = ["DATA", "PORT", "Cluster"]

DATA = Path("/data")
PORT = 7400
BACK_S = (0.05, 3.0)
"""Bounds of the time that an operator or a supervisor takes to start a server again."""


class Cluster:
    """All servers of one bus."""

    def __init__(
        self,
        world: World,
        random: Random,
        *,
        count: int,
        sync_s: float = 0.0,
        access: Access | None = None,
        topics: tuple[str, ...] = (),
        records_brokers: bool = False,
    ) -> None:
        self.records_brokers = records_brokers
        """Whether content brokers write the trace too, as the checker of transactions needs it."""
        self.world, self.random = world, random
        self.sync_s = sync_s
        self.names = tuple(f"server-{number}" for number in range(1, count + 1))
        self.processes: dict[str, Process] = {}
        self.down: dict[str, None] = {}
        """Servers that a fault keeps down."""
        self.damaged: dict[str, str] = {}
        """Servers that refuse to start, and why."""
        placed: dict[str, list[str]] = {name: [] for name in self.names}
        for number, topic in enumerate(topics):
            placed[self.names[number % count]].append(topic)
        members = tuple(Member(name, f"{name}:{PORT}", tuple(placed[name])) for name in self.names)
        self.configs = {
            name: ServerConfig(
                data=str(DATA),
                listen=f"0.0.0.0:{PORT}",
                insecure=True,
                name=name,
                chain=members if count > 1 else (),
                sync_s=sync_s,
                access=Access() if access is None else access,
            )
            for name in self.names
        }

    def url(self, name: str, *, token: str = "") -> str:
        """Return the URL of a server."""
        login = f"?token={token}" if token else ""
        return f"ensue://{name}:{PORT}{login}"

    def start(self) -> None:
        """Start all servers, and a supervisor that starts those again that end."""
        for name in self.names:
            self._start(name)
        self._supervisor = asyncio.get_running_loop().create_task(self._supervise())

    def close(self) -> None:
        """Stop supervising."""
        self._supervisor.cancel()

    def _start(self, name: str, **changes: object) -> None:
        config = msgspec.structs.replace(self.configs[name], **changes)
        self.processes[name] = self.world.start(name, self._serve, config)

    async def _supervise(self) -> None:
        while True:
            await asyncio.sleep(self.random.uniform(*BACK_S))
            for name, process in self.processes.items():
                if process.alive or name in self.down or name in self.damaged:
                    continue
                error = None
                if process.task.done() and not process.task.cancelled():
                    error = process.task.exception()
                if isinstance(error, LogDamaged):
                    self.damaged[name] = str(error)
                    continue
                process.restart()

    async def _serve(self, config: ServerConfig) -> None:
        recorder = None
        if self.records_brokers:
            recorder = Recorder(RUN, "none", sink=_BrokerSink(self.world))
        server = Server(config, recorder=recorder)
        await server.start()
        try:
            await server.wait()
        finally:
            await server.stop()


class _BrokerSink:
    """Takes the rows of brokers, which go on after a crash."""

    def __init__(self, world: World) -> None:
        self._world = world

    def append(self, row: Row, /) -> None:
        self._world.record(None, row)
