"""Every planted bug is found by the swarm within 200 seeds.

A bug is found if the outcome is invalid, a node is stuck, or a check in production code fails. Any
other exception means that the mutant no longer fits the code it changes, and fails the test.

The seed that found a bug last time is tried first, then all others.
`python -m tests.simulation.swarms.test_mutants_total [NAME …]` searches from 0.
"""

import sys
from collections.abc import Callable, Iterable

import pytest
from tests.simulation.swarms import mutants
from tests.simulation.swarms.planted import CAUGHT, Mutant, patched, planted

from ensue.protocols.interface import Frame
from ensue.protocols.shared.link import Linked
from ensue.protocols.topic_log.log import TopicLog
from ensue.protocols.total.config import SequencerConfig
from ensue.protocols.total.groups import Group
from ensue.protocols.total.hold_back import HoldBack, PositionQueue, VectorQueue
from ensue.protocols.total.publisher import Publisher
from ensue.protocols.total.sequencer import Sequencer
from ensue.protocols.total.stage import StageState
from ensue.protocols.total.subscriber import Subscriber
from ensue.protocols.total.subscription_changes import SubscriptionChanges
from ensue.simulation.deployments import total
from ensue.simulation.deployments.base import Roles
from ensue.simulation.run import play
from ensue.simulation.scenario import (
    Change,
    Publication,
    PublisherSpec,
    Reply,
    Scenario,
    SequencerSpec,
    SubscriberSpec,
)
from ensue.simulation.scenario_file.reader import loads
from ensue.simulation.swarms.total import draw
from ensue.simulation.world.faults import Clog, Crash, Faults, Noise

MS = 1_000_000
SECOND = 1_000_000_000

SEEDS_MAX = 200
"""Each mutant must be caught by one of the first so many seeds."""


class BrokenMutant(Exception):
    """A mutant that fails by its own code, not by its bug."""


def node(name: str, hint: int, role: type[Sequencer]) -> Mutant:
    return Mutant(name, hint, Roles(node=role))


def subscriber(name: str, hint: int, role: type[Subscriber]) -> Mutant:
    return Mutant(name, hint, Roles(subscriber=role))


def publisher(name: str, hint: int, role: type[Publisher]) -> Mutant:
    return Mutant(name, hint, Roles(publisher=role))


def ens(name: str, hint: int, role: type[TopicLog]) -> Mutant:
    return Mutant(name, hint, Roles(ens=role))


def change(name: str, hint: int, value: Callable[..., None]) -> Mutant:
    return patched(name, hint, SubscriptionChanges, "_apply", value)


def wrong_cut(name: str, moved: Callable[[int], int]) -> Mutant:
    return patched(name, 4, SubscriptionChanges, "_answer", mutants.answer_with_cut(moved))


NONE = Mutant("no mistake", 0)
LINKED_TO_ALL = (total, "Linked", mutants.LinkedToAll)
SKIPS_IDLE_STAGES = (
    (StageState, "pass_on", mutants.pass_on_to_the_last),
    (StageState, "is_from_below", mutants.is_from_anywhere_below),
    LINKED_TO_ALL,
)
HASTY = patched("does not wait for cuts", 192, PositionQueue, "_read", mutants.read_without_cut)

