"""Give up an event that others wait for and nobody can give, so that nobody waits for ever.

An event may be gone with all who had it (its source is away, and nobody who can be reached has had it for `patience_ns`), or be kept by
nobody any more (`Gone`), while effects of it, or later events of its source, are held. When everybody who can be reached has said that it can't
give it (`hunting`) it is skipped, by its number: all that is known of it.

What is not known is its past. An event x that came before it, delivered after one of its effects, would come too late. So before an event is
skipped everybody is asked how far they are (as for a join: `Change`). Whatever was published before the lost event is then either covered by
their vector, or of somebody who is away.

- What the vector covers is delivered first, if it can be had; it is looked for, and waited for. What is held and comes after the lost event is left out of
  that: it can't come before it. If something is still missing that nobody can give either, or nothing has come for as long again, all that the vector covers is skipped with it.
- Who is away is *in doubt*: none of its events is taken until it is back and has said how many to skip. Not so the source of the lost event,
  or anybody of whom an effect of it is held: what these publish from there on comes after it.

Somebody may be unknown here who published before the lost event, if news of who comes travel another way than events. So nothing is given up before
`everybody_known`: it is asked with what is to be given up, and all that came before that was published by somebody who was there by then.

So order holds, whoever comes back. It costs the lost event, and others where events of several sources are lost that may have come before each other, as when somebody was away for longer than
events of two sources are kept: then all that was published up to there. And it costs events of somebody who was wrongly taken for gone. The application is told of all that is skipped, at once and when those who were away come
back (`Join.missed`).

One at a time in each topic, and of one source: no further than the first that anything held needs, so that what needs that one comes before what needs later ones.
"""

from collections.abc import Callable

from ensue.protocols.core import Discard, Effect, Join
from ensue.protocols.hypercube.causality import IN, Causality, TopicState
from ensue.protocols.hypercube.config import HypercubeConfig
from ensue.protocols.hypercube.cube import Cube, bits
from ensue.protocols.hypercube.frames import Counts, Item
from ensue.protocols.hypercube.hunting import Hunts
from ensue.protocols.hypercube.trees import Relay

__all__ = ["Forsaking", "Lost"]


class Lost:
    """Events of one source and topic that can't be had."""

    __slots__ = (
        "check_ns", "doubt", "first", "last", "relay", "seen", "source", "until_ns", "vector",
    )  # fmt: skip

    def __init__(self, source: int, first: int, last: int) -> None:
        self.source = source
        self.first = first
        self.last = last
        self.relay: Relay | None = None
        """The question to everybody."""
        self.vector: Counts | None = None
        """How far they are, once all who can be reached have answered."""
        self.doubt = 0
        self.check_ns = 0
        self.until_ns = 0
        """How long to wait for what the vector covers, if nothing comes of it."""
        self.seen = 0
        """How much of what the vector covers was delivered when it was looked at last."""


