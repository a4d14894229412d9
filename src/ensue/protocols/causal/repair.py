"""Find what is missing and get it from whoever has it.

The trees bring an event to all members that its source can reach. Everything else is found here:

- **Gaps.** Events are numbered per source and topic, and barriers name others. A node that holds
  something back asks, after `gap_ns`, the source of what is missing; then, one after the other, the
  members of the topic.
- **Ends.** What nobody announces is found by comparing: some time after something happened in a topic
  its members tell the first member of each of their clusters how far they are. Those
  edges connect all members, so whatever one of them has, all of them get. A source that
  is no member tells how many events it has published, and one that left tells, for a while, what it has
  seen: it may be the only one.
- **Returns.** Whoever is heard again after a suspicion is told at once.

Whoever hears of somebody who lacks something it keeps sends it. If it does not keep it any more it says
so; a member that hears this looks for somebody who does, and gives it up if there is nobody. So does one that waits, for
longer than `patience_ns`, for something whose source is away: see `hunting` and `forsaking`.
"""

from collections.abc import Callable

from ensue.protocols.core import Frame
from ensue.protocols.hypercube.causality import IN, JOINING, OUT, Causality, TopicState
from ensue.protocols.hypercube.config import HypercubeConfig
from ensue.protocols.hypercube.cube import Cube, bits, first_in_cluster, split
from ensue.protocols.hypercube.forsaking import Lost
from ensue.protocols.hypercube.frames import Counts, Fill, Gone, Here, Item, Summary, item_bytes
from ensue.protocols.hypercube.hunting import BACKOFF_MAX, Hunts
from ensue.protocols.hypercube.rolls import Rolls
from ensue.protocols.hypercube.store import Store
from ensue.protocols.hypercube.suspects import Suspects

__all__ = ["Repair"]

FAREWELLS = 8
"""So often a node that left a topic still tells the members what it has seen."""
GONE_LOOKED_AT_MAX = 65_536
"""So many numbers are looked at to find how far what is asked for is gone, whatever others say there is."""


class _Watch:
    """What is due in one topic."""

    __slots__ = ("compare_ns", "farewells", "gap_ns", "missing_ns", "tries", "wait_ns")

    def __init__(self) -> None:
        self.compare_ns: int | None = None
        self.wait_ns = 0
        self.farewells = 0
        """How often this node, who left, has still to tell what it has seen."""
        self.gap_ns: int | None = None
        self.tries = 0
        self.missing_ns: dict[tuple[str, int], int] = {}
        """By topic and source: since when something of it is missing, or its source is away."""


