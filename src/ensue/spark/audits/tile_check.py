"""Find doubtful events in one tile: a part of a run that fits in memory.

A tile holds every publication and every delivery of its events. Array operations prove as much as
possible correct; the rest are doubts, which `ensue.checkers` judges from their rows. So a doubt may
be harmless, but every violation causes one:

- If one order fits the deliveries of all subscribers and every publisher's own sequence, then fifo
  and total hold; if it also fits the publishers' deliveries, so does causal. Otherwise events on
  cycles, and events that break a publisher's sequence, are doubts.
- Deliveries of unpublished or void events, repeated and uninvited deliveries are doubts.
- An event that a subscriber was owed and did not deliver is a doubt.

Rules and terms are those of `ensue.checkers`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ensue.checkers import cycles
from ensue.checkers.completeness import Terms
from ensue.spark.audits.common_order import Numbers, one_order_fits
from ensue.spark.audits.facts import NEVER, SEQ_BITS, SEQ_MAX, Lanes, RunFacts, Span

__all__ = ["Deliveries", "Doubts", "Publications", "Tile", "find_doubts"]

Flags = npt.NDArray[np.bool_]

GHOST = -1
"""Node of events that no node published."""
SEARCHED_MAX = 10_000
"""Fewer events than this are found by search, more by a table of all lanes."""
DOUBTS_MAX = 50_000
"""Most doubts of one tile; beyond that they are a sample."""


@dataclass(frozen=True, slots=True)
class Deliveries:
    """Deliveries of one subscriber, in step order."""

    steps: Numbers
    codes: Numbers
    tagged: Flags
    names: Numbers | None = None
    """Hashes of event ids, in traces where ids do not follow from labels."""


@dataclass(frozen=True, slots=True)
class Publications:
    """`submitted` and `published` rows, in any order."""

    codes: Numbers
    times: Numbers
    steps: Numbers
    nodes: Numbers
    home: Flags
    """Whether the event is this tile's own, not shared with the tile before it."""
    names: Numbers | None = None
    submitted: Flags | None = None
    """Which rows say `submitted`; None: no row does."""


@dataclass(frozen=True, slots=True)
class Tile:
    """One part of one run."""

    published: Publications
    delivered: dict[int, Deliveries]
    """By the hash of the subscriber."""
    void_codes: Numbers
    void_nodes: Numbers


@dataclass(slots=True)
class Doubts:
    """Findings of a tile."""

    codes: set[int] = field(default_factory=set)
    names: set[int] = field(default_factory=set)
    """The same as hashes of event ids, in traces where ids do not follow from labels."""
    repeated_steps: list[tuple[int, int]] = field(default_factory=list)
    """Subscriber and step of rows that share a step with another row of their node."""
    whole: bool = False
    """Whether every event of the tile is a doubt."""
    sampled: bool = False
    """Whether there were more doubts than are kept."""
    events: int = 0
    owed: int = 0
    lost: int = 0
    in_doubt: int = 0

    def add(self, found: Numbers) -> None:
        """Add doubtful events, up to `DOUBTS_MAX`."""
        room = DOUBTS_MAX - len(self.codes)
        self.sampled = self.sampled or len(found) > room
        self.codes.update(found[: max(0, room)].tolist())


def find_doubts(
    tile: Tile, run: RunFacts, lanes: Lanes, terms: Terms, rules: frozenset[str]
) -> Doubts:
    """Return the events of a tile that arrays alone cannot prove correct."""
    return _Search(tile, run, lanes, terms, rules).search()


