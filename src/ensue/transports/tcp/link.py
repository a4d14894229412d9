"""A server as its clients see it: a connection that comes back.

Limits: `PENDING_BYTES_MAX` bytes that the operating system has not taken; beyond, messages are dropped.
"""

import asyncio
import logging
import ssl
from random import uniform
from typing import Any, Literal, Protocol

from ensue.errors import (
    AccessDenied,
    HandshakeFailed,
    LogLost,
    RemoteProtocolError,
    TransportError,
    ended_connection,
    refused_client,
)
from ensue.protocols.lineage import REPLACED, ROLLED_BACK, Lineage
from ensue.transports.peer_kind import ENSUE, connect_or_identify, is_final
from ensue.transports.tcp_messages import (
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
from ensue.transports.tcp_options import TcpOptions, write_address
from ensue.transports.throttle import Throttle
from ensue.transports.tls import TlsOptions, what_failed

__all__ = ["PENDING_BYTES_MAX", "Connection", "Link", "Owner"]

PENDING_BYTES_MAX = 16 * 1024 * 1024
CONNECT_S = 10.0
HEARTBEAT_S = 5.0
SILENCE_S = 15.0
BACKOFF_S_MIN = 0.05
BACKOFF_S_MAX = 2.0
STABLE_S = 5.0
"""A connection that is lost sooner counts as one that flaps."""
REFUSED_S = 60.0
"""A client that was welcome once takes a refusal for final after so long."""

_log = logging.getLogger("ensue")
_link_log = logging.getLogger("ensue.link")
"""Whether a server is away or back, which whoever waits wants to know and others may not."""

Failure = TransportError | AccessDenied | LogLost


class Owner(Protocol):
    """Whose links these are."""

    options: TcpOptions
    client: str
    role: Literal["client", "station"]
    log: Lineage | None
    """Which log a station has."""
    ends_with_log: bool
    """Whether a client does not go on with a server whose log is gone."""

    def arrived(self, data: bytes) -> None:
        """Take a bundle."""

    def reconnected(self) -> None:
        """Hear that a lost connection is there again."""

    def refused(self, error: AccessDenied) -> None:
        """Hear that a server will not have this client any more."""

    def check_log(self, welcome: Welcome) -> LogLost | None:
        """Return why the log of a server that says welcome can't be the one it had; None: it can."""

    def log_lost(self, error: LogLost) -> None:
        """Hear that a server does not have the log any more that it had."""

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

    def _flush(self) -> None:
        out, self._out, self._pending = self._out, [], 0
        if out and self._transport is not None and not self._transport.is_closing():
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))


class _Name:
    """A name that bundles are to come for."""

    __slots__ = ("entered", "turn", "waiting")

    def __init__(self, entered: "asyncio.Future[None]") -> None:
        self.entered = entered
        """Done once the name was entered for the first time."""
        self.turn = 0
        """What the server gave it to show when it comes back; 0: it was never entered."""
        self.waiting = 0
        """How many wait until it is entered."""

    def give_up(self, why: str) -> None:
        """Tell whoever waits. An error, because nobody has cancelled them."""
        if not self.entered.done():
            self.entered.set_exception(TransportError(why))


