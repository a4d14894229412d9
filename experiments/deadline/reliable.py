"""The system that the paper compares with: deadlines and causal order over a reliable group.

All publishers and subscribers are in one group, as in the protocol of Rodrigues, Baldoni, Anceaume
and Raynal. A message goes to all other members with the matrix of messages that its sender knew of,
by sender and member. The matrix is encoded as brokers encode theirs, each row as sets of members
with the same stamp, but it is always sent whole; brokers send changes.

A sender retransmits a message until every member has acknowledged it, and may have `WINDOW`
unacknowledged messages; further ones wait, and their deadlines run. A sender drops a member that
acknowledges nothing for `SUSPECT_NS`.

The order is that of `ensue.protocols.deadline.causality`, with the corrections to the published
rules. Only the participants and the cost differ.
"""

from collections import deque
from collections.abc import Mapping, Sequence

import msgspec

from ensue.core.event import CLOCK, DEADLINE, Event, Stamp
from ensue.protocols.deadline.causality import ACCEPTED, Causality, Sent
from ensue.protocols.deadline.codec import matrix_of, rows_of
from ensue.protocols.deadline.config import DeadlineConfig
from ensue.protocols.deadline.frames import Matrix, Rows
from ensue.protocols.interface import Deliver, Discard, Effect, Frame, Publish, Send
from ensue.protocols.shared.event_numbers import EventNumbers

__all__ = ["Acknowledgement", "Copy", "ReliableMember"]

MS = 1_000_000
WINDOW = 64
RETRY_NS = 100 * MS
SUSPECT_NS = 2_000 * MS


class Copy(Frame, frozen=True, tag=1):
    """A message."""

    event: Event
    source: int
    after: Rows


class Acknowledgement(Frame, frozen=True, tag=2):
    """Acknowledges a message by its stamp."""

    stamp: int


class _Open(msgspec.Struct):
    """A message that some member has not acknowledged."""

    copy: Copy
    missing: dict[int, None]
    sent_ns: int
    again_ns: int


class ReliableMember:
    """One member. Command: `publish`."""

    def __init__(
        self,
        *,
        name: str,
        names: Sequence[str],
        numbers: Mapping[str, int],
        lifetime_ns: int,
        decoded: dict[tuple[int, int], Matrix] | None = None,
    ) -> None:
        """Members of one simulation may share `decoded`, so that each matrix is decoded once."""
        self.name = name
        self._names = names
        self._numbers = numbers
        self.number = numbers[name]
        config = DeadlineConfig(
            lifetime_ns=lifetime_ns, lifetime_ns_max=lifetime_ns, durable=False, spreads=False
        )
        self._lifetime_ns = lifetime_ns
        self._causality = Causality(self.number, config, {})
        self._others = tuple(each for each in range(len(names)) if each != self.number)
        self._dests: dict[int, tuple[int, ...]] = {}
        """By sender: all others."""
        self._gone: set[int] = set()
        self._decoded = {} if decoded is None else decoded
        """By source and stamp: the matrix of a message."""
        self._events = EventNumbers(name)
        self._queue: deque[tuple[Event, int]] = deque()
        self._open: dict[int, _Open] = {}
        self._effects: list[Effect] = []

    def publish(self, topic: str, payload: bytes, *, now_ns: int) -> Event:
        """Publish an event; its deadline runs from now, even if it has to wait."""
        event = self._events.make(topic, payload, now_ns=now_ns, key=None, headers=None)
        self._effects.append(Publish(event))
        self._queue.append((event, now_ns))
        self._pump(now_ns)
        return event

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Handle a message or an acknowledgement."""
        if isinstance(frame, Acknowledgement):
            opened = self._open.get(frame.stamp)
            if opened is not None:
                opened.missing.pop(self._numbers[source], None)
                self._close()
                self._pump(now_ns)
        elif isinstance(frame, Copy):
            assert frame.event.stamp is not None
            stamp = frame.event.stamp.entries[CLOCK]
            self._effects.append(Send(source, Acknowledgement(stamp=stamp)))
            after = self._decoded.get((frame.source, stamp))
            if after is None:
                after = self._decoded[frame.source, stamp] = matrix_of(frame.after, stamp)
            message = Sent(frame.event, frame.source, self._all_but(frame.source), after)
            verdict = self._causality.offer(message, now_ns)
            if verdict != ACCEPTED:
                self._effects.append(Discard(frame.event, verdict))
            self._deliver(now_ns)

    def handle_timer(self, *, now_ns: int) -> None:
        """Deliver due events, and retransmit unacknowledged messages."""
        self._deliver(now_ns)
        for opened in self._open.values():
            if opened.again_ns > now_ns:
                continue
            opened.again_ns = now_ns + RETRY_NS
            if now_ns - opened.sent_ns >= SUSPECT_NS:
                self._gone.update(opened.missing)
            for number in opened.missing:
                self._effects.append(Send(self._names[number], opened.copy))
        if self._gone:
            for opened in self._open.values():
                for number in self._gone:
                    opened.missing.pop(number, None)
        self._close()
        self._pump(now_ns)

    def next_timer_ns(self) -> int | None:
        """Return when the next retransmission or delivery is due."""
        times = [opened.again_ns for opened in self._open.values()]
        forced_ns = self._causality.next_timer_ns()
        if forced_ns is not None:
            times.append(forced_ns)
        return min(times, default=None)

    def take_effects(self) -> Sequence[Effect]:
        """Drain the effects."""
        effects, self._effects = self._effects, []
        return effects

    def _all_but(self, source: int) -> tuple[int, ...]:
        dest = self._dests.get(source)
        if dest is None:
            dest = tuple(each for each in range(len(self._names)) if each != source)
            self._dests[source] = dest
        return dest

    def _pump(self, now_ns: int) -> None:
        while self._queue and len(self._open) < WINDOW:
            event, published_ns = self._queue.popleft()
            causality = self._causality
            deadline_ns = max(published_ns + self._lifetime_ns, causality.latest_deadline_ns)
            stamp = Stamp({CLOCK: causality.stamp(now_ns), DEADLINE: deadline_ns})
            stamped = msgspec.structs.replace(event, stamp=stamp)
            message = Sent(stamped, self.number, self._others, causality.before(now_ns))
            causality.sent(message)
            after = rows_of(message.after, message.stamp)
            copy = Copy(event=stamped, source=self.number, after=after)
            missing = dict.fromkeys(each for each in self._others if each not in self._gone)
            self._open[message.stamp] = _Open(copy, missing, now_ns, now_ns + RETRY_NS)
            self._effects += (Send(self._names[number], copy) for number in missing)

    def _close(self) -> None:
        for stamp in [stamp for stamp, opened in self._open.items() if not opened.missing]:
            del self._open[stamp]

    def _deliver(self, now_ns: int) -> None:
        for held in self._causality.expired(now_ns):
            self._effects.append(Discard(held.sent.event, "late"))
        while (ready := self._causality.next_ready(now_ns)) is not None:
            self._effects.append(Deliver(ready.sent.event, 0, "", now_ns - ready.arrived_ns))
