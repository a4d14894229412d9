"""A TCP proxy on loopback that injects network faults.

    async with Proxy(target_port) as proxy:
        ... connect to proxy.port instead ...
        proxy.delay_s = 0.05        # delay each chunk, in order
        proxy.hold(UP)              # stall one direction silently
        proxy.release(UP)           # forward the held bytes, and resume
        proxy.hold_one(random)      # stall one connection, so that others overtake it
        proxy.drop(DOWN)            # discard bytes silently
        proxy.stop_dropping()       # resume; reset connections that lost bytes, as TCP does
        proxy.forget()              # lose all that present connections carry, for good
        proxy.cut()                 # reset every connection
        proxy.refuse()              # reset new connections too, until accept()

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
"""Also the approximate limit of held bytes: beyond, the sender is blocked."""


class Proxy:
    """A proxy from `port` to a target, with faults."""

    def __init__(self, target_port: int, *, target_host: str = "127.0.0.1") -> None:
        self.target = (target_host, target_port)
        self.delay_s = 0.0
        self.accepted = 0
        """Connections so far."""
        self.carried = {UP: 0, DOWN: 0}
        """Bytes so far."""
        self.swallowed = 0
        """Bytes discarded."""
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
        """Number of open connections."""
        return len(self._pairs)

    def hold(self, *directions: str) -> None:
        """Stall directions silently; both unless given."""
        for direction in directions or (UP, DOWN):
            self._open[direction].clear()

    def release(self, *directions: str) -> None:
        """Resume directions, with the held bytes first."""
        for direction in directions or (UP, DOWN):
            self._open[direction].set()
        for pair in self._pairs.values():
            pair.open.set()

    def hold_one(self, random: Random) -> None:
        """Stall one of the connections until all are released."""
        if self._pairs:
            random.choice(list(self._pairs.values())).open.clear()

    def drop(self, *directions: str) -> None:
        """Discard bytes silently; in both directions unless given."""
        self._dropping.update(directions or (UP, DOWN))

    def stop_dropping(self) -> None:
        """Forward again; reset connections that lost bytes."""
        self._dropping.clear()
        for task, pair in list(self._pairs.items()):
            if pair.lossy:
                self._cut(task)

    def forget(self) -> None:
        """Discard what present connections carry, as a router that forgot them; serve new ones."""
        for pair in self._pairs.values():
            pair.lossy = True

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
        """Reset new connections at once."""
        self._refusing = True

    def accept(self) -> None:
        """Accept new connections again."""
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
        # A task started by asyncio streams must not end as cancelled: they would log it.
        with contextlib.suppress(OSError, asyncio.CancelledError):
            try:
                there, back = await asyncio.open_connection(*self.target)
                pair.writers.append(back)
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._pass_on(pair, reader, back, UP))
                    group.create_task(self._pass_on(pair, there, writer, DOWN))
            except* OSError:
                # Either end broke off: reset the other one.
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
                # Nothing may follow a gap: TCP never delivers that.
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
        """Whether bytes were discarded."""


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with a TCP reset, as after a crash."""
    if writer.transport.is_closing():
        return
    connection = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
