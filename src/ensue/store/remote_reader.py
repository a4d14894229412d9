"""Reading the log of a bus that servers keep: `ensue://HOST:PORT`, over plain blocking sockets.

The server that the URL names says who else is in its chain; what is asked about a topic goes to the
one that keeps it. Every read that goes on has a connection of its own; idle ones are kept for the
next.

Offsets are slots less one, as in a log directory, and a topic ends before its first slot that is
not filled yet: what was read once reads the same for ever.

Stamps are whole. On the wire they may leave out what has not changed since the topic's previous
event, so a read that begins in the middle looks back for the last whole stamp, `LOOK_BACK` events
and then twice as many each time. Servers put one out every 256 events of a topic, so this costs up
to three answers of some hundred events, whatever the range. Where a log was trimmed, what comes
before its first whole stamp can't be made whole any more: the topic begins there.

A server that restarts, or a connection that is lost, costs a read nothing but time: it goes on
where it was, for up to `PATIENCE_S` without an answer. The first connection is tried once, unless
`patient`. One that comes back with another log, or an older state of it, or that can't read it,
ends reading with `LogLost`.
"""

import logging
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from secrets import token_hex
from typing import Any, NoReturn, Self, TypeVar

import pyarrow as pa

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
from ensue.protocols.total.frames import Expired, Refused
from ensue.protocols.total.placement import Placement
from ensue.store.reader import Bounds, EventRow, batch_of, merge_stamp
from ensue.store.schema import COLUMNS
from ensue.transports.peer_probe import is_final
from ensue.transports.tcp import messages
from ensue.transports.tcp.options import TcpOptions, parse_address
from ensue.transports.tls import what_failed

__all__ = ["PATIENCE_S", "ServedReader"]

CONNECT_S = 10.0
ANSWER_S = 30.0
"""A server that says nothing for so long is taken for gone."""
PATIENCE_S = 60.0
PAUSE_S_MIN = 0.05
PAUSE_S_MAX = 1.0
LOOK_BACK = 64
LOOK_BACK_MAX = 4096
BUSY_TRIES_MAX = 50
"""How often a server is asked again that had no room for an answer, or a slot that is not
filled."""
OVERLAP = 64
"""Topics of a page that are asked for again with the next, lest one is missed while others go."""
TOPICS_SHOWN = 20

_log = logging.getLogger("ensue")


class _Page(Frame, frozen=True, tag=11):
    """`Fetched`, with rows for events."""

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


