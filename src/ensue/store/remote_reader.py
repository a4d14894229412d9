"""A reader for the log of servers, `ensue://HOST:PORT`, over blocking sockets.

The server in the URL lists the other servers of its chain. A request about a topic goes to the
server that stores the topic. Each read in progress has its own connection; idle connections are
reused.

An offset is the slot minus one, as in a log directory. A topic ends before its first empty slot, so
a range that was read once always returns the same rows, until it is trimmed.

The reader returns whole stamps. On the wire a stamp may omit entries that have not changed since
the previous event of the topic. A read that starts in the middle therefore searches backwards for
the last whole stamp: first `STAMP_SEARCH_EVENTS` events, then twice as many each time. Servers send
a whole stamp every 256 events of a topic, so the search costs at most three responses of some
hundred events, whatever the range. After a trim, events before the first whole stamp cannot be
completed any more: the topic begins at that stamp.

If a server restarts or a connection is lost, a read reconnects and resumes where it was. It fails
after `RETRY_S` without a response. The first connection is tried once, unless `patient`. If a
server returns with another log, with an older state of its log, or with a log that it can't read,
the read ends with `LogLost`.
"""

import logging
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from secrets import token_hex
from typing import Any, NoReturn, Self, TypeVar

import msgspec
import pyarrow as pa

from ensue import orders
from ensue.core.errors import (
    AccessDenied,
    BadInput,
    HandshakeFailed,
    LogLost,
    OffsetsGone,
    RemoteProtocolError,
    TransportError,
)
from ensue.core.event import Count, Name
from ensue.core.lineage import Lineage, contradiction, lost_text
from ensue.core.wire import FRAME_BYTES_MAX, Codec, bundle
from ensue.protocols.interface import Frame
from ensue.protocols.topic_log.frames import Fetch, Surveyed
from ensue.protocols.total.config import SequencerConfig
from ensue.protocols.total.frames import Expired, Refused
from ensue.protocols.total.placement import Placement
from ensue.store.reader import Bounds, EventRow, batch_of, merge_stamp
from ensue.store.schema import COLUMNS
from ensue.transports.peer_probe import is_final
from ensue.transports.tcp import messages
from ensue.transports.tcp.options import TcpOptions, parse_address
from ensue.transports.tls import what_failed

__all__ = ["RETRY_S", "RemoteReader"]

CONNECT_TIMEOUT_S = 10.0
RESPONSE_TIMEOUT_S = 30.0
RETRY_S = 60.0
"""How long a request is retried without a response."""
BACKOFF_S_MIN = 0.05
BACKOFF_S_MAX = 1.0
STAMP_SEARCH_EVENTS = 64
STAMP_SEARCH_EVENTS_MAX = 4096
BUSY_TRIES_MAX = 50
"""Requests to a server that is too busy to respond, or whose slot is still empty."""
OVERLAP = 64
"""Topics of a page that the next page repeats: none is missed if others disappear meanwhile."""
TOPICS_SHOWN = 20

_log = logging.getLogger("ensue")


class _Page(Frame, frozen=True, tag=11):
    """The frame `Fetched`, with its events decoded as rows."""

    topic: Name
    start: Count
    first: Count
    next: Count
    end: Count
    events: list[EventRow]


_CODEC = Codec((_Page, Surveyed, Refused, Expired))
_BODY = Codec((Fetch, Surveyed)).body

A = TypeVar("A", _Page, Surveyed)
T = TypeVar("T")


