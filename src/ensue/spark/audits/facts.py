"""Facts that every task of an audit has: subscriptions, and the codes of events.

The driver collects them once and sends them to the tasks. They grow with subscriptions and with
publishers times topics, never with events or deliveries.

Events as numbers. A *lane* is the sequence of one publisher on one topic in one run. The lane's
index and `publisher_seq` form one int64, the `code` of an event. Equal codes are equal events, and
codes sort by lane and then by number.

Units and tiles. The events of a run are divided into *units* of about equal size, by time of
publication. `UnitFinder` finds the unit of an event from its code alone. A *tile* is a number of
adjacent units plus the first unit of the next tile, so that any two events in the same or in
adjacent units are together in some tile.

HAZARD: a code holds numbers up to 2⁴⁰ and 2²³ lanes; a trace with more raises `BadInput`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ensue.spark.audits.common_order import Numbers

__all__ = [
    "NEVER",
    "SEQ_BITS",
    "SEQ_MAX",
    "Facts",
    "Lanes",
    "RunFacts",
    "Span",
    "UnitFinder",
    "codes",
]

SEQ_BITS = 40
SEQ_MAX = (1 << SEQ_BITS) - 1
NEVER = np.iinfo(np.int64).max
BLOCKS_MAX = 1_000_000
"""Most entries of the table that finds units; more would cost more than they save."""


@dataclass(frozen=True, slots=True)
class Span:
    """Duration of one subscription to a topic."""

    topic: int
    opened_step: int
    opened_ns: int
    closed_step: int = NEVER
    closed_ns: int | None = None
    """None: the subscriber could still receive at the end of the trace."""
    furthest: dict[int, int] = field(default_factory=dict)
    """By lane: the largest number delivered, if the subscription ended."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Facts of one run."""

    name: str
    simulated: bool
    spans: dict[int, tuple[Span, ...]] = field(default_factory=dict)
    """By the hash of the subscriber."""
    nodes: dict[int, int] = field(default_factory=dict)
    """By the hash of the subscriber: the hash of its node."""
    down: frozenset[int] = frozenset()
    """Hashes of the nodes that crashed and never restarted."""
    restarted: dict[int, int] = field(default_factory=dict)
    """By the hash of a node: step of its first restart, after which it may publish again."""
    unit_count: int = 1


@dataclass(frozen=True, slots=True)
class Lanes:
    """All lanes, sorted by hash, and the ends of their units."""

    hashes: Numbers
    runs: Numbers
    """By lane: the index of its run."""
    topics: Numbers
    """By lane: the index of its topic, which differs between runs."""
    publishers: Sequence[str]
    topic_names: Sequence[str]
    """By lane."""
    ends: Numbers
    """Sorted codes: the last event of a lane in a unit."""
    end_units: Numbers
    """The units that end there."""

    def index(self, hashes: Numbers) -> Numbers:
        """Return the lanes with these hashes; -1 for unknown hashes."""
        if not len(self.hashes):
            return np.full(len(hashes), -1, dtype=np.int64)
        found = np.searchsorted(self.hashes, hashes)
        found[found == len(self.hashes)] = 0
        return np.where(self.hashes[found] == hashes, found, -1).astype(np.int64)


class UnitFinder:
    """Finds the units of events.

    A table has an entry for each block of adjacent numbers of a lane: the first end that is not
    before the block. The unit of an event ends there or, if its block holds an end, a few ends
    later. Deliveries of a fragment follow the lanes, so a table lookup is many times as fast as a
    search among all ends.
    """

    def __init__(self, lanes: Lanes, blocks_max: int = BLOCKS_MAX) -> None:
        self._ends = lanes.ends
        self._end_units = lanes.end_units
        if not len(self._ends):
            return
        lane_count = len(lanes.hashes)
        # Lanes without an end belong to runs of one unit; no task looks them up.
        starts = np.searchsorted(self._ends, codes(np.arange(lane_count + 1, dtype=np.int64), 0))
        first_ends = np.minimum(starts[:-1], len(self._ends) - 1)
        self._last_ends = np.maximum(starts[1:] - 1, first_ends)
        self._bases = self._ends[first_ends] & SEQ_MAX
        lengths = np.maximum((self._ends[self._last_ends] & SEQ_MAX) - self._bases, 0)
        self._shift = 0
        while int((lengths >> self._shift).sum()) > blocks_max:
            self._shift += 1
        self._last_blocks = lengths >> self._shift
        sizes = self._last_blocks + 1
        self._starts = np.cumsum(sizes) - sizes
        lane_of = np.repeat(np.arange(lane_count, dtype=np.int64), sizes)
        blocks = np.arange(len(lane_of), dtype=np.int64) - self._starts[lane_of]
        numbers = self._bases[lane_of] + (blocks << self._shift)
        self._first = np.searchsorted(self._ends, codes(lane_of, numbers))

    def of(self, wanted: Numbers) -> Numbers:
        """Return the unit of each event; past its lane's end, the lane's last unit."""
        if not len(self._ends):
            return np.zeros(len(wanted), dtype=np.int64)
        lanes = wanted >> SEQ_BITS
        blocks = ((wanted & SEQ_MAX) - self._bases[lanes]) >> self._shift
        blocks = np.clip(blocks, 0, self._last_blocks[lanes])
        found: Numbers = self._first[self._starts[lanes] + blocks]
        if self._shift:
            behind = np.flatnonzero(self._ends[found] < wanted)
            while len(behind):
                behind = behind[found[behind] < self._last_ends[lanes[behind]]]
                found[behind] += 1
                behind = behind[self._ends[found[behind]] < wanted[behind]]
        units: Numbers = self._end_units[found]
        return units


@dataclass(frozen=True, slots=True)
class Facts:
    """All facts that a task has before it scans events and deliveries."""

    runs: tuple[RunFacts, ...]
    lanes: Lanes
    tile_units: int
    """Units of a tile, without the one shared with the next tile."""
    fragment_rows: int
    """Rows that a task collects before it packs them."""


def codes(lanes: Numbers, numbers: Numbers | int) -> Numbers:
    """Return the codes of events from their lanes and publisher numbers."""
    return (lanes << SEQ_BITS) | numbers
