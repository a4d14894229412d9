"""The swarm over causal order: churn, answers, losses, crashes and partitions, and no violation.

`ensue swarm causal --seeds A:B` searches further.
"""

from pathlib import Path

import pytest
from tests.simulation.swarms.seeds import CHUNK, first_seeds

from ensue.checkers import Verdict, check
from ensue.core import trace
from ensue.simulation import run
from ensue.simulation.scenario import Scenario
from ensue.simulation.scenario_file.reader import loads
from ensue.simulation.seeds import DRAWS, play_seed
from ensue.simulation.swarms.causal import draw_plain

CHAT = Path(__file__).parents[3] / "examples" / "scenarios" / "chat.toml"


@pytest.mark.parametrize("first", first_seeds(always=500))
def test_no_seed_fails(first: int) -> None:
    for seed in range(first, first + CHUNK):
        result = play_seed("causal", seed)
        assert not result.failure, (
            f"ensue replay causal --seed {seed}: {'; '.join(result.failure[:3])}"
        )


def test_swarm_draws_every_kind_of_scenario() -> None:
    scenarios = [DRAWS["causal"](seed) for seed in range(200)]
    assert {each.hypercube.across_topics for each in scenarios} == {True, False}
    assert any(len(each.vanish) > 1 for each in scenarios)
    assert any(each.faults.crashes for each in scenarios)
    assert any(each.faults.partitions for each in scenarios)
    assert any(each.faults.pauses for each in scenarios)
    assert any(each.faults.clock_jumps for each in scenarios)
    assert any(each.network.loss for each in scenarios)
    assert any(one.changes for each in scenarios for one in each.subscribers)
    assert any(one.replies for each in scenarios for one in each.subscribers)
    sizes = {len(each.publishers) + len(each.subscribers) for each in scenarios}
    assert {3, 4, 5, 6, 7, 8, 9} <= sizes, "not only powers of two"


@pytest.mark.parametrize("seed", [3, 17, 42])
def test_seed_gives_same_run_again(seed: int) -> None:
    scenario = DRAWS["causal"](seed)
    one, two = (run.play(scenario, seed) for _ in range(2))
    assert trace.digest(one.rows) == trace.digest(two.rows)
    assert one.steps == two.steps


def chat(order: str) -> Scenario:
    text = CHAT.read_text(encoding="utf-8")
    assert text.count('order = "causal"') == 1
    return loads(text.replace('order = "causal"', f'order = "{order}"'))


@pytest.mark.parametrize("seed", range(5))
def test_chat_example_is_causal_only_with_order(seed: int) -> None:
    ordered = run.play(chat("causal"), seed)
    assert ordered.valid, ordered.sentences()
    report = check(run.play(chat("none"), seed).rows, order="causal")
    (finding,) = [one for one in report.findings if one.checker == "causal"]
    assert finding.verdict is Verdict.INVALID


FOUND = {
    9: "a member that fell behind asked members that lacked the same events forever",
    17: "a member waited forever for an event of a source that vanished",
    1602: "the only member that had an event had left its topic",
    1637: "a member waited again for every event of a source that vanished",
    11443: "a member without room was sent the same events over and over",
    15395: "duplicated answers doubled the requests without end",
    1927: "a source without other contacts was never suspected",
    13: "an answer was held forever because its question was lost with all its holders",
    38: "an answer was held forever because its question was lost with all its holders",
    2014: "skipped events of a member that was suspected and returned were not reported",
    2575: "an event that only its source retained was given up after a second of silence",
}
"""Seeds that found a bug, each with the bug."""


@pytest.mark.parametrize("seed", FOUND)
def test_seed_that_found_a_fixed_bug_is_valid(seed: int) -> None:
    outcome = run.play(draw_plain(seed), seed)
    assert outcome.valid, f"{FOUND[seed]}: {outcome.sentences()}"
