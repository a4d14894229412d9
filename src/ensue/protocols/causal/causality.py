"""The delivery rule: barriers, start vectors, and the progress of one node in each topic.

`delivered` holds, per topic and source, up to which number all events are delivered or skipped.
An event is delivered when it is the next of its source and `delivered` covers its barrier. A
barrier names direct predecessors only: delivering an event removes its barrier from this node's
own, and adds the event.

**Start vectors.** A joiner starts from the maximum of what all others have delivered or
published, and skips what that covers. Every such vector is closed under causes, and so is their
maximum: no skipped event comes after one that is not skipped. (The paper takes the first number
it happens to receive, which neither says what will never come nor is closed: errata 4 and 5.)
Only delivered events count as known to this node: skipped ones stay in the barriers that it
passes on.

**Across topics** a barrier has a part for each topic: the latest events of that topic in the past
of the event, none of which precedes another. A receiver checks the parts of topics that it is in,
and waits while it is joining one. It passes on the other parts, because it cannot tell which of
them are outdated beyond the numbers of one source. So a barrier grows with the topics that a node
knows.

**Skipping.** An event may depend on another one that was lost with all nodes that had it. After
`patience_ns` the lost event is skipped by its number (`loss_recovery`), and sources that are away
are in doubt: none of their events is taken until they are back and have reported how many to skip.
That may cost events of falsely suspected sources, never order.

The past of an event is closed only if its source is in the topic. So across topics, a node that
has delivered anything publishes on a topic only while it is a member, if need be without
subscribing its application (`publications`).
"""

from collections.abc import Iterable, Iterator

from ensue.protocols.causal.frames import Counts, Item, raise_counts

__all__ = ["IN", "JOINING", "OUT", "Causality", "TopicState"]

OUT, JOINING, IN = "out", "joining", "in"


class TopicState:
    """The state of one topic at one node."""

    __slots__ = (
        "barrier",
        "delivered",
        "doubt",
        "held",
        "kept",
        "name",
        "own",
        "received",
        "refused",
        "since_ns",
        "start",
        "state",
    )  # fmt: skip

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = OUT
        self.own = 0
        """Number of events that this node has published here."""
        self.delivered: Counts = {}
        """Never cleared: a later join need not ask for these events."""
        self.start: Counts = {}
        """What was skipped at the start."""
        self.barrier: Counts = {}
        """Direct predecessors, in this topic, of the next event that this node publishes."""
        self.doubt = 0
        """Sources in doubt, as a set: their events are not taken for now."""
        self.received: Counts = {}
        """Up to which number all events are here, where that is beyond `delivered`."""
        self.kept: Counts = {}
        """By source: the last event beyond those that is cached for peers, and not held. It came
        while its source was in doubt."""
        self.refused: Counts = {}
        """By source: the last event that was dropped for want of room."""
        self.held: dict[tuple[int, int], Item] = {}
        """By source and number: events that wait."""
        self.since_ns: dict[tuple[int, int], int] = {}
        """When each of them arrived."""

    def have(self, source: int) -> int:
        """Return up to which number all events of a source are here."""
        return max(self.received.get(source, 0), self.delivered.get(source, 0))

    def haves(self) -> Counts:
        """Return the same for all sources."""
        counts = dict(self.delivered)
        raise_counts(counts, self.received)
        return counts

    def keep(self, source: int, number: int) -> None:
        """Record that an event was cached for peers, and is not taken here."""
        if number > self.have(source):
            self.kept[source] = max(number, self.kept.get(source, 0))

    def keeps(self) -> Counts:
        """Return the last kept events that are still beyond what is here without a gap."""
        for source in [each for each, last in self.kept.items() if last <= self.have(each)]:
            del self.kept[source]
        return self.kept


