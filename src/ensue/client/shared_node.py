"""Subscriptions of one bus in causal order, or with deadlines: all of them share the bus's node.

What a program publishes comes after all that it was handed, through whichever of its subscriptions. So one
node publishes and receives for the whole bus, and each subscription has a share in it: the topics it
asked for, and positions of its own. A topic is joined when the first share asks for it and left with the last. While one share has no
room, where publishers don't wait for it, the node delivers nothing to any of them: what comes is held, or asked for again; or dropped at its deadline, if
it has one.

A deadline is judged once more when the application takes the event (`Share.hand_over`). An event that has lain unread until then is late: dropped, or handed
over with that verdict. So with deadlines positions are given, and rows of the trace are written, at hand-over.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from ensue.client.alerts import log_alert
from ensue.clock import Clock
from ensue.event import DEADLINE, Event
from ensue.protocols.core import (
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
from ensue.protocols.gossip.broker import GossipBroker
from ensue.protocols.gossip.causality import LATE, OVERFLOW, OVERTAKEN
from ensue.protocols.gossip.handing import GossipCounts
from ensue.protocols.hypercube.node import HypercubeNode
from ensue.recorder import AlongsideRecorder, Recorder
from ensue.runtime.driver import Driver

__all__ = ["UNREAD", "Share", "Shares", "publishing_alone"]

UNREAD = "unread"
"""The verdict in the trace on what came in time, and was not read by its deadline or at all."""


class Share:
    """What one subscription sees of the bus's node. Commands: `subscribe`, `unsubscribe`, `acknowledge`."""

    def __init__(
        self,
        shares: "Shares",
        *,
        subscription: str,
        on_outcome: Callable[[Outcome], None],
        tags: bool,
    ) -> None:
        self._shares = shares
        self._tags = tags
        """Whether it is given what is late, with a verdict."""
        self.counts = GossipCounts()
        """What became of events, where they have deadlines."""
        self._subscription = subscription
        self._on_outcome = on_outcome
        self._ended = False
        """Whether what is handed over from now on is no part of the trace."""
        self._position = 0
        self.asked: dict[str, None] = {}
        """Topics that are wanted and not joined yet."""
        self.joined: dict[str, None] = {}

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics in effect."""
        return tuple(self.joined)

    @property
    def held_count(self) -> int:
        """How many events the bus's node holds back."""
        return self._shares.node.held_count

    def subscribe(self, topics: Iterable[str], *, now_ns: int) -> None:
        """Ask for topics; one that another share is in takes effect at once."""
        new = [each for each in topics if each not in self.asked and each not in self.joined]
        self.asked.update(dict.fromkeys(new))
        there = [topic for topic in new if topic in self._shares.node.topics]
        for topic in there:
            self.tell(Join(topic))
        self._shares.node.subscribe([each for each in new if each not in there], now_ns=now_ns)

    def unsubscribe(self, topics: Iterable[str], *, now_ns: int) -> None:
        """Leave topics, at once."""
        left = [each for each in topics if each in self.asked or each in self.joined]
        for topic in left:
            self.asked.pop(topic, None)
            if topic in self.joined:
                self.tell(Leave(topic))
        self._shares.drop(left, now_ns=now_ns)

    def acknowledge(self, position: int) -> None:
        """Do nothing: nothing is delivered again."""

    def tell(self, outcome: Join | Leave | Deliver | Arrive | Discard) -> None:
        """Hand an outcome over, if it concerns this share."""
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
                pass  # Something can't be had any more.
            case Leave(topic=topic) if topic in self.joined:
                del self.joined[topic]
            case Deliver() if self._shares.has_deadlines:
                self._on_outcome(outcome)
                return
            case Deliver(event=event):
                self._position += 1
                outcome = Deliver(event, self._position, outcome.verdict, outcome.held_ns)
            case Arrive() | Discard():
                pass
            case _:
                return
        self._shares.record(self._subscription, outcome)
        self._on_outcome(outcome)

    def hand_over(self, delivery: Deliver) -> Deliver | None:
        """Return what the application is handed of a delivery; None: nothing, it is late by now."""
        if not self._shares.has_deadlines:
            return delivery
        now_ns = self._shares.now_ns()
        verdict = self.check(delivery.event, delivery.verdict, now_ns)
        if verdict is None:
            return None
        self._position += 1
        handed = Deliver(delivery.event, self._position, verdict, delivery.held_ns)
        self._record(handed, now_ns)
        return handed

    def check(self, event: Event, verdict: str, now_ns: int | None = None) -> str | None:
        """Return the verdict on an event that is taken now; None: it is late, and dropped."""
        deadline_ns = None if event.stamp is None else event.stamp.entries.get(DEADLINE)
        now_ns = self._shares.now_ns() if now_ns is None else now_ns
        if verdict or deadline_ns is None or now_ns <= deadline_ns:
            return verdict
        self.counts.delivered -= 1
        self.counts.late += 1
        self._record(Discard(event, UNREAD), now_ns)
        return LATE if self._tags else None

    def leave_unread(self, deliveries: Iterable[Deliver], *, ended: bool) -> None:
        """Note that events are not handed over while the subscription to their topic lasts."""
        if self._shares.has_deadlines:
            now_ns = self._shares.now_ns()
            for delivery in deliveries:
                self._record(Discard(delivery.event, UNREAD), now_ns)
        self._ended = self._ended or ended

    def _record(self, outcome: Deliver | Discard, now_ns: int) -> None:
        if not self._ended:
            self._shares.record(self._subscription, outcome, now_ns)

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
        """Count what was told of other clocks and of delays."""
        self.counts.broken += outcome.broken
        self.counts.warned += not outcome.broken

    def refuse(self, outcome: Refuse) -> None:
        """Tell which of its topics it can't have."""
        if any(self.asked.pop(topic, 0) is None for topic in outcome.topics):
            self._on_outcome(outcome)

    def end(self, outcome: Refuse) -> None:
        """Tell that nothing more will come."""
        self._on_outcome(outcome)


