"""Play the programs of a seed on the whole stack, and return a small result."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec

from ensue.simulation.seeds import SeedResult, raised
from ensue.testing.faults import Faults
from ensue.testing.swarm import AnyDraw, draw, run

__all__ = ["ALL", "ORDERS", "by_order", "draw_lines", "play_seed", "quietly"]

ORDERS = (
    "total",
    "total-noncausal",
    "total-moves",
    "total-content",
    "causal",
    "merged",
    "deadline",
    "transactions",
    "operations",
)
ALL = "all"
"""Stands for every order."""


@contextmanager
def quietly() -> Iterator[None]:
    """Keep the log lines of simulated processes from the terminal."""
    # By its level, which the loggers below it inherit.
    logger = logging.getLogger("ensue")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before)


def play_seed(order: str, seed: int) -> SeedResult:
    """Play one seed of an order, or of all.

    Of all, each sentence of a failure begins with its order (`by_order`).
    """
    failure: list[str] = []
    steps = published = delivered = 0
    for each in ORDERS if order == ALL else (order,):
        label = f"{each}: " if order == ALL else ""
        try:
            with quietly():
                outcome = run(draw(seed, each))
        except Exception as error:  # noqa: BLE001 - any exception is a failure of this seed
            failure.append(f"{label}{raised(error)}")
            continue
        failure += [f"{label}{problem}" for problem in outcome.problems]
        steps += len(outcome.rows)
        published += sum(row.action == "published" for row in outcome.rows)
        delivered += sum(row.action == "delivered" for row in outcome.rows)
    return SeedResult(
        seed=seed, failure=tuple(failure), steps=steps, published=published, delivered=delivered
    )


def by_order(failure: Sequence[str]) -> dict[str, list[str]]:
    """Return the sentences of each order that failed, of a seed of all.

    Without one, such as after the death of a process, any order may have failed.
    """
    found: dict[str, list[str]] = {}
    for sentence in failure:
        order = sentence.partition(": ")[0]
        if order in ORDERS:
            found.setdefault(order, []).append(sentence)
    return found or {order: list(failure) for order in ORDERS}


def draw_lines(drawn: AnyDraw) -> list[str]:
    """Describe what a seed draws, a line each, without what is not in the program."""
    lines = []
    for name, value in msgspec.structs.asdict(drawn).items():
        if isinstance(value, Faults):
            rates = ", ".join(f"{each} {rate:g}" for each, rate in value.rates.items())
            lines.append(f"  faults per minute: {rates or 'none'}")
        elif value and name != "seed":
            shown = ", ".join(map(str, value)) if isinstance(value, tuple) else value
            lines.append(f"  {name.replace('_', ' ')}: {shown}")
    return lines
