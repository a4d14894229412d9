"""Random scenarios on chains that group topics by two subscriptions, and bugs planted there."""

import sys
from typing import Any
from unittest import mock

import msgspec
import pytest
from tests.simulation.swarms.planted import Mutant, Search, patched
from tests.simulation.swarms.seeds import assert_valid, first_seeds
from tests.simulation.swarms.test_mutants_total import HEEDLESS, IMPATIENT, slow_link, symptoms

from ensue.core.event import Event
from ensue.protocols.total.frames import ChangeFill, ChangeRequest
from ensue.protocols.total.hold_back import Held, PositionQueue, VectorQueue
from ensue.protocols.total.subscriber import Subscriber
from ensue.protocols.total.subscription_changes import SubscriptionChanges
from ensue.simulation.run import play
from ensue.simulation.swarms.total import draw_noncausal

SEEDS_MAX = 2000

Registration = tuple[tuple[str, ...], tuple[str, ...]]

real_registration = SubscriptionChanges._registration
real_begin = Subscriber._begin_change
real_restore = Subscriber._restore
real_unmet, real_leave = VectorQueue._unmet, VectorQueue.leave


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


def accept_one_entry_less(self: VectorQueue, event: Event) -> str | None:
    """An event does not wait for the last event that its stamp counts of another topic."""
    topic = real_unmet(self, event)
    if topic is None or event.stamp is None:
        return topic
    return None if self.clock.get(topic) == event.stamp.entries[topic] - 1 else topic


def leave_waiters_alone(self: VectorQueue, topic: str) -> None:
    """An event that waits for a topic still does once that topic is left."""
    with mock.patch.object(self, "_reindex"):
        real_leave(self, topic)


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
    patched("left topics", 54, SubscriptionChanges, "_registration", register_no_left_topics),
    patched(
        "left nodes", 204, SubscriptionChanges, "_registration", register_where_a_topic_is_hosted
    ),
    patched("cuts", 163, VectorQueue, "_unmet", ignore_cuts),
    patched("entries", 3, VectorQueue, "_unmet", accept_one_entry_less),
    patched("waiters", 184, VectorQueue, "leave", leave_waiters_alone),
    patched("forced", 1, VectorQueue, "_first", force_without_cut),
    patched("restart", 636, Subscriber, "_restore", forget_at_a_restart),
    patched("span", 61, Subscriber, "_begin_change", request_without_left_topics),
)
"""Of the bugs of total order that is causal (`test_mutants_total`) the same seeds find nearly all
here. Those of `PositionQueue` do not exist: `entries`, `waiters` and `cuts` are their counterparts.
Others break causal order alone."""

SEARCH = Search(draw_noncausal)


def test_no_subscriber_goes_by_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: PositionQueue, **_: object) -> None:
        raise AssertionError(f"{self} must not be used")

    monkeypatch.setattr(PositionQueue, "__init__", refuse)
    for seed in range(5):
        assert play(draw_noncausal(seed), seed).valid


@pytest.mark.parametrize("mutant", [IMPATIENT, HEEDLESS], ids=lambda mutant: mutant.name)
def test_bugs_that_break_causal_order_alone_are_none_here(mutant: Mutant) -> None:
    scenario = slow_link(carries=mutant is HEEDLESS)
    assert symptoms(mutant, scenario, 1)
    sequencer = msgspec.structs.replace(scenario.sequencer, groups=2)
    assert not symptoms(mutant, msgspec.structs.replace(scenario, sequencer=sequencer), 1)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_planted_bug_is_found(mutant: Mutant) -> None:
    assert not SEARCH.is_caught(Mutant("no mistake", 0), mutant.hint)
    assert SEARCH.first_seed(mutant, (mutant.hint, *range(SEEDS_MAX))) is not None


if __name__ == "__main__":
    SEARCH.print_seeds(MUTANTS, sys.argv[1:], range(SEEDS_MAX))
