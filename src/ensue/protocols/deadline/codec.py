"""Messages between brokers as they travel, and as they are meant.

A matrix travels as what has changed since a message that the receiver is known to have, and each of its rows as sets of destinations that have the same stamp, since messages
go to groups; stamps and rounds travel as differences from the message's own. A sender keeps what it knew right after each of its messages, and a receiver keeps the same of each message that it could
read, both for as long as a message can matter. A receiver tells in every frame which message of the other it has (`heard`); the sender then names
that one as the base. Without a base the matrix travels whole, and so it does in copies that were asked for. What has become too old is left out on both sides.

A receiver that was restarted has no base. It says its groups anew before anything else, and whoever hears that, or is asked by somebody who could not read a
message, takes it to have none of all that was sent up to then (`forget`): messages are whole until it has said that it has a later one. What its former self said
is of earlier ones, so it is passed over, whenever it comes. Messages that were under way to it can't be read, and are asked for; if they don't come whole until
their deadline, they are given up (`given_up`).

Matrices of several messages have most rows in common, and share them.

Limits: `retained_max` matrices in all, `matrices_bytes_max` of them beside the latest of each sender, and as many messages that can't be read; the oldest go
first. Whoever needs a matrix that is gone asks for the whole one.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b

import msgspec

from ensue.event import CLOCK, DEADLINE, Event
from ensue.protocols.gossip.causality import Sent, raise_to
from ensue.protocols.gossip.config import GossipConfig
from ensue.protocols.gossip.frames import Live, Matrix, Message, Rows

__all__ = ["Letters", "matrix_of", "rows_digest", "rows_of"]

ENTRY_BYTES = 72
"""What an entry of a row takes in memory, about; and a row in a matrix."""
SETS_MAX = 1024
"""Sets of numbers that are remembered: most messages go to the same few."""
RECENT_ROWS = 8
"""Rows of one broker that a new one is compared with, to share it."""


class Letters:
    """Reads and writes the messages of one broker."""

    def __init__(self, number: int, config: GossipConfig) -> None:
        self._number = number
        self._config = config
        self._known: OrderedDict[tuple[int, int], Matrix] = OrderedDict()
        """By source and stamp: what its sender knew right after a message."""
        self._latest: dict[int, int] = {}
        """By source: the largest stamp of those."""
        self._sizes: dict[tuple[int, int], int] = {}
        """What each of those matrices took when it came: rows that others had are not counted again."""
        self._counted: dict[int, deque[dict[int, int]]] = {}
        """By broker: rows that were counted last."""
        self.bytes = 0
        """What they take, about."""
        self._recent_rows: dict[int, deque[dict[int, int]]] = {}
        """By broker: rows that came last."""
        self._written: tuple[Sent | None, dict[int, Rows]] = (None, {})
        """The message that was written last, and by base: its rows."""
        self._heard: dict[int, int] = {}
        """By broker: the stamp of a message of this one that it has."""
        self._lost: dict[int, int] = {}
        """By broker: of messages of this one up to this stamp, whatever it said before is not to be counted on."""

        self._unread: OrderedDict[tuple[int, int], Event] = OrderedDict()
        """By source and stamp: events of messages whose base is not here."""

    def keep(self, message: Sent) -> None:
        """Keep what a message can be read from, or written."""
        source, stamp = message.source, message.stamp
        self._unread.pop((source, stamp), None)
        if (source, stamp) in self._known:
            self._drop((source, stamp))
        matrix = self._known[source, stamp] = message.reference()
        size = self._sizes[source, stamp] = self._size_of(matrix)
        self.bytes += size
        self._latest[source] = max(stamp, self._latest.get(source, 0))
        if len(self._known) > self._config.retained_max:
            self._drop(next(iter(self._known)))
        if self.bytes > self._config.matrices_bytes_max:
            self._make_room()

    def latest(self, source: int) -> int:
        """Return the stamp of the latest message of a broker that others can be read from, or 0."""
        return self._latest.get(source, 0)

    def heard(self, peer: int, stamp: int) -> None:
        """Take note that a broker has a message of this one."""
        if stamp > self._lost.get(peer, 0):
            self._heard[peer] = max(stamp, self._heard.get(peer, 0))

    def forget(self, peer: int) -> None:
        """Count on nothing that a broker was sent: it may have been restarted."""
        self._lost[peer] = max(self.latest(self._number), self._lost.get(peer, 0))
        self._heard.pop(peer, None)

    def wait_for(self, event: Event, source: int, stamp: int) -> None:
        """Keep the event of a message that can't be read, until it comes whole."""
        self._unread[source, stamp] = event
        if len(self._unread) > self._config.retained_max:
            self._unread.popitem(last=False)

    def given_up(self, now_ns: int) -> list[Event]:
        """Take out the events that can't be read and whose deadline is over."""
        over = [key for key, event in self._unread.items() if now_ns > _deadline_ns(event)]
        return [self._unread.pop(key) for key in over]

    def next_timer_ns(self) -> int | None:
        """Return when an event that can't be read is over."""
        return min((_deadline_ns(event) + 1 for event in self._unread.values()), default=None)

    def prune(self, now_ns: int) -> None:
        """Drop what is too old to be named; later than anybody stops naming it."""
        oldest = now_ns - 2 * self._config.horizon_ns
        for key in [key for key in self._known if key[1] < oldest]:
            self._drop(key)

    def read(self, frame: Message) -> Sent | None:
        """Return the message that is meant; None if that can't be known."""
        entries = {} if frame.event.stamp is None else frame.event.stamp.entries
        stamp = entries.get(CLOCK, 0)
        if not stamp or DEADLINE not in entries:
            return None
        after: Matrix = {}
        if frame.base:
            base = self._known.get((frame.source, frame.base))
            if base is None:
                return None
            after = dict(base)
        raise_to(after, matrix_of(frame.after, stamp))
        oldest = stamp - self._config.horizon_ns - self._config.skew_ns
        after = {x: self._shared(x, _since_stamp(row, oldest)) for x, row in after.items()}
        live = _live_distances(frame.live, frame.round)
        return Sent(
            frame.event,
            frame.source,
            numbers_in(frame.dest),
            after,
            frame.round,
            live,
            frame.digest,
            frame.proof,
        )

    def digest(self, after: Matrix, stamp: int) -> bytes:
        """Return the digest of a matrix as whoever sends a copy of its message sends it."""
        return rows_digest(rows_of(self._recent(after, stamp), stamp))

    def write(self, message: Sent, peer: int, *, whole: bool = False) -> Message:
        """Return a message as it is sent to one broker."""
        base = 0 if whole else self._heard.get(peer, 0)
        known = self._known.get((self._number, base))
        if known is None or base < message.stamp - self._config.horizon_ns:
            base, known = 0, None
        if self._written[0] is not message:
            self._written = (message, {})
        rows = self._written[1].get(base)
        if rows is None:
            recent = self._recent(message.after, message.stamp) if known is None else None
            after = _since(known or {}, message.after) if recent is None else recent
            rows = self._written[1][base] = rows_of(after, message.stamp)
        return Message(
            event=message.event,
            source=message.source,
            dest=bits_of(message.dest),
            base=base,
            after=rows,
            round=message.round,
            live=_live_distances(message.live, message.round),
            heard=self.latest(peer),
            digest=message.digest,
            proof=message.proof,
        )

    def _recent(self, after: Matrix, stamp: int) -> Matrix:
        """Return what matters of a matrix: all who read a message have this much of it, and maybe more."""
        oldest = stamp - self._config.horizon_ns
        recent = {x: _since_stamp(row, oldest) for x, row in after.items()}
        return {x: row for x, row in recent.items() if row}

    def _shared(self, x: int, row: dict[int, int]) -> dict[int, int]:
        """Return an equal row that came before, if there is one; else this."""
        recent = self._recent_rows.get(x)
        if recent is None:
            recent = self._recent_rows[x] = deque(maxlen=RECENT_ROWS)
        for each in recent:
            if each is row or each == row:
                return each
        recent.appendleft(row)
        return row

    def _size_of(self, matrix: Matrix) -> int:
        """Return what a matrix takes beside the rows that others have."""
        entries = len(matrix)
        for x, row in matrix.items():
            counted = self._counted.get(x)
            if counted is None:
                counted = self._counted[x] = deque(maxlen=RECENT_ROWS)
            if not any(each is row for each in counted):
                counted.appendleft(row)
                entries += len(row)
        return ENTRY_BYTES * entries

    def _make_room(self) -> None:
        """Drop the oldest matrices, but the latest of each sender: the next message is read from that."""
        for key in list(self._known):
            if self.bytes <= self._config.matrices_bytes_max:
                return
            if self._latest.get(key[0]) != key[1]:
                self._drop(key)

    def _drop(self, key: tuple[int, int]) -> None:
        del self._known[key]
        self.bytes -= self._sizes.pop(key)
        if self._latest.get(key[0]) == key[1]:
            del self._latest[key[0]]


