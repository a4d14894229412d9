"""Random churn: processes join, leave, crash and are partitioned; the registry restarts.

Causal order must hold, and no process may wait forever.
"""

import sys
from collections.abc import Callable
from random import Random

import msgspec
from tests.protocols.causal.model import topic_of, violations
from tests.protocols.causal.registered_group import MS, REGISTRY, SECOND, Room

from ensue.protocols.causal.config import CausalConfig
from ensue.protocols.interface import Deliver, Join, Leave, Publish, Refuse, Resumed

TURNS = 60
COME_MAX = 8
TOPICS = ("t0", "t1")
PATIENCE_NS = 2 * SECOND
EXPIRE_NS = 12 * SECOND
CONFIG = CausalConfig(
    durable=False, retry_ns=50 * MS, suspect_ns=200 * MS, beat_ns=300 * MS, digest_ns=200 * MS,
    gap_ns=40 * MS, patience_ns=PATIENCE_NS,
)  # fmt: skip


class Comings(Room):
    """One run of a seed."""

    def __init__(self, seed: int) -> None:
        self.dice = Random(f"comings/{seed}")
        self.across = self.dice.random() < 0.7
        config = msgspec.structs.replace(CONFIG, across_topics=self.across)
        loss = self.dice.choice((0.0, 0.0, 0.05, 0.2))
        super().__init__(seed=seed, loss=loss, expire_ns=EXPIRE_NS, config=config)
        self.seen: list[tuple[str, str, str]] = []
        self.came = 0
        self.published = 0
        self.leaving: set[str] = set()

    def drain(self, name: str) -> None:
        known = len(self.outcomes[name])
        super().drain(name)
        if self.nodes[name].resigned:
            self.kill(name)
        for outcome in self.outcomes[name][known:]:
            match outcome:
                case Publish(event=event):
                    self.seen.append((name, "published", event.payload.decode()))
                case Deliver(event=event):
                    self.seen.append((name, "delivered", event.payload.decode()))
                case Join(topic=topic):
                    self.seen.append((name, "joined", topic))
                case Leave(topic=topic):
                    self.seen.append((name, "left", topic))
                case Resumed() if self.dice.random() < 0.8:
                    self.act(name, "subscribe", TOPICS)
                case Refuse(topics=()):
                    self.kill(name)  # Its bus would fail.
                    return
                case _:
                    pass

    @property
    def ready(self) -> list[str]:
        """The processes that take commands."""
        resumed = [
            name
            for name in self.nodes
            if any(isinstance(one, Resumed) for one in self.outcomes[name])
        ]
        return [name for name in resumed if name not in self.leaving]

    def say(self, name: str, topic: str) -> str:
        self.published += 1
        text = f"{topic}/{self.published}"
        self.act(name, "publish", topic, text.encode())
        return text

    def newcomer(self) -> None:
        if self.came < COME_MAX:
            self.came += 1
            self.come(f"p{self.came}~1")

    def turn(self) -> None:
        dice, chance = self.dice, self.dice.random()
        ready = self.ready
        if not ready or chance < 0.07:
            self.newcomer()
        elif chance < 0.6:
            self.say(dice.choice(ready), dice.choice(TOPICS))
        elif chance < 0.68:
            self.act(dice.choice(ready), "subscribe", (dice.choice(TOPICS),))
        elif chance < 0.71:
            self.act(dice.choice(ready), "unsubscribe", (dice.choice(TOPICS),))
        elif chance < 0.75:
            self.kill(dice.choice(ready))
        elif chance < 0.77:
            one = dice.choice(ready)
            self.leaving.add(one)
            self.farewell(one)
        elif chance < 0.79:
            self.desk.start()
        elif chance < 0.89:
            self.part()
        elif chance < 0.94:
            self.leave_an_effect([name for name in ready if TOPICS[0] in self.nodes[name].topics])
        else:
            self.cut.clear()
        longest_ns = dice.choice((*(5 * [40 * MS]), 200 * MS, SECOND, 3 * PATIENCE_NS))
        self.run(dice.randrange(longest_ns))

    def part(self) -> None:
        """Partition a process from the registry, from some processes or from all."""
        one = self.dice.choice(list(self.nodes))
        others = self.dice.choice(
            (
                [REGISTRY],
                [each for each in self.nodes if self.dice.random() < 0.5],
                list(self.nodes),
            )
        )
        for other in others:
            self.cut |= self.dice.choice((set(), {(one, other)})) | {(other, one)}

    def leave_an_effect(self, members: list[str]) -> None:
        """Deliver only the last of a causal chain to one process, and crash those that have the
        rest."""
        if len(members) < 3:
            return
        chain = self.dice.sample(members, min(len(members), self.dice.choice((3, 4))))
        one = chain.pop()
        if self.dice.random() < 0.3:
            self.cut.add((REGISTRY, one))
            self.newcomer()
            self.run(SECOND)
            chain[:0] = [each for each in self.ready if each not in members][-1:]
        for name, following in zip(chain, [*chain[1:], one], strict=True):
            self.cut |= {(name, other) for other in self.nodes if other != following}
            if name in self.ready:
                text = self.say(name, TOPICS[0]).encode()
                self.run_until_there(text, following)
        for name in chain[1:] if len(chain) > 2 else chain:
            if self.dice.random() < 0.7:
                self.kill(name)
            else:
                self.cut |= {(name, one), (one, name)}

    def run_until_there(self, text: bytes, name: str) -> None:
        """Run until a message has arrived, by whatever path."""
        for _ in range(60):
            if name not in self.nodes:
                return
            if text.decode() in self.delivered(name) or self.holds(name, text):
                return
            self.run(25 * MS)

    def farewell(self, name: str) -> None:
        self.act(name, "say_goodbye")

    def holds(self, name: str, text: bytes) -> bool:
        """Return whether a message has arrived and is held back."""
        held = self.nodes[name].node._causality.topic(TOPICS[0]).held
        return any(item.event.payload == text for item in held.values())

    def is_joining(self, name: str) -> bool:
        return self.nodes[name].node.joining != ()

    def play(self) -> None:
        for _ in range(3):
            self.newcomer()
        self.run(3 * SECOND)
        for _ in range(TURNS):
            self.turn()
        self.cut.clear()
        self.loss = 0.0
        self.run(EXPIRE_NS + EXPIRE_NS // 2 + 4 * PATIENCE_NS)

    def judge(self) -> None:
        assert violations(self.seen, across=self.across) == []
        for name, node in self.nodes.items():
            assert name in self.ready, f"{name} is not let in"
            assert node.held_count == 0, f"{name} waits for something"
            assert node.unsettled_count == 0, f"{name} does not get rid of something"
            assert not self.is_joining(name), f"{name} does not get in"
        markers = [self.say(name, topic) for name in self.ready for topic in TOPICS]
        self.run(10 * SECOND)
        assert violations(self.seen, across=self.across) == []
        got = {(name, what) for name, kind, what in self.seen if kind == "delivered"}
        for name, node in self.nodes.items():
            owed = [each for each in markers if topic_of(each) in node.topics]
            assert [each for each in owed if (name, each) not in got] == [], name


def judged(room: Comings, seed: int) -> int:
    """Run and check a seed; return the number of deliveries."""
    room.play()
    try:
        room.judge()
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error
    return sum(kind == "delivered" for _, kind, _ in room.seen)


def show(make: Callable[[int], Comings], seeds: str) -> None:
    """Run seeds A:B, and print those that fail."""
    begin, _, end = seeds.partition(":")
    for seed in range(int(begin), int(end)):
        try:
            judged(make(seed), seed)
        except Exception as problem:  # noqa: BLE001 - all of them are shown
            sys.stdout.write(f"seed {seed}: {type(problem).__name__} {problem}\n")
            sys.stdout.flush()
