"""The listening socket and its connections: a carrier that routes by name.

A name belongs to the client that entered it last, and the earlier owner is notified (`Exited`). A
client that lost its connection reconnects, maybe before the server has noticed, and sends the turn
that it received when it entered: a time, so that it is also valid after a restart of the server.
The client is rejected if another one has entered since. `ensue.server.authorization` decides who
may own a name.

HAZARD: while the server's clock is set back, a client that reconnects may count as the later one,
and then both lose the name: the state store of its records, which compares epochs, rejects the
earlier one.

Slow consumers: pending output of a connection is bounded by `Limits.pending_bytes`. Beyond,
messages to it are dropped and counted; its subscriptions see the gap, and request it from the log
when they have caught up. So a client that stops reading costs the server that much memory, and
does not affect other clients.
"""

import asyncio
import contextlib
import logging
import ssl
from collections import Counter
from collections.abc import Callable, Sequence
from operator import is_
from typing import Protocol

import msgspec

from ensue.core import platform
from ensue.core.errors import RemoteProtocolError, TransportError, limit_in
from ensue.core.lineage import Lineage
from ensue.core.wire import Codec, bundle
from ensue.protocols.interface import Frame
from ensue.protocols.total.station import EPHEMERAL
from ensue.server.admission import Admission
from ensue.server.authorization import Authorization
from ensue.server.config import Limits, too_many
from ensue.server.connection import LINGER_S, Connection
from ensue.server.relay_authorization import screen_relayed
from ensue.server.relay_claims import ClaimChecker
from ensue.server.tls_accept import TlsAcceptor
from ensue.transports.carrier import Inbox
from ensue.transports.log_throttle import Throttle
from ensue.transports.tcp.messages import (
    TAKEN_OVER,
    TURN_MAX,
    Hello,
    Welcome,
    encode_control,
    framed,
)
from ensue.transports.tcp.options import CAPABILITIES, parse_address, write_address

__all__ = ["Listener", "OutboundLink", "check_free"]

FAULTS_LOGGED_MAX = 20
"""Faults of one connection that are logged; all are counted."""

SHUTTING_DOWN = "the server is shutting down"

_log = logging.getLogger("ensue")

Screen = Callable[[Connection, str, list[Frame]], tuple[list[Frame], list[Frame]]]
Barrier = Callable[[Callable[[], None]], None]
"""Calls back when all bundles so far are answered."""


async def check_free(address: str, *, what: str = "") -> None:
    """Raise if an address can't be listened on, without accepting connections."""
    host, port = parse_address(address, what="the address to listen on")
    loop = asyncio.get_running_loop()
    try:
        server = await loop.create_server(asyncio.Protocol, host, port, start_serving=False)
    except OSError as error:
        raise TransportError(
            f"{what}can't listen on {write_address(host, port)}: {error.strerror or error}"
        ) from error
    server.close()


class OutboundLink(Protocol):
    """An outbound connection to a peer."""

    def send(self, peer: str, data: bytes) -> None:
        """Send data to the peer."""


