"""The delivery rule of subscribers: rounds, and which earlier rounds may still be alive.

Guarantee, whatever is lost, duplicated or overtaken:
- no message is delivered after one that causally follows it, twice, or after its lifetime;
- a message that arrives within its lifetime is delivered within it, whatever happened to its
  predecessors;
- no message waits longer than until each predecessor addressed to this subscriber was delivered
  or has expired.

Theory of operation. A broker has at most one message per round, and its round is larger than all
rounds it knows of (`Vector`). A message of round r names, for each topic and broker, the last
round that its broker knew of and that may still be alive (VLC in the paper). It may be delivered
when each of those in a topic of this subscriber is delivered or has expired: `now >= round + C`.
All of them are smaller than r, so they have expired in round r + C - 1 at the latest, while the
message itself is still alive.

Joining needs no state from others: messages of the round of joining or earlier, plus as many
later rounds as clocks may differ, are not for the new subscriber. Nor are predecessors of
messages of other topics that it delivered before it joined.

Deviations from the paper, numbered as in the errata: vectors by broker (8) that brokers merge
(9); numbers, or enough colors (10); late is `now >= r + C` (11); same-source overtaking and
copies (12); no waiting for expired messages (13); one message per round (14); an entry for each
topic and broker, and only live ones (15).

HAZARD: the receiver's clock decides whether a message is alive: a clock that is ahead takes
punctual messages for late. Order holds while clocks differ by at most `skew_ns`.
"""

from collections.abc import Iterator

import msgspec

from ensue.core.event import CLOCK, DEADLINE, Event, Stamp
from ensue.protocols.deadline.causality import ACCEPTED, DUPLICATE, LATE, OVERFLOW, OVERTAKEN
from ensue.protocols.deadline.config import DeadlineConfig
from ensue.protocols.deadline.frames import Live

__all__ = ["BEFORE_JOIN", "NOT_SUBSCRIBED", "ReceivedRumor", "Rounds", "Vector", "stamped"]

BEFORE_JOIN, NOT_SUBSCRIBED = "before_join", "not_subscribed"


class ReceivedRumor(msgspec.Struct, frozen=True):
    """A received message, with rounds as numbers."""

    topic: str
    source: int
    round: int
    live: Live
    events: tuple[Event, ...]
    arrived_ns: int = 0

    @property
    def key(self) -> tuple[int, int, str]:
        """Its sort key."""
        return (self.round, self.source, self.topic)


def stamped(event: Event, number: int, config: DeadlineConfig) -> Event:
    """Return an event stamped with its round and deadline."""
    deadline_ns = (number + config.lifetime_rounds) * config.period_ns
    return msgspec.structs.replace(event, stamp=Stamp({CLOCK: number, DEADLINE: deadline_ns}))


class Vector:
    """The rounds that a broker knows of and that may be alive."""

    def __init__(self, number: int, config: DeadlineConfig, round: int = 0) -> None:  # noqa: A002
        self._number = number
        self._config = config
        self._entries: dict[str, dict[int, int]] = {}
        self.own = round
        """The last round that this broker assigned."""
        self.others = 0
        """The largest known round of other brokers."""

    def next(self, now_round: int) -> int:
        """Return the first round that a new message may have."""
        return max(now_round, self.own + 1, self.others + 1, 1)

    def may_join(self, round: int) -> bool:  # noqa: A002 - as in frames
        """Return whether an event may join the last message, which waits for this round."""
        return round == self.own and self.others < round

    def give(self, topic: str, round: int) -> Live:  # noqa: A002 - as in frames
        """Assign a round to a message; return the live rounds it has to name."""
        live = self.live(round)
        self._entries.setdefault(topic, {})[self._number] = round
        self.own = round
        return live

    def live(self, round: int) -> Live:  # noqa: A002 - as in frames
        """Return earlier rounds that may be alive at some process in a round."""
        longest = self._config.lifetime_rounds + self._config.skew_rounds
        found: Live = {}
        for topic, entries in self._entries.items():
            kept = {x: v for x, v in entries.items() if v < round < v + longest}
            if kept:
                found[topic] = kept
        return found

    def learn(self, live: Live) -> None:
        """Merge the rounds that another broker knew."""
        for topic, entries in live.items():
            mine = self._entries.setdefault(topic, {})
            for x, v in entries.items():
                if v > mine.get(x, 0):
                    mine[x] = v
                if x != self._number:
                    self.others = max(self.others, v)

    def prune(self, now_round: int) -> None:
        """Forget rounds that have expired at all processes."""
        longest = self._config.lifetime_rounds + self._config.skew_rounds
        for topic in list(self._entries):
            kept = {x: v for x, v in self._entries[topic].items() if now_round < v + longest}
            if kept:
                self._entries[topic] = kept
            else:
                del self._entries[topic]


