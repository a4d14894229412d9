"""The connections to a server, as a carrier: a message to a name goes to whoever entered under it.

A name belongs to the client that entered last, and the earlier one is told (`Exited`). A client that
lost a connection comes back, maybe before the server has noticed, and shows the turn that it was given
when it entered: the time, so that it is also in its place after a restart of the server. It is refused
if somebody else has entered since. `ensue.server.rules` says who may enter under which name.

HAZARD: while the server's clock is set back, a client that comes back may be taken for the later one,
and then both lose the name: the keeper of its records, who goes by epochs, refuses the earlier.

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
from operator import is_
from typing import Protocol

import msgspec

from ensue.clock import system_clock
from ensue.errors import RemoteProtocolError, TransportError, limit_in
from ensue.protocols.core import Frame
from ensue.protocols.lineage import Lineage
from ensue.protocols.station import EPHEMERAL
from ensue.server.admission import Admission
from ensue.server.carrying import screen_passed
from ensue.server.config import Limits, too_many
from ensue.server.door import Door
from ensue.server.relay import Relay
from ensue.server.rules import Rules
from ensue.server.visitor import LINGER_S, Visitor
from ensue.transports.carrier import Inbox
from ensue.transports.tcp_messages import (
    TAKEN_OVER,
    TURN_MAX,
    Hello,
    Welcome,
    encode_control,
    framed,
)
from ensue.transports.tcp_options import CAPABILITIES, parse_address, write_address
from ensue.transports.throttle import Throttle
from ensue.wire import Codec, bundle

__all__ = ["Listener", "Outside", "check_free"]

FAULTS_TOLD = 20
"""So many faults of one connection are logged; all are counted."""

SHUTTING_DOWN = "the server is shutting down"

_log = logging.getLogger("ensue")

Screen = Callable[[Visitor, str, list[Frame]], tuple[list[Frame], list[Frame]]]
Barrier = Callable[[Callable[[], None]], None]
"""Calls back when everything that was taken so far is answered."""


async def check_free(address: str, *, what: str = "") -> None:
    """Refuse an address that can't be listened on, without letting anybody in."""
    host, port = parse_address(address, what="the address to listen on")
    loop = asyncio.get_running_loop()
    try:
        server = await loop.create_server(asyncio.Protocol, host, port, start_serving=False)
    except OSError as error:
        raise TransportError(
            f"{what}can't listen on {write_address(host, port)}: {error.strerror or error}"
        ) from error
    server.close()


class Outside(Protocol):
    """A peer that is reached otherwise than by its connection to this server."""

    def send(self, peer: str, data: bytes) -> None:
        """Send to it."""