class Causality:
    """The delivery rule of one node, over all its topics."""

    def __init__(self, me: int, *, across: bool, held_max: int) -> None:
        self.me = me
        self._across = across
        self._held_max = held_max
        self.topics: dict[str, TopicState] = {}
        self._blocked: dict[tuple[str, int], list[tuple[str, int]]] = {}
        """By topic and source that lags: the topics and sources that wait for it."""
        self._look: list[tuple[str, int]] = []
        """Topics and sources whose next event may be deliverable."""
        self.dropped: list[tuple[str, int, int]] = []
        """Topic, source and number of held events that were dropped; the node drains this."""
        self.changed: dict[str, None] = {}
        """Topics in which events arrived, were delivered or dropped; the node drains this."""
        self.has_foreign_past = False
        """Whether events of other nodes precede the next event of this node."""

    def topic(self, name: str) -> TopicState:
        """Return the state of a topic; create it if necessary."""
        state = self.topics.get(name)
        if state is None:
            state = self.topics[name] = TopicState(name)
        return state

    def publish(self, topic: str) -> dict[str, Counts]:
        """Add this node's next event of a topic to its past; return the barrier to send."""
        state = self.topic(topic)
        state.own += 1
        after: dict[str, Counts] = {}
        for other in self.topics.values() if self._across else (state,):
            part = dict(other.barrier)
            if other is state:
                part.pop(self.me, None)
            if part:
                after[other.name] = part
        state.barrier = {self.me: state.own}
        self._advance(state, self.me, state.own)
        return after

    def receive(self, item: Item, source: int, *, now_ns: int) -> bool:
        """Take an event in; False if it is a duplicate or not for this node."""
        event = item.event
        state = self.topics.get(event.topic)
        if state is None or state.state == OUT or source == self.me:
            return False
        number = event.publisher_seq
        key = (source, number)
        if number <= state.delivered.get(source, 0) or key in state.held:
            return False
        if state.doubt >> source & 1:
            return False
        is_next = number == state.delivered.get(source, 0) + 1
        if len(state.held) >= self._held_max and not is_next:
            # Its source may take it for received: remember that it has to be requested.
            state.refused[source] = max(number, state.refused.get(source, 0))
            return False
        state.held[key] = item
        state.since_ns[key] = now_ns
        self.changed[state.name] = None
        if state.state == IN:
            self._count(state, source)
            self._look.append((event.topic, source))
        return True

    def passes_over(self, topic: str, source: int, number: int) -> bool:
        """Return whether this member does not need an event: it skipped it, or is going to."""
        state = self.topics.get(topic)
        if state is None or state.state == OUT:
            return False
        return number <= state.start.get(source, 0) or bool(state.doubt >> source & 1)

    def has_refused(self, topic: str, source: int, number: int) -> bool:
        """Return whether there was no room for an event, and it has not come since."""
        state = self.topics.get(topic)
        if state is None or state.state == OUT or (source, number) in state.held:
            return False
        return state.delivered.get(source, 0) < number <= state.refused.get(source, 0)

    def is_full(self, topic: str) -> bool:
        """Return whether a topic has room only for the next deliverable event."""
        state = self.topics.get(topic)
        return state is not None and len(state.held) >= self._held_max

    def takes(self, topic: str, source: int) -> bool:
        """Return whether there is room for the next missing event of a source."""
        state = self.topics.get(topic)
        if state is None or not self.is_full(topic):
            return True
        return state.have(source) == state.delivered.get(source, 0)

    def ready(self) -> Iterator[tuple[Item, int, int]]:
        """Yield deliverable events in order: the item, its source, and when it arrived."""
        while self._look:
            topic, source = self._look.pop()
            state = self.topics[topic]
            number = state.delivered.get(source, 0) + 1
            item = state.held.get((source, number))
            if item is None or state.state != IN:
                continue
            missing = self._missing(item)
            if missing is not None:
                self._blocked.setdefault(missing, []).append((topic, source))
                continue
            del state.held[source, number]
            since_ns = state.since_ns.pop((source, number))
            self._learn(state, item, source)
            self._advance(state, source, number)
            self._look.append((topic, source))
            yield item, source, since_ns

    def join(self, topic: str) -> None:
        """Begin to join a topic: from now on received events are held."""
        state = self.topic(topic)
        state.state = JOINING
        self._forget_held(state)

    def uncovered(self, topic: str, vector: Counts) -> Counts:
        """Return events that a start from this vector would deliver after their effects."""
        state = self.topic(topic)
        return {
            source: count
            for source, count in state.barrier.items()
            if max(vector.get(source, 0), state.delivered.get(source, 0)) < count
        }

    def joined(self, topic: str, vector: Counts, doubt: int = 0) -> list[tuple[int, Item]]:
        """Start from a vector; return the held events that it covers, with their sources."""
        state = self.topic(topic)
        state.state = IN
        state.doubt = doubt
        items = self.skip(topic, vector)
        state.start = dict(state.delivered)
        return items

    def skip(self, topic: str, vector: Counts) -> list[tuple[int, Item]]:
        """Skip what a vector covers; return the held events that are dropped, with their sources.

        Their sources may count on this node and vanish: it has to keep them for its peers.
        """
        state = self.topic(topic)
        for source, count in vector.items():
            if state.delivered.get(source, 0) < count:
                state.delivered[source] = state.start[source] = count
        state.received.clear()
        state.refused = {
            source: last
            for source, last in state.refused.items()
            if last > state.delivered.get(source, 0)
        }
        self.changed[topic] = None
        items = []
        for source, number in sorted(state.held):
            if number <= state.delivered.get(source, 0) or state.doubt >> source & 1:
                items.append((source, state.held.pop((source, number))))
                del state.since_ns[source, number]
            else:
                self._count(state, source)
        self._recheck_all()
        return items

    def leave(self, topic: str) -> list[tuple[int, Item]]:
        """Leave a topic, and keep its progress; return events that were here, with sources.

        Their sources may count on this node and vanish: `received` still covers them, and from now
        on also events before them that are not here.
        """
        state = self.topic(topic)
        state.state = OUT
        items = [
            (source, state.held.pop((source, number))) for source, number in sorted(state.held)
        ]
        self._forget_held(state)
        state.received = {source: item.event.publisher_seq for source, item in items}
        self._recheck_all()
        return items

    def missing(self, topic: str) -> dict[tuple[str, int], int]:
        """Return what held events wait for: up to which number, by topic and source."""
        state = self.topics[topic]
        wanted: dict[tuple[str, int], int] = {}
        for source in sorted({source for source, _ in state.held}):
            following = state.delivered.get(source, 0) + 1
            head = state.held.get((source, following))
            if head is None:
                wanted[topic, source] = following
                continue
            for name, counts in head.after.items():
                there = self.topics.get(name)
                if there is not None and there.state == IN:
                    for each, count in counts.items():
                        if there.have(each) < count:
                            wanted[name, each] = max(count, wanted.get((name, each), 0))
        for source in () if self.is_full(topic) else state.refused:
            wanted.setdefault((topic, source), state.have(source) + 1)
        return wanted

    def awaited(self, topic: str, sources: Iterable[int]) -> frozenset[tuple[str, int]]:
        """Return what the next events of sources wait for in the end, by topic and source.

        Those are events that are not here, and topics that are being joined (source -1).
        """
        found: set[tuple[str, int]] = set()
        pending = [(topic, source) for source in sources]
        seen = set(pending)
        while pending:
            name, source = key = pending.pop()
            state = self.topics[name]
            item = state.held.get((source, state.delivered.get(source, 0) + 1))
            if item is None:
                found.add(key)
                continue
            needed = set(self._all_missing(item)) - seen
            seen |= needed
            pending += needed
        return frozenset(found)

    def first_needed(self, topic: str, source: int) -> int:
        """Return the first missing event of a source that a held event needs, or 0."""
        have = self.topic(topic).have(source)
        needed = [number - 1 for each, number in self.topic(topic).held if each == source]
        needed.append(self.topic(topic).refused.get(source, 0))
        for state in self.topics.values():
            needed += [
                item.after[topic].get(source, 0)
                for item in state.held.values()
                if topic in item.after
            ]
        return min((number for number in needed if number > have), default=0)

    def _missing(self, item: Item) -> tuple[str, int] | None:
        """Return a topic and source that must progress before an event is delivered."""
        return next(self._all_missing(item), None)

    def _all_missing(self, item: Item) -> Iterator[tuple[str, int]]:
        """Yield all of them; source -1: the topic has to be joined first."""
        for name, counts in item.after.items():
            state = self.topics.get(name)
            if state is None or state.state == OUT:
                continue
            if state.state == JOINING:
                yield name, -1
                continue
            delivered = state.delivered
            for source, count in counts.items():
                if delivered.get(source, 0) < count:
                    yield name, source

    def _learn(self, state: TopicState, item: Item, source: int) -> None:
        """Make a delivered event a direct predecessor of this node's next event."""
        for name, counts in item.after.items():
            if name == state.name:
                for other, count in counts.items():
                    if state.barrier.get(other, count + 1) <= count:
                        del state.barrier[other]
            elif self._across:
                self._pass_on(self.topic(name), counts)
        state.barrier[source] = item.event.publisher_seq
        self.has_foreign_past = True

    def _pass_on(self, state: TopicState, counts: Counts) -> None:
        """Keep the part of a barrier about another topic, unless it is delivered here."""
        for source, count in counts.items():
            seen = state.start.get(source, 0) < count <= state.delivered.get(source, 0)
            if state.state == IN and seen:
                continue
            if state.barrier.get(source, 0) < count:
                state.barrier[source] = count

    def _advance(self, state: TopicState, source: int, number: int) -> None:
        state.delivered[source] = number
        self.changed[state.name] = None
        for counts in (state.received, state.refused):
            if counts.get(source, 0) <= number:
                counts.pop(source, None)
        self._look += self._blocked.pop((state.name, source), ())

    def _forget_held(self, state: TopicState) -> None:
        self.dropped += [(state.name, *key) for key in sorted(state.held)]
        self.changed[state.name] = None
        state.held.clear()
        state.since_ns.clear()
        state.received.clear()
        state.refused.clear()

    def _count(self, state: TopicState, source: int) -> None:
        """Advance `received` over held events of a source without a gap."""
        number = state.have(source)
        while (source, number + 1) in state.held:
            number += 1
        if number > state.delivered.get(source, 0):
            state.received[source] = number
        if state.refused.get(source, 0) <= number:
            state.refused.pop(source, None)

    def _recheck_all(self) -> None:
        """Recheck all held events after a topic was joined or left."""
        self._blocked.clear()
        self._look = [
            (name, source)
            for name, state in self.topics.items()
            if state.state == IN
            for source in sorted({source for source, _ in state.held})
        ]
