"""The merger: hold events until no predecessor can arrive, and release them sorted.

Guarantee
- Events are released sorted by one key, (r + c, counts, process, index), whatever arrives in
  whatever order: two mergers release their common events in the same order, however long messages
  take and however wrong clocks are that do not go back; and causes before effects while clocks
  and delays keep their bounds.
- An event that arrived in time is released when the clock is more than delta + epsilon beyond r +
  c, and not later. None is held longer than delta + 3 epsilon, to the end of the tick.
- Whatever its memory is made to hold, delta + 3 epsilon ticks later nothing of it is left
  (self-stabilizing).

Why it waits that long: a cause of an event has no larger r + c, so its sender's clock showed at
most r + c; it arrives before that clock is beyond r + c + delta, and this clock beyond r + c +
delta + epsilon. Within that tick it may still arrive.

Deviations from the paper
- Events are released at the end of the tick, when the clock is *beyond* r + c + delta + epsilon.
  On the tick itself a cause may still arrive.
- The clock is compared with "beyond" and not with "equal": clocks may skip values. So several
  values of r + c can be due together, and all are sorted by the whole key.
- Ties between events of one send are broken by an index.
- Late events are not accepted, and neither is a second copy of a held event. A copy of a released
  event is late, so no memory is needed for it.
- A timestamp from the future (r + c more than epsilon beyond this clock) is not accepted: no
  valid clock can have shown it. Held events that cannot be valid, after a fault, are dropped
  (`take_dropped`): those more than 2 epsilon ahead at every tick, those in the wrong place once
  in delta + 3 epsilon ticks, and those with a wrong key on release.
- The key of the last released event is kept. After the clock has gone back, an event that would
  be released behind it is late. The paper has no such rule, and its order breaks there. A key
  more than 2 epsilon ahead of the clock can be a fault itself, and is forgotten.

HAZARD: faults are detected when the merger is called, not at every tick. What a fault left in
an idle merger is found at the next call, and the recovery time counts from there.

HAZARD: a message that takes longer than delta is late here, and may have been in time elsewhere:
this subscriber lacks an event that others have. Order is kept. HAZARD: if this clock is ahead of
the others by more than epsilon, punctual events are late; if it is behind by more, they look as
if they came from the future. Events are lost here until the clock is corrected, and order is
kept.

HAZARD: if this clock was ahead together with others that stamped by it, and is set back by more
than delta + 3 epsilon + 1 ticks, what was released meanwhile is forgotten. Events are released
behind ones that sort after them, and a copy of a released event may be released again when the
clock reaches that time: order breaks once. Keeping the larger key would make everything late
until then, and after a fault for ever.
"""

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from operator import attrgetter

import msgspec

from ensue.core.event import Event
from ensue.protocols.merged.config import MergedConfig
from ensue.protocols.merged.timestamps import AnyTimestamp

__all__ = ["ACCEPTED", "DUPLICATE", "LATE", "OVERFLOW", "SKEWED", "Held", "Key", "Merger"]

ACCEPTED, LATE, SKEWED, DUPLICATE, OVERFLOW = "", "late", "skewed", "duplicate", "overflow"

Key = tuple[tuple[int, ...], str, int]
"""The sort key: key of the timestamp, process, index within one send."""


class Held(msgspec.Struct, frozen=True, gc=False):
    """An event that waits for its release."""

    key: Key
    event: Event
    timestamp: AnyTimestamp
    received_ns: int


_key: Callable[[Held], Key] = attrgetter("key")


class Merger:
    """Holds events, and releases those that are due."""

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

    def __init__(self, config: MergedConfig) -> None:
        self.config = config
        self._held: dict[int, dict[Key, Held]] = {}
        """Held events by r + c, then by key."""
        self._reaches: list[int] = []
        """The values of r + c with held events: a heap."""
        self._count = 0
        """Number of held events, unless a fault changed it: read for every event."""
        self._tick = 0
        self._frontier: Key | None = None
        """The key of the last released event."""
        self._audit_tick = 0
        """When to check all held events next."""
        self._dropped: list[Held] = []

    @property
    def held_count(self) -> int:
        """Number of held events."""
        return sum(map(len, self._held.values()))

    def due_tick(self) -> int | None:
        """Return the tick of the next release."""
        return self._reaches[0] + self.config.wait_ticks + 1 if self._reaches else None

    def held(self) -> Iterator[Held]:
        """Yield the held events."""
        for bucket in self._held.values():
            yield from bucket.values()

    def offer(self, held: Held, tick: int) -> str:
        """Hold an event; return `ACCEPTED`, or the reason why not.

        Events that are due at that tick must have been released before.
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
            self._count = self.held_count  # A fault may have changed it.
            if self._count >= config.held_max:
                return OVERFLOW
        if bucket is None:
            bucket = self._held[reach] = {}
            heappush(self._reaches, reach)
        bucket[held.key] = held
        self._count += 1
        return ACCEPTED

    def advance(self, tick: int) -> tuple[list[Held], list[Held]]:
        """Advance to a tick; return the events to release, sorted, and overtaken ones.

        The second list is empty except after a fault.
        """
        passed = tick - self.config.wait_ticks
        leaving: list[Held] = []
        if tick != self._tick:
            self._drop_invalid(tick)
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
            # A false key: as a frontier it would have effect for long.
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
        """Drain events dropped as invalid, after a fault or a clock that went back."""
        dropped, self._dropped = self._dropped, []
        return dropped

    def drop(self, unwanted: Callable[[Event], bool]) -> list[Event]:
        """Remove and return unwanted events."""
        found = [
            (reach, key)
            for reach, bucket in self._held.items()
            for key, each in bucket.items()
            if unwanted(each.event)
        ]
        return [each.event for each in self._without(found)]

    def _drop_invalid(self, tick: int) -> None:
        """Drop events that cannot be valid at this tick."""
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
        """Remove and return unwanted events, and rebuild the indexes of the rest."""
        dropped = [self._held[reach].pop(key) for reach, key in unwanted]
        self._held = {reach: bucket for reach, bucket in self._held.items() if bucket}
        self._reaches = list(self._held)
        heapify(self._reaches)
        self._count = self.held_count
        return dropped
