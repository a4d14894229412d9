"""Every planted bug in causal order is found by the swarm within 200 seeds.

Found means what it means in `test_mutants`: the outcome is invalid, somebody is stuck, or one of the checks
that production code makes of itself fails. The seed that found a bug last time is tried first.
`python -m tests.simulation.test_mutants_causal [NAME …]` searches from 0.
"""

import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import msgspec
import pytest

from ensue.errors import LimitReached, RemoteProtocolError
from ensue.protocols.core import Persist
from ensue.protocols.hypercube import memory, repair, rolls, suspects
from ensue.protocols.hypercube.causality import IN, Causality, TopicState
from ensue.protocols.hypercube.frames import Change, Item
from ensue.protocols.hypercube.hunting import Hunts
from ensue.protocols.hypercube.node import HypercubeNode
from ensue.simulation.deployment import Roles
from ensue.simulation.families import DRAWS
from ensue.simulation.run import play

SEEDS_MAX = 200
CAUGHT = (AssertionError, LimitReached, RemoteProtocolError)


class Mutant(msgspec.Struct, frozen=True):
    """One mistake: a class for the role, or replacements for attributes (target, name, value)."""

    name: str
    hint: int
    """The seed to try first: the first that caught it when last searched."""
    role: type[HypercubeNode] = HypercubeNode
    patches: tuple[tuple[object, str, object], ...] = ()


def delivers_at_once(self: Causality, item: Item) -> None:
    """Barriers are not looked at."""


def delivers_what_is_there(self: Causality) -> Iterator[tuple[Item, int, int]]:
    """A gap in the numbers of a source is stepped over."""
    for topic, state in self.topics.items():
        for source, number in sorted(state.held):
            if state.state == IN and number > state.delivered.get(source, 0) + 1:
                state.delivered[source] = number - 1
                self._look.append((topic, source))
    yield from real_ready(self)


def forgets_concurrent(self: Causality, state: TopicState, item: Item, source: int) -> None:
    """The last event delivered is taken for the only direct predecessor."""
    real_learn(self, state, item, source)
    state.barrier = {source: item.event.publisher_seq}


def never_waits_for_a_join(self: Causality, item: Item) -> tuple[str, int] | None:
    """What depends on a topic being joined is delivered before it is known where that starts."""
    missing = real_missing(self, item)
    return None if missing is not None and missing[1] < 0 else missing


class OwnCountersOnly(HypercubeNode):
    """A start vector says what its node published, not what it delivered (erratum 5)."""

    def _change(self, frame: Change, peer: int, now_ns: int) -> None:
        states = self._causality.topics
        whole = {topic: states[topic].delivered for topic in frame.joins if topic in states}
        for topic in whole:
            own = states[topic].own
            states[topic].delivered = {self.number: own} if own else {}
        try:
            super()._change(frame, peer, now_ns)
        finally:
            for topic, counts in whole.items():
                states[topic].delivered = counts


class NeverRaisesItsVersion(HypercubeNode):
    """A change of subscription bears the version of the one before."""

    def _announce(self, joins: tuple[str, ...], now_ns: int) -> None:
        super()._announce(joins, now_ns)
        version = self._rolls.version(self.number)
        if version > 1:
            row = msgspec.structs.replace(self._rolls.rows[self.number], version=1)
            self._rolls.rows[self.number] = row


class LeavesInNameOnly(HypercubeNode):
    """What comes after a leave is delivered."""

    def unsubscribe(self, topics: Iterable[str], *, now_ns: int) -> None:
        left = [topic for topic in topics if topic in self._wanted]
        super().unsubscribe(left, now_ns=now_ns)
        for topic in left:
            self._causality.topic(topic).state = IN
            self._wanted[topic] = None


class StartsAtOnce(HypercubeNode):
    """A joiner does not wait for anybody's answer."""

    def _ask_for_start(self, joins: tuple[str, ...], now_ns: int) -> None:
        super()._ask_for_start(joins, now_ns)
        for topic in joins:
            if self._joins.pop(topic, None) is not None:
                self._started(topic, {}, 0, now_ns)


def nothing(*_arguments: object, **_options: object) -> None:
    """Do nothing."""


def writes_no_topics(self: memory.Memory, record_of: Any, position: int) -> list[Persist]:
    """How far a node is in a topic is not persisted."""
    self._topics.clear()
    return real_take(self, record_of, position)


def believes_the_first(self: Hunts, topic: str, source: int, *, now_ns: int) -> int:
    """One who does not keep an event speaks for all."""
    hunt = self._hunts.get((topic, source))
    if hunt is not None and any(hunt.said.values()):
        return hunt.up_to if self._causality.topic(topic).have(source) < hunt.up_to else 0
    return real_in_vain(self, topic, source, now_ns=now_ns)


def never_forgives(self: suspects.Suspects, node: int) -> bool:
    """Whoever was suspected once stays so."""
    self._asked_ns.pop(node, None)
    return False


real_ready, real_learn = Causality.ready, Causality._learn
real_missing, real_take = Causality._missing, memory.Memory.take
real_in_vain = Hunts.in_vain

MUTANTS = (
    Mutant("delivers at once", 0, patches=((Causality, "_missing", delivers_at_once),)),
    Mutant("steps over gaps", 0, patches=((Causality, "ready", delivers_what_is_there),)),
    Mutant("forgets concurrent events", 13, patches=((Causality, "_learn", forgets_concurrent),)),
    Mutant("waits for no join", 46, patches=((Causality, "_missing", never_waits_for_a_join),)),
    Mutant("own counters only", 17, OwnCountersOnly),
    Mutant("never raises its version", 0, NeverRaisesItsVersion),
    Mutant("leaves in name only", 0, LeavesInNameOnly),
    Mutant("starts at once", 0, StartsAtOnce),
    Mutant("repairs nothing", 0, patches=((repair.Repair, "handle_timer", nothing),)),
    Mutant("never gives up", 13, patches=((repair.Repair, "_lose_patience", nothing),)),
    Mutant("believes the first", 208, patches=((Hunts, "in_vain", believes_the_first),)),
    Mutant("compares nothing", 6, patches=((repair.Repair, "_compare", nothing),)),
    Mutant("writes no topics", 2, patches=((memory.Memory, "take", writes_no_topics),)),
    Mutant("never forgives", 13, patches=((suspects.Suspects, "heard", never_forgives),)),
    Mutant("one digest for all", 67, patches=((rolls.Rolls, "digest", lambda _self: b""),)),
)


@contextmanager
def planted(mutant: Mutant) -> Iterator[Roles]:
    with ExitStack() as stack:
        for target, name, value in mutant.patches:
            stack.enter_context(mock.patch.object(target, name, value))
        yield Roles(cube=mutant.role)


def catches(seed: int, roles: Roles) -> bool:
    try:
        return not play(DRAWS["causal"](seed), seed, roles=roles).valid
    except CAUGHT:
        return True


def search(mutant: Mutant, first: Iterable[int]) -> int | None:
    with planted(mutant) as roles:
        return next((seed for seed in first if catches(seed, roles)), None)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_the_swarm_finds_it(mutant: Mutant) -> None:
    assert search(mutant, [mutant.hint, *range(SEEDS_MAX)]) is not None


if __name__ == "__main__":
    for each in MUTANTS:
        if not sys.argv[1:] or each.name in sys.argv[1:]:
            sys.stdout.write(f"{each.name}: {search(each, range(SEEDS_MAX))}\n")
            sys.stdout.flush()