class Repair:
    """What one node asks and answers about missing events."""

    def __init__(
        self,
        me: int,
        cube: Cube,
        config: HypercubeConfig,
        causality: Causality,
        rolls: Rolls,
        suspects: Suspects,
        store: Store,
        send: Callable[[int, Frame], None],
    ) -> None:
        self._me = me
        self._cube = cube
        self._config = config
        self._causality = causality
        self._rolls = rolls
        self._suspects = suspects
        self._store = store
        self._send = send
        self._watches: dict[str, _Watch] = {}
        self.hunts = Hunts(
            config,
            causality,
            suspects,
            helpers=self._keepers,
            ask=lambda topic, peer, source: self._tell(topic, peer, urgent=True, only=(source,)),
        )
        self.lost: dict[str, Lost] = {}
        """By topic: what can't be had any more, to be taken by whoever gives it up."""

    # -- When to look ---------------------------------------------------------------------------

    def stir(self, topic: str, *, now_ns: int) -> None:
        """Note that something happened in a topic, so that it is compared before long."""
        watch = self._watch(topic)
        watch.wait_ns = self._config.digest_ns
        due_ns = now_ns + watch.wait_ns
        if watch.compare_ns is None or watch.compare_ns > due_ns:
            watch.compare_ns = due_ns

    def look(self, topic: str, *, now_ns: int) -> None:
        """Start or stop to wait for what is missing in a topic."""
        state, watch = self._causality.topics[topic], self._watch(topic)
        if state.state != IN or not (state.held or state.refused):
            watch.gap_ns = None
            watch.tries = 0
        elif watch.gap_ns is None:
            watch.gap_ns = now_ns + self._config.gap_ns

    def leave(self, topic: str, *, now_ns: int) -> None:
        """Want nothing more of a topic, but give for a while."""
        watch = self._watch(topic)
        watch.gap_ns = None
        watch.missing_ns.clear()
        self.hunts.forget(topic)
        watch.farewells = FAREWELLS
        self.stir(topic, now_ns=now_ns)

    def progressed(self, topic: str) -> None:
        """Note that something was delivered: help has come."""
        watch = self._watches.get(topic)
        if watch is not None:
            watch.tries = 0

    def handle_timer(self, *, now_ns: int) -> None:
        """Compare and ask where it is time."""
        for topic, watch in self._watches.items():
            if watch.compare_ns is not None and watch.compare_ns <= now_ns:
                self._compare(topic)
                watch.wait_ns = min(2 * watch.wait_ns, self._config.digest_ns_max)
                watch.compare_ns = now_ns + watch.wait_ns
                self._part(topic, watch)
            if watch.gap_ns is not None and watch.gap_ns <= now_ns:
                self._ask(topic, watch, now_ns)
                backoff = min(1 << min(watch.tries // 2, 8), BACKOFF_MAX)
                watch.gap_ns = now_ns + backoff * self._config.gap_ns
        self.hunts.handle_timer(now_ns=now_ns)
        self._lose(now_ns)

    def next_timer_ns(self) -> int | None:
        """Return when to compare or to ask next."""
        dues: list[int] = []
        for watch in self._watches.values():
            if watch.compare_ns is not None:
                dues.append(watch.compare_ns)
            if watch.gap_ns is not None:
                dues.append(watch.gap_ns)
        if (hunt_ns := self.hunts.next_timer_ns()) is not None:
            dues.append(hunt_ns)
        return min(dues, default=None)

    def back(self, peer: int, *, now_ns: int) -> None:
        """Compare all that a node that is heard again has to do with."""
        for topic in self._watches:
            if self._rolls.members(topic) >> peer & 1:
                self._tell(topic, peer)
                self.stir(topic, now_ns=now_ns)

    def _part(self, topic: str, watch: _Watch) -> None:
        """Have done with a topic that this node left, and never published in, after a while."""
        state = self._causality.topic(topic)
        if state.state == OUT and not state.own:
            watch.farewells -= 1
            if watch.farewells <= 0:
                watch.compare_ns = None

    # -- Asking ---------------------------------------------------------------------------------

    def ask(self, topic: str, peer: int) -> None:
        """Ask a peer for all that is missing here."""
        self._tell(topic, peer, urgent=True)

    def _compare(self, topic: str) -> None:
        others = self._rolls.members(topic) & self._cube.everyone & ~(1 << self._me)
        others &= ~self._suspects.suspected
        for cluster, part in split(self._me, self._cube.dimensions, others):
            first = first_in_cluster(self._me, cluster, part)
            assert first is not None
            self._tell(topic, first)

    def _ask(self, topic: str, watch: _Watch, now_ns: int) -> None:
        """Ask one peer for what is missing; another one each time."""
        asked: dict[tuple[str, int], list[int]] = {}
        missing = self._causality.missing(topic)
        self._lose_patience(watch, missing, now_ns)
        for name, source in missing:
            peers = self._helpers(name, source)
            if not peers:
                continue
            asked.setdefault((name, peers[watch.tries % len(peers)]), []).append(source)
        for (name, peer), sources in asked.items():
            self._suspects.ask(peer, now_ns)
            self._tell(name, peer, urgent=True, only=tuple(sources))
        watch.tries += 1

    def _lose_patience(
        self, watch: _Watch, missing: dict[tuple[str, int], int], now_ns: int
    ) -> None:
        """Look everywhere for what is needed if its source has been away for too long, to give it up."""
        known = watch.missing_ns
        watch.missing_ns = {each: min(known.get(each, now_ns), now_ns) for each in missing}
        # Whoever was given up once is not waited for again until it is back.
        watch.missing_ns.update({each: ns for each, ns in known.items() if self._is_away(each[1])})
        for name, source in missing:
            since_ns = watch.missing_ns[name, source]
            self._suspects.away(source, now_ns)
            if self._is_away(source) and now_ns - since_ns >= self._config.patience_ns:
                last = self._causality.first_needed(name, source)
                self.hunts.begin(name, source, last, now_ns=now_ns, waited=True)

    def _is_away(self, node: int) -> bool:
        """Tell whether a node is suspected, or gone for good; of one that is not known yet nobody can say that."""
        return (
            node < len(self._cube.names)
            and not (self._cube.everyone & ~self._suspects.suspected) >> node & 1
        )

    def _helpers(self, topic: str, source: int) -> list[int]:
        """List who can be reached and may have an event."""
        suspected = self._suspects.suspected
        return [peer for peer in self._keepers(topic, source) if not suspected >> peer & 1]

    def _keepers(self, topic: str, source: int) -> list[int]:
        """List who may have an event: its source, then the members of the topic, the nearest first."""
        others = self._rolls.members(topic) | 1 << source
        others &= self._cube.everyone & ~(1 << self._me)
        return sorted(bits(others), key=lambda peer: (peer != source, peer ^ self._me))

    def _tell(
        self, topic: str, peer: int, *, urgent: bool = False, only: tuple[int, ...] = ()
    ) -> None:
        state = self._causality.topic(topic)
        have = state.haves()
        follows = state.state == IN
        if not have and not follows:
            return
        summary = Summary(topic=topic, have=have, follows=follows, urgent=urgent, only=only)
        self._send(peer, summary)

    # -- Answering ------------------------------------------------------------------------------

    def summary(self, frame: Summary, peer: int, *, now_ns: int) -> None:
        """Give a peer what it lacks; ask in return for what it has more of."""
        state = self._causality.topics.get(frame.topic) or TopicState(frame.topic)
        given = frame.follows and self._give(state, frame, peer, now_ns)
        asked = frame.only[0] if len(frame.only) == 1 else None
        lacks_it = asked is not None and state.have(asked) <= frame.have.get(asked, 0)
        if lacks_it and state.state != JOINING:
            self._send(peer, Gone(topic=frame.topic, source=frame.only[0], up_to=0))
        elif frame.urgent and not given:  # Nor has who is joining yet counted what it holds.
            self._send(peer, Here())  # Whoever asks wants to know that somebody is there.
        if state.state == IN and not frame.urgent:
            lacks = any(state.have(source) < count for source, count in frame.have.items())
            if lacks:
                self._tell(frame.topic, peer, urgent=True)

    def gone(self, frame: Gone, peer: int, *, now_ns: int) -> None:
        """Hear that a peer can't give what is missing here, and look for somebody who can."""
        state = self._causality.topics.get(frame.topic)
        if state is None or state.state != IN or state.have(frame.source) >= frame.up_to > 0:
            return
        if frame.source >= len(self._cube.names):
            return  # Who comes to bear that number has published nothing yet.
        self.hunts.begin(frame.topic, frame.source, frame.up_to, now_ns=now_ns)
        self.hunts.said(frame.topic, frame.source, peer, frame.up_to)
        self.hunts.handle_timer(now_ns=now_ns)
        self._lose(now_ns)

    def _lose(self, now_ns: int) -> None:
        """Lose what was looked for in vain; one source of a topic at a time."""
        for topic, source, last in self.hunts.all_in_vain(now_ns=now_ns):
            state = self._causality.topic(topic)
            first = state.delivered.get(source, 0) + 1
            # What is here of the same source comes first, and may wait for what another one lost.
            if first > state.have(source):
                self.lost.setdefault(topic, Lost(source, first, last))

    def _give(self, state: TopicState, frame: Summary, peer: int, now_ns: int) -> bool:
        mine = _mine(state)
        items: list[Item] = []
        size = 0
        more = False
        for source, last in mine.items():
            first = frame.have.get(source, 0) + 1
            if source == peer or last < first or (frame.only and source not in frame.only):
                continue
            for number in range(first, last + 1):
                if len(items) >= self._config.batch_max or size >= self._config.batch_bytes_max:
                    more = True
                    break
                found = self._find(state, source, number)
                if found is None:
                    if number == first:
                        self._say_gone(state, source, number, last, peer)
                    break
                item, since_ns = found
                if not frame.urgent and 0 <= now_ns - since_ns < self._config.digest_ns:
                    break  # It is likely on its way.
                size += item_bytes(item)
                if items and size > self._config.batch_bytes_max:
                    more = True
                    break
                items.append(item)
        if items:
            self._send(peer, Fill(topic=state.name, items=tuple(items), more=more))
        return bool(items)

    def _say_gone(self, state: TopicState, source: int, number: int, last: int, peer: int) -> None:
        if state.state == JOINING:
            return  # It may come yet.
        stop = min(last, number + GONE_LOOKED_AT_MAX)
        while number < stop and self._find(state, source, number + 1) is None:
            number += 1
        self._send(peer, Gone(topic=state.name, source=source, up_to=number))

    def _find(self, state: TopicState, source: int, number: int) -> tuple[Item, int] | None:
        held = state.held.get((source, number))
        if held is not None:
            return held, state.since_ns[source, number]
        return self._store.get((state.name, source, number))

    def _watch(self, topic: str) -> _Watch:
        watch = self._watches.get(topic)
        if watch is None:
            watch = self._watches[topic] = _Watch()
        return watch


def _mine(state: TopicState) -> Counts:
    """Return how far a node is, or the last that it holds while it is joining: nothing is counted until it has started."""
    counts = state.haves()
    for source, number in state.held if state.state == JOINING else ():
        counts[source] = max(number, counts.get(source, 0))
    return counts
