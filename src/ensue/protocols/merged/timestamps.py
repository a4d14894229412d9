"""Logical timestamps over physical clocks that differ by at most epsilon.

Theory of operation. A timestamp holds the tick of its process's clock (r) and how far the largest
clock that the event can know of was ahead of it (c). So r + c never falls along a chain of
causes. Among events with the same r + c, causes and effects are distinguished by one of:

- one counter (`CounterTimestamps`, the default): k is one more than the largest k among the
  causes with the same r + c, or 0 if there is none. Order: (r + c, k).
- an array (`ArrayTimestamps`): kn[t] counts the known events of tick r + t. Order: r + c, then
  the counts from the newest tick to the oldest, kn[c], kn[c - 1], …, kn[c - epsilon].

Both guarantee that a cause has a smaller key than its effect, provided that clocks do not go back
and differ by at most epsilon. The key is not a total order yet: ties are broken by process and
index, see `merger`.

Deviations from the paper ("Stabilizing Causal Deterministic Merge", Kulkarni and Ravikant)
- c may be epsilon, and the array has 2 epsilon + 1 elements of which epsilon + 1 are compared: a
  process can know of a clock that is epsilon ahead of its own, through a relay or an
  instantaneous message. As printed, the array ends one too early.
- Counts are bounded by K n for K events per tick, not by n, or the check would reset correct
  states.
- The counter replaces the paper's own program without an array (section 5.1), whose comparison
  has cycles and whose c grows without bound. Its space is O(log epsilon + log n + log delta),
  which section 7 asks for.
- Only stamped events are counted. What a process learns otherwise raises what it knows
  (`Timeline.learn`): an effect counts itself beyond all that its causes have counted, and no
  count grows with how often a process listens.
- Events more than 2 epsilon ticks back are forgotten, so that idle processes do not take their
  old timestamps for new ones.

HAZARD: a clock that goes back, or is more than epsilon away from others, makes timestamps that
order effects before their causes, or that others refuse. A process notices when c would exceed
epsilon, and then starts afresh (`Timeline.resets`): what it knew is forgotten, and causality
through it is broken once.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from ensue.core.event import CLOCK, COUNT_MAX
from ensue.protocols.merged.config import MergedConfig

__all__ = [
    "MARK",
    "AnyTimestamp",
    "ArrayTimestamp",
    "ArrayTimestamps",
    "CounterTimestamp",
    "CounterTimestamps",
    "Timeline",
    "Timestamps",
    "index_of",
    "timestamps_for",
    "topic_refusal",
]

MARK = "@"
"""Prefix of every entry of a merged stamp, and of no topic on a merged bus."""
TICK, AHEAD, COUNTER, INDEX = CLOCK, "@c", "@k", "@i"


def topic_refusal(topic: str) -> str | None:
    """Return why no event of a merged bus can have a topic; None if one can."""
    if topic.startswith(MARK):
        return f"a topic in merged order must not begin with {MARK!r}: {topic!r}"
    return None


class CounterTimestamp(msgspec.Struct, frozen=True, gc=False):
    """A timestamp with one counter, the default."""

    r: int
    """The reading of the process's clock."""
    c: int
    """How far ahead the largest clock was that the event can know of."""
    k: int
    """Length of the chain of causes with the same r + c."""


class ArrayTimestamp(msgspec.Struct, frozen=True, gc=False):
    """A timestamp with a count for each relevant tick."""

    r: int
    c: int
    kn: tuple[int, ...]
    """Known events of the ticks r - epsilon to r + epsilon."""


AnyTimestamp = CounterTimestamp | ArrayTimestamp
T = TypeVar("T")


class Timestamps(Protocol[T]):
    """One kind of timestamps. Pure arithmetic: `Timeline` holds what a process knows."""

    config: MergedConfig

    def knowing(self, tick: int, known: Sequence[T]) -> T:
        """Return a timestamp that covers all of these at a tick and counts nothing more.

        It may be invalid if one of these is.
        """
        ...

    def after(self, tick: int, known: Sequence[T]) -> T:
        """Return the timestamp of an event at a tick that follows all of these.

        It may be unsound if one of these is.
        """
        ...

    def first(self, tick: int) -> T:
        """Return the timestamp of an event without causes."""
        ...

    def is_sound(self, timestamp: T) -> bool:
        """Return whether a process without faults can have stamped an event with it."""
        ...

    def is_possible(self, timestamp: T) -> bool:
        """Return whether it is sound, or covers what a process without faults can know."""
        ...

    def key(self, timestamp: T) -> tuple[int, ...]:
        """Return its sort key: r + c first, causes before effects."""
        ...

    def to_entries(self, timestamp: T) -> dict[str, int]:
        """Return the entries of a stamp, without zeros."""
        ...

    def from_entries(self, entries: Mapping[str, int], tick: int) -> T | None:
        """Return the timestamp of a stamp, read at a tick; None if it is invalid."""
        ...