MUTANTS = (
    Mutant("skips idle stages", 87, patches=SKIPS_IDLE_STAGES),
    node("loses voids", 4, mutants.LosesVoids),
    node("counts taken as void", 4, mutants.TakenCountsAsVoid),
    wrong_cut("cut too high", lambda count: count + 1),
    wrong_cut("cut too low", lambda count: max(0, count - 1)),
    wrong_cut("cut at zero", lambda _count: 0),
    change("subscription counts", 4, mutants.apply_and_count),
    change("answers changes alone", 0, mutants.apply_alone),
    change("keeps old groups", 4, mutants.apply_to_no_group_in_use),
    change("keeps left-out memory", 87, mutants.apply_with_left_out_memory),
    node("learns nothing from stamps", 3, mutants.LearnsNothingFromStamps),
    node("stamps repeated requests", 161, mutants.StampsRepeatedRequests),
    node("stamps across gaps", 4, mutants.StampsAcrossGaps),
    node("node forgets counters", 4, mutants.node_without("counter")),
    node("node forgets subscriptions", 11, mutants.node_without("subscription")),
    node("node forgets leases", 11, mutants.node_without("lease")),
    node("node forgets changes", 20, mutants.node_without("change")),
    patched("names each entry once", 0, Group, "fill", mutants.fill_naming_each_once),
    patched("link out of order", 2, Linked, "_data", mutants.hand_over_as_it_comes),
    patched("link acknowledges gaps", 4, Linked, "_data", mutants.acknowledge_beyond_gaps),
    patched("sends before persisting", 4, Linked, "take_effects", mutants.send_before_persisting),
    patched("link forgets numbers", 4, Linked, "_persist", mutants.persist_no_incoming_numbers),
    subscriber("forgets clocks", 11, mutants.ForgetsClocks),
    subscriber("late event untagged", 2, mutants.DeliversLateUntagged),
    subscriber("delivers duplicates", 0, mutants.subscriber_that_delivers("duplicate")),
    subscriber("delivers after leaving", 0, mutants.subscriber_that_delivers("not_subscribed")),
    subscriber("delivers what precedes", 0, mutants.subscriber_that_delivers("before_join")),
    subscriber("delivers voids", 21, mutants.subscriber_that_delivers("void")),
    subscriber("never asks", 0, mutants.NeverAsks),
    patched("one position early", 0, PositionQueue, "next", mutants.next_or_the_one_after),
    patched("stale positions", 4, HoldBack, "leave", mutants.leave_positions_alone),
    patched("drops the next event", 0, HoldBack, "offer", mutants.offer_to_the_full),
    HASTY,
    patched("ignores other clocks", 1, VectorQueue, "_unmet", lambda *_: None),
    publisher("asks two nodes at once", 4, mutants.AsksTwoNodesAtOnce),
    patched("starts over at once", 5, Publisher, "_start_over", mutants.start_over_at_once),
    publisher("publisher forgets events", 9, mutants.publisher_without("event")),
    publisher("publisher forgets requests", 9, mutants.publisher_without("number")),
    publisher("publisher forgets sequences", 9, mutants.publisher_without("sequence")),
    ens("later event takes slot", 4, mutants.LaterEventTakesSlot),
    ens("ENS forgets slots", 21, mutants.ForgetsSlots),
)

# The swarm needs several hundred seeds for these, and more than 1500 for "node forgets publishers":
# each has a tailored scenario below.
# This one shows only if certain frames to a subscriber are lost just when it joins a topic.
UNTAUGHT = change("learns nothing from changes", 352, mutants.apply_and_learn_nothing)
# This one only if a subscriber crashes during a slow change that leaves and joins a topic again.
CLINGING = subscriber("keeps left topic in change", 573, mutants.KeepsLeftTopicInChange)
# This one only if a group shrinks while a crashed publisher does not know yet that its event is
# committed: otherwise the node with the lease of the first stamp detects the second.
RESTAMPING = node("node forgets publishers", 0, mutants.node_without("publisher"))
# This one only if the node that completed a stamp is unreachable until its lease expires, while the
# node that got the request restarts.
UNAWARE = node("node forgets who completes", 0, mutants.node_without("elsewhere"))
# These only if an answer to a second event is faster than the stamp of the first on its way up.
IMPATIENT = patched("publishes out of order", 0, Publisher, "_release", mutants.release_all)
HEEDLESS = patched("node does not hold", 0, Sequencer, "_must_hold", lambda *_: False)
# This one only if the answer to a request that entered at another node is lost.
DEAF = patched("repeats to one node", 0, Sequencer, "_repeated", mutants.repeat_to_one_node)
RARE = (UNTAUGHT, CLINGING, RESTAMPING, UNAWARE, IMPATIENT, HEEDLESS, DEAF)


def joining(events: tuple[Publication, ...], faults: Faults) -> Scenario:
    """One subscriber of `old` joins `joined`, a topic of a later stage, after a second."""
    return Scenario(
        name="joining",
        duration_ns=4 * SECOND,
        chain=(
            SequencerSpec(name="node-1", topics=("old",)),
            SequencerSpec(name="node-2", topics=("joined",)),
        ),
        publishers=(PublisherSpec(name="publisher", events=events),),
        subscribers=(
            SubscriberSpec(
                name="joiner",
                topics=("old",),
                changes=(Change(at_ns=SECOND, subscribe=("joined",)),),
            ),
        ),
        faults=faults,
    )


def slow_answer_with_cut() -> Scenario:
    """Events of both topics reach the subscriber before the answer that it has joined."""
    clog = Clog(
        sources=("node-1", "node-2"), targets=("joiner",), from_ns=SECOND, until_ns=3 * SECOND
    )
    return joining(
        tuple(
            Publication(at_ns=2 * SECOND + index * MS, topics=(topic,))
            for index, topic in enumerate(("joined", "old") * 5)
        ),
        Faults(clogs=(clog,)),
    )


def losses_before_a_cut() -> Scenario:
    """An event of the old topic is lost just before the new one is joined."""
    noise = Noise(loss=1.0, targets=("joiner",), from_ns=800 * MS, until_ns=990 * MS)
    before = (Publication(at_ns=850 * MS, topics=("old",)),)
    after = tuple(
        Publication(at_ns=SECOND + index * MS, topics=("joined",)) for index in range(100)
    )
    return joining(before + after, Faults(noises=(noise,)))


