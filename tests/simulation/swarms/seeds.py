"""Seeds that a swarm runs: some on every change, 2,000 per order with `--verify`."""

from collections.abc import Callable

import pytest
from _pytest.mark import ParameterSet

from ensue.simulation.run import play
from ensue.simulation.scenario import Scenario

CHUNK = 25
"""Seeds per test: enough tests for every core, and few enough to read."""


def first_seeds(*, always: int, verify: int = 2000) -> list[ParameterSet]:
    """Return the first seed of each chunk; those from `always` on need `--verify`."""
    return [
        pytest.param(first, marks=[pytest.mark.verify] if first >= always else [])
        for first in range(0, verify, CHUNK)
    ]


def assert_valid(order: str, draw: Callable[[int], Scenario], first: int) -> None:
    """Play a chunk of seeds; fail with the replay line and the findings of those that are bad."""
    complaints = []
    for seed in range(first, first + CHUNK):
        outcome = play(draw(seed), seed)
        if not outcome.valid:
            complaints += [f"ensue replay {order} --seed {seed}", *outcome.sentences()]
    assert not complaints, "\n" + "\n".join(complaints)
