"""Random scenarios on chains whose topics move, a crash at every step, and planted bugs."""

import sys
from typing import Any

import msgspec
import pytest
from tests.simulation.swarms.planted import Mutant, Search, patched
from tests.simulation.swarms.seeds import assert_valid, first_seeds

from ensue.protocols.interface import Frame
from ensue.protocols.topic_log.log import TopicLog
from ensue.protocols.total.config import SequencerConfig
from ensue.protocols.total.frames import Move, Registered
from ensue.protocols.total.placement import Placement
from ensue.protocols.total.publisher import Publisher
from ensue.protocols.total.station import Station
from ensue.protocols.total.subscriber import Subscriber
from ensue.protocols.total.topic_moves import TopicMoves
from ensue.simulation.deployments.total import TotalDeployment
from ensue.simulation.run import play
from ensue.simulation.scenario import (
    PublisherSpec,
    Rate,
    Scenario,
    SequencerSpec,
    SubscriberSpec,
    TopicMove,
)
from ensue.simulation.swarms.total import draw_moves

MS = 1_000_000
SECOND = 1_000_000_000
SEEDS_MAX = 2000

real_switch, real_freeze = TopicMoves._switch, TopicMoves._freeze
real_moved, real_on_moved = Publisher._moved, Subscriber._on_moved


@pytest.mark.parametrize("first", first_seeds(always=300))
def test_no_seed_breaks_order_or_gets_stuck(first: int) -> None:
    assert_valid("total-moves", draw_moves, first)


def test_swarm_moves_topics_up_and_down_the_chain_and_crashes_nodes() -> None:
    drawn = [draw_moves(seed) for seed in range(100)]
    assert {each.sequencer.groups for each in drawn} == {1, 2}
    assert {each.sequencer.publisher_order for each in drawn} == {True, False}
    assert max(len(each.moves) for each in drawn) == 4
    ways = set()
    for each in drawn:
        nodes = [node.name for node in each.chain]
        placement = Placement(nodes, topics={node.name: node.topics for node in each.chain})
        for move in each.moves:
            ways.add(nodes.index(move.to) - placement.stage(move.topic))
    assert {-2, -1, 1, 2} <= ways


# -- A crash at every step -------------------------------------------------------------------------

MOVING = Scenario(
    name="moving",
    duration_ns=SECOND,
    sequencer=SequencerConfig(carries=True, lease_ns=2 * SECOND, poll_ns=200 * MS),
    chain=tuple(SequencerSpec(name=f"node-{n}", topics=(f"t{n}",)) for n in (1, 2, 3)),
    publishers=tuple(
        PublisherSpec(
            name=f"publisher-{n}", rates=(Rate(topics=("t1", "t2", "t3"), per_second=60),)
        )
        for n in (1, 2)
    ),
    subscribers=(
        SubscriberSpec(name="all", topics=("t1", "t2", "t3")),
        SubscriberSpec(name="two", topics=("t2", "t3")),
        SubscriberSpec(name="one", topics=("t2",)),
    ),
)


class CrashingWorld:
    """Crashes a node at the n-th `Move` that any node gets, before or after it is handled."""

    def __init__(self, deployment: TotalDeployment, step: int, *, after: bool) -> None:
        self.steps = 0
        world = deployment.world
        receive = Station.receive

        def crash(name: str) -> None:
            world.crash(name, restart_after_ns=50 * MS)

        def receive_or_crash(node: Station, frame: Frame, *, source: str, now_ns: int) -> None:
            crashes = isinstance(frame, Move) and self._is_at(step)
            if crashes and not after:
                world.schedule(world.now_ns, crash, (node.name,))
            receive(node, frame, source=source, now_ns=now_ns)
            if crashes and after:
                world.schedule(world.now_ns + MS, crash, (node.name,))

        self.receive = receive_or_crash

    def _is_at(self, step: int) -> bool:
        self.steps += 1
        return self.steps == step


