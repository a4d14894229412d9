"""Wait for a condition, not for time to pass."""

import asyncio
from collections.abc import Callable

__all__ = ["DEADLINE_S", "until"]

DEADLINE_S = 60.0
PAUSE_S = 0.01


async def until(
    condition: Callable[[], object], what: str, *, deadline_s: float = DEADLINE_S
) -> None:
    """Return when a condition holds; fail with its description after a timeout."""
    try:
        async with asyncio.timeout(deadline_s):
            while not condition():  # noqa: ASYNC110 - of any condition
                await asyncio.sleep(PAUSE_S)
    except TimeoutError:
        raise AssertionError(f"not within {deadline_s:g} s: {what}") from None