class Link:
    """A server, and the connection to it that there is or will be again.

    When a connection is there again, first all names are entered again, and the server answers: of two
    clients that have had a name the later keeps it, and the earlier must have sent nothing by then.
    """

    def __init__(self, carrier: "Owner", address: tuple[str, int]) -> None:
        self.carrier = carrier
        self.loop = asyncio.get_running_loop()
        self.address = write_address(*address)
        self.welcome: Welcome | None = None
        self.connection: Connection | None = None
        """What bundles go through: None until all names are entered on it."""
        self._host, self._port = address
        self._wire: Connection | None = None
        """The connection that there is, from the server's welcome on."""
        self._welcomed: asyncio.Future[Welcome] | None = None
        self._names: dict[str, _Name] = {}
        self._unanswered: dict[str, None] = {}
        """Names that the server was asked to take in, and has not said anything about."""
        self._away = False
        """Whether it was said that the server is away."""
        self._log_lost: LogLost | None = None
        """Why there is no use in waiting for the server."""
        self._task: asyncio.Task[None] | None = None
        self._flaps = 0
        """Connections in a row that did not last for `STABLE_S`."""
        self._throttle, self._link_throttle = Throttle(_log), Throttle(_link_log)

    async def start(self) -> Welcome:
        """Connect for the first time, or say why not."""
        welcome = await connect_or_identify(
            self._connect,
            self._host,
            self._port,
            where=self.address,
            wanted=ENSUE,
            tls=self.carrier.options.tls.on,
        )
        self.connection = self._wire
        self._task = self.loop.create_task(self._keep_up())
        return welcome

    def start_later(self) -> None:
        """Connect as soon as there is somebody."""
        self._task = self.loop.create_task(self._keep_up())

    async def enter(self, name: str) -> None:
        """Have bundles for a name come here.

        Waits for the server's word if it is there; if not, the name is entered when it is.
        """
        known = self._names.get(name)
        if known is None:
            known = self._names[name] = _Name(self.loop.create_future())
            known.entered.add_done_callback(_seen)
        self._ask(name, known)
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
        """Have no more bundles for a name."""
        known = self._names.pop(name, None)
        if known is not None:
            known.give_up(f"{name!r} was shut before the server at {self.address} had let it in")
        if self._wire is not None:
            self._wire.write(encode_control(Exit(name=name)))
        self._answered(name)

    def control(self, message: Control) -> None:
        """Handle what a server says about the connection."""
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

    async def close(self) -> None:
        """Let out what is pending and hang up."""
        if self._task is not None:
            self._task.cancel()
        for name, known in self._names.items():
            known.give_up(
                f"the bus was closed before the server at {self.address} had let {name!r} in"
            )
        wire, self._wire, self.connection = self._wire, None, None
        if wire is not None:
            wire.hang_up()
            await asyncio.wait((wire.lost,), timeout=1.0)
            wire.abort()

    def _ask(self, name: str, known: _Name) -> None:
        """Ask the server to take a name in."""
        if self._wire is not None:
            self._unanswered[name] = None
            self._wire.write(encode_control(Enter(name=name, turn=known.turn)))

    def _ask_for_all(self) -> None:
        """Enter all names on a new connection, and only then have bundles go through it."""
        self._unanswered.clear()
        for name, known in self._names.items():
            self._ask(name, known)
        if not self._unanswered:
            self._take_up()

    def _answered(self, name: str) -> None:
        self._unanswered.pop(name, None)
        if self.connection is None and not self._unanswered:
            self._take_up()

    def _take_up(self) -> None:
        if self._wire is not None:
            self.connection = self._wire
            self.carrier.reconnected()

    def _exited(self, name: str, reason: str) -> None:
        # Forgotten: not to be entered again, or whoever has it now would lose it in turn.
        known = self._names.pop(name, None)
        why = f"{self.address} does not let {name!r} in: {reason}"
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
            why = f"the server at {self.address} does not let this client in: {reason}"
            error = AccessDenied(why, reason=reason)
        else:
            why = f"the server at {self.address} hung up: {reason}"
            error = ended_connection(why, reason=reason)
        if self._welcomed is not None and not self._welcomed.done():
            self._welcomed.set_exception(error)
        elif self._log_lost is not None:
            self._away = True  # Nobody waits: whoever asked for something is told why.
        elif final:
            _log.warning("%s", error)
        else:
            self._away = True
            _log.warning("%s; waiting until it is back", error)

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
                f"the server at {self.address} hung up before it said welcome: {_guess(options.tls)}"
            ) from lost
        welcome = self._welcomed.result()
        log_lost = self.carrier.check_log(welcome)
        if log_lost is not None:
            connection.abort()
            raise log_lost
        connection.write(encode_control(Begin(session=welcome.session)))
        self.welcome, self._wire = welcome, connection
        return welcome

    def _why(self, error: BaseException) -> str:
        if isinstance(error, ssl.SSLError):
            return f"no TLS with the server at {self.address}: {what_failed(error)}"
        if isinstance(error, TimeoutError):
            return f"no answer from {self.address} within {CONNECT_S:g} s"
        return (
            f"nobody answers at {self.address} ({error}); a server is started with: "
            f"ensue serve --listen {self.address} --data DIR, one of a chain with: "
            "ensue serve --config FILE"
        )

    async def _keep_up(self) -> None:
        """Watch the connection, and make it again for ever."""
        while True:
            if self._wire is not None:
                begun_s = self.loop.time()
                await self._watch(self._wire)
                self._wire = self.connection = None
                self._lost()
                await self._pause_if_it_flaps(self.loop.time() - begun_s)
            refusal = self._log_lost or await self._come_back()
            if isinstance(refusal, LogLost):
                self.carrier.log_lost(refusal)
                return
            if refusal is not None:
                self.carrier.refused(refusal)
                return
            try:
                self._ask_for_all()
            except Exception:  # noqa: BLE001 - somebody's bug, and this connection is everybody's
                _log.exception("what follows a reconnection to %s has failed", self.address)
            if self._away:
                self._away = False
                line = f"the server at {self.address} is back; going on"
                self._link_throttle.log("back", logging.INFO, line)

    async def _pause_if_it_flaps(self, lasted_s: float) -> None:
        """Wait for longer each time that a connection is lost right after it was made."""
        self._flaps = self._flaps + 1 if lasted_s < STABLE_S else 0
        if self._flaps > 1:
            pause_s = min(BACKOFF_S_MIN * 2 ** min(self._flaps, 10), BACKOFF_S_MAX)
            await asyncio.sleep(uniform(pause_s / 2, pause_s))  # noqa: S311 - no secret

    def _lost(self) -> None:
        """Say that the server is away, unless it has said so itself."""
        if not self._away:
            self._away = True
            line = (
                f"the connection to the server at {self.address} is lost; waiting until it is back"
            )
            self._link_throttle.log("lost", logging.WARNING, line)

    async def _come_back(self) -> AccessDenied | LogLost | None:
        """Connect, however long it takes; return why the server will not have it."""
        pause_s = BACKOFF_S_MIN
        refused_s: float | None = None
        while True:
            try:
                await self._connect()
            except LogLost as error:
                return error
            except AccessDenied as error:
                refused_s = self.loop.time() if refused_s is None else refused_s
                if self._is_final(self.loop.time() - refused_s):
                    return error
                problem, level = str(error), logging.WARNING
            except TransportError as error:
                refused_s = None
                # Of a server that was there before, also TLS may be mended: it is tried for ever.
                problem, level = str(error), logging.INFO if error.retriable else logging.WARNING
            except Exception as error:  # noqa: BLE001 - nothing may end this in silence
                problem, level = f"no connection to {self.address}: {error!r}", logging.WARNING
            else:
                return None
            self._throttle.log(problem, level, f"{problem}; trying again")
            await asyncio.sleep(uniform(pause_s / 2, pause_s))  # noqa: S311 - no secret
            pause_s = min(2 * pause_s, BACKOFF_S_MAX)

    def _is_final(self, refused_s: float) -> bool:
        """Tell whether to give up, having been refused for so long."""
        if self.welcome is None:
            return True
        # It was welcome before. Somebody may be at work on the server, and see that it is again.
        return self.carrier.role == "client" and refused_s >= REFUSED_S

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
            for name in tuple(self._unanswered):
                # The answer may have been dropped, as too much was pending.
                self._ask(name, self._names[name])


def _guess(tls: TlsOptions) -> str:
    """Ask what may be wrong, of whoever was hung up on without a word."""
    if not tls.on:
        return "does it want TLS (tls=1), or is it an admin port?"
    # A server looks at this side's certificate when for this side all is agreed on.
    if tls.cert:
        return f"does it know who signed {tls.cert} (tls.ca there)?"
    return "does it want to see a certificate of this side (cert=FILE&key=FILE)?"


def _seen(future: "asyncio.Future[Any]") -> None:
    """Look at a failure that nobody may be waiting for."""
    if not future.cancelled():
        future.exception()