class _Line:
    """One read-only connection to one server."""

    def __init__(self, options: TcpOptions, address: tuple[str, int]) -> None:
        self.address = f"{address[0]}:{address[1]}"
        self.welcome: messages.Welcome | None = None
        self._options = options
        self._name = f"reader~{token_hex(8)}"
        self._frames: deque[Any] = deque()
        context = options.tls.context()
        try:
            self._socket = socket.create_connection(address, timeout=CONNECT_S)
            try:
                self._enter(context, options.server_name or address[0])
            except BaseException:
                self.close()
                raise
        except (TransportError, AccessDenied):
            raise
        except OSError as error:
            kind = HandshakeFailed if is_final(error) else TransportError
            raise kind(self._why(error)) from error

    def send(self, frame: Frame) -> None:
        """Ask."""
        assert self.welcome is not None
        self._send(messages.framed(bundle(self.welcome.server, self._name, [_BODY(frame)])))

    def receive(self, kind: type[A]) -> A:
        """Return the next answer."""
        while True:
            while self._frames:
                frame = self._frames.popleft()
                if isinstance(frame, kind):
                    return frame
                if isinstance(frame, Refused):
                    raise AccessDenied(f"{self.address}: {frame.reason}", reason=frame.reason)
            message = self._message()
            if message[0] == messages.CONTROL:
                self._control(messages.decode_control(message))
            else:
                self._frames.extend(_CODEC.unbundle(message, peer=self.address)[2])

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def __del__(self) -> None:
        """Hang up where a reader is let go of, as logs need not be closed."""
        if hasattr(self, "_socket"):
            self._socket.close()

    def _enter(self, context: ssl.SSLContext | None, server_name: str) -> None:
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is not None:
            self._socket = context.wrap_socket(self._socket, server_hostname=server_name)
        self._say(messages.Hello(client=self._name, token=self._options.token))
        self.welcome = self._told(messages.Welcome)
        self._say(messages.Begin(session=self.welcome.session))
        self._say(messages.Enter(name=self._name))
        self._told(messages.Entered)
        self._socket.settimeout(ANSWER_S)

    def _told(self, kind: type[T]) -> T:
        """Return the server's welcome message."""
        while True:
            if isinstance(said := messages.decode_control(self._message()), kind):
                return said
            self._control(said)

    def _control(self, said: Any) -> None:
        match said:
            case messages.Ping(number=number):
                self._say(messages.Pong(number=number))
            case messages.Farewell(reason=reason, log="damaged"):
                server = self.address if self.welcome is None else self.welcome.server
                text = f"server {server!r} can't read its log: {reason}"
                raise LogLost(text, server=server, reason="damaged")
            case messages.Farewell(reason=reason, final=False):
                raise TransportError(f"the server at {self.address} hung up: {reason}")
            case messages.Farewell(reason=reason) | messages.Exited(reason=reason):
                text = f"the server at {self.address} does not let this reader in: {reason}"
                raise AccessDenied(text, reason=reason)

    def _say(self, message: messages.Control) -> None:
        self._send(messages.encode_control(message))

    def _send(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise TransportError(self._why(error)) from error

    def _message(self) -> bytes:
        size = int.from_bytes(self._exactly(messages.PREFIX_BYTES), "big")
        if not 0 < size <= FRAME_BYTES_MAX:
            text = f"a message says that it has {size} bytes; expected 1 to {FRAME_BYTES_MAX}"
            raise RemoteProtocolError(text, peer=self.address)
        return self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        chunks: list[bytes] = []
        while size:
            try:
                chunk = self._socket.recv(min(size, 1 << 20))
            except OSError as error:
                raise TransportError(self._why(error)) from error
            if not chunk:
                early = "" if self.welcome is not None else " before it said welcome"
                hint = ": does it want TLS (tls=1)?" if early and not self._options.tls.on else ""
                raise TransportError(f"the server at {self.address} hung up{early}{hint}")
            chunks.append(chunk)
            size -= len(chunk)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def _why(self, error: OSError) -> str:
        if isinstance(error, ssl.SSLError):
            return f"no TLS with the server at {self.address}: {what_failed(error)}"
        if isinstance(error, TimeoutError):
            return f"the server at {self.address} does not answer"
        if self.welcome is not None:
            return f"the connection to {self.address} is lost ({error})"
        return (
            f"no server answers at {self.address} ({error}); start one with: "
            f"ensue serve --listen {self.address} --data DIR"
        )


def _patiently(action: Callable[[], T], *, patient: bool) -> T:
    """Try again, for a while, what a server did not answer."""
    pause_s, since_s = PAUSE_S_MIN, time.monotonic()
    while True:
        try:
            return action()
        except TransportError as error:
            waited_s = time.monotonic() - since_s
            if not patient or not error.retriable:
                raise
            if waited_s >= PATIENCE_S:
                text = f"{error}; given up after {waited_s:.0f} s without an answer"
                raise TransportError(text) from error
            _log.info("%s; trying again", error)
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, PAUSE_S_MAX)