class Listener:
    """The listening socket, its connections, and the routes to them by name."""

    name = "ensue://"
    capabilities = CAPABILITIES
    damage = ""
    """Why the log can't be read, once that is known."""
    on_station: Callable[[str, Lineage], None] | None = None
    """Called with the name and log of a connecting server; raises `LogLost` if it had another."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        authorization: Authorization,
        codec: Codec,
        welcome: Callable[[], Welcome],
        barrier: Barrier,
        written: Callable[[], int],
        context: ssl.SSLContext | None = None,
    ) -> None:
        self.host, self.port, self.authorization = host, port, authorization
        self.limits: Limits = authorization.limits
        self.loop = asyncio.get_running_loop()
        self.connections: dict[Connection, None] = {}
        self.routes: dict[str, Connection] = {}
        """Names to the connections that own them."""
        self.neighbors: dict[str, OutboundLink] = {}
        """Servers of the chain, with the outbound connections to them."""
        self.errors: Counter[str] = Counter()
        """Faults of clients, by kind."""
        self.admission = Admission(self.limits, time_s=self.loop.time, errors=self.errors)
        self.dropped = 0
        """Messages dropped because too much was pending, or the name was not connected."""
        self.dropped_slow = 0
        """The part of `dropped` because too much was pending."""
        self.dropped_unregistered = 0
        """Messages between clients that are not registered at the same registry."""
        self.relayed: Counter[str] = Counter()
        """Frames relayed between clients, by kind."""
        self.accepted = 0
        """Connections accepted since the start."""
        self.unfinished = 0
        """Bytes of unfinished messages of all connections."""
        self.on_reconnect: Callable[[], None] | None = None
        self.on_entered: Callable[[str], None] | None = None
        """Called with a name that a connection now owns."""
        self.on_left: Callable[[str], None] | None = None
        """Called with a name that no connection owns any more."""
        self.screens: dict[str, Screen] = {authorization.server: authorization.screen}
        """By inbox: the function that returns the admitted frames and the answers to the others."""
        self.claim_checkers: dict[str, ClaimChecker] = {}
        """By registry: the checker of frames between its clients, on a server with users."""
        self._clock = platform.current().clock
        self._current: Connection | None = None
        """The sender of the bundle being processed."""
        self._message = b""
        """The bundle being processed."""
        self._welcome = welcome
        self._barrier, self._codec = barrier, codec
        self._written = written
        """Returns the number of journal bytes so far."""
        self._tls: TlsAcceptor | None = None
        """TLS handshakes, on a server with TLS."""
        if context is not None:
            self._tls = TlsAcceptor(
                context,
                handshake_s=self.limits.unauthenticated_s,
                admission=self.admission,
                connection=self._make_connection,
                fault=self._fault_of,
            )
        self._inboxes: dict[str, Inbox] = {}
        self._receive: Inbox | None = None
        self._server: asyncio.Server | None = None
        self._emptied: asyncio.Event | None = None
        self._closing, self._throttle = False, Throttle(_log)

    @property
    def handshakes(self) -> int:
        """Number of incomplete TLS handshakes."""
        return 0 if self._tls is None else self._tls.waiting

    # -- As a carrier ---------------------------------------------------------------------------

    async def start(self) -> None:
        """Start listening."""
        try:
            accept: Callable[[], asyncio.Protocol] = self._make_connection
            if self._tls is not None:
                accept = self._tls.protocol
            # In two steps: `create_server` loses its socket if it is cancelled when it has it.
            self._server = await self.loop.create_server(
                accept, self.host, self.port, start_serving=False
            )
            await self._server.start_serving()
        except OSError as error:
            raise TransportError(
                f"can't listen on {write_address(self.host, self.port)}: {error.strerror or error}"
            ) from error
        self.port = self._server.sockets[0].getsockname()[1]

    async def open(self, peer: str, receive: Inbox) -> None:
        """Open an inbox; bundles name their target themselves."""
        self._inboxes[peer] = receive
        self._receive = receive

    async def shut(self, peer: str) -> None:
        """Close an inbox."""
        self._inboxes.pop(peer, None)

    async def join(self, topic: str, receive: Inbox) -> None:
        """Do nothing: this carrier has no multicast."""

    async def leave(self, topic: str) -> None:
        """Do nothing: this carrier has no multicast."""

    def send(self, peer: str, data: bytes) -> None:
        """Send to a server of the chain, or to the owner of a name."""
        neighbor = self.neighbors.get(peer)
        if neighbor is not None:
            neighbor.send(peer, data)
            return
        connection = self.routes.get(peer)
        if connection is None:
            self.dropped += 1
        else:
            connection.write(framed(data))

    def multicast(self, topic: str, data: bytes) -> None:
        """Raise: this carrier has no multicast."""
        raise NotImplementedError(f"{len(data)} bytes can't be multicast to {topic!r} here")

    async def close(self) -> None:
        """Send a Farewell to all connections, and close them."""
        self._closing = True
        if self._server is not None:
            # Let pending accepts finish before the socket is closed: asyncio leaks a connection
            # that is accepted before the close and made after it.
            for listening in self._server.sockets:
                self.loop.remove_reader(listening.fileno())
            for _ in range(3):
                await asyncio.sleep(0)
            self._server.close()
        if self._tls is not None:
            self._tls.close()
        for connection in list(self.connections):
            connection.farewell(self.damage or SHUTTING_DOWN, log="damaged" if self.damage else "")
        if self.connections:
            self._emptied = asyncio.Event()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._emptied.wait(), timeout=LINGER_S)
        for connection in list(self.connections):
            connection.abort()

    # -- For connections ---------------------------------------------------------------------------

    def _make_connection(self) -> Connection:
        return Connection(self)

    def connection_opened(self, connection: Connection) -> None:
        """Add a new connection."""
        self.connections[connection] = None
        self.accepted += 1
        connection.number = self.accepted
        self.admission.add(connection)
        if self._closing:
            # Accepted before the socket was closed, and made afterwards.
            connection.farewell(SHUTTING_DOWN)

    def admit_connection(self, connection: Connection) -> str | None:
        """Admit a connection after its login; return the limit that it exceeds, or None."""
        return self.admission.admit(connection, connection.station)

    def connection_closed(self, connection: Connection) -> None:
        """Remove a connection."""
        self.connections.pop(connection, None)
        self.admission.remove(connection)
        for name in connection.names:
            self._release(connection, name)
        if not self.connections and self._emptied is not None:
            self._emptied.set()

    def log_in(self, connection: Connection, hello: Hello) -> bytes | str:
        """Return the encoded Welcome, or why the login is rejected."""
        refusal = self.authorization.login(connection, hello)
        if refusal is not None:
            return refusal
        if connection.station and hello.log is not None and self.on_station is not None:
            self.on_station(connection.station, hello.log)
        return encode_control(msgspec.structs.replace(self._welcome(), session=connection.session))

    def enter_name(self, connection: Connection, name: str, turn: int) -> None:
        """Make a connection the owner of a name, or reject that."""
        refusal = self.authorization.may_enter(connection, name, self.routes.get(name))
        if refusal is not None:
            self.fault(connection, "permission", refusal)
            connection.exited(name, refusal)
            return

        def enter() -> None:
            if connection.closing:
                return
            earlier = self.routes.get(name)
            held = 0 if earlier is None else earlier.names.get(name, 0)
            # A process abandons a connection before it opens the next: what the abandoned one still
            # had in flight comes late. Other names may have several processes.
            is_late = (
                EPHEMERAL in name and earlier is not None and earlier.number > connection.number
            )
            if earlier is not connection and (0 < turn < held or is_late):
                connection.exited(name, TAKEN_OVER)
                return
            if earlier is not None and earlier is not connection:
                earlier.exited(name, TAKEN_OVER)
            self.routes[name] = connection
            # A repeated Enter of one connection gets the same turn.
            again = held if earlier is connection else turn
            connection.entered(name, again or min(max(held + 1, self._clock.now_ns()), TURN_MAX))
            if self.on_entered is not None:
                self.on_entered(name)

        self.authorization.claim(connection, name, enter)

    def exit_name(self, connection: Connection, name: str) -> None:
        """Stop routing messages for a name to a connection."""
        connection.forget(name)
        if connection.names.pop(name, None) is not None:
            self._release(connection, name)

    def _release(self, connection: Connection, name: str) -> None:
        if self.routes.get(name) is connection:
            del self.routes[name]
            # A server that stops closes its connections itself: their clients are not gone.
            if self.on_left is not None and not self._closing:
                self.on_left(name)

    def receive_bundle(self, connection: Connection, message: bytes) -> int:
        """Process a bundle; return how many journal bytes it caused."""
        before = self._written()
        self._current = connection
        self._message = message
        try:
            if self._receive is not None:
                self._receive(message)
        finally:
            self._current, self._message = None, b""
        return self._written() - before

    def count_unfinished(self, connection: Connection, more: int) -> None:
        """Count bytes of unfinished messages; beyond the limit, close the largest."""
        del connection
        self.unfinished += more
        if self.unfinished > self.limits.unfinished_bytes:
            largest = max(self.connections, key=lambda each: 0 if each.closing else each.held)
            why = "there are too many unfinished messages"
            largest.reject("limit", too_many(self.limits, "unfinished_bytes", why))

    def when_answered(self, connection: Connection) -> None:
        """Resume a connection when all bundles so far are answered."""
        self._barrier(connection.resume)

    def fault(self, connection: Connection, kind: str, why: str) -> None:
        """Count and log a fault; a rejection by a limit counts as `limit`."""
        connection.faults += 1
        if kind == "permission" and limit_in(why):
            kind = "limit"
        logged = connection.faults <= FAULTS_LOGGED_MAX
        self._fault_of(connection.address, kind, why, logged=logged)

    def _fault_of(self, address: str, kind: str, why: str, *, logged: bool = True) -> None:
        self.errors[kind] += 1
        if logged:
            host = address.rpartition(":")[0]
            self._throttle.log(
                f"{host} {kind} {why}", logging.WARNING, f"{address}: {why}", fault=kind
            )

    def count_dropped(self) -> None:
        """Count a message dropped because the client reads too slowly."""
        self.dropped += 1
        self.dropped_slow += 1

    # -- For the transport on top ---------------------------------------------------------------

    def bad_bundle(self, error: RemoteProtocolError) -> None:
        """Close the connection that sent an invalid bundle."""
        if self._current is not None:
            self._current.reject("protocol", str(error))

    def admit(self, target: str, source: str, frames: list[Frame]) -> list[Frame]:
        """Return the admitted frames of a bundle, and answer the others."""
        connection = self._current
        assert connection is not None
        if source not in connection.names:
            raise RemoteProtocolError(f"this connection does not own the name {source!r}")
        if not frames:
            raise RemoteProtocolError("bundle has no frames")
        if target not in self._inboxes:
            self._relay(connection, target, source, frames)
            return []
        if connection.station:
            return frames
        if (claim_checker := self.claim_checkers.get(target)) is not None:
            frames = claim_checker.take_proofs(connection, source, frames)
        admitted, answers = self.screens[target](connection, source, frames)
        for answer in answers:
            of = f"not permitted of {source!r}, for {getattr(answer, 'topic', '')!r}"
            self.fault(connection, "permission", getattr(answer, "reason", of))
        if answers:
            # In one bundle, so that a client handles a rejected run of events at once.
            self._write(connection, source, target, answers)
        return admitted

    def _relay(self, connection: Connection, target: str, source: str, frames: list[Frame]) -> None:
        """Relay frames from one client to another."""
        if EPHEMERAL not in target:
            raise RemoteProtocolError(f"this server has no inbox {target!r}")
        receiver = self.routes.get(target)
        admitted = screen_relayed(
            self.authorization, connection, source, receiver or connection, frames
        )
        registry = connection.registered.get(source)
        if receiver is None:
            self.dropped += 1
            return
        if registry is None or receiver.registered.get(target) != registry:
            self.dropped_unregistered += 1
            return
        claim_checker = self.claim_checkers.get(registry)
        if claim_checker is not None:
            admitted, questions = claim_checker.screen(connection, source, receiver, admitted)
            if questions:
                self._write(connection, source, registry, questions)
        for frame in admitted:
            self.relayed[type(frame).__name__] += 1
        if len(admitted) == len(frames) and all(map(is_, admitted, frames)):
            receiver.write(framed(self._message))
        elif admitted:
            self._write(receiver, target, source, admitted)

    def _write(
        self, connection: Connection, target: str, source: str, frames: Sequence[Frame]
    ) -> None:
        """Write frames to a connection, in one bundle."""
        bodies = [self._codec.body(frame) for frame in frames]
        connection.write(framed(bundle(target, source, bodies)))
