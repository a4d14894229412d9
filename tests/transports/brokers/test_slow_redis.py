"""The carrier on Redis streams, on a slow network: a stand-in for the server, simulated."""

import asyncio
from collections.abc import Awaitable, Callable

from ensue.testing import Process, Simulation, simulate
from ensue.testing.network import NetworkOptions
from ensue.transports.brokers.redis import RedisCarrier, RedisOptions

SLOW = NetworkOptions(bytes_per_s=20_000, queues=True)
SENT = [b"%4d" % number + bytes(1_000) for number in range(1_000)]
URL = "redis://server?streams=1"


class Redis:
    """As much of a Redis server as streams need."""

    def __init__(self) -> None:
        self.streams: dict[bytes, list[bytes]] = {}
        """Entries by key: the fields of each; its number is its place."""
        self._added = asyncio.Event()

    async def serve(self) -> None:
        await asyncio.start_server(self._accept, "server", 6379)
        await asyncio.get_running_loop().create_future()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                words = []
                for _ in range(int(line[1:])):
                    size = int((await reader.readline())[1:])
                    words.append((await reader.readexactly(size + 2))[:-2])
                writer.write(await self._answer(words))
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _answer(self, words: list[bytes]) -> bytes:
        match words:
            case [b"XADD", key, *_, name, data]:
                self.streams.setdefault(key, []).append(_array(_bulk(name), _bulk(data)))
                self._added.set()
                return _bulk(b"%d-0" % len(self.streams[key]))
            case [b"XREAD", b"COUNT", count, b"BLOCK", _, b"STREAMS", *asked]:
                return await self._read(int(count), asked)
            case [b"CLIENT", b"ID"]:
                return b":1\r\n"
            case [b"CONFIG", *_]:
                return b"*0\r\n"
            case [b"INFO", *_]:
                return _bulk(b"aof_enabled:0")
            case _:
                return b"+OK\r\n"

    async def _read(self, count: int, asked: list[bytes]) -> bytes:
        half = len(asked) // 2
        self._added.clear()
        for _ in range(2):
            found = []
            for key, after in zip(asked[:half], asked[half:], strict=True):
                begin = int(after.partition(b"-")[0]) if after != b"$" else 1 << 30
                fields = self.streams.get(key, [])[begin : begin + count]
                entries = [
                    _array(_bulk(b"%d-0" % number), each)
                    for number, each in enumerate(fields, begin + 1)
                ]
                if entries:
                    found.append(_array(_bulk(key), _array(*entries)))
            if found:
                return _array(*found)
            try:
                async with asyncio.timeout(1.0):
                    await self._added.wait()
            except TimeoutError:
                break
        return b"*-1\r\n"


def _bulk(data: bytes) -> bytes:
    return b"$%d\r\n%s\r\n" % (len(data), data)


def _array(*items: bytes) -> bytes:
    return b"*%d\r\n" % len(items) + b"".join(items)


class Client:
    """A process with a carrier on the topic `news`."""

    def __init__(self, simulation: Simulation, name: str) -> None:
        self.got: list[bytes] = []
        self.reconnects = 0
        self.carrier: RedisCarrier
        self._ended = asyncio.Event()
        self.process: Process = simulation.start(name, self._run)

    async def _run(self) -> None:
        self.carrier = RedisCarrier(RedisOptions.parse(URL))
        self.carrier.on_reconnect = self._count
        await self.carrier.start()
        if self.process.name == "reader":
            await self.carrier.join("news", self.got.append)
        await self._ended.wait()
        await self.carrier.close()

    def end(self) -> Process:
        """Close the carrier; return the process, which ends then."""
        self.process.loop.call_soon(self._ended.set)
        return self.process

    def _count(self) -> None:
        self.reconnects += 1

    def send(self) -> None:
        def send() -> None:
            for each in SENT:
                self.carrier.multicast("news", each)

        self.process.loop.call_soon(send)


def play(program: Callable[[Simulation, Client, Client], Awaitable[None]]) -> None:
    async def main(simulation: Simulation) -> None:
        simulation.start("server", Redis().serve)
        await asyncio.sleep(1)
        reader, writer = Client(simulation, "reader"), Client(simulation, "writer")
        await asyncio.sleep(2)
        await program(simulation, reader, writer)
        await writer.end()
        await reader.end()

    simulate(main, seed=1, network=SLOW)


def test_messages_for_a_minute_are_written_once_in_one_session() -> None:
    async def program(_simulation: Simulation, reader: Client, writer: Client) -> None:
        writer.send()
        await asyncio.sleep(120)
        assert reader.got == SENT
        assert writer.reconnects == 0
        assert reader.reconnects == 0

    play(program)


def test_reader_that_was_away_gets_messages_for_a_minute_in_one_session() -> None:
    async def program(simulation: Simulation, reader: Client, writer: Client) -> None:
        network = simulation.world.network
        network.cut(["reader"], ["server"])
        network.reset("reader")
        writer.send()
        await asyncio.sleep(120)
        assert reader.got == []
        network.heal()
        await asyncio.sleep(120)
        assert reader.got == SENT
        assert reader.reconnects == 1

    play(program)
