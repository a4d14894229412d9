"""The part of a subscription that takes acknowledgements, makes room, and comes to rest.

A subscription that is closed hands out what it has, and nothing more comes. One that is durable lingers: it goes on taking acknowledgements until all that it
was given is handled and safe. It comes to rest before that when its block or its bus is left, or when its name is entered again, after it has settled: what is
acknowledged by then is waited for, as is a run, the `close_timeout` of the bus in all. Whoever acknowledges an event after that is told that it may come again.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Sequence

from ensue.client.ahead import ReadAhead
from ensue.client.futures import fail
from ensue.client.joining import Joining
from ensue.client.reader import Reader
from ensue.client.safety import Safety
from ensue.errors import LocalProtocolError
from ensue.protocols.core import Deliver
from ensue.runtime.hub import Hub, Slow

__all__ = ["Acknowledging", "settle_all"]


class Acknowledging:
    """What was handed out, what became of it, and how that ends."""

    def __init__(
        self, hub: Hub, *, name: str, durable: bool, automatic: bool, pending_max: int
    ) -> None:
        self.durable = durable
        self.pending_max = pending_max
        self._hub = hub
        self._automatic = automatic
        self._reader: Reader | None = None
        self._dismissed: asyncio.Future[None] | None = None
        self._safety = Safety(keeps=durable, settle_s=hub.close_timeout_s)
        self._slow = Slow(name)
        self._queue: deque[Deliver] = deque()
        self._unacknowledged: OrderedDict[int, None] = OrderedDict()
        """Positions of what was handed out and not acknowledged, rising."""
        self._handed_out = 0
        """The highest position handed out."""
        self._joining = Joining()
        self._waiter: asyncio.Future[None] | None = None
        self._ahead = ReadAhead()
        self._full = False  # Since it ran out of room, until half of that is left.
        self._closed = False
        self._rested = False

    @property
    def name(self) -> str:
        """The name of this subscription, in traces and warnings."""
        return self._slow.name

    @property
    def closed(self) -> bool:
        """Whether it has ended."""
        return self._closed

    @property
    def pending(self) -> int:
        """How many events are not handled yet."""
        return len(self._queue) + len(self._unacknowledged)

    def acknowledge(self, position: int) -> None:
        """Say that the event at a position has been handled."""
        self._hub.check_loop("this subscription")
        self._handled(position)

    async def until_safe(self, position: int) -> None:
        """Wait until the acknowledgement of a position is safe; at once if nothing is kept."""
        await self._safety.until(position)

    async def settle(self, by_s: float | None = None) -> None:
        """Wait until what was acknowledged or left is safe, for a durable subscription, and until a run of a closed one is over; not for ever."""
        await self._safety.settle(self._ahead if self._closed else None, self._joining, by_s)

    def close(self) -> None:
        """Leave all topics. What was received can still be read, and acknowledged; then iteration ends."""
        if self._closed:
            return
        self._hub.check_loop("this subscription")
        self._closed = True
        self._hub.full.pop(self._slow, None)
        self._slow.room.set()
        self._safety.close(self.name)
        try:
            if self._lingers and self._reader is not None:
                self._hub.lingering[self._reader.name] = self
                self._reader.pause()
            else:
                self.rest()
        finally:
            for topic in self._joining.waiting():
                why = f"the subscription was closed before it joined {topic!r}"
                self._joining.give_up(topic, LocalProtocolError(why))
            self._wake()

    async def finish(self) -> None:
        """Close, settle, and come to rest; at once if cancelled."""
        try:
            self.close()
            await self.settle()
        finally:
            self.rest()

    def rest(self) -> None:
        """Close, and take no acknowledgement any more: what is not safe by now may come again."""
        self.close()
        if self._rested:
            return
        self._rested = True
        reader = self._reader
        try:
            if reader is not None and reader.started:
                self._retire(reader)
        finally:
            if reader is not None:
                if self._hub.lingering.get(reader.name) is self:
                    del self._hub.lingering[reader.name]
                fail(reader.resumed, LocalProtocolError("the subscription was closed meanwhile"))
            if self._dismissed is not None:
                why = f"{self.name!r} was closed before it was forgotten: it may be, or not"
                fail(self._dismissed, LocalProtocolError(why))
            self._joining.stop_leaving()
            self._safety.end()

    def _rest_if_done(self) -> None:
        """Come to rest if it is closed and there is nothing left to be acknowledged."""
        if self._closed and not self._lingers:
            self.rest()

    @property
    def _lingers(self) -> bool:
        """Whether acknowledgements may still come, or they or topics that were left are not safe yet."""
        entered = self._reader is not None and self._reader.node is not None
        over = self._safety.lost is not None or self._dismissed is not None
        if not self.durable or not entered or over:
            return False
        settled = self._safety.settled and not self._joining.leaving
        return bool(self.pending) or self._ahead.running or not settled

    def _retire(self, reader: Reader) -> None:
        reader.leave_unread(self._queue, ended=True)
        if self._safety.lost is not None:
            reader.rest(silently=True)
        elif self.durable:
            reader.rest()
        else:
            reader.retire(tuple(self._joining.asked))

    def _handled(self, position: int) -> None:
        if position not in self._unacknowledged:
            return
        del self._unacknowledged[position]
        if self.durable or not self._automatic:
            # The unbroken run ends before the first that is open, or with all handed out.
            first = next(iter(self._unacknowledged), self._handed_out + 1)
            if first > position:
                self._safety.acknowledged = first - 1
                if (reader := self._working_reader) is not None:
                    reader.command(lambda node, _now: node.acknowledge(first - 1))
        self._relieve()

    def _no_room(self) -> None:
        hub = self._hub
        self._full = True
        if hub.holds_publishers:
            hub.full[self._slow] = None
            self._slow.room.clear()
        elif self._reader is not None:
            self._reader.pause()

    def _relieve(self) -> None:
        if self._closed or not self._full or self.pending > self.pending_max // 2:
            return
        self._full = False
        if (reader := self._working_reader) is not None:
            reader.resume()
        if self._slow in self._hub.full:
            del self._hub.full[self._slow]
            self._slow.room.set()

    @property
    def _working_reader(self) -> Reader | None:
        return None if self._rested or self._safety.lost is not None else self._reader

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


async def settle_all(subscriptions: Sequence[Acknowledging], by_s: float) -> None:
    """Close those that are durable, and wait until they have settled, or until a time of the event loop."""
    durable = [each for each in subscriptions if each.durable]
    for each in durable:
        each.close()
    for each in durable:
        await each.settle(by_s)
