"""A subscription: events one at a time, in order, with room for a stated number.

An event is handed out when it is asked for, and never lost by cancelling: a task cancelled while it waits has taken nothing. Acknowledging is automatic
by default: asking for the next event says that the last one was handled. With `acknowledge="manual"` each event is acknowledged by `ack`, in any order;
what counts is the unbroken run from the start.

Back-pressure: events handed out and not acknowledged, and events not yet handed out, count as pending. At `pending_max` publishers to these topics wait,
and they go on when half of that is left. Where publishers don't wait (`ensue://`), the subscription pauses and catches up from the log.

A durable subscription (`ensue://`) keeps how far it has come at the server, under its name. Entered again it goes on behind the last event acknowledged.
`await event.ack()` returns when that is safe; with automatic acknowledgement it becomes so in the background, and closing waits for it. Closing a durable
subscription does not end it: `forget` does. `SubscriptionLost` ends reading if another process takes the name up.
Closing ends back-pressure at once, and reading with what has come. The driver of a closed subscription lives on until the leave has come through, or the hub is gone;
of a durable one until all that was handed out is acknowledged, or nobody is left who could (`acknowledging`).
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

from ensue.client.acknowledging import Acknowledging
from ensue.client.checks import (
    Acknowledge,
    Start,
    check_accept_loss,
    check_acknowledge,
    check_durable,
    check_pending_max,
    check_resumed,
    check_start,
    check_topics,
)
from ensue.client.cube_reader import Reader, make_reader
from ensue.client.futures import fail
from ensue.client.joining import Missed
from ensue.client.policies import Concurrency, FailurePolicy, Handler, Progress, Sequential, Stop
from ensue.client.received import ReceivedEvent
from ensue.client.running import READ_AHEAD_MAX, Runner
from ensue.client.shown import shown_subscription
from ensue.errors import LocalProtocolError, LogLost, refused_subscription
from ensue.order import Order
from ensue.protocols.core import Acknowledged, Deliver, Join, Leave, Outcome, Refuse, Resumed
from ensue.protocols.gossip.handing import GossipCounts
from ensue.protocols.kept import DISMISSED
from ensue.protocols.merge.watching import MergeCounts
from ensue.protocols.unordered import UnorderedCounts
from ensue.runtime.driver import Failed
from ensue.runtime.hub import Hub
from ensue.runtime.names import check_text

__all__ = ["Subscription"]


class Subscription(Acknowledging):
    """Made by `Bus.subscribe`; entered with `async with`, read with `async for`."""

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
    ) -> None:
        check_topics(topics, resumed=durable)
        check_pending_max(pending_max)
        check_acknowledge(acknowledge)
        if name is not None:
            check_text(name, "a subscription's name")
        check_accept_loss(accept_loss, durable=durable)
        if durable:
            check_durable(name, order, hub.transport.capabilities, hub.transport.name)
        self._start = check_start(start, order, hub.transport.capabilities, hub.transport.name)
        super().__init__(
            hub,
            name=name or "",
            durable=durable,
            automatic=acknowledge == "auto",
            pending_max=pending_max,
        )
        self.order = order
        self._has_deadlines = False
        """Whether events may be late by the time they are handed over."""
        self._accept_loss = accept_loss
        self._client = client
        self._wanted_name = name
        self._topics = topics
        self._handlers: dict[type[Outcome], Callable[[Any], None]] = {
            Join: self._joined,
            Leave: self._has_left,
            Refuse: self._was_refused,
            Failed: self._was_refused,
            Acknowledged: lambda outcome: self._safety.reached(outcome.position),
            Resumed: lambda _outcome: self._has_resumed(),
        }

    __repr__ = shown_subscription

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics in effect."""
        node = None if self._reader is None else self._reader.node
        return () if node is None else node.topics

    @property
    def missed(self) -> tuple[Missed, ...]:
        """What it fell behind of and can't be had any more, the latest last."""
        return tuple(self._joining.missed)

    @property
    def waiting(self) -> int:
        """How many events are here and not handed out."""
        return len(self._queue)

    @property
    def held_back(self) -> int:
        """How many events wait for others that come before them."""
        node = None if self._reader is None else self._reader.node
        return 0 if node is None else node.held_count

    @property
    def counts(self) -> MergeCounts | GossipCounts | UnorderedCounts | None:
        """What became of the events that came, where order is merged, has deadlines or is none: how many were late or dropped, and why."""
        return None if self._reader is None else self._reader.counts

    async def __aenter__(self) -> Self:
        if self._reader is not None:
            raise LocalProtocolError("a subscription is entered once")
        if self._closed:
            raise LocalProtocolError("the subscription was closed before it was entered")
        hub = self._hub
        hub.check_loop("this subscription")
        # On the chain a subscription is new each time, whatever people call it, unless it is durable.
        own_name = hub.unique(f"{self._client}.subscription")
        if self.durable and self._wanted_name is not None:
            own_name = self._wanted_name
        self._slow.name = self._wanted_name or own_name
        reader = self._reader = make_reader(
            hub,
            name=own_name,
            client=self._client,
            order=self.order,
            durable=self.durable,
            acknowledge_each=self.durable or not self._automatic,
            start=self._start,
            accept_loss=self._accept_loss,
        )
        self._has_deadlines = reader.has_deadlines
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
        if kind is None and self._automatic and self._unacknowledged:
            # Whoever leaves in peace has handled what it was handed.
            self._handled(next(iter(self._unacknowledged)))
        await self.finish()

    async def forget(self) -> None:
        """End a durable subscription for good: the server forgets it."""
        reader = self._open_reader()
        if not self.durable:
            raise LocalProtocolError("only a durable subscription is kept, and can be forgotten")
        if self._joining.asked:
            await self.unsubscribe(*self._joining.asked)
        dismissed = self._dismissed = asyncio.get_running_loop().create_future()
        reader.dismiss()
        await dismissed
        self.rest()

    async def subscribe(self, *topics: str) -> None:
        """Add topics; returns when events published from now on will be delivered."""
        check_topics(topics)
        reader = self._open_reader()
        waiting = self._joining.ask(topics, joined=self.topics)
        reader.command(lambda node, now: node.subscribe(topics, now_ns=now))
        unsettled = [future for future in waiting if not future.done()]
        if unsettled:
            await asyncio.wait(unsettled)
        for future in waiting:
            future.result()

    async def unsubscribe(self, *topics: str) -> None:
        """Leave topics: nothing of them is handed out any more.

        It takes effect at once here. A durable subscription tells its server in the background, and closing waits for that.
        """
        check_topics(topics, wildcards=True)
        reader = self._open_reader()
        self._joining.leave(frozenset(topics).intersection(self.topics))
        reader.command(lambda node, now: node.unsubscribe(topics, now_ns=now))
        for topic in topics:
            error = LocalProtocolError(f"{topic!r} was left before it was joined")
            self._joining.give_up(topic, error)
        left = frozenset(topics)
        reader.leave_unread([each for each in self._queue if each.event.topic in left], ended=False)
        self._queue = deque(each for each in self._queue if each.event.topic not in left)
        for position in self._ahead.leave(left):
            self._handled(position)
        self._relieve()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedEvent:
        if self._reader is None:
            raise self._not_open()
        if asyncio.get_running_loop() is not self._hub.loop:
            self._hub.check_loop("this subscription")
        if self._waiter is not None and not self._waiter.cancelled():
            raise LocalProtocolError(
                "somebody is already reading this subscription: read it in one task, "
                "or make a subscription for each"
            )
        if self._automatic and self._unacknowledged:
            if self.durable:
                self._handled(next(iter(self._unacknowledged)))
            else:
                self._unacknowledged.clear()
                if self._full:
                    self._relieve()
        delivery = None
        while delivery is None:
            while not self._queue:
                await self._until_woken()
            # Nothing is awaited from here on, so a cancelled task has not taken the event.
            delivery = self._queue.popleft()
            if self._has_deadlines:
                delivery = self._in_time(delivery)
        position = self._handed_out = delivery.position
        self._unacknowledged[position] = None
        return ReceivedEvent(delivery.event, position, delivery.verdict, self)

    async def _until_woken(self) -> None:
        if self._safety.lost is not None:
            raise self._safety.lost
        if self._closed:
            raise StopAsyncIteration
        waiter = self._waiter = asyncio.get_running_loop().create_future()
        try:
            await waiter
        finally:
            # After a cancelled reader another one may wait already.
            if self._waiter is waiter:
                self._waiter = None

    async def run(
        self,
        handler: Handler,
        *,
        concurrency: Concurrency = Sequential(),  # noqa: B008 - a frozen value
        on_failure: FailurePolicy = Stop(),  # noqa: B008 - a frozen value
        pending_max: int = READ_AHEAD_MAX,
        progress: Progress | None = None,
    ) -> Progress:
        """Call `handler` with every event until the subscription is closed; return what was done.

        An event is acknowledged when its handler has returned, whatever `acknowledge` says, and for good: reading on later is left to `ack`, too. `concurrency`
        says what may run at once, `on_failure` what becomes of an event whose handler raises. It returns when what was handled is safe, or has been awaited for the `close_timeout` of the bus. At most `pending_max` events are read from the first unfinished one
        on. Cancelled, it cancels the handlers and waits for them. What a run leaves unfinished, the next one begins with, unless it was acknowledged meanwhile.
        """
        runner = Runner(
            self,
            handler,
            check=self._check_late if self._has_deadlines else None,
            concurrency=concurrency,
            on_failure=on_failure,
            pending_max=pending_max,
            progress=progress,
        )
        if self._reader is None:
            raise self._not_open()
        self._hub.check_loop("this subscription")
        ahead = self._ahead
        if self._automatic:
            for position in tuple(self._unacknowledged):
                self._handled(position)
            self._automatic = False
        ahead.left = [event for event in ahead.left if event.position in self._unacknowledged]
        try:
            done = await runner.run(ahead)
        finally:
            self._rest_if_done()
        await self.settle()
        return done

    def _in_time(self, delivery: Deliver) -> Deliver | None:
        """Return what is handed over of a delivery; None: nothing, it is late by now."""
        handed = None if self._reader is None else self._reader.hand_over(delivery)
        if handed is None:
            self._relieve()
        return handed

    def _check_late(self, event: ReceivedEvent) -> ReceivedEvent | None:
        """Return an event as its handler is to be given it; None: it is late by now, and dropped."""
        reader = self._reader
        verdict = event.verdict if reader is None else reader.check(event.event, event.verdict)
        if verdict is None:
            return None
        return event if verdict == event.verdict else event.with_verdict(verdict)

    def _open_reader(self) -> Reader:
        if self._safety.lost is not None:
            raise self._safety.lost
        if self._reader is None or self._closed:
            raise self._not_open()
        self._hub.check_loop("this subscription")
        return self._reader

    def _not_open(self) -> LocalProtocolError:
        why = "the subscription is not open: use it inside `async with bus.subscribe(…)`"
        return LocalProtocolError(why)

    def _outcomes(self, outcomes: Sequence[Outcome]) -> None:
        if self._rested:
            return  # The driver sees the leave through, and nobody is interested in how.
        if self._closed:
            # What comes now was not handed out, and comes again.
            outcomes = [
                each for each in outcomes if isinstance(each, Acknowledged | Leave | Refuse)
            ]
            self._hub.loop.call_soon(self._rest_if_done)
        queue, handlers, leaving = self._queue, self._handlers, self._joining.leaving
        for outcome in outcomes:
            if type(outcome) is Deliver:
                if not leaving or outcome.event.topic not in leaving:
                    queue.append(outcome)
            elif (handle := handlers.get(type(outcome))) is not None:
                handle(outcome)
        if len(queue) + len(self._unacknowledged) >= self.pending_max and not self._closed:
            self._no_room()
        if queue and self._waiter is not None:
            self._wake()

    def _has_left(self, outcome: Leave) -> None:
        self._slow.topics.pop(outcome.topic, None)
        self._joining.left(outcome)

    def _joined(self, outcome: Join) -> None:
        topic = outcome.topic
        if topic in self._joining.leaving:
            return  # It was left since.
        if outcome.missed is not None:
            self._joining.miss(self.name, topic, *outcome.missed)
        self._slow.topics[topic] = None
        self._joining.joined(topic)

    def _has_resumed(self) -> None:
        if self._reader is not None and not self._reader.resumed.done():
            self._reader.resumed.set_result(None)

    def _was_refused(self, outcome: Refuse) -> None:
        if outcome.topics:
            for topic in outcome.topics:
                text = f"{topic!r} was refused: {outcome.reason}"
                self._joining.give_up(topic, refused_subscription(text, reason=outcome.reason))
        elif self._dismissed is not None and outcome.reason == DISMISSED:
            self._safety.forget()
            if not self._dismissed.done():
                self._dismissed.set_result(None)
            # Soon, and whether or not somebody still waits: there is nothing to be read any more.
            self._hub.loop.call_soon(self.rest)
        else:
            self._end(outcome)

    def _end(self, outcome: Refuse) -> None:
        """End reading for good: the chain or the keeper won't have this subscription, or it has failed."""
        error = outcome.error if isinstance(outcome, Failed) else None
        why = str(error) if isinstance(error, LogLost) else ""
        lost = self._safety.lose(self.name, outcome.reason, why)
        if isinstance(outcome, Failed):
            lost.__cause__ = outcome.error
        for topic in self._joining.waiting():
            self._joining.give_up(topic, lost)
        self._joining.stop_leaving()
        if self._reader is not None:
            fail(self._reader.resumed, lost)
        if self._dismissed is not None:
            fail(self._dismissed, lost)
        self._wake()
