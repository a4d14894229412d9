import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from random import Random

import pytest
from tests.brokers.deadlines import until
from tests.brokers.proxy import DOWN, UP, Proxy


@asynccontextmanager
async def echo() -> AsyncIterator[int]:
    """Run an echo server; yield its port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while piece := await reader.read(65536):
                writer.write(piece)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


@asynccontextmanager
async def through() -> AsyncIterator[tuple[Proxy, asyncio.StreamReader, asyncio.StreamWriter]]:
    async with echo() as port, Proxy(port) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        try:
            yield proxy, reader, writer
        finally:
            writer.transport.abort()


def test_proxy_forwards_all_bytes_and_the_end() -> None:
    async def main() -> None:
        async with through() as (proxy, reader, writer):
            sent = bytes(range(256)) * 4096
            writer.write(sent)
            writer.write_eof()
            assert await reader.read(-1) == sent
            assert proxy.carried == {UP: len(sent), DOWN: len(sent)}

    asyncio.run(main())


def test_delay_applies_in_each_direction() -> None:
    async def main() -> None:
        async with through() as (proxy, reader, writer):
            proxy.delay_s = 0.05
            loop = asyncio.get_running_loop()
            before = loop.time()
            writer.write(b"slow")
            assert await reader.readexactly(4) == b"slow"
            assert loop.time() - before >= 0.1

    asyncio.run(main())


@pytest.mark.parametrize("direction", [UP, DOWN])
def test_a_held_direction_passes_nothing_until_it_is_released(direction: str) -> None:
    async def main() -> None:
        async with through() as (proxy, reader, writer):
            proxy.hold(direction)
            writer.write(b"held")
            if direction == DOWN:
                await until(lambda: proxy.carried[UP] == 4, "the other direction passes")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.read(4), timeout=0.1)
            assert proxy.carried[direction] == 0
            assert proxy.connections == 1
            proxy.release(direction)
            assert await reader.readexactly(4) == b"held"

    asyncio.run(main())


def test_cut_resets_all_connections_and_accepts_new_ones() -> None:
    async def main() -> None:
        async with through() as (proxy, reader, writer):
            writer.write(b"x")
            await reader.readexactly(1)
            proxy.cut()
            with pytest.raises(ConnectionResetError):
                await reader.readexactly(1)
            await until(lambda: proxy.connections == 0, "the connection is gone")
            other, back = await asyncio.open_connection("127.0.0.1", proxy.port)
            back.write(b"again")
            assert await other.readexactly(5) == b"again"
            back.transport.abort()

    asyncio.run(main())


def test_new_connections_are_refused_until_they_are_accepted_again() -> None:
    async def main() -> None:
        async with through() as (proxy, reader, writer):
            proxy.refuse()
            other, back = await asyncio.open_connection("127.0.0.1", proxy.port)
            with pytest.raises(ConnectionResetError):
                await other.readexactly(1)
            back.transport.abort()
            writer.write(b"old")
            assert await reader.readexactly(3) == b"old"
            proxy.accept()
            other, back = await asyncio.open_connection("127.0.0.1", proxy.port)
            back.write(b"new")
            assert await other.readexactly(3) == b"new"
            back.transport.abort()
            assert proxy.accepted == 3

    asyncio.run(main())


def test_missing_target_resets_the_connection() -> None:
    async def main() -> None:
        async with echo() as port:
            pass
        async with Proxy(port) as proxy:
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            with pytest.raises(ConnectionResetError):
                await reader.readexactly(1)
            writer.transport.abort()

    asyncio.run(main())


def test_held_connection_is_overtaken_by_the_others() -> None:
    async def main() -> None:
        async with through() as (proxy, reader, writer):
            writer.write(b"x")
            await reader.readexactly(1)
            proxy.hold_one(Random(0))
            writer.write(b"first")
            other, back = await asyncio.open_connection("127.0.0.1", proxy.port)
            back.write(b"second")
            assert await other.readexactly(6) == b"second"
            assert proxy.carried[UP] == 1 + 6
            proxy.release()
            assert await reader.readexactly(5) == b"first"
            back.transport.abort()

    asyncio.run(main())


@pytest.mark.parametrize("direction", [UP, DOWN])
def test_dropped_bytes_never_arrive_and_reset_the_connection(direction: str) -> None:
    async def main() -> None:
        async with through() as (proxy, reader, writer):
            proxy.drop(direction)
            writer.write(b"lost")
            if direction == DOWN:
                await until(lambda: proxy.carried[UP] == 4, "the other direction passes")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.read(4), timeout=0.1)
            proxy.stop_dropping()
            with pytest.raises(ConnectionResetError):
                await reader.readexactly(1)
            other, back = await asyncio.open_connection("127.0.0.1", proxy.port)
            back.write(b"again")
            assert await other.readexactly(5) == b"again"
            back.transport.abort()

    asyncio.run(main())
