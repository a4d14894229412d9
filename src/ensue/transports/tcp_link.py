"""A server as its clients see it: a connection that comes back.

Limits: `PENDING_BYTES_MAX` bytes that the operating system has not taken; beyond, messages are dropped.
"""

import asyncio
import logging
import ssl
from random import uniform
from typing import Any, Literal, Protocol

from ensue.errors import AccessDenied, RemoteProtocolError, TransportError
from ensue.transports.tcp_messages import (
    CONTROL,
    Control,
    Enter,
    Entered,
    Exit,
    Exited,
    Farewell,
    Framer,
    Hello,
    Ping,
    Pong,
    Welcome,
    decode_control,
    encode_control,
)
from ensue.transports.tcp_options import TcpOptions

__all__ = ["PENDING_BYTES_MAX", "Connection", "Link", "Owner"]

PENDING_BYTES_MAX = 16 * 1024 * 1024
CONNECT_S = 10.0
HEARTBEAT_S = 5.0
SILENCE_S = 15.0
BACKOFF_S_MIN = 0.05
BACKOFF_S_MAX = 2.0

_log = logging.getLogger("ensue")

Failure = TransportError | AccessDenied


class Owner(Protocol):
    """Whose links these are."""

    options: TcpOptions
    client: str
    role: Literal["client", "station"]

    def arrived(self, data: bytes) -> None:
        """Take a bundle."""

    def reconnected(self) -> None:
        """Hear that a lost connection is there again."""

    def refused(self, error: AccessDenied) -> None:
        """Hear that a server will not have this client any more."""

    def exited(self, name: str, error: AccessDenied) -> None:
        """Hear that a name was taken away."""


