"""One node for a whole bus, in causal and deadline order: subscriptions share it.

An event that a program publishes comes after every event that any of its subscriptions got. So one
node publishes and receives for the whole bus, and each subscription has a share: its topics and its
positions. A topic is joined when the first share asks for it, and left with the last one. If
publishers don't wait, the node delivers to no share while one of them has no room: events are held,
requested again, or dropped at their deadline.

A deadline is checked again when the application takes the event (`Share.hand_over`). An event that
is late by then is dropped, or handed over with that verdict. So with deadlines, positions are
assigned and rows of the trace written at hand-over.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ensue import orders
from ensue.client.clock_alerts import log_alert
from ensue.client.reader import Reader
from ensue.core.clock import Clock
from ensue.core.event import DEADLINE, Event
from ensue.core.order import Order
from ensue.orders import SharedProtocolNode
from ensue.protocols.deadline.causality import LATE, OVERFLOW, OVERTAKEN
from ensue.protocols.deadline.delivery import DeadlineCounts
from ensue.protocols.interface import (
    Alert,
    Arrive,
    Deliver,
    Discard,
    Join,
    Leave,
    Outcome,
    Publish,
    Refuse,
)
from ensue.protocols.recorder import AlongsideRecorder, Recorder
from ensue.runtime.driver import Driver
from ensue.runtime.hub_memory import Hub

__all__ = ["UNREAD", "Share", "SharedNode", "SharedReader", "publications_only"]

UNREAD = "unread"
"""The verdict in the trace on events that arrived in time and were read too late."""


class Share:
    """One subscription's share in the node of its bus.

    It takes the commands of a node: `subscribe`, `unsubscribe`, `acknowledge`.
    """

    def __init__(
        self,
        shared: "SharedNode",
        *,
        subscription: str,
        on_outcome: Callable[[Outcome], None],
        tags: bool,
    ) -> None:
        self._shared = shared
        self._tags = tags
        """Whether it gets late events, with a verdict."""
        self.counts = DeadlineCounts()
        """Outcomes of events with deadlines."""
        self._subscription = subscription
        self._on_outcome = on_outcome
        self._ended = False
        """Whether later hand-overs are left out of the trace."""
        self._position = 0
        self.asked: dict[str, None] = {}
        """Topics asked for and not joined yet."""
        self.joined: dict[str, None] = {}

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics in effect."""
        return tuple(self.joined)

    @property
    def held_count(self) -> int:
        """Number of events that the node of the bus holds back."""
        return self._shared.node.held_count

    def subscribe(self, topics: Iterable[str], *, now_ns: int) -> None:
        """Ask for topics; one that another share is in takes effect at once."""
        new = [each for each in topics if each not in self.asked and each not in self.joined]
        self.asked.update(dict.fromkeys(new))
        there = [topic for topic in new if topic in self._shared.node.topics]
        for topic in there:
            self.pass_on(Join(topic))
        self._shared.node.subscribe([each for each in new if each not in there], now_ns=now_ns)

    def unsubscribe(self, topics: Iterable[str], *, now_ns: int) -> None:
        """Leave topics, at once."""
        left = [each for each in topics if each in self.asked or each in self.joined]
        for topic in left:
            self.asked.pop(topic, None)
            if topic in self.joined:
                self.pass_on(Leave(topic))
        self._shared.drop(left, now_ns=now_ns)

    def acknowledge(self, position: int) -> None:
        """Do nothing: no event is delivered again."""

    def pass_on(self, outcome: Join | Leave | Deliver | Arrive | Discard) -> None:
        """Pass an outcome on to the subscription, if it concerns this share."""
        if isinstance(outcome, Deliver | Arrive | Discard):
            if outcome.event.topic not in self.joined:
                return
            if isinstance(outcome, Deliver) and outcome.verdict and not self._tags:
                outcome = Discard(outcome.event, outcome.verdict)
            self._count(outcome)
        match outcome:
            case Join(topic=topic) if topic in self.asked:
                del self.asked[topic]
                self.joined[topic] = None
            case Join(topic=topic, missed=missed) if topic in self.joined and missed is not None:
                pass  # Some events can't be recovered.
            case Leave(topic=topic) if topic in self.joined:
                del self.joined[topic]
            case Deliver() if self._shared.has_deadlines:
                self._on_outcome(outcome)
                return
            case Deliver(event=event):
                self._position += 1
                outcome = Deliver(event, self._position, outcome.verdict, outcome.held_ns)
            case Arrive() | Discard():
                pass
            case _:
                return
        self._shared.record(self._subscription, outcome)
        self._on_outcome(outcome)

    def hand_over(self, delivery: Deliver) -> Deliver | None:
        """Return a delivery as the application gets it; None: its deadline has passed."""
        if not self._shared.has_deadlines:
            return delivery
        now_ns = self._shared.now_ns()
        verdict = self.check(delivery.event, delivery.verdict, now_ns)
        if verdict is None:
            return None
        self._position += 1
        handed = Deliver(delivery.event, self._position, verdict, delivery.held_ns)
        self._record(handed, now_ns)
        return handed

    def check(self, event: Event, verdict: str, now_ns: int | None = None) -> str | None:
        """Return the verdict on an event that is read now; None: it is late, and dropped."""
        deadline_ns = None if event.stamp is None else event.stamp.entries.get(DEADLINE)
        now_ns = self._shared.now_ns() if now_ns is None else now_ns
        if verdict or deadline_ns is None or now_ns <= deadline_ns:
            return verdict
        self.counts.delivered -= 1
        self.counts.late += 1
        self._record(Discard(event, UNREAD), now_ns)
        return LATE if self._tags else None

    def leave_unread(self, deliveries: Iterable[Deliver], *, ended: bool) -> None:
        """Note that the application never gets these events; `ended`: nor any later ones."""
        if self._shared.has_deadlines:
            now_ns = self._shared.now_ns()
            for delivery in deliveries:
                self._record(Discard(delivery.event, UNREAD), now_ns)
        self._ended = self._ended or ended

    def _record(self, outcome: Deliver | Discard, now_ns: int) -> None:
        if not self._ended:
            if isinstance(outcome, Deliver):
                self._shared.record_handover(self._subscription, outcome, now_ns)
            else:
                self._shared.record(self._subscription, outcome, now_ns)

    def _count(self, outcome: Deliver | Arrive | Discard) -> None:
        counts = self.counts
        if isinstance(outcome, Arrive):
            counts.received += 1
            return
        counts.delivered += isinstance(outcome, Deliver) and not outcome.verdict
        counts.late += outcome.verdict == LATE
        counts.overtaken += outcome.verdict == OVERTAKEN
        counts.overflow += outcome.verdict == OVERFLOW

    def alert(self, outcome: Alert) -> None:
        """Count an alert about clocks or delays."""
        self.counts.broken += outcome.broken
        self.counts.warned += not outcome.broken

    def refuse(self, outcome: Refuse) -> None:
        """Pass a refusal on if it concerns topics that this share asked for."""
        if any(self.asked.pop(topic, 0) is None for topic in outcome.topics):
            self._on_outcome(outcome)

    def end(self, outcome: Refuse) -> None:
        """Report that no more events follow."""
        self._on_outcome(outcome)
        # The subscription has recorded the end: closing the share must not do it again.
        self.joined.clear()


