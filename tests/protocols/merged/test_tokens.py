"""Tokens and observations carry causality, and do not count as events."""

from random import Random
from typing import Any

import pytest
from tests.protocols.merged.test_nodes import TICK, at, give, publisher, sent, subscriber

from ensue.core.errors import LocalProtocolError
from ensue.protocols.interface import Broadcast, Deliver
from ensue.protocols.merged.publisher import MergedPublisher

KINDS = pytest.mark.parametrize("array", [False, True], ids=["counter", "array"])


def test_token_is_refused_while_an_event_waits_for_its_stamp() -> None:
    node = publisher(at=100)
    assert node.token(now_ns=100 * TICK)
    node.publish("t", b"question", now_ns=100 * TICK)
    with pytest.raises(LocalProtocolError, match="without a stamp"):
        node.token(now_ns=102 * TICK)
    node.handle_timer(now_ns=103 * TICK)
    assert node.token(now_ns=103 * TICK) == {"@r": 103}


def test_token_is_refused_while_events_exceed_the_limit_of_a_tick() -> None:
    node = publisher(events_per_tick_max=1)
    for _ in range(2):
        node.publish("t", b"", now_ns=100 * TICK)
    with pytest.raises(LocalProtocolError, match="without a stamp"):
        node.token(now_ns=100 * TICK)
    node.handle_timer(now_ns=101 * TICK)
    assert node.token(now_ns=101 * TICK) == {"@r": 101}


@KINDS
def test_tokens_and_observations_do_not_count_as_events_of_a_tick(array: bool) -> None:
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
def test_token_of_a_clock_ahead_covers_events_stamped_a_tick_before(array: bool) -> None:
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
def test_tokens_carry_causality_with_any_number_of_observations(
    array: bool, epsilon: int, modulus: int | None
) -> None:
    """No process resets at the limit of events per tick, judged by true causality."""
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
    """Three publishers that stamp up to one event per tick, and pass tokens outside of the bus."""

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
            self.pass_token(number, self.random.randrange(3))

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

    def pass_token(self, number: int, other: int) -> None:
        token = self.nodes[number].token(now_ns=self.ticks[number] * TICK)
        assert self.nodes[other].observe(token, now_ns=self.ticks[other] * TICK)
        self.knows[other] |= self.knows[number]
