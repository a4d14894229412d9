"""Networks that few programs run on: servers accept late, or links have a low bandwidth.

They stay so after healing: everything that is owed arrives all the same, only later (`LATE_S`).
"""

import msgspec

from ensue.testing.network import NetworkOptions
from ensue.testing.swarm.rare_faults import rarely

__all__ = ["SLOW", "VERY_SLOW", "draw_network", "late_s", "network_options"]

NUMBER = 1246
"""Of the generator: with it, seeds that tests note have the usual network."""
LATE_S = 25.0
"""How much later than on the usual network all clients are connected again, and have all events."""
SLOW, VERY_SLOW = "slow accepts", "very slow accepts"
VERY_LATE_S = 45.0
"""The same where a server may take nine seconds to accept, and two connections may be needed."""
NETWORKS: dict[str, dict[str, object]] = {
    SLOW: {"accept_ms": (0.0, 3_000.0)},
    VERY_SLOW: {"accept_ms": (1_000.0, 9_000.0)},
    "low bandwidth": {"bytes_per_s": 100_000, "queues": True},
    "very low bandwidth": {"bytes_per_s": 20_000, "queues": True},
}
"""By name: what differs from the usual network."""


def draw_network(seed: int, order: str) -> str:
    """Draw the network of a program; empty: the usual one."""
    random = rarely("network", NUMBER, seed, order)
    if random is None:
        return ""
    drawn = random.choice([name for name in NETWORKS if name != VERY_SLOW])
    return VERY_SLOW if drawn == SLOW and random.random() < 0.4 else drawn


def network_options(name: str, **options: object) -> NetworkOptions:
    """Return the options of a drawn network, and others."""
    return msgspec.convert({**NETWORKS.get(name, {}), **options}, NetworkOptions)


def late_s(name: str) -> float:
    """Return how much later than usual everything has arrived on a network."""
    if name == VERY_SLOW:
        return VERY_LATE_S
    return LATE_S if name else 0.0
