"""Faults strike processes between `strike` and `heal`, and are healed then."""

import asyncio
from contextlib import suppress

import pytest

import ensue
from ensue.testing import Faults, Simulation, simulate
from ensue.testing.cluster import PORT
from ensue.testing.errors import SimulationFailed
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


def test_client_without_power_leaves_its_connection_open_and_starts_again() -> None:
    async def call(url: str) -> None:
        async with ensue.connect(url):
            await rest()

    async def main(simulation: Simulation) -> tuple[int, int, int]:
        servers = await simulation.serve("server")
        client = simulation.start("client", call, servers.url("server"))
        await asyncio.sleep(1)
        server = servers.processes["server"]
        simulation.strike()
        while client.alive:  # noqa: ASYNC110 - set by another event loop
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.5)
        left = simulation.world.network.connections(server.host)
        await simulation.heal()
        return left, client.lives, server.lives

    left, *lives = simulate(main, faults=Faults(client_power_cuts=60)).result
    assert (left, lives) == (1, [2, 1])


def test_connections_in_a_blackhole_are_silent_after_healing_too() -> None:
    async def call(got: list[bytes]) -> None:
        reader, writer = await asyncio.open_connection("server", PORT)
        writer.write(b"hello")
        while data := await reader.read(100):
            got.append(data)

    async def tick(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await asyncio.sleep(1)
            writer.write(b"tick")

    async def serve() -> None:
        await asyncio.start_server(tick, "0.0.0.0", PORT)
        await rest()

    async def main(simulation: Simulation) -> tuple[int, int]:
        got: list[bytes] = []
        simulation.start("server", serve)
        await asyncio.sleep(1)
        simulation.start("client", call, got)
        await asyncio.sleep(5)
        before = len(got)
        simulation.strike()
        await asyncio.sleep(30)
        await simulation.heal()
        struck = len(got)
        await asyncio.sleep(30)
        return before, len(got) - struck

    before, later = simulate(main, faults=Faults(blackholes=30)).result
    assert before >= 3
    assert later == 0


def test_client_is_cancelled_where_it_stands_and_starts_again() -> None:
    seen: list[str] = []

    async def work() -> None:
        seen.append("starts")
        try:
            await rest()
        finally:
            await asyncio.sleep(0.1)
            seen.append("ends")

    async def main(simulation: Simulation) -> None:
        client = simulation.start("client", work)
        await asyncio.sleep(1)
        simulation.strike()
        while client.lives < 3:  # noqa: ASYNC110 - set by another event loop
            await asyncio.sleep(0.1)
        await simulation.heal()
        assert client.alive

    simulate(main, faults=Faults(client_stops=20))
    assert seen[:5] == ["starts", "ends", "starts", "ends", "starts"]


def test_client_that_goes_on_when_it_is_cancelled_fails_the_run() -> None:
    async def work() -> None:
        while True:
            with suppress(asyncio.CancelledError):
                await rest()

    async def main(simulation: Simulation) -> None:
        simulation.start("client", work)
        simulation.strike()
        await asyncio.sleep(60)
        await simulation.heal()

    with pytest.raises(SimulationFailed, match="client was cancelled and did not end in 100 s"):
        simulate(main, faults=Faults(client_stops=20))
