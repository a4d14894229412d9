"""What answers at an address where a connection fails: tells a wrong port from a server that is away.

A server that is away may come back, and whoever connects waits for it. Something that speaks another protocol will
not, so connecting fails at once, with a word on what is there. Asked is only where a first connection fails, or gets no
answer for `SILENT_S`, on a connection of its own.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from ensue.errors import HandshakeFailed, TransportError
from ensue.transports.tcp_messages import CONTROL, PREFIX_BYTES

__all__ = ["ENSUE", "TLS", "connect_or_identify", "identify", "is_final"]

SILENT_S = 1.0
"""A connection that is not made after so long may be to something else."""
BANNER_S = 0.2
"""So long something is given to speak first, …"""
ANSWER_S = 1.0
"""… and so long to answer."""
PROBE = b"PING / HTTP/1.0\r\n\r\n"
"""Redis and HTTP servers say in their own words what is wrong with it; so do others, or hang up."""

ENSUE = "an Ensue server"
HTTP = "an HTTP server"
TLS = "something that speaks TLS"
_ANSWERS = {
    b"HTTP/": HTTP,
    b"+PONG": "a Redis server",
    b"-NOAUTH": "a Redis server",
    b"-ERR": "a Redis server",
    b"-DENIED": "a Redis server",
    b"INFO ": "a NATS server",
    b"AMQP": "an AMQP broker",
    b"SSH-": "an SSH server",
    b"\x15\x03": TLS,
}
_PASSING = (
    ssl.SSLEOFError,
    ssl.SSLZeroReturnError,
    ssl.SSLSyscallError,
    ssl.SSLWantReadError,
    ssl.SSLWantWriteError,
)

T = TypeVar("T")


def is_final(error: BaseException | None) -> bool:
    """Tell whether TLS failed in a way that connecting again does not heal."""
    return isinstance(error, ssl.SSLError) and not isinstance(error, _PASSING)


async def identify(host: str, port: int) -> str:
    """Return what answers at an address; empty: nothing that is known."""
    said = b""
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(ANSWER_S):
            said = await _ask(host, port)
    for beginning, name in _ANSWERS.items():
        if said.startswith(beginning):
            return name
    if len(said) > PREFIX_BYTES and said[0] == 0 and said[PREFIX_BYTES] == CONTROL:
        return ENSUE
    return TLS if not said and await _shakes_hands(host, port) else ""


async def _ask(host: str, port: int) -> bytes:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BANNER_S):
                if banner := await reader.read(64):
                    return banner
        writer.write(PROBE)
        return await reader.read(64)
    finally:
        writer.transport.abort()


async def _shakes_hands(host: str, port: int) -> bool:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # Nothing is said to it: whoever it is.
    try:
        async with asyncio.timeout(ANSWER_S):
            _, writer = await asyncio.open_connection(host, port, ssl=context)
    except ssl.SSLError as error:
        return "ALERT" in (error.reason or "")
    except (OSError, TimeoutError):
        return False
    writer.transport.abort()
    return True


async def connect_or_identify(
    connect: Callable[[], Coroutine[Any, Any, T]],
    host: str,
    port: int,
    *,
    where: str,
    wanted: str,
    tls: bool,
) -> T:
    """Connect for the first time; raise `HandshakeFailed` as soon as it is known that something else answers."""
    connecting = asyncio.ensure_future(connect())
    try:
        done, _ = await asyncio.wait((connecting,), timeout=SILENT_S)
        failure = connecting.exception() if done and not connecting.cancelled() else None
        if done and not isinstance(failure, TransportError):
            return connecting.result()
        refused = failure is not None and isinstance(failure.__cause__, ConnectionRefusedError)
        if refused or isinstance(failure, HandshakeFailed) or (failure is not None and tls):
            return connecting.result()  # Nobody is there, or it is known what is wrong.
        found = await identify(host, port)
        expected = (wanted, TLS) if tls else (wanted,)
        if not found or found in expected or (connecting.done() and not connecting.exception()):
            return await connecting
        raise HandshakeFailed(
            f"{where}: {found} answers there, not {wanted}{_fix(found, wanted)}"
        ) from failure
    finally:
        if not connecting.done():
            connecting.cancel()
        await asyncio.wait((connecting,))
        if not connecting.cancelled():
            connecting.exception()


def _fix(found: str, wanted: str) -> str:
    if found == TLS:
        return ": add tls=1 to the URL"
    if (found, wanted) == (HTTP, ENSUE):
        return ": is it the admin port of one?"
    return ": check the port"
