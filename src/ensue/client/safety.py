"""How far a subscription has been acknowledged, and how far that is safe."""

import asyncio
import logging
from typing import Protocol

from ensue.client.futures import fail
from ensue.client.joining import Joining
from ensue.errors import LocalProtocolError, SubscriptionLost
from ensue.protocols.keeping import FORGOTTEN
from ensue.protocols.lineage import REPLACED, ROLLED_BACK

__all__ = ["Safety"]

_ACCEPT = ": events may be gone that had receipts; subscribe with accept_loss=True to go on"
_WHY_LOST = {
    "superseded": "another process has taken its name up",
    FORGOTTEN: "the server keeps nothing of it: it was forgotten, or the server has another log than before",
    "expired": "nothing was heard of it for too long; subscribe again",
    REPLACED: f"a server has another log than the one it has read{_ACCEPT}",
    ROLLED_BACK: f"a server has an older state of its log than the one it has read{_ACCEPT}",
}

_log = logging.getLogger("ensue")


class Run(Protocol):
    """What acknowledges events until it is over."""

    async def until_over(self) -> None:
        """Wait for its end."""


class Safety:
    """Positions acknowledged, positions safe, and who waits for the difference.

    Where nothing is kept, nothing waits: `keeps` is False. Closing waits for `settle_s` at most.
    """

    __slots__ = (
        "_closed",
        "_over",
        "_settle_s",
        "_waiting",
        "acknowledged",
        "keeps",
        "lost",
        "safe",
    )

    def __init__(self, *, keeps: bool, settle_s: float) -> None:
        self.keeps = keeps
        self._settle_s = settle_s
        self.acknowledged = 0
        """Everything up to this position was acknowledged."""
        self.safe = 0
        """… and up to this one will never come again."""
        self.lost: SubscriptionLost | None = None
        """Why the subscription is over."""
        self._closed: LocalProtocolError | None = None
        """Since it was closed: what whoever waits is told if that is in vain."""
        self._over = False
        """Whether nothing more will become safe."""
        self._waiting: dict[asyncio.Future[None], int] = {}

    @property
    def settled(self) -> bool:
        """Whether all that was acknowledged is safe."""
        return self.safe >= self.acknowledged

    def reached(self, position: int) -> None:
        """Note that acknowledgements up to a position are safe."""
        self.safe = max(self.safe, position)
        for future, needed in list(self._waiting.items()):
            if needed <= position and not future.done():
                future.set_result(None)

    def lose(self, name: str, reason: str, why: str = "") -> SubscriptionLost:
        """Note that a subscription is over, and nothing more will become safe; return why."""
        why = why or _WHY_LOST.get(reason, reason)
        self.lost = SubscriptionLost(f"subscription {name!r} is over: {why}", reason=reason)
        for future in self._waiting:
            fail(future, self.lost)
        return self.lost

    def forget(self) -> None:
        """Note that nothing comes again, because nothing is kept any more."""
        self.keeps = False
        self.reached(self.acknowledged)

    def close(self, name: str) -> None:
        """Note that a subscription was closed: from now on nobody waits longer than `settle_s`."""
        self._closed = LocalProtocolError(
            f"the acknowledgement did not get through before subscription {name!r} was over: "
            "the event may come again"
        )
        for future in self._waiting:
            self._limit(future, self._closed)

    def end(self) -> None:
        """Note that a subscription rests, and nothing more will become safe."""
        self._over = True
        if self._closed is not None:
            for future in self._waiting:
                fail(future, self._closed)

    async def until(self, position: int) -> None:
        """Wait until a position is safe, as far as everything before it was acknowledged."""
        if not self.keeps or self.safe >= position:
            return
        if self.lost is not None:
            raise self.lost
        if self._over and self._closed is not None:
            raise self._closed
        needed = min(position, self.acknowledged)
        if self.safe >= needed:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._closed is not None:
            self._limit(future, self._closed)
        self._waiting[future] = needed
        try:
            await future
        finally:
            del self._waiting[future]

    async def settle(self, run: Run | None, joining: Joining, by_s: float | None) -> None:
        """Wait until a run is over, if there is one, what was acknowledged is safe, and topics are left for good; say so if that takes too long.

        That is `settle_s`, unless the time of the event loop is given by which it has to be.
        """
        if not self.keeps:
            return
        try:
            loop = asyncio.get_running_loop()
            async with asyncio.timeout_at(loop.time() + self._settle_s if by_s is None else by_s):
                if run is not None and not self._over:
                    await run.until_over()
                await self.until(self.acknowledged)
                if not self._over and self.lost is None:
                    await joining.until_left()
        except SubscriptionLost:
            pass  # Whoever reads is told.
        except (TimeoutError, LocalProtocolError) as error:
            if joining.leaving:
                _log.warning(
                    "unsubscribe_unconfirmed topics=%s: the durable subscription may still have them when it is entered again",
                    ",".join(sorted(joining.leaving)),
                )
            if not joining.leaving or not self.settled:
                _log.warning("%s", self._closed or error)

    def _limit(self, future: asyncio.Future[None], error: LocalProtocolError) -> None:
        asyncio.get_running_loop().call_later(self._settle_s, fail, future, error)
