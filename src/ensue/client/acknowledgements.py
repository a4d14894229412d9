"""Acknowledgements of a subscription: handled positions, and those stored at the server.

Events are acknowledged in any order; only the unbroken run from the start counts. The server stores
the end of that run for a durable subscription. Positions up to it are safe: their events are never
delivered again.
"""

import asyncio
from collections import OrderedDict

from ensue.client.failures import fail
from ensue.core.errors import LocalProtocolError, SubscriptionLost
from ensue.core.lineage import REPLACED, ROLLED_BACK
from ensue.protocols.shared.state_store import FORGOTTEN

__all__ = ["Acknowledgements"]

_ACCEPT = (
    ": events with receipts may be lost; subscribe again to continue, "
    "if it is durable with accept_loss=True"
)
_WHY_LOST = {
    "superseded": "another process took over its name",
    FORGOTTEN: ("the server has no record of it: it was forgotten, or the server has another log"),
    "expired": "the server received nothing from it for too long: subscribe again",
    REPLACED: f"a server has another log than the one that was read{_ACCEPT}",
    ROLLED_BACK: f"a server has an older state of its log than was read{_ACCEPT}",
}


class Acknowledgements:
    """Positions handed out, acknowledged and safe, and the tasks that wait for them.

    No task waits if no server stores positions (`keeps` is False). After `close` a task waits for
    at most `settle_s` seconds.
    """

    __slots__ = (
        "_closed",
        "_settle_s",
        "_waiting",
        "acknowledged",
        "ended",
        "handed_out",
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
        self.handed_out = 0
        """The highest position handed out."""
        self.acknowledged = 0
        """The end of the unbroken run of acknowledged positions."""
        self.safe = 0
        """The end of the run that the server has stored."""
        self.lost: SubscriptionLost | None = None
        """Why the subscription has ended."""
        self.ended = False
        """Whether no more positions become safe."""
        self._closed: LocalProtocolError | None = None
        """Set by `close`: the error for tasks whose position does not become safe."""
        self._waiting: dict[asyncio.Future[None], int] = {}

    @property
    def settled(self) -> bool:
        """Whether all acknowledged positions are safe."""
        return self.safe >= self.acknowledged

    def hand_out(self, position: int) -> None:
        """Note that the application got the event at a position."""
        self.handed_out = position
        self.open[position] = None

    def acknowledge(self, position: int) -> int | None:
        """Note that the event at an open position was handled.

        Return the new end of the unbroken run; None if the run has not grown.
        """
        del self.open[position]
        # The run ends before the first open position, or at the last one handed out.
        first = next(iter(self.open), self.handed_out + 1)
        if first < position:
            return None
        self.acknowledged = first - 1
        return self.acknowledged

    def acknowledge_all(self) -> int:
        """Note that all events handed out were handled; return the end of the unbroken run."""
        self.open.clear()
        self.acknowledged = self.handed_out
        return self.acknowledged

    def reached(self, position: int) -> None:
        """Note that positions up to this one are safe."""
        self.safe = max(self.safe, position)
        for future, needed in list(self._waiting.items()):
            if needed <= position and not future.done():
                future.set_result(None)

    def lose(self, name: str, reason: str, why: str = "") -> SubscriptionLost:
        """Note that the subscription is lost; return the error. No more positions become safe."""
        why = why or _WHY_LOST.get(reason, reason)
        self.lost = SubscriptionLost(f"subscription {name!r} has ended: {why}", reason=reason)
        for future in self._waiting:
            fail(future, self.lost)
        return self.lost

    def forget(self) -> None:
        """Note that the server has forgotten the subscription: no event is delivered again."""
        self.keeps = False
        self.reached(self.acknowledged)

    def close(self, name: str) -> None:
        """Limit waiting to `settle_s` seconds from now on."""
        self._closed = LocalProtocolError(
            f"subscription {name!r} ended before its acknowledgement was stored: the event may be "
            "delivered again"
        )
        for future in self._waiting:
            self._limit(future, self._closed)

    def end(self) -> None:
        """Fail all waiting tasks: no more positions become safe."""
        self.ended = True
        if self._closed is not None:
            for future in self._waiting:
                fail(future, self._closed)

    async def until(self, position: int) -> None:
        """Wait until a position is safe, or the unbroken run if it ends before it."""
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
        timer = asyncio.get_running_loop().call_later(self._settle_s, fail, future, error)
        future.add_done_callback(lambda _: timer.cancel())
