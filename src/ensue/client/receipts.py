"""What became of published events: who waits for which, and what failed with nobody waiting."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable

from ensue.client.futures import fail
from ensue.errors import EnsueError, EventRefused, EventVoided
from ensue.event import Event
from ensue.protocols.core import Settle

__all__ = ["Receipts"]

Key = tuple[str, int]
"""The topic of an event and its number there."""
Receipt = asyncio.Future[Event]


class Receipts:
    """The events of one bus that are not settled."""

    __slots__ = ("_failure", "_loop", "_open")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._open: OrderedDict[Key, Receipt | None] = OrderedDict()
        """None: nobody waits, and a failure is kept for `flush`."""
        self._failure: Exception | None = None

    def __len__(self) -> int:
        return len(self._open)

    def expect(self, event: Event, *, wanted: bool) -> Receipt | None:
        """Note that an event is under way; return what to wait for if its receipt is wanted."""
        receipt = self._loop.create_future() if wanted else None
        self._open[event.topic, event.publisher_seq] = receipt
        return receipt

    def settle(self, outcome: Settle) -> None:
        """Note the fate of an event."""
        event = outcome.event
        key = (event.topic, event.publisher_seq)
        if key not in self._open:
            return
        receipt = self._open.pop(key)
        if outcome.reason or outcome.verdict:
            error = _failure(outcome)
            if receipt is None:
                self._failure = self._failure or error
            else:
                fail(receipt, error)
        elif receipt is not None and not receipt.done():
            receipt.set_result(event)

    async def wait_for_first(self) -> None:
        """Wait until the event that has been under way longest is settled."""
        for key in self._open:
            await asyncio.wait((self._receipt(key),))
            return

    async def wait_for_all(self) -> None:
        """Wait until everything that is under way now is settled."""
        if self._open:
            await asyncio.wait([self._receipt(key) for key in self._open])

    def take_failure(self) -> Exception | None:
        """Return, once, the first failure that nobody waited for."""
        failure, self._failure = self._failure, None
        return failure

    def fail_all(self, error: Callable[[str, int], EnsueError]) -> None:
        """Give everything up."""
        for (topic, number), receipt in self._open.items():
            if receipt is not None:
                fail(receipt, error(topic, number))
            elif self._failure is None:
                self._failure = error(topic, number)
        self._open.clear()

    def _receipt(self, key: Key) -> Receipt:
        """Return what to wait for, made now if nobody has waited so far."""
        receipt = self._open[key]
        if receipt is None:
            receipt = self._open[key] = self._loop.create_future()
            receipt.add_done_callback(self._looked_at)
        return receipt

    def _looked_at(self, receipt: Receipt) -> None:
        error = None if receipt.cancelled() else receipt.exception()
        if isinstance(error, Exception):
            self._failure = self._failure or error


def _failure(outcome: Settle) -> EnsueError:
    event = outcome.event
    if outcome.reason:
        return EventRefused(
            f"{event.id} was refused: {outcome.reason}", event=event.id, reason=outcome.reason
        )
    return EventVoided(
        f"{event.id} lost its place in the order and reached nobody; publish it again",
        event=event.id,
    )
