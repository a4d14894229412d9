"""The delivery rule of brokers: a matrix of what was sent, and deadlines.

Guarantee, whatever is lost, duplicated or overtaken:
- no message is delivered after one that causally follows it, twice, or after its deadline;
- a message that arrives in time is delivered in time, whatever happened to its predecessors;
- no message waits longer than until its deadline.

Theory of operation. `matrix[x][y]` is the stamp of the last message from x to y that this broker
knows of (MCP in the paper). A message carries what its sender knew *before* sending it, and a stamp
larger than all of that: so the order of stamps extends the causal order. A message may be delivered
here when everything its sender knew was sent here has been delivered here. Otherwise it waits until
its own deadline, or that of a waiting message that follows it. Then the messages that are here are
delivered, smallest stamp first, and missing ones cannot be delivered any more.

In time means `slack_ns` before the deadline. A waiting message is delivered right then, so that a
timer may be late by as much. A message whose deadline has passed when it is examined, because its
process was stopped, is late.

The deadline of a message is never earlier than that of a predecessor (`latest_deadline_ns`).
Otherwise a message in time could find a follower already delivered, and order and both deadlines
could not all be kept.

Entries so old that no process can deliver their messages are forgotten (`horizon_ns`), which keeps
the matrix small. Rows are immutable and shared between matrices, so comparing two rows is mostly an
identity check.

Deviations from the paper's Figures 4 and 5, numbered as in the errata: the matrix from before the
send and a test of all senders (1), rising stamps (2), due messages in the order of stamps (3),
copies of waiting messages dropped (4), "not before" in place of "at" (5), deadlines that do not
fall (6).

HAZARD: the receiver's clock decides whether a message is in time. Order needs clocks only to
forget: see `config`.
"""

from typing import TypeVar

import msgspec

from ensue.core.event import CLOCK, DEADLINE, Event
from ensue.protocols.deadline.config import DeadlineConfig
from ensue.protocols.deadline.frames import Live, Matrix

__all__ = [
    "ACCEPTED",
    "DUPLICATE",
    "LATE",
    "OVERFLOW",
    "OVERTAKEN",
    "Causality",
    "Sent",
    "raise_to",
]

ACCEPTED, LATE, OVERTAKEN, DUPLICATE, OVERFLOW = "", "late", "overtaken", "duplicate", "overflow"

Key = tuple[int, int]
"""Stamp and source: the sort key of messages."""


T = TypeVar("T", int, str)


def raise_to(matrix: dict[T, dict[int, int]], other: dict[T, dict[int, int]]) -> None:
    """Merge the larger entries of another matrix; rows are replaced on change."""
    for x, row in other.items():
        mine = matrix.get(x)
        if mine is row:
            continue
        if mine is None:
            matrix[x] = row
            continue
        larger = {y: stamp for y, stamp in row.items() if mine.get(y, 0) < stamp}
        if larger:
            raised = mine | larger
            matrix[x] = row if raised == row else raised


class Sent(msgspec.Struct, frozen=True):
    """A message with what its sender knew."""

    event: Event
    source: int
    dest: tuple[int, ...]
    after: Matrix
    round: int = 0
    live: Live = {}
    """By topic and broker: round numbers."""
    digest: bytes = b""
    proof: bytes = b""

    @property
    def stamp(self) -> int:
        """When it was sent; larger than the stamp of any predecessor."""
        assert self.event.stamp is not None
        return self.event.stamp.entries[CLOCK]

    @property
    def deadline_ns(self) -> int:
        """Until when it may be delivered."""
        assert self.event.stamp is not None
        return self.event.stamp.entries[DEADLINE]

    @property
    def key(self) -> Key:
        """Its sort key."""
        return (self.stamp, self.source)

    def reference(self) -> Matrix:
        """Return what its sender knew right after sending it."""
        matrix = dict(self.after)
        raise_to(matrix, {self.source: dict.fromkeys(self.dest, self.stamp)})
        return matrix


class Held(msgspec.Struct, frozen=True):
    """A message that waits."""

    sent: Sent
    arrived_ns: int


