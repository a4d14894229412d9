"""Clients that try to join with other terms than those of all others, and have to be refused."""

import asyncio
from collections.abc import Callable

import ensue
from ensue.core.errors import EnsueError, UnsupportedOrder
from ensue.core.order import Order

__all__ = ["join_with_other_terms"]

AGREE_S = 15.0
"""How soon a client with other terms has to be refused."""


async def join_with_other_terms(url: Callable[[], str], order: Order, problems: list[str]) -> None:
    """Try to join programs in this order with other terms; note whether that succeeds."""
    other: Order = ensue.Deadline(ms=777)
    if isinstance(order, ensue.Merged):
        other = ensue.Merged(epsilon=order.epsilon * 2, delta=order.delta)
    elif isinstance(order, ensue.Total):
        other = ensue.Total()
    try:
        async with asyncio.timeout(AGREE_S):
            if isinstance(order, ensue.Total):
                await _subscribe(url(), order, other, problems)
            async with ensue.connect(url(), order=other, name="stranger") as bus:
                problems.append(f"terms: {bus.name} was let in with {other!r}")
    except TimeoutError:
        problems.append(f"liveness: a client with other terms waited {AGREE_S:g} s")
    except EnsueError:
        pass


async def _subscribe(url: str, order: Order, other: Order, problems: list[str]) -> None:
    """Try to subscribe with other terms on a bus that was let in."""
    async with ensue.connect(url, order=order, name="stranger") as bus:
        try:
            bus.subscribe("a", order=other)
        except UnsupportedOrder:
            return
        problems.append(f"terms: a subscription of {bus.name} was let in with {other!r}")
