"""Delivery rules of brokers and subscribers without frames: tests pass messages by hand."""

from collections.abc import Iterable

from ensue.core.event import CLOCK, DEADLINE, Event, Stamp
from ensue.protocols.deadline.causality import ACCEPTED, Causality, Sent
from ensue.protocols.deadline.config import DeadlineConfig
from ensue.protocols.deadline.rounds import ReceivedRumor, Rounds, Vector

A, B, C, D = range(4)
LIFETIME = 100


def event_of(name: str, stamp: Stamp | None = None, topic: str = "t") -> Event:
    return Event(topic=topic, payload=name.encode(), publisher=name, publisher_seq=1, stamp=stamp)


class Broker:
    """The rules of one broker."""

    def __init__(
        self, number: int, *, slack_ns: int = 1, rule: type[Causality] = Causality
    ) -> None:
        config = DeadlineConfig(
            lifetime_ns=LIFETIME, lifetime_ns_max=10_000, slack_ns=slack_ns, durable=False
        )
        self.rules = rule(number, config, {})
        self.got: list[str] = []
        self.refused: dict[str, str] = {}

    def send(self, name: str, dest: Iterable[int], now: int, deadline: int | None = None) -> Sent:
        """Send a message; a given deadline is used unchanged."""
        rules = self.rules
        due = rules.deadline_ns(now, LIFETIME) if deadline is None else deadline
        stamp = Stamp({CLOCK: rules.stamp(now), DEADLINE: due})
        message = Sent(event_of(name, stamp), rules.number, tuple(dest), rules.before(now))
        rules.sent(message)
        return message

    def receive(self, message: Sent, now: int) -> None:
        verdict = self.rules.offer(message, now)
        if verdict != ACCEPTED:
            self.refused[message.event.publisher] = verdict
        self.look(now)

    def look(self, now: int) -> None:
        for held in self.rules.expired(now):
            self.refused[held.sent.event.publisher] = "late"
        while (ready := self.rules.next_ready(now)) is not None:
            self.got.append(ready.sent.event.publisher)


class Pusher:
    """The rules of one broker towards subscribers."""

    def __init__(self, number: int, config: DeadlineConfig) -> None:
        self.number = number
        self.vector = Vector(number, config)

    def push(self, name: str, topic: str, round_: int) -> ReceivedRumor:
        assert self.vector.next(round_) == round_, "not a round that it may use"
        live = self.vector.give(topic, round_)
        return ReceivedRumor(topic, self.number, round_, live, (event_of(name, topic=topic),))

    def learn(self, rumor: ReceivedRumor) -> None:
        """Learn a message that another broker pushed to subscribers."""
        self.vector.learn(rumor.live)
        self.vector.learn({rumor.topic: {rumor.source: rumor.round}})


class Listener:
    """The rules of one subscriber, in its topics from the start."""

    def __init__(
        self, config: DeadlineConfig, topics: Iterable[str], *, rule: type[Rounds] = Rounds
    ) -> None:
        self.rules = rule(config)
        for topic in topics:
            self.rules.join(topic, 0)
        self.got: list[str] = []
        self.refused: dict[str, str] = {}

    def receive(self, rumor: ReceivedRumor, now_round: int) -> None:
        verdict = self.rules.offer(rumor, now_round)
        if verdict != ACCEPTED:
            self.refused[rumor.events[0].publisher] = verdict
        self.look(now_round)

    def look(self, now_round: int) -> None:
        for rumor in self.rules.expired(now_round):
            self.refused[rumor.events[0].publisher] = "late"
        while (ready := self.rules.next_ready(now_round)) is not None:
            self.got += (event.publisher for event in ready.events)