class _Search:
    def __init__(
        self, tile: Tile, run: RunFacts, lanes: Lanes, terms: Terms, rules: frozenset[str]
    ) -> None:
        self._tile = tile
        self._run = run
        self._terms = terms
        self._rules = rules
        self._slack_ns = 0 if run.simulated else terms.clock_error_ns
        self._doubts = Doubts()
        self._views: dict[int, tuple[Numbers, Flags]] = {}
        """By subscriber: index of the event of each delivery, and whether it was found."""
        self._sort_events(tile.published)
        ghosts = self._find_deliveries()
        if len(ghosts):
            self._sort_events(_with_ghosts(tile.published, ghosts))
            self._find_deliveries()
        event_lanes = self._codes >> SEQ_BITS
        self._topics, self._topic_of = np.unique(lanes.topics[event_lanes], return_inverse=True)
        by_topic = np.argsort(self._topic_of, kind="stable")
        ends = np.cumsum(np.bincount(self._topic_of, minlength=len(self._topics)))[:-1]
        self._events_of: list[Numbers] = np.split(by_topic, ends) if len(self._topics) else []

    def search(self) -> Doubts:
        came = np.zeros(len(self._codes), dtype=np.bool_)
        first_ones: list[Numbers] = []
        for subscriber, delivered in self._tile.delivered.items():
            falls = np.diff(delivered.steps) <= 0
            if falls.any():
                step = int(delivered.steps[np.flatnonzero(falls)[0]])
                self._doubts.repeated_steps.append((subscriber, step))
            places, found = self._views[subscriber]
            came[places[found]] = True
            first_ones.append(self._judged(delivered, places, found))
            self._check_invited(subscriber, delivered)
        self._exempt_crashed(came)
        for subscriber in self._run.spans:
            self._check_complete(subscriber)
        self._check_order(first_ones)
        self._name_doubts()
        return self._doubts

    def _find_deliveries(self) -> Numbers:
        """Match deliveries with events; return the codes of unknown events."""
        strange = [np.empty(0, dtype=np.int64)]
        for subscriber, delivered in self._tile.delivered.items():
            _, found = self._views[subscriber] = self._index.find(delivered.codes)
            if not found.all():
                strange.append(delivered.codes[~found])
        return np.unique(np.concatenate(strange))

    def _sort_events(self, published: Publications) -> None:
        """Sort and number the events of a tile; the first publication of each counts."""
        order = np.lexsort((published.steps, published.codes))
        codes = published.codes[order]
        first = np.ones(len(codes), dtype=np.bool_)
        first[1:] = codes[1:] != codes[:-1]
        confirms, repeats = _receipts(published, order, first)
        if not first.all():
            self._doubt_repeated(published, order[repeats])
            self._doubt_strangers(published, order, np.flatnonzero(~first))
        keep = order[first]
        self._codes = codes[first]
        self._index = _Index(self._codes)
        self._times = published.times[keep]
        self._nodes = published.nodes[keep]
        self._steps = published.steps[keep]
        self._home = published.home[keep]
        self._ghosts = self._nodes == GHOST
        self._names = None if published.names is None else published.names[keep]
        self._void = self._void_flags()
        self._confirm(published, order, first, confirms)

    def _doubt_repeated(self, published: Publications, rows: Numbers) -> None:
        """Doubt events that were submitted or published again without a restart before."""
        restarts = [self._run.restarted.get(node, NEVER) for node in published.nodes[rows].tolist()]
        unexplained = published.steps[rows] <= np.array(restarts, dtype=np.int64)
        self._doubt_rows(published, rows[unexplained])

    def _doubt_strangers(self, published: Publications, order: Numbers, again: Numbers) -> None:
        """Doubt events whose rows are of two nodes, or name two events."""
        rows, before = order[again], order[again - 1]
        strange = published.nodes[rows] != published.nodes[before]
        if published.names is not None:
            strange |= published.names[rows] != published.names[before]
        self._doubt_rows(published, rows[strange])

    def _doubt_rows(self, published: Publications, rows: Numbers) -> None:
        if published.names is not None:
            self._doubts.names.update(published.names[rows].tolist())
        self._doubts.add(published.codes[rows])

    def _confirm(
        self, published: Publications, order: Numbers, first: Flags, confirms: Flags
    ) -> None:
        """Find which events are owed: those with a receipt, and from when on."""
        self._confirmed = np.ones(len(self._codes), dtype=np.bool_)
        self._settled = self._times
        if published.submitted is None:
            return
        rows, events = order[confirms], (np.cumsum(first) - 1)[confirms]
        same = published.nodes[rows] == self._nodes[events]
        rows, events = rows[same], events[same]
        self._settled = self._times.copy()
        self._settled[events] = np.maximum(self._times[events], published.times[rows])
        self._confirmed[:] = False
        self._confirmed[events] = True

    def _void_flags(self) -> Flags:
        """Mark events that their publishing node discarded as void."""
        void = np.zeros(len(self._codes), dtype=np.bool_)
        places, found = self._index.find(self._tile.void_codes)
        same_node = self._tile.void_nodes[found] == self._nodes[places[found]]
        void[places[found][same_node]] = True
        return void

    def _judged(self, delivered: Deliveries, places: Numbers, found: Flags) -> Numbers:
        """Return the first delivery of each untagged event.

        Phantoms, void and repeated events are doubts.
        """
        known = places[found]
        wrong = known[self._void[known] | self._ghosts[known]]
        if len(wrong):
            self._doubts.add(self._codes[np.unique(wrong)])
        seen = np.zeros(len(self._codes), dtype=np.bool_)
        seen[known] = True
        plain = places[found & ~delivered.tagged]
        if np.count_nonzero(seen) != len(known):
            counts = np.bincount(known, minlength=len(self._codes))
            self._doubts.add(self._codes[np.flatnonzero(counts > 1)])
            _, first = np.unique(plain, return_index=True)
            plain = plain[np.sort(first)]
        return plain

    def _name_doubts(self) -> None:
        """Add the ids of doubts, and ids that carry another event's label."""
        if self._names is None:
            return
        doubtful = np.array(sorted(self._doubts.codes), dtype=np.int64)
        places, found = self._index.find(doubtful)
        self._doubts.names.update(self._names[places[found]].tolist())
        for subscriber, delivered in self._tile.delivered.items():
            assert delivered.names is not None
            places, found = self._views[subscriber]
            renamed = found.copy()
            renamed[found] = self._names[places[found]] != delivered.names[found]
            self._doubts.names.update(self._names[places[renamed]].tolist())
            self._doubts.names.update(delivered.names[renamed].tolist())

    def _exempt_crashed(self, came: Flags) -> None:
        """Compute the owed events: exempt undelivered ones of crashed publishers.

        A crashed publisher may never have sent them.
        """
        down = np.isin(self._nodes, np.array(sorted(self._run.down), dtype=np.int64))
        in_doubt = down & ~came & ~self._void & self._confirmed
        self._doubts.events = int(np.count_nonzero(self._home & ~self._ghosts))
        self._doubts.in_doubt = int(np.count_nonzero(in_doubt & self._home))
        owing = ~self._void & ~in_doubt & ~self._ghosts & self._confirmed
        self._owing = [events[owing[events]] for events in self._events_of]
        self._earliest = [
            int(self._times[events].min()) if len(events) else 0 for events in self._owing
        ]

    def _check_invited(self, subscriber: int, delivered: Deliveries) -> None:
        """Add deliveries on topics that were not subscribed at the time."""
        places, found = self._views[subscriber]
        opened = np.full(len(self._topics), NEVER, dtype=np.int64)
        closed = np.zeros(len(self._topics), dtype=np.int64)
        torn: list[tuple[int, list[Span]]] = []
        for topic, spans in self._spans_by_topic(subscriber):
            opened[topic], closed[topic] = spans[0].opened_step, spans[0].closed_step
            if len(spans) > 1:
                torn.append((topic, spans))
        topics = self._topic_of[places] if len(self._topics) else places
        steps = delivered.steps
        invited = ~found
        if len(self._topics):
            invited |= (steps > opened[topics]) & (steps < closed[topics])
        for topic, spans in torn:
            mine = np.flatnonzero(topics == topic)
            for span in spans:
                fits = (steps[mine] > span.opened_step) & (steps[mine] < span.closed_step)
                invited[mine] |= fits
        if not invited.all():
            self._doubts.add(np.unique(delivered.codes[~invited]))

    def _spans_by_topic(self, subscriber: int) -> Iterator[tuple[int, list[Span]]]:
        """Yield a subscriber's subscriptions by the topic's index in this tile."""
        by_topic: dict[int, list[Span]] = {}
        for span in self._run.spans.get(subscriber, ()):
            by_topic.setdefault(span.topic, []).append(span)
        for topic in sorted(by_topic):
            place = int(np.searchsorted(self._topics, topic))
            if place < len(self._topics) and self._topics[place] == topic:
                yield place, by_topic[topic]

    def _check_complete(self, subscriber: int) -> None:
        """Add events that a subscriber was owed and did not deliver."""
        had = np.zeros(len(self._codes), dtype=np.bool_)
        if subscriber in self._views:
            places, found = self._views[subscriber]
            had[places[found]] = True
        for topic, spans in self._spans_by_topic(subscriber):
            events = self._owing[topic]
            if len(events) and not self._covers(spans[0], topic):
                owed = np.zeros(len(events), dtype=np.bool_)
                for span in spans:
                    owed |= self._owed(span, events)
                events = events[owed]
            self._doubts.owed += int(np.count_nonzero(self._home[events]))
            missing = events[~had[events]]
            if len(missing):
                self._doubts.lost += int(np.count_nonzero(self._home[missing]))
                if not self._terms.lossy:
                    self._doubts.add(self._codes[missing])

    def _covers(self, span: Span, topic: int) -> bool:
        """Return whether a span covers all of a topic's events in this tile."""
        return span.closed_ns is None and span.opened_ns + self._slack_ns < self._earliest[topic]

    def _owed(self, span: Span, events: Numbers) -> Flags:
        """Mark the events owed within a span; see `ensue.checkers.completeness`."""
        times = self._times[events]
        after = times > span.opened_ns + self._slack_ns
        if span.closed_ns is None:
            return after
        owed = np.zeros(len(events), dtype=np.bool_)
        settle_ns = self._terms.settle_ns
        if settle_ns is not None:
            owed |= after & (self._settled[events] <= span.closed_ns - settle_ns - self._slack_ns)
        if self._terms.gaps and span.furthest:
            codes = self._codes[events]
            lane_of = codes >> SEQ_BITS
            for lane, number in span.furthest.items():
                owed |= after & (lane_of == lane) & (codes < ((lane << SEQ_BITS) | number))
        return owed

    def _check_order(self, sequences: list[Numbers]) -> None:
        """Add events that prevent one order from fitting all sequences."""
        ordered = self._rules & {"fifo", "total", "global", "causal"}
        if not ordered:
            return
        if not ({"total", "global", "causal"} & ordered):
            self._doubt_lanes(sequences)
            return
        proof = [*sequences, *self._lane_sequences()]
        if "causal" in ordered:
            proof += self._publisher_sequences()
        if one_order_fits(proof, self._times):
            return
        if "causal" in ordered:
            # The causal chain of a violation may include any event of the tile.
            self._doubts.whole = True
        self._doubt_lanes(sequences)
        if {"total", "global"} & ordered:
            for part in cycles.components([sequence.tolist() for sequence in sequences]):
                self._doubts.add(self._codes[np.array(part, dtype=np.int64)])

    def _lane_sequences(self) -> list[Numbers]:
        """Return each publisher's sequence on each topic: events are numbered by it."""
        ends = np.flatnonzero(np.diff(self._codes >> SEQ_BITS)) + 1
        return np.split(np.arange(len(self._codes), dtype=np.int64), ends)

    def _publisher_sequences(self) -> list[Numbers]:
        """Return the publications and deliveries of each publishing node, in step order."""
        sequences = []
        for node in np.unique(self._nodes[~self._ghosts]):
            own = np.flatnonzero(self._nodes == node)
            places, steps = [own], [self._steps[own]]
            for subscriber, delivered in self._tile.delivered.items():
                if self._run.nodes.get(subscriber) == node:
                    known, found = self._views[subscriber]
                    places.append(known[found])
                    steps.append(delivered.steps[found])
            order = np.argsort(np.concatenate(steps), kind="stable")
            merged = np.concatenate(places)[order]
            _, first = np.unique(merged, return_index=True)
            sequences.append(merged[np.sort(first)])
        return sequences

    def _doubt_lanes(self, sequences: list[Numbers]) -> None:
        """Add events that a subscriber delivered against their publisher's sequence."""
        lanes = self._codes >> SEQ_BITS
        for sequence in sequences:
            order = np.argsort(lanes[sequence], kind="stable")
            mine = sequence[order]
            falls = (mine[1:] < mine[:-1]) & (lanes[mine[1:]] == lanes[mine[:-1]])
            for lane in np.unique(lanes[mine[1:][falls]]):
                self._doubts.add(self._codes[_out_of_place(mine[lanes[mine] == lane])])


