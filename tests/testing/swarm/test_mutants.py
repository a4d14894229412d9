"""Every planted bug is found by the swarm of the whole stack, with the seed noted beside it.

Found means that the run has problems, or that it raises. Where a seed no longer finds its bug,
`python -m tests.testing.swarm.mutants --search NAME` prints another one.
"""

import pytest
from tests.testing.swarm.mutants import MUTANTS, Mutant, found_by

SLOW = frozenset({"the registry is not asked again", "a paused broker holds up newcomers"})
"""Bugs that make processes do the same again and again: `make verify` tries them."""


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(
            mutant,
            id=mutant.name.replace(" ", "-"),
            marks=[pytest.mark.verify] if mutant.name in SLOW else [],
        )
        for mutant in MUTANTS
    ],
)
def test_the_swarm_finds_it(mutant: Mutant) -> None:
    assert found_by(mutant, mutant.hint)
