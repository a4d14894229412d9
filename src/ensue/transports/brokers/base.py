"""The base of carriers on brokers: pending messages, and a session that comes back.

`BrokerCarrier` keeps one session with a broker at a time. A session has a writer, which writes
batches of pending messages, and a reader. When either ends, or the broker is silent for too long,
the session is lost: it is torn down, another is made after a pause that grows
(`ensue.transports.reconnect`), all inboxes and topics are opened again, and `on_reconnect` is
called.

A carrier fills in what differs from broker to broker: `_connect`, `_read`, `_write`, `_take`,
`_drop` and `_hang_up`. Those raise whatever their client raises, which means that the session is
lost; a `TransportError` from `_connect` or `_take` means that the broker said no. Within a session
none of them is cancelled: if a caller is cancelled while it opens or closes something, that goes
on.

HAZARD: a batch that was being written when the session was lost may be out or not. A carrier that
`repeats` writes it again, so a message may come twice; one that doesn't may lose it.
"""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from typing import Any

import msgspec

from ensue.core.errors import (
    BadInput,
    HandshakeFailed,
    LimitReached,
    LocalProtocolError,
    LogDamaged,
    TransportError,
)
from ensue.transports.base import Capabilities
from ensue.transports.brokers.address import Address, check
from ensue.transports.brokers.outbox import MESSAGE_BYTES_OVERHEAD, Outbox
from ensue.transports.brokers.session import Place, Session, end, finished
from ensue.transports.carrier import Inbox
from ensue.transports.log_throttle import Throttle
from ensue.transports.peer_probe import connect_or_identify, is_final
from ensue.transports.reconnect import keep_connected, pause
from ensue.transports.tls import what_failed

__all__ = [
    "CAPABILITIES",
    "INBOX",
    "PENDING_BYTES_MAX",
    "TOPIC",
    "BrokerCarrier",
    "Place",
    "Session",
]

CAPABILITIES = Capabilities(
    fifo=False,
    # Some keep topics, but not inboxes as well.
    durable=False,
    replay=False,
    conditional=False,
    multicast=True,
)
"""What any broker can do, as far as is known before it says how large a message may be."""

PENDING_BYTES_MAX = 64 * 1024 * 1024
"""What a carrier keeps while it can't go out; more is dropped and counted."""
MESSAGE_BYTES_MAX = 16 * 1024 * 1024
"""The largest message, whatever a broker would take."""
CONNECT_S = 10.0
REOPEN_S = 30.0
"""How long opening everything again may take before the connection is given up."""
OPEN_S = 30.0
"""How long `open` and `join` wait for a broker that is away."""
CLOSE_S = 1.0
"""How long `close` waits for what is pending; and for the broker to say goodbye."""
HEARTBEAT_S = 5.0
"""A broker that is silent for about two or three of these is gone."""

INBOX = "i"
TOPIC = "t"

_log = logging.getLogger("ensue")
_link_log = logging.getLogger("ensue.link")
"""For brokers that are back: the CLI shows these lines, others may not."""


