"""A subscription: reads events one at a time or in batches, in order, from a bounded queue.

Reading. Cancelling a task that waits for the next event or batch loses no event.

Acknowledging is automatic by default: asking for more acknowledges what was handed out before. With
`acknowledge="manual"` each event is acknowledged by `ack`, in any order; only the unbroken run from
the start counts.

Back-pressure. Unread and unacknowledged events are pending. At `pending_max` publishers to these
topics wait until half of them are handled. Where publishers don't wait (`ensue://`), the
subscription pauses and catches up from the log.

Durable subscriptions (`ensue://`). The server keeps the position under the subscription's name;
entered again, it continues after the last acknowledged event. `await event.ack()` returns when the
position is stored (safe); automatic acknowledgements are stored in the background, and closing
waits for that. Closing a durable subscription does not end it: `forget` does. `SubscriptionLost`
ends reading if another process enters the name.

Closing ends back-pressure at once; received events can still be read. A durable subscription that
is closed lingers: it takes acknowledgements until all received events are handled and safe. It
rests earlier when its block or its bus is left, or its name is entered again, after at most
`close_timeout` seconds. Acknowledging after that raises, because the event may be delivered again.
Other subscriptions rest at once; their driver runs until servers know that they have left, or the
hub is closed.

By content (`where=…`). The subscription has one filter, and ends when a transaction withdraws it.
Where publishers don't wait, it ends with `SubscriptionLost` if it has no room for the next event or
transaction; a durable one has a mailbox. With an order it is one to cells (`content.cells`).
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, Self

from ensue.client.acknowledgements import Acknowledgements
from ensue.client.backpressure import Backpressure
from ensue.client.content.cells import CellRequest
from ensue.client.content.durable import DurableReader, DurableRequest, lingering_name
from ensue.client.content.reader import ContentReader, ContentRequest
from ensue.client.event_queue import EventQueue
from ensue.client.failures import fail
from ensue.client.handlers import READ_AHEAD_MAX, ReadAhead, Runner
from ensue.client.handover import BATCH_MAX, Batches, Handover
from ensue.client.policies import Concurrency, FailurePolicy, Handler, Progress, Sequential, Stop
from ensue.client.reader import Counts, NodeReader, Reader
from ensue.client.received_event import ReceivedEvent
from ensue.client.shared_node import SharedReader
from ensue.client.topic_changes import Missed, TopicChanges
from ensue.client.trace_rows import CLOSED, SubscriptionRows
from ensue.client.validation import (
    Acknowledge,
    Start,
    check_accept_loss,
    check_acknowledge,
    check_count,
    check_durable,
    check_pending_max,
    check_resumed,
    check_start,
    check_topics,
)
from ensue.core.errors import LocalProtocolError, LogLost, SubscriptionLost, refused_subscription
from ensue.core.order import Order, written
from ensue.protocols.interface import Acknowledged, Deliver, Join, Leave, Outcome, Refuse, Resumed
from ensue.protocols.shared.remote_state import DISMISSED
from ensue.runtime.driver import Failed
from ensue.runtime.hub_memory import Hub
from ensue.runtime.names import check_text

__all__ = ["Subscription"]

_log = logging.getLogger("ensue")


class Subscription:
    """A subscription. Made by `Bus.subscribe`.

    Enter it with `async with`, and read it with `async for`, in `batches`, or handle its events
    with `run`.
    """

    def __init__(
        self,
        hub: Hub,
        *,
        client: str,
        name: str | None,
        topics: tuple[str, ...],
        order: Order | None,
        pending_max: int,
        acknowledge: Acknowledge,
        durable: bool = False,
        start: Start = "latest",
        accept_loss: bool = False,
        content: ContentRequest | DurableRequest | None = None,
        cells: CellRequest | None = None,
    ) -> None:
        check_topics(topics, resumed=durable, cells=cells is not None)
        check_pending_max(pending_max)
        check_acknowledge(acknowledge)
        if name is not None:
            check_text(name, "a subscription's name")
        check_accept_loss(accept_loss, durable=durable)
        if durable and content is None:
            check_durable(name, order, hub.transport.capabilities, hub.transport.name)
        self._start = check_start(start, order, hub.transport.capabilities, hub.transport.name)
        self.order = order
        self.durable = durable
        self.pending_max = pending_max
        self._hub = hub
        self._client = client
        self._wanted_name = name
        self._topics = topics
        self._accept_loss = accept_loss
        self._content = content
        """Its filter; None: it has topics."""
        self._cells = cells
        """Its filter, and the cells that are its topics, if it has an order."""
        self._reader: Reader | None = None
        """Made on entering."""
        self._queue = EventQueue()
        self._acknowledgements = Acknowledgements(keeps=durable, settle_s=hub.close_timeout_s)
        self._backpressure = Backpressure(hub, name=name or "", pending_max=pending_max)
        self._handover = Handover(
            self,
            queue=self._queue,
            acknowledgements=self._acknowledgements,
            backpressure=self._backpressure,
            durable=durable,
            automatic=acknowledge == "auto",
            is_closed=lambda: self._closed,
            working_reader=lambda: self._working_reader,
        )
        self._topic_changes = TopicChanges()
        self._ahead = ReadAhead()
        self._dismissed: asyncio.Future[None] | None = None
        """Done when the server has forgotten it; made by `forget`."""
        self._closed = False
        self._rested = False
        self._rows: SubscriptionRows | None = None
        """Made on entering, where there is a trace."""
        self._handlers: dict[type[Outcome], Callable[[Any], None]] = {
            Join: self._joined,
            Leave: self._has_left,
            Refuse: self._was_refused,
            Failed: self._was_refused,
            Acknowledged: self._acknowledged,
            Resumed: lambda _outcome: self._has_resumed(),
        }

    def __repr__(self) -> str:
        name = self.name or self._wanted_name
        who = f" {name!r}" if name else ""
        if self._cells is not None:
            what = f"where={self._cells.where!r}, order={written(self.order)}"
        elif self._content is not None:
            what = f"where={self._content.where!r}"
        else:
            topics = self.topics or self._topics
            what = f"to {', '.join(map(repr, topics))}, order={written(self.order)}"
        if self._closed:
            state = "closed"
        elif self._acknowledgements.lost is not None:
            state = "lost"
        else:
            state = "not entered" if self._reader is None else "open"
        return f"<ensue.Subscription{who} {what}, {state}, {self.waiting} waiting>"

    @property
    def name(self) -> str:
        """The name of this subscription, in traces and warnings."""
        return self._backpressure.slow.name

    @property
    def closed(self) -> bool:
        """Whether it is closed."""
        return self._closed

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics in effect."""
        node = None if self._reader is None else self._reader.node
        return () if node is None else node.topics

    @property
    def missed(self) -> tuple[Missed, ...]:
        """Gaps that can't be recovered because it fell behind, the latest last."""
        return tuple(self._topic_changes.missed)

    @property
    def waiting(self) -> int:
        """Number of received and unread events."""
        return len(self._queue.unread)

    @property
    def pending(self) -> int:
        """Number of unread or unacknowledged events."""
        return self._handover.pending

    @property
    def held_back(self) -> int:
        """Number of events that wait for earlier ones."""
        node = None if self._reader is None else self._reader.node
        return 0 if node is None else node.held_count

    @property
    def counts(self) -> Counts | None:
        """Numbers of late and dropped events, by reason.

        None in total and causal order, which have no such events. By content in total order: of
        events that match, and of those that came in vain.
        """
        return None if self._reader is None else self._reader.counts

    # -- Entering and leaving ----------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self._reader is not None:
            raise LocalProtocolError(
                "a subscription is entered once: make another with bus.subscribe(…)"
            )
        if self._closed:
            raise LocalProtocolError("the subscription was closed before it was entered")
        hub = self._hub
        hub.check_loop("this subscription")
        # On the transport a subscription has a new name each time, unless it is durable.
        own_name = hub.unique(f"{self._client}.subscription")
        if self.durable and self._content is None and self._wanted_name is not None:
            own_name = self._wanted_name
        self._backpressure.slow.name = self._wanted_name or own_name
        reader = self._reader = self._make_reader(own_name)
        # Its session and its reader write the rows of a durable one by content.
        if hub.recorder is not None and not isinstance(reader, DurableReader):
            self._rows = SubscriptionRows(
                hub.recorder,
                hub.clock,
                client=self._client,
                name=self.name,
                deliveries=not reader.watches_handover,
            )
        self._handover.begin(reader, self._rows)
        try:
            await reader.open(
                client=self._client, subscription=self.name, on_outcomes=self._outcomes
            )
            check_resumed(self.name, self.topics, self._topics)
            if self._topics:
                await self.subscribe(*self._topics)
        except BaseException:
            self.rest()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None and self._handover.automatic:
            # A block that ends without an exception has handled its last event.
            self._handover.acknowledge_last()
        await self.finish()

    def close(self) -> None:
        """Leave all topics.

        Received events can still be read and acknowledged; then iteration ends.
        """
        if self._closed:
            return
        self._hub.check_loop("this subscription")
        self._closed = True
        self._backpressure.release()
        self._acknowledgements.close(self.name)
        try:
            if self._lingers and self._reader is not None:
                self._hub.lingering[self._lingering_name] = self
                self._reader.pause()
            else:
                self.rest()
        finally:
            for topic in self._topic_changes.waiting():
                why = f"the subscription was closed before it joined {topic!r}"
                self._topic_changes.give_up(topic, LocalProtocolError(why))
            self._queue.wake()

    async def finish(self) -> None:
        """Close, settle, and rest; at once if cancelled."""
        try:
            self.close()
            await self.settle()
        finally:
            self.rest()

    async def settle(self, by_s: float | None = None) -> None:
        """Wait until the server has stored acknowledgements and left topics.

        A closed subscription also waits for its run to end. It waits for the `close_timeout` of the
        bus at most, or until a time of the event loop; a timeout is logged.
        """
        acknowledgements, changes = self._acknowledgements, self._topic_changes
        if not acknowledgements.keeps:
            return
        loop = asyncio.get_running_loop()
        by_s = loop.time() + self._hub.close_timeout_s if by_s is None else by_s
        try:
            async with asyncio.timeout_at(by_s):
                if self._closed and not acknowledgements.ended:
                    await self._ahead.until_idle()
                await acknowledgements.until(acknowledgements.acknowledged)
                if not acknowledgements.ended and acknowledgements.lost is None:
                    await changes.until_left()
        except SubscriptionLost:
            pass  # Reading raises it.
        except (TimeoutError, LocalProtocolError) as error:
            if changes.leaving:
                _log.warning(
                    "unsubscribe unconfirmed topics=%s: the durable subscription may still have "
                    "them when it is entered again",
                    ",".join(sorted(changes.leaving)),
                )
            if not changes.leaving or not acknowledgements.settled:
                _log.warning("%s", acknowledgements.failure(error))

    def rest(self) -> None:
        """Close, and take no acknowledgements: events that are not safe may be delivered again."""
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
                if self._hub.lingering.get(self._lingering_name) is self:
                    del self._hub.lingering[self._lingering_name]
                fail(
                    reader.resumed,
                    LocalProtocolError("the subscription was closed while it was entered"),
                )
            if self._dismissed is not None:
                why = f"{self.name!r} was closed before the server confirmed that it forgot it"
                fail(self._dismissed, LocalProtocolError(why))
            self._topic_changes.stop_leaving()
            self._acknowledgements.end()

    async def forget(self) -> None:
        """End a durable subscription permanently: the server forgets it."""
        reader = self._open_reader()
        if not self.durable:
            raise LocalProtocolError("only a durable subscription is stored and can be forgotten")
        topics = dict.fromkeys((*self.topics, *self._topic_changes.asked))
        if self._topic_changes.asked and self._content is None:
            await self.unsubscribe(*self._topic_changes.asked)
        if self._rows is not None:
            self._rows.forgotten(topics)
        dismissed = self._dismissed = asyncio.get_running_loop().create_future()
        reader.dismiss()
        await dismissed
        self.rest()

    # -- Topics ------------------------------------------------------------------------------------

    async def subscribe(self, *topics: str) -> None:
        """Add topics; returns when events published from now on will be delivered."""
        self._check_content_topics(topics)
        check_topics(topics, cells=self._cells is not None)
        reader = self._open_reader()
        waiting = self._topic_changes.ask(topics, joined=self.topics)
        reader.command(lambda node, now: node.subscribe(topics, now_ns=now))
        unsettled = [future for future in waiting if not future.done()]
        if unsettled:
            await asyncio.wait(unsettled)
        for future in waiting:
            future.result()

    async def unsubscribe(self, *topics: str) -> None:
        """Leave topics: deliver no more of their events.

        It takes effect at once. The server of a durable subscription is notified in the background,
        and closing waits for that.
        """
        self._check_content_topics(topics)
        if self.durable and self._content is not None:
            raise LocalProtocolError("a durable subscription by content is closed or forgotten")
        check_topics(topics, wildcards=True, cells=self._cells is not None)
        reader = self._open_reader()
        self._topic_changes.leave(frozenset(topics).intersection(self.topics))
        reader.command(lambda node, now: node.unsubscribe(topics, now_ns=now))
        for topic in topics:
            error = LocalProtocolError(f"{topic!r} was left before it was joined")
            self._topic_changes.give_up(topic, error)
        left = frozenset(topics)
        reader.leave_unread(self._queue.of(left), ended=False)
        if self._rows is not None:
            self._rows.left(left, self._queue.of(left))
        self._queue.drop(left)
        for position in self._ahead.leave(left):
            self._handover.acknowledge(position)
        self._handover.relieve()

    # -- Reading -----------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    def __anext__(self) -> Coroutine[Any, Any, ReceivedEvent]:
        if self._reader is None or asyncio.get_running_loop() is not self._hub.loop:
            self._check_readable()
        return self._handover.next_event()

    def batches(self, *, max: int = BATCH_MAX) -> Batches:  # noqa: A002 - its limit, as in words
        """Return an async iterator over batches: lists of the events that are there.

        This is the fast path for many events. A batch has at least one event and at most `max`, in
        order. Asking for the next batch, or event, acknowledges the last batch, unless
        acknowledging is manual. A batch that a block did not finish, because it raised, is
        not acknowledged at all. Deadlines are checked when a batch is handed over. Cancelling a
        task that waits for a batch loses no event.
        """
        check_count(max, "max")
        return Batches(self._handover, max, self._check_readable)

    def _check_readable(self) -> None:
        if self._reader is None:
            raise self._not_open()
        self._hub.check_loop("this subscription")

    async def run(
        self,
        handler: Handler,
        *,
        concurrency: Concurrency = Sequential(),  # noqa: B008 - a frozen value
        on_failure: FailurePolicy = Stop(),  # noqa: B008 - a frozen value
        pending_max: int = READ_AHEAD_MAX,
        progress: Progress | None = None,
    ) -> Progress:
        """Call `handler` with every event until the subscription is closed; return the progress.

        An event is acknowledged when its handler has returned, also with `acknowledge="manual"`;
        after a run, acknowledge events that you read yourself by `ack`. `concurrency` is the policy
        for parallel handlers, `on_failure` that for an event whose handler raises. At most
        `pending_max` events are read from the first unfinished one on.

        It returns when acknowledgements are safe, or after the `close_timeout` of the bus. If
        cancelled, it cancels the handlers and waits for them. The next run begins with the events
        that this one left unfinished and that were not acknowledged since.
        """
        rows, in_turn = self._rows, isinstance(concurrency, Sequential)
        handover = self._handover
        runner = Runner(
            self,
            handler,
            check=handover.check_late if handover.watches else None,
            on_call=rows.called if rows is not None and in_turn else None,
            concurrency=concurrency,
            on_failure=on_failure,
            pending_max=pending_max,
            progress=progress,
        )
        self._check_readable()
        ahead, unacknowledged = self._ahead, self._acknowledgements.open
        if handover.automatic:
            handover.acknowledge_last()
            handover.automatic = False
        ahead.left = [event for event in ahead.left if event.position in unacknowledged]
        ahead.last_read = self._acknowledgements.handed_out
        if rows is not None and not ahead.running:
            rows.begin_run(in_turn=in_turn)
        try:
            done = await runner.run(ahead)
        finally:
            if rows is not None and not ahead.running:
                rows.end_run()
            self._rest_if_done()
        await self.settle()
        return done

    def acknowledge(self, position: int) -> None:
        """Acknowledge the event at a position."""
        self._hub.check_loop("this subscription")
        self._handover.acknowledge(position)

    async def until_safe(self, position: int) -> None:
        """Wait until the acknowledgement of a position is safe; only if durable."""
        await self._acknowledgements.until(position)

    def _room(self) -> int | None:
        """Return the room for more events; None: unlimited, publishers wait."""
        return None if self._hub.holds_publishers else self.pending_max - self.pending

    # -- State -------------------------------------------------------------------------------------

    def _make_reader(self, name: str) -> Reader:
        hub = self._hub
        if isinstance(self._content, DurableRequest):
            return DurableReader(hub, name=name, request=self._content)
        if self._content is not None:
            return ContentReader(
                hub, name=name, request=self._content, room=self._room, queue=self._queue
            )
        if hub.shares_node:
            return SharedReader(hub, name=name, client=self._client, order=self.order)
        return NodeReader(
            hub,
            name=name,
            order=self.order,
            durable=self.durable,
            acknowledge_each=self.durable or not self._handover.automatic,
            start=self._start,
            accept_loss=self._accept_loss,
            matches=None if self._cells is None else self._cells.matches,
            pending_max=0 if hub.holds_publishers else self.pending_max,
        )

    def _open_reader(self) -> Reader:
        if self._acknowledgements.lost is not None:
            raise self._acknowledgements.lost
        if self._reader is None or self._closed:
            raise self._not_open()
        self._hub.check_loop("this subscription")
        return self._reader

    def _not_open(self) -> LocalProtocolError:
        why = "the subscription is not open: use it inside `async with bus.subscribe(…)`"
        return LocalProtocolError(why)

    def _check_content_topics(self, topics: tuple[str, ...]) -> None:
        by_content = self._content is not None or self._cells is not None
        if by_content and topics != self._topics:
            raise LocalProtocolError(
                f"a subscription by content has no topics, got {', '.join(map(repr, topics))}: "
                "make another one, or close it"
            )

    @property
    def _working_reader(self) -> Reader | None:
        if self._rested or self._acknowledgements.lost is not None:
            return None
        return self._reader

    @property
    def _lingering_name(self) -> str:
        """The name that must rest before it is entered again."""
        return lingering_name(self._wanted_name or "", by_content=self._content is not None)

    @property
    def _lingers(self) -> bool:
        """Whether it expects acknowledgements, or some are not safe yet."""
        entered = self._reader is not None and self._reader.node is not None
        over = self._acknowledgements.lost is not None or self._dismissed is not None
        if not self.durable or not entered or over:
            return False
        settled = self._acknowledgements.settled and not self._topic_changes.leaving
        return bool(self.pending) or self._ahead.running or not settled

    def _rest_if_done(self) -> None:
        """Rest if it is closed and all events are acknowledged."""
        if self._closed and not self._lingers:
            self.rest()

    def _retire(self, reader: Reader) -> None:
        reader.leave_unread(self._queue.unread, ended=True)
        if self._rows is not None:
            kept = self.topics if self.durable else ()
            self._rows.end(self._queue.unread, kept, CLOSED)
        if self._acknowledgements.lost is not None:
            reader.rest(silently=True)
        elif self.durable:
            reader.rest()
        else:
            reader.retire(tuple(self._topic_changes.asked))

    # -- Outcomes of the reader --------------------------------------------------------------------

    def _outcomes(self, outcomes: Sequence[Outcome]) -> None:
        if self._rested:
            return  # Only the driver is still active, to leave its topics.
        if self._closed:
            # Events that arrive now are not delivered, and are delivered again later.
            outcomes = [
                each for each in outcomes if isinstance(each, Acknowledged | Leave | Refuse)
            ]
            self._hub.loop.call_soon(self._rest_if_done)
        handlers, leaving = self._handlers, self._topic_changes.leaving
        unread = self._queue.unread
        for outcome in outcomes:
            if type(outcome) is Deliver:
                if not leaving or outcome.event.topic not in leaving:
                    unread.append(outcome)
                elif self._rows is not None:
                    self._rows.unread((outcome,))
            elif (handle := handlers.get(type(outcome))) is not None:
                handle(outcome)
        if self.pending >= self.pending_max and not self._closed:
            self._backpressure.engage(self._reader)
        if unread:
            self._queue.wake()

    def _acknowledged(self, outcome: Acknowledged) -> None:
        grown = self.durable and outcome.position > self._acknowledgements.safe
        if grown and self._rows is not None:
            self._rows.acknowledged(outcome.position)
        self._acknowledgements.reached(outcome.position)

    def _has_left(self, outcome: Leave) -> None:
        if self._content is not None:
            self.close()
            return
        self._backpressure.slow.topics.pop(outcome.topic, None)
        self._topic_changes.left(outcome)

    def _joined(self, outcome: Join) -> None:
        topic = outcome.topic
        if topic in self._topic_changes.leaving:
            return  # It was left in the meantime.
        if outcome.missed is not None:
            self._topic_changes.miss(self.name, topic, *outcome.missed)
        self._backpressure.slow.topics[topic] = None
        self._topic_changes.joined(topic)

    def _has_resumed(self) -> None:
        if self._rows is not None:
            self._rows.resumed(self.topics)
        if self._reader is not None and not self._reader.resumed.done():
            self._reader.resumed.set_result(None)

    def _was_refused(self, outcome: Refuse) -> None:
        if outcome.topics:
            for topic in outcome.topics:
                what = repr(topic) if self._content is None else f"the subscription {self.name!r}"
                text = f"{what} was refused: {outcome.reason}"
                error = refused_subscription(text, reason=outcome.reason)
                self._topic_changes.give_up(topic, error)
        elif self._dismissed is not None and outcome.reason == DISMISSED:
            self._acknowledgements.forget()
            if not self._dismissed.done():
                self._dismissed.set_result(None)
            # Even if the task in `forget` was cancelled: there is no event left to read.
            self._hub.loop.call_soon(self.rest)
        else:
            self._end(outcome)

    def _end(self, outcome: Refuse) -> None:
        """End reading: a server refused the subscription, or its node failed."""
        error = outcome.error if isinstance(outcome, Failed) else None
        why = str(error) if isinstance(error, LogLost) else ""
        lost = self._acknowledgements.lose(self.name, outcome.reason, why)
        if self._reader is not None:
            self._reader.leave_unread(self._queue.unread, ended=True)
        if self._rows is not None:
            self._rows.end(self._queue.unread, self.topics, outcome.reason)
        if isinstance(outcome, Failed):
            lost.__cause__ = outcome.error
        for topic in self._topic_changes.waiting():
            self._topic_changes.give_up(topic, lost)
        self._topic_changes.stop_leaving()
        if self._reader is not None:
            fail(self._reader.resumed, lost)
        if self._dismissed is not None:
            fail(self._dismissed, lost)
        self._queue.wake()
