"""Ensue servers in a simulated world: one, or a chain, started again when they end."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ensue.core.errors import BadInput, LogDamaged, LogLost
from ensue.core.trace import Row
from ensue.protocols.recorder import Recorder
from ensue.server import Server, ServerConfig
from ensue.server.brokered import BrokeredServer
from ensue.server.station_server import StationServer
from ensue.testing.errors import SimulationFailed
from ensue.testing.process import Process
from ensue.testing.world import RUN, World
from ensue.transports.tcp.messages import Member

__all__ = ["DATA", "PORT", "Cluster"]

DATA = Path("/data")
PORT = 7400
READY_S = 0.05
BACK_S = (0.05, 3.0)
"""Bounds of the time that an operator or a supervisor takes to start a server again."""


class Cluster:
    """All servers of one bus.

    `options` are fields of `ServerConfig`. The topics of a chain are placed in turn. With `broker`,
    the URL of one, they are stations on it.
    """

    def __init__(
        self,
        world: World,
        *,
        names: Sequence[str],
        topics: Sequence[str] = (),
        records_brokers: bool = False,
        broker: str = "",
        reconfigure: Callable[[ServerConfig, int], ServerConfig] | None = None,
        **options: Any,
    ) -> None:
        self.reconfigure = reconfigure
        """Returns the configuration of a server in a life: an operator changes it."""
        self.records_brokers = records_brokers
        """Whether content brokers write the trace too, as the checker of transactions needs it."""
        self.broker = broker
        self.world, self.random = world, world.generator(f"cluster {names[0]}")
        self.names = tuple(names)
        self.processes: dict[str, Process] = {}
        self.servers: dict[str, StationServer] = {}
        """By name: the server of its last life."""
        self._serving: dict[str, None] = {}
        """Servers that have listened at least once."""
        self.down: dict[str, None] = {}
        """Servers that a fault keeps down."""
        self.damaged: dict[str, str] = {}
        """Servers that refuse to start, and why."""
        placed: dict[str, list[str]] = {name: [] for name in self.names}
        for number, topic in enumerate(topics):
            placed[self.names[number % len(names)]].append(topic)
        members = tuple(Member(name, f"{name}:{PORT}", tuple(placed[name])) for name in names)
        self.configs = {
            name: ServerConfig(
                data=str(DATA),
                listen=f"0.0.0.0:{PORT}",
                insecure=True,
                name=name,
                chain=members if len(names) > 1 else (),
                **options,
            )
            for name in names
        }

    def url(self, name: str, *, token: str = "") -> str:
        """Return the URL of a server, or of its broker."""
        if name not in self.names:
            raise BadInput(f"no server is called {name!r}; there are {', '.join(self.names)}")
        if self.broker:
            return self.broker
        login = f"?token={token}" if token else ""
        return f"ensue://{name}:{PORT}{login}"

    def placed(self, name: str) -> tuple[str, ...] | None:
        """Return the topics that are placed on a server; None: all topics are."""
        chain = self.configs[name].chain
        return next((each.topics for each in chain if each.name == name), None)

    async def start(self) -> None:
        """Start all servers, and a supervisor that starts those again that end."""
        for name in self.names:
            self.processes[name] = self.world.start(name, self.serve, self.configs[name])
        self._supervisor = asyncio.get_running_loop().create_task(self._supervise())
        while len(self._serving) < len(self.names):
            broken = [each.error() for each in self.processes.values() if each.error()]
            if broken:
                raise SimulationFailed(f"a server did not start: {broken[0]}")
            await asyncio.sleep(READY_S)

    def close(self) -> None:
        """Stop supervising."""
        self._supervisor.cancel()

    @property
    def loses_power_safely(self) -> bool:
        """Whether a power cut loses no event with a receipt: servers sync before each one."""
        return all(config.sync_s == 0 for config in self.configs.values())

    async def _supervise(self) -> None:
        while True:
            await asyncio.sleep(self.random.uniform(*BACK_S))
            for name, process in self.processes.items():
                if process.alive or name in self.down or name in self.damaged:
                    continue
                error = None
                if process.task.done() and not process.task.cancelled():
                    error = process.task.exception()
                if isinstance(error, LogDamaged | LogLost):
                    self.damaged[name] = str(error)
                    continue
                process.restart()

    async def serve(self, config: ServerConfig) -> None:
        """Run one server until it is stopped: the program of its process."""
        recorder = None
        if self.records_brokers:
            recorder = Recorder(RUN, "none", sink=_BrokerSink(self.world))
        if self.reconfigure is not None:
            config = self.reconfigure(config, self.processes[config.name].lives)
        server: StationServer
        if self.broker:
            server = BrokeredServer(config, self.broker)
        else:
            server = Server(config, recorder=recorder)
        self.servers[config.name] = server
        await server.start()
        self._serving[config.name] = None
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
