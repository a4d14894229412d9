"""Random scenarios on chains whose topics move, a crash at every step, and planted bugs."""

import sys
from typing import Any
from unittest import mock

import msgspec
import pytest
from tests.simulation.swarms.planted import Mutant, Search, patched
from tests.simulation.swarms.seeds import assert_valid, first_seeds

from ensue.protocols.interface import Frame, Send
from ensue.protocols.topic_log.log import TopicLog
from ensue.protocols.total.config import SequencerConfig
from ensue.protocols.total.frames import KnownMoves, Move, MoveDecision, MoveStep, Registered
from ensue.protocols.total.move_coordinator import MoveCoordinator
from ensue.protocols.total.placement import Placement
from ensue.protocols.total.publisher import Publisher
from ensue.protocols.total.station import Station
from ensue.protocols.total.subscriber import Subscriber
from ensue.protocols.total.topic_moves import ABORT, FREEZE, SWITCH, TopicMoves
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

real_switch, real_freeze = TopicMoves._switch, TopicMoves.freeze
real_restore, real_decide = TopicMoves.restore, TopicMoves.decide
real_on_move, real_on_known = TopicMoves.on_move, TopicMoves.on_known
real_timer = MoveCoordinator.handle_timer
real_coordinator_freeze = MoveCoordinator._freeze
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
    """Crashes a node at the n-th step of a move that any node gets, before or after it is handled.

    A node stays away until after the move would be given up, or returns before.
    """

    def __init__(
        self, deployment: TotalDeployment, step: int, *, after: bool, wait_ns: int
    ) -> None:
        self.steps = 0
        world = deployment.world
        receive = Station.receive

        def crash(name: str) -> None:
            world.crash(name, restart_after_ns=wait_ns)

        def receive_or_crash(node: Station, frame: Frame, *, source: str, now_ns: int) -> None:
            crashes = isinstance(frame, Move | MoveStep | MoveDecision) and self._is_at(step)
            if crashes and not after:
                world.schedule(world.now_ns, crash, (node.name,))
            receive(node, frame, source=source, now_ns=now_ns)
            if crashes and after:
                world.schedule(world.now_ns + MS, crash, (node.name,))

        self.receive = receive_or_crash

    def _is_at(self, step: int) -> bool:
        self.steps += 1
        return self.steps == step


def play_with_crash(
    monkeypatch: pytest.MonkeyPatch, to: str, step: int, *, after: bool, wait_ns: int
) -> int:
    """Move a topic, and crash at a step; return how many steps there were."""
    move = TopicMove(topic="t2", to=to, at_ns=300 * MS)
    scenario = msgspec.structs.replace(MOVING, moves=(move,))
    worlds: list[CrashingWorld] = []
    build = TotalDeployment.__init__

    def watched(self: TotalDeployment, *arguments: Any, **options: Any) -> None:
        build(self, *arguments, **options)
        worlds.append(CrashingWorld(self, step, after=after, wait_ns=wait_ns))
        monkeypatch.setattr(Station, "receive", worlds[-1].receive)

    with monkeypatch.context() as patch:
        patch.setattr(TotalDeployment, "__init__", watched)
        outcome = play(scenario, step)
    monkeypatch.undo()
    assert outcome.valid, outcome.sentences()
    assert outcome.delivered
    return worlds[0].steps


@pytest.mark.parametrize("wait_ns", [50 * MS, 3 * SECOND])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("to", ["node-1", "node-3"])
def test_a_crash_at_any_step_of_a_move_loses_and_repeats_nothing(
    monkeypatch: pytest.MonkeyPatch, to: str, after: bool, wait_ns: int
) -> None:
    steps = play_with_crash(monkeypatch, to, 0, after=after, wait_ns=wait_ns)
    # Two nodes get each of five phases, and tell the first one of three steps.
    assert steps == 16
    for step in range(1, steps + 1):
        play_with_crash(monkeypatch, to, step, after=after, wait_ns=wait_ns)


# -- Planted bugs ----------------------------------------------------------------------------------


def switch_without_freeze(self: TopicMoves, frame: Move, now_ns: int) -> Move:
    """Nodes take requests while the topic moves."""
    frozen = real_freeze(self, frame, now_ns)
    self._state.placement.moving = ""
    return frozen


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


def forget_the_move(self: TopicMoves, kind: str, topic: str, value: bytes, now_ns: int) -> None:
    """A node that restarts has the topics where they were."""
    if kind != "moved":
        real_restore(self, kind, topic, value, now_ns)


