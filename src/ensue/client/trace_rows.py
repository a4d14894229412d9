"""The trace rows of a subscription, written where the application stands.

`delivered` is written when the application is handed an event. In a run without concurrency that is
when its handler is first called: events that were only read ahead are held here until then.

The rows end with those of `unsubscribed`. Events that are unread by then are `discarded` as
`unread`; the application may still read them, and the trace does not mention that.
"""

from collections.abc import Collection, Iterable

from ensue.client.received_event import ReceivedEvent
from ensue.core.clock import Clock
from ensue.protocols.interface import Deliver
from ensue.protocols.recorder import Recorder

__all__ = ["CLOSED", "SubscriptionRows"]

CLOSED = "closed"
"""The verdict of `unsubscribed` when a durable subscription is closed and keeps its place."""


class SubscriptionRows:
    """Writes the rows of one subscription.

    `deliveries` is False if its reader writes what the application gets, or never gets.
    """

    __slots__ = (
        "_ahead",
        "_client",
        "_clock",
        "_deliveries",
        "_ended",
        "_name",
        "_reading_ahead",
        "_recorder",
    )

    def __init__(
        self, recorder: Recorder, clock: Clock, *, client: str, name: str, deliveries: bool
    ) -> None:
        self._recorder = recorder
        self._clock = clock
        self._client = client
        self._name = name
        self._deliveries = deliveries
        self._reading_ahead = False
        """Whether a run reads events before it calls its handler with them."""
        self._ahead: dict[int, Deliver] = {}
        """By position, ascending: events read ahead whose handler was not called."""
        self._ended = False

    def begin_run(self, *, in_turn: bool) -> None:
        """Note that a run begins; `in_turn`: it reports each call of its handler.

        Handlers that run side by side get events in the sequence in which they are read.
        """
        self._reading_ahead = in_turn
        if not in_turn:
            self._write_ahead()

    def end_run(self) -> None:
        """Note that the run has ended."""
        self._reading_ahead = False

    def read(self, delivery: Deliver) -> None:
        """Record an event that was read."""
        if self._ended or not self._deliveries:
            return
        if self._reading_ahead:
            self._ahead[delivery.position] = delivery
            return
        if self._ahead:
            self._write_ahead()
        self._write(delivery)

    def called(self, event: ReceivedEvent) -> None:
        """Record that a handler is called with an event, the first time."""
        delivery = self._ahead.pop(event.position, None)
        if delivery is not None:
            self._write(delivery)

    def left(self, topics: Collection[str], unread: Iterable[Deliver]) -> None:
        """Record that topics were left before these events of them were read."""
        ahead = [each for each in self._ahead.values() if each.event.topic in topics]
        for each in ahead:
            del self._ahead[each.position]
        self.unread((*ahead, *unread))

    def unread(self, deliveries: Iterable[Deliver]) -> None:
        """Record that the application does not get these events."""
        if self._deliveries and not self._ended:
            now_ns = self._clock.now_ns()
            for each in deliveries:
                self._recorder.unread(self._client, self._name, each, now_ns)

    def resumed(self, topics: Iterable[str]) -> None:
        """Record the topics that a durable subscription has when it is entered again."""
        now_ns = self._clock.now_ns()
        for topic in topics:
            self._recorder.resumed(self._client, self._name, topic, now_ns)

    def acknowledged(self, position: int) -> None:
        """Record that everything up to a position is safe."""
        self._recorder.acknowledged(self._client, self._name, position, self._clock.now_ns())

    def forgotten(self, topics: Iterable[str]) -> None:
        """Record that the application has a durable subscription with these topics forgotten."""
        now_ns = self._clock.now_ns()
        for topic in topics:
            self._recorder.forgotten(self._client, self._name, topic, now_ns)

    def end(self, unread: Iterable[Deliver], topics: Iterable[str] = (), verdict: str = "") -> None:
        """Record that the subscription ends, once.

        `topics` are those that no node reports to be left, and `verdict` says why.
        """
        if self._ended:
            return
        self.unread((*self._ahead.values(), *unread))
        self._ahead.clear()
        self._ended = True
        now_ns = self._clock.now_ns()
        for topic in topics:
            self._recorder.ended(self._client, self._name, topic, now_ns, verdict)

    def _write_ahead(self) -> None:
        """Record what the last run read and left to others."""
        for delivery in self._ahead.values():
            self._write(delivery)
        self._ahead.clear()

    def _write(self, delivery: Deliver) -> None:
        self._recorder.handed_over(self._client, self._name, delivery, self._clock.now_ns())
