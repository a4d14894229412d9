"""Faults of a run: which ones there are, when they strike, and how they heal."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from math import inf
from random import Random

import msgspec

from ensue.core.errors import BadInput
from ensue.testing.broker import Broker
from ensue.testing.cluster import Cluster
from ensue.testing.process import Process
from ensue.testing.world import MAIN, World

__all__ = ["Faults", "Striker", "draw_faults"]

SECOND_NS = 1_000_000_000
MILLISECOND_NS = 1_000_000
LONG_S = (20.0, 70.0)
"""Outages longer than clients wait for a silent server, and than servers for a silent client."""
STOP_S = 100.0
"""How long a client that was cancelled may take to end: longer than all outages."""


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """How often each fault strikes, in times per virtual minute. Zero: never."""

    server_kills: float = 0.0
    server_stops: float = 0.0
    """By SIGTERM: servers sync and close their journals."""
    power_cuts: float = 0.0
    """Of servers, with what their disks had not synced; only if they sync before each receipt."""
    server_pauses: float = 0.0
    client_kills: float = 0.0
    client_pauses: float = 0.0
    resets: float = 0.0
    """Of all connections of a host."""
    partitions: float = 0.0
    one_way_partitions: float = 0.0
    clock_steps: float = 0.0
    clock_step_ms: float = 500.0
    slow_disks: float = 0.0
    broker_kills: float = 0.0
    """Of simulated brokers, with what they do not store."""
    broker_pauses: float = 0.0
    slow_brokers: float = 0.0
    clock_drifts: float = 0.0
    clock_drift_ppm: float = 2_000.0
    client_suspends: float = 0.0
    """Of machines, as closing a laptop does."""
    server_suspends: float = 0.0
    client_power_cuts: float = 0.0
    """Servers find half-open connections."""
    client_stops: float = 0.0
    """Cancels the main task of a client wherever it stands, as at SIGTERM."""
    blackholes: float = 0.0
    """Of all connections of a host: a router forgets them, and both sides stay half-open."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 <= value < inf:
                raise BadInput(f"{name} must be a number of times per minute, got {value!r}")

    @property
    def rates(self) -> dict[str, float]:
        """The faults that strike, by name."""
        named = {name: getattr(self, name) for name in self.__struct_fields__}
        return {name: rate for name, rate in named.items() if rate > 0 and name not in _SIZES}


_SIZES = ("clock_step_ms", "clock_drift_ppm")
"""Fields that say how large a fault is."""


def draw_faults(random: Random, *, allowed: Sequence[str] | None = None) -> Faults:
    """Draw which faults strike: none at all, one kind, or several."""
    names = list(Faults(**dict.fromkeys(_NAMES, 1.0)).rates) if allowed is None else list(allowed)
    count = random.choice((0, 1, 1, 2, 3, len(names)))
    chosen = random.sample(names, min(count, len(names)))
    return Faults(**{name: random.choice((2.0, 6.0, 15.0)) for name in chosen})


_NAMES = (
    "server_kills",
    "server_stops",
    "power_cuts",
    "server_pauses",
    "client_kills",
    "client_pauses",
    "resets",
    "partitions",
    "one_way_partitions",
    "clock_steps",
    "slow_disks",
)