class Connection(asyncio.Protocol):
    """One connection, from the first byte to the last."""

    def __init__(self, link: "Link") -> None:
        self.link = link
        self.lost: asyncio.Future[Exception | None] = link.loop.create_future()
        self.heard_s = link.loop.time()
        self._transport: asyncio.WriteTransport | None = None
        self._framer = Framer()
        self._out: list[bytes] = []
        self._pending = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection up."""
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the connection is gone."""
        if not self.lost.done():
            self.lost.set_result(exc)

    def data_received(self, data: bytes) -> None:
        """Cut what arrived into messages and hand them over."""
        self.heard_s = self.link.loop.time()
        try:
            for message in self._framer.feed(data):
                if message[0] == CONTROL:
                    self.link.control(decode_control(message))
                else:
                    self.link.carrier.arrived(message)
        except RemoteProtocolError as error:
            _log.warning("ensue://%s: %s", self.link.address, error)
            self.hang_up()

    def write(self, data: bytes) -> bool:
        """Send bytes at the end of this turn; False: too much is pending, they are dropped."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return False
        if self._pending + transport.get_write_buffer_size() > PENDING_BYTES_MAX:
            return False
        if not self._out:
            self.link.loop.call_soon(self._flush)
        self._out.append(data)
        self._pending += len(data)
        return True

    def hang_up(self) -> None:
        """Let out what is pending, then close."""
        if self._transport is not None:
            self._flush()
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        if isinstance(self._transport, asyncio.Transport):
            self._transport.abort()

    @property
    def pending(self) -> int:
        """Bytes that the operating system has not taken."""
        transport = self._transport
        return self._pending + (0 if transport is None else transport.get_write_buffer_size())

    def _flush(self) -> None:
        out, self._out, self._pending = self._out, [], 0
        if out and self._transport is not None and not self._transport.is_closing():
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))


class Link:
    """A server, and the connection to it that there is or will be again."""

    def __init__(self, carrier: "Owner", address: tuple[str, int]) -> None:
        self.carrier = carrier
        self.loop = asyncio.get_running_loop()
        self.address = f"{address[0]}:{address[1]}"
        self.welcome: Welcome | None = None
        self.connection: Connection | None = None
        self.refused: Failure | None = None
        self._host, self._port = address
        self._welcomed: asyncio.Future[Welcome] | None = None
        self._entering: dict[str, asyncio.Future[None]] = {}
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> Welcome:
        """Connect for the first time, or say why not."""
        welcome = await self._connect()
        self._task = self.loop.create_task(self._keep_up())
        return welcome

    async def enter(self, name: str) -> None:
        """Have bundles for a name come here."""
        if name not in self._entering:
            self._entering[name] = self.loop.create_future()
            self._entering[name].add_done_callback(_seen)
        if self.connection is not None:
            self.connection.write(encode_control(Enter(name=name)))
        await asyncio.shield(self._entering[name])

    def exit(self, name: str) -> None:
        """Have no more bundles for a name."""
        future = self._entering.pop(name, None)
        if future is not None:
            future.cancel()
        if self.connection is not None:
            self.connection.write(encode_control(Exit(name=name)))

    def control(self, message: Control) -> None:
        """Handle what a server says about the connection."""
        match message:
            case Welcome():
                if self._welcomed is not None and not self._welcomed.done():
                    self._welcomed.set_result(message)
            case Entered(name=name):
                future = self._entering.get(name)
                if future is not None and not future.done():
                    future.set_result(None)
            case Exited(name=name, reason=reason):
                self._exited(name, reason)
            case Farewell(reason=reason, final=final):
                self._farewell(reason, final=final)
            case Ping(number=number):
                if self.connection is not None:
                    self.connection.write(encode_control(Pong(number=number)))
            case _:
                pass

    async def close(self) -> None:
        """Let out what is pending and hang up."""
        if self._task is not None:
            self._task.cancel()
        for future in self._entering.values():
            future.cancel()
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.hang_up()
            await asyncio.wait((connection.lost,), timeout=1.0)
            connection.abort()

    def _exited(self, name: str, reason: str) -> None:
        error = AccessDenied(f"{self.address} does not let {name!r} in: {reason}", reason=reason)
        future = self._entering.get(name)
        if future is not None and not future.done():
            future.set_exception(error)
        else:
            # Not to be entered again: whoever has it now would lose it in turn.
            self._entering.pop(name, None)
            self.carrier.exited(name, error)

    def _farewell(self, reason: str, *, final: bool) -> None:
        text = f"the server at {self.address} hung up: {reason}"
        error: Failure = AccessDenied(text, reason=reason) if final else TransportError(text)
        if final:
            self.refused = error
        if self._welcomed is not None and not self._welcomed.done():
            self._welcomed.set_exception(error)
        else:
            _log.warning("%s", error)

    async def _connect(self) -> Welcome:
        options = self.carrier.options
        context = options.tls.context()
        self._welcomed = self.loop.create_future()
        self._welcomed.add_done_callback(_seen)
        connection = Connection(self)
        server_name = (options.server_name or self._host) if context is not None else None
        try:
            async with asyncio.timeout(CONNECT_S):
                await self.loop.create_connection(
                    lambda: connection,
                    self._host,
                    self._port,
                    ssl=context,
                    server_hostname=server_name,
                )
                hello = Hello(
                    client=self.carrier.client, token=options.token, role=self.carrier.role
                )
                connection.write(encode_control(hello))
                await asyncio.wait(
                    (self._welcomed, connection.lost), return_when=asyncio.FIRST_COMPLETED
                )
        except (OSError, TimeoutError) as error:
            connection.abort()
            raise TransportError(self._why(error)) from error
        except BaseException:
            connection.abort()
            raise
        if not self._welcomed.done():
            connection.abort()
            raise TransportError(
                f"the server at {self.address} hung up before it said welcome"
                + ("" if options.tls.on else ": does it want TLS (tls=1)?")
            )
        welcome = self._welcomed.result()
        self.welcome, self.connection = welcome, connection
        return welcome

    def _why(self, error: BaseException) -> str:
        if isinstance(error, ssl.SSLError):
            return f"no TLS with the server at {self.address}: {error}"
        if isinstance(error, TimeoutError):
            return f"no answer from {self.address} within {CONNECT_S:g} s"
        return (
            f"nobody answers at {self.address} ({error}); start a server with: "
            f"ensue serve --listen {self.address} --data DIR"
        )

    async def _keep_up(self) -> None:
        """Watch the connection, and make it again for ever."""
        while True:
            assert self.connection is not None
            await self._watch(self.connection)
            self.connection = None
            pause_s = BACKOFF_S_MIN
            while self.connection is None:
                try:
                    await self._connect()
                except TransportError as error:
                    _log.info("%s; trying again", error)
                except AccessDenied as error:
                    self.carrier.refused(error)
                    return
                else:
                    break
                await asyncio.sleep(uniform(pause_s / 2, pause_s))  # noqa: S311 - no secret
                pause_s = min(2 * pause_s, BACKOFF_S_MAX)
            for name in self._entering:
                if self.connection is not None:
                    self.connection.write(encode_control(Enter(name=name)))
            self.carrier.reconnected()

    async def _watch(self, connection: Connection) -> None:
        """Return when a connection is lost, or as good as."""
        number = 0
        while not connection.lost.done():
            await asyncio.wait((connection.lost,), timeout=HEARTBEAT_S)
            if connection.lost.done():
                break
            if self.loop.time() - connection.heard_s > SILENCE_S:
                _log.warning("ensue://%s has been silent for %g s", self.address, SILENCE_S)
                connection.abort()
                break
            number += 1
            connection.write(encode_control(Ping(number=number)))


def _seen(future: "asyncio.Future[Any]") -> None:
    """Look at a failure that nobody may be waiting for."""
    if not future.cancelled():
        future.exception()
