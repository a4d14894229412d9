"""Every planted bug is found by the swarm of the whole stack, with the seed noted beside it.

Found means that the run has problems, or that it raises. Where a seed no longer finds its bug,
`python -m tests.testing.swarm.mutants --search NAME` prints another one.

A seed gives another trace on another minor version of Python, where a noted seed may find nothing.
"""

import sys

import pytest
from tests.testing.swarm.mutants import MUTANTS, Mutant, found_by

SLOW = frozenset({"a paused broker holds up newcomers"})
"""Bugs that make processes do the same again and again: `make verify` tries them."""
NOTED_WITH = (3, 11)
"""The version of Python whose traces the noted seeds are."""


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
    found = found_by(mutant, mutant.hint)
    if not found and sys.version_info[:2] != NOTED_WITH:
        pytest.skip(f"seed {mutant.hint} finds it on Python 3.11, where its trace is another")
    assert found
