"""How far a subscription has been acknowledged, and how far that is safe."""

import asyncio

from ensue.client.futures import fail
from ensue.errors import SubscriptionLost

__all__ = ["Safety"]

_WHY_LOST = {
    "superseded": "another process has taken its name up",
    "expired": "nothing was heard of it for too long; subscribe again",
}


class Safety:
    """Positions acknowledged, positions safe, and who waits for the difference.

    Where nothing is kept, nothing waits: `keeps` is False.
    """

    __slots__ = ("_waiting", "acknowledged", "keeps", "lost", "safe")

    def __init__(self, *, keeps: bool) -> None:
        self.keeps = keeps
        self.acknowledged = 0
        """Everything up to this position was acknowledged."""
        self.safe = 0
        """… and up to this one will never come again."""
        self.lost: SubscriptionLost | None = None
        """Why the subscription is over."""
        self._waiting: dict[asyncio.Future[None], int] = {}

    def reached(self, position: int) -> None:
        """Note that acknowledgements up to a position are safe."""
        self.safe = max(self.safe, position)
        for future, needed in list(self._waiting.items()):
            if needed <= position and not future.done():
                future.set_result(None)

    def lose(self, name: str, reason: str) -> SubscriptionLost:
        """Note that a subscription is over, and nothing more will become safe; return why."""
        why = _WHY_LOST.get(reason, reason)
        self.lost = SubscriptionLost(f"subscription {name!r} is over: {why}", reason=reason)
        for future in self._waiting:
            fail(future, self.lost)
        return self.lost

    async def until(self, position: int) -> None:
        """Wait until a position is safe, as far as everything before it was acknowledged."""
        if not self.keeps or self.safe >= position:
            return
        if self.lost is not None:
            raise self.lost
        needed = min(position, self.acknowledged)
        if self.safe >= needed:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[future] = needed
        try:
            await future
        finally:
            del self._waiting[future]