REJOINING = """
duration = "4s"
topics = ["kept", "rejoined"]
chain = [{ name = "node", count = 1, topics = ["kept", "rejoined"] }]
publishers = [
  { name = "publisher", rates = [{ topics = ["kept", "rejoined"], per_second = 50 }] },
]

[[subscribers]]
name = "steady"
topics = ["kept", "rejoined"]

[[subscribers]]
name = "mover"
topics = ["kept"]
changes = [
  { at = "1500ms", subscribe = "rejoined" },
  { at = "2s", unsubscribe = "rejoined", subscribe = "rejoined" },
]

[[faults.clog]]
sources = "node-1"
targets = "mover"
from = "1400ms"
until = "3s"

[[faults.crash]]
node = "mover"
at = "2300ms"
restart_after = "100ms"
"""


def rejoining_in_a_late_change() -> Scenario:
    """A topic is left and joined again while the answer with its cut is slow; then a crash."""
    return loads(REJOINING, name="rejoining")


def group_shrinks_while_answer_is_lost() -> Scenario:
    """A publisher does not learn that its event is committed, and asks again after a restart.

    Meanwhile the topic's group no longer reaches the node that completed the stamp, and the
    topic's own node has restarted.
    """
    return Scenario(
        name="shrinking",
        duration_ns=6 * SECOND,
        chain=(
            SequencerSpec(name="node-1", topics=("local",)),
            SequencerSpec(name="node-2", topics=("far",)),
        ),
        publishers=(
            PublisherSpec(name="publisher", events=(Publication(at_ns=SECOND, topics=("local",)),)),
        ),
        subscribers=(
            SubscriberSpec(name="steady", topics=("local",)),
            SubscriberSpec(
                name="mover",
                topics=("local", "far"),
                changes=(Change(at_ns=2 * SECOND, unsubscribe=("far",)),),
            ),
        ),
        faults=Faults(
            noises=(
                Noise(
                    loss=1.0,
                    sources=("ens",),
                    targets=("publisher",),
                    from_ns=500 * MS,
                    until_ns=1500 * MS,
                ),
            ),
            crashes=(
                Crash(node="publisher", at_ns=1400 * MS, restart_after_ns=3 * SECOND),
                Crash(node="node-1", at_ns=3 * SECOND, restart_after_ns=100 * MS),
            ),
        ),
    )


def completing_node_is_unreachable() -> Scenario:
    """A publisher gets no answer from the node that completes its stamp, and asks the first again.

    Only the first node knows which node that is; it has restarted meanwhile.
    """
    return Scenario(
        name="unheard",
        duration_ns=6 * SECOND,
        sequencer=SequencerConfig(lease_ns=SECOND),
        chain=(
            SequencerSpec(name="node-1", topics=("local",)),
            SequencerSpec(name="node-2", topics=("far",)),
        ),
        publishers=(
            PublisherSpec(name="publisher", events=(Publication(at_ns=SECOND, topics=("local",)),)),
        ),
        subscribers=(SubscriberSpec(name="both", topics=("local", "far")),),
        faults=Faults(
            noises=(
                Noise(
                    loss=1.0,
                    sources=("node-2",),
                    targets=("publisher",),
                    from_ns=500 * MS,
                    until_ns=4 * SECOND,
                ),
            ),
            crashes=(Crash(node="node-1", at_ns=1500 * MS, restart_after_ns=100 * MS),),
        ),
    )


def slow_link(*, carries: bool) -> Scenario:
    """A reply to the second event of a publisher is faster than the stamp of the first."""
    clog = Clog(sources=("node-1",), targets=("node-2",), from_ns=SECOND, until_ns=3 * SECOND)
    return Scenario(
        name="slow link",
        duration_ns=5 * SECOND,
        sequencer=SequencerConfig(carries=carries),
        chain=(
            SequencerSpec(name="node-1", topics=("cause", "effect")),
            SequencerSpec(name="node-2", topics=("reply",)),
        ),
        publishers=(
            PublisherSpec(
                name="publisher",
                events=(
                    Publication(at_ns=SECOND + 100 * MS, topics=("cause",)),
                    Publication(at_ns=SECOND + 101 * MS, topics=("effect",)),
                ),
            ),
        ),
        subscribers=(
            SubscriberSpec(name="both", topics=("cause", "reply")),
            SubscriberSpec(
                name="replier", topics=("effect",), replies=(Reply(on="effect", topic="reply"),)
            ),
        ),
        faults=Faults(clogs=(clog,)),
    )


