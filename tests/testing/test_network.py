"""The simulated network: streams arrive whole and in sequence, or fail as TCP does."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from ensue.core import platform
from ensue.testing import NetworkOptions, Process, Simulation, simulate

PORT = 80


async def echo(seen: list[str]) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1000):
                writer.write(data)
                await writer.drain()
            seen.append("end")
        except ConnectionResetError:
            seen.append("reset")
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "0.0.0.0", PORT)
    async with server:
        await asyncio.sleep(10_000)


async def exchange(data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("server", PORT)
    writer.write(data)
    found = b""
    while len(found) < len(data):
        found += await reader.read(4096)
    writer.close()
    await writer.wait_closed()
    return found


def play(
    program: Callable[[Simulation, Process, list[str]], Awaitable[None]],
    *,
    seed: int = 1,
    network: NetworkOptions | None = None,
) -> list[str]:
    seen: list[str] = []

    async def main(simulation: Simulation) -> None:
        server = simulation.start("server", echo, seen)
        await asyncio.sleep(0.1)
        await program(simulation, server, seen)

    simulate(main, seed=seed, network=network or NetworkOptions(), until_s=100_000)
    return seen


@pytest.mark.parametrize("seed", range(5))
def test_stream_arrives_whole_and_in_sequence(seed: int) -> None:
    data = bytes(range(256)) * 2000

    async def program(simulation: Simulation, _server: Process, _seen: list[str]) -> None:
        clients = [simulation.start(f"c{number}", exchange, data) for number in range(3)]
        assert [await client for client in clients] == [data] * 3
        await asyncio.sleep(1)

    options = NetworkOptions(cuts=0.9, slow=0.2)
    assert play(program, seed=seed, network=options) == ["end"] * 3


def test_no_listener_refuses_and_no_power_times_out() -> None:
    async def program(simulation: Simulation, server: Process, _seen: list[str]) -> None:
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("server", 81)
        server.kill(power=True)
        before_s = simulation.now_s
        with pytest.raises(TimeoutError):
            await asyncio.open_connection("server", PORT)
        assert simulation.now_s - before_s > 30

    play(program)


def test_partition_delays_bytes_and_loses_none() -> None:
    async def program(simulation: Simulation, _server: Process, _seen: list[str]) -> None:
        reader, writer = await asyncio.open_connection("server", PORT)
        simulation.world.network.cut(["main"], ["server"], one_way=True)
        writer.write(b"held back")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(100):
                await reader.read(100)
        simulation.world.network.heal()
        async with asyncio.timeout(1):
            assert await reader.readexactly(9) == b"held back"
        writer.close()

    play(program)


def test_killed_process_closes_its_connections_and_a_power_cut_does_not() -> None:
    async def program(simulation: Simulation, server: Process, _seen: list[str]) -> None:
        reader, writer = await asyncio.open_connection("server", PORT)
        server.kill()
        async with asyncio.timeout(1):
            assert await reader.read(10) == b""
        writer.close()
        server.restart()
        await asyncio.sleep(0.1)
        reader, writer = await asyncio.open_connection("server", PORT)
        server.kill(power=True)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1000):
                await reader.read(10)
        writer.write(b"to a machine that was rebooted")
        await asyncio.sleep(1)
        server.restart()
        with pytest.raises(ConnectionResetError):
            await reader.read(10)

    play(program)


def test_reset_fails_both_sides() -> None:
    async def program(simulation: Simulation, _server: Process, seen: list[str]) -> None:
        reader, _writer = await asyncio.open_connection("server", PORT)
        assert simulation.world.network.reset("main") == 1
        with pytest.raises(ConnectionResetError):
            await reader.read(10)
        await asyncio.sleep(1)
        assert seen == ["reset"]

    play(program)


def test_blackhole_loses_what_present_connections_carry_and_new_ones_work() -> None:
    async def program(simulation: Simulation, server: Process, _seen: list[str]) -> None:
        reader, writer = await asyncio.open_connection("server", PORT)
        assert simulation.world.network.blackhole("main") == 1
        writer.write(b"into a hole")
        server.kill()  # Neither the end of the stream nor a reset arrives.
        await asyncio.sleep(1)
        server.restart()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1000):
                await reader.read(10)
        writer.close()
        reader, writer = await asyncio.open_connection("server", PORT)
        simulation.world.network.reset("server")
        with pytest.raises(ConnectionResetError):
            await reader.read(10)

    play(program)


def test_writer_waits_while_the_other_process_is_stopped() -> None:
    async def program(simulation: Simulation, server: Process, _seen: list[str]) -> None:
        _reader, writer = await asyncio.open_connection("server", PORT)
        server.pause()

        async def fill() -> None:
            while True:
                writer.write(bytes(100_000))
                await writer.drain()

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(fill(), 60)
        assert writer.transport.get_write_buffer_size() < 1_000_000
        server.resume()
        async with asyncio.timeout(60):
            await writer.drain()
        writer.close()

    play(program)


def test_callbacks_of_the_network_run_on_the_machine_of_their_process() -> None:
    async def main(simulation: Simulation) -> list[str]:
        machines: list[str] = []

        class Noting(asyncio.Protocol):
            def data_received(self, data: bytes) -> None:
                machines.append(getattr(platform.current(), "name", "the real one"))

            def connection_lost(self, exc: Exception | None) -> None:
                self.data_received(b"")

        async def serve() -> None:
            await asyncio.get_running_loop().create_server(Noting, "0.0.0.0", PORT)
            await asyncio.sleep(10)

        async def call() -> None:
            _, writer = await asyncio.open_connection("server", PORT)
            writer.write(b"hello")
            await asyncio.sleep(1)
            writer.close()

        simulation.start("server", serve)
        await asyncio.sleep(1)
        await simulation.start("client", call)
        await asyncio.sleep(1)
        return machines

    assert simulate(main).result == ["server"] * 2


@pytest.mark.parametrize(("queues", "at_least_s"), [(False, 0.0), (True, 5.0)])
def test_segments_wait_for_each_other_on_a_link_of_low_bandwidth(
    queues: bool, at_least_s: float
) -> None:
    async def main(simulation: Simulation) -> float:
        simulation.start("server", echo, [])
        await asyncio.sleep(1)
        begun_s = simulation.world.now_s
        await simulation.start("client", exchange, bytes(100_000))
        return simulation.world.now_s - begun_s

    network = NetworkOptions(bytes_per_s=20_000, queues=queues)
    took_s = simulate(main, seed=0, network=network).result
    # As long as 100,000 bytes take, which are echoed meanwhile; or as long as one segment.
    assert at_least_s <= took_s < at_least_s + 5.0
