"""The probe that distinguishes a wrong port from a server that is away.

Clients wait for a server that is away. Waiting for something that speaks another protocol is
useless: connecting fails at once, and the error names what answers. The probe runs only if the
first connection fails or gets no answer for `SILENT_S`, and uses its own connections.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from ensue.core.errors import HandshakeFailed, TransportError
from ensue.transports.tcp.messages import CONTROL, PREFIX_BYTES

__all__ = ["ENSUE", "TLS", "connect_or_identify", "identify", "is_final"]

SILENT_S = 1.0
"""Probe if connecting takes longer than this."""
BANNER_S = 0.2
"""How long to wait for a banner, …"""
ANSWER_S = 1.0
"""… and for an answer."""
PROBE = b"PING / HTTP/1.0\r\n\r\n"
"""Redis and HTTP servers answer with an error; others close the connection."""
MQTT_PROBE = b"\x10\x0d\x00\x04MQTT\x05\x02\x00\x05\x00\x00\x00"
"""MQTT 5 CONNECT: clean start and no client id, so no session is taken over."""
CONNACK = 0x20
"""First byte of a broker's answer, whether it accepts the client or not."""
CONNACK_BYTES_MIN = 4

ENSUE = "an Ensue server"
MQTT = "an MQTT broker"
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
_TRANSIENT = (
    ssl.SSLEOFError,
    ssl.SSLZeroReturnError,
    ssl.SSLSyscallError,
    ssl.SSLWantReadError,
    ssl.SSLWantWriteError,
)

T = TypeVar("T")


def is_final(error: BaseException | None) -> bool:
    """Return whether an error is a TLS failure that a retry does not fix."""
    return isinstance(error, ssl.SSLError) and not isinstance(error, _TRANSIENT)


async def identify(host: str, port: int) -> str:
    """Return the kind of server at an address; empty if unknown."""
    answer = await _answer(host, port, PROBE)
    for beginning, name in _ANSWERS.items():
        if answer.startswith(beginning):
            return name
    if len(answer) > PREFIX_BYTES and answer[0] == 0 and answer[PREFIX_BYTES] == CONTROL:
        return ENSUE
    if answer:
        return ""
    connack, has_tls = await asyncio.gather(
        _answer(host, port, MQTT_PROBE), _completes_handshake(host, port)
    )
    if len(connack) >= CONNACK_BYTES_MIN and connack[0] == CONNACK:
        return MQTT
    return TLS if has_tls else ""


async def _answer(host: str, port: int, probe: bytes) -> bytes:
    """Return a server's banner, or its answer to a probe; empty after a timeout."""
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(ANSWER_S):
            return await _ask(host, port, probe)
    return b""


async def _ask(host: str, port: int, probe: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BANNER_S):
                if banner := await reader.read(64):
                    return banner
        writer.write(probe)
        return await reader.read(64)
    finally:
        writer.transport.abort()


async def _completes_handshake(host: str, port: int) -> bool:
    # Without the system's certificates, which take tens of milliseconds to load: it verifies none.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # No secret is sent on it.
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
    """Connect for the first time; raise `HandshakeFailed` if something else answers."""
    connecting = asyncio.ensure_future(connect())
    try:
        done, _ = await asyncio.wait((connecting,), timeout=SILENT_S)
        failure = connecting.exception() if done and not connecting.cancelled() else None
        if done and not isinstance(failure, TransportError):
            return connecting.result()
        refused = failure is not None and isinstance(failure.__cause__, ConnectionRefusedError)
        if refused or isinstance(failure, HandshakeFailed) or (failure is not None and tls):
            return connecting.result()  # No server listens, or the error names the cause.
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