def lost_answer_of_a_later_node() -> Scenario:
    """The answers to requests that entered at the first node are lost at the third."""
    noise = Noise(
        loss=1.0,
        sources=("node-3",),
        targets=("publisher",),
        from_ns=SECOND,
        until_ns=4 * SECOND,
    )
    return Scenario(
        name="lost answer",
        duration_ns=6 * SECOND,
        sequencer=SequencerConfig(lease_ns=SECOND),
        chain=(
            SequencerSpec(name="node-1", topics=("first",)),
            SequencerSpec(name="node-2", topics=("second",)),
            SequencerSpec(name="node-3", topics=("third",)),
        ),
        publishers=(
            PublisherSpec(
                name="publisher",
                events=(
                    Publication(at_ns=SECOND + 100 * MS, topics=("first",)),
                    Publication(at_ns=SECOND + 100 * MS, topics=("second",)),
                ),
            ),
        ),
        subscribers=(SubscriberSpec(name="all", topics=("first", "second", "third")),),
        faults=Faults(noises=(noise,)),
    )


def symptoms(mutant: Mutant, scenario: Scenario, seed: int) -> list[str]:
    """Run a scenario with a mutant; return what went wrong, empty if nothing did."""
    try:
        with planted(mutant) as roles:
            outcome = play(scenario, seed, roles=roles)
    except CAUGHT as error:
        return [f"raised {error!r}"]
    except Exception as error:
        raise BrokenMutant(f"mutant is broken: {mutant.name!r} raised {error!r}") from error
    return [] if outcome.valid else outcome.sentences()


def first_seed(mutant: Mutant, seeds: Iterable[int] = range(SEEDS_MAX)) -> int | None:
    """Return the first seed of the swarm that catches a mutant."""
    return next((seed for seed in seeds if symptoms(mutant, draw(seed), seed)), None)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda each: each.name.replace(" ", "-"))
def test_swarm_finds_planted_bug(mutant: Mutant) -> None:
    seed = first_seed(mutant, (mutant.hint, *range(SEEDS_MAX)))
    assert seed is not None, f"no seed below {SEEDS_MAX} finds this bug"
    assert not symptoms(NONE, draw(seed), seed), "without the bug the same seed must pass"


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(
    ("mutant", "scenario", "finding"),
    [
        (HASTY, slow_answer_with_cut(), "causal: "),
        (UNTAUGHT, losses_before_a_cut(), "causal: "),
        (CLINGING, rejoining_in_a_late_change(), "total: mover delivered "),
        (RESTAMPING, group_shrinks_while_answer_is_lost(), "fifo (duplicate): "),
        (UNAWARE, completing_node_is_unreachable(), "stuck: publisher has 1 unsettled"),
        (IMPATIENT, slow_link(carries=False), "causal: both delivered replier.replies/reply/1"),
        (HEEDLESS, slow_link(carries=True), "causal: both delivered replier.replies/reply/1"),
        (DEAF, lost_answer_of_a_later_node(), "stuck: publisher has 1 unsettled"),
    ],
    ids=lambda each: each.name.replace(" ", "-") if isinstance(each, Mutant) else "",
)
def test_tailored_scenario_finds_planted_bug(
    mutant: Mutant, scenario: Scenario, finding: str, seed: int
) -> None:
    assert finding in " ".join(symptoms(mutant, scenario, seed))
    assert not symptoms(NONE, scenario, seed)


@pytest.mark.parametrize("error", [AttributeError, TypeError, NameError, KeyError])
def test_outdated_mutant_is_broken_not_caught(
    error: type[Exception],
) -> None:
    class Outdated(Sequencer):
        def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
            raise error("no longer there")

    with pytest.raises(BrokenMutant, match=r"mutant is broken: 'outdated' raised"):
        first_seed(node("outdated", 0, Outdated))


@pytest.mark.parametrize("error", CAUGHT)
def test_mutant_that_raises_production_error_is_caught(error: type[Exception]) -> None:
    def object_to(*_: object) -> None:
        raise error.__new__(error)

    objecting = patched("objecting", 0, Sequencer, "_on_stamp_request", object_to)
    assert first_seed(objecting) is not None


def test_links_between_all_nodes_break_nothing_by_themselves() -> None:
    only_links = Mutant("links", 0, patches=(LINKED_TO_ALL,))
    assert first_seed(only_links, range(30)) is None


def main(names: list[str]) -> None:
    """Print the first seed that catches each mutant, or each of the named ones."""
    for mutant in (*MUTANTS, *RARE):
        if not names or mutant.name in names:
            try:
                seed = first_seed(mutant)
            except BrokenMutant as error:
                print(error, flush=True)  # noqa: T201
                continue
            shown = [] if seed is None else symptoms(mutant, draw(seed), seed)
            found = f"{seed}: {' '.join(shown)[:160]}" if shown else f"none below {SEEDS_MAX}"
            print(f"{mutant.name:30} {found}", flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
