"""Delivery rules judged by brute force: random messages, delays, losses and copies."""

from random import Random

import pytest
from tests.protocols.deadline.brokers import Broker, Listener, Pusher

from ensue.protocols.deadline.causality import Sent
from ensue.protocols.deadline.config import DeadlineConfig
from ensue.protocols.deadline.rounds import ReceivedRumor

SEEDS = range(60)
END = 400


class Brokers:
    """Four brokers for some hundred instants. Knowledge is a set of names: causality is known."""

    def __init__(self, seed: int) -> None:
        random = Random(seed)
        self.brokers = [Broker(number) for number in range(4)]
        self.knows: list[set[str]] = [set() for _ in self.brokers]
        self.past: dict[str, set[str]] = {}
        self.sent: dict[str, Sent] = {}
        self.arrived: dict[tuple[int, str], int] = {}
        self.delivered: dict[tuple[int, str], int] = {}
        self.order: list[list[str]] = [[] for _ in self.brokers]
        arrivals: dict[int, list[tuple[int, str]]] = {}
        loss, copies = random.choice((0.0, 0.3)), random.choice((0.0, 0.5))
        longest = random.choice((5, 25, 60))
        for now in range(1, END):
            for target, name in arrivals.pop(now, []):
                self.arrived.setdefault((target, name), now)
                self.brokers[target].receive(self.sent[name], now)
                self._note(target, now)
            for number in range(4):
                self.brokers[number].look(now)
                self._note(number, now)
            while now < END - 200 and random.random() < 0.35:
                sender = random.randrange(4)
                others = [number for number in range(4) if number != sender]
                dest = random.sample(others, random.randint(1, 3))
                name = f"m{len(self.sent)}"
                self.past[name] = set(self.knows[sender])
                self.knows[sender].add(name)
                rules = self.brokers[sender].rules
                due = rules.deadline_ns(now, random.randint(5, 40))
                self.sent[name] = self.brokers[sender].send(name, dest, now, due)
                for target in dest:
                    for _ in range(1 + (random.random() < copies)):
                        if random.random() >= loss:
                            at = now + random.randint(1, longest)
                            arrivals.setdefault(at, []).append((target, name))

    def _note(self, number: int, now: int) -> None:
        got = self.brokers[number].got
        for name in got[len(self.order[number]) :]:
            assert (number, name) not in self.delivered, "twice"
            self.delivered[number, name] = now
            self.order[number].append(name)
            self.knows[number] |= self.past[name] | {name}


@pytest.mark.parametrize("seed", SEEDS)
def test_brokers_deliver_in_causal_order_everything_that_arrives_in_time(seed: int) -> None:
    run = Brokers(seed)
    assert len(run.delivered) > 20
    for order in run.order:
        seen: set[str] = set()
        for name in order:
            late = [other for other in seen if name in run.past[other]]
            assert not late, f"seed {seed}: {name} was delivered after {late}, which come after it"
            seen.add(name)
    for (number, name), at in run.delivered.items():
        assert at <= run.sent[name].deadline_ns, f"seed {seed}: {name} at {number} is late"
    for (number, name), at in run.arrived.items():
        if at < run.sent[name].deadline_ns:
            assert (number, name) in run.delivered, f"seed {seed}: {name} is lost at {number}"
    assert all(not broker.rules.waiting for broker in run.brokers), "no broker waits forever"


class Subscribers:
    """Three brokers that learn at once or never, and three subscribers of two topics."""

    def __init__(self, seed: int) -> None:
        random = Random(seed)
        self.config = config = DeadlineConfig(subscribers_max=8, alpha=1)
        pushers = [Pusher(number, config) for number in range(3)]
        self.topics = [("t",), ("t", "u"), ("u",)]
        self.listeners = [Listener(config, topics) for topics in self.topics]
        knows: list[set[str]] = [set() for _ in pushers]
        self.past: dict[str, set[str]] = {}
        self.rumors: dict[str, ReceivedRumor] = {}
        self.arrived: dict[tuple[int, str], int] = {}
        self.delivered: dict[tuple[int, str], int] = {}
        arrivals: dict[int, list[tuple[int, str]]] = {}
        loss = random.choice((0.0, 0.3))
        for now in range(1, END):
            for number, name in arrivals.pop(now, []):
                self.arrived.setdefault((number, name), now)
                self.listeners[number].receive(self.rumors[name], now)
                self._note(number, now)
            for number in range(3):
                self.listeners[number].look(now)
                self._note(number, now)
            for pusher in pushers:
                if now > END - 50 or random.random() > 0.4 or pusher.vector.next(now) != now:
                    continue
                topic, name = random.choice("tu"), f"m{len(self.rumors)}"
                self.past[name] = set(knows[pusher.number])
                rumor = self.rumors[name] = pusher.push(name, topic, now)
                knows[pusher.number].add(name)
                for other in pushers:
                    if other is not pusher and random.random() < 0.6:
                        other.learn(rumor)
                        knows[other.number] |= self.past[name] | {name}
                for number, topics in enumerate(self.topics):
                    for _ in range(random.choice((1, 2))):
                        if topic in topics and random.random() >= loss:
                            at = now + random.randint(0, 6) or now
                            arrivals.setdefault(max(at, now + 1), []).append((number, name))

    def _note(self, number: int, now: int) -> None:
        known = sum(1 for one, _ in self.delivered if one == number)
        for name in self.listeners[number].got[known:]:
            assert (number, name) not in self.delivered, "twice"
            self.delivered[number, name] = now


@pytest.mark.parametrize("seed", SEEDS)
def test_subscribers_wait_only_for_live_messages(seed: int) -> None:
    run = Subscribers(seed)
    lifetime = run.config.lifetime_rounds
    assert len(run.delivered) > 50
    for number, listener in enumerate(run.listeners):
        seen: set[str] = set()
        for name in listener.got:
            late = [other for other in seen if name in run.past[other]]
            assert not late, f"seed {seed}: {name} was delivered after {late}, which come after it"
            seen.add(name)
        for name, rumor in run.rumors.items():
            arrived = run.arrived.get((number, name))
            if arrived is None:
                continue
            at = run.delivered.get((number, name))
            if arrived >= rumor.round + lifetime:
                assert at is None, f"seed {seed}: {name} was delivered after it expired"
                continue
            needed = arrived
            for other in run.past[name]:
                before = run.rumors[other]
                if before.topic in run.topics[number]:
                    died = before.round + lifetime
                    needed = max(needed, min(run.delivered.get((number, other), died), died))
            assert at == needed, f"seed {seed}: {name} at {number} in {at}, not in {needed}"
            assert at < rumor.round + lifetime
