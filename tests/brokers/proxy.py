"""A TCP proxy on loopback that does to a connection what networks do.

    async with Proxy(target_port) as proxy:
        ... connect to proxy.port instead ...
        proxy.delay_s = 0.05        # each piece takes so long, order kept
        proxy.hold(UP)              # nothing goes up any more, and nobody is told
        proxy.release(UP)           # what was held goes on
        proxy.hold_one(random)      # one connection stands still, and the others overtake it
        proxy.drop(DOWN)            # what comes is swallowed: sent, and never received
        proxy.stop_dropping()       # whoever lost something is reset, as TCP has it
        proxy.cut()                 # every connection is reset
        proxy.refuse()              # new ones are reset too, until accept()

UP is from the client to the target, DOWN is back.
"""

import asyncio
import contextlib
import socket
import struct
from random import Random
from types import TracebackType
from typing import Self

__all__ = ["DOWN", "UP", "Proxy"]

UP = "up"
DOWN = "down"
PIECE_BYTES_MAX = 64 * 1024
"""Also about all that a held direction keeps: beyond that the sender is made to wait."""


class Proxy:
    """Forwards what comes to `port` to a target, as well or as badly as it is told."""

    def __init__(self, target_port: int, *, target_host: str = "127.0.0.1") -> None:
        self.target = (target_host, target_port)
        self.delay_s = 0.0
        self.accepted = 0
        """Connections so far."""
        self.carried = {UP: 0, DOWN: 0}
        """Bytes so far."""
        self.swallowed = 0
        """Bytes that came and went nowhere."""
        self._open = {UP: asyncio.Event(), DOWN: asyncio.Event()}
        for gate in self._open.values():
            gate.set()
        self._refusing = False
        self._dropping: set[str] = set()
        self._pairs: dict[asyncio.Task[None], _Pair] = {}
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def connections(self) -> int:
        """Connections at this moment."""
        return len(self._pairs)

    def hold(self, *directions: str) -> None:
        """Let nothing pass; nobody is told. Both directions unless given."""
        for direction in directions or (UP, DOWN):
            self._open[direction].clear()

    def release(self, *directions: str) -> None:
        """Let pass again, beginning with what was held."""
        for direction in directions or (UP, DOWN):
            self._open[direction].set()
        for pair in self._pairs.values():
            pair.open.set()

    def hold_one(self, random: Random) -> None:
        """Let nothing pass on one of the connections, until all are released."""
        if self._pairs:
            random.choice(list(self._pairs.values())).open.clear()

    def drop(self, *directions: str) -> None:
        """Swallow what comes; nobody is told. Both directions unless given."""
        self._dropping.update(directions or (UP, DOWN))

    def stop_dropping(self) -> None:
        """Pass everything on again, but for connections that lost something: they are reset."""
        self._dropping.clear()
        for task, pair in list(self._pairs.items()):
            if pair.lossy:
                self._cut(task)

    def cut(self) -> None:
        """Reset every connection."""
        for task in list(self._pairs):
            self._cut(task)

    def cut_one(self, random: Random) -> None:
        """Reset one of the connections."""
        if self._pairs:
            self._cut(random.choice(list(self._pairs)))

    def _cut(self, task: asyncio.Task[None]) -> None:
        for writer in self._pairs[task].writers:
            _reset(writer)
        task.cancel()

    def refuse(self) -> None:
        """Reset new connections as soon as they come."""
        self._refusing = True

    def accept(self) -> None:
        """Take new connections again."""
        self._refusing = False

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        tasks = list(self._pairs)
        if tasks:
            await asyncio.wait(tasks)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        if self._refusing:
            _reset(writer)
            return
        task = asyncio.current_task()
        assert task is not None
        pair = self._pairs[task] = _Pair(writer)
        # A task that asyncio's streams started must not end as cancelled: they would log it.
        with contextlib.suppress(OSError, asyncio.CancelledError):
            try:
                there, back = await asyncio.open_connection(*self.target)
                pair.writers.append(back)
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._pass_on(pair, reader, back, UP))
                    group.create_task(self._pass_on(pair, there, writer, DOWN))
            except* OSError:
                # Whoever broke off: the other end is to see it.
                pass
            finally:
                del self._pairs[task]
                for each in pair.writers:
                    _reset(each)

    async def _pass_on(
        self,
        pair: "_Pair",
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        direction: str,
    ) -> None:
        gate = self._open[direction]
        while piece := await reader.read(PIECE_BYTES_MAX):
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            await gate.wait()
            await pair.open.wait()
            if direction in self._dropping or pair.lossy:
                # Behind a gap nothing may come: no network does that to a connection.
                pair.lossy = True
                self.swallowed += len(piece)
                continue
            writer.write(piece)
            self.carried[direction] += len(piece)
            await writer.drain()
        await gate.wait()
        if writer.can_write_eof():
            writer.write_eof()


class _Pair:
    """The two ends of one connection."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writers = [writer]
        self.open = asyncio.Event()
        self.open.set()
        self.lossy = False
        """Whether something was swallowed."""


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close so that the other end sees a reset, as after a crash, and not an orderly end."""
    if writer.transport.is_closing():
        return
    connection = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