class _Index:
    """Finds events among sorted codes.

    A publisher's numbers are mostly consecutive, so the index of an event follows from that of the
    lane's first. The others are found by search.
    """

    def __init__(self, codes: Numbers) -> None:
        self._codes = codes
        self._bases: Numbers | None = None
        """By lane: difference of index and number."""

    def find(self, wanted: Numbers) -> tuple[Numbers, Flags]:
        """Return the indices of these events, and which of them exist."""
        codes = self._codes
        if not len(codes):
            return np.zeros(len(wanted), dtype=np.int64), np.zeros(len(wanted), dtype=np.bool_)
        if len(wanted) < SEARCHED_MAX:
            places = np.minimum(np.searchsorted(codes, wanted), len(codes) - 1)
            return places, codes[places] == wanted
        lanes = wanted >> SEQ_BITS
        bases = self._lane_bases(int(lanes.max()) + 1)
        places = np.clip(bases[lanes] + (wanted & SEQ_MAX), 0, len(codes) - 1)
        found = codes[places] == wanted
        if not found.all():
            others = np.flatnonzero(~found)
            again = np.minimum(np.searchsorted(codes, wanted[others]), len(codes) - 1)
            places[others], found[others] = again, codes[again] == wanted[others]
        return places, found

    def _lane_bases(self, size: int) -> Numbers:
        if self._bases is None or len(self._bases) < size:
            lanes = self._codes >> SEQ_BITS
            starts = np.flatnonzero(np.r_[True, lanes[1:] != lanes[:-1]])
            self._bases = np.zeros(max(size, int(lanes[-1]) + 1), dtype=np.int64)
            self._bases[lanes[starts]] = starts - (self._codes[starts] & SEQ_MAX)
        return self._bases


