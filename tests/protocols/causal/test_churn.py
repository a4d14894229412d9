"""Causal order among processes that come and go (`comings`).

`python -m tests.protocols.causal.test_churn A:B` plays further seeds.
"""

import sys

import pytest
from tests.protocols.causal.churn import Comings, judged, show

SEEDS = 120


@pytest.mark.parametrize(
    "first",
    [0, 30, *(pytest.param(first, marks=pytest.mark.verify) for first in range(60, SEEDS, 30))],
)
def test_order_holds_and_nobody_is_stuck_whoever_comes_and_goes(first: int) -> None:
    assert sum(judged(Comings(seed), seed) for seed in range(first, first + 30)) > 1_000


if __name__ == "__main__":
    show(Comings, sys.argv[1])
