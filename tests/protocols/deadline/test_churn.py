"""Deadline order among processes that come and go: every client is a broker that joins.

`python -m tests.protocols.gossip.test_comings A:B` plays further seeds.
"""

import sys

import pytest
from tests.protocols.hypercube.comings import Comings, judged, show
from tests.protocols.hypercube.room import MS, REGISTRY

from ensue.protocols.gossip.config import GossipConfig
from ensue.protocols.gossip.enrolled import EnrolledBroker

SEEDS = 120
CONFIG = GossipConfig(
    lifetime_ns=200 * MS, lifetime_ns_max=200 * MS, slack_ns=20 * MS, period_ns=20 * MS,
    skew_ns=100 * MS, spreads=False, durable=False,
)  # fmt: skip


class TimelyComings(Comings):
    """Brokers instead of nodes of a cube. What is late is dropped; order is across topics."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.across = True

    def make(self, name: str) -> EnrolledBroker:  # type: ignore[override]
        return EnrolledBroker(
            name=name,
            registry=REGISTRY,
            lists=self.lists[name],
            config=CONFIG,
            now_ns=self.now_ns,
        )

    def farewell(self, name: str) -> None:
        self.nodes[name].say_goodbye()
        self.drain(name)

    def holds(self, name: str, text: bytes) -> bool:
        waiting = self.nodes[name]._causality.waiting  # type: ignore[attr-defined]
        return any(held.sent.event.payload == text for held in waiting.values())

    def is_joining(self, name: str) -> bool:
        asked = {
            topic for topic, action in self.nodes[name]._enlistment._asks if action == "subscribe"
        }
        return bool(asked)


@pytest.mark.parametrize("first", range(0, SEEDS, 30))
def test_order_holds_and_nobody_is_stuck_whoever_comes_and_goes(first: int) -> None:
    assert sum(judged(TimelyComings(seed), seed) for seed in range(first, first + 30)) > 500


if __name__ == "__main__":
    show(TimelyComings, sys.argv[1])
