"""`simulate`: run a program of several processes in a simulated world."""

import gc
import sys
import traceback
import warnings
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from ensue.core.trace import Row, digest
from ensue.testing.errors import SimulationFailed
from ensue.testing.guard import guarded
from ensue.testing.loop import install_generator_hooks
from ensue.testing.network import NetworkOptions
from ensue.testing.world import World

__all__ = ["Simulated", "simulate"]

UNTIL_S = 600.0


class Simulated(msgspec.Struct, frozen=True, kw_only=True):
    """What a simulated run came to."""

    seed: int
    result: Any
    """What the program returned."""
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


def simulate(
    main: Callable[[World], Awaitable[Any]],
    *,
    seed: int = 0,
    network: NetworkOptions = NetworkOptions(),  # noqa: B008 - a frozen value
    disk_sync_ms: tuple[float, float] = (0.1, 5.0),
    until_s: float = UNTIL_S,
) -> Simulated:
    """Run `main(world)` in a simulated world; return what it came to.

    The program starts processes with `world.start` and servers with `world.serve`. They are
    ordinary programs: `async with ensue.connect("ensue://server:7400") as bus`. The same seed gives
    the same run. Raises what `main` raises, and `SimulationFailed` if a process had an exception
    that no code handled, or if the run does not end within `until_s` virtual seconds.
    """
    world = World(seed, network=network, disk_sync_ms=disk_sync_ms)
    collecting = gc.isenabled()
    # A collection would run finalizers at a moment that depends on what ran before.
    gc.disable()
    hooks = install_generator_hooks()
    try:
        with guarded():
            result = world.run(main, until_s=until_s)
        if world.failures:
            raise SimulationFailed("an exception was not handled: " + "\n".join(world.failures))
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
        _bury(world)
        sys.set_asyncgen_hooks(*hooks)
        if collecting:
            gc.enable()


def _last_lines(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)).strip()


def _bury(world: World) -> None:
    """Free what processes left, without a word of what their `finally` blocks attempt."""
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
