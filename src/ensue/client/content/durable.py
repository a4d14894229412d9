"""Reading a durable subscription by content, from its mailbox at a broker.

A durable subscription has a session of its own with the broker that keeps its mailbox: the one at
the server that its name picks (`Placement.state_store`), whichever server the bus is connected to.
The broker sends at most `pending_max` events beyond the last acknowledged one.

Positions are those of the mailbox: 1, 2, 3, … over all readers. At most one acknowledgement is
under way; the next one has everything that was acknowledged meanwhile.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ensue.client.content.session import CONTENT, WithoutDeliveries, content_event
from ensue.client.failures import client_failure, fail
from ensue.client.reader import Reader
from ensue.core.errors import LocalProtocolError
from ensue.protocols.content.client import (
    Answered,
    Attachment,
    Notified,
    SessionEnded,
    Superseded,
    Welcomed,
)
from ensue.protocols.interface import (
    Acknowledged,
    Deliver,
    Join,
    Notification,
    Outcome,
    Refuse,
)
from ensue.protocols.shared.remote_state import DISMISSED
from ensue.protocols.transactions.client import TransactionClient
from ensue.protocols.transactions.nodes import ClientNode
from ensue.runtime.content_brokers import ContentBrokers
from ensue.runtime.driver import Driver
from ensue.runtime.hub_memory import Hub

__all__ = ["DurableMailbox", "DurableReader", "DurableRequest", "lingering_name"]

EXPIRED = "expired"
REDELIVERED = "redelivered"
"""The verdict of an event that an earlier reader may have had."""


def lingering_name(name: str, *, by_content: bool) -> str:
    """Return the name by which a closed subscription lingers: one for each kind."""
    return f"{CONTENT}/{name}" if by_content else name


@dataclass(frozen=True, kw_only=True)
class DurableRequest:
    """The events that a durable subscription by content requests."""

    where: str
    name: str
    window: int
    """Events that may be unacknowledged."""
    accept_loss: bool
    brokers: ContentBrokers


class DurableMailbox:
    """The client's side of a mailbox: the target of a subscription's commands."""

    def __init__(
        self,
        request: DurableRequest,
        ask: Callable[[Callable[[TransactionClient, int], int]], "asyncio.Future[Answered]"],
        on_outcome: Callable[[Outcome], None],
    ) -> None:
        self._request = request
        self._ask = ask
        self._on_outcome = on_outcome
        self._attaching = 0
        """The request to attach."""
        self._mailbox = ""
        self._epoch = 0
        self._acknowledged = 0
        """The last position that the application has acknowledged."""
        self._asked = 0
        """The last position that was sent."""
        self._safe = 0
        """The last position that the broker has dropped."""
        self.topics: tuple[str, ...] = ()
        self.held_count = 0

    def subscribe(self, topics: Iterable[str], *, now_ns: int) -> None:
        """Attach; `Join` reports that the subscription is in effect."""
        del topics, now_ns
        wanted = self._request

        def attach(client: TransactionClient, now: int) -> int:
            self._attaching = client.attach(
                wanted.name,
                wanted.where,
                window=wanted.window,
                accept_loss=wanted.accept_loss,
                now_ns=now,
            )
            return self._attaching

        self._ask(attach).add_done_callback(self._attached)

    def unsubscribe(self, topics: Iterable[str], *, now_ns: int) -> None:
        """Do nothing: `release` ends it."""

    def begin(self, attachment: Attachment) -> None:
        """Note the epoch of this reader."""
        if attachment.number == self._attaching:
            self._mailbox, self._epoch = attachment.mailbox, attachment.epoch

    def end(self, superseded: Superseded) -> None:
        """End: another client reads, or events were lost."""
        if superseded.epoch == self._epoch:
            self._epoch, self.topics = 0, ()
            self._on_outcome(Refuse((), superseded.reason))

    def takes(self, notified: Notified) -> bool:
        """Return whether an event is for this reader, and has not been acknowledged."""
        return notified.epoch == self._epoch and notified.position > self._acknowledged

    def acknowledge(self, position: int) -> None:
        """Acknowledge the events up to a position."""
        self._acknowledged = max(self._acknowledged, position)
        self._send_acknowledgement()

    def release(self, *, forget: bool) -> "asyncio.Future[Answered] | None":
        """Stop reading; `forget` ends the subscription for ever."""
        if not self._epoch:
            return None
        mailbox, epoch = self._mailbox, self._epoch
        self._epoch, self.topics = 0, ()
        return self._ask(
            lambda client, now: client.release(mailbox, epoch, forget=forget, now_ns=now)
        )

    def _attached(self, future: "asyncio.Future[Answered]") -> None:
        if future.cancelled() or future.exception() is not None:
            return
        refused = future.result().refused
        if refused:
            self._on_outcome(Refuse((CONTENT,), refused))
        else:
            self.topics = (CONTENT,)
            self._on_outcome(Join(CONTENT))

    def _send_acknowledgement(self) -> None:
        if self._asked > self._safe or self._acknowledged <= self._asked or not self._epoch:
            return
        mailbox, epoch, position = self._mailbox, self._epoch, self._acknowledged
        self._asked = position
        self._ask(
            lambda client, now: client.acknowledge(mailbox, epoch, position, now_ns=now)
        ).add_done_callback(self._stored)

    def _stored(self, future: "asyncio.Future[Answered]") -> None:
        if future.cancelled() or future.exception() is not None or future.result().refused:
            return  # Another reader attached, or the session ended: `Refuse` reports that.
        self._safe = self._asked
        self._on_outcome(Acknowledged(self._safe))
        self._send_acknowledgement()


class DurableReader(Reader):
    """Reads the mailbox of a durable subscription, in a session of its own."""

    watches_handover = True

    def __init__(self, hub: Hub, *, name: str, request: DurableRequest) -> None:
        super().__init__(name)
        self._hub = hub
        self._request = request
        self._driver: Driver[ClientNode] | None = None
        self._on_outcomes: Callable[[Sequence[Outcome]], None] = lambda _outcomes: None
        self._mailbox: DurableMailbox | None = None
        self._answers: dict[int, asyncio.Future[Answered]] = {}
        self._unrecorded: dict[int, Notified] = {}
        """By position: queued events that the trace does not have yet."""
        self._client = ""
        self._is_closing = False

    @property
    def node(self) -> DurableMailbox | None:
        """The mailbox, which has topics as a node does."""
        return self._mailbox

    @property
    def started(self) -> bool:
        """Whether the session was begun."""
        return self._driver is not None

    async def open(
        self,
        *,
        client: str,
        subscription: str,
        on_outcomes: Callable[[Sequence[Outcome]], None],
    ) -> None:
        """Begin the session; return when all brokers know it."""
        del subscription
        hub, self._client, self._on_outcomes = self._hub, client, on_outcomes
        lingering = lingering_name(self._request.name, by_content=True)
        if (resting := hub.lingering.get(lingering)) is not None:
            await resting.settle()
            resting.rest()
        await hub.enter(self.name)
        if self.resumed.done():
            hub.leave(self.name)
            self.resumed.result()  # Closed in the meantime: this raises.
        self._mailbox = DurableMailbox(
            self._request, self._ask, lambda outcome: self._on_outcomes((outcome,))
        )
        self._driver = Driver(
            self._request.brokers.client(self.name, durable=self._request.name),
            transport=hub.transport,
            clock=hub.clock,
            on_outcomes=self._outcomes,
            recorder=None if hub.recorder is None else WithoutDeliveries(hub.recorder),
            seen_as=client,
        )
        hub.watch(self._driver)
        await self.resumed

    def command(self, call: Callable[[Any, int], object]) -> None:
        """Call a function with the mailbox and the time."""
        call(self._mailbox, self._hub.clock.now_ns())

    def _ask(self, command: Callable[[TransactionClient, int], int]) -> "asyncio.Future[Answered]":
        """Run a command that the broker answers; return the pending answer."""
        future: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()
        # An answer that no task waits for may fail.
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        if self._driver is None or not self._driver.takes_commands:
            future.cancel()
            return future

        def run(node: ClientNode, now_ns: int) -> None:
            self._answers[command(node.client, now_ns)] = future

        self._driver.command(run)
        return future

    def _outcomes(self, outcomes: Sequence[Outcome]) -> None:
        delivered: list[Outcome] = []
        for outcome in outcomes:
            if isinstance(outcome, Notification) and isinstance(outcome.value, Notified):
                if self._mailbox is not None and self._mailbox.takes(outcome.value):
                    delivered.append(self._deliver(outcome.value))
                continue
            if delivered:
                self._on_outcomes(delivered)
                delivered = []
            if isinstance(outcome, Notification):
                self._on_value(outcome.value)
            elif isinstance(outcome, Refuse):
                self._end(outcome)
        if delivered:
            self._on_outcomes(delivered)

    def _deliver(self, notified: Notified) -> Deliver:
        if self._hub.recorder is not None:
            self._unrecorded[notified.position] = notified
        return Deliver(content_event(notified.publication), notified.position)

    def _on_value(self, value: object) -> None:
        assert self._mailbox is not None
        match value:
            case Answered():
                future = self._answers.pop(value.number, None)
                if future is not None and not future.done():
                    future.set_result(value)
            case Attachment():
                self._mailbox.begin(value)
            case Superseded():
                self._mailbox.end(value)
            case Welcomed() if not self.resumed.done():
                self.resumed.set_result(None)
            case SessionEnded():
                self._end(Refuse((), EXPIRED))

    def _end(self, outcome: Refuse) -> None:
        """End the session: a server refused it, lost its log, or missed it for too long."""
        fail(self.resumed, client_failure(outcome, self._client))
        answers, self._answers = self._answers, {}
        for future in answers.values():
            fail(future, LocalProtocolError("the session has ended"))
        if not self._is_closing:
            self._on_outcomes((outcome,))

    # -- The trace ---------------------------------------------------------------------------------

    def hand_over(self, delivery: Deliver) -> Deliver:
        """Record an event as delivered."""
        notified = self._unrecorded.get(delivery.position)
        again = notified is not None and notified.redelivered
        self._record(delivery, "delivered", REDELIVERED if again else "")
        return delivery

    def leave_unread(self, deliveries: Iterable[Deliver], *, ended: bool) -> None:
        """Record that the application never gets these events from this reader."""
        del ended
        for each in deliveries:
            self._record(each, "discarded", "unread")

    def _record(self, delivery: Deliver, action: str, verdict: str) -> None:
        notified = self._unrecorded.pop(delivery.position, None)
        if notified is not None and self._hub.recorder is not None:
            row = Notification(None, notified.row(action, delivery.position, verdict))
            self._hub.recorder.outcome(self._client, None, row, self._hub.clock.now_ns())

    # -- The end -----------------------------------------------------------------------------------

    def pause(self) -> None:
        """Do nothing: the broker sends no more than there is room for."""

    def resume(self) -> None:
        """Do nothing: acknowledgements let the broker go on."""

    def dismiss(self) -> None:
        """Tell the broker to forget the subscription."""
        assert self._mailbox is not None
        asked = self._mailbox.release(forget=True)
        if asked is not None:
            asked.add_done_callback(self._dismissed)

    def _dismissed(self, future: "asyncio.Future[Answered]") -> None:
        if not future.cancelled() and future.exception() is None:
            self._on_outcomes((Refuse((), future.result().refused or DISMISSED),))

    def retire(self, topics: tuple[str, ...]) -> None:
        """Close; the mailbox stays."""
        del topics
        self.rest()

    def rest(self, *, silently: bool = False) -> None:
        """Close at once; the mailbox stays."""
        del silently
        driver, self._is_closing = self._driver, True
        if driver is not None and not driver.closed:
            if self._mailbox is not None:
                self._mailbox.release(forget=False)
            if not driver.node.client.ended:
                driver.command(lambda node, now: node.client.leave(now_ns=now))
            driver.close()
        self._hub.leave(self.name)
