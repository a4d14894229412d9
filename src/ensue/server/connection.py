"""One connection to a server, seen from the server.

It says hello first, begins the session that it is welcomed to, then enters under names, and may send bundles from those names only. Whatever breaks
these rules, or can't be read, costs its sender the connection, with a word on why (`Farewell`), and
nobody else anything.

Whoever asks faster than it can be answered is read from no faster: after `BUNDLES_MAX` bundles, or
`UNANSWERED_BYTES_MAX` of them and of what they made the server write, nothing more is read until all that
they caused is on the disk and on its way.

Limits: `Limits.message_bytes` a message, `HELLO_BYTES_MAX` before hello; `Limits.pending_bytes` that wait
for the connection, beyond which bundles to it are dropped and counted, and `TOLD_BYTES_MAX` of word on
its names, which is said once and so never dropped: beyond, it is hung up on; `Limits.silence_s` without
a whole message, however many bytes come meanwhile.
"""

import asyncio
import logging
from collections import deque
from hmac import compare_digest
from secrets import token_bytes
from typing import Protocol

from ensue.errors import LogDamaged, LogLost, RemoteProtocolError
from ensue.protocols.lineage import REPLACED
from ensue.server.access import certificate_names
from ensue.server.admission import source_of
from ensue.server.config import Limits
from ensue.server.guest import Guest
from ensue.transports.tcp_messages import (
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

__all__ = ["BUNDLES_MAX", "HELLO_BYTES_MAX", "House", "Visitor"]

HELLO_BYTES_MAX = 64 * 1024
"""Of a message before hello."""
BUNDLES_MAX = 16
"""Bundles of one connection whose answers are not on their way."""
UNANSWERED_BYTES_MAX = 8 * 1024 * 1024
"""Of such bundles and of what they made the server write; the last one is taken whole."""
TOLD_BYTES_MAX = 2 * 1024 * 1024
"""Of word on its names that waits for a connection, on top of all that is pending."""
LINGER_S = 1.0
"""How long somebody who is hung up on may take to read why."""
REASON_LENGTH_MAX = 500

_log = logging.getLogger("ensue")


class House(Protocol):
    """Where a visitor is: what it may do there, and whom to tell."""

    loop: asyncio.AbstractEventLoop
    limits: Limits
    damage: str
    """Why the log can't be read, once that is known."""

    def arrived(self, visitor: "Visitor") -> None:
        """Take a connection up."""

    def gone(self, visitor: "Visitor") -> None:
        """Forget a connection."""

    def greet(self, visitor: "Visitor", hello: Hello) -> bytes | str:
        """Return what to welcome somebody with, or say why they are not let in."""

    def make_room(self, visitor: "Visitor") -> str | None:
        """Give a place to somebody who may come in; return why there is none."""

    def let_in(self, visitor: "Visitor", name: str, turn: int) -> None:
        """Let a connection enter under a name, or enter again, or refuse it."""

    def let_go(self, visitor: "Visitor", name: str) -> None:
        """Have no more messages for a name go to a connection."""

    def take(self, visitor: "Visitor", message: bytes) -> int:
        """Take a bundle, or raise `RemoteProtocolError`; return how many bytes it caused to be written."""

    def held(self, visitor: "Visitor", more: int) -> None:
        """Hear how many more bytes of a message that is not whole a connection has."""

    def when_answered(self, visitor: "Visitor") -> None:
        """Call `go_on` when everything that was taken so far is answered."""

    def fault(self, visitor: "Visitor", kind: str, why: str) -> None:
        """Count what somebody did wrong."""

    def dropped_one(self) -> None:
        """Count a message that was dropped because too much was pending."""


class Visitor(Guest, asyncio.Protocol):
    """One connection."""

    def __init__(self, house: House) -> None:
        super().__init__()
        self.house = house
        self.hello: Hello | None = None
        self.session = token_bytes(SESSION_BYTES)
        """Of this connection alone: what was recorded on another one names another."""
        self.begun = False
        """Whether it has named the session: before, nothing but that is taken."""
        self.names: dict[str, int] = {}
        """Names that it has entered under, and its turn at each."""
        self.station = ""
        """The server of the chain that it is, if it is one."""
        self.address = self.host = "?"
        """Where it is, and what it counts for there (`ensue.server.admission`)."""
        self.certificate: tuple[str, ...] = ()
        """The names in the certificate that it showed."""
        self.heard_s = 0.0
        self.faults = 0
        self.dropped = 0
        """Messages that were dropped because too much was pending."""
        self._transport: asyncio.Transport | None = None
        self._framer = Framer(HELLO_BYTES_MAX)
        self._held = 0
        self._inbox: deque[bytes] = deque()
        self._unanswered = 0
        self._unanswered_bytes = 0
        self._waiting = False
        """Whether nothing more is taken until what was taken is answered."""
        self._out: list[bytes] = []
        self._pending = 0
        self._told = 0
        """Bytes of word on its names since there was last room."""
        self._watch: asyncio.TimerHandle | None = None

    # -- From the event loop --------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection up, if there is room."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self.address = f"{peer[0]}:{peer[1]}" if peer else "?"
        self.host = source_of(peer)
        self.certificate = certificate_names(transport.get_extra_info("peercert"))
        self.heard_s = self.house.loop.time()
        self.house.arrived(self)
        wait_s = self.house.limits.unauthenticated_s
        self._watch = self.house.loop.call_later(wait_s, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._inbox.clear()
        self.house.held(self, -self._held)
        self._held = 0
        self.house.gone(self)
        if self._watch is not None:
            self._watch.cancel()
        if exc is not None:
            _log.debug("%s is gone: %s", self.address, exc)

    def data_received(self, data: bytes) -> None:
        """Cut what arrived into messages and see to them."""
        try:
            messages = self._framer.feed(data)
        except RemoteProtocolError as error:
            self.reject("protocol", str(error))
            return
        if messages:
            self.heard_s = self.house.loop.time()
            self._inbox.extend(messages)
        more = self._framer.held - self._held
        if more:
            self._held = self._framer.held
            self.house.held(self, more)
        self._work()

    def pause_writing(self) -> None:
        """Do nothing: what is pending is looked at before each write."""

    # -- For the house --------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Send bytes at the end of this turn, unless too much is pending."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self.pending > self.house.limits.pending_bytes:
            self.dropped += 1
            self.house.dropped_one()
            return
        self._add(data)

    def tell(self, message: Control) -> None:
        """Send word on a name, whatever is pending: it is said once, and somebody waits for it."""
        if self.closing:
            return
        data = encode_control(message)
        if self.pending <= self.house.limits.pending_bytes:
            self._told = 0
        elif self._told + len(data) > TOLD_BYTES_MAX:
            self.reject("limit", "it enters under names, and does not read what it is told")
            return
        self._told += len(data)
        self._add(data)

    def _add(self, data: bytes) -> None:
        if not self._out:
            self.house.loop.call_soon(self._flush)
        self._out.append(data)
        self._pending += len(data)

    def reject(self, kind: str, why: str, *, final: bool = False) -> None:
        """Count what is wrong, say it, and hang up."""
        self.house.fault(self, kind, why)
        self.farewell(why, final=final)

    def farewell(
        self,
        reason: str,
        *,
        final: bool = False,
        log: LogFault = "",
    ) -> None:
        """Say why, and hang up."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self._inbox.clear()
        self._flush()
        said = Farewell(reason=reason[:REASON_LENGTH_MAX], final=final, log=log)
        transport.write(encode_control(said))
        transport.close()
        # Whoever does not read would keep the connection open for as long as it likes.
        self.house.loop.call_later(LINGER_S, self.abort)

    def abort(self) -> None:
        """Hang up at once."""
        if self._transport is not None:
            self._transport.abort()

    def go_on(self) -> None:
        """Take more: what was taken is answered."""
        self.house.loop.call_soon(self._go_on)

    def entered(self, name: str, turn: int) -> None:
        """Tell that the name is its own."""
        self.names[name] = turn
        self.tell(Entered(name=name, turn=turn))

    def exited(self, name: str, reason: str) -> None:
        """Tell that the name is not, or no longer, its own."""
        self.names.pop(name, None)
        self.forget(name)
        self.tell(Exited(name=name, reason=reason))

    def forget(self, name: str) -> None:
        """Forget what a name had to do with others."""
        self.attached.pop(name, None)
        self.enrolled.pop(name, None)

    @property
    def held(self) -> int:
        """Bytes of a message that is not whole."""
        return self._held

    @property
    def pending(self) -> int:
        """Bytes that wait for this connection."""
        transport = self._transport
        return self._pending + (0 if transport is None else transport.get_write_buffer_size())

    @property
    def closing(self) -> bool:
        """Whether it is over."""
        return self._transport is None or self._transport.is_closing()

    # -- Within ---------------------------------------------------------------------------------

    def _flush(self) -> None:
        out, self._out, self._pending = self._out, [], 0
        if out and self._transport is not None and not self._transport.is_closing():
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))

    def _work(self) -> None:
        """See to what has come, as far as it is its turn."""
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
        except LogDamaged:  # The server ends, and has said so.
            self.farewell(self.house.damage, log="damaged")
        except Exception:  # noqa: BLE001 - a bug, and not one that may cost anybody else anything
            _log.exception("%s sent something that could not be handled", self.address)
            self.reject("internal", "this could not be handled; the server's log says more")

    def _bundle(self, message: bytes) -> None:
        if not self.begun:
            raise RemoteProtocolError(
                "expected hello first" if self.hello is None else "expected begin after welcome"
            )
        self._unanswered_bytes += len(message) + self.house.take(self, message)
        self._unanswered += 1
        much = self._unanswered >= BUNDLES_MAX or self._unanswered_bytes >= UNANSWERED_BYTES_MAX
        if much and self._transport is not None:
            self._waiting = True
            self._transport.pause_reading()
            self.house.when_answered(self)

    def _go_on(self) -> None:
        self._unanswered = self._unanswered_bytes = 0
        self._waiting = False
        self._work()
        if not self._waiting and self._transport is not None and not self.closing:
            self._transport.resume_reading()

    def _control(self, message: Control) -> None:
        if self.hello is None:
            if not isinstance(message, Hello):
                raise RemoteProtocolError("expected hello first")
            self._greet(message)
            return
        if not self.begun:
            self._begin(message)
            return
        match message:
            case Enter(name=name, turn=turn):
                self.house.let_in(self, name, turn)
            case Exit(name=name):
                self.house.let_go(self, name)
            case Ping(number=number):
                self.write(encode_control(Pong(number=number)))
            case Pong():
                pass
            case Farewell(reason=reason):
                _log.info("%s hangs up: %r", self.address, reason[:REASON_LENGTH_MAX])
                self.abort()
            case Hello() | Begin():
                raise RemoteProtocolError("hello has been said before")
            case _:
                raise RemoteProtocolError(f"{type(message).__name__} is not for a server")

    def _greet(self, hello: Hello) -> None:
        if hello.protocol != PROTOCOL:
            why = f"this server speaks version {PROTOCOL} of the protocol, not {hello.protocol}"
            self.reject("protocol", why, final=True)
            return
        try:
            welcome = self.house.greet(self, hello)
        except LogLost as error:
            self.house.fault(self, "login", str(error))
            log: LogFault = "replaced" if error.reason == REPLACED else "rolled back"
            self.farewell(str(error), final=True, log=log)
            return
        if isinstance(welcome, str):
            self.reject("login", welcome, final=True)
            return
        full = self.house.make_room(self)
        if full is not None:
            self.reject("limit", full)
            return
        self.hello = hello
        self._framer.bytes_max = self.house.limits.message_bytes
        self.write(welcome)

    def _begin(self, message: Control) -> None:
        if not isinstance(message, Begin):
            raise RemoteProtocolError("expected begin after welcome")
        if not compare_digest(message.session, self.session):
            raise RemoteProtocolError("the session of another connection: say what this one's is")
        self.begun = True

    def _look(self) -> None:
        """Hang up on whoever has not said hello, or nothing whole for long."""
        limits, loop = self.house.limits, self.house.loop
        silence_s = loop.time() - self.heard_s
        if not self.begun:
            self.reject("silent", f"no hello within {limits.unauthenticated_s:g} s")
        elif silence_s >= limits.silence_s and not self._waiting:
            self.reject("silent", f"no whole message for {silence_s:.3g} s")
        else:
            wait_s = max(limits.silence_s - silence_s, limits.silence_s / 10)
            self._watch = loop.call_later(wait_s, self._look)