class CounterTimestamps:
    """Timestamps with one counter."""

    __slots__ = ("_counter_max", "config")

    def __init__(self, config: MergedConfig) -> None:
        self.config = config
        self._counter_max = config.count_max * (config.epsilon_ticks + 1)

    def knowing(self, tick: int, known: Sequence[CounterTimestamp]) -> CounterTimestamp:
        """See `Timestamps`. k is -1 if only a clock, and no event, is known at r + c."""
        most, k = _furthest(tick, known)
        return CounterTimestamp(tick, most - tick, k)

    def after(self, tick: int, known: Sequence[CounterTimestamp]) -> CounterTimestamp:
        """See `Timestamps`."""
        most, k = _furthest(tick, known)
        return CounterTimestamp(tick, most - tick, k + 1)

    def first(self, tick: int) -> CounterTimestamp:
        """See `Timestamps`."""
        return CounterTimestamp(tick, 0, 0)

    def is_sound(self, timestamp: CounterTimestamp) -> bool:
        """See `Timestamps`."""
        return (
            0 <= timestamp.c <= self.config.epsilon_ticks and 0 <= timestamp.k < self._counter_max
        )

    def is_possible(self, timestamp: CounterTimestamp) -> bool:
        """See `Timestamps`."""
        return (
            0 <= timestamp.c <= self.config.epsilon_ticks and -1 <= timestamp.k < self._counter_max
        )

    def key(self, timestamp: CounterTimestamp) -> tuple[int, ...]:
        """See `Timestamps`."""
        return (timestamp.r + timestamp.c, timestamp.k)

    def to_entries(self, timestamp: CounterTimestamp) -> dict[str, int]:
        """See `Timestamps`."""
        entries = {TICK: _reduced(timestamp.r, self.config)}
        if timestamp.c:
            entries[AHEAD] = timestamp.c
        if timestamp.k:
            entries[COUNTER] = timestamp.k
        return entries

    def from_entries(self, entries: Mapping[str, int], tick: int) -> CounterTimestamp | None:
        """See `Timestamps`."""
        r = _unreduced(entries.get(TICK), tick, self.config)
        if r is None:
            return None
        return CounterTimestamp(r, entries.get(AHEAD, 0), entries.get(COUNTER, 0))


def _furthest(tick: int, known: Sequence[CounterTimestamp]) -> tuple[int, int]:
    """Return the largest r + c, and the largest k counted there; -1 if none."""
    most, k = tick, -1
    for each in known:
        reach = each.r + each.c
        if reach > most:
            most, k = reach, each.k
        elif reach == most and each.k > k:
            k = each.k
    return most, k


