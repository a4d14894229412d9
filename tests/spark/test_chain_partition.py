"""Placement of topics on nodes, compared with an exhaustive search."""

from itertools import permutations, product
from random import Random

import msgspec
import numpy as np
import pytest

from ensue.spark.chain_partition import Problem, Solution, solve


def make(
    rates: list[float],
    pairs: list[tuple[int, int]],
    *,
    nodes: int,
    away: list[list[float]] | None = None,
    balance: float = 1.2,
) -> Problem:
    """Return a problem whose components follow from its pairs."""
    component = list(range(len(rates)))
    for _ in rates:
        for left, right in pairs:
            component[left] = component[right] = min(component[left], component[right])
    return Problem(
        rate=np.array(rates, float),
        component=np.array(component),
        away=np.zeros((len(rates), nodes)) if away is None else np.array(away, float),
        left=np.array([left for left, _ in pairs], np.int64),
        right=np.array([right for _, right in pairs], np.int64),
        shared=np.ones(len(pairs)),
        crowded=np.zeros(len(rates), bool),
        balance=balance,
    )


def hops(problem: Problem, stage: list[int]) -> float:
    """Return the hops of all events, from the definition."""
    total = 0.0
    for topic, own in enumerate(stage):
        partners = [
            stage[right if left == topic else left]
            for left, right in zip(problem.left, problem.right, strict=True)
            if topic in (left, right)
        ]
        total += problem.rate[topic] * (max([own, *partners]) - own)
    return total


def cost(problem: Problem, stage: list[int], chain: list[int]) -> float:
    away = sum(problem.away[topic, chain[own]] for topic, own in enumerate(stage))
    return hops(problem, stage) + float(away)


def within(problem: Problem, stage: list[int]) -> bool:
    """Return whether no node exceeds its share, except one with a single topic."""
    load = np.bincount(stage, problem.rate, problem.nodes)
    count = np.bincount(stage, minlength=problem.nodes)
    return bool(np.all((load <= problem.capacity) | (count <= 1)))


def whole(problem: Problem, stage: list[int]) -> bool:
    """Whether every component is on one node."""
    places = {(int(each), place) for each, place in zip(problem.component, stage, strict=True)}
    return len(places) == len({each for each, _ in places})


def best(problem: Problem) -> tuple[float, bool]:
    """The least cost there is within the bound, and whether no component need be split."""
    least, fits = np.inf, False
    sited = bool(problem.away.any())
    orders = permutations(range(problem.nodes)) if sited else [tuple(range(problem.nodes))]
    chains = [list(order) for order in orders]
    for placed in product(range(problem.nodes), repeat=len(problem.rate)):
        stage = list(placed)
        if within(problem, stage):
            fits = fits or whole(problem, stage)
            least = min(least, *(cost(problem, stage, chain) for chain in chains), np.inf)
    return float(least), fits


def stages(solution: Solution) -> list[int]:
    return [int(stage) for stage in solution.stage]


def random_problem(seed: int) -> Problem:
    random = Random(seed)
    topics, nodes = random.randint(2, 6), random.randint(2, 3)
    everyone = [(left, right) for right in range(topics) for left in range(right)]
    pairs = [pair for pair in everyone if random.random() < random.choice([0.2, 0.5])]
    rates = [float(random.randint(1, 9)) for _ in range(topics)]
    away = [[random.choice([0.0, rate]) for _ in range(nodes)] for rate in rates]
    return make(
        rates,
        pairs,
        nodes=nodes,
        away=away if random.random() < 0.5 else None,
        balance=random.choice([1.2, 1.5, 2.0]),
    )


def test_components_are_split_only_if_they_fit_nowhere_and_little_is_lost() -> None:
    lost, possible = [], 0
    for seed in range(150):
        problem = random_problem(seed)
        least, fits = best(problem)
        solution = solve(problem)
        placed = stages(solution)
        assert sorted(solution.chain) == list(range(problem.nodes))
        if fits:
            assert within(problem, placed), seed
            assert whole(problem, placed), seed
        if np.isfinite(least) and within(problem, placed):
            possible += 1
            lost.append(cost(problem, placed, solution.chain) - least)
            assert lost[-1] >= -1e-6, seed
    assert possible > 120
    # A bound on all of them: one alone may be caught in a place that no single step improves.
    assert sum(each > 1e-6 for each in lost) <= possible // 5


def test_component_is_split_at_its_weakest_links() -> None:
    # Four cliques of five topics in a row, each linked to the next by a single light topic.
    rates, pairs = [10.0] * 20, []
    for first in range(0, 20, 5):
        pairs += [
            (left, right) for right in range(first, first + 5) for left in range(first, right)
        ]
    for first in range(0, 15, 5):
        rates[first] = 1.0
        pairs.append((first, first + 5))
    problem = make(rates, pairs, nodes=4)
    placed = stages(solve(problem))
    assert within(problem, placed)
    # One clique on each node, in the order of the row: each linking topic's events travel one hop.
    assert hops(problem, placed) <= 3 * 1.0


def test_busy_topic_of_all_subscribers_is_above_its_partners() -> None:
    # Its own events then don't travel at all, and those below travel no further than they must.
    rates = [30.0, *[4.0] * 6]
    problem = make(rates, [(0, other) for other in range(1, 7)], nodes=3)
    placed = stages(solve(problem))
    assert placed[0] == 2
    assert hops(problem, placed) == best(problem)[0]


def test_parts_go_to_the_site_that_publishes_them() -> None:
    rates = [10.0] * 4
    away = [[0.0, 10.0], [0.0, 10.0], [10.0, 0.0], [10.0, 0.0]]
    pairs = [(0, 1), (1, 2), (2, 3)]
    for sites in (away, [row[::-1] for row in away]):
        solution = solve(make(rates, pairs, nodes=2, away=sites))
        problem = make(rates, pairs, nodes=2, away=sites)
        assert cost(problem, stages(solution), solution.chain) == best(problem)[0]


def test_crowded_topics_fill_the_chain_from_its_end() -> None:
    alone = make([5.0, 4.0, 3.0, 2.0, 1.0, 1.0], [], nodes=2)
    crowded = msgspec.structs.replace(
        alone, component=np.zeros(6, np.int64), crowded=np.ones(6, bool)
    )
    placed = stages(solve(crowded))
    everyone = [(left, right) for right in range(6) for left in range(right)]
    clique = make([5.0, 4.0, 3.0, 2.0, 1.0, 1.0], everyone, nodes=2)
    assert hops(clique, placed) == best(clique)[0]


@pytest.mark.parametrize("nodes", [1, 2, 5])
def test_one_topic_is_no_problem(nodes: int) -> None:
    solution = solve(make([3.0], [], nodes=nodes))
    assert len(solution.stage) == 1
    assert 0 <= solution.stage[0] < nodes


def test_the_same_input_gives_the_same_placement() -> None:
    random = Random(5)
    rates = [random.random() for _ in range(60)]
    pairs = [(left, right) for right in range(60) for left in range(right) if random.random() < 0.1]
    problem = make(rates, pairs, nodes=4)
    first, second = solve(problem), solve(problem)
    assert stages(first) == stages(second)
    assert first.chain == second.chain