class SharedNode:
    """The node of one bus, and the shares in it."""

    def __init__(
        self,
        driver: Driver[SharedProtocolNode],
        *,
        clock: Clock,
        recorder: Recorder | None,
        on_published: Callable[[Event], None],
        has_deadlines: bool,
    ) -> None:
        self.driver = driver
        self._on_published = on_published
        self.node = driver.node
        self._clock = clock
        self._recorder = recorder
        self._shares: dict[Share, None] = {}
        self._full: dict[Share, None] = {}
        """Shares without room."""
        self._paused = False
        self.has_deadlines = has_deadlines

    def open(
        self, *, subscription: str, on_outcome: Callable[[Outcome], None], tags: bool = True
    ) -> Share:
        """Return a share for a subscription."""
        share = Share(self, subscription=subscription, on_outcome=on_outcome, tags=tags)
        self._shares[share] = None
        return share

    def close(self, share: Share) -> None:
        """End a share: leave the topics that no other share is in."""
        if self._shares.pop(share, 0) is not None:
            return
        self.resume(share)
        topics = (*share.asked, *share.joined)
        for topic in share.topics:
            share.pass_on(Leave(topic))
        if not self.driver.closed:
            self.driver.command(lambda _node, now: self.drop(topics, now_ns=now))

    def pause(self, share: Share) -> None:
        """Deliver nothing more to any share from the end of this turn of the event loop."""
        self._full[share] = None
        asyncio.get_running_loop().call_soon(self._pause_or_resume)

    def resume(self, share: Share) -> None:
        """Deliver again after a pause, once all shares have room."""
        if self._full.pop(share, 0) is None:
            asyncio.get_running_loop().call_soon(self._pause_or_resume)

    def _pause_or_resume(self) -> None:
        paused = bool(self._full)
        if paused == self._paused or not self.driver.takes_commands:
            return
        self._paused = paused
        try:
            if paused:
                self.driver.command(lambda node, _now: node.pause())
            else:
                self.driver.command(lambda node, now: node.resume(now_ns=now))
        except Exception as error:  # noqa: BLE001 - the event loop called: no caller to raise to
            self.driver.fail(error)

    def drop(self, topics: Iterable[str], *, now_ns: int) -> None:
        """Leave the topics that no share has."""
        shared = {topic for share in self._shares for topic in (*share.asked, *share.joined)}
        self.node.unsubscribe([each for each in topics if each not in shared], now_ns=now_ns)

    def outcome(self, outcome: Outcome) -> None:
        """Pass an outcome of the node on to the shares that it concerns."""
        if isinstance(outcome, Arrive | Discard) and not self.has_deadlines:
            return  # Only deadlines are counted.
        if isinstance(outcome, Join | Deliver | Arrive | Discard):
            for share in list(self._shares):
                share.pass_on(outcome)
        elif isinstance(outcome, Refuse):
            for share in list(self._shares):
                share.refuse(outcome)
        elif isinstance(outcome, Alert):
            log_alert(self.node.name, outcome)
            for share in self._shares:
                share.alert(outcome)
        elif isinstance(outcome, Publish):
            self._on_published(outcome.event)

    def end(self, outcome: Refuse) -> None:
        """End all shares, and the node."""
        for share in list(self._shares):
            share.end(outcome)
        # Other nodes have removed it. Not now: it may be in the middle of a call.
        asyncio.get_running_loop().call_soon(self._rest)

    def _rest(self) -> None:
        if not self.driver.closed:
            self.driver.close()

    def now_ns(self) -> int:
        """Return the time by which deadlines are judged."""
        return self._clock.now_ns()

    def record(self, subscription: str, outcome: Outcome, now_ns: int | None = None) -> None:
        """Write an outcome of a subscription into the trace."""
        if self._recorder is not None:
            now_ns = self._clock.now_ns() if now_ns is None else now_ns
            self._recorder.outcome(self.node.name, subscription, outcome, now_ns)

    def record_handover(self, subscription: str, delivery: Deliver, now_ns: int) -> None:
        """Write into the trace that the application was handed an event."""
        if self._recorder is not None:
            self._recorder.handed_over(self.node.name, subscription, delivery, now_ns)


