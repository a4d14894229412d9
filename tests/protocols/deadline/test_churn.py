"""Deadline order during churn: every client is a broker that joins and leaves.

`python -m tests.protocols.deadline.test_churn A:B` runs further seeds.
"""

import sys

import pytest
from tests.protocols.causal.churn import Comings, judged, show
from tests.protocols.causal.registered_group import MS, REGISTRY

from ensue.protocols.deadline.config import DeadlineConfig
from ensue.protocols.deadline.registered import RegisteredBroker

SEEDS = 120
CONFIG = DeadlineConfig(
    lifetime_ns=200 * MS, lifetime_ns_max=200 * MS, slack_ns=20 * MS, period_ns=20 * MS,
    skew_ns=100 * MS, spreads=False, durable=False,
)  # fmt: skip


class DeadlineChurn(Comings):
    """Brokers in place of nodes of a cube. Late events are dropped; order is across topics."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.across = True

    def make(self, name: str) -> RegisteredBroker:  # type: ignore[override]
        return RegisteredBroker(
            name=name,
            registry=REGISTRY,
            members=self.lists[name],
            config=CONFIG,
            now_ns=self.now_ns,
        )

    def farewell(self, name: str) -> None:
        self.nodes[name].say_goodbye()
        self.drain(name)

    def holds(self, name: str, text: bytes) -> bool:
        waiting = self.nodes[name].broker._causality.waiting  # type: ignore[attr-defined]
        return any(held.sent.event.payload == text for held in waiting.values())

    def is_joining(self, name: str) -> bool:
        asked = {topic for topic, action in self.nodes[name]._client._asks if action == "subscribe"}
        return bool(asked)


@pytest.mark.parametrize(
    "first",
    [0, *(pytest.param(first, marks=pytest.mark.verify) for first in range(30, SEEDS, 30))],
)
def test_order_holds_and_no_process_is_stuck_during_churn(first: int) -> None:
    assert sum(judged(DeadlineChurn(seed), seed) for seed in range(first, first + 30)) > 500


if __name__ == "__main__":
    show(DeadlineChurn, sys.argv[1])
