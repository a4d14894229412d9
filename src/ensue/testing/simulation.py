"""`simulate`: run a program of several processes in a simulated world."""

import gc
import sys
import traceback
import warnings
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Any

import msgspec

from ensue.core.trace import Row, digest
from ensue.testing.broker import Broker
from ensue.testing.broker_carrier import simulated_schemes
from ensue.testing.cluster import Cluster
from ensue.testing.errors import SimulationFailed
from ensue.testing.faults import Faults, Striker
from ensue.testing.guard import guarded
from ensue.testing.loop import install_generator_hooks
from ensue.testing.network import NetworkOptions
from ensue.testing.process import Main, Process
from ensue.testing.world import World

__all__ = ["Simulated", "Simulation", "simulate"]

UNTIL_S = 600.0


class Simulated(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a simulated run."""

    seed: int
    result: Any
    """The return value of the program."""
    rows: list[Row]
    """The trace of all buses: what applications published and got."""
    seconds: float
    """Virtual time that passed."""
    iterations: int
    """Iterations of event loops that ran."""

    @property
    def digest(self) -> str:
        """A hash of the trace: the same seed gives the same one."""
        return digest(self.rows)


class Simulation:
    """The world of a simulated program, with servers and faults."""

    def __init__(self, world: World, faults: Faults) -> None:
        self.world = world
        self._clusters: list[Cluster] = []
        self._brokers: list[Broker] = []
        self._striker = Striker(world, self._clusters, faults, brokers=self._brokers)

    @property
    def random(self) -> Random:
        """Random choices of the program itself, from the seed."""
        return self.world.random

    @property
    def now_s(self) -> float:
        """Virtual time since the beginning, in seconds."""
        return self.world.now_s

    @property
    def rows(self) -> list[Row]:
        """The trace so far."""
        return self.world.rows

    def start(self, name: str, main: Main, *args: Any) -> Process:
        """Start a process on a host of its own, which runs `await main(*args)`."""
        return self.world.start(name, main, *args)

    async def serve(self, *names: str, topics: Sequence[str] = (), **options: Any) -> Cluster:
        """Start an Ensue server, or a chain of them, each a process on a host of that name.

        Return when they listen. A server that ends is started again after a while. `options` are
        those of `ensue.server.ServerConfig`, such as `sync_s`; `topics` places topics in a chain.
        With `broker`, the URL of one, they are stations on it.
        """
        cluster = Cluster(self.world, names=names or ("server",), topics=topics, **options)
        self._clusters.append(cluster)
        await cluster.start()
        return cluster

    async def broker(self, kind: str = "nats", *, name: str = "broker", **options: Any) -> Broker:
        """Start a simulated broker on a host of that name; return when it listens.

        `kind` is `nats`, `redis`, `mqtt` or `amqp`. Processes connect to its `url` as to the real
        one, with the same options, and `serve("station", broker=url)` starts a station on it. It
        loses what the real one loses. `options` are fields of
        `ensue.testing.broker_messages.BrokerKind`.
        """
        broker = Broker(self.world, kind, name=name, **options)
        self._brokers.append(broker)
        await broker.start()
        return broker

    def strike(self) -> None:
        """Inject faults from now on."""
        self._striker.start()

    async def heal(self) -> None:
        """Heal all faults, and inject no more; raise if a process that was cancelled goes on."""
        await self._striker.stop()
        if self._striker.hung:
            raise SimulationFailed("; ".join(self._striker.hung))


def simulate(
    main: Callable[[Simulation], Awaitable[Any]],
    *,
    seed: int = 0,
    faults: Faults = Faults(),  # noqa: B008 - a frozen value
    network: NetworkOptions = NetworkOptions(),  # noqa: B008 - a frozen value
    disk_sync_ms: tuple[float, float] = (0.1, 5.0),
    until_s: float = UNTIL_S,
) -> Simulated:
    """Run `await main(simulation)` in a simulated world; return the result.

    The program starts servers with `await simulation.serve()` and processes with
    `simulation.start(name, main)`. These are ordinary programs: `async with
    ensue.connect("ensue://server:7400") as bus`. `faults` strike between `simulation.strike()` and
    `await simulation.heal()`. The same seed gives the same run. Raises what `main` raises, and
    `SimulationFailed` if a process had an exception that no code handled, or if the run does not
    end within `until_s` virtual seconds.
    """
    world = World(seed, network=network, disk_sync_ms=disk_sync_ms)
    collecting = gc.isenabled()
    # A collection would run finalizers at a moment that depends on what ran before.
    gc.disable()
    # What is there before the run is not looked through at its end.
    frozen = gc.get_freeze_count() == 0
    if frozen:
        gc.freeze()
    hooks = install_generator_hooks()
    try:
        with guarded(), simulated_schemes():
            result = world.run(lambda: main(Simulation(world, faults)), until_s=until_s)
        world.raise_failures()
        return Simulated(
            seed=seed,
            result=result,
            rows=world.rows,
            seconds=world.now_s,
            iterations=world.iterations,
        )
    except BaseException as error:
        for process, ended in world.broken():
            if ended is not error:
                error.add_note(f"process {process.name} ended: {_last_lines(ended)}")
        error.add_note(f"replay it with seed={seed}")
        raise
    finally:
        _free_processes(world)
        if frozen:
            gc.unfreeze()
        sys.set_asyncgen_hooks(*hooks)
        if collecting:
            gc.enable()


def _last_lines(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)).strip()


def _free_processes(world: World) -> None:
    """Free the objects of processes; silence errors of their `finally` blocks."""
    before = sys.unraisablehook
    sys.unraisablehook = lambda _unraisable: None
    try:
        world.close()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            world.free()
            gc.collect()
    finally:
        sys.unraisablehook = before