def _with_ghosts(published: Publications, ghosts: Numbers) -> Publications:
    """Add delivered events without a publication to the published ones.

    Such ghosts are doubts, but take part in the search for an order.
    """
    nothing = np.zeros(len(ghosts), dtype=np.int64)
    names = published.names
    return Publications(
        codes=np.concatenate([published.codes, ghosts]),
        times=np.concatenate([published.times, nothing]),
        steps=np.concatenate([published.steps, nothing]),
        nodes=np.concatenate([published.nodes, nothing + GHOST]),
        home=np.concatenate([published.home, nothing == 1]),
        names=None if names is None else np.concatenate([names, nothing]),
        submitted=None
        if published.submitted is None
        else np.concatenate([published.submitted, nothing == 1]),
    )


def _receipts(published: Publications, order: Numbers, first: Flags) -> tuple[Flags, Flags]:
    """Mark the first `published` row of each event, and rows that repeat one of their action.

    `first` marks the first row of each event, in this order.
    """
    if published.submitted is None:
        return first, ~first
    submitted = published.submitted[order]
    starts = np.maximum.accumulate(np.where(first, np.arange(len(first)), 0))
    begins: list[Flags] = []
    for says in (~submitted, submitted):
        before: Numbers = np.cumsum(says) - says
        begins.append(says & (before == before[starts]))
    return begins[0], ~(begins[0] | begins[1])


def _out_of_place(events: Numbers) -> Numbers:
    """Return values after a greater one, with the nearest greater one before each."""
    wrong: set[int] = set()
    stack: list[int] = []
    for event in events.tolist():
        while stack and stack[-1] <= event:
            stack.pop()
        if stack:
            wrong |= {stack[-1], event}
        stack.append(event)
    return np.array(sorted(wrong), dtype=np.int64)
