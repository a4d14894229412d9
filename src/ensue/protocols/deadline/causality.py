"""When a broker may deliver what other brokers sent it: the matrix of what was sent, and deadlines.

What it guarantees, whatever is lost, repeated or overtaken:
- no message is delivered after one that comes after it, twice, or after its deadline;
- a message that arrives in time is delivered in time, whatever became of those before it;
- nothing waits longer than to its deadline.

Theory of operation. `matrix[x][y]` is the stamp of the last message from x to y that this broker knows of (MCP in the paper). A message
carries what its sender knew *before* it was sent, and its stamp, which is larger than all of that: so the order of stamps extends
the order of causes. A message may be delivered here when all that its sender knew was sent to this broker has been delivered here. If
something is missing it waits, until its own deadline or that of a waiting one that comes after it: then what there is
is delivered, smallest stamp first, and what is missing can't be delivered any more.

In time means `slack_ns` before the deadline: whoever waits is handed over right after that, so that a timer may be late by as much.
A message whose deadline is over when it is looked at, because its process stood still, is late.

The deadline of a message is never earlier than that of one before it (`latest_deadline_ns`): else a message in time could find that
one after it has been delivered, and order, that one's deadline and this one could not all be kept.

What is so old that nobody can deliver it any more is forgotten (`horizon_ns`), which keeps the matrix small.

Rows of matrices are never changed, only replaced: many matrices have the same rows, and share them. Whether a row is known is then a question of
identity, most of the time.

Departures from the paper's Figures 4 and 5, as in the errata: the matrix from before the send and a test of all senders (1),
stamps that rise (2), due messages in the order of stamps (3), copies of waiting messages dropped (4), "not before" in place of "at" (5),
deadlines that don't fall (6).

HAZARD: whether a message is in time is judged by the clock of whoever receives it. Order needs clocks only to forget: see `config`.
"""

from typing import TypeVar

import msgspec

from ensue.event import CLOCK, DEADLINE, Event
from ensue.protocols.gossip.config import GossipConfig
from ensue.protocols.gossip.frames import Live, Matrix

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
"""Stamp and source: what orders messages."""


T = TypeVar("T", int, str)


def raise_to(matrix: dict[T, dict[int, int]], other: dict[T, dict[int, int]]) -> None:
    """Take over what is larger in another matrix; rows are shared, and replaced where they change."""
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
    """A message, with what its sender knew."""

    event: Event
    source: int
    dest: tuple[int, ...]
    after: Matrix
    round: int = 0
    live: Live = {}
    """By topic and broker: rounds, as numbers."""
    digest: bytes = b""
    proof: bytes = b""

    @property
    def stamp(self) -> int:
        """When it was sent; larger than whatever comes before it."""
        assert self.event.stamp is not None
        return self.event.stamp.entries[CLOCK]

    @property
    def deadline_ns(self) -> int:
        """Until when it is of use."""
        assert self.event.stamp is not None
        return self.event.stamp.entries[DEADLINE]

    @property
    def key(self) -> Key:
        """What orders it."""
        return (self.stamp, self.source)

    def reference(self) -> Matrix:
        """Return what its sender knew right after it."""
        matrix = dict(self.after)
        raise_to(matrix, {self.source: dict.fromkeys(self.dest, self.stamp)})
        return matrix


class Held(msgspec.Struct, frozen=True):
    """A message that waits."""

    sent: Sent
    arrived_ns: int


class Causality:
    """What one broker knows, and what waits there."""

    def __init__(self, number: int, config: GossipConfig, settled: dict[int, int]) -> None:
        self.number = number
        self.config = config
        self.matrix: Matrix = {}
        self.settled = settled
        """By source: everything from it to this broker up to this stamp is delivered, or never will be."""
        self.waiting: dict[Key, Held] = {}
        self.highest = max(settled.values(), default=0)
        """No stamp known of is larger."""
        self.latest_deadline_ns = 0
        """Of all that was sent or delivered here."""
        self._pruned_ns = 0
        self._learned: Matrix = {}
        """By source: the row of a message that was learned last. It is in the matrix, with nothing of what was forgotten since."""

    # -- Sending --------------------------------------------------------------------------------

    def stamp(self, now_ns: int) -> int:
        """Return the stamp of a message that is sent now."""
        return max(now_ns, self.highest + 1)

    def deadline_ns(self, now_ns: int, lifetime_ns: int) -> int:
        """Return the deadline of a message that is sent now."""
        return max(now_ns + lifetime_ns, self.latest_deadline_ns)

    def before(self, now_ns: int) -> Matrix:
        """Return what is known of before a message that is sent now."""
        self._prune(now_ns)
        matrix = dict(self.matrix)
        horizon_ns = now_ns - self.config.horizon_ns
        for x, stamp in self.settled.items():
            if stamp >= horizon_ns:
                matrix[x] = {**matrix.get(x, {}), self.number: stamp}
        return matrix

    def sent(self, message: Sent) -> None:
        """Take note of a message of one's own."""
        self._learn(message)

    # -- Receiving ------------------------------------------------------------------------------

    def offer(self, message: Sent, now_ns: int) -> str:
        """Take a message; return `ACCEPTED`, or why it can't be taken."""
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
        """Keep a message of one's own, for which there is no room now; return `ACCEPTED`, or why not."""
        if len(self.waiting) >= self.config.held_max:
            return OVERFLOW
        self.waiting[message.key] = Held(message, now_ns)
        return ACCEPTED

    def is_settled(self, source: int, stamp: int) -> bool:
        """Tell whether a message would break the order: it, or one after it, was delivered."""
        return stamp <= self.settled.get(source, 0)

    def expired(self, now_ns: int) -> list[Held]:
        """Take out what has waited beyond its deadline, because this process stood still."""
        over = [key for key, held in self.waiting.items() if now_ns > held.sent.deadline_ns]
        taken = [self.waiting.pop(key) for key in sorted(over)]
        for held in taken:
            self._settle(
                held.sent
            )  # Whatever comes before it is over, too: nobody has to wait for that.
        return taken

    def next_ready(self, now_ns: int) -> Held | None:
        """Take out the message to deliver next, if there is one."""
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
        """Take note of a message that is handed out although it is late."""
        self._learn(message)

    def next_timer_ns(self, *, paused: bool = False) -> int | None:
        """Return when something that waits is to be handed over in any case; or, in a pause, to be given up."""
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
        """Take over what is larger in a row, but for the column of this broker: that is `settled`."""
        mine, number = self.matrix.get(x, {}), self.number
        larger = {y: stamp for y, stamp in row.items() if mine.get(y, 0) < stamp and y != number}
        if larger:
            self.matrix[x] = mine | larger

    def _settle(self, message: Sent) -> None:
        """Take a message, and all that its sender knew was sent here before it, for delivered or dead."""
        settled, number, stamp = self.settled, self.number, message.stamp
        self.highest = max(self.highest, stamp)
        for source, row in message.after.items():
            if row.get(number, 0) > settled.get(source, 0):
                settled[source] = row[number]
        if number in message.dest and stamp > settled.get(message.source, 0):
            settled[message.source] = stamp

    def _prune(self, now_ns: int) -> None:
        """Forget what nobody can deliver any more; not at every call, since it looks at everything."""
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
        # What a message in time names is no older than its own time and a horizon before that; and what is settled longer than that comes late.
        settled_ns = now_ns - 3 * self.config.horizon_ns
        for x in [x for x, stamp in self.settled.items() if stamp < settled_ns]:
            del self.settled[x]
