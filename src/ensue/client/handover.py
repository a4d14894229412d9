"""Handing events to the application of a subscription, and taking its acknowledgements.

One by one, or in batches of what has arrived; an application may do both in turns. If
acknowledgements are automatic, asking for more acknowledges everything handed out before.

Nothing is awaited between taking an event and returning it: a cancelled task has taken none.
"""

from collections.abc import Callable, Coroutine
from typing import Any, Self

from ensue.client.acknowledgements import Acknowledgements
from ensue.client.backpressure import Backpressure
from ensue.client.event_queue import EventQueue
from ensue.client.reader import Reader
from ensue.client.received_event import Acknowledger, ReceivedEvent
from ensue.client.trace_rows import SubscriptionRows
from ensue.core.errors import LocalProtocolError
from ensue.protocols.interface import Deliver

__all__ = ["BATCH_MAX", "Batches", "Handover"]

BATCH_MAX = 1_000
"""Default for the events of a batch."""


class Handover:
    """Hands the unread events of one subscription to its application."""

    __slots__ = (
        "_acknowledgements",
        "_backpressure",
        "_durable",
        "_is_closed",
        "_queue",
        "_reader",
        "_rows",
        "_subscription",
        "_watches",
        "_working_reader",
        "automatic",
    )

    def __init__(
        self,
        subscription: Acknowledger,
        *,
        queue: EventQueue,
        acknowledgements: Acknowledgements,
        backpressure: Backpressure,
        durable: bool,
        automatic: bool,
        is_closed: Callable[[], bool],
        working_reader: Callable[[], Reader | None],
    ) -> None:
        self._subscription = subscription
        self._queue = queue
        self._acknowledgements = acknowledgements
        self._backpressure = backpressure
        self._durable = durable
        self.automatic = automatic
        """Whether asking for the next event acknowledges the last one."""
        self._is_closed = is_closed
        self._working_reader = working_reader
        """Returns the reader, unless it takes no more commands."""
        self._reader: Reader | None = None
        self._rows: SubscriptionRows | None = None
        self._watches = False

    @property
    def pending(self) -> int:
        """Number of unread or unacknowledged events."""
        return len(self._queue.unread) + len(self._acknowledgements.open)

    @property
    def watches(self) -> bool:
        """Whether the reader checks each event once more when the application takes it."""
        return self._watches

    def begin(self, reader: Reader, rows: SubscriptionRows | None) -> None:
        """Note the reader, and where the rows of the trace are written."""
        self._reader, self._rows = reader, rows
        self._watches = reader.watches_handover

    async def next_event(self) -> ReceivedEvent:
        """Return the next event, and acknowledge the last one if that is automatic."""
        queue, acknowledgements = self._queue, self._acknowledgements
        self._take_turn()
        delivery = None
        while delivery is None:
            while not queue.unread:
                await self._until_woken()
            delivery = queue.unread.popleft()
            if self._watches:
                delivery = self._hand_over(delivery)
        acknowledgements.hand_out(delivery.position)
        if self._rows is not None:
            self._rows.read(delivery)
        return ReceivedEvent(
            delivery.event, delivery.position, delivery.verdict, self._subscription
        )

    async def next_batch(self, size_max: int) -> list[ReceivedEvent]:
        """Return the next events that are there, at least one, as `next_event` does one."""
        queue, rows, subscription = self._queue, self._rows, self._subscription
        hand_out = self._acknowledgements.hand_out
        self._take_turn()
        batch: list[ReceivedEvent] = []
        while not batch:
            while not queue.unread:
                await self._until_woken()
            unread = queue.unread
            while unread and len(batch) < size_max:
                delivery: Deliver | None = unread.popleft()
                if self._watches and delivery is not None:
                    delivery = self._hand_over(delivery)
                if delivery is None:
                    continue
                hand_out(delivery.position)
                if rows is not None:
                    rows.read(delivery)
                batch.append(
                    ReceivedEvent(delivery.event, delivery.position, delivery.verdict, subscription)
                )
        return batch

    def check_late(self, event: ReceivedEvent) -> ReceivedEvent | None:
        """Return an event as its handler gets it; None: its deadline has passed, drop it."""
        reader = self._reader
        verdict = event.verdict if reader is None else reader.check(event.event, event.verdict)
        if verdict is None:
            return None
        return event if verdict == event.verdict else event.with_verdict(verdict)

    def acknowledge_last(self) -> None:
        """Acknowledge everything that was handed out."""
        acknowledgements = self._acknowledgements
        if not acknowledgements.open:
            return
        if self._durable:
            self._command_acknowledgement(acknowledgements.acknowledge_all())
        else:
            acknowledgements.open.clear()
        if self._backpressure.full:
            self.relieve()

    def acknowledge(self, position: int) -> None:
        """Acknowledge the event at a position, once."""
        if position not in self._acknowledgements.open:
            return
        reached = self._acknowledgements.acknowledge(position)
        if reached is not None and (self._durable or not self.automatic):
            self._command_acknowledgement(reached)
        self.relieve()

    def relieve(self) -> None:
        """Unblock publishers, or the reader, if few enough events are pending."""
        if self._backpressure.full and not self._is_closed():
            self._backpressure.relieve(self.pending, self._working_reader())

    def _command_acknowledgement(self, reached: int) -> None:
        reader = self._working_reader()
        if reader is not None:
            reader.command(lambda node, _now: node.acknowledge(reached))

    def _take_turn(self) -> None:
        """Begin to read; asking for more acknowledges what was handed out before."""
        if self._queue.has_reader:
            raise LocalProtocolError(
                "another task is already reading this subscription: read it in one task, "
                "or make a subscription for each"
            )
        if self.automatic and self._acknowledgements.open:
            self.acknowledge_last()

    async def _until_woken(self) -> None:
        if self._acknowledgements.lost is not None:
            raise self._acknowledgements.lost
        if self._is_closed():
            raise StopAsyncIteration
        await self._queue.until_woken()

    def _hand_over(self, delivery: Deliver) -> Deliver | None:
        """Return a delivery as the application gets it; None: its deadline has passed."""
        handed = None if self._reader is None else self._reader.hand_over(delivery)
        if handed is None:
            self.relieve()
        return handed


class Batches:
    """The events of a subscription in batches. Made by `Subscription.batches`."""

    def __init__(self, handover: Handover, size_max: int, check: Callable[[], None]) -> None:
        self._handover = handover
        self._size_max = size_max
        self._check = check
        """Raises unless the subscription can be read."""

    def __aiter__(self) -> Self:
        return self

    def __anext__(self) -> Coroutine[Any, Any, list[ReceivedEvent]]:
        self._check()
        return self._handover.next_batch(self._size_max)
