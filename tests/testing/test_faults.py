"""Faults strike processes between `strike` and `heal`, and are healed then."""

import asyncio

import pytest

from ensue.testing import Faults, Simulation, simulate
from ensue.testing.process import Process

MILLISECOND_NS = 1_000_000


async def rest() -> None:
    await asyncio.sleep(10_000)


def error_ms(process: Process) -> float:
    """Return how far the wall clock of a process is from that of the main one, in milliseconds."""
    true_ns = process.world.host("main").wall_ns()
    return abs(process.machine.wall_ns() - true_ns) / MILLISECOND_NS


def test_clocks_drift_apart_and_are_right_after_healing() -> None:
    async def main(simulation: Simulation) -> tuple[float, float]:
        client = simulation.start("client", rest)
        simulation.strike()
        await asyncio.sleep(100)
        struck_ms = error_ms(client)
        await simulation.heal()
        await asyncio.sleep(100)
        return struck_ms, error_ms(client)

    faults = Faults(clock_drifts=10, clock_drift_ppm=500)
    struck_ms, healed_ms = simulate(main, faults=faults).result
    assert 1 < struck_ms <= 100  # Both clocks may drift.
    assert healed_ms == 0


@pytest.mark.parametrize("kind", ["client_suspends", "server_suspends"])
def test_suspended_machine_is_unreachable_until_it_is_resumed(kind: str) -> None:
    async def main(simulation: Simulation) -> tuple[float, int, bool]:
        servers = await simulation.serve("server")
        client = simulation.start("client", rest)
        struck = client if kind == "client_suspends" else servers.processes["server"]
        other = client if struck is not client else servers.processes["server"]
        simulation.strike()
        while not struck.stopped:  # noqa: ASYNC110 - set by another event loop
            await asyncio.sleep(0.1)
        assert not other.stopped
        assert simulation.world.network.is_dark(struck.host)
        before_s = struck.machine.monotonic_s()
        await asyncio.sleep(0.3)
        await simulation.heal()
        passed_s = struck.machine.monotonic_s() - before_s
        suspended = struck.stopped or simulation.world.network.is_dark(struck.host)
        return passed_s, struck.lives, suspended

    passed_s, lives, suspended = simulate(main, faults=Faults(**{kind: 60})).result
    assert passed_s < 0.2
    assert (lives, suspended) == (1, False)
