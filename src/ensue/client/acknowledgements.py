"""Acknowledgements of a subscription: what was handled, and how far the server knows.

Events are acknowledged in any order; what counts is the unbroken run from the start. Of a durable
subscription the server keeps the end of that run, and a position up to it is safe: it is never
delivered again.
"""

import asyncio
from collections import OrderedDict

from ensue.client.failures import fail
from ensue.core.errors import LocalProtocolError, SubscriptionLost
from ensue.core.lineage import REPLACED, ROLLED_BACK
from ensue.protocols.shared.state_store import FORGOTTEN

__all__ = ["Acknowledgements"]

_ACCEPT = ": events may be gone that had receipts; subscribe with accept_loss=True to go on"
_WHY_LOST = {
    "superseded": "another process took over its name",
    FORGOTTEN: (
        "the server keeps nothing of it: it was forgotten, or the server has another log than "
        "before"
    ),
    "expired": "the server did not hear of it for too long; subscribe again",
    REPLACED: f"a server has another log than the one it has read{_ACCEPT}",
    ROLLED_BACK: f"a server has an older state of its log than the one it has read{_ACCEPT}",
}


class Acknowledgements:
    """Positions handed out, acknowledged and safe, and the tasks that wait for them.

    Where nothing is kept (`keeps` is False) nothing waits. After `close` a task waits for at most
    `settle_s` seconds.
    """

    __slots__ = (
        "_closed",
        "_handed_out",
        "_settle_s",
        "_waiting",
        "acknowledged",
        "ended",
        "keeps",
        "lost",
        "open",
        "safe",
    )

    def __init__(self, *, keeps: bool, settle_s: float) -> None:
        self.keeps = keeps
        self._settle_s = settle_s
        self.open: OrderedDict[int, None] = OrderedDict()
        """Positions handed out and not acknowledged, ascending."""
        self._handed_out = 0
        """The highest position handed out."""
        self.acknowledged = 0
        """The end of the unbroken run of acknowledged positions."""
        self.safe = 0
        """The end of the run that the server has, which is never delivered again."""
        self.lost: SubscriptionLost | None = None
        """Why the subscription is over."""
        self.ended = False
        """Whether nothing more becomes safe."""
        self._closed: LocalProtocolError | None = None
        """Set by `close`: the error for tasks that waited in vain."""
        self._waiting: dict[asyncio.Future[None], int] = {}

    @property
    def settled(self) -> bool:
        """Whether all that was acknowledged is safe."""
        return self.safe >= self.acknowledged

    def hand_out(self, position: int) -> None:
        """Note that the application was given the event at a position."""
        self._handed_out = position
        self.open[position] = None

    def acknowledge(self, position: int) -> int | None:
        """Note that the event at an open position was handled.

        Return the new end of the unbroken run; None if the run has not grown.
        """
        del self.open[position]
        # The run ends before the first open position, or with all that was handed out.
        first = next(iter(self.open), self._handed_out + 1)
        if first < position:
            return None
        self.acknowledged = first - 1
        return self.acknowledged

    def reached(self, position: int) -> None:
        """Note that positions up to this one are safe."""
        self.safe = max(self.safe, position)
        for future, needed in list(self._waiting.items()):
            if needed <= position and not future.done():
                future.set_result(None)

    def lose(self, name: str, reason: str, why: str = "") -> SubscriptionLost:
        """Note that the subscription is lost and nothing more becomes safe; return the error."""
        why = why or _WHY_LOST.get(reason, reason)
        self.lost = SubscriptionLost(f"subscription {name!r} is over: {why}", reason=reason)
        for future in self._waiting:
            fail(future, self.lost)
        return self.lost

    def forget(self) -> None:
        """Note that the server keeps nothing any more, so that nothing is delivered again."""
        self.keeps = False
        self.reached(self.acknowledged)

    def close(self, name: str) -> None:
        """Limit waiting to `settle_s` seconds from now on."""
        self._closed = LocalProtocolError(
            f"the acknowledgement did not get through before subscription {name!r} was over: "
            "the event may come again"
        )
        for future in self._waiting:
            self._limit(future, self._closed)

    def end(self) -> None:
        """Fail all that waits: nothing more becomes safe."""
        self.ended = True
        if self._closed is not None:
            for future in self._waiting:
                fail(future, self._closed)

    async def until(self, position: int) -> None:
        """Wait until a position is safe, as far as all before it is acknowledged."""
        if not self.keeps or self.safe >= position:
            return
        if self.lost is not None:
            raise self.lost
        if self.ended and self._closed is not None:
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

    def failure(self, error: Exception) -> Exception:
        """Return why settling failed: the error of a closed subscription, or the one given."""
        return self._closed or error

    def _limit(self, future: asyncio.Future[None], error: LocalProtocolError) -> None:
        asyncio.get_running_loop().call_later(self._settle_s, fail, future, error)