def play_with_crash(monkeypatch: pytest.MonkeyPatch, to: str, step: int, *, after: bool) -> int:
    """Move a topic, and crash at a step; return how many steps there were."""
    move = TopicMove(topic="t2", to=to, at_ns=300 * MS)
    scenario = msgspec.structs.replace(MOVING, moves=(move,))
    worlds: list[CrashingWorld] = []
    build = TotalDeployment.__init__

    def watched(self: TotalDeployment, *arguments: Any, **options: Any) -> None:
        build(self, *arguments, **options)
        worlds.append(CrashingWorld(self, step, after=after))
        monkeypatch.setattr(Station, "receive", worlds[-1].receive)

    with monkeypatch.context() as patch:
        patch.setattr(TotalDeployment, "__init__", watched)
        outcome = play(scenario, step)
    monkeypatch.undo()
    assert outcome.valid, outcome.sentences()
    assert outcome.delivered
    return worlds[0].steps


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("to", ["node-1", "node-3"])
def test_a_crash_at_any_step_of_a_move_loses_and_repeats_nothing(
    monkeypatch: pytest.MonkeyPatch, to: str, after: bool
) -> None:
    steps = play_with_crash(monkeypatch, to, 0, after=after)
    assert steps == 8  # Freeze at two nodes, frozen at two, switch at two, done at two.
    for step in range(1, steps + 1):
        play_with_crash(monkeypatch, to, step, after=after)


# -- Planted bugs ----------------------------------------------------------------------------------


def switch_without_freeze(self: TopicMoves, frame: Move) -> None:
    """Nodes take requests while the topic moves."""
    real_freeze(self, frame)
    self._state.placement.moving = ""


def switch_without_counts(self: TopicMoves, frame: Move) -> None:
    """Nodes don't learn how many events other topics have had."""
    real_switch(self, msgspec.structs.replace(frame, counts={}))


def switch_without_subscribers(self: TopicMoves, frame: Move) -> None:
    """The new node does not know who subscribes to the topic."""
    real_switch(self, msgspec.structs.replace(frame, registered=()))


def count_from_one(self: TopicMoves, frame: Move) -> None:
    """The new node begins to count at 1."""
    real_switch(self, msgspec.structs.replace(frame, count=0))


def keep_groups(self: TopicMoves, frame: Move) -> None:
    """Nodes go on with the groups of the old placement."""
    cache = dict(self._state.group_cache)
    real_switch(self, frame)
    self._state.group_cache.update(cache)


def register_only_current(self: TopicMoves, topic: str) -> list[Registered]:
    """A subscriber whose last change left the topic is not handed over."""
    found = []
    for name, topics in self._state.groups.subscriptions.items():
        if topic in topics:
            left = self._state.groups.left.get(name, ())
            found.append(Registered(name, self._changes.seen[name], topics, left))
    return found


def forget_the_move(self: TopicMoves, kind: str, topic: str, value: bytes) -> None:
    """A node that restarts has the topics where they were."""


def stay_there(self: Subscriber, *_: Any) -> None:
    """A subscriber goes on listening to the old node."""


def give_up_requests(self: Publisher, *arguments: Any) -> None:
    """A publisher repeats what the old node refused, as it was."""
    self.placement.learn(arguments[0], arguments[1])
    self._routes.clear()


def take_all_at_once(self: Publisher, topic: str, parts: Any, *rest: Any) -> None:
    """A publisher requests later events elsewhere while an earlier one is unanswered."""
    for unsettled in self._unsettled.values():
        for each in unsettled.values():
            each.moved = each.moved or each.event.topic == topic
    real_moved(self, topic, parts, *rest)


def keep_in_one_log(self: Placement, topic: str, slot: int = 0) -> str:
    """Clients look for the whole log at the new node."""
    del slot
    return self.parts[topic][-1][0] if topic in self.parts else ""


MUTANTS = (
    patched("no freeze", 11, TopicMoves, "_freeze", switch_without_freeze),
    patched("no counts", 60, TopicMoves, "_switch", switch_without_counts),
    patched("no subscribers", 3, TopicMoves, "_switch", switch_without_subscribers),
    patched("counts from one", 0, TopicMoves, "_switch", count_from_one),
    patched("old groups", 0, TopicMoves, "_switch", keep_groups),
    patched("only current", 11, TopicMoves, "_registered", register_only_current),
    patched("forgets moves", 2, TopicMoves, "restore", forget_the_move),
    patched("stays", 0, Subscriber, "_on_moved", stay_there),
    patched("repeats in vain", 0, Publisher, "_moved", give_up_requests),
    patched("overtakes", 250, Publisher, "_moved", take_all_at_once),
    patched("one log", 23, Placement, "keeper", keep_in_one_log),
    patched("log from one", 0, TopicLog, "begin", lambda *_: None),
)

SEARCH = Search(draw_moves)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_planted_bug_is_found(mutant: Mutant) -> None:
    assert not SEARCH.is_caught(Mutant("no mistake", 0), mutant.hint)
    assert SEARCH.first_seed(mutant, (mutant.hint, *range(SEEDS_MAX))) is not None


if __name__ == "__main__":
    SEARCH.print_seeds(MUTANTS, sys.argv[1:], range(SEEDS_MAX))