class Rounds:
    """The delivery state of one subscriber, and the messages that wait there."""

    def __init__(self, config: DeadlineConfig) -> None:
        self.config = config
        self.joined: dict[str, int] = {}
        """By topic: the round of joining. Messages up to it are not for this subscriber."""
        self.waiting: dict[tuple[int, int, str], ReceivedRumor] = {}
        self._settled: dict[tuple[str, int], int] = {}
        """By topic and broker: all messages up to this round are delivered or given up."""
        self._passed_over: dict[tuple[str, int], int] = {}
        """By topic and broker: rounds already settled by other topics when the topic was joined."""

    def join(self, topic: str, round: int) -> None:  # noqa: A002 - as in frames
        """Start after a round, and after predecessors of what was delivered."""
        self.joined[topic] = round
        self._passed_over |= {place: v for place, v in self._settled.items() if place[0] == topic}

    def leave(self, topic: str) -> list[ReceivedRumor]:
        """Leave a topic; return its waiting messages."""
        self.joined.pop(topic, None)
        left = [key for key in self.waiting if key[2] == topic]
        return [self.waiting.pop(key) for key in left]

    def offer(self, rumor: ReceivedRumor, now_round: int) -> str:
        """Hold a message; return `ACCEPTED`, or the reason why not."""
        joined = self.joined.get(rumor.topic)
        verdict = ACCEPTED
        if joined is None:
            verdict = NOT_SUBSCRIBED
        elif rumor.key in self.waiting:
            verdict = DUPLICATE
        elif rumor.round <= max(joined, self._passed_over.get((rumor.topic, rumor.source), 0)):
            verdict = BEFORE_JOIN
        elif now_round >= rumor.round + self.config.lifetime_rounds:
            verdict = LATE
        elif rumor.round <= self._settled.get((rumor.topic, rumor.source), 0):
            verdict = OVERTAKEN
        elif len(self.waiting) >= self.config.held_max:
            verdict = OVERFLOW
        else:
            self.waiting[rumor.key] = rumor
        return verdict

    def is_settled(self, topic: str, source: int, round: int) -> bool:  # noqa: A002 - as in frames
        """Return whether a message, or a follower of it, was already delivered."""
        joined = self.joined.get(topic)
        return joined is None or round <= max(joined, self._settled.get((topic, source), 0))

    def expired(self, now_round: int) -> list[ReceivedRumor]:
        """Remove messages that waited beyond their lifetime: this process was stopped."""
        lifetime = self.config.lifetime_rounds
        over = [key for key, rumor in self.waiting.items() if now_round >= rumor.round + lifetime]
        return [self.waiting.pop(key) for key in sorted(over)]

    def next_ready(self, now_round: int) -> ReceivedRumor | None:
        """Remove and return the next message to deliver, if there is one."""
        for key in sorted(self.waiting):
            rumor = self.waiting[key]
            if not any(self._missing(rumor, now_round)):
                del self.waiting[key]
                self.learn(rumor)
                return rumor
        return None

    def learn(self, rumor: ReceivedRumor) -> None:
        """Record a delivered message: no predecessor may follow it."""
        settled = self._settled
        for topic, entries in rumor.live.items():
            for source, v in entries.items():
                if v > settled.get((topic, source), 0):
                    settled[topic, source] = v
        place = (rumor.topic, rumor.source)
        settled[place] = max(settled.get(place, 0), rumor.round)

    def prune(self, now_round: int) -> None:
        """Forget expired rounds: copies of them are late."""
        for known in (self._settled, self._passed_over):
            dead = [
                place for place, v in known.items() if now_round >= v + self.config.lifetime_rounds
            ]
            for place in dead:
                del known[place]

    def _missing(self, rumor: ReceivedRumor, now_round: int) -> Iterator[tuple[str, int]]:
        """Yield what a message has to wait for."""
        lifetime = self.config.lifetime_rounds
        for topic, entries in rumor.live.items():
            joined = self.joined.get(topic)
            if joined is None:
                continue
            for source, v in entries.items():
                settled = max(joined, self._settled.get((topic, source), 0))
                if v > settled and now_round < v + lifetime:
                    yield (topic, source)
