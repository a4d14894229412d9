"""Every planted bug is found by the swarm of the whole stack, with the seed noted beside it.

Found means that the run has problems, or that it raises. Where a seed no longer finds its bug,
`python -m tests.testing.swarm.mutants --search NAME` prints another one.
"""

import pytest
from tests.testing.swarm.mutants import MUTANTS, Mutant, found_by

ALWAYS_EVERY = 5
"""`make test` tries every fifth bug, `make verify` all."""


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(
            mutant,
            id=mutant.name.replace(" ", "-"),
            marks=[pytest.mark.verify] if number % ALWAYS_EVERY else [],
        )
        for number, mutant in enumerate(MUTANTS)
    ],
)
def test_the_swarm_finds_it(mutant: Mutant) -> None:
    assert found_by(mutant, mutant.hint)