class _Caller:
    """Asks one server of the chain, and asks again over a new connection if one is lost."""

    def __init__(self, reader: "ServedReader", station: str) -> None:
        self._reader, self._station = reader, station
        self._line: _Line | None = None
        self._ahead: Frame | None = None
        """What was asked and is not answered yet."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._line is not None and self._ahead is None:
            self._reader.put_back(self._station, self._line)
            self._line = None
        self._hang_up()

    def ask(self, frame: Frame, kind: type[A]) -> A:
        """Return the answer to a frame, which may have been sent ahead."""
        for tries in range(BUSY_TRIES_MAX):
            found = _patiently(lambda: self._answer(frame, kind), patient=True)
            if not _is_short(found):
                break
            time.sleep(min(0.001 * 2**tries, PAUSE_S_MIN))
        return found

    def send_ahead(self, frame: Frame) -> None:
        """Send a frame whose answer will be asked for next."""
        if self._ahead is not None:
            self._hang_up()
        if self._line is None:
            self._line = self._reader.line(self._station)
        self._ahead = frame
        self._line.send(frame)

    def _answer(self, frame: Frame, kind: type[A]) -> A:
        try:
            if self._ahead != frame:
                self.send_ahead(frame)
            assert self._line is not None
            found = self._line.receive(kind)
        except BaseException:
            self._hang_up()
            raise
        self._ahead = None
        return found

    def _hang_up(self) -> None:
        line, self._line, self._ahead = self._line, None, None
        if line is not None:
            line.close()


def _is_short(answer: _Page | Surveyed) -> bool:
    """Tell whether there may be more than an answer has, which has nothing."""
    if isinstance(answer, Surveyed):
        return answer.start == answer.next < answer.end
    return not answer.events and answer.first <= answer.start < answer.end


class ServedReader:
    """Reads the log of a served bus. Not for several threads at once, and not to be pickled."""

    def __init__(self, url: str, *, patient: bool = False) -> None:
        options = self._options = TcpOptions.parse(url)
        host, port = options.host, options.port
        self.url = f"ensue://[{host}]:{port}" if ":" in host else f"ensue://{host}:{port}"
        """For people: without the token."""
        self._idle: dict[str, _Line] = {}
        self._logs: dict[str, Lineage] = {}
        """By server: which log it has."""
        self._begins: dict[str, tuple[int, int]] = {}
        """Of topics that were trimmed, the first slot there is, and the first that can be read."""
        line = _patiently(lambda: _Line(options, (host, port)), patient=patient)
        welcome = line.welcome
        assert welcome is not None
        self._check_log(welcome)
        self._idle[welcome.server] = line
        self._placement = Placement(
            [member.name for member in welcome.chain],
            topics={member.name: member.topics for member in welcome.chain},
            closed=welcome.closed,
        )
        self._addresses = {
            member.name: parse_address(member.address, what="a station's address")
            for member in welcome.chain
            if member.name != welcome.server
        }
        self._addresses[welcome.server] = (host, port)

    def bounds(self) -> dict[str, Bounds]:
        """Return what there is of each topic by now: of a server's topics all as of one moment."""
        found: dict[str, Bounds] = {}
        for station in self._placement.nodes:
            with _Caller(self, station) as caller:
                for topic, (first, filled) in _survey(caller).items():
                    begin = self._begin(caller, topic, first, filled)
                    found[topic] = Bounds(begin - 1, max(begin, filled) - 1)
        return found

    def read(
        self, topic: str, start: int, end: int, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a topic from an offset up to, not including, another."""
        chosen = COLUMNS if columns is None else tuple(columns)
        for name in chosen:
            if name not in COLUMNS:
                raise BadInput(f"an event log has no column {name!r}; it has {', '.join(COLUMNS)}")
        return self._read(topic, start, end, chosen)

    def close(self) -> None:
        """Hang up; what is asked later connects again."""
        while self._idle:
            self._idle.popitem()[1].close()

    def line(self, station: str) -> _Line:
        """Return a connection to a server of the chain."""
        idle = self._idle.pop(station, None)
        if idle is not None:
            return idle
        line = _Line(self._options, self._addresses[station])
        if line.welcome is None or line.welcome.server != station:
            line.close()
            raise TransportError(f"at {line.address} is another server than {station!r} by now")
        try:
            self._check_log(line.welcome)
        except LogLost:
            line.close()
            raise
        return line

    def _check_log(self, welcome: messages.Welcome) -> None:
        """Refuse a server whose log is not the one that was read before."""
        server, lineage = welcome.server, welcome.log
        if lineage is None:
            return
        known = self._logs.setdefault(server, lineage)
        reason = contradiction(known, lineage)
        if reason:
            text = f"{lost_text(server, reason)}; open the log anew to go on"
            raise LogLost(text, server=server, reason=reason)
        self._logs[server] = lineage

    def put_back(self, station: str, line: _Line) -> None:
        """Return a connection to the pool."""
        self._idle[station] = line

    def _read(
        self, topic: str, start: int, end: int, columns: tuple[str, ...]
    ) -> Iterator[pa.RecordBatch]:
        if start >= end:
            return
        if not self._placement.knows(topic):
            self._unknown(topic, start, end)
        slot, stop = start + 1, end + 1
        with _Caller(self, self._placement.node(topic)) as caller:
            entries = self._before(caller, topic, slot, stop) if "stamp" in columns else {}
            while slot < stop:
                page = caller.ask(Fetch(topic=topic, start=slot, stop=stop), _Page)
                if page.first > slot:
                    self._trimmed(topic, slot, min(page.first, stop))
                if not page.events:
                    break
                if page.next < stop:  # While it is sent, what is here is made into columns.
                    caller.send_ahead(Fetch(topic=topic, start=page.next, stop=stop))
                yield batch_of(page.events, topic, slot - 1, entries, columns)
                slot = page.next
            else:
                return
        if page.end <= 1:
            self._unknown(topic, start, end)
        self._beyond(topic, slot, end)

    def _before(self, caller: _Caller, topic: str, slot: int, stop: int) -> dict[str, int]:
        """Return the whole entries of the event before a slot, by the topics' names."""
        later: list[EventRow] = []
        high, step = slot, LOOK_BACK
        while high > 1:
            at = low = max(1, high - step)
            events: list[EventRow] = []
            while at < high:
                page = caller.ask(Fetch(topic=topic, start=at, stop=high), _Page)
                events = page.events if page.first > at else events + page.events
                at = page.next if page.events else high
            if page.first > slot or page.end < slot:
                return {}  # Gone or unknown: reading it raises.
            later = events + later
            for place in range(len(events) - 1, -1, -1):
                stamp = events[place].stamp
                if stamp is None or stamp.whole:
                    entries: dict[str, int] = {}
                    for row in later[place:]:
                        merge_stamp(entries, row.stamp)
                    return entries
            if page.first >= max(2, low):
                begin = self._begin(caller, topic, page.first, stop)
                if begin > slot:
                    self._trimmed(topic, slot, min(begin, stop))
                return {}
            high, step = low, min(2 * step, LOOK_BACK_MAX)
        return {}

    def _begin(self, caller: _Caller, topic: str, first: int, stop: int) -> int:
        """Return the first slot from which on stamps can be made whole."""
        known, begin = self._begins.get(topic, (1, 1))
        if first == known and begin < stop:
            return begin
        slot = first
        while slot < stop:
            page = caller.ask(Fetch(topic=topic, start=slot, stop=stop), _Page)
            slot = page.next - len(page.events)
            for row in page.events:
                if row.stamp is None or row.stamp.whole:
                    self._begins[topic] = (first, slot)
                    return slot
                slot += 1
            if not page.events:
                break
        return slot

    def _beyond(self, topic: str, slot: int, end: int) -> NoReturn:
        if self.bounds().get(topic, Bounds(0, 0)).next >= slot:
            raise TransportError(f"{self.url} is too busy to answer")
        what = f"{self.url} has offsets of {topic!r} up to {slot - 1}, that one not included"
        text = f"{what}, and not up to {end}: is it the log it was?"
        raise OffsetsGone(text, topic=topic, start=slot - 1, end=end)

    def _trimmed(self, topic: str, slot: int, stop: int) -> NoReturn:
        what = f"{self.url} no longer has offsets {slot - 1} to {stop - 2} of {topic!r}"
        text = f"{what}: they were trimmed"
        raise OffsetsGone(text, topic=topic, start=slot - 1, end=stop - 1)

    def _unknown(self, topic: str, start: int, end: int) -> NoReturn:
        names = [repr(name) for name in sorted(self.bounds())] or ["none yet"]
        shown = ", ".join(names[:TOPICS_SHOWN]) + ", …" * (len(names) > TOPICS_SHOWN)
        text = f"there is no topic {topic!r} at {self.url}; its topics: {shown}"
        raise OffsetsGone(text, topic=topic, start=start, end=end)


def _survey(caller: _Caller) -> dict[str, tuple[int, int]]:
    """Return each topic's first slot, and its first one that is not filled."""
    found: dict[str, tuple[int, int]] = {}
    start = 0
    while True:
        page = caller.ask(Fetch(topic="*", start=start, stop=0, survey=("*",)), Surveyed)
        found |= page.topics
        if page.next >= page.end:
            return found
        if page.next == start:
            raise TransportError("a server is too busy to tell its topics")
        start = max(start + 1, page.next - OVERLAP)
