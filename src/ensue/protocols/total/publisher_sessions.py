"""Publisher sessions: what a node remembers of publishers that ask it first.

A node remembers a publisher so that repeated requests are answered as before. It forgets a
publisher that leaves, or that has no open requests when there are too many (`clients_max`).

Requests of one publisher are taken in turn. Those that overtook an earlier one are kept until it
comes, up to a `window` of them a publisher and to `EARLY_BYTES_MAX`; beyond, they are dropped, and
will be repeated. All publishers together have `ALL_EARLY_BYTES_MAX`; beyond, the node drops those
of the publisher that has sent nothing early for longest, which may well have vanished.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import islice

from ensue.core.event import Event, wire_bytes
from ensue.protocols.total.frames import OrderRequest, StampRequest
from ensue.protocols.total.leases import Leases
from ensue.protocols.total.records import INT
from ensue.protocols.total.responses import Responses
from ensue.protocols.total.slots import PublishedSlots, decode_session, encode_session
from ensue.protocols.total.stage import StageState
from ensue.protocols.total.tombstones import Tombstones

__all__ = [
    "ALL_EARLY_BYTES_MAX",
    "EARLY_BYTES_MAX",
    "FORGET_TRIES",
    "EarlyRequests",
    "PublisherSession",
    "PublisherSessions",
]

EARLY_BYTES_MAX = 4 * 1024 * 1024
ALL_EARLY_BYTES_MAX = 64 * 1024 * 1024
FORGET_TRIES = 16
"""Publishers examined in the search for one that can be forgotten."""


class PublisherSession:
    """One publisher, at the origin of its requests."""

    __slots__ = ("early", "early_bytes", "elsewhere", "next", "out", "seen_ns", "settled")

    def __init__(self, next_number: int, seen_ns: int) -> None:
        self.next = next_number
        """The number of the next new request."""
        self.elsewhere: OrderedDict[int, int] = OrderedDict()
        """Requests to the stages that complete them, so that a repeated one can be answered."""
        self.early: dict[int, str | Event] = {}
        """Requests that overtook an earlier one: topics, or events. See `EarlyRequests`."""
        self.early_bytes = 0
        self.out = PublishedSlots()
        """Slots of unsettled requests whose events this node published."""
        self.settled = 0
        """The publisher knows the fate of every request below."""
        self.seen_ns = seen_ns


class EarlyRequests:
    """The early requests of all publishers of a node, and the bytes that they take."""

    __slots__ = ("_holders", "bytes")

    def __init__(self) -> None:
        self._holders: dict[PublisherSession, None] = {}
        """Sessions with early requests, the one that sent one last at the end."""
        self.bytes = 0

    @property
    def count(self) -> int:
        """How many there are."""
        return sum(len(session.early) for session in self._holders)

    def keep(self, session: PublisherSession, number: int, item: str | Event) -> None:
        """Keep a request until its turn comes, if there is room."""
        size = _bytes(item)
        if number in session.early or session.early_bytes + size > EARLY_BYTES_MAX:
            return
        self._holders.pop(session, None)
        self._holders[session] = None
        session.early[number] = item
        session.early_bytes += size
        self.bytes += size
        while self.bytes > ALL_EARLY_BYTES_MAX:
            self.forget(next(iter(self._holders)))

    def take_next(self, session: PublisherSession) -> str | Event | None:
        """Remove and return the request whose turn it is, if it is here."""
        item = session.early.pop(session.next, None)
        if item is not None:
            session.early_bytes -= _bytes(item)
            self.bytes -= _bytes(item)
            if not session.early:
                del self._holders[session]
        return item

    def forget(self, session: PublisherSession, *, below: int | None = None) -> None:
        """Drop all early requests of a publisher, or those below a number."""
        early = session.early
        left = {} if below is None else {n: early[n] for n in early if n >= below}
        self.bytes -= session.early_bytes
        session.early, session.early_bytes = left, sum(map(_bytes, left.values()))
        self.bytes += session.early_bytes
        if not left:
            self._holders.pop(session, None)


class PublisherSessions:
    """All publisher sessions of a node, and the tombstones of those that it forgot."""

    def __init__(
        self,
        state: StageState,
        leases: Leases,
        responses: Responses,
        slot_of: Callable[[Event], int] | None,
    ) -> None:
        self._state = state
        self._leases = leases
        self._responses = responses
        self._slot_of = slot_of
        """Looks an event up in the log, where this node has one."""
        self.by_name: dict[str, PublisherSession] = {}
        self.early = EarlyRequests()
        self._gone = Tombstones(state.persist, "gone")
        """Publishers that were forgotten, and their next request numbers."""
        self._refused = Tombstones(state.persist, "refused")
        """Publishers that there was no room for, and the first number that was not refused."""

    def open(
        self,
        publisher: str,
        frame: StampRequest | OrderRequest,
        items: Sequence[str | Event],
        now_ns: int,
    ) -> PublisherSession | None:
        """Open a session for a new publisher that requests `items`, if there is room.

        What was published before the publisher was forgotten is answered in any case. A request
        that was refused stays refused: with `carries`, a copy that comes when there is room would
        publish an event that its publisher knows to be void. So the session is not opened before
        the publisher knows what was refused.
        """
        first, stop = frame.number, frame.number + len(items)
        fresh = min(max(first, self._gone.find(publisher)), stop)
        refused = self._refused.find(publisher)
        knows = frame.settled >= refused
        if fresh < stop and knows and self._has_room(now_ns):
            self._refused.take(publisher)
            out = self._gone.slots(publisher)
            next_number = max(frame.settled, self._gone.take(publisher))
            session = self.by_name[publisher] = PublisherSession(next_number, now_ns)
            session.out = out
            return session
        if first < fresh:
            out = self._gone.slots(publisher)
            again = [
                (number, out.get(number) or self.find_slot(item))
                for number, item in enumerate(items[: fresh - first], first)
            ]
            self._responses.published(publisher, again)
        if fresh < stop and (knows or fresh < refused):
            if self._state.config.carries:
                self._refused.add(publisher, max(refused, fresh + 1))
            what, how = "there are too many publishers", "try again when some have ended"
            self._state.refuse_limit(publisher, fresh, "clients_max", what, how)
        return None

    def find_slot(self, item: str | Event) -> int:
        """Look up an event whose slot is in no session; 0 if its slot is not known.

        It is settled, or an earlier version wrote the session's record, without slots.
        """
        if isinstance(item, str) or self._slot_of is None:
            return 0
        return self._slot_of(item)

    def settle(self, publisher: str, session: PublisherSession, settled: int) -> None:
        """Forget requests below a settled number: the publisher will not repeat them.

        Nor will it repeat requests that were refused.
        """
        session.settled = max(session.settled, settled)
        if settled > session.next:
            session.next = settled
            if session.early:
                self.early.forget(session, below=settled)
        session.out.forget(settled)
        while session.elsewhere and (first := next(iter(session.elsewhere))) < settled:
            del session.elsewhere[first]
            self._state.persist(f"elsewhere/{first}/{publisher}", None)

    def persist(self, publisher: str, session: PublisherSession) -> None:
        """Write the record of a session."""
        if self._state.config.durable:
            record = encode_session(session.next, session.out)
            self._state.persist(f"publisher/{publisher}", record)

    def forget(self, name: str) -> bool:
        """Forget a publisher, unless it may ask again for a stamp that was made.

        If it returns, its session opens at the number that the publisher sends. A late copy of an
        old request gets a stamp that is never confirmed, and is voided after its lease; but an
        event that came along would be published twice, so a tombstone keeps how far the publisher
        was.
        """
        session = self.by_name[name]
        if session.elsewhere or self._leases.any_of(name, self._state.name):
            return False
        self.early.forget(self.by_name.pop(name))
        self._state.persist(f"publisher/{name}", None)
        if self._state.config.carries:
            self._gone.add(name, session.next, session.out)
        return True

    def restore(self, kind: str, rest: str, value: bytes, now_ns: int) -> None:
        """Restore a record of an earlier incarnation."""
        if kind == "publisher":
            session = self._restored(rest, now_ns)
            session.next, session.out = decode_session(value)
            return
        number, _, publisher = rest.partition("/")
        if kind == "elsewhere":
            self._restored(publisher, now_ns).elsewhere[int(number)] = INT.decode(value)
        else:
            table = self._gone if kind == "gone" else self._refused
            table.restore(int(number), publisher, value)

    def _restored(self, name: str, now_ns: int) -> PublisherSession:
        return self.by_name.setdefault(name, PublisherSession(1, now_ns))

    def _has_room(self, now_ns: int) -> bool:
        """Forget an idle publisher if there are too many; False if all are busy."""
        config, sessions = self._state.config, self.by_name
        if len(sessions) < config.clients_max:
            return True
        for name in list(islice(sessions, FORGET_TRIES)):
            session = sessions[name]
            # Where nothing has to be confirmed, only the publisher knows what it may still repeat.
            certain = not config.carries or session.settled >= session.next
            idle = now_ns - session.seen_ns >= config.forget_ns
            if (certain or idle) and self.forget(name):
                return True
            sessions[name] = sessions.pop(name)
        return False


def _bytes(item: str | Event) -> int:
    return len(item) if isinstance(item, str) else wire_bytes(item)
