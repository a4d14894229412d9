"""The base of carriers on brokers: pending messages and reconnection.

`BrokerCarrier` has one session with a broker at a time. A session has a writer, which writes
batches of pending messages, and a reader. When either ends, or the broker is silent for too long,
the session is lost. The carrier reconnects (`ensue.transports.reconnect`), opens all inboxes and
topics again, and calls `on_reconnect`.

Each broker's carrier implements `_connect`, `_read`, `_write`, `_subscribe`, `_unsubscribe` and
`_disconnect`. Any exception of the client library means that the session is lost; a
`TransportError` from `_connect` or `_subscribe` means that the broker refuses. Within a session
none of these is cancelled: a caller that is cancelled while it opens or closes an inbox or topic
does not cancel the request to the broker.

HAZARD: a batch that was being written when the session was lost may have reached the broker or not.
A carrier that `repeats` writes it again, so messages may arrive twice; another may lose them.

HAZARD: batches get smaller on a slow network (`ensue.transports.brokers.outbox`), messages do not.
A carrier that `repeats` never gets a single message through that the network does not carry within
the broker's time for an answer (5 s on NATS, 10 s on Redis), nor what is queued behind it.
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
from ensue.transports.brokers.session import Place, Session, end, wait_for_task
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
    # Some brokers store topics, but none stores inboxes as well.
    durable=False,
    replay=False,
    conditional=False,
    multicast=True,
)
"""What any broker can do. The message limit is known after connecting."""

PENDING_BYTES_MAX = 64 * 1024 * 1024
"""Maximum bytes of pending messages; further messages are dropped and counted."""
MESSAGE_BYTES_MAX = 16 * 1024 * 1024
"""The largest message, even if the broker allows more."""
CONNECT_S = 10.0
REOPEN_S = 30.0
"""How long opening all inboxes and topics again may take after a reconnect."""
OPEN_S = 30.0
"""How long `open` and `join` wait for a broker that is away."""
CLOSE_S = 1.0
"""How long `close` flushes pending messages, and then waits for the broker."""
HEARTBEAT_S = 5.0
"""A session is lost after two or three of these without an answer."""

INBOX = "i"
TOPIC = "t"

_log = logging.getLogger("ensue")
_link_log = logging.getLogger("ensue.link")
"""For reconnects: the CLI shows these lines."""


class BrokerCarrier:
    """The base of carriers on brokers. Subclasses add what differs by broker."""

    name: str
    how_to_start: str
    """The command that starts such a broker."""
    kind: str
    """The kind of broker, for errors when another kind answers (`peer_probe`)."""
    address: Address | None = None
    """The address to probe if the first connection fails; None: do not probe."""

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
        self._closing: asyncio.Task[None] | None = None
        self._throttle = Throttle(_log)

    @property
    def pending_bytes(self) -> int:
        """Bytes of pending messages, with `MESSAGE_BYTES_OVERHEAD` for each."""
        return self._outbox.bytes

    # -- For subclasses -------------------------------------------------------------------------

    async def _connect(self, session: Session) -> None:
        """Connect. `_read` is called next, then `_subscribe` with all open places."""
        raise NotImplementedError

    async def _read(self, session: Session) -> None:
        """Deliver messages until the connection is lost."""
        raise NotImplementedError

    async def _write(self, batch: Sequence[tuple[Place, bytes]]) -> None:
        """Write a batch; return when another may be written."""
        raise NotImplementedError

    async def _subscribe(self, places: Collection[Place]) -> None:
        """Subscribe to places; return when the broker has confirmed."""
        raise NotImplementedError

    async def _unsubscribe(self, place: Place) -> None:
        """Unsubscribe from a place."""
        raise NotImplementedError

    def _reset_position(self, place: Place) -> None:
        """Forget how far a place was read: its next reader starts at new messages."""

    async def _clean_up(self) -> None:
        """Remove this client's data from the broker before closing."""

    async def _disconnect(self) -> None:
        """Disconnect, in any state of the connection."""
        raise NotImplementedError

    # -- The interface of carriers --------------------------------------------------------------
    async def start(self) -> None:
        """Connect; raise `TransportError`, with how to start a server, if none answers."""
        if self._keeper is not None or self._closed:
            raise LocalProtocolError(f"{self.url}: the carrier was started before: make a new one")
        session = Session()
        try:
            await self._identified(lambda: self._connect_first(session))
        except BaseException:
            await self._end_session(session)
            raise
        session.read(self._read(session))
        self._set_session(session)
        self._keeper = asyncio.create_task(self._keep(session), name=f"carrier {self.url}")

    async def _identified(self, connect: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Connect for the first time; if that fails, probe what answers."""
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
                    f"{self.url}: TLS with the {self.name} server failed: {what_failed(tls)}"
                ) from error
            raise TransportError(
                f"{self.url}: no {self.name} server answers there ({_text(error)}); "
                f"start one: {self.how_to_start}"
            ) from error

    async def open(self, peer: str, receive: Inbox) -> None:
        """Open an inbox; return when no later message to it is missed."""
        await self._enter((INBOX, peer), receive)

    async def shut(self, peer: str) -> None:
        """Close an inbox."""
        await self._exit((INBOX, peer))

    async def join(self, topic: str, receive: Inbox) -> None:
        """Join a topic; return when no later message to it is missed."""
        await self._enter((TOPIC, topic), receive)

    async def leave(self, topic: str) -> None:
        """Leave a topic."""
        await self._exit((TOPIC, topic))

    def send(self, peer: str, data: bytes) -> None:
        """Send to a peer's inbox. If it is not open, the message is lost."""
        self._put((INBOX, peer), data)

    def multicast(self, topic: str, data: bytes) -> None:
        """Send to all clients that have joined a topic."""
        self._put((TOPIC, topic), data)

    async def close(self) -> None:
        """Flush for up to a second, then disconnect; also if the caller is cancelled."""
        if self._closing is None:
            self._closed = True
            self._closing = asyncio.create_task(self._close(), name=f"close {self.url}")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                if self._up.is_set():
                    await self._outbox.idle.wait()
                    await self._wait_unsubscribed()
        if self._keeper is not None:
            await end([self._keeper])
        if self._up.is_set():
            self._up.clear()
            await self._ignore_errors(self._clean_up())
        if self._session is not None:
            await self._end_session(self._session)
        self._receivers.clear()
        self._outbox.forget(len(self._outbox))
        # Wake callers that still wait to open something: they fail.
        self._up.set()

    # -- Inboxes and topics ---------------------------------------------------------------------
    async def _enter(self, place: Place, receive: Inbox) -> None:
        kind, name = place
        check("the name of an inbox" if kind == INBOX else "a topic", name)
        if self._keeper is None or self._closed:
            raise LocalProtocolError(f"{self.url}: not open: start the carrier first")
        if place in self._receivers:
            what = "inbox" if kind == INBOX else "topic"
            raise BadInput(f"{self.url}: the {what} {name!r} is open: close it first")
        session = self._session
        if session is None or not self._up.is_set() or not session.holds(place):
            self._reset_position(place)
        self._receivers[place] = receive
        try:
            async with asyncio.timeout(OPEN_S):
                await self._wait_subscribed(place)
        except BaseException as error:
            if self._receivers.get(place) is receive:
                self._release(place)
            if not isinstance(error, TimeoutError):
                raise
            raise TransportError(
                f"{self.url}: {name!r} was not opened within {OPEN_S:g} s: the broker is away"
            ) from None

    async def _wait_subscribed(self, place: Place) -> None:
        """Subscribe to a place, in later sessions if this one is lost."""
        while True:
            await self._up.wait()
            if self._closed:
                raise TransportError(f"{self.url}: closed before {place[1]!r} was opened")
            session = self._session
            assert session is not None
            if self._is_reconciled(session, place):
                return
            try:
                await wait_for_task(self._reconcile(session, place))
            except TransportError:
                raise
            except Exception:  # noqa: BLE001 - client libraries raise anything
                # `_keep` may notice the lost session later: avoid a busy loop until then.
                await pause(0)

    async def _exit(self, place: Place) -> None:
        settling = self._release(place)
        if settling is not None:
            with contextlib.suppress(Exception):
                await wait_for_task(settling)

    def _release(self, place: Place) -> asyncio.Task[None] | None:
        """Stop receiving from a place; return the task that unsubscribes, if any."""
        self._receivers.pop(place, None)
        session = self._session
        if session is None or not self._up.is_set() or not session.holds(place):
            return None
        return self._reconcile(session, place)

    def _is_reconciled(self, session: Session, place: Place) -> bool:
        return (place in session.subscribed) == (place in self._receivers)

    def _reconcile(self, session: Session, place: Place) -> asyncio.Task[None]:
        """Start to subscribe to a place if it has a receiver, else to unsubscribe.

        The task continues if its waiter is cancelled: a half-finished request to a broker can be
        neither used nor undone. Each place has at most one such task.
        """
        return session.changing.get(place) or session.change(place, self._change(session, place))

    async def _change(self, session: Session, place: Place) -> None:
        try:
            # The receiver may come and go meanwhile.
            while not self._is_reconciled(session, place):
                async with asyncio.timeout(OPEN_S):
                    if place in self._receivers:
                        self._reset_position(place)
                        await session.during(self._subscribe([place]))
                        session.subscribed.add(place)
                    else:
                        session.subscribed.discard(place)
                        await session.during(self._unsubscribe(place))
        except TransportError:
            raise
        except Exception as error:
            session.lose(error)
            raise
        finally:
            session.changing.pop(place, None)

    async def _wait_unsubscribed(self) -> None:
        """Wait until all places without a receiver are unsubscribed."""
        changing = {} if self._session is None else self._session.changing
        tasks = [task for place, task in changing.items() if place not in self._receivers]
        if tasks:
            await asyncio.wait(tasks)

    def _deliver(self, place: Place, data: bytes) -> None:
        """Call the receiver of a message."""
        receive = self._receivers.get(place)
        if receive is None:
            return
        try:
            receive(data)
        except LogDamaged as error:
            _log.debug("receiver failed url=%s: %s", self.url, error)  # The station reports it.
        except Exception:  # noqa: BLE001 - a bug in a receiver must not end the reader
            _log.exception("receiver failed url=%s name=%r", self.url, place[1])

    # -- Pending messages -----------------------------------------------------------------------

    def _limit_messages(self, stated: int) -> None:
        """Set the message limit: the broker's, ours or the outbox's, whichever is smallest."""
        room = self._outbox.bytes_max
        largest = min(stated, MESSAGE_BYTES_MAX, room - MESSAGE_BYTES_OVERHEAD)
        if largest < 1:
            raise BadInput(
                f"{self.url}: pending_bytes_max must be above {MESSAGE_BYTES_OVERHEAD}, got {room}"
            )
        self.capabilities = msgspec.structs.replace(self.capabilities, message_bytes_max=largest)

    def _put(self, place: Place, data: bytes) -> None:
        largest = self.capabilities.message_bytes_max
        if len(data) > largest:
            raise LimitReached(
                f"{self.url}: a message of {len(data)} bytes exceeds the limit of {largest}: "
                "send smaller payloads",
                limit="message_bytes_max",
                value=largest,
            )
        if self._closed or not self._outbox.put(place, data):
            self.dropped += 1

    # -- Sessions -------------------------------------------------------------------------------
    def _set_session(self, session: Session) -> None:
        self._session = session
        if self._outbox:
            self._outbox.wake.set()
        self._up.set()

    async def _keep(self, session: Session) -> None:
        await keep_connected(
            session,
            use=self._use,
            connect=self._reconnect,
            failed=self._failed,
            resumed=self._resumed,
            eager=False,
        )

    async def _use(self, session: Session) -> None:
        await self._serve(session)
        self._up.clear()
        line = f"connection lost url={self.url}: {session.lost.result()}"
        self._throttle.log("lost", logging.WARNING, line)
        await self._end_session(session)

    def _resumed(self, session: Session) -> None:
        self._set_session(session)
        _link_log.info("reconnected url=%s", self.url)
        if self.on_reconnect is not None:
            try:
                self.on_reconnect()
            except Exception:  # noqa: BLE001 - a bug in the callback must not end the carrier
                _log.exception("on_reconnect failed url=%s", self.url)

    async def _serve(self, session: Session) -> None:
        """Write until the session is lost."""
        writer = asyncio.create_task(self._outbox.drain(self._write, repeats=self.repeats))
        ends: list[asyncio.Future[Any]] = [writer, session.lost]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end([writer])
            session.lose("cancelled" if writer.cancelled() else writer.exception())

    async def _reconnect(self) -> Session:
        session = Session()
        try:
            async with asyncio.timeout(CONNECT_S):
                await self._connect(session)
            session.read(self._read(session))
            await self._reopen(session)
        except BaseException:
            await self._end_session(session)
            raise
        return session

    def _failed(self, error: Exception) -> None:
        text = _text(error)
        refused = isinstance(error, TransportError) or is_final(_tls_failure(error))
        # Warn of a broker that refuses, not of one that is away. Retry both forever: an operator
        # may fix a broker that has accepted this client before.
        level = logging.WARNING if refused else logging.DEBUG
        self._throttle.log(text, level, f"reconnect failed url={self.url}: {text}")

    async def _reopen(self, session: Session) -> None:
        opened = dict(self._receivers)
        if not opened:
            return
        async with asyncio.timeout(REOPEN_S):
            await session.during(self._subscribe(list(opened)))
            # Includes places that were left and entered again: their position is reset.
            while left := [
                place
                for place, receive in opened.items()
                if self._receivers.get(place) is not receive
            ]:
                del opened[left[0]]
                await session.during(self._unsubscribe(left[0]))
        session.subscribed.update(opened)

    async def _end_session(self, session: Session) -> None:
        """End a session, in any state."""
        session.lose("closed")
        if session.changing:
            await asyncio.wait(session.changing.values())
        if session.reader is not None:
            await end([session.reader])
        await self._ignore_errors(self._disconnect())

    async def _ignore_errors(self, call: Awaitable[None]) -> None:
        try:
            async with asyncio.timeout(CLOSE_S):
                await call
        except Exception as error:  # noqa: BLE001 - the broker may be away
            _log.debug("disconnect failed url=%s: %s", self.url, _text(error))


def _tls_failure(error: BaseException | None) -> ssl.SSLError | None:
    """Return the TLS error that caused an error; None if TLS did not fail."""
    for _ in range(10):
        if error is None or isinstance(error, ssl.SSLError):
            return error
        error = error.__cause__ or error.__context__
    return None


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__
