"""Faults that strike in few programs, each drawn by a generator of its own.

A seed that draws none of them has the same program and the same trace as without this module. So
new faults are added here, and all other seeds keep what they found.
"""

from random import Random

import msgspec

from ensue.core.errors import AccessDenied, EnsueError, SubscriptionLost
from ensue.testing.faults import Faults

__all__ = [
    "RARE",
    "add_rare_faults",
    "is_expiry",
    "long_busy_s",
    "long_settle_s",
    "may_expire",
    "rarely",
]

EVERY = 16
"""One seed of so many draws a fault."""
RARE = {
    "clock_drifts": 66,
    "client_suspends": 189,
    "server_suspends": 37,
    "client_power_cuts": 10,
    "blackholes": 12,
    "client_stops": 37,
}
"""By fault: the number of its generator. With these, seeds that tests note draw none of them."""

LONG_BUSY_S = 80.0
"""How much longer faults strike where outages are long."""
LONG_SETTLE_S = 25.0
"""How much longer healing takes where clients have to notice that a server is silent: 20 s."""


def rarely(what: str, number: int, seed: int, order: str, *, every: int = EVERY) -> Random | None:
    """Return the generator of something that one of `every` seeds draws; None: this does not."""
    random = Random(f"swarm/{what}/{number}/{order}/{seed}")  # noqa: S311 - replays a seed
    return random if random.randrange(every) == 0 else None


def add_rare_faults(faults: Faults, seed: int, order: str) -> Faults:
    """Add those rare faults that a seed draws to the others."""
    rates = {
        name: random.choice((2.0, 6.0, 15.0))
        for name, number in RARE.items()
        if (random := rarely(f"faults/{name}", number, seed, order)) is not None
    }
    return msgspec.structs.replace(faults, **rates)


def long_busy_s(faults: Faults) -> float:
    """Return how much longer than usual faults strike."""
    return LONG_BUSY_S if may_expire(faults) or faults.client_power_cuts else 0.0


def may_expire(faults: Faults) -> bool:
    """Return whether servers may give up clients that live."""
    return bool(faults.client_suspends or faults.server_suspends)


def is_expiry(error: EnsueError, faults: Faults) -> bool:
    """Return whether a client got an error because servers gave it up, as these faults allow."""
    if not may_expire(faults):
        return False
    if isinstance(error, SubscriptionLost):
        return error.reason == "expired" or "away for too long" in error.reason
    return isinstance(error, AccessDenied) and "away for too long" in str(error)


def long_settle_s(faults: Faults) -> float:
    """Return how much later than usual clients are connected again after healing."""
    return LONG_SETTLE_S if faults.blackholes else 0.0