class _Connection:
    """One read-only connection to one server."""

    def __init__(self, options: TcpOptions, address: tuple[str, int]) -> None:
        self.address = f"{address[0]}:{address[1]}"
        self.welcome: messages.Welcome | None = None
        self._options = options
        self._name = f"reader~{token_hex(8)}"
        self._frames: deque[Any] = deque()
        context = options.tls.context()
        try:
            self._socket = socket.create_connection(address, timeout=CONNECT_TIMEOUT_S)
            try:
                self._handshake(context, options.server_name or address[0])
            except BaseException:
                self.close()
                raise
        except (TransportError, AccessDenied):
            raise
        except OSError as error:
            kind = HandshakeFailed if is_final(error) else TransportError
            raise kind(self._describe(error)) from error

    def send(self, frame: Frame) -> None:
        """Send a frame to the server."""
        assert self.welcome is not None
        self._send(messages.framed(bundle(self.welcome.server, self._name, [_BODY(frame)])))

    def receive(self, kind: type[A]) -> A:
        """Return the next frame of a kind; drop frames of other kinds."""
        while True:
            while self._frames:
                frame = self._frames.popleft()
                if isinstance(frame, kind):
                    return frame
                if isinstance(frame, Refused):
                    raise AccessDenied(f"{self.address}: {frame.reason}", reason=frame.reason)
            message = self._receive_message()
            if message[0] == messages.CONTROL:
                self._handle_control(messages.decode_control(message))
            else:
                self._frames.extend(_CODEC.unbundle(message, peer=self.address)[2])

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def __del__(self) -> None:
        """Close the socket of a reader that was not closed: a `LogReader` has no `close`."""
        if hasattr(self, "_socket"):
            self._socket.close()

    def _handshake(self, context: ssl.SSLContext | None, server_name: str) -> None:
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is not None:
            self._socket = context.wrap_socket(self._socket, server_hostname=server_name)
        self._send_control(messages.Hello(client=self._name, token=self._options.token))
        self.welcome = self._receive_control(messages.Welcome)
        self._send_control(messages.Begin(session=self.welcome.session))
        self._send_control(messages.Enter(name=self._name))
        self._receive_control(messages.Entered)
        self._socket.settimeout(RESPONSE_TIMEOUT_S)

    def _receive_control(self, kind: type[T]) -> T:
        """Return the next control message of a kind."""
        while True:
            message = messages.decode_control(self._receive_message())
            if isinstance(message, kind):
                return message
            self._handle_control(message)

    def _handle_control(self, message: Any) -> None:
        match message:
            case messages.Ping(number=number):
                self._send_control(messages.Pong(number=number))
            case messages.Farewell(reason=reason, log="damaged"):
                server = self.address if self.welcome is None else self.welcome.server
                text = f"server {server!r} can't read its log: {reason}"
                raise LogLost(text, server=server, reason="damaged")
            case messages.Farewell(reason=reason, final=False):
                text = f"the server at {self.address} closed the connection: {reason}"
                raise TransportError(text)
            case messages.Farewell(reason=reason) | messages.Exited(reason=reason):
                text = f"the server at {self.address} rejected this reader: {reason}"
                raise AccessDenied(text, reason=reason)

    def _send_control(self, message: messages.Control) -> None:
        self._send(messages.encode_control(message))

    def _send(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise TransportError(self._describe(error)) from error

    def _receive_message(self) -> bytes:
        size = int.from_bytes(self._receive_bytes(messages.PREFIX_BYTES), "big")
        if not 0 < size <= FRAME_BYTES_MAX:
            text = f"message length is {size} bytes; expected 1 to {FRAME_BYTES_MAX}"
            raise RemoteProtocolError(text, peer=self.address)
        return self._receive_bytes(size)

    def _receive_bytes(self, size: int) -> bytes:
        chunks: list[bytes] = []
        while size:
            try:
                chunk = self._socket.recv(min(size, 1 << 20))
            except OSError as error:
                raise TransportError(self._describe(error)) from error
            if not chunk:
                early = "" if self.welcome is not None else " before its welcome"
                hint = ": does it want TLS (tls=1)?" if early and not self._options.tls.on else ""
                text = f"the server at {self.address} closed the connection{early}{hint}"
                raise TransportError(text)
            chunks.append(chunk)
            size -= len(chunk)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def _describe(self, error: OSError) -> str:
        if isinstance(error, ssl.SSLError):
            return f"TLS with the server at {self.address} failed: {what_failed(error)}"
        if isinstance(error, TimeoutError):
            return f"the server at {self.address} does not answer"
        if self.welcome is not None:
            return f"the connection to {self.address} was lost ({error})"
        return (
            f"no server answers at {self.address} ({error}); start one with: "
            f"ensue serve --listen {self.address} --data DIR"
        )


def _retry(action: Callable[[], T], *, patient: bool) -> T:
    """Run an action; if `patient`, retry it with backoff for `RETRY_S`."""
    backoff_s, started_s = BACKOFF_S_MIN, time.monotonic()
    while True:
        try:
            return action()
        except TransportError as error:
            waited_s = time.monotonic() - started_s
            if not patient or not error.retriable:
                raise
            if waited_s >= RETRY_S:
                text = f"{error}; gave up after {waited_s:.0f} s without a response"
                raise TransportError(text) from error
            _log.info("retry backoff_s=%g reason=%s", backoff_s, error)
        time.sleep(backoff_s)
        backoff_s = min(2 * backoff_s, BACKOFF_S_MAX)


class _Requests:
    """Requests to one server, repeated over a new connection if one is lost."""

    def __init__(self, reader: "RemoteReader", station: str) -> None:
        self._reader, self._station = reader, station
        self._connection: _Connection | None = None
        self._pending: Frame | None = None
        """The request that has no response yet."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._connection is not None and self._pending is None:
            self._reader.release(self._station, self._connection)
            self._connection = None
        self._close()

    def request(self, frame: Frame, kind: type[A]) -> A:
        """Return the response to a frame, which `prefetch` may have sent before."""
        for tries in range(BUSY_TRIES_MAX):
            response = _retry(lambda: self._response(frame, kind), patient=True)
            if not _is_empty(response):
                break
            time.sleep(min(0.001 * 2**tries, BACKOFF_S_MIN))
        return response

    def prefetch(self, frame: Frame) -> None:
        """Send a frame now; the next `request` returns its response."""
        if self._pending is not None:
            self._close()
        if self._connection is None:
            self._connection = self._reader.acquire(self._station)
        self._pending = frame
        self._connection.send(frame)

    def _response(self, frame: Frame, kind: type[A]) -> A:
        try:
            if self._pending != frame:
                self.prefetch(frame)
            assert self._connection is not None
            response = self._connection.receive(kind)
        except BaseException:
            self._close()
            raise
        self._pending = None
        return response

    def _close(self) -> None:
        connection, self._connection, self._pending = self._connection, None, None
        if connection is not None:
            connection.close()


def _is_empty(response: _Page | Surveyed) -> bool:
    """Return whether a response is empty though the server has more."""
    if isinstance(response, Surveyed):
        return response.start == response.next < response.end
    return not response.events and response.first <= response.start < response.end


class RemoteReader:
    """A reader for the log of servers. Not thread-safe, and can't be pickled."""

    def __init__(self, url: str, *, patient: bool = False) -> None:
        options = self._options = TcpOptions.parse(url)
        host, port = options.host, options.port
        self.url = f"ensue://[{host}]:{port}" if ":" in host else f"ensue://{host}:{port}"
        """The URL without the token, for messages."""
        self._idle: dict[str, _Connection] = {}
        self._logs: dict[str, Lineage] = {}
        """By server, the log that it had last."""
        self._begins: dict[str, tuple[int, int]] = {}
        """By trimmed topic, the first slot, and the first slot with a whole stamp."""
        connection = _retry(lambda: _Connection(options, (host, port)), patient=patient)
        welcome = connection.welcome
        assert welcome is not None
        self._idle[welcome.server] = connection
        self._placement = Placement(
            [member.name for member in welcome.chain],
            topics={member.name: member.topics for member in welcome.chain},
            closed=welcome.closed,
        )
        self._check_log(welcome)
        config = msgspec.msgpack.decode(welcome.config, type=SequencerConfig)
        self.order = orders.log_order(config)
        """The order of its events, as in traces."""
        self._addresses = {
            member.name: parse_address(member.address, what="a station's address")
            for member in welcome.chain
            if member.name != welcome.server
        }
        self._addresses[welcome.server] = (host, port)

    def bounds(self) -> dict[str, Bounds]:
        """Return the current offsets of each topic.

        The bounds of one server's topics are consistent with each other.
        """
        found: dict[str, Bounds] = {}
        for station in self._placement.nodes:
            with _Requests(self, station) as requests:
                for topic, (first, empty) in _survey(requests).items():
                    begin = self._first_readable(requests, topic, first, empty)
                    part = Bounds(begin - 1, max(begin, empty) - 1)
                    known = found.setdefault(topic, part)
                    if known is not part and part.next > part.first:  # A topic that was moved.
                        is_first = known.next == known.first
                        least = part.first if is_first else min(known.first, part.first)
                        found[topic] = Bounds(least, max(known.next, part.next))
        return found

    def read(
        self, topic: str, start: int, end: int, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a topic from offset `start` up to, not including, `end`."""
        chosen = COLUMNS if columns is None else tuple(columns)
        for name in chosen:
            if name not in COLUMNS:
                raise BadInput(f"an event log has no column {name!r}; it has {', '.join(COLUMNS)}")
        return self._read(topic, start, end, chosen)

    def close(self) -> None:
        """Close idle connections. Later reads reconnect."""
        while self._idle:
            self._idle.popitem()[1].close()

    def acquire(self, station: str) -> _Connection:
        """Return an idle or a new connection to a server of the chain."""
        idle = self._idle.pop(station, None)
        if idle is not None:
            return idle
        connection = _Connection(self._options, self._addresses[station])
        if connection.welcome is None or connection.welcome.server != station:
            connection.close()
            answered = connection.welcome and connection.welcome.server
            text = f"expected server {station!r} at {connection.address}, found {answered!r}"
            raise TransportError(text)
        try:
            self._check_log(connection.welcome)
        except LogLost:
            connection.close()
            raise
        return connection

    def release(self, station: str, connection: _Connection) -> None:
        """Keep a connection for the next request to its server."""
        self._idle[station] = connection

    def _check_log(self, welcome: messages.Welcome) -> None:
        """Raise `LogLost` if a server's log is not the one that was read before; learn moves."""
        for topic, parts in welcome.moves.items():
            self._placement.learn(topic, parts)
        server, lineage = welcome.server, welcome.log
        if lineage is None:
            return
        known = self._logs.setdefault(server, lineage)
        reason = contradiction(known, lineage)
        if reason:
            text = f"{lost_text(server, reason)}; open the log again to continue"
            raise LogLost(text, server=server, reason=reason)
        self._logs[server] = lineage

    def _read(
        self, topic: str, start: int, end: int, columns: tuple[str, ...]
    ) -> Iterator[pa.RecordBatch]:
        if start >= end:
            return
        if not self._placement.knows(topic):
            self._raise_unknown(topic, start, end)
        slot, stop = start + 1, end + 1
        while slot < stop:
            node, last = self._part(topic, slot)
            part_stop = min(stop, last + 1) if last else stop
            slot = yield from self._read_part(node, topic, slot, part_stop, columns)
            is_known = self._part(topic, slot) == (node, last)
            if slot < part_stop and is_known and not self._learn_moves(node, topic):
                break
        else:
            return
        if slot == start + 1 and topic not in self.bounds():
            self._raise_unknown(topic, start, end)
        self._raise_beyond(topic, slot, end)

    def _part(self, topic: str, slot: int) -> tuple[str, int]:
        """Return the server that keeps a slot, and the last slot of its part; 0: no end."""
        parts = self._placement.parts.get(topic, ((self._placement.node(topic), 0),))
        return next((part for part in parts[:-1] if slot <= part[1]), parts[-1])

    def _learn_moves(self, station: str, topic: str) -> bool:
        """Ask a server again which topics were moved; return whether this one was."""
        before = self._placement.parts.get(topic)
        idle = self._idle.pop(station, None)
        if idle is not None:
            idle.close()
        self.release(station, self.acquire(station))
        return self._placement.parts.get(topic) != before

    def _read_part(
        self, node: str, topic: str, slot: int, stop: int, columns: tuple[str, ...]
    ) -> Generator[pa.RecordBatch, None, int]:
        """Yield the rows of a part of a topic; return the slot behind the last one."""
        with _Requests(self, node) as requests:
            entries: dict[str, int] = {}
            if "stamp" in columns:
                entries = self._entries_before(requests, topic, slot, stop)
            while slot < stop:
                page = requests.request(Fetch(topic=topic, start=slot, stop=stop), _Page)
                if page.first > slot:
                    self._raise_trimmed(topic, slot, min(page.first, stop))
                if not page.events:
                    break
                if page.next < stop:  # The server sends the next page while this one is converted.
                    requests.prefetch(Fetch(topic=topic, start=page.next, stop=stop))
                yield batch_of(page.events, topic, slot - 1, entries, columns)
                slot = page.next
        return slot

    def _entries_before(
        self, requests: _Requests, topic: str, slot: int, stop: int
    ) -> dict[str, int]:
        """Return the whole stamp of the event before a slot, by topic."""
        later: list[EventRow] = []
        high, step = slot, STAMP_SEARCH_EVENTS
        while high > 1:
            at = low = max(1, high - step)
            events: list[EventRow] = []
            while at < high:
                page = requests.request(Fetch(topic=topic, start=at, stop=high), _Page)
                events = page.events if page.first > at else events + page.events
                at = page.next if page.events else high
            if page.first > slot or page.end < slot:
                return {}  # Trimmed or unknown: `_read` raises.
            later = events + later
            for place in range(len(events) - 1, -1, -1):
                stamp = events[place].stamp
                if stamp is None or stamp.whole:
                    entries: dict[str, int] = {}
                    for row in later[place:]:
                        merge_stamp(entries, row.stamp)
                    return entries
            if page.first >= max(2, low):
                begin = self._first_readable(requests, topic, page.first, stop)
                if begin > slot:
                    self._raise_trimmed(topic, slot, min(begin, stop))
                return {}
            high, step = low, min(2 * step, STAMP_SEARCH_EVENTS_MAX)
        return {}

    def _first_readable(self, requests: _Requests, topic: str, first: int, stop: int) -> int:
        """Return the first slot with a whole stamp."""
        known, begin = self._begins.get(topic, (1, 1))
        if first == known and begin < stop:
            return begin
        slot = first
        while slot < stop:
            page = requests.request(Fetch(topic=topic, start=slot, stop=stop), _Page)
            slot = page.next - len(page.events)
            for row in page.events:
                if row.stamp is None or row.stamp.whole:
                    self._begins[topic] = (first, slot)
                    return slot
                slot += 1
            if not page.events:
                break
        return slot

    def _raise_beyond(self, topic: str, slot: int, end: int) -> NoReturn:
        if self.bounds().get(topic, Bounds(0, 0)).next >= slot:
            raise TransportError(f"{self.url} is too busy to respond: read again later")
        text = (
            f"{topic!r} at {self.url} ends before offset {slot - 1}, and a read up to {end} "
            "was requested: was the log replaced?"
        )
        raise OffsetsGone(text, topic=topic, start=slot - 1, end=end)

    def _raise_trimmed(self, topic: str, slot: int, stop: int) -> NoReturn:
        what = f"{self.url} no longer has offsets {slot - 1} to {stop - 2} of {topic!r}"
        text = f"{what}: they were trimmed"
        raise OffsetsGone(text, topic=topic, start=slot - 1, end=stop - 1)

    def _raise_unknown(self, topic: str, start: int, end: int) -> NoReturn:
        names = [repr(name) for name in sorted(self.bounds())] or ["none yet"]
        shown = ", ".join(names[:TOPICS_SHOWN]) + ", …" * (len(names) > TOPICS_SHOWN)
        text = f"there is no topic {topic!r} at {self.url}; its topics: {shown}"
        raise OffsetsGone(text, topic=topic, start=start, end=end)


def _survey(requests: _Requests) -> dict[str, tuple[int, int]]:
    """Return the first slot and the first empty slot of each topic."""
    found: dict[str, tuple[int, int]] = {}
    start = 0
    while True:
        page = requests.request(Fetch(topic="*", start=start, stop=0, survey=("*",)), Surveyed)
        found |= page.topics
        if page.next >= page.end:
            return found
        if page.next == start:
            raise TransportError("the server is too busy to list its topics: read again later")
        start = max(start + 1, page.next - OVERLAP)
