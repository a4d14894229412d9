"""Calls of the public API that few programs make, each drawn by a generator of its own.

As with rare faults, a seed that draws none of them keeps its program and its trace.
"""

from typing import Protocol

from ensue.testing.swarm.rare_faults import rarely

__all__ = [
    "COUNTS",
    "EXPIRY",
    "GUESTS",
    "HEADERS",
    "INSIDE",
    "KEPT",
    "MANY",
    "OFFERS",
    "PLANS",
    "TERMS",
    "TOKENS",
    "Phase",
    "draw_calls",
    "possible_calls",
]

HEADERS = "headers"
"""Events with headers."""
COUNTS = "counts"
"""A subscription compares its counts with what it got."""
TERMS = "terms"
"""Other terms of an order: late events are handed out with a verdict, ticks are longer."""
TOKENS = "tokens"
"""A bus answers events that it learned of outside of Ensue."""
OFFERS = "offers"
"""Advertisements, plans and acknowledgements of subscriptions by content."""
EXPIRY = "expiry"
"""Events on a transport that loses some have a time to live."""
MANY = "many"
"""Many events are published and read at once."""
PLANS = "plans"
"""Plans say what other clients do, and are decided about early."""
GUESTS = "guests"
"""Invited clients advertise and invite others; invitations find too few."""
KEPT = "kept"
"""Durable subscriptions by content are forgotten, refused and expire."""
INSIDE = "inside"
"""Content, transactions and cells on `memory://`."""

_NUMBERS = {
    HEADERS: 656,
    COUNTS: 210,
    TERMS: 123,
    TOKENS: 123,
    OFFERS: 3,
    EXPIRY: 2,
    MANY: 4,
    PLANS: 4,
    GUESTS: 0,
    KEPT: 2,
    INSIDE: 2,
}
"""By call: the number of its generator. With these, seeds that tests note draw none of them."""
_BY_ORDER = {
    "merged": (HEADERS, COUNTS, TERMS, TOKENS, MANY),
    "deadline": (HEADERS, COUNTS, TERMS, MANY),
    "transactions": (OFFERS, PLANS, GUESTS, KEPT),
    "operations": (EXPIRY, MANY, INSIDE),
    "total-content": (),
}


class Phase(Protocol):
    """How far a program is."""

    calm: bool
    """Whether faults are over."""
    over: bool
    """Whether clients stop."""


def possible_calls(order: str) -> tuple[str, ...]:
    """Return which of these calls programs of an order may make."""
    return _BY_ORDER.get(order, (HEADERS, COUNTS, MANY))


def draw_calls(seed: int, order: str) -> tuple[str, ...]:
    """Draw which of these calls a program makes."""
    return tuple(
        each
        for each in possible_calls(order)
        if rarely(f"calls/{each}", _NUMBERS[each], seed, order)
    )
