"""Accepted TCP connections whose TLS handshake is not complete.

Each costs a file and memory, so it counts as soon as it is accepted, together with the connections
that have not sent hello (`ensue.server.admission`). An evicted one is closed without a reason: none
can be sent before the handshake is complete.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable

from ensue.server.admission import Admission, source_of
from ensue.server.connection import LINGER_S, Connection

__all__ = ["TlsAcceptor"]

_log = logging.getLogger("ensue")


class TlsAcceptor:
    """TLS handshakes in progress; each becomes a `Connection`.

    `admission` counts pending handshakes, `connection` creates a connection, and `fault` is called
    with the address, the kind of fault and the reason of each failure.
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        *,
        handshake_s: float,
        admission: Admission,
        connection: Callable[[], Connection],
        fault: Callable[[str, str, str], None],
    ) -> None:
        self._context = context
        self._handshake_s = handshake_s
        self._admission = admission
        self._make_connection = connection
        self._fault = fault
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[asyncio.Task[None], None] = {}

    @property
    def waiting(self) -> int:
        """Number of incomplete handshakes."""
        return len(self._waiting)

    def close(self) -> None:
        """Cancel all handshakes."""
        for task in self._waiting:
            task.cancel()

    def accepted(self, handshake: "_Handshake", transport: asyncio.Transport) -> None:
        """Start the handshake of an accepted connection."""
        self._admission.add(handshake)
        # Data that arrives before the handshake starts would be lost.
        transport.pause_reading()
        task = self._loop.create_task(self._complete(handshake, transport))
        self._waiting[task] = None
        task.add_done_callback(self._waiting.pop)
        task.add_done_callback(lambda _task: self._admission.remove(handshake))

    def protocol(self) -> asyncio.Protocol:
        """Create the protocol of a newly accepted connection."""
        return _Handshake(self)

    async def _complete(self, handshake: "_Handshake", transport: asyncio.Transport) -> None:
        try:
            secured = await self._loop.start_tls(
                transport,
                handshake,
                self._context,
                server_side=True,
                ssl_handshake_timeout=self._handshake_s,
                ssl_shutdown_timeout=LINGER_S,
            )
        except (OSError, ssl.SSLError) as error:
            self._failed(transport, error)
            return
        if secured is None or handshake.lost:
            return
        assert isinstance(secured, asyncio.Transport)
        self._admission.remove(handshake)  # From here on, the connection counts instead.
        connection = self._make_connection()
        secured.set_protocol(connection)
        connection.connection_made(secured)
        if handshake.early:
            connection.data_received(b"".join(handshake.early))

    def _failed(self, transport: asyncio.Transport, error: OSError) -> None:
        """Count a failed handshake, unless the client disconnected by itself."""
        peer = transport.get_extra_info("peername")
        address = f"{peer[0]}:{peer[1]}" if peer else "?"
        if isinstance(error, ssl.SSLError):
            self._fault(address, "tls", f"no TLS: {error}")
        elif isinstance(error, ConnectionAbortedError):
            self._fault(address, "silent", f"no TLS handshake within {self._handshake_s:g} s")
        else:
            _log.debug("TLS handshake failed peer=%s: %s", address, error)


class _Handshake(asyncio.Protocol):
    """One incomplete handshake; keeps data that arrives with its last bytes."""

    def __init__(self, acceptor: TlsAcceptor) -> None:
        self.early: list[bytes] = []
        self.lost = False
        self.host = "?"
        self._transport: asyncio.Transport | None = None
        self._tls = acceptor

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the handshake."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.host = source_of(transport.get_extra_info("peername"))
        self._tls.accepted(self, transport)

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Keep data until the connection takes over."""
        self.early.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Record that the client disconnected."""
        del exc
        self.lost = True
