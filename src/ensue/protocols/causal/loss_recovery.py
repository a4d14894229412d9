"""Loss recovery: skip an event that no peer has, without breaking order.

An event may be lost with all nodes that had it (its source is away, and no reachable node has had
it for `patience_ns`), or no node may still have it cached (`NotCached`), while its effects, or
later events of its source, are held. When all reachable nodes have answered that they do not have
it (`retrieval`), it is skipped by its number: that is all that is known of it.

Its causal past is not known. An event x that precedes it, delivered after one of its effects,
would come too late. So before an event is skipped, all nodes are asked for their progress, as for
a join (`Change`). Everything published before the lost event is then either covered by the vector
of answers, or of a node that is away.

- What the vector covers is delivered first, if it can be had: it is searched and waited for. Held
  events that come after the lost one are exempt: they cannot precede it. If something is still
  missing that no peer has, or nothing came for `patience_ns`, all that the vector covers is
  skipped.
- Held events that wait for another topic are delivered or skipped there first. That topic may need
  its own `patience_ns` to find out that an event is lost, so this one waits twice as long: until
  nothing came, and nothing changed in what is waited for elsewhere. If the other topic waits for
  this loss in turn, one of the two has to skip what waits for the other.
- A node that is away is *in doubt*: none of its events is taken until it is back and has reported
  how many to skip. The source of the lost event, and sources of its held effects, are not in doubt:
  what they publish from there on comes after it.

A node may be unknown here that published before the lost event, if membership travels another way
than events. So nothing is given up before `all_publishers_known` returns true for the events in
question: all nodes that published before them are known by then.

So order holds, whichever node returns. The cost is the lost event; events of several sources
where lost events may precede each other, as when a node was away longer than events of two
sources are cached; and events of a falsely suspected source. The application is notified of
all skipped numbers, at once and when nodes in doubt return (`Join.missed`).

One loss at a time in each topic, of one source, and no further than the first event that anything
held needs: its effects come before those of later ones.
"""

from collections.abc import Callable

from ensue.protocols.causal.causality import IN, TopicState
from ensue.protocols.causal.frames import Counts, Item
from ensue.protocols.causal.hypercube import bits
from ensue.protocols.causal.node_state import NodeState
from ensue.protocols.causal.retrieval import Retrieval
from ensue.protocols.causal.trees import Relay

__all__ = ["Loss", "LossRecovery"]


_Places = frozenset[tuple[str, int]]
"""Topics and sources whose next event is not here."""


class Loss:
    """Events of one source and topic that no peer has."""

    __slots__ = (
        "check_ns", "doubt", "first", "last", "relay", "seen", "since_ns", "source", "vector",
    )  # fmt: skip

    def __init__(self, source: int, first: int, last: int) -> None:
        self.source = source
        self.first = first
        self.last = last
        self.relay: Relay | None = None
        """The question to all nodes."""
        self.vector: Counts | None = None
        """Their progress, once all reachable nodes have answered."""
        self.doubt = 0
        self.check_ns = 0
        self.since_ns = 0
        """Since when there was no progress towards what the vector covers."""
        self.seen: tuple[int, _Places] = (0, frozenset())
        """How much of it was delivered at the last check, and what else waited for elsewhere."""


