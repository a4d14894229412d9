"""The experiments of the hypercube: costs counted by hand, and trees that lose nothing."""

from random import Random

import pytest
from experiments.hypercube.__main__ import EXPERIMENTS, answers, cube, one_event, srpt
from experiments.hypercube.model import Cost, Run
from experiments.hypercube.srpt import Plan, broker_plan, subscriber_plan


def test_latencies_are_those_counted_by_hand() -> None:
    """Each copy occupies its sender for 2 units and travels for 100; the largest cluster comes first."""
    run = cube(4, [0, 1, 2, 3], Cost(), seed=1)
    run.publish(0, 0)
    run.go()
    assert sorted(run.latencies) == [102, 104, 204]
    assert run.copies == 3


def test_one_root_costs_one_hop_more() -> None:
    run = Run(Cost(), seed=1)
    run.add_srpt(4, subscriber_plan(4, 0, range(4)))
    run.publish(3, 0)
    run.go()
    # To the root in 102, from there as above; the publisher itself is not counted.
    assert sorted(run.latencies) == [102, 204, 206]


def deliveries(plan: Plan, size: int, sources: list[int], seed: int) -> dict[str, list[str]]:
    """Let nodes publish at nearly the same time; return what each node delivered."""
    random = Random(seed)
    run = Run(Cost(), seed)
    run.add_srpt(size, plan)
    got: dict[str, list[str]] = {}
    run.when_delivered(lambda name, event: got.setdefault(name, []).append(event.id))
    for number in sources:
        run.publish(number, random.uniform(0, 50))
    run.go()
    return got


@pytest.mark.parametrize("seed", range(10))
def test_a_root_that_publishes_itself_loses_nothing(seed: int) -> None:
    random = Random(seed)
    count = random.choice((2, 3, 5, 8, 16, 20))
    subscribers = sorted(random.sample(range(count), random.randint(1, count)))
    root = random.randrange(count)
    sources = [root, *subscribers, root]
    for plan in (subscriber_plan(count, root, subscribers), broker_plan(count + 4, count, root)):
        got = deliveries(plan, count + 4, sources, seed)
        assert set(got) == {f"p{number}" for number in plan.subscribers}
        assert {len(events) for events in got.values()} == {len(sources)}
        assert len({tuple(events) for events in got.values()}) == 1, "one root, one order"


def test_a_tree_is_cut_down_to_branches_with_subscribers() -> None:
    assert subscriber_plan(8, 0, [7]).children == {0: [4], 4: [6], 6: [7]}
    assert subscriber_plan(8, 0, range(8)).messages == 7
    assert broker_plan(10, 4, 0).messages == 3 + 6


def test_the_cube_needs_fewer_copies_and_less_time() -> None:
    ours = [one_event(cube, 64, 0.25, seed) for seed in range(5)]
    theirs = [one_event(srpt, 64, 0.25, seed) for seed in range(5)]
    assert all(copies == 15 for _, copies in ours)
    assert sum(copies for _, copies in theirs) > 5 * 15
    assert sum(latency for latency, _ in ours) < sum(latency for latency, _ in theirs)


def test_answers_name_what_they_come_after() -> None:
    run = answers(16, 1, 1000.0, seed=1)
    assert len(run.latencies) == 16 * 15
    assert len(run.barriers) == 16
    assert min(sorted(run.barriers.values())[1:]) >= 1


def test_every_experiment_says_what_it_is() -> None:
    for experiment in EXPERIMENTS.values():
        assert experiment.__doc__
