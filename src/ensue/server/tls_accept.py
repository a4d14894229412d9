"""The door of a server that speaks TLS: connections that were accepted and have yet to shake hands.

Each costs a file and memory as any connection does, and so is counted from the moment it is accepted, with those that have not said hello yet
(`ensue.server.admission`). One that has to go is hung up on at once: before TLS is agreed on nothing can be said.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable

from ensue.server.admission import Admission, source_of
from ensue.server.visitor import LINGER_S, Visitor

__all__ = ["Door"]

_log = logging.getLogger("ensue")


class Door:
    """Lets those in as visitors who have shaken hands.

    `admission` counts those who wait; `visitor` makes one; `fault` is told who failed, by which kind of fault, and why.
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        *,
        handshake_s: float,
        admission: Admission,
        visitor: Callable[[], Visitor],
        fault: Callable[[str, str, str], None],
    ) -> None:
        self._context = context
        self._handshake_s = handshake_s
        self._admission = admission
        self._visitor = visitor
        self._fault = fault
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[asyncio.Task[None], None] = {}

    @property
    def waiting(self) -> int:
        """How many have not shaken hands yet."""
        return len(self._waiting)

    def close(self) -> None:
        """Hang up on all of them."""
        for task in self._waiting:
            task.cancel()

    def accepted(self, doorstep: "_Doorstep", transport: asyncio.Transport) -> None:
        """Begin to shake hands."""
        self._admission.come(doorstep)
        # What comes before the handshake has begun would be lost.
        transport.pause_reading()
        task = self._loop.create_task(self._shake_hands(doorstep, transport))
        self._waiting[task] = None
        task.add_done_callback(self._waiting.pop)
        task.add_done_callback(lambda _task: self._admission.leave(doorstep))

    def protocol(self) -> asyncio.Protocol:
        """Make what takes a connection when it is accepted."""
        return _Doorstep(self)

    async def _shake_hands(self, doorstep: "_Doorstep", transport: asyncio.Transport) -> None:
        try:
            secured = await self._loop.start_tls(
                transport,
                doorstep,
                self._context,
                server_side=True,
                ssl_handshake_timeout=self._handshake_s,
                ssl_shutdown_timeout=LINGER_S,
            )
        except (OSError, ssl.SSLError) as error:
            self._failed(transport, error)
            return
        if secured is None or doorstep.lost:
            return
        assert isinstance(secured, asyncio.Transport)
        self._admission.leave(doorstep)  # The visitor takes its place.
        visitor = self._visitor()
        secured.set_protocol(visitor)
        visitor.connection_made(secured)
        if doorstep.early:
            visitor.data_received(b"".join(doorstep.early))

    def _failed(self, transport: asyncio.Transport, error: OSError) -> None:
        """Count who did not get through the handshake; whoever goes away by itself did nothing wrong."""
        peer = transport.get_extra_info("peername")
        address = f"{peer[0]}:{peer[1]}" if peer else "?"
        if isinstance(error, ssl.SSLError):
            self._fault(address, "tls", f"no TLS: {error}")
        elif isinstance(error, ConnectionAbortedError):
            self._fault(address, "silent", f"no TLS handshake within {self._handshake_s:g} s")
        else:
            _log.debug("%s did not get through the TLS handshake: %s", address, error)


class _Doorstep(asyncio.Protocol):
    """One connection that has not shaken hands; what comes right behind the handshake is kept."""

    def __init__(self, door: Door) -> None:
        self.early: list[bytes] = []
        self.lost = False
        self.host = "?"
        self._transport: asyncio.Transport | None = None
        self._door = door

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to shake hands."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.host = source_of(transport.get_extra_info("peername"))
        self._door.accepted(self, transport)

    def abort(self) -> None:
        """Hang up at once."""
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Keep what came with the end of the handshake, for a turn of the event loop."""
        self.early.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that there is nobody to let in."""
        del exc
        self.lost = True
