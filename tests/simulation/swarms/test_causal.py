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

CHAT = Path(__file__).parents[3] / "examples" / "scenarios" / "chat.toml"


@pytest.mark.parametrize("first", first_seeds(always=500))
def test_no_seed_fails(first: int) -> None:
    for seed in range(first, first + CHUNK):
        result = play_seed("causal", seed)
        assert not result.failure, (
            f"ensue replay causal --seed {seed}: {'; '.join(result.failure[:3])}"
        )


def test_the_swarm_draws_what_it_says() -> None:
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
def test_a_seed_gives_the_same_run_again(seed: int) -> None:
    scenario = DRAWS["causal"](seed)
    one, two = (run.play(scenario, seed) for _ in range(2))
    assert trace.digest(one.rows) == trace.digest(two.rows)
    assert one.steps == two.steps


def chat(order: str) -> Scenario:
    text = CHAT.read_text(encoding="utf-8")
    assert text.count('order = "causal"') == 1
    return loads(text.replace('order = "causal"', f'order = "{order}"'))


@pytest.mark.parametrize("seed", range(5))
def test_the_chat_example_is_causal_with_order_and_not_without(seed: int) -> None:
    ordered = run.play(chat("causal"), seed)
    assert ordered.valid, ordered.sentences()
    report = check(run.play(chat("none"), seed).rows, order="causal")
    (finding,) = [one for one in report.findings if one.checker == "causal"]
    assert finding.verdict is Verdict.INVALID


# Seeds that found a fault once.
FOUND = {
    9: "a member that fell behind asked those who lacked the same for ever",
    17: "an event of a source that vanished was waited for for ever",
    1602: "the only one who had an event had left its topic",
    1637: "every event of a source that vanished was waited for anew",
    11443: "whoever had no room was given, over and over, what it had to drop",
    15395: "answers that came twice were asked for twice as much, without end",
    1927: "a source that nobody else had to do with was never suspected",
    13: "an answer was held for ever whose question was gone with all who had it",
    38: "an answer was held for ever whose question was gone with all who had it",
    2014: "what was skipped of somebody who was taken for gone and came back was not told",
    2575: "what only its source kept was given up while that could not be heard for a second",
}


@pytest.mark.parametrize("seed", FOUND)
def test_a_seed_that_found_a_fault_finds_none(seed: int) -> None:
    assert not play_seed("causal", seed).failure, FOUND[seed]