class Striker:
    """Lets faults strike until it is stopped, and heals them."""

    def __init__(
        self,
        world: World,
        clusters: Sequence[Cluster],
        faults: Faults,
        *,
        brokers: Sequence[Broker] = (),
    ) -> None:
        self._world, self._clusters, self._brokers = world, clusters, brokers
        self._faults, self._random = faults, world.generator("faults")
        self.log: list[str] = []
        """What struck, and when."""
        self.hung: list[str] = []
        """Clients that were cancelled and did not end, or left a task, in words."""
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping: dict[Process, int] = {}
        """Clients that were cancelled and are not started again yet, and their lives then."""

    def start(self) -> None:
        """Let faults strike from now on."""
        loop = asyncio.get_running_loop()
        for name, rate in self._faults.rates.items():
            self._tasks.append(loop.create_task(self._strike_on(name, 60.0 / rate)))

    async def stop(self) -> None:
        """Heal everything, and let no more faults strike."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._world.network.heal()
        for process in self._world.processes.values():
            process.machine.correct_clock()
            if process.stopped:
                process.resume()
        for cluster in self._clusters:
            cluster.down.clear()
        for client in list(self._stopping):
            await self._wait_for(client)
            self._start_again(client)

    async def _strike_on(self, name: str, mean_s: float) -> None:
        while True:
            await asyncio.sleep(self._random.expovariate(1.0 / mean_s))
            await getattr(self, f"_{name}")()

    def _note(self, what: str) -> None:
        self.log.append(f"{self._world.now_s:.3f} s: {what}")

    def _servers(self) -> dict[str, Cluster]:
        return {name: cluster for cluster in self._clusters for name in cluster.processes}

    def _pick(self, *, servers: bool) -> Process | None:
        known = self._servers()
        brokers = {broker.name for broker in self._brokers}
        alive = [
            process
            for name, process in self._world.processes.items()
            if process.alive and name not in (MAIN, *brokers) and (name in known) == servers
        ]
        return self._random.choice(alive) if alive else None

    def _server(self) -> Process | None:
        return self._pick(servers=True)

    def _client(self) -> Process | None:
        return self._pick(servers=False)

    async def _server_kills(self) -> None:
        if (server := self._server()) is not None:
            self._note(f"kill {server.name}")
            server.kill()

    async def _server_stops(self) -> None:
        if (server := self._server()) is not None:
            self._note(f"stop {server.name}")
            server.terminate()

    async def _power_cuts(self) -> None:
        server = self._server()
        cluster = None if server is None else self._servers()[server.name]
        if server is None or cluster is None or not cluster.loses_power_safely:
            return
        down_s = self._random.uniform(0.1, 3.0)
        self._note(f"power cut {server.name} for {down_s:.1f} s")
        cluster.down[server.name] = None
        server.kill(power=True)
        await asyncio.sleep(down_s)
        cluster.down.pop(server.name, None)

    async def _client_kills(self) -> None:
        if (client := self._client()) is not None:
            await self._kill(client)

    async def _broker_kills(self) -> None:
        if (broker := self._broker()) is not None:
            await self._kill(broker.process)

    async def _client_stops(self) -> None:
        if (client := self._client()) is None:
            return
        self._note(f"stop {client.name}")
        client.terminate()
        self._stopping[client] = client.lives
        await self._wait_for(client)
        await asyncio.sleep(self._random.uniform(2.0, 5.0))
        if self._stopping[client] == client.lives and not client.alive and not client.killed:
            self.hung += [f"leak: {client.name} was cancelled, and {it}" for it in client.waits()]
        self._start_again(client)

    async def _wait_for(self, client: Process) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                await client.ended()

    def _start_again(self, client: Process) -> None:
        """Start a client that was cancelled, unless another fault killed it meanwhile."""
        if self._stopping.pop(client) != client.lives or client.killed:
            return
        if client.alive:
            waits = "; ".join(client.waits())
            self.hung.append(
                f"liveness: {client.name} was cancelled and did not end in {STOP_S:g} s: {waits}"
            )
            return
        self._world.crashed(client.machine)
        self._world.bury(client)
        client.restart()

    async def _client_power_cuts(self) -> None:
        if (client := self._client()) is not None:
            down_s = self._random.choice((1.0, *LONG_S))
            await self._kill(client, down_s, power=True)

    async def _kill(
        self, process: Process, down_s: float | None = None, *, power: bool = False
    ) -> None:
        down_s = self._random.uniform(0.05, 4.0) if down_s is None else down_s
        self._note(f"{'power cut' if power else 'kill'} {process.name} for {down_s:.1f} s")
        process.kill(power=power)
        try:
            await asyncio.sleep(down_s)
        finally:
            process.restart()

    def _broker(self) -> Broker | None:
        alive = [broker for broker in self._brokers if broker.process.alive]
        return self._random.choice(alive) if alive else None

    async def _server_pauses(self) -> None:
        await self._pause(self._server())

    async def _client_pauses(self) -> None:
        await self._pause(self._client())

    async def _broker_pauses(self) -> None:
        broker = self._broker()
        await self._pause(None if broker is None else broker.process)

    async def _slow_brokers(self) -> None:
        if (broker := self._broker()) is None:
            return
        slow_s = self._random.uniform(0.5, 5.0)
        self._note(f"slow {broker.name} for {slow_s:.1f} s")
        broker.slow_s = (0.0, 0.5)
        try:
            await asyncio.sleep(slow_s)
        finally:
            broker.slow_s = (0.0, 0.0)

    async def _pause(self, process: Process | None) -> None:
        if process is None or process.stopped:
            return
        paused_s = self._random.choice((0.1, 1.0, 4.0, 15.0))
        self._note(f"pause {process.name} for {paused_s:g} s")
        process.pause()
        try:
            await asyncio.sleep(paused_s)
        finally:
            process.resume()

    async def _resets(self) -> None:
        process = self._random.choice(list(self._world.processes.values()))
        self._note(f"reset {process.name}")
        self._world.network.reset(process.host)

    async def _blackholes(self) -> None:
        process = self._random.choice(list(self._world.processes.values()))
        self._note(f"blackhole connections of {process.name}")
        self._world.network.blackhole(process.host)

    async def _partitions(self) -> None:
        await self._cut(one_way=False)

    async def _one_way_partitions(self) -> None:
        await self._cut(one_way=True)

    async def _cut(self, *, one_way: bool) -> None:
        hosts = [each for each in self._world.processes if each != MAIN]
        self._random.shuffle(hosts)
        size = self._random.randint(1, max(1, len(hosts) - 1))
        cut_s = self._random.choice((0.2, 2.0, 8.0))
        some, others = ", ".join(hosts[:size]), ", ".join(hosts[size:])
        between = f"from {some} to {others}" if one_way else f"{some} off {others}"
        self._note(f"cut {between} for at most {cut_s:g} s")
        self._world.network.cut(hosts[:size], hosts[size:], one_way=one_way)
        await asyncio.sleep(cut_s)
        self._world.network.heal()

    async def _clock_steps(self) -> None:
        process = self._random.choice(list(self._world.processes.values()))
        by_ms = self._random.uniform(-1.0, 1.0) * self._faults.clock_step_ms
        self._note(f"step the clock of {process.name} by {by_ms:.0f} ms")
        process.machine.step_clock(int(by_ms * MILLISECOND_NS))

    async def _clock_drifts(self) -> None:
        process = self._random.choice(list(self._world.processes.values()))
        ppm = self._random.uniform(-1.0, 1.0) * self._faults.clock_drift_ppm
        self._note(f"the clock of {process.name} drifts by {ppm:.0f} ppm")
        process.machine.drift(ppm)

    async def _client_suspends(self) -> None:
        await self._suspend(self._client())

    async def _server_suspends(self) -> None:
        await self._suspend(self._server())

    async def _suspend(self, process: Process | None) -> None:
        if process is None or process.stopped:
            return
        suspended_s = self._random.choice((0.5, 4.0, *LONG_S))
        self._note(f"suspend {process.name} for {suspended_s:g} s")
        process.suspend()
        try:
            await asyncio.sleep(suspended_s)
        finally:
            process.resume()

    async def _slow_disks(self) -> None:
        slow_s = self._random.uniform(0.5, 5.0)
        self._note(f"slow disks for {slow_s:.1f} s")
        before, self._world.disk_sync_ms = self._world.disk_sync_ms, (50.0, 800.0)
        try:
            await asyncio.sleep(slow_s)
        finally:
            self._world.disk_sync_ms = before
