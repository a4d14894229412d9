"""What may be delivered when: barriers, start vectors, and how far one node is in each topic.

`delivered` says, per topic and source, up to which number everything is delivered or was before this
node's time. An event is delivered when it is the next of its source and `delivered` covers its barrier.
A barrier names direct predecessors only: whoever delivers an event takes its barrier out of its own and
puts the event in.

**Start vectors.** A joiner starts from the greatest of what all others have delivered or published
themselves, and skips what that covers. Every such vector is closed under causes, and so is their
maximum: nothing that is skipped comes after something that is not. (The paper takes the first number
it happens to receive, which neither says what will never come nor is closed: errata 4 and 5.) Only what this
node has delivered itself counts as known to it: what it skipped stays in the barriers it passes on.

**Across topics** a barrier has a part for each topic: the latest events of that topic in the past of
the event, none of which comes before another. A receiver looks at the parts of topics that it is in, and
waits while it is joining one. It passes on the others, as it can't tell which of them are outdated beyond
the numbers of one source. That is why a barrier grows with the topics that a node has heard of.

**Giving up.** An event may depend on another one that is gone with all who had it. Whoever is in that topic would wait for
ever. After some patience the event is skipped, by its number (`forsaking`), and who is away then is in doubt: none of its
events is taken until it is back and has said how many to skip. That may cost events of sources that were wrongly taken for
gone, never order.

The past of an event is closed only if its source is in the topic. So across topics a node that has
delivered anything publishes on a topic only while it is in it, if need be without telling its
application of the events there (`node`).
"""

from collections.abc import Iterator

from ensue.protocols.hypercube.frames import Counts, Item
from ensue.protocols.hypercube.trees import raise_counts

__all__ = ["IN", "JOINING", "OUT", "Causality", "TopicState"]

OUT, JOINING, IN = "out", "joining", "in"