class Causality:
    """The matrix of one broker, and the messages that wait there."""

    def __init__(self, number: int, config: DeadlineConfig, settled: dict[int, int]) -> None:
        self.number = number
        self.config = config
        self.matrix: Matrix = {}
        self.settled = settled
        """By source: all messages to this broker up to this stamp are delivered or given up."""
        self.waiting: dict[Key, Held] = {}
        self.highest = max(settled.values(), default=0)
        """The largest known stamp."""
        self.latest_deadline_ns = 0
        """Of all messages sent or delivered here."""
        self._pruned_ns = 0
        self._learned: Matrix = {}
        """By source: the last row merged into the matrix, apart from entries forgotten since."""

    # -- Sending --------------------------------------------------------------------------------

    def stamp(self, now_ns: int) -> int:
        """Return the stamp of a message that is sent now."""
        return max(now_ns, self.highest + 1)

    def deadline_ns(self, now_ns: int, lifetime_ns: int) -> int:
        """Return the deadline of a message that is sent now."""
        return max(now_ns + lifetime_ns, self.latest_deadline_ns)

    def before(self, now_ns: int) -> Matrix:
        """Return the matrix for a message that is sent now."""
        self._prune(now_ns)
        matrix = dict(self.matrix)
        horizon_ns = now_ns - self.config.horizon_ns
        for x, stamp in self.settled.items():
            if stamp >= horizon_ns:
                matrix[x] = {**matrix.get(x, {}), self.number: stamp}
        return matrix

    def sent(self, message: Sent) -> None:
        """Record a message of this broker."""
        self._learn(message)

    # -- Receiving ------------------------------------------------------------------------------

    def offer(self, message: Sent, now_ns: int) -> str:
        """Hold a message; return `ACCEPTED`, or the reason why not."""
        self._prune(now_ns)
        if message.key in self.waiting:
            return DUPLICATE
        if now_ns > message.deadline_ns - self.config.slack_ns:
            return LATE
        if self.is_settled(message.source, message.stamp):
            return OVERTAKEN
        if len(self.waiting) >= self.config.held_max:
            return OVERFLOW
        self.waiting[message.key] = Held(message, now_ns)
        return ACCEPTED

    def hold(self, message: Sent, now_ns: int) -> str:
        """Hold a message of this broker during a pause; return like `offer`."""
        if len(self.waiting) >= self.config.held_max:
            return OVERFLOW
        self.waiting[message.key] = Held(message, now_ns)
        return ACCEPTED

    def is_settled(self, source: int, stamp: int) -> bool:
        """Return whether a message, or a follower of it, was already delivered."""
        return stamp <= self.settled.get(source, 0)

    def expired(self, now_ns: int) -> list[Held]:
        """Remove messages that waited beyond their deadline: this process was stopped."""
        over = [key for key, held in self.waiting.items() if now_ns > held.sent.deadline_ns]
        taken = [self.waiting.pop(key) for key in sorted(over)]
        for held in taken:
            self._settle(held.sent)  # Its predecessors have expired too.
        return taken

    def next_ready(self, now_ns: int) -> Held | None:
        """Remove and return the next message to deliver, if there is one."""
        if not self.waiting:
            return None
        due = [held.sent for held in self.waiting.values() if self._is_due(held.sent, now_ns)]
        for key in sorted(self.waiting):
            message = self.waiting[key].sent
            if self._nothing_missing(message) or any(
                message is other or self._precedes(message, other) for other in due
            ):
                held = self.waiting.pop(key)
                self._learn(message)
                return held
        return None

    def learn(self, message: Sent) -> None:
        """Record a message that is delivered although it is late."""
        self._learn(message)

    def next_timer_ns(self, *, paused: bool = False) -> int | None:
        """Return when a waiting message has to be delivered, or, in a pause, dropped."""
        if not self.waiting:
            return None
        first = min(held.sent.deadline_ns for held in self.waiting.values())
        return first + 1 if paused else first - self.config.slack_ns + 1

    def _is_due(self, message: Sent, now_ns: int) -> bool:
        return now_ns > message.deadline_ns - self.config.slack_ns

    def _nothing_missing(self, message: Sent) -> bool:
        settled, number = self.settled, self.number
        return all(
            row.get(number, 0) <= settled.get(source, 0) for source, row in message.after.items()
        )

    def _precedes(self, message: Sent, other: Sent) -> bool:
        known = other.after.get(message.source)
        return known is not None and message.stamp <= known.get(self.number, 0)

    def _learn(self, message: Sent) -> None:
        self._settle(message)
        learned = self._learned
        for x, row in message.after.items():
            if learned.get(x) is not row:
                learned[x] = row
                self._raise(x, row)
        self._raise(message.source, dict.fromkeys(message.dest, message.stamp))
        self.latest_deadline_ns = max(self.latest_deadline_ns, message.deadline_ns)

    def _raise(self, x: int, row: dict[int, int]) -> None:
        """Merge the larger entries of a row, except this broker's, kept in `settled`."""
        mine, number = self.matrix.get(x, {}), self.number
        larger = {y: stamp for y, stamp in row.items() if mine.get(y, 0) < stamp and y != number}
        if larger:
            self.matrix[x] = mine | larger

    def _settle(self, message: Sent) -> None:
        """Mark a message, and all messages to this broker that it follows, as settled."""
        settled, number, stamp = self.settled, self.number, message.stamp
        self.highest = max(self.highest, stamp)
        for source, row in message.after.items():
            if row.get(number, 0) > settled.get(source, 0):
                settled[source] = row[number]
        if number in message.dest and stamp > settled.get(message.source, 0):
            settled[message.source] = stamp

    def _prune(self, now_ns: int) -> None:
        """Forget entries beyond the horizon; not at every call, since it scans everything."""
        if 0 <= now_ns - self._pruned_ns < self.config.lifetime_ns:
            return
        self._pruned_ns = now_ns
        horizon_ns = now_ns - self.config.horizon_ns
        for x in list(self.matrix):
            row = {y: stamp for y, stamp in self.matrix[x].items() if stamp >= horizon_ns}
            if row:
                self.matrix[x] = row
            else:
                del self.matrix[x]
        # A message in time names nothing older than a horizon before its own stamp, and a message
        # that was settled longer ago than that is late.
        settled_ns = now_ns - 3 * self.config.horizon_ns
        for x in [x for x, stamp in self.settled.items() if stamp < settled_ns]:
            del self.settled[x]
