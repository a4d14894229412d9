"""The numbers of planted bugs in the documentation are those of the code."""

from pathlib import Path

from tests.simulation.swarms.kills import ORDERS
from tests.testing.swarm.mutants import MUTANTS
from tests.testing.swarm.test_mutants import SLOW

PAGE = Path(__file__).resolve().parents[1] / "docs/explanation/testing.md"


def test_planted_bugs_of_the_whole_stack_are_counted() -> None:
    tried = sum(mutant.name not in SLOW for mutant in MUTANTS)
    assert f"{tried} of {len(MUTANTS)} planted bugs" in PAGE.read_text()


def test_planted_bugs_of_protocols_are_counted() -> None:
    text = PAGE.read_text()
    for order, (mutants, _, _) in ORDERS.items():
        assert f"\n| {order} | {len(mutants)} |" in text, order
    assert f"all {sum(len(mutants) for mutants, _, _ in ORDERS.values())} bugs" in text