class Shares:
    """The node of one bus, and who has a share in it."""

    def __init__(
        self,
        driver: Driver[HypercubeNode] | Driver[GossipBroker],
        *,
        clock: Clock,
        recorder: Recorder | None,
        on_published: Callable[[Event], None],
    ) -> None:
        self.driver: Driver[Any] = driver
        self._on_published = on_published
        self.node: HypercubeNode | GossipBroker = driver.node
        self._clock = clock
        self._recorder = recorder
        self._shares: dict[Share, None] = {}
        self._full: dict[Share, None] = {}
        """Those with no room."""
        self._paused = False
        self.has_deadlines = isinstance(driver.node, GossipBroker)

    def open(
        self, *, subscription: str, on_outcome: Callable[[Outcome], None], tags: bool = True
    ) -> Share:
        """Give a subscription its share."""
        share = Share(self, subscription=subscription, on_outcome=on_outcome, tags=tags)
        self._shares[share] = None
        return share

    def close(self, share: Share) -> None:
        """End a share: leave what nobody else is in."""
        if self._shares.pop(share, 0) is not None:
            return
        self.resume(share)
        topics = (*share.asked, *share.joined)
        for topic in share.topics:
            share.tell(Leave(topic))
        if not self.driver.closed:
            self.driver.command(lambda _node, now: self.drop(topics, now_ns=now))

    def pause(self, share: Share) -> None:
        """Have nothing more delivered, at the end of this turn of the event loop."""
        self._full[share] = None
        asyncio.get_running_loop().call_soon(self._pause_or_resume)

    def resume(self, share: Share) -> None:
        """Go on after a pause, once nobody needs it."""
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
        except Exception as error:  # noqa: BLE001 - nobody called who could be told
            self.driver.fail(error)

    def drop(self, topics: Iterable[str], *, now_ns: int) -> None:
        """Leave those topics that nobody has a share in any more."""
        shared = {topic for share in self._shares for topic in (*share.asked, *share.joined)}
        self.node.unsubscribe([each for each in topics if each not in shared], now_ns=now_ns)

    def outcome(self, outcome: Outcome) -> None:
        """Hand what the node says to whom it concerns."""
        if isinstance(outcome, Arrive | Discard) and not self.has_deadlines:
            return  # Nobody asks when and why.
        if isinstance(outcome, Join | Deliver | Arrive | Discard):
            for share in list(self._shares):
                share.tell(outcome)
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
        """Tell all of them that the node does nothing any more, and see to it."""
        for share in list(self._shares):
            share.end(outcome)
        # Or it would go on among others who take it for gone. Soon: it may be about something.
        asyncio.get_running_loop().call_soon(self._rest)

    def _rest(self) -> None:
        if not self.driver.closed:
            self.driver.close()

    def now_ns(self) -> int:
        """Return the time by which deadlines are judged."""
        return self._clock.now_ns()

    def record(self, subscription: str, outcome: Outcome, now_ns: int | None = None) -> None:
        """Write what a subscription was told into the trace."""
        if self._recorder is not None:
            now_ns = self._clock.now_ns() if now_ns is None else now_ns
            self._recorder.outcome(self.node.name, subscription, outcome, now_ns)


class _PublishingAlone(AlongsideRecorder):
    """Writes what a node publishes; what it delivers is written for each share."""

    def outcome(
        self,
        node: str,
        subscription: str | None,
        effect: Outcome,
        at_ns: int,
        true_ns: int | None = None,
    ) -> None:
        """Leave out what the shares tell."""
        if isinstance(effect, Publish):
            super().outcome(node, subscription, effect, at_ns, true_ns)


def publishing_alone(recorder: Recorder | None) -> Recorder | None:
    """Return a recorder for the node of a bus whose subscriptions have shares in it."""
    return None if recorder is None else _PublishingAlone(recorder)
