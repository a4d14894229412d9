"""The connections to a server, as a carrier: a message to a name goes to whoever entered under it.

A connection says hello first, then enters under names, and may send bundles from those names only.
Whatever breaks these rules, or can't be read, costs its sender the connection, with a word on why
(`Farewell`), and nobody else anything.

A name belongs to the connection that entered last: a client that lost a connection comes back before
the server has noticed. The earlier one is told (`Exited`).

Slow consumers: what waits for a connection is bounded by `Limits.pending_bytes`. Beyond, messages to it
are dropped and counted; its subscriptions see the gap, and ask the log for it when they have caught
up. So a client that stops reading costs the server that much memory, and the others nothing.
"""

import asyncio
import contextlib
import logging
import ssl
from collections import Counter
from collections.abc import Callable

from ensue.errors import RemoteProtocolError, TransportError
from ensue.protocols.core import Frame
from ensue.server.config import Limits
from ensue.transports.base import Capabilities
from ensue.transports.carrier import Inbox
from ensue.transports.tcp_messages import (
    CONTROL,
    PROTOCOL,
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
    framed,
)

__all__ = ["Listener", "Visitor"]

HELLO_BYTES_MAX = 64 * 1024
"""Of a message before hello."""

_log = logging.getLogger("ensue")


class Visitor(asyncio.Protocol):
    """One connection, seen from the server."""

    def __init__(self, listener: "Listener") -> None:
        self.listener = listener
        self.hello: Hello | None = None
        self.names: dict[str, None] = {}
        self.address = ""
        self.heard_s = 0.0
        self.dropped = 0
        """Messages that were dropped because too much was pending."""
        self._transport: asyncio.Transport | None = None
        self._framer = Framer(HELLO_BYTES_MAX)
        self._out: list[bytes] = []
        self._pending = 0
        self._watch: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection up, if there is room."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self.address = f"{peer[0]}:{peer[1]}" if peer else "?"
        listener = self.listener
        listener.visitors[self] = None
        self.heard_s = listener.loop.time()
        if len(listener.visitors) > listener.limits.connections:
            self.farewell(f"there are {listener.limits.connections} connections already")
            return
        wait_s = listener.limits.unauthenticated_s
        self._watch = listener.loop.call_later(wait_s, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self.listener.gone(self)
        if self._watch is not None:
            self._watch.cancel()
        if exc is not None:
            _log.debug("%s is gone: %s", self.address, exc)

    def data_received(self, data: bytes) -> None:
        """Cut what arrived into messages and see to them."""
        self.heard_s = self.listener.loop.time()
        try:
            for message in self._framer.feed(data):
                if self._transport is None or self._transport.is_closing():
                    return
                if message[0] == CONTROL:
                    self._control(decode_control(message))
                else:
                    self.listener.take(self, message)
        except RemoteProtocolError as error:
            self.listener.errors["protocol"] += 1
            _log.warning("%s: %s", self.address, error)
            self.farewell(str(error))

    def pause_writing(self) -> None:
        """Do nothing: what is pending is looked at before each write."""

    def write(self, data: bytes) -> None:
        """Send bytes at the end of this turn, unless too much is pending."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._pending + transport.get_write_buffer_size() > self.listener.limits.pending_bytes:
            self.dropped += 1
            self.listener.dropped += 1
            return
        if not self._out:
            self.listener.loop.call_soon(self._flush)
        self._out.append(data)
        self._pending += len(data)

    def farewell(self, reason: str, *, final: bool = False) -> None:
        """Say why, and hang up."""
        if self._transport is None or self._transport.is_closing():
            return
        self._flush()
        self._transport.write(encode_control(Farewell(reason=reason[:1000], final=final)))
        self._transport.close()

    def abort(self) -> None:
        """Hang up at once."""
        if self._transport is not None:
            self._transport.abort()

    @property
    def pending(self) -> int:
        """Bytes that wait for this connection."""
        transport = self._transport
        return self._pending + (0 if transport is None else transport.get_write_buffer_size())

    @property
    def transport(self) -> asyncio.Transport | None:
        """The connection itself."""
        return self._transport

    def _flush(self) -> None:
        out, self._out, self._pending = self._out, [], 0
        if out and self._transport is not None and not self._transport.is_closing():
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))

    def _control(self, message: Control) -> None:
        if self.hello is None:
            if not isinstance(message, Hello):
                raise RemoteProtocolError("expected hello first")
            self._greet(message)
            return
        match message:
            case Enter(name=name):
                self._enter(name)
            case Exit(name=name):
                if self.names.pop(name, 0) is None and self.listener.routes.get(name) is self:
                    del self.listener.routes[name]
            case Ping(number=number):
                self.write(encode_control(Pong(number=number)))
            case Pong():
                pass
            case Farewell(reason=reason):
                _log.info("%s hangs up: %s", self.address, reason)
                self.abort()
            case _:
                raise RemoteProtocolError(f"{type(message).__name__} is not for a server")

    def _greet(self, hello: Hello) -> None:
        if hello.protocol != PROTOCOL:
            self.farewell(
                f"this server speaks version {PROTOCOL} of the protocol, not {hello.protocol}",
                final=True,
            )
            return
        refusal = self.listener.login(self, hello)
        if refusal is not None:
            self.listener.errors["login"] += 1
            _log.warning("%s was not let in: %s", self.address, refusal)
            self.farewell(refusal, final=True)
            return
        self.hello = hello
        self._framer.bytes_max = self.listener.limits.message_bytes
        self.write(encode_control(self.listener.welcome()))

    def _enter(self, name: str) -> None:
        refusal = self.listener.may_enter(self, name)
        if refusal is not None:
            self.listener.errors["permission"] += 1
            self.write(encode_control(Exited(name=name, reason=refusal)))
            return
        earlier = self.listener.routes.get(name)
        if earlier is not None and earlier is not self:
            earlier.names.pop(name, None)
            earlier.write(encode_control(Exited(name=name, reason="taken over")))
        self.names[name] = None
        self.listener.routes[name] = self
        self.write(encode_control(Entered(name=name)))

    def _look(self) -> None:
        """Hang up on whoever has not said hello, or nothing at all for long."""
        limits, loop = self.listener.limits, self.listener.loop
        silence_s = loop.time() - self.heard_s
        if self.hello is None:
            self.listener.errors["silent"] += 1
            self.farewell(f"no hello within {limits.unauthenticated_s:g} s")
        elif silence_s >= limits.silence_s:
            self.listener.errors["silent"] += 1
            self.farewell(f"nothing heard for {silence_s:.0f} s")
            loop.call_later(1.0, self.abort)
        else:
            self._watch = loop.call_later(limits.silence_s - silence_s, self._look)


class Listener:
    """Listens for connections; carries messages from and to them."""

    name = "ensue://"
    capabilities = Capabilities(
        orders=("total",), fifo=True, durable=True, replay=True, conditional=True
    )

    def __init__(
        self,
        host: str,
        port: int,
        *,
        limits: Limits,
        welcome: Callable[[], Welcome],
        context: ssl.SSLContext | None = None,
    ) -> None:
        self.host, self.port = host, port
        self.limits = limits
        self.welcome = welcome
        self.loop = asyncio.get_running_loop()
        self.visitors: dict[Visitor, None] = {}
        self.routes: dict[str, Visitor] = {}
        """Names to the connections that entered under them."""
        self.errors: Counter[str] = Counter()
        """How often somebody broke which rule."""
        self.dropped = 0
        self.on_reconnect: Callable[[], None] | None = None
        self.current: Visitor | None = None
        """Whose bundle is being looked at."""
        self._context = context
        self._inboxes: dict[str, Inbox] = {}
        self._receive: Inbox | None = None
        self._server: asyncio.Server | None = None
        self._emptied: asyncio.Event | None = None

    async def start(self) -> None:
        """Begin to listen."""
        try:
            self._server = await self.loop.create_server(
                lambda: Visitor(self), self.host, self.port, ssl=self._context
            )
        except OSError as error:
            raise TransportError(
                f"can't listen on {self.host}:{self.port}: {error.strerror or error}"
            ) from error
        self.port = self._server.sockets[0].getsockname()[1]

    async def open(self, peer: str, receive: Inbox) -> None:
        """Take what connections send; bundles say themselves whom they are for."""
        self._inboxes[peer] = receive
        self._receive = receive

    async def shut(self, peer: str) -> None:
        """Take nothing more for a name."""
        self._inboxes.pop(peer, None)

    async def join(self, topic: str, receive: Inbox) -> None:
        """Do nothing: there is no multicast here."""

    async def leave(self, topic: str) -> None:
        """Do nothing: there is no multicast here."""

    def send(self, peer: str, data: bytes) -> None:
        """Send to whoever entered under a name."""
        visitor = self.routes.get(peer)
        if visitor is None:
            self.dropped += 1
        else:
            visitor.write(framed(data))

    def multicast(self, topic: str, data: bytes) -> None:
        """Refuse: connections are sent to one by one."""
        raise NotImplementedError(f"{len(data)} bytes can't be multicast to {topic!r} here")

    async def close(self) -> None:
        """Tell everybody, and hang up."""
        if self._server is not None:
            self._server.close()
        for visitor in list(self.visitors):
            visitor.farewell("the server is shutting down")
        if self.visitors:
            self._emptied = asyncio.Event()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._emptied.wait(), timeout=1.0)
        for visitor in list(self.visitors):
            visitor.abort()

    # -- For visitors, and whoever decides about them --------------------------------------------

    def gone(self, visitor: Visitor) -> None:
        """Forget a connection."""
        self.visitors.pop(visitor, None)
        for name in visitor.names:
            if self.routes.get(name) is visitor:
                del self.routes[name]
        if not self.visitors and self._emptied is not None:
            self._emptied.set()

    def take(self, visitor: Visitor, message: bytes) -> None:
        """Hand a bundle over, remembering who sent it."""
        if visitor.hello is None:
            raise RemoteProtocolError("expected hello first")
        self.current = visitor
        try:
            if self._receive is not None:
                self._receive(message)
        finally:
            self.current = None

    def bad_bundle(self, error: RemoteProtocolError) -> None:
        """Hang up on whoever sent a bundle that can't be read or was not theirs to send."""
        visitor = self.current
        self.errors["protocol"] += 1
        if visitor is not None:
            _log.warning("%s: %s", visitor.address, error)
            visitor.farewell(str(error))

    def login(self, visitor: Visitor, hello: Hello) -> str | None:
        """Say why somebody is not let in; None: come in."""
        del visitor, hello
        return None

    def may_enter(self, visitor: Visitor, name: str) -> str | None:
        """Say why a connection may not enter under a name; None: it may."""
        if len(visitor.names) >= self.limits.names_per_connection:
            return f"a connection enters under {self.limits.names_per_connection} names at the most"
        if name in self._inboxes:
            return f"{name!r} is the server itself"
        return None

    def admit(self, source: str, frames: list[Frame]) -> None:
        """Refuse a bundle that its connection may not send."""
        del frames
        visitor = self.current
        if visitor is not None and source not in visitor.names:
            raise RemoteProtocolError(f"a bundle from {source!r}, which this connection is not")