class BrokerCarrier:
    """Takes bytes to inboxes and topics of a broker; each broker's carrier fills in the rest."""

    name: str
    how_to_start: str
    """The line that starts such a server."""
    kind: str
    """What errors call such a server when another kind answers (`peer_probe`)."""
    address: Address | None = None
    """Where it is, if what else answers there is to be looked at."""

    def __init__(
        self,
        url: str,
        *,
        repeats: bool,
        pending_bytes_max: int = PENDING_BYTES_MAX,
    ) -> None:
        self.url = url
        self._outbox = Outbox(pending_bytes_max)
        self.capabilities = CAPABILITIES
        self._limit_messages(MESSAGE_BYTES_MAX)
        self.on_reconnect: Callable[[], None] | None = None
        self.dropped = 0
        self.repeats = repeats
        self.heartbeat_s = HEARTBEAT_S
        self._receivers: dict[Place, Inbox] = {}
        self._up = asyncio.Event()
        self._session: Session | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._closed = False
        self._throttle = Throttle(_log)

    @property
    def pending_bytes(self) -> int:
        """What is kept because it can't go out yet, `MESSAGE_BYTES_OVERHEAD` a message included."""
        return self._outbox.bytes

    # What each broker's carrier fills in.

    async def _connect(self, session: Session) -> None:
        """Connect. `_read` is called next, then `_take` with what is to be open."""
        raise NotImplementedError

    async def _read(self, session: Session) -> None:
        """Hand over what arrives, until the connection is lost."""
        raise NotImplementedError

    async def _write(self, batch: Sequence[tuple[Place, bytes]]) -> None:
        """Write messages, all at once; return when more may be written."""
        raise NotImplementedError

    async def _take(self, places: Collection[Place]) -> None:
        """Ask for what is sent to some places; return when the broker has agreed."""
        raise NotImplementedError

    async def _drop(self, place: Place) -> None:
        """Ask for no more of a place."""
        raise NotImplementedError

    def _begin_anew(self, place: Place) -> None:
        """Forget how far a place was read: it is opened for the first time, or again."""

    async def _say_goodbye(self) -> None:
        """Remove from the broker what no other client needs, before closing."""

    async def _hang_up(self) -> None:
        """Disconnect, whatever state the connection is in."""
        raise NotImplementedError

    # The surface of a carrier.

    async def start(self) -> None:
        """Connect; raise `TransportError`, with how to start a server, if none answers."""
        if self._keeper is not None or self._closed:
            raise LocalProtocolError(f"{self.url}: a carrier is started once")
        session = Session()
        try:
            await self._identified(lambda: self._connect_first(session))
        except BaseException:
            await self._part(session)
            raise
        session.read(self._read(session))
        self._begin(session)
        self._keeper = asyncio.create_task(self._keep(session), name=f"carrier {self.url}")

    async def _identified(self, connect: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Connect for the first time, and look what else is there if that fails."""
        if self.address is None:
            await connect()
            return
        await connect_or_identify(
            connect,
            self.address.host,
            self.address.port,
            where=self.url,
            wanted=self.kind,
            tls=self.address.tls.on,
        )

    async def _connect_first(self, session: Session) -> None:
        try:
            async with asyncio.timeout(CONNECT_S):
                await self._connect(session)
        except TransportError:
            raise
        except Exception as error:
            tls = _tls_failure(error)
            if tls is not None and is_final(tls):
                raise HandshakeFailed(
                    f"{self.url}: no TLS with the {self.name} server: {what_failed(tls)}"
                ) from error
            raise TransportError(
                f"{self.url}: no {self.name} server answers there ({_words(error)}); "
                f"start one: {self.how_to_start}"
            ) from error

    async def open(self, peer: str, receive: Inbox) -> None:
        """Take what is sent to a name; returns when nothing sent from now on is missed."""
        await self._enter((INBOX, peer), receive)

    async def shut(self, peer: str) -> None:
        """Take nothing more for a name."""
        await self._exit((INBOX, peer))

    async def join(self, topic: str, receive: Inbox) -> None:
        """Take what is multicast to a topic; returns when nothing sent from now on is missed."""
        await self._enter((TOPIC, topic), receive)

    async def leave(self, topic: str) -> None:
        """Take nothing more of a topic."""
        await self._exit((TOPIC, topic))

    def send(self, peer: str, data: bytes) -> None:
        """Send to a peer's inbox. If it is not open, the message is lost."""
        self._put((INBOX, peer), data)

    def multicast(self, topic: str, data: bytes) -> None:
        """Send to all clients that have joined a topic."""
        self._put((TOPIC, topic), data)

    async def close(self) -> None:
        """Let out what is pending, for a moment, and disconnect."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                if self._up.is_set():
                    await self._outbox.idle.wait()
                    await self._leaving()
        if self._keeper is not None:
            await end([self._keeper])
        if self._up.is_set():
            self._up.clear()
            await self._quietly(self._say_goodbye())
        if self._session is not None:
            await self._part(self._session)
        self._receivers.clear()
        self._outbox.forget(len(self._outbox))
        # Callers that still wait to open something fail.
        self._up.set()

    # Inboxes and topics.

    async def _enter(self, place: Place, receive: Inbox) -> None:
        kind, name = place
        what = "an inbox's name" if kind == INBOX else "a topic"
        check(what, name)
        if self._keeper is None or self._closed:
            raise LocalProtocolError(f"{self.url}: not open: start the carrier first")
        if place in self._receivers:
            raise BadInput(f"{what} is taken once by each carrier: {name!r} is taken already")
        session = self._session
        if session is None or not self._up.is_set() or not session.holds(place):
            self._begin_anew(place)
        self._receivers[place] = receive
        try:
            async with asyncio.timeout(OPEN_S):
                await self._ensure(place)
        except BaseException as error:
            if self._receivers.get(place) is receive:
                self._forsake(place)
            if not isinstance(error, TimeoutError):
                raise
            raise TransportError(
                f"{self.url}: {name!r} could not be opened within {OPEN_S:g} s: no connection"
            ) from None

    async def _ensure(self, place: Place) -> None:
        """Ask for a place until it is taken in a session that lasts."""
        while True:
            await self._up.wait()
            if self._closed:
                raise TransportError(f"{self.url}: closed before {place[1]!r} was opened")
            session = self._session
            assert session is not None
            if self._is_settled(session, place):
                return
            try:
                await finished(self._settle(session, place))
            except TransportError:
                raise
            except Exception:  # noqa: BLE001 - clients raise what they like
                # The keeper notices in its own time; without a pause this would be a busy loop.
                await pause(0)

    async def _exit(self, place: Place) -> None:
        settling = self._forsake(place)
        if settling is not None:
            with contextlib.suppress(Exception):
                await finished(settling)

    def _forsake(self, place: Place) -> asyncio.Task[None] | None:
        """Want nothing more of a place; return the task that tells the broker, if any."""
        self._receivers.pop(place, None)
        session = self._session
        if session is None or not self._up.is_set() or not session.holds(place):
            return None
        return self._settle(session, place)

    def _is_settled(self, session: Session, place: Place) -> bool:
        return (place in session.taken) == (place in self._receivers)

    def _settle(self, session: Session, place: Place) -> asyncio.Task[None]:
        """Have the broker give what is wanted of a place, and no more.

        It goes on though its waiter is cancelled: a half-finished request to a broker can be
        neither used nor dropped. There is one such task for a place, so that no two ask at once.
        """
        return session.changing.get(place) or session.change(place, self._change(session, place))

    async def _change(self, session: Session, place: Place) -> None:
        try:
            # What is wanted may change meanwhile, and more than once.
            while not self._is_settled(session, place):
                async with asyncio.timeout(OPEN_S):
                    if place in self._receivers:
                        self._begin_anew(place)
                        await session.during(self._take([place]))
                        session.taken.add(place)
                    else:
                        session.taken.discard(place)
                        await session.during(self._drop(place))
        except TransportError:
            raise
        except Exception as error:
            # What a lost session held is gone with it.
            session.lose(error)
            raise
        finally:
            session.changing.pop(place, None)

    async def _leaving(self) -> None:
        """Return when the broker has dropped all places that are not wanted any more."""
        changing = {} if self._session is None else self._session.changing
        tasks = [task for place, task in changing.items() if place not in self._receivers]
        if tasks:
            await asyncio.wait(tasks)

    def _hand(self, place: Place, data: bytes) -> None:
        """Hand a message over to its receiver."""
        receive = self._receivers.get(place)
        if receive is None:
            return
        try:
            receive(data)
        except LogDamaged as error:
            _log.debug("%s: %s", self.url, error)  # A station, which ends and has said so.
        except Exception:  # noqa: BLE001 - a bug of the receiver is not the reader's
            _log.exception("%s: the receiver of %r failed", self.url, place[1])

    # What is pending.

    def _limit_messages(self, stated: int) -> None:
        """Keep to the smallest of the broker's limit, ours, and what can be pending."""
        room = self._outbox.bytes_max
        largest = min(stated, MESSAGE_BYTES_MAX, room - MESSAGE_BYTES_OVERHEAD)
        if largest < 1:
            raise BadInput(
                f"{self.url}: pending_bytes_max must be above {MESSAGE_BYTES_OVERHEAD}, not {room}"
            )
        self.capabilities = msgspec.structs.replace(self.capabilities, message_bytes_max=largest)

    def _put(self, place: Place, data: bytes) -> None:
        largest = self.capabilities.message_bytes_max
        if len(data) > largest:
            raise LimitReached(
                f"{self.url}: a message of {len(data)} bytes is more than the {largest} that can "
                "be carried: send less at once",
                limit="message_bytes_max",
                value=largest,
            )
        if self._closed or not self._outbox.put(place, data):
            self.dropped += 1

    # The connection.

    def _begin(self, session: Session) -> None:
        self._session = session
        if self._outbox:
            self._outbox.wake.set()
        self._up.set()

    async def _keep(self, session: Session) -> None:
        await keep_connected(
            session,
            use=self._use,
            connect=self._connect_again,
            failed=self._failed,
            resumed=self._resumed,
            eager=False,
        )

    async def _use(self, session: Session) -> None:
        await self._serve(session)
        self._up.clear()
        line = f"{self.url}: lost ({session.lost.result()}); connecting again"
        self._throttle.log("lost", logging.WARNING, line)
        await self._part(session)

    def _resumed(self, session: Session) -> None:
        self._begin(session)
        _link_log.info("%s: connected again", self.url)
        if self.on_reconnect is not None:
            try:
                self.on_reconnect()
            except Exception:  # noqa: BLE001 - a bug of the receiver is not the carrier's
                _log.exception("%s: on_reconnect failed", self.url)

    async def _serve(self, session: Session) -> None:
        """Write until the session is lost."""
        writer = asyncio.create_task(self._outbox.drain(self._write, repeats=self.repeats))
        ends: list[asyncio.Future[Any]] = [writer, session.lost]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end([writer])
            session.lose("cancelled" if writer.cancelled() else writer.exception())

    async def _connect_again(self) -> Session:
        session = Session()
        try:
            async with asyncio.timeout(CONNECT_S):
                await self._connect(session)
            session.read(self._read(session))
            await self._open_again(session)
        except BaseException:
            await self._part(session)
            raise
        return session

    def _failed(self, error: Exception) -> None:
        words = _words(error)
        refused = isinstance(error, TransportError) or is_final(_tls_failure(error))
        # A broker that does not answer is no news. One that refuses is, and is retried forever all
        # the same: it was there before, and may be mended.
        level = logging.WARNING if refused else logging.DEBUG
        self._throttle.log(words, level, f"{self.url}: not yet ({words})")

    async def _open_again(self, session: Session) -> None:
        opened = dict(self._receivers)
        if not opened:
            return
        async with asyncio.timeout(REOPEN_S):
            await session.during(self._take(list(opened)))
            # Also what was left and entered again: it begins anew.
            while left := [
                place
                for place, receive in opened.items()
                if self._receivers.get(place) is not receive
            ]:
                del opened[left[0]]
                await session.during(self._drop(left[0]))
        session.taken.update(opened)

    async def _part(self, session: Session) -> None:
        """Give a session up for good, whatever state it is in."""
        session.lose("closed")
        if session.changing:
            await asyncio.wait(session.changing.values())
        if session.reader is not None:
            await end([session.reader])
        await self._quietly(self._hang_up())

    async def _quietly(self, call: Awaitable[None]) -> None:
        try:
            async with asyncio.timeout(CLOSE_S):
                await call
        except Exception as error:  # noqa: BLE001 - the broker may be gone, which is no news here
            _log.debug("%s: %s", self.url, _words(error))


def _tls_failure(error: BaseException | None) -> ssl.SSLError | None:
    """Return what TLS failed of, if that is behind an error."""
    for _ in range(10):
        if error is None or isinstance(error, ssl.SSLError):
            return error
        error = error.__cause__ or error.__context__
    return None


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__
