"""When a subscriber may deliver what brokers tell it by gossip: rounds, and what was live in them.

What it guarantees, whatever is lost, repeated or overtaken:
- no message is delivered after one that comes after it, twice, or when its lifetime is over;
- a message that arrives within its lifetime is delivered within it, whatever became of those before it;
- no message waits longer than until each one before it that is addressed to this subscriber was delivered or died.

Theory of operation. A broker has at most one message in a round, and its round is larger than all rounds it knows of (`Vector`). A message of round r
names, for each topic and broker, the last round that its broker knew of and that may still be alive (VLC in the paper). It may be delivered
when each of those that is of a topic of this subscriber is delivered or dead: `now >= round + C`. All of them are smaller than r, so they are
dead in round r + C - 1 at the latest, and the message itself is still alive then.

Joining needs no state from anybody: what is of the round of joining or earlier, and of as many later ones as clocks may differ, is not for the newcomer. Nor is
what comes before something that it delivered of other topics when it was not in this one yet.

Departures from the paper, as in the errata: vectors by broker (8) that brokers merge (9); numbers, or enough colours (10); late is
`now >= r + C` (11); same-source overtaking and copies (12); nobody waits for the dead (13); one message a round (14);
an entry for each topic and broker, and only live ones (15).

HAZARD: whether a message is alive is judged by the clock of whoever receives it: one that is ahead takes punctual messages for late. Order holds
as long as clocks differ by no more than `skew_ns`.
"""

from collections.abc import Iterator

import msgspec

from ensue.event import CLOCK, DEADLINE, Event, Stamp
from ensue.protocols.gossip.causality import ACCEPTED, DUPLICATE, LATE, OVERFLOW, OVERTAKEN
from ensue.protocols.gossip.config import GossipConfig
from ensue.protocols.gossip.frames import Live

__all__ = ["BEFORE_JOIN", "NOT_SUBSCRIBED", "Rounds", "Told", "Vector", "stamped"]

BEFORE_JOIN, NOT_SUBSCRIBED = "before_join", "not_subscribed"


class Told(msgspec.Struct, frozen=True):
    """A message as a subscriber reads it: rounds are numbers."""

    topic: str
    source: int
    round: int
    live: Live
    events: tuple[Event, ...]
    arrived_ns: int = 0

    @property
    def key(self) -> tuple[int, int, str]:
        """What orders it."""
        return (self.round, self.source, self.topic)


def stamped(event: Event, number: int, config: GossipConfig) -> Event:
    """Return an event with its round, and when that is over."""
    deadline_ns = (number + config.lifetime_rounds) * config.period_ns
    return msgspec.structs.replace(event, stamp=Stamp({CLOCK: number, DEADLINE: deadline_ns}))


class Vector:
    """What a broker knows of rounds: its own and those of others, as far as they may be alive."""

    def __init__(self, number: int, config: GossipConfig, round: int = 0) -> None:  # noqa: A002 - the word
        self._number = number
        self._config = config
        self._entries: dict[str, dict[int, int]] = {}
        self.own = round
        """The last round that this broker gave to a message."""
        self.others = 0
        """The largest round of others that it knows of."""

    def next(self, now_round: int) -> int:
        """Return the first round that a message may have now."""
        return max(now_round, self.own + 1, self.others + 1, 1)

    def may_join(self, round: int) -> bool:  # noqa: A002 - as above
        """Tell whether an event may go with the last message, which waits for this round."""
        return round == self.own and self.others < round

    def give(self, topic: str, round: int) -> Live:  # noqa: A002 - as above
        """Give a round to a message; return what it has to name."""
        live = self.live(round)
        self._entries.setdefault(topic, {})[self._number] = round
        self.own = round
        return live

    def live(self, round: int) -> Live:  # noqa: A002 - as above
        """Return what may be alive for somebody in a round, but for what is of that round itself."""
        longest = self._config.lifetime_rounds + self._config.skew_rounds
        found: Live = {}
        for topic, entries in self._entries.items():
            kept = {x: v for x, v in entries.items() if v < round < v + longest}
            if kept:
                found[topic] = kept
        return found

    def learn(self, live: Live) -> None:
        """Take over what another broker knew."""
        for topic, entries in live.items():
            mine = self._entries.setdefault(topic, {})
            for x, v in entries.items():
                if v > mine.get(x, 0):
                    mine[x] = v
                if x != self._number:
                    self.others = max(self.others, v)

    def prune(self, now_round: int) -> None:
        """Forget what is dead for everybody."""
        longest = self._config.lifetime_rounds + self._config.skew_rounds
        for topic in list(self._entries):
            kept = {x: v for x, v in self._entries[topic].items() if now_round < v + longest}
            if kept:
                self._entries[topic] = kept
            else:
                del self._entries[topic]