def rows_digest(rows: Rows) -> bytes:
    """Return a digest of a matrix as it travels, whatever the order of its entries."""
    entries = [(x, sorted(rows[x].items())) for x in sorted(rows)]
    return blake2b(msgspec.msgpack.encode(entries), digest_size=16).digest()


def _deadline_ns(event: Event) -> int:
    assert event.stamp is not None
    return event.stamp.entries[DEADLINE]


def bits_of(numbers: Iterable[int]) -> bytes:
    """Return a set of numbers as bytes."""
    mask = 0
    for number in numbers:
        mask |= 1 << number
    return mask.to_bytes((mask.bit_length() + 7) // 8, "little")


@lru_cache(SETS_MAX)
def numbers_in(bits: bytes) -> tuple[int, ...]:
    """Return the numbers in a set, rising."""
    mask = int.from_bytes(bits, "little")
    found = []
    while mask:
        lowest = mask & -mask
        found.append(lowest.bit_length() - 1)
        mask ^= lowest
    return tuple(found)


def _since_stamp(row: dict[int, int], oldest: int) -> dict[int, int]:
    """Return a row without what is older; the same one if nothing is."""
    if not row or min(row.values()) >= oldest:
        return row
    return {y: stamp for y, stamp in row.items() if stamp >= oldest}


def _since(base: Matrix, matrix: Matrix) -> Matrix:
    """Return what is larger in a matrix than in another, or not there."""
    found: Matrix = {}
    for x, row in matrix.items():
        known = base.get(x, {})
        if known is row:
            continue
        changed = {y: stamp for y, stamp in row.items() if stamp > known.get(y, 0)}
        if changed:
            found[x] = changed
    return found


def rows_of(matrix: Matrix, stamp: int) -> Rows:
    """Return a matrix as it travels with a message."""
    found: Rows = {}
    for x, row in matrix.items():
        groups: dict[int, list[int]] = {}
        for y, sent in row.items():
            groups.setdefault(stamp - sent, []).append(y)
        found[x] = {age: bits_of(numbers) for age, numbers in groups.items()}
    return found


def matrix_of(rows: Rows, stamp: int) -> Matrix:
    """Return the matrix that travelled with a message."""
    found: Matrix = {}
    for x, groups in rows.items():
        row = found[x] = {}
        for age, bits in groups.items():
            row.update(dict.fromkeys(numbers_in(bits), stamp - age))
    return found


def _live_distances(live: Live, number: int) -> Live:
    """Turn rounds into differences from another, or back."""
    return {topic: {x: number - v for x, v in row.items()} for topic, row in live.items()}
