"""One client connection, on the server's side.

The client sends Hello, then Begin with the session from the Welcome, enters names, and sends
bundles from these names only. A protocol violation closes that connection, with a reason
(`Farewell`); other connections are not affected.

Backpressure: after `BUNDLES_MAX` bundles, or `UNANSWERED_BYTES_MAX` of bundles and of the writes
they caused, the server stops reading from the connection until all of that is on disk and answered.

Limits: `Limits.message_bytes` a message, `HELLO_BYTES_MAX` before hello; `Limits.pending_bytes`
pending output, beyond which bundles to the client are dropped and counted; `CONTROL_BYTES_MAX` more
for control messages about names, which are sent once and so never dropped: beyond, the connection
is closed; `Limits.silence_s` without a whole message, however many bytes arrive.
"""

import asyncio
import logging
from collections import deque
from hmac import compare_digest
from typing import Protocol

from ensue.core import platform
from ensue.core.errors import LogDamaged, LogLost, RemoteProtocolError
from ensue.core.lineage import REPLACED
from ensue.server.admission import source_of
from ensue.server.config import Limits
from ensue.server.peer import Peer
from ensue.server.permissions import certificate_names
from ensue.transports.tcp.messages import (
    CONTROL,
    PROTOCOL,
    SESSION_BYTES,
    Begin,
    Control,
    Enter,
    Entered,
    Exit,
    Exited,
    Farewell,
    Framer,
    Hello,
    LogFault,
    Ping,
    Pong,
    decode_control,
    encode_control,
)

__all__ = ["BUNDLES_MAX", "HELLO_BYTES_MAX", "Connection", "ConnectionHost"]

HELLO_BYTES_MAX = 64 * 1024
"""Largest message before hello."""
BUNDLES_MAX = 16
"""Unanswered bundles of one connection."""
UNANSWERED_BYTES_MAX = 8 * 1024 * 1024
"""Bytes of unanswered bundles and of the writes they caused; the last bundle may exceed it."""
CONTROL_BYTES_MAX = 2 * 1024 * 1024
"""Pending control messages about names, on top of `Limits.pending_bytes`."""
LINGER_S = 1.0
"""How long a client may take to read the Farewell before its connection is aborted."""
REASON_LENGTH_MAX = 500

_log = logging.getLogger("ensue")


class ConnectionHost(Protocol):
    """The part of a server that a connection calls."""

    loop: asyncio.AbstractEventLoop
    limits: Limits
    damage: str
    """Why the log can't be read, once that is known."""

    def connection_opened(self, connection: "Connection") -> None:
        """Add a new connection."""

    def connection_closed(self, connection: "Connection") -> None:
        """Remove a connection."""

    def log_in(self, connection: "Connection", hello: Hello) -> bytes | str:
        """Return the encoded Welcome, or why the login is rejected."""

    def admit_connection(self, connection: "Connection") -> str | None:
        """Admit a connection after its login; return the limit that it exceeds, or None."""

    def enter_name(self, connection: "Connection", name: str, turn: int) -> None:
        """Make a connection the owner of a name, or reject that."""

    def exit_name(self, connection: "Connection", name: str) -> None:
        """Stop routing messages for a name to a connection."""

    def receive_bundle(self, connection: "Connection", message: bytes) -> int:
        """Process a bundle; return how many journal bytes it caused.

        Raises `RemoteProtocolError` if it is invalid.
        """

    def count_unfinished(self, connection: "Connection", more: int) -> None:
        """Count more bytes of an unfinished message."""

    def when_answered(self, connection: "Connection") -> None:
        """Call `resume` when all bundles so far are answered."""

    def fault(self, connection: "Connection", kind: str, why: str) -> None:
        """Count and log a fault of the client."""

    def count_dropped(self) -> None:
        """Count a message dropped because the client reads too slowly."""