class Forsaking:
    """What one node is about to give up, one loss a topic."""

    def __init__(
        self, cube: Cube, config: HypercubeConfig, causality: Causality, hunts: Hunts
    ) -> None:
        self._cube = cube
        self._config = config
        self._causality = causality
        self._hunts = hunts
        self._lost: dict[str, Lost] = {}
        self.everybody_known: Callable[[str, Counts, int], bool] = lambda _topic, _last, _now: True
        """Tells whether all are known who may have published before events of a topic, named by source; and now it is so late."""
        self.doubted: dict[str, int] = {}
        """By topic: from which copy on a question is newer than the doubts there (`Relay.begun`)."""

    def start(
        self, topic: str, vector: Counts, relay: Relay, *, patient: bool, now_ns: int
    ) -> tuple[Counts, int] | None:
        """Return where to start in a topic, and whom to doubt; None while somebody who is needed for it may yet come back.

        To start without it could bring an event after its effect.
        """
        away = relay.away | self._cube.gone
        # Its own of an earlier membership, too: what was delivered then may come after what they have.
        doubt = (relay.doubts.get(topic, 0) | self._causality.topic(topic).doubt) & away
        uncovered = self._causality.uncovered(topic, vector)
        if not uncovered:
            return vector, doubt
        reachable = any(not away >> source & 1 for source in uncovered)
        if reachable or patient or not self.everybody_known(topic, uncovered, now_ns):
            return None
        # Who became known since the question was asked was not asked.
        doubt = away | self._cube.everyone & ~(relay.targets | 1 << self._causality.me)
        if len(uncovered) == 1:
            # What its own source published later comes after what is skipped, not before.
            (source,) = uncovered
            doubt &= ~(1 << source)
        return {**vector, **uncovered}, doubt

    def begin(self, topic: str, lost: Lost, *, now_ns: int) -> bool:
        """Begin to give up a loss, which needs a question; False if it is too early for that."""
        state = self._causality.topic(topic)
        if state.state != IN or topic in self._lost or state.have(lost.source) >= lost.first:
            return False
        if not self.everybody_known(topic, {lost.source: lost.last}, now_ns):
            return False
        self._lost[topic] = lost
        return True

    def asked(self, topic: str, relay: Relay) -> None:
        """Note by which question everybody is asked."""
        self._lost[topic].relay = relay

    def answered(self, topic: str, relay: Relay, *, now_ns: int) -> bool:
        """Note how far everybody is; False if this was not asked here."""
        lost = self._lost.get(topic)
        if lost is None or lost.relay is not relay:
            return False
        vector = dict(relay.vectors.get(topic, {}))
        away = relay.away | self._cube.gone
        lost.doubt = relay.doubts.get(topic, 0) & away
        if vector.get(lost.source, 0) < lost.last:
            there = self._cube.everyone & ~relay.away
            if there >> lost.source & 1:
                # It is back, and has not published so many.
                del self._lost[topic]
                self._hunts.end(topic, lost.source)
                return True
            lost.doubt = away
        lost.vector = vector
        lost.check_ns = now_ns
        lost.until_ns = now_ns + self._config.patience_ns
        return True

    def forget(self, topic: str) -> None:
        """Give nothing up in a topic that was left."""
        self._lost.pop(topic, None)

    def resolve(self, topic: str, vector: Counts, relay: Relay) -> list[Effect] | None:
        """Skip what those in doubt who are back published up to now; return what to tell of it, None if nobody is back.

        Who answered a question that is older than the doubt may have published since.
        """
        state = self._causality.topic(topic)
        back = list(bits(state.doubt & relay.covered))
        if not back or relay.begun < self.doubted.get(topic, 0):
            return None
        state.doubt &= ~relay.covered
        missed = [(state.delivered.get(each, 0) + 1, vector.get(each, 0)) for each in back]
        skipped = self._causality.skip(topic, {each: vector.get(each, 0) for each in back})
        return [
            *(Discard(item.event, "before_join") for item in skipped),
            *(Join(topic, (first, last)) for first, last in missed if first <= last),
        ]

    def next_timer_ns(self) -> int | None:
        """Return when to look again."""
        return min(
            (lost.check_ns for lost in self._lost.values() if lost.vector is not None), default=None
        )

    def wait(self, *, now_ns: int) -> None:
        """Lose no patience while nothing is delivered, for want of room."""
        for lost in self._lost.values():
            lost.until_ns = now_ns + self._config.patience_ns
            lost.check_ns = now_ns + self._config.gap_ns

    def take(self, *, now_ns: int) -> list[tuple[str, list[tuple[int, int]], list[Item]]]:
        """Skip what can be given up now; return the numbers, source by source, and what was held in vain."""
        taken = []
        for topic, lost in list(self._lost.items()):
            vector = lost.vector
            if vector is None or lost.check_ns > now_ns:
                continue
            lost.check_ns = now_ns + self._config.gap_ns
            state = self._causality.topic(topic)
            last = self._hunts.in_vain(topic, lost.source, now_ns=now_ns)
            if state.have(lost.source) >= lost.first or not last:
                del self._lost[topic]  # It came after all, or somebody is back who may have it.
                continue
            lost.last = min(lost.last, last)
            missing = _missing(state, lost, vector)
            stuck = missing and self._is_stuck(state, lost, missing, now_ns)
            if missing and not stuck:
                continue
            del self._lost[topic]
            effects = _effects(state, lost.source, lost.last)
            if not stuck:
                vector = {
                    each: min(count, effects.get(each, count + 1) - 1)
                    for each, count in vector.items()
                }
                vector[lost.source] = lost.last
            vector[lost.source] = max(lost.last, vector.get(lost.source, 0))
            state.doubt |= lost.doubt & ~sum(1 << each for each in effects)
            missed = [
                (state.delivered.get(each, 0) + 1, count)
                for each, count in vector.items()
                if state.delivered.get(each, 0) < count
            ]
            taken.append((topic, missed, self._causality.skip(topic, vector)))
        return taken

    def _is_stuck(self, state: TopicState, lost: Lost, missing: Counts, now_ns: int) -> bool:
        """Look for what may come before a loss; return whether nothing more of it can come."""
        assert lost.vector is not None
        seen = sum(min(state.delivered.get(each, 0), one) for each, one in lost.vector.items())
        if seen > lost.seen:
            lost.seen, lost.until_ns = seen, now_ns + self._config.patience_ns
        if not 0 < lost.until_ns - now_ns <= self._config.patience_ns:
            return True
        for source, count in missing.items():
            self._hunts.begin(state.name, source, count, now_ns=now_ns)
        return all(
            # What is here and held waits for others.
            state.have(each) > state.delivered.get(each, 0)
            or self._hunts.in_vain(state.name, each, now_ns=now_ns)
            for each in missing
        )


def _missing(state: TopicState, lost: Lost, vector: Counts) -> Counts:
    """Return what may come before a loss and is not delivered: up to which number, by source."""
    behind = _effects(state, lost.source, lost.first)
    needed = {
        each: min(count, behind.get(each, count + 1) - 1)
        for each, count in vector.items()
        if each != lost.source and not lost.doubt >> each & 1
    }
    return {each: one for each, one in needed.items() if state.delivered.get(each, 0) < one}


def _effects(state: TopicState, source: int, number: int) -> Counts:
    """Return, by source, from which number on what is held comes after an event."""
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