def forget_the_decision(self: TopicMoves, kind: str, topic: str, value: bytes, now_ns: int) -> None:
    """A node that restarts does not know what was decided, and gives up what has switched."""
    if kind not in ("decided", "seen"):
        real_restore(self, kind, topic, value, now_ns)


def freeze_late(self: TopicMoves, frame: Move, source: str, now_ns: int) -> None:
    """A node freezes for a move that was given up while it was away."""
    seen = self.seen
    if frame.phase == FREEZE:
        self.seen = 0
    real_on_move(self, frame, source, now_ns)
    self.seen = seen


def decide_again(self: TopicMoves, move: Move) -> bool:
    """A node takes each copy of a decision."""
    self.seen = min(self.seen, move.number - 1)
    return real_decide(self, move)


def decide_here_alone(self: TopicMoves, move: Move) -> bool:
    """A node that learns a decision past the links does not pass it up before its requests."""
    with mock.patch.object(self._state, "pass_on"):
        return real_decide(self, move)


def switch_in_any_case(self: TopicMoves, move: Move) -> bool:
    """A node switches although the move was given up."""
    return real_decide(self, msgspec.structs.replace(move, phase=SWITCH))


def adopt_while_frozen(self: TopicMoves, frame: KnownMoves, source: str, now_ns: int) -> None:
    """A frozen node learns of the switch without the counts and subscribers."""
    frozen, self._frozen = self._frozen, None
    real_on_known(self, frame, source, now_ns)
    self._frozen = frozen


def give_up_after_the_switch(self: MoveCoordinator, now_ns: int) -> None:
    """The first node gives a move up that takes too long, although it has switched."""
    count = len(self._state.effects)
    real_timer(self, now_ns)
    for index in range(count, len(self._state.effects)):
        effect = self._state.effects[index]
        if isinstance(effect, Send) and isinstance(effect.frame, MoveDecision):
            given_up = msgspec.structs.replace(effect.frame.move, phase=ABORT)
            self._state.effects[index] = Send(effect.peer, MoveDecision(move=given_up))


def decide_at_once(self: MoveCoordinator, asked: Move, now_ns: int) -> None:
    """The first node switches without waiting for the others to freeze."""
    real_coordinator_freeze(self, asked, now_ns)
    assert self.active is not None
    self._decide(self.active, SWITCH, now_ns)


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
    patched("no freeze", 2, TopicMoves, "freeze", switch_without_freeze),
    patched("no counts", 159, TopicMoves, "_switch", switch_without_counts),
    patched("no subscribers", 3, TopicMoves, "_switch", switch_without_subscribers),
    patched("counts from one", 2, TopicMoves, "_switch", count_from_one),
    patched("old groups", 21, TopicMoves, "_switch", keep_groups),
    patched("only current", 113, TopicMoves, "_registered", register_only_current),
    patched("forgets moves", 2, TopicMoves, "restore", forget_the_move),
    patched("stays", 2, Subscriber, "_on_moved", stay_there),
    patched("repeats in vain", 2, Publisher, "_moved", give_up_requests),
    patched("overtakes", 291, Publisher, "_moved", take_all_at_once),
    patched("one log", 48, Placement, "keeper", keep_in_one_log),
    patched("forgets decisions", 152, TopicMoves, "restore", forget_the_decision),
    patched("freezes late", 1, TopicMoves, "on_move", freeze_late),
    patched("decides again", 337, TopicMoves, "decide", decide_again),
    patched("decides alone", 6, TopicMoves, "decide", decide_here_alone),
    patched("never gives up", 0, TopicMoves, "decide", switch_in_any_case),
    patched("adopts while frozen", 159, TopicMoves, "on_known", adopt_while_frozen),
    patched("gives up late", 9, MoveCoordinator, "handle_timer", give_up_after_the_switch),
    patched("decides at once", 2, MoveCoordinator, "_freeze", decide_at_once),
    patched("log from one", 21, TopicLog, "begin", lambda *_: None),
)

SEARCH = Search(draw_moves)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_planted_bug_is_found(mutant: Mutant) -> None:
    assert not SEARCH.is_caught(Mutant("no mistake", 0), mutant.hint)
    assert SEARCH.first_seed(mutant, (mutant.hint, *range(SEEDS_MAX))) is not None


if __name__ == "__main__":
    SEARCH.print_seeds(MUTANTS, sys.argv[1:], range(SEEDS_MAX))
