"""The merge itself: hold events until nothing can come before them any more, and hand them out sorted.

What it guarantees
- What leaves is sorted by one key, (r + c, counts, process, index), whatever comes and in whatever order: two mergers
  hand out the events that both of them have in the same order, however long messages take and however wrong clocks are that don't go back, and
  causes before effects as long as clocks and delays keep their bounds.
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
  is held and can't be true, after a fault, is dropped (`take_dropped`): what is further ahead than 2 epsilon at every tick, what is in the wrong place once
  in delta + 3 epsilon ticks, and what has a false key when it would leave.
- The key of the last event that left is kept. After a clock has gone back, what would leave behind it is called late. The
  paper has no such rule, and its order breaks there. A key more than 2 epsilon ahead of the clock can be a fault as well, and is forgotten.

HAZARD: it looks for faults when it is called, and not at every tick. What a fault left in a merger that is silent is found when something
comes, and the time to recover counts from there.

HAZARD: a message that takes longer than delta is late here, and may have been in time elsewhere: that subscriber lacks an event that others
have. Order is kept. HAZARD: this clock ahead of the others by more than epsilon makes punctual events late; behind by more, it makes
them look as if they came from the future. Either way events are lost here until the clock is mended, and order is kept.

HAZARD: where this clock was ahead together with others that stamped by it, and is set back by more than delta + 3 epsilon + 1 ticks, what left meanwhile is
forgotten. Events leave in their turn behind ones that sort after them, and a copy of what has left may leave again when the clock has come that far: the order is broken once. Who
remembers a larger key would call everything late until then, and after a fault for ever.
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

    __slots__ = (
        "_audit_tick",
        "_count",
        "_dropped",
        "_frontier",
        "_held",
        "_reaches",
        "_tick",
        "config",
    )

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
        self._dropped: list[Held] = []

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
        bucket = self._held.get(reach)
        if bucket is not None and held.key in bucket:
            return DUPLICATE
        if reach > tick + config.epsilon_ticks:
            return SKEWED
        if timestamp.r < tick - config.wait_ticks:
            return LATE
        if self._frontier is not None and held.key <= self._frontier:
            return LATE
        if self._count >= config.held_max:
            self._count = self.held_count  # It may be wrong.
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
        while leaving and leaving[-1].key[0][0] >= passed:
            # A false key: as a frontier it would be felt for long.
            self._dropped.append(leaving.pop())
        overtaken: list[Held] = []
        if leaving and self._frontier is not None and leaving[0].key <= self._frontier:
            frontier = self._frontier
            overtaken = [each for each in leaving if each.key <= frontier]
            leaving = leaving[len(overtaken) :]  # They are sorted.
        if leaving:
            self._frontier = leaving[-1].key
        return leaving, overtaken

    def take_dropped(self) -> list[Held]:
        """Drain what could not be true, and was dropped: after a fault, or when the clock has gone back."""
        dropped, self._dropped = self._dropped, []
        return dropped

    def drop(self, unwanted: Callable[[Event], bool]) -> list[Event]:
        """Drop some of what is held, and return it."""
        found = [
            (reach, key)
            for reach, bucket in self._held.items()
            for key, each in bucket.items()
            if unwanted(each.event)
        ]
        return [each.event for each in self._without(found)]

    def _look_for_faults(self, tick: int) -> None:
        """Drop what can't be true at this tick."""
        frontier, config = self._frontier, self.config
        latest = tick + 2 * config.epsilon_ticks
        if frontier is not None and frontier[0][0] > latest:
            self._frontier = None
        if tick < self._tick or not tick < self._audit_tick <= tick + config.span_ticks:
            self._audit_tick = tick + config.span_ticks
            self._dropped += self._without(
                [
                    (reach, key)
                    for reach, bucket in self._held.items()
                    for key, each in bucket.items()
                    if reach > latest
                    or not reach == key[0][0] == each.timestamp.r + each.timestamp.c
                ]
            )
        elif self._held and max(self._held) > latest:
            ahead = [reach for reach in self._held if reach > latest]
            self._dropped += self._without(
                [(reach, key) for reach in ahead for key in self._held[reach]]
            )

    def _without(self, unwanted: list[tuple[int, Key]]) -> list[Held]:
        """Let go of what is unwanted, and return it; set right what else is remembered of the rest."""
        dropped = [self._held[reach].pop(key) for reach, key in unwanted]
        self._held = {reach: bucket for reach, bucket in self._held.items() if bucket}
        self._reaches = list(self._held)
        heapify(self._reaches)
        self._count = self.held_count
        return dropped
