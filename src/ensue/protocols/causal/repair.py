"""Repair: find missing events and get them from peers that have them.

The trees bring an event to all members that its source can reach. Everything else is found here:

- **Gaps.** Events are numbered per source and topic, and barriers name others. A node that holds
  events back asks, after a round trip or `gap_ns`, the source of what is missing; then the members
  of the topic, one after the other.
- **Ends.** A missing last event leaves no gap, so members compare: some time after something
  happened in a topic, each member sends its progress to the first member of each of its clusters.
  Those edges connect all members, so what one member has, all get. A source that is no member
  sends how many events it published, and a node that left sends for a while what it has seen: it
  may be the only one.
- **Returns.** A suspected node that sends a frame again gets a summary at once.

A node that learns that a peer lacks events answers with its own progress, and sends events only on
request, so that not every peer sends the same (`requests`). What is not cached it answers with
`NotCached`. A member that gets `NotCached`, or waits longer than `patience_ns` for an event whose
source is away, starts a search (`retrieval`), and skips the event if no peer has it
(`loss_recovery`).

A receipt says that a member has an event, and its source may vanish then. So a member also caches
what it received and does not deliver: events from before its join, and events that it skips.
"""

from collections.abc import Iterable
from heapq import heapify, heappop, heapreplace

from ensue.protocols.causal.causality import IN, JOINING, OUT, TopicState
from ensue.protocols.causal.event_cache import Cached, EventCache
from ensue.protocols.causal.frames import (
    Counts,
    Fill,
    Item,
    NotCached,
    Summary,
    item_bytes,
    raise_counts,
)
from ensue.protocols.causal.hypercube import bits, first_in_cluster, split
from ensue.protocols.causal.loss_recovery import Loss
from ensue.protocols.causal.node_state import NodeState
from ensue.protocols.causal.requests import Requests
from ensue.protocols.causal.retrieval import BACKOFF_MAX, Retrieval

__all__ = ["Repair"]

FAREWELLS = 8
"""Summaries that a node sends to members after it left a topic."""
GONE_LOOKED_AT_MAX = 65_536
"""Event numbers to check for how far a requested range is gone, whatever peers claim."""
HELD = 1 << 62
"""The place of events that are held back: after all that are cached, which do not follow them."""


class _Watch:
    """Timers of one topic."""

    __slots__ = ("compare_ns", "farewells", "gap_ns", "missing_ns", "tries", "wait_ns")

    def __init__(self) -> None:
        self.compare_ns: int | None = None
        self.wait_ns = 0
        self.farewells = 0
        """Summaries that this node still sends after leaving."""
        self.gap_ns: int | None = None
        self.tries = 0
        self.missing_ns: dict[tuple[str, int], int] = {}
        """By topic and source: since when an event is missing, or its source away."""


