"""The codec of messages between brokers: matrices travel as differences.

A matrix travels as what has changed since a message that the receiver is known to have, and each
row as sets of destinations with the same stamp, since messages go to groups. Stamps and rounds
travel as differences from the message's own. A sender keeps what it knew right after each of its
messages, and a receiver keeps the same of each message it decoded, both as long as a message can
matter. Every frame carries which message of the other side the sender has (`heard`); that one
becomes the base. Without a base, and in copies that were requested, the matrix travels complete.
Entries that are too old are left out on both sides.

A restarted receiver has no base. It sends its groups before anything else; a broker that gets
them, or a request for a message that could not be decoded, assumes that the receiver has nothing
of all that was sent up to then (`forget`): messages are complete until the receiver has confirmed
a later one. Confirmations of its earlier run are about earlier messages, so they are ignored.
Messages under way to it cannot be decoded, and are requested; those that do not come complete by
their deadline are given up (`given_up`).

Matrices of several messages share most rows.

Limits: `retained_max` matrices, `matrices_bytes_max` of them beside the latest of each sender,
and as many undecodable messages; oldest evicted first. A receiver without a base requests the
complete matrix.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b

import msgspec

from ensue.core.event import CLOCK, DEADLINE, Event
from ensue.protocols.deadline.causality import Sent, raise_to
from ensue.protocols.deadline.config import DeadlineConfig
from ensue.protocols.deadline.frames import Live, Matrix, Message, Rows

__all__ = ["Codec", "matrix_of", "rows_digest", "rows_of"]

ENTRY_BYTES = 72
"""Approximate memory of an entry of a row, and of a row in a matrix."""
SETS_MAX = 1024
"""Decoded sets that are cached: most messages go to the same few."""
RECENT_ROWS = 8
"""Recent rows of one broker that a new one is compared with, to share it."""


class Codec:
    """Encodes and decodes the messages of one broker."""

    def __init__(self, number: int, config: DeadlineConfig) -> None:
        self._number = number
        self._config = config
        self._known: OrderedDict[tuple[int, int], Matrix] = OrderedDict()
        """By source and stamp: what the sender knew right after a message."""
        self._latest: dict[int, int] = {}
        """By source: the largest of these stamps."""
        self._sizes: dict[tuple[int, int], int] = {}
        """Memory of each matrix when it came, without rows that others share."""
        self._counted: dict[int, deque[dict[int, int]]] = {}
        """By broker: the rows counted last."""
        self.bytes = 0
        """Approximate memory of all matrices."""
        self._recent_rows: dict[int, deque[dict[int, int]]] = {}
        """By broker: the rows received last."""
        self._written: tuple[Sent | None, dict[int, Rows]] = (None, {})
        """The message encoded last, and its rows by base."""
        self._heard: dict[int, int] = {}
        """By broker: stamp of the latest message of this broker that it has."""
        self._lost: dict[int, int] = {}
        """By broker: up to this stamp, its confirmations do not count any more."""

        self._unread: OrderedDict[tuple[int, int], Event] = OrderedDict()
        """By source and stamp: events of messages whose base is missing."""

    def keep(self, message: Sent) -> None:
        """Keep the matrix of a message as a base for others."""
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
        """Return the stamp of the latest base of a broker, or 0."""
        return self._latest.get(source, 0)

    def heard(self, peer: int, stamp: int) -> None:
        """Record that a broker has a message of this one."""
        if stamp > self._lost.get(peer, 0):
            self._heard[peer] = max(stamp, self._heard.get(peer, 0))

    def forget(self, peer: int) -> None:
        """Assume that a broker has none of the messages sent to it: it may have restarted."""
        self._lost[peer] = max(self.latest(self._number), self._lost.get(peer, 0))
        self._heard.pop(peer, None)

    def wait_for(self, event: Event, source: int, stamp: int) -> None:
        """Keep the event of an undecodable message until it comes complete."""
        self._unread[source, stamp] = event
        if len(self._unread) > self._config.retained_max:
            self._unread.popitem(last=False)

    def given_up(self, now_ns: int) -> list[Event]:
        """Remove and return undecodable events whose deadline has passed."""
        over = [key for key, event in self._unread.items() if now_ns > _deadline_ns(event)]
        return [self._unread.pop(key) for key in over]

    def next_timer_ns(self) -> int | None:
        """Return when the next undecodable event expires."""
        return min((_deadline_ns(event) + 1 for event in self._unread.values()), default=None)

    def prune(self, now_ns: int) -> None:
        """Drop matrices that are too old to be used as a base."""
        oldest = now_ns - 2 * self._config.horizon_ns
        for key in [key for key in self._known if key[1] < oldest]:
            self._drop(key)

    def read(self, frame: Message) -> Sent | None:
        """Decode a message; return None if it is invalid or its base is missing."""
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
        """Return the digest of a matrix in the form in which a copy carries it."""
        return rows_digest(rows_of(self._recent(after, stamp), stamp))

    def write(self, message: Sent, peer: int, *, whole: bool = False) -> Message:
        """Encode a message for one broker."""
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
        """Return the recent part of a matrix, which every receiver of its message has."""
        oldest = stamp - self._config.horizon_ns
        recent = {x: _since_stamp(row, oldest) for x, row in after.items()}
        return {x: row for x, row in recent.items() if row}

    def _shared(self, x: int, row: dict[int, int]) -> dict[int, int]:
        """Return an equal recent row, if there is one; else this one."""
        recent = self._recent_rows.get(x)
        if recent is None:
            recent = self._recent_rows[x] = deque(maxlen=RECENT_ROWS)
        for each in recent:
            if each is row or each == row:
                return each
        recent.appendleft(row)
        return row

    def _size_of(self, matrix: Matrix) -> int:
        """Return the memory of a matrix without shared rows."""
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
        """Drop the oldest matrices, except the latest of each sender."""
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
    """Return a digest of an encoded matrix, independent of the order of its entries."""
    entries = [(x, sorted(rows[x].items())) for x in sorted(rows)]
    return blake2b(msgspec.msgpack.encode(entries), digest_size=16).digest()


def _deadline_ns(event: Event) -> int:
    assert event.stamp is not None
    return event.stamp.entries[DEADLINE]


def bits_of(numbers: Iterable[int]) -> bytes:
    """Encode a set of numbers."""
    mask = 0
    for number in numbers:
        mask |= 1 << number
    return mask.to_bytes((mask.bit_length() + 7) // 8, "little")


@lru_cache(SETS_MAX)
def numbers_in(bits: bytes) -> tuple[int, ...]:
    """Decode a set of numbers, in ascending order."""
    mask = int.from_bytes(bits, "little")
    found = []
    while mask:
        lowest = mask & -mask
        found.append(lowest.bit_length() - 1)
        mask ^= lowest
    return tuple(found)


def _since_stamp(row: dict[int, int], oldest: int) -> dict[int, int]:
    """Return a row without older entries; the same row if there are none."""
    if not row or min(row.values()) >= oldest:
        return row
    return {y: stamp for y, stamp in row.items() if stamp >= oldest}


def _since(base: Matrix, matrix: Matrix) -> Matrix:
    """Return the entries of a matrix that are larger than in a base."""
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
    """Encode the matrix of a message."""
    found: Rows = {}
    for x, row in matrix.items():
        groups: dict[int, list[int]] = {}
        for y, sent in row.items():
            groups.setdefault(stamp - sent, []).append(y)
        found[x] = {age: bits_of(numbers) for age, numbers in groups.items()}
    return found


def matrix_of(rows: Rows, stamp: int) -> Matrix:
    """Decode the matrix of a message."""
    found: Matrix = {}
    for x, groups in rows.items():
        row = found[x] = {}
        for age, bits in groups.items():
            row.update(dict.fromkeys(numbers_in(bits), stamp - age))
    return found


def _live_distances(live: Live, number: int) -> Live:
    """Convert rounds to differences from another round, or back."""
    return {topic: {x: number - v for x, v in row.items()} for topic, row in live.items()}
