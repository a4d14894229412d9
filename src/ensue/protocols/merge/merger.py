"""The merge itself: hold events until nothing can come before them any more, and hand them out sorted.

What it guarantees
- What leaves is sorted by one key, (r + c, counts, process, index), whatever comes and in whatever order: two mergers
  hand out the events that both of them have in the same order, always, and causes before effects as long as clocks
  and delays keep their bounds.
- An event that came in time leaves when the clock has passed r + c by more than delta + epsilon, and not later. None is held longer than
  delta + 3 epsilon, to the end of the tick.
- Whatever its memory is made to hold, delta + 3 epsilon ticks later nothing of that is left (stabilizing).

Why it waits so long: a cause of an event has no larger r + c, so its sender's clock showed at most r + c; it arrives before that clock
has passed r + c + delta, and this clock r + c + delta + epsilon. Within that tick it may still come.

Departures from the paper
- Events leave at the end of the tick, when the clock is *beyond* r + c + delta + epsilon. On the tick itself a cause may still arrive.
- The clock is compared with "beyond" and not with "equal": clocks may skip values. So several values of r + c can be due together, and all of
  them are sorted by the whole key.
- Ties between events of one send are broken by an index.
- What comes too late is not accepted, and neither is a second copy of what is held. A copy of what has left is late, so that nothing has to be
  remembered for it.
- A timestamp from the future (r + c more than epsilon beyond this clock) is not accepted: no clock can have shown it. What
  is held and can't be true, after a fault, is looked for once in delta + 3 epsilon ticks, and dropped.
- The key of the last event that left is kept. After a clock has gone back, what would leave behind it is called late. The
  paper has no such rule, and its order breaks there.

HAZARD: it looks for faults when it is called, and not at every tick. What a fault left in a merger that is silent is found when something
comes, and the time to recover counts from there.

HAZARD: a message that takes longer than delta is late here, and may have been in time elsewhere: that subscriber lacks an event that others
have. Order is kept. HAZARD: this clock ahead of the others by more than epsilon makes punctual events late; behind by more, it makes
them look as if they came from the future. Either way events are lost here until the clock is mended, and order is kept.
"""

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from operator import attrgetter

import msgspec

from ensue.event import Event
from ensue.protocols.merge.config import MergeConfig
from ensue.protocols.merge.timestamps import AnyTimestamp

__all__ = ["ACCEPTED", "DUPLICATE", "LATE", "OVERFLOW", "SKEWED", "Held", "Key", "Merger"]

ACCEPTED, LATE, SKEWED, DUPLICATE, OVERFLOW = "", "late", "skewed", "duplicate", "overflow"

Key = tuple[tuple[int, ...], str, int]
"""What orders events: their timestamps' key, then the process, then the index within what was sent together."""


class Held(msgspec.Struct, frozen=True, gc=False):
    """An event that waits for its turn."""

    key: Key
    event: Event
    timestamp: AnyTimestamp
    received_ns: int


_key: Callable[[Held], Key] = attrgetter("key")


class Merger:
    """Holds events, and hands out what is due."""

    __slots__ = ("_audit_tick", "_count", "_frontier", "_held", "_reaches", "_tick", "config")

    def __init__(self, config: MergeConfig) -> None:
        self.config = config
        self._held: dict[int, dict[Key, Held]] = {}
        """By r + c, and then by key."""
        self._reaches: list[int] = []
        """The values of r + c for which something is held: a heap."""
        self._count = 0
        """How many there are, as long as nothing has gone wrong: looked at for every event."""
        self._tick = 0
        self._frontier: Key | None = None
        """The key of the last event that left in its turn."""
        self._audit_tick = 0
        """When to look next at everything that is held."""

    @property
    def held_count(self) -> int:
        """How many events wait."""
        return sum(map(len, self._held.values()))

    def due_tick(self) -> int | None:
        """Return the tick at which something is to leave next."""
        return self._reaches[0] + self.config.wait_ticks + 1 if self._reaches else None

    def held(self) -> Iterator[Held]:
        """Go through what waits."""
        for bucket in self._held.values():
            yield from bucket.values()

    def offer(self, held: Held, tick: int) -> str:
        """Take an event at a tick; return `ACCEPTED`, or why it can't be taken.

        Whatever is due at that tick must have been handed out before.
        """
        config, timestamp = self.config, held.timestamp
        reach = timestamp.r + timestamp.c
        if reach > tick + config.epsilon_ticks:
            return SKEWED
        if timestamp.r < tick - config.wait_ticks:
            return LATE
        if self._frontier is not None and held.key <= self._frontier:
            return LATE
        bucket = self._held.get(reach)
        if bucket is not None and held.key in bucket:
            return DUPLICATE
        if self._count >= config.held_max:
            return OVERFLOW
        if bucket is None:
            bucket = self._held[reach] = {}
            heappush(self._reaches, reach)
        bucket[held.key] = held
        self._count += 1
        return ACCEPTED

    def advance(self, tick: int) -> tuple[list[Held], list[Held]]:
        """Move on to a tick; return what leaves in its turn, sorted, and what should have left before.

        The second is empty but after a fault.
        """
        passed = tick - self.config.wait_ticks
        leaving: list[Held] = []
        if tick != self._tick:
            self._look_for_faults(tick)
            self._tick = tick
        elif not self._reaches or self._reaches[0] >= passed:
            return leaving, []
        while self._reaches and self._reaches[0] < passed:
            leaving += self._held.pop(heappop(self._reaches), {}).values()
        if not leaving:
            return leaving, []
        leaving.sort(key=_key)
        self._count -= len(leaving)
        overtaken: list[Held] = []
        if self._frontier is not None and leaving[0].key <= self._frontier:
            frontier = self._frontier
            overtaken = [each for each in leaving if each.key <= frontier]
            leaving = leaving[len(overtaken) :]  # They are sorted.
        if leaving:
            self._frontier = leaving[-1].key
        return leaving, overtaken

    def drop(self, unwanted: Callable[[Event], bool]) -> list[Event]:
        """Drop some of what is held, and return it."""
        dropped = [each for each in self.held() if unwanted(each.event)]
        self._rebuild([each for each in self.held() if not unwanted(each.event)])
        return [each.event for each in dropped]

    def _look_for_faults(self, tick: int) -> None:
        """Drop what can't be true at this tick."""
        frontier, config = self._frontier, self.config
        if frontier is not None and frontier[0][0] > tick + 2 * config.epsilon_ticks:
            self._frontier = None
        went_back = tick < self._tick
        if went_back or tick >= self._audit_tick or self._audit_tick > tick + config.span_ticks:
            self._audit_tick = tick + config.span_ticks
            latest = tick + 2 * config.epsilon_ticks
            self._rebuild(
                [each for each in self.held() if each.timestamp.r + each.timestamp.c <= latest]
            )

    def _rebuild(self, kept: list[Held]) -> None:
        self._held = {}
        for each in kept:
            reach = each.timestamp.r + each.timestamp.c
            self._held.setdefault(reach, {})[each.key] = each
        self._reaches = list(self._held)
        heapify(self._reaches)
        self._count = sum(len(bucket) for bucket in self._held.values())
