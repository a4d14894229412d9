"""The swarm over transactions: every kind, every fault, crashes at every message, and no violation.

`ensue swarm transactions --seeds A:B` searches further.
"""

import pytest
from tests.simulation.swarms.seeds import CHUNK, first_seeds

from ensue.core import trace
from ensue.protocols.transactions.frames import ANYONE
from ensue.simulation import run
from ensue.simulation.seeds import DRAWS, play_seed


@pytest.mark.parametrize("first", first_seeds(always=500))
def test_no_seed_fails(first: int) -> None:
    for seed in range(first, first + CHUNK):
        result = play_seed("transactions", seed)
        assert not result.failure, (
            f"ensue replay transactions --seed {seed}: {'; '.join(result.failure[:3])}"
        )


FOUND = {
    11453: "a plan of a publisher that had gone was committed: no client got its events",
    13397: "a transaction was committed whose events used state that an abort was restoring",
    18171: "a run was judged while events were in flight, because a clock was set back",
}
"""Seeds that found a bug, each with the bug."""


@pytest.mark.parametrize("seed", FOUND)
def test_seed_that_found_a_fixed_bug_is_valid(seed: int) -> None:
    assert not play_seed("transactions", seed).failure, FOUND[seed]


def test_swarm_draws_every_kind_of_scenario() -> None:
    scenarios = [DRAWS["transactions"](seed) for seed in range(500)]
    specs = [spec for each in scenarios for spec in each.overlay.transactions]
    assert {spec.isolation for spec in specs} == {"serializable", "atomic", "planned"}
    assert {spec.commit for spec in specs} == {True, False}
    actions = {act.action for spec in specs for act in spec.acts}
    assert actions == {"pub", "sub", "usub", "adv", "uadv", "invite"}
    assert any(act.client == ANYONE for spec in specs for act in spec.acts)
    assert any(spec.wait_ns for spec in specs)
    assert {len(each.overlay.brokers) for each in scenarios} == {1, 2, 3, 4, 5, 6}
    assert any(each.vanish for each in scenarios)
    assert any(each.faults.crashes for each in scenarios)
    assert any(each.faults.partitions for each in scenarios)
    assert any(each.faults.clock_jumps for each in scenarios)
    assert any(each.network.loss for each in scenarios)
    assert any(each.overlay.silent_crashes for each in scenarios)
    crashed = {count for each in scenarios for _, count in each.overlay.crash_after_frames}
    assert len(crashed) > 100, "everybody crashes at every message, over the seeds"


@pytest.mark.parametrize("seed", [3, 17, 42])
def test_seed_gives_same_run_again(seed: int) -> None:
    scenario = DRAWS["transactions"](seed)
    one, two = (run.play(scenario, seed) for _ in range(2))
    assert trace.digest(one.rows) == trace.digest(two.rows)
    assert one.steps == two.steps
