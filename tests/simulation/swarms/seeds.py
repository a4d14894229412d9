"""Seeds that a swarm runs: some on every change, 2,000 per order with `--verify`."""

import pytest
from _pytest.mark import ParameterSet

CHUNK = 25
"""Seeds per test: enough tests for every core, and few enough to read."""


def first_seeds(*, always: int, verify: int = 2000) -> list[ParameterSet]:
    """Return the first seed of each chunk; those from `always` on need `--verify`."""
    return [
        pytest.param(first, marks=[pytest.mark.verify] if first >= always else [])
        for first in range(0, verify, CHUNK)
    ]
