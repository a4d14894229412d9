"""One server of a chain, and the connection to it, with reconnection.

Limits: `PENDING_BYTES_MAX` bytes that the operating system has not accepted; beyond, messages are
dropped.
"""

import asyncio
import logging
import ssl
from typing import Any, Literal, Protocol

from ensue.core.errors import (
    AccessDenied,
    HandshakeFailed,
    LogLost,
    RemoteProtocolError,
    TransportError,
    ended_connection,
    refused_client,
)
from ensue.core.lineage import REPLACED, ROLLED_BACK, Lineage
from ensue.transports.log_throttle import Throttle
from ensue.transports.peer_probe import ENSUE, connect_or_identify, is_final
from ensue.transports.reconnect import keep_connected
from ensue.transports.tcp.messages import (
    CONTROL,
    Begin,
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
from ensue.transports.tcp.options import TcpOptions, write_address
from ensue.transports.tls import TlsOptions, what_failed

__all__ = ["PENDING_BYTES_MAX", "Connection", "Link", "Owner"]

PENDING_BYTES_MAX = 16 * 1024 * 1024
CONNECT_S = 10.0
HEARTBEAT_S = 5.0
SILENCE_S = 15.0
CLOSE_S = 1.0
"""How long a server may take to read what was sent and to close."""
REFUSED_S = 60.0
"""How long a client that was accepted before retries after a refusal."""

_log = logging.getLogger("ensue")
_link_log = logging.getLogger("ensue.link")
"""For lost connections and reconnects: the CLI shows these lines."""

Failure = TransportError | AccessDenied | LogLost


class Owner(Protocol):
    """The owner of a link."""

    options: TcpOptions
    client: str
    role: Literal["client", "station"]
    log: Lineage | None
    """The log of a station."""
    ends_with_log: bool
    """Whether a client ends if a server has lost its log."""

    def arrived(self, data: bytes) -> None:
        """Handle a bundle."""

    def reconnected(self) -> None:
        """Handle a reconnect."""

    def refused(self, error: AccessDenied) -> None:
        """Handle a server that rejects this client permanently."""

    def check_log(self, welcome: Welcome) -> LogLost | None:
        """Return why the log in a welcome can't be the server's known one; None: it can."""

    def check_chain(self, welcome: Welcome) -> AccessDenied | None:
        """Return why the server of a welcome can't be of the owner's chain; None: it can."""

    def log_lost(self, error: LogLost) -> None:
        """Handle a server that no longer has its log."""

    def exited(self, name: str, error: AccessDenied) -> None:
        """Handle a name that another client has taken over."""


class Connection(asyncio.Protocol):
    """One TCP connection."""

    def __init__(self, link: "Link") -> None:
        self.link = link
        self.lost: asyncio.Future[Exception | None] = link.loop.create_future()
        self.received_s = link.loop.time()
        self._transport: asyncio.WriteTransport | None = None
        self._framer = Framer()
        self._out: list[bytes] = []
        self._pending = 0
        self._finished = False
        """Whether this side has ended its stream: what arrives now has no reader."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """Complete `lost`."""
        if not self.lost.done():
            self.lost.set_result(exc)

    def data_received(self, data: bytes) -> None:
        """Split received bytes into messages and deliver them."""
        self.received_s = self.link.loop.time()
        if self._finished:
            return
        try:
            for message in self._framer.feed(data):
                if message[0] == CONTROL:
                    self.link.control(decode_control(message))
                else:
                    self.link.carrier.arrived(message)
        except RemoteProtocolError as error:
            _log.warning("protocol error server=%s: %s", self.link.address, error)
            self.close()

    def write(self, data: bytes) -> bool:
        """Send bytes at the end of this turn; return False if too many are pending."""
        transport = self._transport
        if transport is None or transport.is_closing() or self._finished:
            return False
        if self._pending + transport.get_write_buffer_size() > PENDING_BYTES_MAX:
            return False
        if not self._out:
            self.link.loop.call_soon(self._flush)
        self._out.append(data)
        self._pending += len(data)
        return True

    def close(self) -> None:
        """Flush, then close."""
        if self._transport is not None:
            self._flush()
            self._transport.close()

    def finish(self) -> None:
        """Flush, and end the stream: the server closes the connection once it has read all of it.

        If this side closed first, what the server sends meanwhile would be answered by a reset, and
        a reset may discard what the server has not read yet.
        """
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if not transport.can_write_eof():  # TLS ends its stream by a message of its own.
            self.close()
            return
        self._flush()
        self._finished = True
        transport.write_eof()

    def abort(self) -> None:
        """Close at once."""
        if isinstance(self._transport, asyncio.Transport):
            self._transport.abort()

    def _flush(self) -> None:
        out, self._out, self._pending = self._out, [], 0
        if out and self._transport is not None and not self._transport.is_closing():
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))


class _Name:
    """A name that this client enters."""

    __slots__ = ("entered", "turn", "waiting")

    def __init__(self, entered: "asyncio.Future[None]") -> None:
        self.entered = entered
        """Done once the name was entered for the first time."""
        self.turn = 0
        """The turn in the server's `Entered`, for entering again; 0: never entered."""
        self.waiting = 0
        """Number of callers that wait until it is entered."""

    def fail(self, why: str) -> None:
        """Fail the waiting callers: with an error, because they were not cancelled."""
        if not self.entered.done():
            self.entered.set_exception(TransportError(why))


class Link:
    """A server and the connection to it, if connected.

    After a reconnect all names are entered again before bundles are sent. If another client has
    taken over a name meanwhile, this client must send nothing under it.
    """

    def __init__(self, carrier: "Owner", address: tuple[str, int]) -> None:
        self.carrier = carrier
        self.loop = asyncio.get_running_loop()
        self.address = write_address(*address)
        self.welcome: Welcome | None = None
        self.connection: Connection | None = None
        """The connection for bundles: None until all names are entered on it."""
        self._host, self._port = address
        self._wire: Connection | None = None
        """The current connection, after the server's welcome."""
        self._welcomed: asyncio.Future[Welcome] | None = None
        self._names: dict[str, _Name] = {}
        self._unanswered: dict[str, None] = {}
        """Names with an unanswered `Enter`."""
        self._away = False
        """Whether a lost connection was logged, and no reconnect yet."""
        self._log_lost: LogLost | None = None
        """Why reconnecting is useless."""
        self._task: asyncio.Task[None] | None = None
        self._refused_s: float | None = None
        """When the server began to refuse this client."""
        self._throttle, self._link_throttle = Throttle(_log), Throttle(_link_log)

    async def start(self) -> Welcome:
        """Connect for the first time; raise if that fails."""
        try:
            welcome = await connect_or_identify(
                self._connect,
                self._host,
                self._port,
                where=self.address,
                wanted=ENSUE,
                tls=self.carrier.options.tls.on,
            )
        except BaseException:
            # Cancelled when it had just connected.
            if self._wire is not None:
                self._wire.abort()
                self._wire = None
            raise
        self.connection = self._wire
        self._task = self.loop.create_task(self._keep_connected())
        return welcome

    def start_later(self) -> None:
        """Connect in the background, as soon as the server answers."""
        self._task = self.loop.create_task(self._keep_connected())

    async def enter(self, name: str) -> None:
        """Enter a name, so that the server sends its bundles here.

        Waits for the server's answer if connected; if not, the name is entered on connecting.
        """
        known = self._names.get(name)
        if known is None:
            known = self._names[name] = _Name(self.loop.create_future())
            known.entered.add_done_callback(_mark_seen)
        self._send_enter(name, known)
        if self._wire is None:
            return
        known.waiting += 1
        try:
            await asyncio.wait(
                (known.entered, self._wire.lost), return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            known.waiting -= 1
        if known.entered.done():
            known.entered.result()

    def exit(self, name: str) -> None:
        """Exit a name: the server sends no more of its bundles here."""
        known = self._names.pop(name, None)
        if known is not None:
            known.fail(f"{name!r} was closed before the server at {self.address} accepted it")
        if self._wire is not None:
            self._wire.write(encode_control(Exit(name=name)))
        self._answered(name)

    def control(self, message: Control) -> None:
        """Handle a control message."""
        match message:
            case Welcome():
                if self._welcomed is not None and not self._welcomed.done():
                    self._welcomed.set_result(message)
            case Entered(name=name, turn=turn):
                known = self._names.get(name)
                if known is not None:
                    known.turn = turn
                    if not known.entered.done():
                        known.entered.set_result(None)
                self._answered(name)
            case Exited(name=name, reason=reason):
                self._exited(name, reason)
            case Farewell():
                self._farewell(message)
            case Ping(number=number):
                if self._wire is not None:
                    self._wire.write(encode_control(Pong(number=number)))
            case _:
                pass

    def renew(self, since_s: float) -> None:
        """Reconnect if nothing has arrived since a time of the event loop."""
        if self._wire is not None and self._wire.received_s < since_s:
            self._abandon(self._wire)

    async def close(self) -> None:
        """Flush, and wait for a while until the server has closed the connection."""
        if self._task is not None:
            self._task.cancel()
        for name, known in self._names.items():
            known.fail(f"the bus was closed before the server at {self.address} accepted {name!r}")
        wire, self._wire, self.connection = self._wire, None, None
        if wire is not None:
            wire.finish()
            await asyncio.wait((wire.lost,), timeout=CLOSE_S)
            wire.abort()

    def _send_enter(self, name: str, known: _Name) -> None:
        """Send `Enter`."""
        if self._wire is not None:
            self._unanswered[name] = None
            self._wire.write(encode_control(Enter(name=name, turn=known.turn)))

    def _enter_all(self) -> None:
        """Enter all names on a new connection, before bundles are sent on it."""
        self._unanswered.clear()
        for name, known in self._names.items():
            self._send_enter(name, known)
        if not self._unanswered:
            self._activate()

    def _answered(self, name: str) -> None:
        self._unanswered.pop(name, None)
        if self.connection is None and not self._unanswered:
            self._activate()

    def _activate(self) -> None:
        if self._wire is not None:
            self.connection = self._wire
            self.carrier.reconnected()

    def _exited(self, name: str, reason: str) -> None:
        # Removed: entering it again would take it from its new owner.
        known = self._names.pop(name, None)
        why = f"the server at {self.address} refuses the name {name!r}: {reason}"
        error = AccessDenied(why, reason=reason)
        if known is not None and known.waiting and not known.entered.done():
            known.entered.set_exception(refused_client(why, reason=reason))
        elif known is not None:
            self.carrier.exited(name, error)
        self._answered(name)

    def _farewell(self, farewell: Farewell) -> None:
        reason, final = farewell.reason, farewell.final
        if farewell.log == "damaged" and self.carrier.ends_with_log:
            server = self.address if self.welcome is None else self.welcome.server
            text = f"server {server!r} can't read its log: {reason}"
            self._log_lost = LogLost(text, server=server, reason="damaged")
        error: Failure
        if farewell.log in (REPLACED, ROLLED_BACK):
            error = LogLost(reason, server=self.carrier.client, reason=farewell.log)
        elif final:
            why = f"the server at {self.address} refuses this client: {reason}"
            error = AccessDenied(why, reason=reason)
        else:
            why = f"the server at {self.address} closed the connection: {reason}"
            error = ended_connection(why, reason=reason)
        if self._welcomed is not None and not self._welcomed.done():
            self._welcomed.set_exception(error)
        elif self._log_lost is not None:
            self._away = True  # `_keep_connected` reports it.
        elif final:
            _log.warning("%s", error)
        else:
            self._away = True
            _log.warning("%s; reconnecting", error)

    async def _connect(self) -> Welcome:
        options = self.carrier.options
        context = options.tls.context()
        self._welcomed = self.loop.create_future()
        self._welcomed.add_done_callback(_mark_seen)
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
                    client=self.carrier.client,
                    token=options.token,
                    role=self.carrier.role,
                    log=self.carrier.log,
                )
                connection.write(encode_control(hello))
                await asyncio.wait(
                    (self._welcomed, connection.lost), return_when=asyncio.FIRST_COMPLETED
                )
        except (OSError, TimeoutError) as error:
            connection.abort()
            kind = HandshakeFailed if is_final(error) else TransportError
            raise kind(self._why(error)) from error
        except BaseException:
            connection.abort()
            raise
        if not self._welcomed.done():
            connection.abort()
            lost = connection.lost.result()
            kind = HandshakeFailed if is_final(lost) else TransportError
            raise kind(
                f"the server at {self.address} closed the connection without a welcome: "
                f"{_guess(options.tls)}"
            ) from lost
        welcome = self._welcomed.result()
        refusal = self.carrier.check_chain(welcome) or self.carrier.check_log(welcome)
        if refusal is not None:
            connection.abort()
            raise refusal
        connection.write(encode_control(Begin(session=welcome.session)))
        self.welcome, self._wire = welcome, connection
        return welcome

    def _why(self, error: BaseException) -> str:
        if isinstance(error, ssl.SSLError):
            return f"TLS with the server at {self.address} failed: {what_failed(error)}"
        if isinstance(error, TimeoutError):
            return f"no answer from {self.address} within {CONNECT_S:g} s"
        return (
            f"no server answers at {self.address} ({error}); start one: "
            f"ensue serve --listen {self.address} --data DIR, or for a chain: "
            "ensue serve --config FILE"
        )

    async def _keep_connected(self) -> None:
        """Use and reconnect until the server rejects this client permanently."""
        try:
            await keep_connected(
                self._wire,
                use=self._use,
                connect=self._reconnect,
                failed=self._failed,
                resumed=self._resumed,
                eager=True,
            )
        except LogLost as error:
            self.carrier.log_lost(error)
        except AccessDenied as error:
            self.carrier.refused(error)

    async def _use(self, connection: Connection) -> None:
        await self._watch(connection)
        self._wire = self.connection = None
        self._refused_s = None
        if not self._away:
            self._away = True
            line = f"the connection to the server at {self.address} is lost; reconnecting"
            self._link_throttle.log("lost", logging.WARNING, line)

    async def _reconnect(self) -> Connection:
        if self._log_lost is not None:
            raise self._log_lost
        await self._connect()
        assert self._wire is not None
        return self._wire

    def _failed(self, error: Exception) -> None:
        """Log why an attempt failed; raise if another is useless."""
        problem, level = str(error), logging.WARNING
        if isinstance(error, LogLost):
            raise error
        if isinstance(error, AccessDenied):
            self._refused_s = self.loop.time() if self._refused_s is None else self._refused_s
            if self._is_final(self.loop.time() - self._refused_s):
                raise error
        elif isinstance(error, TransportError):
            self._refused_s = None
            # Retried forever: an operator may fix the TLS of a server that worked before.
            level = logging.INFO if error.retriable else logging.WARNING
        else:
            problem = f"no connection to {self.address}: {error!r}"
        self._throttle.log(problem, level, f"{problem}; retrying")

    def _resumed(self, _connection: Connection) -> None:
        try:
            self._enter_all()
        except Exception:  # noqa: BLE001 - a bug in a callback must not end the connection
            _log.exception("on_reconnect failed server=%s", self.address)
        if self._away:
            self._away = False
            line = f"reconnected to the server at {self.address}"
            self._link_throttle.log("back", logging.INFO, line)

    def _is_final(self, refused_s: float) -> bool:
        """Return whether to give up after a time of refusals."""
        if self.welcome is None:
            return True
        # The server accepted it before: an operator may be changing access rules.
        return self.carrier.role == "client" and refused_s >= REFUSED_S

    async def _watch(self, connection: Connection) -> None:
        """Return when a connection is lost or silent."""
        number = 0
        while not connection.lost.done():
            await asyncio.wait((connection.lost,), timeout=HEARTBEAT_S)
            if connection.lost.done():
                break
            if self.loop.time() - connection.received_s > SILENCE_S:
                self._abandon(connection)
                break
            number += 1
            connection.write(encode_control(Ping(number=number)))
            for name in tuple(self._unanswered):
                # The answer may have been dropped because too much was pending.
                self._send_enter(name, self._names[name])

    def _abandon(self, connection: Connection) -> None:
        """Close a silent connection at once."""
        silent_s = self.loop.time() - connection.received_s
        _log.warning("connection silent server=%s for_s=%.1f", self.address, silent_s)
        connection.abort()


def _guess(tls: TlsOptions) -> str:
    """Return the likely reason why a server closed the connection without a reason."""
    if not tls.on:
        return "does it need TLS (tls=1), or is it an admin port?"
    # A server checks the client's certificate after the client's handshake is complete.
    if tls.cert:
        return f"does it trust the CA that signed {tls.cert} (its option tls.ca)?"
    return "does it need a client certificate (cert=FILE&key=FILE)?"


def _mark_seen(future: "asyncio.Future[Any]") -> None:
    """Retrieve the exception: there may be no waiter."""
    if not future.cancelled():
        future.exception()