class TopicState:
    """One topic at one node."""

    __slots__ = (
        "barrier",
        "delivered",
        "doubt",
        "held",
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
        """How many events this node has published here."""
        self.delivered: Counts = {}
        """Never cleared: it says what a later join need not ask for."""
        self.start: Counts = {}
        """What was skipped on joining."""
        self.barrier: Counts = {}
        """The direct predecessors, in this topic, of whatever this node publishes next."""
        self.doubt = 0
        """Sources, as a set, whose events are not taken for now."""
        self.received: Counts = {}
        """Up to which number everything is here, delivered or not, where it is beyond `delivered`."""
        self.refused: Counts = {}
        """The last that came of a source and for which there was no room, where it is beyond what is here."""
        self.held: dict[tuple[int, int], Item] = {}
        """By source and number: what waits."""
        self.since_ns: dict[tuple[int, int], int] = {}
        """When it came."""

    def have(self, source: int) -> int:
        """Return up to which number everything of a source is here."""
        return max(self.received.get(source, 0), self.delivered.get(source, 0))

    def haves(self) -> Counts:
        """Return the same of all sources."""
        counts = dict(self.delivered)
        raise_counts(counts, self.received)
        return counts


class Causality:
    """All topics of one node."""

    def __init__(self, me: int, *, across: bool, held_max: int) -> None:
        self.me = me
        self._across = across
        self._held_max = held_max
        self.topics: dict[str, TopicState] = {}
        self._blocked: dict[tuple[str, int], list[tuple[str, int]]] = {}
        """By topic and source that is not far enough: the topic and source of what waits for it."""
        self._look: list[tuple[str, int]] = []
        """Topics and sources whose next event may have become deliverable."""
        self.dropped: list[tuple[str, int, int]] = []
        """Topic, source and number of what was held in vain, to be taken by whoever keeps records."""
        self.changed: dict[str, None] = {}
        """Topics in which something came, was delivered or dropped, to be taken by whoever looks."""
        self.has_foreign_past = False
        """Whether anything of others comes before what this node publishes next."""

    def topic(self, name: str) -> TopicState:
        """Return a topic, new if nothing is known of it."""
        state = self.topics.get(name)
        if state is None:
            state = self.topics[name] = TopicState(name)
        return state

    def publish(self, topic: str) -> dict[str, Counts]:
        """Make this node's next event of a topic part of its past; return the barrier to send."""
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
        """Take an event in; False if it is of no use: known, or nobody here is in its topic."""
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
            # It will be asked for, and missed if nobody has it then: its source may take it for received.
            state.refused[source] = max(number, state.refused.get(source, 0))
            return False
        state.held[key] = item
        state.since_ns[key] = now_ns
        self.changed[state.name] = None
        if state.state == IN:
            self._count(state, source)
            self._look.append((event.topic, source))
        return True

    def is_full(self, topic: str) -> bool:
        """Tell whether there is no room in a topic but for what can be delivered next."""
        state = self.topics.get(topic)
        return state is not None and len(state.held) >= self._held_max

    def ready(self) -> Iterator[tuple[Item, int, int]]:
        """Yield what can be delivered, in order: the event, its source, and since when it was here."""
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
        """Begin to join a topic: from now on what comes is held."""
        state = self.topic(topic)
        state.state = JOINING
        self._forget_held(state)

    def uncovered(self, topic: str, vector: Counts) -> Counts:
        """Return what a node that starts from a vector would be given too late: its effects were delivered."""
        state = self.topic(topic)
        return {
            source: count
            for source, count in state.barrier.items()
            if max(vector.get(source, 0), state.delivered.get(source, 0)) < count
        }

    def joined(self, topic: str, vector: Counts, doubt: int = 0) -> list[Item]:
        """Start from a vector; return what was held in vain because it is covered."""
        state = self.topic(topic)
        state.state = IN
        state.doubt = doubt
        items = self.skip(topic, vector)
        state.start = dict(state.delivered)
        return items

    def skip(self, topic: str, vector: Counts) -> list[Item]:
        """Take what a vector covers for delivered; return what was held of it in vain."""
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
                items.append(state.held.pop((source, number)))
                del state.since_ns[source, number]
                self.dropped.append((topic, source, number))
            else:
                self._count(state, source)
        self._look_everywhere()
        return items

    def leave(self, topic: str) -> None:
        """Leave a topic; what is known of it stays known."""
        state = self.topic(topic)
        state.state = OUT
        self._forget_held(state)
        self._look_everywhere()

    def missing(self, topic: str) -> dict[tuple[str, int], int]:
        """Say what keeps the events of a topic waiting: up to which number, by topic and source."""
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

    def first_needed(self, topic: str, source: int) -> int:
        """Return the first event of a source that is not here and that anything held needs; 0 if there is none."""
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
        """Return a topic and source that must be further before an event is delivered."""
        for name, counts in item.after.items():
            state = self.topics.get(name)
            if state is None or state.state == OUT:
                continue
            if state.state == JOINING:
                return (name, -1)
            delivered = state.delivered
            for source, count in counts.items():
                if delivered.get(source, 0) < count:
                    return (name, source)
        return None

    def _learn(self, state: TopicState, item: Item, source: int) -> None:
        """Make a delivered event a direct predecessor of what this node publishes next."""
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
        """Keep what an event of another topic says of this one, unless this node saw it itself."""
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
        """Count on over what is held of a source with nothing missing."""
        number = state.have(source)
        while (source, number + 1) in state.held:
            number += 1
        if number > state.delivered.get(source, 0):
            state.received[source] = number
        if state.refused.get(source, 0) <= number:
            state.refused.pop(source, None)

    def _look_everywhere(self) -> None:
        """Look at all that waits, since a topic was joined or left."""
        self._blocked.clear()
        self._look = [
            (name, source)
            for name, state in self.topics.items()
            if state.state == IN
            for source in sorted({source for source, _ in state.held})
        ]
