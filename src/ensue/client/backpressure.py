"""Back-pressure: a subscription without room blocks publishers, or pauses its reader.

A subscription runs out of room at `pending_max` unhandled events and has room again at half of
that. Where publishers and subscriptions share a process (`memory://`), publishers to its topics
wait. Elsewhere the reader pauses and catches up from the log.
"""

import asyncio
import logging

from ensue.client.reader import Reader
from ensue.core.errors import LocalProtocolError
from ensue.runtime.hub_memory import Hub, Slow

__all__ = ["Backpressure", "wait_for_room"]

PATIENCE_S = 5.0
"""A longer wait of a publisher is logged, once per period."""

_log = logging.getLogger("ensue")


class Backpressure:
    """Back-pressure of one subscription on its publishers or its reader."""

    __slots__ = ("_hub", "_pending_max", "full", "slow")

    def __init__(self, hub: Hub, *, name: str, pending_max: int) -> None:
        self._hub = hub
        self._pending_max = pending_max
        self.slow = Slow(name)
        self.full = False
        """Set at `pending_max` events, until half of them are handled."""

    def engage(self, reader: Reader | None) -> None:
        """Block publishers, or pause the reader: there is no room."""
        self.full = True
        if self._hub.holds_publishers:
            self._hub.full[self.slow] = None
            self.slow.room.clear()
        elif reader is not None:
            reader.pause()

    def relieve(self, pending: int, reader: Reader | None) -> None:
        """Unblock publishers or resume the reader if few enough events are pending."""
        if not self.full or pending > self._pending_max // 2:
            return
        self.full = False
        if reader is not None:
            reader.resume()
        if self.slow in self._hub.full:
            self.release()

    def release(self) -> None:
        """Unblock publishers, whatever is pending."""
        self._hub.full.pop(self.slow, None)
        self.slow.room.set()


async def wait_for_room(hub: Hub, topic: str, ended: "asyncio.Future[None]") -> None:
    """Wait until every subscription to a topic has room, or the bus is closed (`ended`)."""
    began_s = asyncio.get_running_loop().time()
    patience_s = PATIENCE_S
    while (slow := hub.blocker(topic)) is not None:
        left_s = began_s + patience_s - asyncio.get_running_loop().time()
        room = asyncio.ensure_future(slow.room.wait())
        try:
            done, _ = await asyncio.wait(
                (room, ended),
                timeout=max(0.0, left_s),
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            room.cancel()
        if ended.done():
            raise LocalProtocolError(
                "the bus was closed while this publish waited for room: nothing was published"
            )
        if not done:
            _log.warning(
                "publish waits topic=%s waited_s=%g subscription=%s: it has no room; read it "
                "faster, or raise its pending_max",
                topic,
                patience_s,
                slow.name,
            )
            patience_s += PATIENCE_S
