"""Seeds that a swarm plays: some with every change, 2,000 an order with `--verify`."""

import pytest
from _pytest.mark import ParameterSet

CHUNK = 25
"""Seeds a test: enough tests for every core, few enough to tell them apart at a glance."""


def first_seeds(*, always: int, verify: int = 2000) -> list[ParameterSet]:
    """Return the first seed of each chunk; those from `always` on are marked verify."""
    return [
        pytest.param(first, marks=[pytest.mark.verify] if first >= always else [])
        for first in range(0, verify, CHUNK)
    ]