class SharedReader(Reader):
    """Reads a share in the node of its bus."""

    def __init__(self, hub: Hub, *, name: str, client: str, order: Order | None) -> None:
        super().__init__(name)
        self._shared: SharedNode = hub.shares[client]
        self._tags = orders.of(hub.order).hands_over_late(order)
        self._share: Share | None = None
        self.watches_handover = self._shared.has_deadlines

    @property
    def node(self) -> Share | None:
        """The share, which has topics and positions as a node does."""
        return self._share

    @property
    def counts(self) -> DeadlineCounts | None:
        """Numbers of late and dropped events; None: without deadlines."""
        if self._share is None or not self._shared.has_deadlines:
            return None
        return self._share.counts

    async def open(
        self,
        *,
        client: str,
        subscription: str,
        on_outcomes: Callable[[Sequence[Outcome]], None],
    ) -> None:
        """Take the share."""
        del client
        self._share = self._shared.open(
            subscription=subscription,
            on_outcome=lambda outcome: on_outcomes((outcome,)),
            tags=self._tags,
        )
        self.resumed.set_result(None)
        await asyncio.sleep(0)

    def command(self, call: Callable[[Any, int], object]) -> None:
        """Call a function with the share, and the time."""
        share = self._share
        assert share is not None
        self._shared.driver.command(lambda _node, now: call(share, now))

    def hand_over(self, delivery: Deliver) -> Deliver | None:
        """Return a delivery as the application gets it; None: its deadline has passed."""
        return delivery if self._share is None else self._share.hand_over(delivery)

    def check(self, event: Event, verdict: str) -> str | None:
        """Return the verdict on an event whose handler is about to run; None: it is late."""
        return verdict if self._share is None else self._share.check(event, verdict)

    def leave_unread(self, deliveries: Iterable[Deliver], *, ended: bool) -> None:
        """Note that the application never gets these events; `ended`: nor any later ones."""
        if self._share is not None:
            self._share.leave_unread(deliveries, ended=ended)

    def pause(self) -> None:
        """Deliver nothing more to any share from the end of this turn of the event loop."""
        if self._share is not None:
            self._shared.pause(self._share)

    def resume(self) -> None:
        """Deliver again after a pause, once all shares have room."""
        if self._share is not None:
            self._shared.resume(self._share)

    def retire(self, topics: tuple[str, ...]) -> None:
        """End the share."""
        del topics
        if self._share is not None:
            self._shared.close(self._share)

    def rest(self, *, silently: bool = False) -> None:
        """End the share."""
        del silently
        self.retire(())


class _PublicationsOnly(AlongsideRecorder):
    """Records what a node publishes; each share records what it delivers."""

    def outcome(
        self,
        node: str,
        subscription: str | None,
        effect: Outcome,
        at_ns: int,
        true_ns: int | None = None,
    ) -> None:
        """Record publications alone."""
        if isinstance(effect, Publish):
            super().outcome(node, subscription, effect, at_ns, true_ns)


def publications_only(recorder: Recorder | None) -> Recorder | None:
    """Return a recorder for the node of a bus whose subscriptions have shares in it."""
    return None if recorder is None else _PublicationsOnly(recorder)
