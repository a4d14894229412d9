"""Calls of the public API that few programs make, each drawn by a generator of its own.

As with rare faults, a seed that draws none of them keeps its program and its trace.
"""

from typing import Protocol

from ensue.testing.swarm.rare_faults import rarely

__all__ = [
    "BOUNDS",
    "CLOSES",
    "COUNTS",
    "EXPIRY",
    "FORGET",
    "GUESTS",
    "HEADERS",
    "HELD",
    "INSIDE",
    "KEPT",
    "MANUAL",
    "MANY",
    "OFFERS",
    "PLANS",
    "TERMS",
    "TOKENS",
    "UNORDERED",
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
UNORDERED = "unordered"
"""Buses without order, and subscriptions without order on a bus with one."""
FORGET = "forget"
"""A durable subscription is forgotten, and entered again."""
MANUAL = "manual"
"""A plain subscription is acknowledged by its application."""
BOUNDS = "bounds"
"""Handlers with small limits: events read ahead, events parked, keys parked."""
CLOSES = "closes"
"""Buses are closed with a limit of its own."""
HELD = "held"
"""Subscriptions hold back few events."""
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
    UNORDERED: 53,
    FORGET: 38,
    MANUAL: 175,
    BOUNDS: 1180,
    CLOSES: 243,
    HELD: 616,
    PLANS: 4,
    GUESTS: 0,
    KEPT: 2,
    INSIDE: 2,
}
"""By call: the number of its generator. With these, seeds that tests note draw none of them."""
_TOPICS = (HEADERS, COUNTS, MANY, UNORDERED, MANUAL, BOUNDS, CLOSES, HELD)
"""Calls of all programs on topics."""
_BY_ORDER = {
    "total": (*_TOPICS, FORGET),
    "total-noncausal": (*_TOPICS, FORGET),
    "total-moves": (*_TOPICS, FORGET),
    "causal": _TOPICS,
    "merged": (*_TOPICS, TERMS, TOKENS),
    "deadline": (*_TOPICS, TERMS),
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
    return _BY_ORDER[order]


def draw_calls(seed: int, order: str) -> tuple[str, ...]:
    """Draw which of these calls a program makes."""
    return tuple(
        each
        for each in possible_calls(order)
        if rarely(f"calls/{each}", _NUMBERS[each], seed, order)
    )
