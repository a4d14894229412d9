"""Random scenarios on chains that group topics by two subscriptions, and bugs planted there."""

import sys
from typing import Any

import pytest
from tests.simulation.swarms.planted import Mutant, Search, patched
from tests.simulation.swarms.seeds import assert_valid, first_seeds

from ensue.core.event import Event
from ensue.protocols.total.frames import ChangeFill, ChangeRequest
from ensue.protocols.total.hold_back import Held, VectorQueue
from ensue.protocols.total.subscriber import Subscriber
from ensue.protocols.total.subscription_changes import SubscriptionChanges
from ensue.simulation.swarms.total import draw_noncausal

SEEDS_MAX = 2000

Registration = tuple[tuple[str, ...], tuple[str, ...]]

real_registration = SubscriptionChanges._registration
real_begin = Subscriber._begin_change
real_restore = Subscriber._restore


@pytest.mark.parametrize("first", first_seeds(always=300))
def test_no_seed_breaks_order_or_gets_stuck(first: int) -> None:
    assert_valid("total-noncausal", draw_noncausal, first)


def test_swarm_runs_stations_lossy_logs_and_many_changes() -> None:
    drawn = [draw_noncausal(seed) for seed in range(100)]
    assert {each.sequencer.groups for each in drawn} == {2}
    assert {each.sequencer.carries for each in drawn} == {True, False}
    assert {each.sequencer.reliable for each in drawn} == {True, False}
    assert max(len(each.changes) for one in drawn for each in one.subscribers) > 10


# -- Planted bugs ----------------------------------------------------------------------------------


def register_no_left_topics(
    self: SubscriptionChanges, frame: ChangeRequest | ChangeFill
) -> Registration:
    """Only the topics that a subscriber has count for groups: the rule as published."""
    return real_registration(self, frame)[0], ()


def register_where_a_topic_is_hosted(
    self: SubscriptionChanges, frame: ChangeRequest | ChangeFill
) -> Registration:
    """A node that hosts only left topics of a subscriber registers nothing."""
    return real_registration(self, frame) if self._state.hosted(frame.new) else ((), ())


def ignore_cuts(self: VectorQueue, event: Event) -> str | None:
    """An event that names a topic which is being joined does not wait for the cut."""
    assert event.stamp is not None
    for topic, count in event.stamp.entries.items():
        clock = self.clock.get(topic)
        if clock is not None and clock < count and topic != event.topic:
            return topic
    return None


def force_without_cut(self: VectorQueue) -> Held | None:
    """A forced event may name a topic whose cut is not known."""
    heads = [waiting[min(waiting)] for waiting in self.held.values() if waiting]
    return heads[0] if heads else None


def forget_at_a_restart(self: Subscriber, *arguments: Any) -> None:
    """A subscriber that restarts forgets which topics it has left."""
    real_restore(self, *arguments)
    self._left = {}


def request_without_left_topics(self: Subscriber, now_ns: int) -> None:
    """A change travels from the lowest to the highest of the current topics alone."""
    left, self._left = self._left, {}
    real_begin(self, now_ns)
    self._left = left


MUTANTS = (
    patched("left topics", 11, SubscriptionChanges, "_registration", register_no_left_topics),
    patched(
        "left nodes", 1491, SubscriptionChanges, "_registration", register_where_a_topic_is_hosted
    ),
    patched("cuts", 163, VectorQueue, "_unmet", ignore_cuts),
    patched("forced", 1, VectorQueue, "_first", force_without_cut),
    patched("restart", 636, Subscriber, "_restore", forget_at_a_restart),
    patched("span", 1860, Subscriber, "_begin_change", request_without_left_topics),
)

SEARCH = Search(draw_noncausal)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_planted_bug_is_found(mutant: Mutant) -> None:
    assert not SEARCH.is_caught(Mutant("no mistake", 0), mutant.hint)
    assert SEARCH.first_seed(mutant, (mutant.hint, *range(SEEDS_MAX))) is not None


if __name__ == "__main__":
    SEARCH.print_seeds(MUTANTS, sys.argv[1:], range(SEEDS_MAX))