class Listener:
    """Listens for connections; carries messages from and to them."""

    name = "ensue://"
    capabilities = CAPABILITIES
    damage = ""
    """Why the log can't be read, once that is known."""
    on_station: Callable[[str, Lineage], None] | None = None
    """Told which log a server of the chain has that connects; raises `LogLost` if it had another."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        rules: Rules,
        codec: Codec,
        welcome: Callable[[], Welcome],
        barrier: Barrier,
        written: Callable[[], int],
        context: ssl.SSLContext | None = None,
    ) -> None:
        self.host, self.port, self.rules = host, port, rules
        self.limits: Limits = rules.limits
        self.loop = asyncio.get_running_loop()
        self.visitors: dict[Visitor, None] = {}
        self.routes: dict[str, Visitor] = {}
        """Names to the connections that entered under them."""
        self.neighbours: dict[str, Outside] = {}
        """Servers of the chain, which are sent to by connections of this one's own."""
        self.errors: Counter[str] = Counter()
        """How often somebody broke which rule."""
        self.admission = Admission(self.limits, time_s=self.loop.time, errors=self.errors)
        self.dropped = 0
        """Messages that reached nobody: too much was pending, or there was nobody of that name."""
        self.dropped_slow = 0
        """Those of them for which too much was pending."""
        self.dropped_strange = 0
        """Messages of a client for another that were dropped because the two had not enrolled together."""
        self.passed_on: Counter[str] = Counter()
        """Frames that clients sent each other, by kind."""
        self.arrivals = 0
        """Connections since the start."""
        self.unfinished = 0
        """Bytes of messages that are not whole, of all connections together."""
        self.on_reconnect: Callable[[], None] | None = None
        self.on_entered: Callable[[str], None] | None = None
        """Told a name that a connection has from now on."""
        self.on_left: Callable[[str], None] | None = None
        """Told a name that no connection has any more."""
        self.screens: dict[str, Screen] = {rules.server: rules.screen}
        """By inbox: what is asked which frames of a client are let through, and what it is told."""
        self.relays: dict[str, Relay] = {}
        """By registry: what seals and checks the frames that its clients send each other, on a server with users."""
        self._clock = system_clock()
        self._current: Visitor | None = None
        """Whose bundle is being looked at, …"""
        self._message = b""
        """… and the bundle."""
        self._welcome = welcome
        self._barrier, self._codec = barrier, codec
        self._written = written
        """Tells how many bytes were to be written since the start."""
        self._door: Door | None = None
        """Where those are who have not shaken hands yet, if this is a server that speaks TLS."""
        if context is not None:
            self._door = Door(
                context,
                handshake_s=self.limits.unauthenticated_s,
                admission=self.admission,
                visitor=self._make_visitor,
                fault=self._fault_of,
            )
        self._inboxes: dict[str, Inbox] = {}
        self._receive: Inbox | None = None
        self._server: asyncio.Server | None = None
        self._emptied: asyncio.Event | None = None
        self._closing, self._throttle = False, Throttle(_log)

    @property
    def at_door(self) -> int:
        """How many were accepted and have not shaken hands yet."""
        return 0 if self._door is None else self._door.waiting

    # -- As a carrier ---------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to listen."""
        try:
            accept: Callable[[], asyncio.Protocol] = self._make_visitor
            if self._door is not None:
                accept = self._door.protocol
            self._server = await self.loop.create_server(accept, self.host, self.port)
        except OSError as error:
            raise TransportError(
                f"can't listen on {write_address(self.host, self.port)}: {error.strerror or error}"
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
        """Send to a server of the chain, or to whoever entered under a name."""
        neighbour = self.neighbours.get(peer)
        if neighbour is not None:
            neighbour.send(peer, data)
            return
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
        self._closing = True
        if self._server is not None:
            # Whoever was accepted a moment ago is let in before the door is shut: asyncio forgets a
            # connection, and leaves it open, that is accepted before and made after that.
            for listening in self._server.sockets:
                self.loop.remove_reader(listening.fileno())
            for _ in range(3):
                await asyncio.sleep(0)
            self._server.close()
        if self._door is not None:
            self._door.close()
        for visitor in list(self.visitors):
            visitor.farewell(self.damage or SHUTTING_DOWN, log="damaged" if self.damage else "")
        if self.visitors:
            self._emptied = asyncio.Event()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._emptied.wait(), timeout=LINGER_S)
        for visitor in list(self.visitors):
            visitor.abort()

    # -- For visitors ---------------------------------------------------------------------------

    def _make_visitor(self) -> Visitor:
        return Visitor(self)

    def arrived(self, visitor: Visitor) -> None:
        """Take a connection up."""
        self.visitors[visitor] = None
        self.arrivals += 1
        self.admission.come(visitor)
        if self._closing:
            # Accepted before the door was shut, and made afterwards: nobody would ever answer it.
            visitor.farewell(SHUTTING_DOWN)

    def make_room(self, visitor: Visitor) -> str | None:
        """Give a place to somebody who may come in; return why there is none."""
        return self.admission.enter(visitor, visitor.station)

    def gone(self, visitor: Visitor) -> None:
        """Forget a connection."""
        self.visitors.pop(visitor, None)
        self.admission.leave(visitor)
        for name in visitor.names:
            self._leave(visitor, name)
        if not self.visitors and self._emptied is not None:
            self._emptied.set()

    def greet(self, visitor: Visitor, hello: Hello) -> bytes | str:
        """Return what to welcome somebody with, or say why they are not let in."""
        refusal = self.rules.login(visitor, hello)
        if refusal is not None:
            return refusal
        if visitor.station and hello.log is not None and self.on_station is not None:
            self.on_station(visitor.station, hello.log)
        return encode_control(msgspec.structs.replace(self._welcome(), session=visitor.session))

    def let_in(self, visitor: Visitor, name: str, turn: int) -> None:
        """Let a connection enter under a name, or enter again, or refuse it."""
        refusal = self.rules.may_enter(visitor, name, self.routes.get(name))
        if refusal is not None:
            self.fault(visitor, "permission", refusal)
            visitor.exited(name, refusal)
            return

        def enter() -> None:
            if visitor.closing:
                return
            earlier = self.routes.get(name)
            held = 0 if earlier is None else earlier.names.get(name, 0)
            if earlier is not visitor and 0 < turn < held:
                visitor.exited(name, TAKEN_OVER)
                return
            if earlier is not None and earlier is not visitor:
                earlier.exited(name, TAKEN_OVER)
            self.routes[name] = visitor
            # Asked twice by one connection, it is told twice.
            again = held if earlier is visitor else turn
            visitor.entered(name, again or min(max(held + 1, self._clock.now_ns()), TURN_MAX))
            if self.on_entered is not None:
                self.on_entered(name)

        self.rules.claim(visitor, name, enter)

    def let_go(self, visitor: Visitor, name: str) -> None:
        """Have no more messages for a name go to a connection."""
        visitor.forget(name)
        if visitor.names.pop(name, None) is not None:
            self._leave(visitor, name)

    def _leave(self, visitor: Visitor, name: str) -> None:
        if self.routes.get(name) is visitor:
            del self.routes[name]
            if self.on_left is not None:
                self.on_left(name)

    def take(self, visitor: Visitor, message: bytes) -> int:
        """Hand a bundle over, remembering who sent it; return how many bytes it caused to be written."""
        before = self._written()
        self._current = visitor
        self._message = message
        try:
            if self._receive is not None:
                self._receive(message)
        finally:
            self._current, self._message = None, b""
        return self._written() - before

    def held(self, visitor: Visitor, more: int) -> None:
        """Count bytes of messages that are not whole; hang up on who has the most if too many."""
        del visitor
        self.unfinished += more
        if self.unfinished > self.limits.unfinished_bytes:
            most = max(self.visitors, key=lambda each: 0 if each.closing else each.held)
            why = "too many messages are coming at once"
            most.reject("limit", too_many(self.limits, "unfinished_bytes", why))

    def when_answered(self, visitor: Visitor) -> None:
        """Have a visitor go on when everything that was taken so far is answered."""
        self._barrier(visitor.go_on)

    def fault(self, visitor: Visitor, kind: str, why: str) -> None:
        """Count what somebody did wrong; what goes beyond a limit is no matter of permission."""
        visitor.faults += 1
        if kind == "permission" and limit_in(why):
            kind = "limit"
        self._fault_of(visitor.address, kind, why, told=visitor.faults <= FAULTS_TOLD)

    def _fault_of(self, address: str, kind: str, why: str, *, told: bool = True) -> None:
        self.errors[kind] += 1
        if told:
            host = address.rpartition(":")[0]
            self._throttle.log(
                f"{host} {kind} {why}", logging.WARNING, f"{address}: {why}", fault=kind
            )

    def dropped_one(self) -> None:
        """Count a message that was dropped because too much was pending."""
        self.dropped += 1
        self.dropped_slow += 1

    # -- For the transport on top ---------------------------------------------------------------

    def bad_bundle(self, error: RemoteProtocolError) -> None:
        """Hang up on whoever sent a bundle that can't be read or was not theirs to send."""
        if self._current is not None:
            self._current.reject("protocol", str(error))

    def admit(self, target: str, source: str, frames: list[Frame]) -> list[Frame]:
        """Return those frames of a bundle that its connection may send, and answer the others."""
        visitor = self._current
        assert visitor is not None
        if source not in visitor.names:
            raise RemoteProtocolError(f"a bundle from {source!r}, which this connection is not")
        if not frames:
            raise RemoteProtocolError("a bundle of no frames")
        if target not in self._inboxes:
            self._pass_on(visitor, target, source, frames)
            return []
        if visitor.station:
            return frames
        admitted, answers = self.screens[target](visitor, source, frames)
        for answer in answers:
            of = f"not permitted of {source!r}, for {getattr(answer, 'topic', '')!r}"
            self.fault(visitor, "permission", getattr(answer, "reason", of))
        if answers:
            # Together, so that whoever is refused a run of events looks at all of it at once.
            bodies = [self._codec.body(answer) for answer in answers]
            visitor.write(framed(bundle(source, target, bodies)))
        return admitted

    def _pass_on(self, visitor: Visitor, target: str, source: str, frames: list[Frame]) -> None:
        """Carry what one client has for another."""
        if EPHEMERAL not in target:
            raise RemoteProtocolError(f"a bundle for {target!r}, which is not here")
        receiver = self.routes.get(target)
        admitted = screen_passed(self.rules, visitor, source, receiver or visitor, frames)
        registry = visitor.enrolled.get(source)
        if receiver is None:
            self.dropped += 1
            return
        if registry is None or receiver.enrolled.get(target) != registry:
            self.dropped_strange += 1
            return
        relay = self.relays.get(registry)
        if relay is not None:
            admitted = relay.screen(visitor, source, receiver, admitted)
        for frame in admitted:
            self.passed_on[type(frame).__name__] += 1
        if len(admitted) == len(frames) and all(map(is_, admitted, frames)):
            receiver.write(framed(self._message))
        elif admitted:
            bodies = [self._codec.body(frame) for frame in admitted]
            receiver.write(framed(bundle(target, source, bodies)))
