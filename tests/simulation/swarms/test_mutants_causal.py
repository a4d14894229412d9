"""Every planted bug in causal order is found by the swarm within 200 seeds.

A bug is found, as in `test_mutants_total`, if the outcome is invalid, a node is stuck, or a check
in production code fails. The seed that found a bug last time is tried first.
`python -m tests.simulation.swarms.test_mutants_causal [NAME …]` searches from 0.
"""

import sys
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import pytest
from tests.simulation.swarms.planted import Mutant, Search

from ensue.protocols.causal import dirty_records, failure_detector, membership, repair
from ensue.protocols.causal.causality import IN, Causality, TopicState
from ensue.protocols.causal.frames import Change, Item
from ensue.protocols.causal.node import CausalNode
from ensue.protocols.causal.retrieval import Retrieval
from ensue.protocols.causal.subscriptions import Subscriptions
from ensue.protocols.interface import Persist
from ensue.simulation.deployments.base import Roles
from ensue.simulation.swarms.causal import draw_plain

SEEDS_MAX = 200


def delivers_at_once(self: Causality, item: Item) -> None:
    """Barriers are ignored."""


def delivers_what_is_there(self: Causality) -> Iterator[tuple[Item, int, int]]:
    """A gap in the numbers of a source is skipped."""
    for topic, state in self.topics.items():
        for source, number in sorted(state.held):
            if state.state == IN and number > state.delivered.get(source, 0) + 1:
                state.delivered[source] = number - 1
                self._look.append((topic, source))
    yield from real_ready(self)


def forgets_concurrent(self: Causality, state: TopicState, item: Item, source: int) -> None:
    """The last delivered event is named as the only direct predecessor."""
    real_learn(self, state, item, source)
    state.barrier = {source: item.event.publisher_seq}


def never_waits_for_a_join(self: Causality, item: Item) -> tuple[str, int] | None:
    """An event that depends on a topic being joined is delivered before its start is known."""
    missing = real_missing(self, item)
    return None if missing is not None and missing[1] < 0 else missing


class OwnCountersOnly(CausalNode):
    """A start vector has what its node published, not what it delivered (erratum 5)."""

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


def never_raises_its_version(self: Subscriptions, joins: tuple[str, ...], now_ns: int) -> None:
    """A change of subscription has the version of the previous one."""
    real_announce(self, joins, now_ns)
    number, membership = self._state.number, self._state.membership
    if membership.version(number) > 1:
        membership.rows[number] = msgspec.structs.replace(membership.rows[number], version=1)


class LeavesInNameOnly(CausalNode):
    """Events after a leave are delivered."""

    def unsubscribe(self, topics: Iterable[str], *, now_ns: int) -> None:
        left = [topic for topic in topics if topic in self.state.wanted]
        super().unsubscribe(left, now_ns=now_ns)
        for topic in left:
            self._causality.topic(topic).state = IN
            self.state.wanted[topic] = None


def starts_at_once(self: Subscriptions, joins: tuple[str, ...], now_ns: int) -> None:
    """A joining node does not wait for answers."""
    real_ask_for_start(self, joins, now_ns)
    for topic in joins:
        if self._joins.pop(topic, None) is not None:
            self.started(topic, {}, 0, now_ns)


def nothing(*_arguments: object, **_options: object) -> None:
    """Do nothing."""


def writes_no_topics(
    self: dirty_records.DirtyRecords, record_of: Any, position: int
) -> list[Persist]:
    """The progress of a node in a topic is not persisted."""
    self._topics.clear()
    return real_take(self, record_of, position)


def believes_the_first(self: Retrieval, topic: str, source: int, *, now_ns: int) -> int:
    """One node without an event stops the search at all others."""
    search = self._searches.get((topic, source))
    if search is not None and any(search.absent.values()):
        return search.up_to if self._causality.topic(topic).have(source) < search.up_to else 0
    return real_in_vain(self, topic, source, now_ns=now_ns)


def never_forgives(self: failure_detector.FailureDetector, node: int) -> bool:
    """A suspected node stays suspected."""
    self._asked_ns.pop(node, None)
    return False


real_ready, real_learn = Causality.ready, Causality._learn
real_missing, real_take = Causality._missing, dirty_records.DirtyRecords.take
real_in_vain = Retrieval.in_vain
real_announce, real_ask_for_start = Subscriptions.announce, Subscriptions.ask_for_start

MUTANTS = (
    Mutant("delivers at once", 2, patches=((Causality, "_missing", delivers_at_once),)),
    Mutant("steps over gaps", 0, patches=((Causality, "ready", delivers_what_is_there),)),
    Mutant("forgets concurrent events", 180, patches=((Causality, "_learn", forgets_concurrent),)),
    Mutant("waits for no join", 46, patches=((Causality, "_missing", never_waits_for_a_join),)),
    Mutant("own counters only", 38, Roles(cube=OwnCountersOnly)),
    Mutant(
        "never raises its version",
        0,
        patches=((Subscriptions, "announce", never_raises_its_version),),
    ),
    Mutant("leaves in name only", 0, Roles(cube=LeavesInNameOnly)),
    Mutant("starts at once", 0, patches=((Subscriptions, "ask_for_start", starts_at_once),)),
    Mutant("repairs nothing", 0, patches=((repair.Repair, "handle_timer", nothing),)),
    Mutant("never gives up", 13, patches=((repair.Repair, "_lose_patience", nothing),)),
    Mutant("believes the first", 476, patches=((Retrieval, "in_vain", believes_the_first),)),
    Mutant("compares nothing", 13, patches=((repair.Repair, "_compare", nothing),)),
    Mutant(
        "writes no topics", 5, patches=((dirty_records.DirtyRecords, "take", writes_no_topics),)
    ),
    Mutant(
        "never forgives",
        51,
        patches=((failure_detector.FailureDetector, "received_from", never_forgives),),
    ),
    Mutant(
        "one digest for all", 67, patches=((membership.Membership, "digest", lambda _self: b""),)
    ),
)


SEARCH = Search(draw_plain)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_swarm_finds_planted_bug(mutant: Mutant) -> None:
    assert SEARCH.first_seed(mutant, [mutant.hint, *range(SEEDS_MAX)]) is not None


if __name__ == "__main__":
    SEARCH.print_seeds(MUTANTS, sys.argv[1:], range(SEEDS_MAX))
