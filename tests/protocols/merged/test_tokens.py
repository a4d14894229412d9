"""Tokens and what is observed: they carry causality, and are no events that anybody would have to count."""

from random import Random
from typing import Any

import pytest
from tests.protocols.merged.test_nodes import TICK, at, give, publisher, sent, subscriber

from ensue.core.errors import LocalProtocolError
from ensue.protocols.interface import Broadcast, Deliver
from ensue.protocols.merged.publisher import MergedPublisher

KINDS = pytest.mark.parametrize("array", [False, True], ids=["counter", "array"])


def test_no_token_stands_for_what_waits_until_it_may_be_stamped() -> None:
    node = publisher(at=100)
    assert node.token(now_ns=100 * TICK)
    node.publish("t", b"question", now_ns=100 * TICK)
    with pytest.raises(LocalProtocolError, match="without a stamp"):
        node.token(now_ns=102 * TICK)
    node.handle_timer(now_ns=103 * TICK)
    assert node.token(now_ns=103 * TICK) == {"@r": 103}


def test_no_token_stands_for_what_exceeds_the_events_of_a_tick() -> None:
    node = publisher(events_per_tick_max=1)
    for _ in range(2):
        node.publish("t", b"", now_ns=100 * TICK)
    with pytest.raises(LocalProtocolError, match="without a stamp"):
        node.token(now_ns=100 * TICK)
    node.handle_timer(now_ns=101 * TICK)
    assert node.token(now_ns=101 * TICK) == {"@r": 101}


@KINDS
def test_tokens_and_observations_are_no_events_of_a_tick(array: bool) -> None:
    limits: dict[str, Any] = {"processes_max": 3, "events_per_tick_max": 1, "array": array}
    asking, answering = publisher(name="q", **limits), publisher(name="p", **limits)
    asking.publish("t", b"question", now_ns=12 * TICK)
    (question,) = [each for each in asking.take_effects() if isinstance(each, Broadcast)]
    assert question.event.stamp is not None
    for _ in range(10):
        assert answering.observe(question.event.stamp.entries, now_ns=10 * TICK)
        answering.token(now_ns=10 * TICK)
    answering.publish("t", b"answer", now_ns=10 * TICK)
    (answer,) = [each for each in answering.take_effects() if isinstance(each, Broadcast)]
    assert answering.timeline.resets == 0
    node = subscriber(**limits)
    give(node, 12, answer.event, question.event)
    handed = [each.event.payload for each in at(node, 60) if isinstance(each, Deliver)]
    assert handed == [b"question", b"answer"]


@KINDS
def test_a_token_of_a_clock_ahead_stands_for_what_was_stamped_a_tick_before(array: bool) -> None:
    """By then the token's own clock is beyond that event; the observer's is not."""
    ahead, behind = publisher(name="a", array=array), publisher(name="b", array=array)
    ahead.publish("t", b"question", now_ns=11 * TICK)
    assert behind.observe(ahead.token(now_ns=12 * TICK), now_ns=10 * TICK)
    behind.publish("t", b"answer", now_ns=10 * TICK)
    kind = behind.timeline.kind
    question, answer = (kind.key(kind.from_entries(sent(each)[0], 10)) for each in (ahead, behind))
    assert question < answer
    assert behind.timeline.resets == 0


@KINDS
@pytest.mark.parametrize("epsilon", [0, 1, 3])
@pytest.mark.parametrize("modulus", [None, 60])
def test_tokens_carry_causality_whatever_is_observed_and_how_often(
    array: bool, epsilon: int, modulus: int | None
) -> None:
    """At the limit of events in each tick, against true causality, nobody ever has to start afresh."""
    stamped = 0
    for seed in range(40):
        world = _Talking(Random(seed), epsilon, array=array, modulus=modulus)
        for _ in range(150):
            world.step()
        for key, before in world.events:
            assert all(world.events[cause][0] < key for cause in before), seed
        assert [each.timeline.resets for each in world.nodes] == [0, 0, 0], seed
        stamped += len(world.events)
    assert stamped > 500


class _Talking:
    """Three publishers that stamp one event a tick at most, and pass tokens on outside of the bus."""

    def __init__(self, random: Random, epsilon: int, *, array: bool, modulus: int | None) -> None:
        self.random = random
        self.epsilon = epsilon
        self.nodes: list[MergedPublisher] = [
            publisher(
                name=name,
                epsilon=epsilon,
                array=array,
                modulus=modulus,
                processes_max=3,
                events_per_tick_max=1,
            )
            for name in ("a", "b", "c")
        ]
        self.ticks = [100] * 3
        self.knows: list[frozenset[int]] = [frozenset()] * 3
        self.stamped_tick = [0] * 3
        self.events: list[tuple[Any, frozenset[int]]] = []
        """The key of each event, and those that happened before it."""

    def step(self) -> None:
        number = self.random.randrange(3)
        choice = self.random.random()
        if choice < 0.3:
            self.move(number)
        elif choice < 0.6:
            self.stamp(number)
        else:
            self.tell(number, self.random.randrange(3))

    def move(self, number: int) -> None:
        if self.epsilon == 0:
            self.ticks = [tick + 1 for tick in self.ticks]
        elif self.ticks[number] < min(self.ticks) + self.epsilon:
            self.ticks[number] += 1

    def stamp(self, number: int) -> None:
        tick, node = self.ticks[number], self.nodes[number]
        if self.stamped_tick[number] == tick:
            return
        self.stamped_tick[number] = tick
        node.publish("t", b"", now_ns=tick * TICK)
        (entries,) = sent(node)
        kind = node.timeline.kind
        made = kind.from_entries(entries, tick)
        assert kind.is_sound(made)
        self.events.append((kind.key(made), self.knows[number]))
        self.knows[number] |= {len(self.events) - 1}

    def tell(self, number: int, other: int) -> None:
        token = self.nodes[number].token(now_ns=self.ticks[number] * TICK)
        assert self.nodes[other].observe(token, now_ns=self.ticks[other] * TICK)
        self.knows[other] |= self.knows[number]
