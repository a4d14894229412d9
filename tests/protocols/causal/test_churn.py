"""Causal order under churn (`churn`).

`python -m tests.protocols.causal.test_churn A:B` runs further seeds.
"""

import sys

import pytest
from tests.protocols.causal.churn import Comings, judged, show

SEEDS = 120


@pytest.mark.parametrize(
    "first",
    [0, *(pytest.param(first, marks=pytest.mark.verify) for first in range(30, SEEDS, 30))],
)
def test_order_and_progress_hold_under_churn(first: int) -> None:
    assert sum(judged(Comings(seed), seed) for seed in range(first, first + 30)) > 1_000


if __name__ == "__main__":
    show(Comings, sys.argv[1])