class LossRecovery:
    """The losses of one node, one per topic."""

    def __init__(
        self,
        state: NodeState,
        retrieval: Retrieval,
        all_publishers_known: Callable[[str, Counts, int], bool],
    ) -> None:
        self._cube = state.cube
        self._config = state.config
        self._causality = state.causality
        self._retrieval = retrieval
        self._all_publishers_known = all_publishers_known
        self._losses: dict[str, Loss] = {}
        self.doubted: dict[str, int] = {}
        """By topic: the first copy (`Relay.begun`) that is newer than the doubts there."""

    def start(
        self, topic: str, vector: Counts, relay: Relay, *, patient: bool, now_ns: int
    ) -> tuple[Counts, int] | None:
        """Return the start vector and the nodes in doubt; None to wait for a node.

        Starting without that node could deliver an event after its effect.
        """
        away = relay.away | self._cube.gone
        # Including doubts of an earlier membership: events delivered then may follow theirs.
        doubt = (relay.doubts.get(topic, 0) | self._causality.topic(topic).doubt) & away
        uncovered = self._causality.uncovered(topic, vector)
        if not uncovered:
            return vector, doubt
        reachable = any(not away >> source & 1 for source in uncovered)
        if reachable or patient or not self._all_publishers_known(topic, uncovered, now_ns):
            return None
        # Nodes that became known after the question was sent were not asked.
        doubt = away | self._cube.everyone & ~(relay.targets | 1 << self._causality.me)
        if len(uncovered) == 1:
            # What the source itself published later comes after what is skipped, not before.
            (source,) = uncovered
            doubt &= ~(1 << source)
        return {**vector, **uncovered}, doubt

    def begin(self, topic: str, loss: Loss, *, now_ns: int) -> bool:
        """Begin to recover a loss, which needs a question; False if it is too early."""
        state = self._causality.topic(topic)
        if state.state != IN or topic in self._losses or state.have(loss.source) >= loss.first:
            return False
        if not self._all_publishers_known(topic, {loss.source: loss.last}, now_ns):
            return False
        self._losses[topic] = loss
        return True

    def asked(self, topic: str, relay: Relay) -> None:
        """Record the question that was sent to all nodes."""
        self._losses[topic].relay = relay

    def answered(self, topic: str, relay: Relay, *, now_ns: int) -> bool:
        """Record the progress of all nodes; False if this question was not for a loss."""
        loss = self._losses.get(topic)
        if loss is None or loss.relay is not relay:
            return False
        vector = dict(relay.vectors.get(topic, {}))
        away = relay.away | self._cube.gone
        loss.doubt = relay.doubts.get(topic, 0) & away
        if vector.get(loss.source, 0) < loss.last:
            there = self._cube.everyone & ~relay.away
            if there >> loss.source & 1:
                # The source is back, and has not published that many.
                del self._losses[topic]
                self._retrieval.end(topic, loss.source)
                return True
            loss.doubt = away
        loss.vector = vector
        loss.check_ns = now_ns
        loss.since_ns = now_ns
        return True

    def forget(self, topic: str) -> None:
        """Drop the loss of a topic that was left."""
        self._losses.pop(topic, None)

    def resolve(
        self, topic: str, vector: Counts, relay: Relay
    ) -> tuple[list[tuple[int, Item]], list[tuple[int, int]]] | None:
        """Skip events of doubted nodes that are back; return dropped and missed ones.

        None if no doubted node is back. An answer to a question older than the doubt does not
        count: the node may have published since.
        """
        state = self._causality.topic(topic)
        back = list(bits(state.doubt & relay.covered))
        if not back or relay.begun < self.doubted.get(topic, 0):
            return None
        state.doubt &= ~relay.covered
        missed = [(state.delivered.get(each, 0) + 1, vector.get(each, 0)) for each in back]
        skipped = self._causality.skip(topic, {each: vector.get(each, 0) for each in back})
        return skipped, [(first, last) for first, last in missed if first <= last]

    def next_timer_ns(self) -> int | None:
        """Return when to check again."""
        return min(
            (loss.check_ns for loss in self._losses.values() if loss.vector is not None),
            default=None,
        )

    def wait(self, *, now_ns: int) -> None:
        """Extend all waits while deliveries are paused."""
        for loss in self._losses.values():
            loss.since_ns = now_ns
            loss.check_ns = now_ns + self._config.gap_ns

    def take(
        self, *, now_ns: int
    ) -> tuple[str, list[tuple[int, Item]], list[tuple[int, int]]] | None:
        """Skip a due loss; return its topic, dropped events with their sources, and missed ranges.

        Only one: what waited for it has to be delivered before the next one is checked.
        """
        for topic, loss in list(self._losses.items()):
            vector = loss.vector
            if vector is None or loss.check_ns > now_ns:
                continue
            loss.check_ns = now_ns + self._config.gap_ns
            state = self._causality.topic(topic)
            last = self._retrieval.in_vain(topic, loss.source, now_ns=now_ns)
            if state.have(loss.source) >= loss.first or not last:
                del self._losses[topic]  # It arrived, or a peer is back that may have it.
                continue
            loss.last = min(loss.last, last)
            missing = _missing(state, loss, vector)
            stuck = missing and self._is_stuck(state, loss, missing, now_ns)
            if missing and not stuck:
                continue
            del self._losses[topic]
            effects = _effects(state, loss.source, loss.last)
            if not stuck:
                vector = {
                    each: min(count, effects.get(each, count + 1) - 1)
                    for each, count in vector.items()
                }
                vector[loss.source] = loss.last
            vector[loss.source] = max(loss.last, vector.get(loss.source, 0))
            state.doubt |= loss.doubt & ~sum(1 << each for each in effects)
            missed = [
                (state.delivered.get(each, 0) + 1, count)
                for each, count in vector.items()
                if state.delivered.get(each, 0) < count
            ]
            return topic, self._causality.skip(topic, vector), missed
        return None

    def _is_stuck(self, state: TopicState, loss: Loss, missing: Counts, now_ns: int) -> bool:
        """Search for what may precede a loss; return whether nothing more of it can come."""
        assert loss.vector is not None
        elsewhere = self._elsewhere(state, missing)
        delivered = sum(min(state.delivered.get(each, 0), one) for each, one in loss.vector.items())
        if (delivered, elsewhere) != loss.seen:
            loss.seen, loss.since_ns = (delivered, elsewhere), now_ns
        loss.since_ns = min(loss.since_ns, now_ns)
        patience_ns = self._config.patience_ns
        if elsewhere and not self._is_circular(state.name):
            patience_ns *= 2
        if now_ns - loss.since_ns >= patience_ns:
            return True
        for source, count in missing.items():
            self._retrieval.begin(state.name, source, count, now_ns=now_ns)
        return not elsewhere and all(
            # Held events are here, and wait for others.
            (each, state.delivered.get(each, 0) + 1) in state.held
            or self._retrieval.in_vain(state.name, each, now_ns=now_ns)
            for each in missing
        )

    def _elsewhere(self, state: TopicState, missing: Counts) -> _Places:
        """Return what undelivered events wait for in other topics."""
        awaited = self._causality.awaited(state.name, missing)
        return frozenset(place for place in awaited if place[0] != state.name)

    def _is_circular(self, topic: str) -> bool:
        """Return whether a loss waits for another topic that waits for it."""
        seen: set[str] = set()
        pending = [topic]
        while pending:
            name = pending.pop()
            loss = self._losses.get(name)
            if loss is None or loss.vector is None:
                continue
            state = self._causality.topic(name)
            places = self._elsewhere(state, _missing(state, loss, loss.vector))
            others = {other for other, _ in places}
            if topic in others:
                return True
            pending += others - seen
            seen |= others
        return False


def _missing(state: TopicState, loss: Loss, vector: Counts) -> Counts:
    """Return undelivered events that may precede a loss: last number by source."""
    behind = _effects(state, loss.source, loss.first)
    needed = {
        each: min(count, behind.get(each, count + 1) - 1)
        for each, count in vector.items()
        if each != loss.source and not loss.doubt >> each & 1
    }
    return {each: one for each, one in needed.items() if state.delivered.get(each, 0) < one}


def _effects(state: TopicState, source: int, number: int) -> Counts:
    """Return, by source, from which number on held events come after an event."""
    first = {source: number}
    pending = dict(state.held)
    found = True
    while found:
        found = False
        for (other, count), item in list(pending.items()):
            needs = item.after.get(state.name, {})
            if any(each in first and first[each] <= one for each, one in needs.items()):
                first[other] = min(count, first.get(other, count))
            elif not (other in first and first[other] <= count):
                continue
            del pending[other, count]
            found = True
    return first
