"""Handing events to the application of a subscription, and taking its acknowledgements.

Nothing is awaited between taking an event and returning it: a cancelled task has taken none.
"""

from collections.abc import Callable

from ensue.client.acknowledgements import Acknowledgements
from ensue.client.backpressure import Backpressure
from ensue.client.event_queue import EventQueue
from ensue.client.reader import Reader
from ensue.client.received_event import Acknowledger, ReceivedEvent
from ensue.client.trace_rows import SubscriptionRows
from ensue.core.errors import LocalProtocolError
from ensue.protocols.interface import Deliver

__all__ = ["Handover"]


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
        self._check_alone()
        if self.automatic and acknowledgements.open:
            self.acknowledge_last()
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

    def check_late(self, event: ReceivedEvent) -> ReceivedEvent | None:
        """Return an event as its handler gets it; None: its deadline has passed, drop it."""
        reader = self._reader
        verdict = event.verdict if reader is None else reader.check(event.event, event.verdict)
        if verdict is None:
            return None
        return event if verdict == event.verdict else event.with_verdict(verdict)

    def acknowledge_last(self) -> None:
        """Acknowledge what was handed out, if the application has not done so."""
        acknowledgements = self._acknowledgements
        if self._durable:
            for position in tuple(acknowledgements.open):
                self.acknowledge(position)
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
            reader = self._working_reader()
            if reader is not None:
                reader.command(lambda node, _now: node.acknowledge(reached))
        self.relieve()

    def relieve(self) -> None:
        """Unblock publishers, or the reader, if few enough events are pending."""
        if self._backpressure.full and not self._is_closed():
            self._backpressure.relieve(self.pending, self._working_reader())

    def _check_alone(self) -> None:
        if self._queue.has_reader:
            raise LocalProtocolError(
                "another task is already reading this subscription: read it in one task, "
                "or make a subscription for each"
            )

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