class Rounds:
    """What one subscriber has settled, and what waits there."""

    def __init__(self, config: GossipConfig) -> None:
        self.config = config
        self.joined: dict[str, int] = {}
        """By topic: the round of joining. What is of it or earlier is not for this subscriber."""
        self.waiting: dict[tuple[int, int, str], Told] = {}
        self._settled: dict[tuple[str, int], int] = {}
        """By topic and broker: everything up to this round is delivered, or never will be."""
        self._passed_over: dict[tuple[str, int], int] = {}
        """By topic and broker: what was settled when the topic was joined, by what came after it in other topics."""

    def join(self, topic: str, round: int) -> None:  # noqa: A002 - the word
        """Begin with what is of a later round, and comes before nothing that was delivered."""
        self.joined[topic] = round
        self._passed_over |= {place: v for place, v in self._settled.items() if place[0] == topic}

    def leave(self, topic: str) -> list[Told]:
        """Leave a topic; return what waited of it."""
        self.joined.pop(topic, None)
        left = [key for key in self.waiting if key[2] == topic]
        return [self.waiting.pop(key) for key in left]

    def offer(self, told: Told, now_round: int) -> str:
        """Take a message; return `ACCEPTED`, or why it can't be taken."""
        joined = self.joined.get(told.topic)
        verdict = ACCEPTED
        if joined is None:
            verdict = NOT_SUBSCRIBED
        elif told.key in self.waiting:
            verdict = DUPLICATE
        elif told.round <= max(joined, self._passed_over.get((told.topic, told.source), 0)):
            verdict = BEFORE_JOIN
        elif now_round >= told.round + self.config.lifetime_rounds:
            verdict = LATE
        elif told.round <= self._settled.get((told.topic, told.source), 0):
            verdict = OVERTAKEN
        elif len(self.waiting) >= self.config.held_max:
            verdict = OVERFLOW
        else:
            self.waiting[told.key] = told
        return verdict

    def is_settled(self, topic: str, source: int, round: int) -> bool:  # noqa: A002 - the word
        """Tell whether a message would be of no use: it, or one after it, was delivered."""
        joined = self.joined.get(topic)
        return joined is None or round <= max(joined, self._settled.get((topic, source), 0))

    def expired(self, now_round: int) -> list[Told]:
        """Take out what has waited beyond its lifetime, because this process stood still."""
        lifetime = self.config.lifetime_rounds
        over = [key for key, told in self.waiting.items() if now_round >= told.round + lifetime]
        return [self.waiting.pop(key) for key in sorted(over)]

    def next_ready(self, now_round: int) -> Told | None:
        """Take out the message to deliver next, if there is one."""
        for key in sorted(self.waiting):
            told = self.waiting[key]
            if not any(self._missing(told, now_round)):
                del self.waiting[key]
                self.learn(told)
                return told
        return None

    def learn(self, told: Told) -> None:
        """Take note of what is handed out: nothing before it may follow."""
        settled = self._settled
        for topic, entries in told.live.items():
            for source, v in entries.items():
                if v > settled.get((topic, source), 0):
                    settled[topic, source] = v
        place = (told.topic, told.source)
        settled[place] = max(settled.get(place, 0), told.round)

    def prune(self, now_round: int) -> None:
        """Forget what is dead: a copy of it is late."""
        for known in (self._settled, self._passed_over):
            dead = [
                place for place, v in known.items() if now_round >= v + self.config.lifetime_rounds
            ]
            for place in dead:
                del known[place]

    def _missing(self, told: Told, now_round: int) -> Iterator[tuple[str, int]]:
        """Go through what a message has to wait for."""
        lifetime = self.config.lifetime_rounds
        for topic, entries in told.live.items():
            joined = self.joined.get(topic)
            if joined is None:
                continue
            for source, v in entries.items():
                settled = max(joined, self._settled.get((topic, source), 0))
                if v > settled and now_round < v + lifetime:
                    yield (topic, source)