class Connection(Peer, asyncio.Protocol):
    """One client connection."""

    def __init__(self, server: ConnectionHost) -> None:
        super().__init__()
        self.server = server
        self.hello: Hello | None = None
        self.number = 0
        """Rises with each connection that the server accepts."""
        self.session = platform.current().token_bytes(SESSION_BYTES)
        """Random id of this connection: a replayed Begin names another session."""
        self.established = False
        """Whether Begin has named the session; before, no other message is accepted."""
        self.names: dict[str, int] = {}
        """Names it owns, and its turn at each."""
        self.station = ""
        """The name of the server, if the client is another server of the chain."""
        self.address = self.host = "?"
        """Its address, and the source that it counts for (`ensue.server.admission`)."""
        self.certificate: tuple[str, ...] = ()
        """The names in its TLS certificate."""
        self.heard_s = 0.0
        self.faults = 0
        self.dropped = 0
        """Messages dropped because too much was pending."""
        self._transport: asyncio.Transport | None = None
        self._framer = Framer(HELLO_BYTES_MAX)
        self._held = 0
        self._inbox: deque[bytes] = deque()
        self._unanswered = 0
        self._unanswered_bytes = 0
        self._waiting = False
        """Whether reading is paused until all bundles so far are answered."""
        self._out: list[bytes] = []
        self._pending = 0
        self._control_bytes = 0
        """Bytes of control messages since the output was last below its limit."""
        self._timer: asyncio.TimerHandle | None = None

    # -- From the event loop --------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection and start its hello timeout."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self.address = f"{peer[0]}:{peer[1]}" if peer else "?"
        self.host = source_of(peer)
        self.certificate = certificate_names(transport.get_extra_info("peercert"))
        self.heard_s = self.server.loop.time()
        self.server.connection_opened(self)
        wait_s = self.server.limits.unauthenticated_s
        self._timer = self.server.loop.call_later(wait_s, self._check_silence)

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection."""
        self._inbox.clear()
        self.server.count_unfinished(self, -self._held)
        self._held = 0
        self.server.connection_closed(self)
        if self._timer is not None:
            self._timer.cancel()
        if exc is not None:
            _log.debug("connection lost peer=%s: %s", self.address, exc)

    def data_received(self, data: bytes) -> None:
        """Split the data into messages and process them."""
        try:
            messages = self._framer.feed(data)
        except RemoteProtocolError as error:
            self.reject("protocol", str(error))
            return
        if messages:
            self.heard_s = self.server.loop.time()
            self._inbox.extend(messages)
        more = self._framer.held - self._held
        if more:
            self._held = self._framer.held
            self.server.count_unfinished(self, more)
        self._process()

    def pause_writing(self) -> None:
        """Do nothing: each write checks how much is pending."""

    # -- For the server -------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Send bytes at the end of this loop iteration, unless too much is pending."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self.pending > self.server.limits.pending_bytes:
            self.dropped += 1
            self.server.count_dropped()
            return
        self._add(data)

    def send_control(self, message: Control) -> None:
        """Send a control message about a name, whatever is pending.

        It is sent once and the client waits for it, so it is never dropped.
        """
        if self.closing:
            return
        data = encode_control(message)
        if self.pending <= self.server.limits.pending_bytes:
            self._control_bytes = 0
        elif self._control_bytes + len(data) > CONTROL_BYTES_MAX:
            self.reject("limit", "the client enters names and does not read the replies")
            return
        self._control_bytes += len(data)
        self._add(data)

    def _add(self, data: bytes) -> None:
        if not self._out:
            self.server.loop.call_soon(self._flush)
        self._out.append(data)
        self._pending += len(data)

    def reject(self, kind: str, why: str, *, final: bool = False) -> None:
        """Count a fault, send the reason, and close the connection."""
        self.server.fault(self, kind, why)
        self.farewell(why, final=final)

    def farewell(
        self,
        reason: str,
        *,
        final: bool = False,
        log: LogFault = "",
    ) -> None:
        """Send a Farewell with the reason, and close the connection."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self._inbox.clear()
        self._flush()
        message = Farewell(reason=reason[:REASON_LENGTH_MAX], final=final, log=log)
        transport.write(encode_control(message))
        transport.close()
        # A client that does not read would keep the connection open.
        self.server.loop.call_later(LINGER_S, self.abort)

    def abort(self) -> None:
        """Close the connection at once, without flushing."""
        if self._transport is not None:
            self._transport.abort()

    def resume(self) -> None:
        """Resume reading: all bundles so far are answered."""
        self.server.loop.call_soon(self._resume)

    def entered(self, name: str, turn: int) -> None:
        """Confirm that the client owns a name."""
        self.names[name] = turn
        self.send_control(Entered(name=name, turn=turn))

    def exited(self, name: str, reason: str) -> None:
        """Notify the client that it does not, or no longer, own a name."""
        self.names.pop(name, None)
        self.forget(name)
        self.send_control(Exited(name=name, reason=reason))

    def forget(self, name: str) -> None:
        """Forget the attachments and the registry of a name."""
        self.attached.pop(name, None)
        self.registered.pop(name, None)

    @property
    def held(self) -> int:
        """Bytes of an unfinished message."""
        return self._held

    @property
    def pending(self) -> int:
        """Bytes of output not yet sent."""
        transport = self._transport
        return self._pending + (0 if transport is None else transport.get_write_buffer_size())

    @property
    def closing(self) -> bool:
        """Whether the connection is closed or closing."""
        return self._transport is None or self._transport.is_closing()

    # -- Messages -------------------------------------------------------------------------------

    def _flush(self) -> None:
        out, self._out, self._pending = self._out, [], 0
        if out and self._transport is not None and not self._transport.is_closing():
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))

    def _process(self) -> None:
        """Process received messages until the queue is empty or reading is paused."""
        inbox = self._inbox
        try:
            while inbox and not self._waiting and not self.closing:
                message = inbox.popleft()
                if message[0] == CONTROL:
                    self._control(decode_control(message))
                else:
                    self._bundle(message)
        except RemoteProtocolError as error:
            self.reject("protocol", str(error))
        except LogDamaged:  # The server stops, and has logged why.
            self.farewell(self.server.damage, log="damaged")
        except Exception:  # noqa: BLE001 - a bug, which must not affect other connections
            _log.exception("internal error peer=%s", self.address)
            self.reject("internal", "internal error; the server's log says more")

    def _bundle(self, message: bytes) -> None:
        if not self.established:
            raise RemoteProtocolError(
                "expected hello first" if self.hello is None else "expected begin after welcome"
            )
        self._unanswered_bytes += len(message) + self.server.receive_bundle(self, message)
        self._unanswered += 1
        full = self._unanswered >= BUNDLES_MAX or self._unanswered_bytes >= UNANSWERED_BYTES_MAX
        if full and self._transport is not None:
            self._waiting = True
            self._transport.pause_reading()
            self.server.when_answered(self)

    def _resume(self) -> None:
        self._unanswered = self._unanswered_bytes = 0
        self._waiting = False
        self._process()
        if not self._waiting and self._transport is not None and not self.closing:
            self._transport.resume_reading()

    def _control(self, message: Control) -> None:
        if self.hello is None:
            if not isinstance(message, Hello):
                raise RemoteProtocolError("expected hello first")
            self._log_in(message)
            return
        if not self.established:
            self._begin(message)
            return
        match message:
            case Enter(name=name, turn=turn):
                self.server.enter_name(self, name, turn)
            case Exit(name=name):
                self.server.exit_name(self, name)
            case Ping(number=number):
                self.write(encode_control(Pong(number=number)))
            case Pong():
                pass
            case Farewell(reason=reason):
                _log.info(
                    "client closed peer=%s reason=%r", self.address, reason[:REASON_LENGTH_MAX]
                )
                self.abort()
            case Hello() | Begin():
                raise RemoteProtocolError("hello was already sent")
            case _:
                raise RemoteProtocolError(f"{type(message).__name__} is not for a server")

    def _log_in(self, hello: Hello) -> None:
        if hello.protocol != PROTOCOL:
            why = (
                f"the client has protocol version {hello.protocol}, the server {PROTOCOL}: "
                "install the same release"
            )
            self.reject("protocol", why, final=True)
            return
        try:
            welcome = self.server.log_in(self, hello)
        except LogLost as error:
            self.server.fault(self, "login", str(error))
            log: LogFault = "replaced" if error.reason == REPLACED else "rolled back"
            self.farewell(str(error), final=True, log=log)
            return
        if isinstance(welcome, str):
            self.reject("login", welcome, final=True)
            return
        limit = self.server.admit_connection(self)
        if limit is not None:
            self.reject("limit", limit)
            return
        self.hello = hello
        self._framer.bytes_max = self.server.limits.message_bytes
        self.write(welcome)

    def _begin(self, message: Control) -> None:
        if not isinstance(message, Begin):
            raise RemoteProtocolError("expected begin after welcome")
        if not compare_digest(message.session, self.session):
            raise RemoteProtocolError("begin names the session of another connection")
        self.established = True

    def _check_silence(self) -> None:
        """Close the connection if hello, or a whole message, is overdue."""
        limits, loop = self.server.limits, self.server.loop
        silence_s = loop.time() - self.heard_s
        if not self.established:
            self.reject("silent", f"no hello within {limits.unauthenticated_s:g} s")
        elif silence_s >= limits.silence_s and not self._waiting:
            self.reject("silent", f"no whole message for {silence_s:.3g} s")
        else:
            wait_s = max(limits.silence_s - silence_s, limits.silence_s / 10)
            self._timer = loop.call_later(wait_s, self._check_silence)