class ArrayTimestamps:
    """Timestamps with an array of counts."""

    __slots__ = ("_names", "config")

    def __init__(self, config: MergedConfig) -> None:
        self.config = config
        epsilon = config.epsilon_ticks
        self._names = {f"{MARK}{t}": t + epsilon for t in range(-epsilon, epsilon + 1)}

    def knowing(self, tick: int, known: Sequence[ArrayTimestamp]) -> ArrayTimestamp:
        """See `Timestamps`."""
        c, counts = self._known(tick, known)
        return ArrayTimestamp(tick, c, tuple(counts))

    def after(self, tick: int, known: Sequence[ArrayTimestamp]) -> ArrayTimestamp:
        """See `Timestamps`."""
        c, counts = self._known(tick, known)
        counts[self.config.epsilon_ticks] += 1
        return ArrayTimestamp(tick, c, tuple(counts))

    def _known(self, tick: int, known: Sequence[ArrayTimestamp]) -> tuple[int, list[int]]:
        epsilon = self.config.epsilon_ticks
        size = 2 * epsilon + 1
        counts = [0] * size
        c = 0
        for each in known:
            if each.c or each.kn[epsilon]:
                c = max(c, each.r + each.c - tick)
            moved = tick - each.r
            for at in range(max(0, -moved), min(size, len(each.kn) - moved)):
                counts[at] = max(counts[at], each.kn[at + moved])
        # A timestamp that only covers knowledge counts nothing at its own r: the newest known
        # event is before that.
        while c < epsilon and any(counts[epsilon + c + 1 :]):
            c += 1
        return c, counts

    def first(self, tick: int) -> ArrayTimestamp:
        """See `Timestamps`."""
        epsilon = self.config.epsilon_ticks
        return ArrayTimestamp(tick, 0, (0,) * epsilon + (1,) + (0,) * epsilon)

    def is_sound(self, timestamp: ArrayTimestamp) -> bool:
        """See `Timestamps`."""
        newest = self.config.epsilon_ticks + timestamp.c
        return self.is_possible(timestamp) and timestamp.kn[newest] > 0

    def is_possible(self, timestamp: ArrayTimestamp) -> bool:
        """See `Timestamps`."""
        epsilon, counts = self.config.epsilon_ticks, timestamp.kn
        return (
            0 <= timestamp.c <= epsilon
            and len(counts) == 2 * epsilon + 1
            and (timestamp.c == 0 or counts[epsilon + timestamp.c] > 0)
            and not any(counts[epsilon + timestamp.c + 1 :])
            and min(counts) >= 0
            and max(counts) <= self.config.count_max
        )

    def key(self, timestamp: ArrayTimestamp) -> tuple[int, ...]:
        """See `Timestamps`."""
        newest = timestamp.c + self.config.epsilon_ticks
        return (
            timestamp.r + timestamp.c,
            *timestamp.kn[newest : timestamp.c : -1],
            timestamp.kn[timestamp.c],
        )

    def to_entries(self, timestamp: ArrayTimestamp) -> dict[str, int]:
        """See `Timestamps`."""
        entries = {TICK: _reduced(timestamp.r, self.config)}
        if timestamp.c:
            entries[AHEAD] = timestamp.c
        entries.update(
            (name, timestamp.kn[at]) for name, at in self._names.items() if timestamp.kn[at]
        )
        return entries

    def from_entries(self, entries: Mapping[str, int], tick: int) -> ArrayTimestamp | None:
        """See `Timestamps`."""
        r = _unreduced(entries.get(TICK), tick, self.config)
        if r is None:
            return None
        counts = tuple(entries.get(name, 0) for name in self._names)
        return ArrayTimestamp(r, entries.get(AHEAD, 0), counts)


def timestamps_for(config: MergedConfig) -> Timestamps[Any]:
    """Return the kind of timestamps of a configuration."""
    return ArrayTimestamps(config) if config.array else CounterTimestamps(config)


def index_of(entries: Mapping[str, int]) -> int:
    """Return the index of an event within one send."""
    return entries.get(INDEX, 0)


class Timeline:
    """What one process knows: its last timestamp, with everything it learned since."""

    __slots__ = ("kind", "last", "resets")

    def __init__(self, kind: Timestamps[Any]) -> None:
        self.kind = kind
        self.last: AnyTimestamp | None = None
        self.resets = 0
        """How often its knowledge was invalid: a clock or the memory was wrong."""

    def event(self, tick: int, heard: Sequence[AnyTimestamp] = ()) -> AnyTimestamp:
        """Stamp an event at a tick that follows these timestamps, if any."""
        recent = self._recent(tick)
        made: AnyTimestamp = self.kind.after(tick, (*heard, *recent) if heard else recent)
        if not self.kind.is_sound(made):
            self.resets += 1
            made = self.kind.first(tick)
        self.last = made
        return made

    def learn(self, tick: int, heard: AnyTimestamp) -> None:
        """Learn a timestamp. Only events are counted, so that no count exceeds its bound."""
        known: AnyTimestamp = self.kind.knowing(tick, [heard, *self._recent(tick)])
        if not self.kind.is_possible(known):
            self.resets += 1
            known = self.kind.knowing(tick, [heard])
        self.last = known

    def known(self, tick: int) -> AnyTimestamp:
        """Return a timestamp that covers everything known at a tick."""
        known: AnyTimestamp = self.kind.knowing(tick, self._recent(tick))
        return known if self.kind.is_possible(known) else self.kind.knowing(tick, ())

    def _recent(self, tick: int) -> tuple[AnyTimestamp, ...]:
        last = self.last
        if last is None or tick - last.r > 2 * self.kind.config.epsilon_ticks:
            return ()
        return (last,)


def _reduced(r: int, config: MergedConfig) -> int:
    return r if config.modulus is None else r % config.modulus


def _unreduced(sent: int | None, tick: int, config: MergedConfig) -> int | None:
    """Return the full clock reading, seen from a tick; None if it is invalid."""
    if sent is None or not 0 <= sent <= COUNT_MAX:
        return None
    if config.modulus is None:
        return sent
    if sent >= config.modulus:
        return None
    newest = tick + config.epsilon_ticks
    return newest - (newest - sent) % config.modulus