class Repair:
    """Requests and answers of one node about missing events."""

    def __init__(self, state: NodeState, cache: EventCache) -> None:
        self._me = state.number
        self._cube = state.cube
        self._config = state.config
        self._causality = state.causality
        self._membership = state.membership
        self._detector = state.detector
        self._send = state.send
        self._dirty = state.dirty
        self._round_trips = state.round_trips
        self._cache = cache
        self._watches: dict[str, _Watch] = {}
        self._requests = Requests(state)
        self.retrieval = Retrieval(state, helpers=self._holders, requests=self._requests)
        self.lost: dict[str, Loss] = {}
        """By topic: events that no peer has; the node drains this."""

    # -- Timers ----------------------------------------------------------------------------------

    def stir(self, topic: str, *, now_ns: int) -> None:
        """Schedule a comparison after something happened in a topic."""
        watch = self._watch(topic)
        watch.wait_ns = self._config.digest_ns
        due_ns = now_ns + watch.wait_ns
        if watch.compare_ns is None or watch.compare_ns > due_ns:
            watch.compare_ns = due_ns

    def update_gap_timer(self, topic: str, *, now_ns: int) -> None:
        """Start or stop the gap timer of a topic."""
        state, watch = self._causality.topics[topic], self._watch(topic)
        if state.state != IN or not (state.held or state.refused):
            watch.gap_ns = None
            watch.tries = 0
        elif watch.gap_ns is None:
            watch.gap_ns = now_ns + self._round_trips.timeout_ns
        self._requests.pursue(topic, now_ns)

    def leave(self, topic: str, items: Iterable[tuple[int, Item]] = (), *, now_ns: int) -> None:
        """Request nothing more of a topic, but keep sending for a while.

        `items` are events that were not delivered here, with their sources.
        """
        self.keep(topic, items, now_ns=now_ns)
        watch = self._watch(topic)
        watch.gap_ns = None
        watch.missing_ns.clear()
        self.retrieval.forget(topic)
        self._requests.forget(topic)
        watch.farewells = FAREWELLS
        self.stir(topic, now_ns=now_ns)

    def keep(self, topic: str, items: Iterable[tuple[int, Item]], *, now_ns: int) -> None:
        """Cache events that this node does not deliver, given with their sources, for peers.

        Their sources may have receipts of this node, and of no other.
        """
        state = self._causality.topic(topic)
        for source, item in items:
            state.keep(source, item.event.publisher_seq)
            key = (topic, source, item.event.publisher_seq)
            if self._cache.get(key) is None:
                self._cache.add(key, item, now_ns=now_ns)
                self._dirty.kept(*key, item)

    def progressed(self, topic: str) -> None:
        """Reset the backoff of a topic after a delivery."""
        watch = self._watches.get(topic)
        if watch is not None:
            watch.tries = 0

    def handle_timer(self, *, now_ns: int) -> None:
        """Send due comparisons and requests."""
        for topic, watch in self._watches.items():
            if watch.compare_ns is not None and watch.compare_ns <= now_ns:
                self._compare(topic)
                watch.wait_ns = min(2 * watch.wait_ns, self._config.digest_ns_max)
                watch.compare_ns = now_ns + watch.wait_ns
                self._part(topic, watch)
            if watch.gap_ns is not None and watch.gap_ns <= now_ns:
                watch.gap_ns = self._ask(topic, watch, now_ns)
        self._requests.handle_timer(now_ns)
        self.retrieval.handle_timer(now_ns=now_ns)
        self._lose(now_ns)

    def next_timer_ns(self) -> int | None:
        """Return when the next comparison or request is due."""
        dues = [self._requests.next_timer_ns(), self.retrieval.next_timer_ns()]
        for watch in self._watches.values():
            dues += (watch.compare_ns, watch.gap_ns)
        return min((due_ns for due_ns in dues if due_ns is not None), default=None)

    def back(self, peer: int, *, now_ns: int) -> None:
        """Compare all common topics with a node that was suspected."""
        self._requests.back(peer)
        for topic in self._watches:
            if self._membership.members(topic) >> peer & 1:
                self._send_summary(topic, peer)
                self.stir(topic, now_ns=now_ns)

    def _part(self, topic: str, watch: _Watch) -> None:
        """Stop comparing a topic that this node left and never published in."""
        state = self._causality.topic(topic)
        if state.state == OUT and not state.own:
            watch.farewells -= 1
            if watch.farewells <= 0:
                watch.compare_ns = None

    # -- Requests -------------------------------------------------------------------------------

    def _compare(self, topic: str) -> None:
        others = self._membership.members(topic) & self._cube.everyone & ~(1 << self._me)
        others &= ~self._detector.suspected
        for cluster, part in split(self._me, self._cube.dimensions, others):
            first = first_in_cluster(self._me, cluster, part)
            assert first is not None
            self._send_summary(topic, first)

    def _ask(self, topic: str, watch: _Watch, now_ns: int) -> int:
        """Ask one peer for what is missing, a different one each time; return when to go on."""
        asked: dict[tuple[str, int], Counts] = {}
        overdue_ns: list[int] = []
        missing = self._causality.missing(topic)
        self._lose_patience(watch, missing, now_ns)
        for (name, source), last in missing.items():
            due_ns = self._requests.due_ns(name, source, now_ns)
            if due_ns is not None:
                overdue_ns.append(due_ns)
            elif self._causality.takes(name, source) and (peers := self._helpers(name, source)):
                peer = peers[watch.tries % len(peers)]
                asked.setdefault((name, peer), {})[source] = last
        if overdue_ns and not asked:
            return min(*overdue_ns, now_ns + self._config.suspect_ns)
        for (name, peer), needed in asked.items():
            self._detector.ask(peer, now_ns)
            self._requests.ask(name, peer, needed, now_ns)
        watch.tries += 1
        return now_ns + self._pause_ns(watch)

    def _pause_ns(self, watch: _Watch) -> int:
        """Return how long to wait before the next peer is asked."""
        backoff = min(1 << min(watch.tries // 2, 8), BACKOFF_MAX)
        return backoff * self._round_trips.timeout_ns

    def _lose_patience(
        self, watch: _Watch, missing: dict[tuple[str, int], int], now_ns: int
    ) -> None:
        """Search all members for events whose source has been away too long."""
        known = watch.missing_ns
        watch.missing_ns = {each: min(known.get(each, now_ns), now_ns) for each in missing}
        # A source that was given up once is not waited for again until it is back.
        watch.missing_ns.update({each: ns for each, ns in known.items() if self._is_away(each[1])})
        for name, source in missing:
            since_ns = watch.missing_ns[name, source]
            self._detector.away(source, now_ns)
            if self._is_away(source) and now_ns - since_ns >= self._config.patience_ns:
                last = self._causality.first_needed(name, source)
                self.retrieval.begin(name, source, last, now_ns=now_ns, waited=True)

    def _is_away(self, node: int) -> bool:
        """Return whether a known node is suspected or gone."""
        return (
            node < len(self._cube.names)
            and not (self._cube.everyone & ~self._detector.suspected) >> node & 1
        )

    def _helpers(self, topic: str, source: int) -> list[int]:
        """List reachable peers that may have an event."""
        suspected = self._detector.suspected
        return [peer for peer in self._holders(topic, source) if not suspected >> peer & 1]

    def _holders(self, topic: str, source: int) -> list[int]:
        """List peers that may have an event: its source, then the members, nearest first."""
        others = self._membership.members(topic) | 1 << source
        others &= self._cube.everyone & ~(1 << self._me)
        return sorted(bits(others), key=lambda peer: (peer != source, peer ^ self._me))

    def _send_summary(self, topic: str, peer: int) -> None:
        state = self._causality.topic(topic)
        have = _reported(state)
        follows = state.state == IN
        if have or follows:
            self._send(peer, Summary(topic=topic, have=have, follows=follows))

    def _pursue(self, topic: str, now_ns: int) -> None:
        """Request what other peers have more of; look soon what is still missing."""
        self._requests.pursue(topic, now_ns)
        watch = self._watches.get(topic)
        if watch is not None and watch.gap_ns is not None:
            watch.gap_ns = min(watch.gap_ns, now_ns + self._pause_ns(watch))

    # -- Answers --------------------------------------------------------------------------------

    def summary(self, frame: Summary, peer: int, *, now_ns: int) -> None:
        """Send a peer the events it requests; request those that it has and this node lacks."""
        state = self._causality.topics.get(frame.topic) or TopicState(frame.topic)
        if frame.request:
            if frame.follows:
                self._give(state, frame, peer)
            return
        if state.state == IN:
            have = _reported(state)
            more = {
                source: count
                for source, count in frame.have.items()
                if have.get(source, 0) < count
                and source < len(self._cube.names)
                and source != self._me
            }
            if more:
                self._requests.offered(frame.topic, peer, more)
                self._requests.pursue(frame.topic, now_ns)
        # Not the events: other peers may be about to send them too.
        if frame.follows and self._has_more(state, frame.have, peer, now_ns):
            # `follows` is false, so that it is not answered in turn.
            self._send(peer, Summary(topic=frame.topic, have=_mine(state), follows=False))

    def filled(self, frame: Fill, peer: int, *, now_ns: int) -> None:
        """Record that events were taken in; request more of them."""
        self._requests.answered(frame, peer, now_ns)
        self._pursue(frame.topic, now_ns)

    def not_cached(self, frame: NotCached, peer: int, *, now_ns: int) -> None:
        """Record that a peer lacks a missing event, and search for another peer."""
        state = self._causality.topics.get(frame.topic)
        if state is None or state.state != IN or state.have(frame.source) >= frame.up_to > 0:
            return
        if frame.source >= len(self._cube.names):
            return  # No node has this number yet, so it has published nothing.
        self.retrieval.begin(frame.topic, frame.source, frame.up_to, now_ns=now_ns)
        self.retrieval.not_cached(frame.topic, frame.source, peer, frame.up_to)
        self.retrieval.handle_timer(now_ns=now_ns)
        self._lose(now_ns)

    def proofs(self, frame: Summary) -> tuple[Item, ...]:
        """Return the sealed events that a server asks for, as far as they are here."""
        state = self._causality.topics.get(frame.topic)
        if state is None:
            return ()
        found = [
            self._find(state, source, frame.have.get(source, 0) + 1)
            for source in dict.fromkeys(frame.only)
        ]
        return tuple([each.item for each in found if each is not None and each.item.proof])

    def _lose(self, now_ns: int) -> None:
        """Report events whose search failed; one source of a topic at a time."""
        for topic, source, last in self.retrieval.all_in_vain(now_ns=now_ns):
            state = self._causality.topic(topic)
            first = state.delivered.get(source, 0) + 1
            # Events of the same source that are here come first, and may wait for another loss.
            if first > state.have(source):
                self.lost.setdefault(topic, Loss(source, first, last))

    def _has_more(self, state: TopicState, have: Counts, peer: int, now_ns: int) -> bool:
        """Return whether a peer lacks events that the tree is not likely to bring."""
        for source, last in _mine(state).items():
            first = have.get(source, 0) + 1
            if source != peer and first <= last:
                found = self._find(state, source, first)
                if found is None or not 0 <= now_ns - found.since_ns < self._config.digest_ns:
                    return True
        return False

    def _give(self, state: TopicState, frame: Summary, peer: int) -> None:
        """Answer a request with events, in the order in which they came here.

        So the peer need not hold back those that follow other events of this answer.
        """
        mine = _mine(state)
        following: list[tuple[int, int, int, Item]] = []
        for source in dict.fromkeys(frame.only):
            first, last = frame.have.get(source, 0) + 1, mine.get(source, 0)
            found = self._find(state, source, first) if source != peer and first <= last else None
            if found is not None:
                following.append((found.place, source, first, found.item))
            elif state.state != JOINING and source != peer:  # Joining, it may still come.
                if first <= last:
                    self._send_not_cached(state, source, first, last, peer)
                elif len(frame.only) == 1:
                    self._send(peer, NotCached(topic=state.name, source=source, up_to=0))
        heapify(following)
        count_max = min(frame.room, self._config.batch_max)
        items: list[Item] = []
        size = 0
        while following and len(items) < count_max:
            _, source, number, item = following[0]
            size += item_bytes(item)
            if items and size > self._config.batch_bytes_max:
                break
            items.append(item)
            found = self._find(state, source, number + 1) if number < mine[source] else None
            if found is None:
                heappop(following)
            else:
                heapreplace(following, (found.place, source, number + 1, found.item))
        fill = Fill(
            topic=frame.topic, request=frame.request, items=tuple(items), more=bool(following)
        )
        self._send(peer, fill)

    def _send_not_cached(
        self, state: TopicState, source: int, number: int, last: int, peer: int
    ) -> None:
        stop = min(last, number + GONE_LOOKED_AT_MAX)
        while number < stop and self._find(state, source, number + 1) is None:
            number += 1
        self._send(peer, NotCached(topic=state.name, source=source, up_to=number))

    def _find(self, state: TopicState, source: int, number: int) -> Cached | None:
        held = state.held.get((source, number))
        if held is not None:
            return Cached(held, state.since_ns[source, number], HELD)
        return self._cache.get((state.name, source, number))

    def _watch(self, topic: str) -> _Watch:
        watch = self._watches.get(topic)
        if watch is None:
            watch = self._watches[topic] = _Watch()
        return watch


def _reported(state: TopicState) -> Counts:
    """Return the progress in a topic; of sources in doubt, the last events kept for peers."""
    counts = state.haves()
    raise_counts(counts, {each: n for each, n in state.keeps().items() if state.doubt >> each & 1})
    return counts


def _mine(state: TopicState) -> Counts:
    """Return up to where peers may get events here: those kept, and, while joining, held ones."""
    counts = state.haves()
    raise_counts(counts, state.keeps())
    for source, number in state.held if state.state == JOINING else ():
        counts[source] = max(number, counts.get(source, 0))
    return counts
