"""Reading by content: a subscription's share in the content session of its bus.

The trace has `delivered` when the application gets an event, not when its session does. Events that
are unread when the bus closes are `discarded` with the verdict `unread`.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ensue.client.content.session import CONTENT, ContentSession, content_event
from ensue.client.event_queue import EventQueue
from ensue.client.reader import Reader
from ensue.client.validation import PENDING_MAX, Acknowledge, check_acknowledge, check_pending_max
from ensue.core.errors import LogLost
from ensue.protocols.content.client import Answered, Notified
from ensue.protocols.interface import Deliver, Join, Leave, Outcome, Refuse
from ensue.protocols.transactions.client import TransactionClient
from ensue.protocols.transactions.operations import OVER
from ensue.runtime.driver import Failed
from ensue.runtime.hub_memory import Hub
from ensue.runtime.names import check_text

__all__ = ["ContentReader", "ContentRequest", "ContentShare", "ReadOptions"]


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """How a subscription by content is read. Raises `BadInput` for invalid values."""

    name: str | None = None
    pending_max: int = PENDING_MAX
    acknowledge: Acknowledge = "auto"

    def __post_init__(self) -> None:
        check_pending_max(self.pending_max)
        check_acknowledge(self.acknowledge)
        if self.name is not None:
            check_text(self.name, "a subscription's name")


@dataclass(frozen=True, kw_only=True)
class ContentRequest:
    """The events that a subscription by content requests."""

    where: str
    session: ContentSession
    transaction: str = ""
    """The transaction that subscribes; empty: none."""
    made: str = ""
    """The name of a subscription that a plan makes, or has made."""
    within: str = ""
    """The invitation within the transaction, if this client does not coordinate it."""
    options: ReadOptions = ReadOptions()


class ContentShare:
    """One subscription's share in the content session.

    It takes the commands of a node: `subscribe`, `unsubscribe`, `acknowledge`.
    """

    def __init__(
        self,
        request: ContentRequest,
        on_outcome: Callable[[Outcome], None],
        *,
        room: Callable[[], int | None],
        queue: EventQueue,
    ) -> None:
        self._request = request
        self._session = request.session
        self._on_outcome = on_outcome
        self._room = room
        """Returns how many more events there is room for; None: any number."""
        self._queue = queue
        self._position = 0
        self._undecided = bool(request.transaction)
        """Whether the transaction that subscribes is still open."""
        self._ended = ""
        """Its name at brokers, if it ended before that."""
        self.subscription = ""
        """Its name at brokers."""
        self.draining = False
        """Whether a transaction has withdrawn it: routed events may come until `withdrawn`."""
        self._unrecorded: dict[int, Notified] = {}
        """By position: queued events that the trace does not have yet."""
        self._begun = ""
        """The transaction of which some events have arrived, and others follow."""
        self.topics: tuple[str, ...] = ()
        self.held_count = 0

    def subscribe(self, topics: Iterable[str], *, now_ns: int) -> None:
        """Subscribe; `Join` reports that it is in effect, or part of its transaction."""
        del topics, now_ns
        request = self._request
        if request.made:
            self.subscription, self.topics = request.made, (CONTENT,)
            self._on_outcome(Join(CONTENT))
            self._session.read(request.made, self)
            return

        def subscribe(client: TransactionClient, now: int) -> int:
            if request.transaction:
                number, self.subscription = client.act(
                    request.transaction,
                    "sub",
                    within=request.within,
                    where=request.where,
                    now_ns=now,
                )
            else:
                number, self.subscription = client.subscribe(request.where, now_ns=now)
            return number

        future = self._session.ask(subscribe)
        self._session.read(self.subscription, self)
        future.add_done_callback(self._answered)
        if request.transaction:
            self._session.when_over(request.transaction, self._concluded)

    def unsubscribe(self, topics: Iterable[str], *, now_ns: int) -> None:
        """Withdraw it."""
        del topics, now_ns
        self.record_unread("not_subscribed")
        self.end()

    def end(self) -> None:
        """Deliver nothing more, and withdraw it from the brokers."""
        name, self.subscription = self.subscription, ""
        self.topics = ()
        if name:
            self._session.stop_reading(name)
            if self._undecided or self.draining:
                self._ended = name  # Brokers don't have it, or not permanently.
                self._session.leave(name)
            else:
                self._session.withdraw(name)

    def withdrawn(self) -> None:
        """End: a transaction has withdrawn it, and no more events come."""
        self._session.stop_reading(self.subscription)
        self.subscription = ""
        if self.topics:
            self.topics = ()
            self._on_outcome(Leave(CONTENT))

    def acknowledge(self, position: int) -> None:
        """Do nothing: no event is delivered again."""

    def _answered(self, future: "asyncio.Future[Answered]") -> None:
        if future.cancelled() or future.exception() is not None:
            return
        refused = future.result().refused
        if refused:
            self._session.stop_reading(self.subscription)
            self.subscription = ""
            self._on_outcome(Refuse((CONTENT,), refused))
        elif not self.subscription:
            self._on_outcome(Refuse((CONTENT,), OVER))  # It was aborted meanwhile.
        else:
            self.topics = (CONTENT,)
            self._on_outcome(Join(CONTENT))

    def _concluded(self, committed: bool) -> None:
        self._undecided = False
        if not committed:
            self._session.stop_reading(self._ended)
            self.withdrawn()
        elif self._ended:
            self._session.withdraw(self._ended)

    def lost(self, reason: str, error: LogLost | None = None) -> None:
        """End with an error, maybe because a server has lost its log."""
        self.subscription, self.topics = "", ()
        self._on_outcome(Refuse((), reason) if error is None else Failed((), error.reason, error))

    def notified(self, notified: Notified) -> None:
        """Deliver an event; end if it and the rest of its transaction do not fit."""
        if not self.subscription:
            self._session.record(notified, "discarded", 0, "not_subscribed")
            return
        if self._begun == notified.transaction != "":
            fits = True  # Room was found for the whole transaction.
        else:
            room = self._room()
            fits = room is None or 1 + notified.following <= room
        self._begun = notified.transaction if notified.following else ""
        if not fits:
            self._overflow(notified)
            return
        self._position += 1
        if self._session.recorded:
            self._unrecorded[self._position] = notified
        self._on_outcome(Deliver(content_event(notified.publication), self._position))

    def record(self, position: int, action: str, verdict: str = "") -> None:
        """Write the outcome of an event into the trace, once."""
        notified = self._unrecorded.pop(position, None)
        if notified is not None:
            self._session.record(notified, action, position, verdict)

    def record_unread(self, verdict: str) -> None:
        """Record the unread events as discarded."""
        for delivery in self._queue.unread:
            self.record(delivery.position, "discarded", verdict)

    def _overflow(self, notified: Notified) -> None:
        """End the subscription: its reader is too slow, and brokers keep no events."""
        limit, room = self._request.options.pending_max, self._room() or 0
        if notified.transaction:
            more = f"a transaction has {1 + notified.following} more, delivered all or none"
        else:
            more = "another one arrived"
        self.end()
        self._session.record(notified, "discarded", 0, "overflow")
        self.lost(
            f"it did not keep up: {limit - room} events are unread, {more}, "
            f"and pending_max is {limit}; read it faster, or raise pending_max"
        )


class ContentReader(Reader):
    """Reads a share in the content session of its bus."""

    watches_handover = True

    def __init__(
        self,
        hub: Hub,
        *,
        name: str,
        request: ContentRequest,
        room: Callable[[], int | None],
        queue: EventQueue,
    ) -> None:
        super().__init__(name)
        self._hub = hub
        self._request = request
        self._room = room
        self._queue = queue
        self._share: ContentShare | None = None
        self._retired = False

    @property
    def node(self) -> ContentShare | None:
        """The share, which has topics and positions as a node does."""
        return self._share

    @property
    def is_recorded(self) -> bool:
        """Whether the trace has the outcome of all its events."""
        return self._retired and not self._queue.unread

    async def open(
        self,
        *,
        client: str,
        subscription: str,
        on_outcomes: Callable[[Sequence[Outcome]], None],
    ) -> None:
        """Open the share."""
        del client, subscription
        session = self._request.session
        await session.open()
        if self.resumed.done():
            self.resumed.result()  # It was closed meanwhile: this raises.
        self._share = ContentShare(
            self._request,
            lambda outcome: on_outcomes((outcome,)),
            room=self._room,
            queue=self._queue,
        )
        session.keep_recorded(self)
        self.resumed.set_result(None)
        await asyncio.sleep(0)

    def command(self, call: Callable[[Any, int], object]) -> None:
        """Call a function with the share and the time."""
        assert self._share is not None
        call(self._share, self._hub.clock.now_ns())

    def hand_over(self, delivery: Deliver) -> Deliver:
        """Record an event as delivered."""
        if self._share is not None:
            self._share.record(delivery.position, "delivered")
        return delivery

    def record_unread(self, verdict: str) -> None:
        """Record the unread events as discarded."""
        if self._share is not None:
            self._share.record_unread(verdict)

    def pause(self) -> None:
        """Do nothing: the share ends when the next event does not fit."""

    def resume(self) -> None:
        """Do nothing: there are no pauses."""

    def retire(self, topics: tuple[str, ...]) -> None:
        """End the share."""
        del topics
        self._retired = True
        if self._share is not None:
            self._share.end()

    def rest(self, *, silently: bool = False) -> None:
        """End the share."""
        del silently
        self.retire(())
